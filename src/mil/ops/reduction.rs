//! Reductions over axes.

use anyhow::Result;
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("reduce_sum", |call| reduce(call, |x, axis| x.sum_keepdim(axis)));
    registry.computes("reduce_mean", |call| reduce(call, |x, axis| x.mean_keepdim(axis)));
    registry.computes("reduce_max", |call| reduce(call, |x, axis| x.max_keepdim(axis)));
    registry.computes("reduce_min", |call| reduce(call, |x, axis| x.min_keepdim(axis)));
}

/// The axes that are reduced: all where none are given.
fn axes(call: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    if call.optional("axes")?.is_some() { call.axes("axes", rank) } else { Ok((0..rank).collect()) }
}

/// `x` reduced by `f`, axis by axis.
fn reduce(call: &Call<'_>, f: impl Fn(&Tensor, usize) -> candle_core::Result<Tensor>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axes = axes(call, x.rank())?;
    let mut result = x;
    for &axis in &axes {
        result = f(&result, axis)?;
    }
    Ok(vec![if call.flag_or("keep_dims", false)? { result } else { dropped(&result, &axes)? }])
}

/// `x` without `axes`, each of size 1.
fn dropped(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let kept: Vec<usize> =
        x.dims().iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, &size)| size).collect();
    Ok(x.reshape(kept)?)
}
