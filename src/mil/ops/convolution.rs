//! Convolutions over one to three spatial axes.

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::product::product;
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{float_tensor, floats, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("conv", conv);
    registry.computes("conv_transpose", conv_transpose);
}

/// Elements of windows that are gathered at a time: 16 MiB.
const COLUMNS: usize = 1 << 22;
/// The most pairs of a window and a place of the kernel.
const MOST_PAIRS: usize = 1 << 32;

/// How a window moves along one spatial axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    /// Size of the input.
    pub input: usize,
    /// Size of the kernel.
    pub kernel: usize,
    /// Steps between windows.
    pub stride: usize,
    /// Steps inside a window.
    pub dilation: usize,
    /// Zeros before the input.
    pub before: usize,
    /// Number of windows.
    pub output: usize,
}

/// The spatial axes of an op with `pad_type`, `pad`, `strides`, `dilations`, for `input` sizes and `kernel` sizes. With
/// `ceil` a last window may hang over the end.
pub(super) fn axes(call: &Call<'_>, input: &[usize], kernel: &[usize], ceil: bool) -> Result<Vec<Axis>> {
    let rank = input.len();
    let sizes = |name: &str, default: usize| -> Result<Vec<usize>> {
        let given = if call.optional(name)?.is_some() { call.sizes(name)? } else { vec![default; rank] };
        ensure!(given.len() == rank, "parameter `{name}` has {} values for {rank} axes", given.len());
        Ok(given)
    };
    let (strides, dilations) = (sizes("strides", 1)?, sizes("dilations", 1)?);
    let pad = if call.optional("pad")?.is_some() { call.sizes("pad")? } else { vec![0; 2 * rank] };
    let pad_type = call.text_or("pad_type", "valid")?;
    (0..rank)
        .map(|axis| {
            let (input, kernel, stride, dilation) = (input[axis], kernel[axis], strides[axis], dilations[axis]);
            ensure!(stride > 0 && dilation > 0 && kernel > 0, "stride {stride}, dilation {dilation}, kernel {kernel}");
            let reach = reach(kernel, dilation)?;
            let (before, after) = match pad_type {
                "valid" => (0, 0),
                "custom" => {
                    ensure!(pad.len() == 2 * rank, "parameter `pad` has {} values for {rank} axes", pad.len());
                    (pad[2 * axis], pad[2 * axis + 1])
                }
                "same" | "same_lower" => {
                    let total = ((input.div_ceil(stride).max(1) - 1) * stride).saturating_add(reach);
                    let total = total.saturating_sub(input);
                    if pad_type == "same" { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) }
                }
                other => bail!("pad_type `{other}`"),
            };
            let padded = input.checked_add(before).and_then(|p| p.checked_add(after)).context("pad too large")?;
            ensure!(padded >= reach, "a kernel that reaches over {reach} of {padded} elements");
            let mut output = (padded - reach) / stride + 1;
            if ceil {
                output = (padded - reach).div_ceil(stride) + 1;
                let last = (output - 1).checked_mul(stride).context("stride too large")?;
                if last >= input + before && before + after > 0 {
                    output -= 1;
                }
            }
            Ok(Axis { input, kernel, stride, dilation, before, output })
        })
        .collect()
}

/// Elements from the first to the last that a kernel meets.
fn reach(kernel: usize, dilation: usize) -> Result<usize> {
    let reach = (kernel - 1).checked_mul(dilation).and_then(|reach| reach.checked_add(1));
    reach.filter(|&reach| reach <= usize::MAX / 4).context("kernel too large")
}

/// What [`element`] gives where a window hangs over the input.
pub(super) const OUTSIDE: usize = usize::MAX;

/// The flat index of the input element that meets a place of the kernel in a window, all counted row-major.
pub(super) fn element(axes: &[Axis], mut place: usize, mut window: usize) -> usize {
    let (mut index, mut size) = (0, 1);
    for axis in axes.iter().rev() {
        let position = window % axis.output * axis.stride + place % axis.kernel * axis.dilation;
        (place, window) = (place / axis.kernel, window / axis.output);
        match position.checked_sub(axis.before) {
            Some(position) if position < axis.input => index += position * size,
            _ => return OUTSIDE,
        }
        size *= axis.input;
    }
    index
}

