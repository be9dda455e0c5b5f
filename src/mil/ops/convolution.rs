//! Convolutions over one to three spatial axes.

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::elements;
use crate::mil::product::product;
use crate::mil::registry::Registry;
use crate::mil::value::{float_tensor, floats, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("conv", conv);
    registry.computes("conv_transpose", conv_transpose);
}

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

/// The spatial axes of an op with `pad_type`, `pad`, `strides`, `dilations`, for `input` sizes and `kernel` sizes.
pub(super) fn axes(call: &Call<'_>, input: &[usize], kernel: &[usize]) -> Result<Vec<Axis>> {
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
            let reach =
                (kernel - 1).checked_mul(dilation).and_then(|r| r.checked_add(1)).context("kernel too large")?;
            let (before, after) = match pad_type {
                "valid" => (0, 0),
                "custom" => {
                    ensure!(pad.len() == 2 * rank, "parameter `pad` has {} values for {rank} axes", pad.len());
                    (pad[2 * axis], pad[2 * axis + 1])
                }
                "same" | "same_lower" => {
                    let total = (input.div_ceil(stride).max(1) - 1) * stride + reach;
                    let total = total.saturating_sub(input);
                    if pad_type == "same" { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) }
                }
                other => bail!("pad_type `{other}`"),
            };
            let padded = input.checked_add(before).and_then(|p| p.checked_add(after)).context("pad too large")?;
            ensure!(padded >= reach, "a kernel that reaches over {reach} of {padded} elements");
            Ok(Axis { input, kernel, stride, dilation, before, output: (padded - reach) / stride + 1 })
        })
        .collect()
}

/// For every window, in order, and every place of the kernel, in order: the flat index of the input element, or `None`
/// where the window hangs over. Row-major `[kernel, output]`.
pub(super) fn windows(axes: &[Axis]) -> Result<Vec<Option<usize>>> {
    let kernel: usize = axes.iter().map(|axis| axis.kernel).product();
    let output: usize = axes.iter().map(|axis| axis.output).product();
    elements(&[kernel, output])?;
    let mut indices = Vec::with_capacity(kernel * output);
    for place in 0..kernel {
        for window in 0..output {
            let (mut place, mut window, mut index, mut size) = (place, window, Some(0), 1);
            for axis in axes.iter().rev() {
                let position = window % axis.output * axis.stride + place % axis.kernel * axis.dilation;
                (place, window) = (place / axis.kernel, window / axis.output);
                let inside = position.checked_sub(axis.before).filter(|&position| position < axis.input);
                index = index.zip(inside).map(|(index, inside)| index + inside * size);
                size *= axis.input;
            }
            indices.push(index);
        }
    }
    Ok(indices)
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
        out % groups == 0 && channels % groups == 0 && kernel[1] == channels / groups,
        "weight {kernel:?} on {shape:?} in {groups} groups"
    );
    let axes = axes(call, &shape[2..], &kernel[2..])?;
    let mut result_shape = vec![shape[0], out];
    result_shape.extend(axes.iter().map(|axis| axis.output));
    let spatial: usize = axes.iter().map(|axis| axis.output).product();
    let mut result = Vec::with_capacity(elements(&result_shape)?);
    let pointwise =
        axes.iter().all(|axis| *axis == Axis { kernel: 1, stride: 1, before: 0, output: axis.input, ..*axis });
    let indices = if pointwise { Vec::new() } else { windows(&axes)? };
    let places: usize = kernel[2..].iter().product();
    let (inputs, outputs) = (channels / groups, out / groups);
    elements(&[inputs, places, spatial])?;
    let input_size: usize = shape[2..].iter().product();
    let bias = call.optional_tensor("bias")?.map(|bias| floats(&bias)).transpose()?;
    ensure!(bias.as_ref().is_none_or(|bias| bias.len() == out), "bias for {out} channels");
    with_floats(&x, |x| {
        for image in 0..shape[0] {
            for group in 0..groups {
                let first = (image * channels + group * inputs) * input_size;
                let part = &x[first..first + inputs * input_size];
                let rows = group * outputs..(group + 1) * outputs;
                if pointwise {
                    result.extend(product(weight, rows, inputs, part, spatial)?);
                    continue;
                }
                let mut columns = Vec::with_capacity(inputs * places * spatial);
                for channel in part.chunks(input_size.max(1)) {
                    columns.extend(indices.iter().map(|index| index.map_or(0.0, |index| channel[index])));
                }
                result.extend(product(weight, rows, inputs * places, &columns, spatial)?);
            }
        }
        anyhow::Ok(())
    })??;
    if let Some(bias) = bias {
        for (i, channel) in result.chunks_mut(spatial.max(1)).enumerate() {
            channel.iter_mut().for_each(|value| *value += bias[i % out]);
        }
    }
    Ok(vec![float_tensor(result, &result_shape)?])
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
    ensure!(outputs.len() == shape.len() && outputs[..2] == [shape[0], kernel[1] * groups], "output {outputs:?}");
    // The windows of the ordinary convolution that leads from the output back to the input.
    let axes = backward_axes(call, &outputs[2..], &kernel[2..], &shape[2..])?;
    let indices = windows(&axes)?;
    let (spatial, target): (usize, usize) = (shape[2..].iter().product(), outputs[2..].iter().product());
    let places: usize = kernel[2..].iter().product();
    let (inputs, per_group) = (shape[1] / groups, kernel[1]);
    let mut result = vec![0.0; elements(&outputs)?];
    let (x, weight) = (floats(&x)?, floats(&weight)?);
    for image in 0..shape[0] {
        for channel in 0..shape[1] {
            let values = &x[(image * shape[1] + channel) * spatial..][..spatial];
            for out in 0..per_group {
                let taps = &weight[(channel * per_group + out) * places..][..places];
                let first = (image * per_group * groups + channel / inputs * per_group + out) * target;
                let plane = &mut result[first..first + target];
                for (place, tap) in taps.iter().enumerate() {
                    for (value, index) in values.iter().zip(&indices[place * spatial..]) {
                        if let Some(index) = index {
                            plane[*index] += value * tap;
                        }
                    }
                }
            }
        }
    }
    if let Some(bias) = call.optional_tensor("bias")? {
        let bias = floats(&bias)?;
        ensure!(bias.len() == outputs[1], "bias for {} channels", outputs[1]);
        for (i, channel) in result.chunks_mut(target.max(1)).enumerate() {
            channel.iter_mut().for_each(|value| *value += bias[i % bias.len()]);
        }
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
            let reach = (kernel[axis] - 1).checked_mul(dilation).context("kernel too large")? + 1;
            let covered = smaller[axis].saturating_sub(1) * stride + reach;
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
