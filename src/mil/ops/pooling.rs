//! Pooling over one to three spatial axes.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::convolution::{axes, windows};
use crate::mil::call::Call;
use crate::mil::elements;
use crate::mil::registry::Registry;
use crate::mil::value::{float_tensor, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry
        .computes("max_pool", |call| pool(call, |window, _| window.iter().copied().fold(f32::NEG_INFINITY, f32::max)));
    registry.computes("avg_pool", |call| {
        let inside_only = call.flag_or("exclude_padding_from_average", false)?;
        pool(call, |window, kernel| window.iter().sum::<f32>() / if inside_only { window.len() } else { kernel } as f32)
    });
    registry.computes("l2_pool", |call| pool(call, |window, _| window.iter().map(|x| x * x).sum::<f32>().sqrt()));
}

/// `f` of the elements inside each window, and the size of the kernel.
fn pool(call: &Call<'_>, f: impl Fn(&[f32], usize) -> f32) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let shape = x.dims().to_vec();
    ensure!((3..=5).contains(&shape.len()), "a pool of {shape:?}");
    ensure!(!call.flag_or("ceil_mode", false)?, "the interpreter has no pool with ceil_mode");
    let kernel = call.sizes("kernel_sizes")?;
    ensure!(kernel.len() == shape.len() - 2, "kernel {kernel:?} on {shape:?}");
    let axes = axes(call, &shape[2..], &kernel)?;
    let indices = windows(&axes)?;
    let output: usize = axes.iter().map(|axis| axis.output).product();
    let places = indices.len() / output.max(1);
    let input: usize = shape[2..].iter().product();
    let mut result_shape = shape[..2].to_vec();
    result_shape.extend(axes.iter().map(|axis| axis.output));
    let mut result = Vec::with_capacity(elements(&result_shape)?);
    with_floats(&x, |x| {
        let mut window = Vec::with_capacity(places);
        for channel in x.chunks(input.max(1)) {
            for i in 0..output {
                window.clear();
                window.extend((0..places).filter_map(|place| indices[place * output + i]).map(|index| channel[index]));
                result.push(f(&window, places));
            }
        }
    })?;
    Ok(vec![float_tensor(result, &result_shape)?])
}