/// Numbers of places and of windows.
///
/// # Errors
/// A pass over all of them would not end in reasonable time.
pub(super) fn counts(axes: &[Axis]) -> Result<(usize, usize)> {
    let product = |size: fn(&Axis) -> usize| {
        axes.iter().try_fold(1usize, |product, axis| product.checked_mul(size(axis))).context("too many windows")
    };
    let (places, windows) = (product(|axis| axis.kernel)?, product(|axis| axis.output)?);
    let pairs = places.checked_mul(windows).filter(|&pairs| pairs <= MOST_PAIRS);
    pairs.with_context(|| format!("{windows} windows of {places} elements are too many"))?;
    Ok((places, windows))
}

/// `x` `[n, in, …]`, `weight` `[out, in / groups, …]`, `bias` `[out]`.
fn conv(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, weight) = (call.float_tensor("x")?, call.value("weight")?);
    let (shape, kernel) = (x.dims().to_vec(), weight.shape().to_vec());
    ensure!(
        (3..=5).contains(&shape.len()) && shape.len() == kernel.len() && weight.dtype().is_float(),
        "weight {kernel:?} on {shape:?}"
    );
    let groups = usize::try_from(call.int_or("groups", 1)?).ok().filter(|&groups| groups > 0);
    let groups = groups.context("parameter `groups` must be positive")?;
    let (channels, out) = (shape[1], kernel[0]);
    ensure!(
        channels > 0 && out % groups == 0 && channels % groups == 0 && kernel[1] == channels / groups,
        "weight {kernel:?} on {shape:?} in {groups} groups"
    );
    let axes = axes(call, &shape[2..], &kernel[2..], false)?;
    let (places, spatial) = counts(&axes)?;
    let mut result_shape = vec![shape[0], out];
    result_shape.extend(axes.iter().map(|axis| axis.output));
    let mut result = vec![0.0; result_elements(&result_shape)?];
    let pointwise =
        axes.iter().all(|axis| *axis == Axis { kernel: 1, stride: 1, before: 0, output: axis.input, ..*axis });
    let (inputs, outputs) = (channels / groups, out / groups);
    let input_size: usize = shape[2..].iter().product();
    let bias = call.optional_tensor("bias")?.map(|bias| floats(&bias)).transpose()?;
    ensure!(bias.as_ref().is_none_or(|bias| bias.len() == out), "bias for {out} channels");
    let chunk = if pointwise { spatial } else { (COLUMNS / (inputs * places)).max(1) };
    with_floats(&x, |x| {
        let mut columns = Vec::new();
        for first in (0..spatial).step_by(chunk.max(1)) {
            let count = chunk.min(spatial - first);
            let pairs = if pointwise { 0 } else { places };
            let elements = (0..pairs).flat_map(|place| (first..first + count).map(move |window| (place, window)));
            let indices: Vec<usize> = elements.map(|(place, window)| element(&axes, place, window)).collect();
            for (image, group) in (0..shape[0]).flat_map(|image| (0..groups).map(move |group| (image, group))) {
                let start = (image * channels + group * inputs) * input_size;
                let part = &x[start..start + inputs * input_size];
                let rows = group * outputs..(group + 1) * outputs;
                let products = if pointwise {
                    product(weight, rows, inputs, part, spatial)?
                } else {
                    columns.clear();
                    for channel in 0..inputs {
                        let channel = &part[channel * input_size..(channel + 1) * input_size];
                        columns.extend(indices.iter().map(|&index| channel.get(index).copied().unwrap_or(0.0)));
                    }
                    product(weight, rows, inputs * places, &columns, count)?
                };
                for (row, values) in products.chunks(count).enumerate() {
                    let start = (image * out + group * outputs + row) * spatial + first;
                    result[start..start + count].copy_from_slice(values);
                }
            }
        }
        anyhow::Ok(())
    })??;
    if let Some(bias) = bias {
        add_bias(&mut result, &bias, spatial);
    }
    Ok(vec![float_tensor(result, &result_shape)?])
}

fn add_bias(result: &mut [f32], bias: &[f32], spatial: usize) {
    for (i, channel) in result.chunks_mut(spatial.max(1)).enumerate() {
        channel.iter_mut().for_each(|value| *value += bias[i % bias.len()]);
    }
}

