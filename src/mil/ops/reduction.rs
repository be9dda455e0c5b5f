//! Reductions over axes.

use anyhow::Result;
use candle_core::{DType, Tensor};

use super::lanes::map_lanes;
use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("reduce_sum", |call| reduce(call, sum));
    registry.computes("reduce_mean", |call| reduce(call, |x, axis| x.mean_keepdim(axis)));
    registry.computes("reduce_max", |call| reduce(call, |x, axis| x.max_keepdim(axis)));
    registry.computes("reduce_min", |call| reduce(call, |x, axis| x.min_keepdim(axis)));
    registry.computes("reduce_prod", |call| {
        let product = |lane: &[f32], out: &mut Vec<f32>| out.push(lane.iter().product());
        reduce(call, |x, axis| map_lanes(x, axis, 1, product).map_err(candle_core::Error::msg))
    });
    registry.computes("reduce_l1_norm", |call| reduce_of(call, Tensor::abs, Ok));
    registry.computes("reduce_l2_norm", |call| reduce_of(call, Tensor::sqr, |x| x.sqrt()));
    registry.computes("reduce_sum_square", |call| reduce_of(call, Tensor::sqr, Ok));
    registry.computes("reduce_log_sum", |call| reduce_of(call, |x| Ok(x.clone()), |x| x.log()));
    registry.computes("reduce_log_sum_exp", log_sum_exp);
    registry.computes("reduce_argmax", |call| index_of(call, |candidate, best| candidate > best));
    registry.computes("reduce_argmin", |call| index_of(call, |candidate, best| candidate < best));
}

fn sum(x: &Tensor, axis: usize) -> candle_core::Result<Tensor> {
    x.sum_keepdim(axis)
}

/// The axes that are reduced: all where none are given.
fn axes(call: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    if call.optional("axes")?.is_some() { call.axes("axes", rank) } else { Ok((0..rank).collect()) }
}

/// `x` reduced by `f`, axis by axis.
fn reduce(call: &Call<'_>, f: impl Fn(&Tensor, usize) -> candle_core::Result<Tensor>) -> Result<Vec<Tensor>> {
    finish(call, &call.tensor("x")?, f, Ok)
}

/// The sum of `before` of each element, and `after` of that.
fn reduce_of(
    call: &Call<'_>,
    before: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
    after: impl Fn(Tensor) -> candle_core::Result<Tensor>,
) -> Result<Vec<Tensor>> {
    finish(call, &before(&call.tensor("x")?)?, sum, after)
}

fn finish(
    call: &Call<'_>,
    x: &Tensor,
    f: impl Fn(&Tensor, usize) -> candle_core::Result<Tensor>,
    after: impl Fn(Tensor) -> candle_core::Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let axes = axes(call, x.rank())?;
    let reduced = after(axes.iter().try_fold(x.clone(), |x, &axis| f(&x, axis))?)?;
    Ok(vec![if call.flag_or("keep_dims", false)? { reduced } else { dropped(&reduced, &axes)? }])
}

/// `ln Σ exp(x)`, with the largest element taken out first.
fn log_sum_exp(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let axes = axes(call, x.rank())?;
    let largest = axes.iter().try_fold(x.clone(), |x, &axis| x.max_keepdim(axis))?;
    let total = axes.iter().try_fold(x.broadcast_sub(&largest)?.exp()?, |x, &axis| x.sum_keepdim(axis))?;
    let result = (total.log()? + largest)?;
    Ok(vec![if call.flag_or("keep_dims", false)? { result } else { dropped(&result, &axes)? }])
}

/// `x` without `axes`, each of size 1.
fn dropped(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let kept: Vec<usize> =
        x.dims().iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, &size)| size).collect();
    Ok(x.reshape(kept)?)
}

/// The first position on `axis` that is `better` than all before it.
fn index_of(call: &Call<'_>, better: impl Fn(f32, f32) -> bool) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?.to_dtype(DType::F32)?;
    let axis = call.axis(call.int_or("axis", -1)?, x.rank())?;
    anyhow::ensure!(x.dims()[axis] > 0, "axis {axis} is empty");
    let result = map_lanes(&x, axis, 1, |lane, out| {
        let best = (1..lane.len()).fold(0, |best, i| if better(lane[i], lane[best]) { i } else { best });
        out.push(best as f32);
    })?
    .to_dtype(DType::I64)?;
    Ok(vec![if call.flag_or("keep_dims", false)? { result } else { dropped(&result, &[axis])? }])
}
