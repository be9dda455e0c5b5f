//! Softmax and normalizations.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use super::activation::per_channel;
use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("softmax", softmax);
    registry.computes("layer_norm", layer_norm);
    registry.computes("batch_norm", batch_norm);
    registry.computes("instance_norm", instance_norm);
    registry.computes("l2_norm", l2_norm);
    registry.computes("local_response_norm", local_response_norm);
}

fn softmax(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let axis = call.axis(call.int_or("axis", -1)?, x.rank())?;
    Ok(vec![softmax_of(&x, axis)?])
}

/// Softmax on one axis.
pub(super) fn softmax_of(x: &Tensor, axis: usize) -> Result<Tensor> {
    Ok(match x.elem_count() {
        0 => x.clone(),
        _ if axis + 1 == x.rank() => candle_nn::ops::softmax_last_dim(&x.contiguous()?)?,
        _ => candle_nn::ops::softmax(x, axis)?,
    })
}

/// `(x - mean) / sqrt(variance + epsilon)`, mean and variance over `axes`.
fn standardized(x: &Tensor, axes: &[usize], epsilon: f64) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let mean = |x: &Tensor| axes.iter().try_fold(x.clone(), |x, &axis| x.mean_keepdim(axis));
    let centred = x.broadcast_sub(&mean(x)?)?;
    let variance = mean(&centred.sqr()?)?;
    Ok(centred.broadcast_div(&(variance + epsilon)?.sqrt()?)?)
}

/// Standardized over `axes`; gamma and beta have the shape of these axes.
fn layer_norm(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let axes = match call.optional("axes")? {
        Some(_) => call.axes("axes", x.rank())?,
        None => (0..x.rank()).collect(),
    };
    let mut result = standardized(&x, &axes, call.number_or("epsilon", 1e-5)?.into())?;
    let shape: Vec<usize> =
        x.dims().iter().enumerate().map(|(axis, &size)| if axes.contains(&axis) { size } else { 1 }).collect();
    if let Some(gamma) = call.optional_tensor("gamma")? {
        result = result.broadcast_mul(&gamma.reshape(&shape[..])?)?;
    }
    if let Some(beta) = call.optional_tensor("beta")? {
        result = result.broadcast_add(&beta.reshape(&shape[..])?)?;
    }
    Ok(vec![result])
}

/// `x` times gamma plus beta, one of each for a channel.
fn affine(call: &Call<'_>, x: Tensor) -> Result<Vec<Tensor>> {
    let mut result = x;
    if call.optional("gamma")?.is_some() {
        result = result.broadcast_mul(&per_channel(call, "gamma", &result)?)?;
    }
    if call.optional("beta")?.is_some() {
        result = result.broadcast_add(&per_channel(call, "beta", &result)?)?;
    }
    Ok(vec![result])
}

fn batch_norm(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let (mean, variance) = (per_channel(call, "mean", &x)?, per_channel(call, "variance", &x)?);
    let spread = (variance + f64::from(call.number_or("epsilon", 1e-5)?))?.sqrt()?;
    affine(call, x.broadcast_sub(&mean)?.broadcast_div(&spread)?)
}

fn instance_norm(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    ensure!(x.rank() >= 3, "instance_norm of {:?}", x.dims());
    let axes: Vec<usize> = (2..x.rank()).collect();
    affine(call, standardized(&x, &axes, call.number_or("epsilon", 1e-5)?.into())?)
}

/// `x / sqrt(Σ x² + epsilon)` over the last three axes.
fn l2_norm(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    ensure!(x.rank() >= 3, "l2_norm of {:?}", x.dims());
    let squares = (x.rank() - 3..x.rank()).try_fold(x.sqr()?, |x, axis| x.sum_keepdim(axis))?;
    let size = (squares + f64::from(call.number_or("epsilon", 1e-6)?))?.sqrt()?;
    Ok(vec![x.broadcast_div(&size)?])
}

/// `x / (k + alpha / size * Σ x²)^beta`, the sum over `size` channels around each.
fn local_response_norm(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    ensure!(x.rank() >= 3, "local_response_norm of {:?}", x.dims());
    let size = call.size("size")?;
    ensure!(size > 0, "size 0");
    let (alpha, beta, k) = (call.number_or("alpha", 1e-4)?, call.number_or("beta", 0.75)?, call.number_or("k", 1.0)?);
    let channels = x.dims()[1];
    let before = (size - 1) / 2;
    let sums = super::lanes::map_lanes(&x, 1, channels, |lane: &[f32], out: &mut Vec<f32>| {
        for channel in 0..channels {
            let from = channel.saturating_sub(before);
            let to = (channel + size - before).min(channels);
            let sum: f32 = lane[from..to].iter().map(|x| x * x).sum();
            out.push((k + alpha / size as f32 * sum).powf(beta));
        }
    })?;
    Ok(vec![x.broadcast_div(&sums)?])
}