/// `x` `[n, in, …]`, `weight` `[in, out / groups, …]`, `bias` `[out]`: every input element adds the kernel, times
/// itself, to the output around `stride` times its place.
fn conv_transpose(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, weight) = (call.float_tensor("x")?, call.float_tensor("weight")?);
    let (shape, kernel) = (x.dims().to_vec(), weight.dims().to_vec());
    ensure!((3..=5).contains(&shape.len()) && shape.len() == kernel.len(), "weight {kernel:?} on {shape:?}");
    let groups = usize::try_from(call.int_or("groups", 1)?).ok().filter(|&groups| groups > 0);
    let groups = groups.context("parameter `groups` must be positive")?;
    ensure!(shape[1] == kernel[0] && shape[1] % groups == 0, "weight {kernel:?} on {shape:?} in {groups} groups");
    let outputs = call.outputs.first().and_then(|output| output.shape.clone()).context("its shape is not static")?;
    let channels = kernel[1].checked_mul(groups).context("too many groups")?;
    ensure!(outputs.len() == shape.len() && outputs[..2] == [shape[0], channels], "output {outputs:?}");
    // The windows of the ordinary convolution that leads from the output back to the input.
    let axes = backward_axes(call, &outputs[2..], &kernel[2..], &shape[2..])?;
    let (places, spatial) = counts(&axes)?;
    let target: usize = outputs[2..].iter().product();
    let (inputs, per_group) = ((shape[1] / groups).max(1), kernel[1]);
    let mut result = vec![0.0; result_elements(&outputs)?];
    let (x, weight) = (floats(&x)?, floats(&weight)?);
    for place in 0..places {
        let indices: Vec<usize> = (0..spatial).map(|window| element(&axes, place, window)).collect();
        for (image, channel) in (0..shape[0]).flat_map(|image| (0..shape[1]).map(move |channel| (image, channel))) {
            let values = &x[(image * shape[1] + channel) * spatial..][..spatial];
            for out in 0..per_group {
                let tap = weight[(channel * per_group + out) * places + place];
                let first = (image * channels + channel / inputs * per_group + out) * target;
                let plane = &mut result[first..first + target];
                for (value, &index) in values.iter().zip(&indices) {
                    if let Some(sum) = plane.get_mut(index) {
                        *sum += value * tap;
                    }
                }
            }
        }
    }
    if let Some(bias) = call.optional_tensor("bias")? {
        let bias = floats(&bias)?;
        ensure!(bias.len() == channels, "bias for {channels} channels");
        add_bias(&mut result, &bias, target);
    }
    Ok(vec![float_tensor(result, &outputs)?])
}

fn backward_axes(call: &Call<'_>, larger: &[usize], kernel: &[usize], smaller: &[usize]) -> Result<Vec<Axis>> {
    let rank = larger.len();
    let sizes = |name: &str, default: usize, count: usize| -> Result<Vec<usize>> {
        let given = if call.optional(name)?.is_some() { call.sizes(name)? } else { vec![default; count] };
        ensure!(given.len() == count, "parameter `{name}` has {} values for {rank} axes", given.len());
        Ok(given)
    };
    let (strides, dilations) = (sizes("strides", 1, rank)?, sizes("dilations", 1, rank)?);
    let pad = sizes("pad", 0, 2 * rank)?;
    let pad_type = call.text_or("pad_type", "valid")?;
    (0..rank)
        .map(|axis| {
            let (stride, dilation) = (strides[axis], dilations[axis]);
            ensure!(stride > 0 && dilation > 0 && kernel[axis] > 0, "stride {stride}, dilation {dilation}");
            let reach = reach(kernel[axis], dilation)?;
            let last = smaller[axis].saturating_sub(1).checked_mul(stride);
            let covered = last.and_then(|last| last.checked_add(reach)).context("stride too large")?;
            let before = match pad_type {
                "valid" => 0,
                "custom" => pad[2 * axis],
                "same" => covered.saturating_sub(larger[axis]) / 2,
                "same_lower" => covered.saturating_sub(larger[axis]).div_ceil(2),
                other => bail!("pad_type `{other}`"),
            };
            Ok(Axis { input: larger[axis], kernel: kernel[axis], stride, dilation, before, output: smaller[axis] })
        })
        .collect()
}
