//! Pooling over one to three spatial axes.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::convolution::{OUTSIDE, axes, counts, element};
use super::elementwise::larger;
use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{float_tensor, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry
        .computes("max_pool", |call| pool(call, |window, _| window.iter().copied().fold(f32::NEG_INFINITY, larger)));
    registry.computes("avg_pool", |call| {
        let inside_only = call.flag_or("exclude_padding_from_average", false)?;
        // Whether elements behind the padding count is documented nowhere.
        ensure!(
            inside_only || !call.flag_or("ceil_mode", false)?,
            "the interpreter has no average with ceil_mode that counts padding"
        );
        pool(call, |window, kernel| window.iter().sum::<f32>() / if inside_only { window.len() } else { kernel } as f32)
    });
    registry.computes("l2_pool", |call| pool(call, |window, _| window.iter().map(|x| x * x).sum::<f32>().sqrt()));
}

/// `f` of the elements inside each window, and the size of the kernel.
fn pool(call: &Call<'_>, f: impl Fn(&[f32], usize) -> f32) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let shape = x.dims().to_vec();
    ensure!((3..=5).contains(&shape.len()), "a pool of {shape:?}");
    let kernel = call.sizes("kernel_sizes")?;
    ensure!(kernel.len() == shape.len() - 2, "kernel {kernel:?} on {shape:?}");
    let axes = axes(call, &shape[2..], &kernel, call.flag_or("ceil_mode", false)?)?;
    let (places, output) = counts(&axes)?;
    let input: usize = shape[2..].iter().product();
    let mut result_shape = shape[..2].to_vec();
    result_shape.extend(axes.iter().map(|axis| axis.output));
    let mut result = vec![0.0; result_elements(&result_shape)?];
    with_floats(&x, |x| {
        let (mut indices, mut window) = (Vec::new(), Vec::new());
        for i in 0..output {
            indices.clear();
            indices.extend((0..places).map(|place| element(&axes, place, i)).filter(|&index| index != OUTSIDE));
            for channel in 0..shape[0] * shape[1] {
                window.clear();
                window.extend(indices.iter().map(|&index| x[channel * input + index]));
                result[channel * output + i] = f(&window, places);
            }
        }
    })?;
    Ok(vec![float_tensor(result, &result_shape)?])
}
