//! Softmax and normalizations.

use anyhow::Result;
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("softmax", softmax);
    registry.computes("layer_norm", layer_norm);
}

fn softmax(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let axis = call.axis(call.int_or("axis", -1)?, x.rank())?;
    Ok(vec![if axis + 1 == x.rank() {
        candle_nn::ops::softmax_last_dim(&x.contiguous()?)?
    } else {
        candle_nn::ops::softmax(&x, axis)?
    }])
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, mean and variance over `axes`.
fn layer_norm(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let axes = match call.optional("axes")? {
        Some(_) => call.axes("axes", x.rank())?,
        None => (0..x.rank()).collect(),
    };
    let mean = |x: &Tensor| axes.iter().try_fold(x.clone(), |x, &axis| x.mean_keepdim(axis));
    let centred = x.broadcast_sub(&mean(&x)?)?;
    let variance = mean(&centred.sqr()?)?;
    let epsilon = f64::from(call.number_or("epsilon", 1e-5)?);
    let mut result = centred.broadcast_div(&(variance + epsilon)?.sqrt()?)?;
    // Gains have the shape of the normalized axes, in order.
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
