//! Reductions over axes.

use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};

use super::elementwise::{larger, smaller};
use super::lanes::{fold_lanes, keys, map_lanes};
use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("reduce_sum", |call| reduce(call, sum, |lane| lane.iter().sum()));
    registry.computes("reduce_mean", |call| reduce(call, |lane| sum(lane) / lane.len() as f32, mean_of_ints));
    registry.computes("reduce_max", |call| {
        some(call)?;
        reduce(call, largest, |lane| lane.iter().copied().max().unwrap_or(0))
    });
    registry.computes("reduce_min", |call| {
        some(call)?;
        reduce(call, smallest, |lane| lane.iter().copied().min().unwrap_or(0))
    });
    registry.computes("reduce_prod", |call| {
        let product = |lane: &[i64]| lane.iter().fold(1i64, |product, &x| product.wrapping_mul(x));
        reduce(call, |lane| lane.iter().product(), product)
    });
    registry.computes("reduce_l1_norm", |call| {
        reduce(call, |lane| sum_of(lane, f32::abs), |lane| lane.iter().map(|x| x.wrapping_abs()).sum())
    });
    registry.computes("reduce_l2_norm", |call| {
        reduce(call, |lane| sum_of(lane, |x| x * x).sqrt(), |lane| (sum_of_squares(lane) as f64).sqrt() as i64)
    });
    registry.computes("reduce_sum_square", |call| reduce(call, |lane| sum_of(lane, |x| x * x), sum_of_squares));
    registry.computes("reduce_log_sum", |call| {
        reduce(call, |lane| sum(lane).ln(), |lane| (lane.iter().sum::<i64>() as f64).ln() as i64)
    });
    registry.computes("reduce_log_sum_exp", |call| {
        some(call)?;
        reduce(call, log_sum_exp, |lane| {
            let wide: Vec<f32> = lane.iter().map(|&x| x as f32).collect();
            log_sum_exp(&wide) as i64
        })
    });
    registry.computes("reduce_argmax", |call| index_of(call, |candidate, best| candidate > best));
    registry.computes("reduce_argmin", |call| index_of(call, |candidate, best| candidate < best));
}

/// Σ f(x), in partial sums that the compiler can keep in vectors.
fn sum_of(lane: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; 16];
    let (vectors, rest) = lane.as_chunks::<16>();
    for vector in vectors {
        for (sum, &x) in sums.iter_mut().zip(vector) {
            *sum += f(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(rest) {
        *sum += f(x);
    }
    sums.iter().sum()
}

fn sum(lane: &[f32]) -> f32 {
    sum_of(lane, |x| x)
}

fn sum_of_squares(lane: &[i64]) -> i64 {
    lane.iter().fold(0i64, |sum, &x| sum.wrapping_add(x.wrapping_mul(x)))
}

/// Rounded towards zero.
fn mean_of_ints(lane: &[i64]) -> i64 {
    lane.iter().sum::<i64>().checked_div(lane.len() as i64).unwrap_or(0)
}

fn largest(lane: &[f32]) -> f32 {
    lane.iter().copied().fold(f32::NEG_INFINITY, larger)
}

fn smallest(lane: &[f32]) -> f32 {
    lane.iter().copied().fold(f32::INFINITY, smaller)
}

/// `ln Σ exp(x)`, with the largest element taken out first.
fn log_sum_exp(lane: &[f32]) -> f32 {
    let largest = largest(lane);
    sum_of(lane, |x| (x - largest).exp()).ln() + largest
}

/// The axes that are reduced: all where none are given.
fn axes(call: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    if call.optional("axes")?.is_some() { call.axes("axes", rank) } else { Ok((0..rank).collect()) }
}

/// Checks that there is something to choose from.
fn some(call: &Call<'_>) -> Result<()> {
    let shape = call.value("x")?.shape();
    let empty = axes(call, shape.len())?.into_iter().find(|&axis| shape[axis] == 0);
    ensure!(empty.is_none(), "a reduction of {shape:?} over an axis without elements");
    Ok(())
}

/// `x` reduced, floats by `f`, integers and bools by `g`.
fn reduce(call: &Call<'_>, f: impl Fn(&[f32]) -> f32, g: impl Fn(&[i64]) -> i64) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axes = axes(call, x.rank())?;
    let reduced = if x.dtype() == DType::F32 {
        fold_lanes(&x, &axes, f)?
    } else {
        fold_lanes(&x.to_dtype(DType::I64)?, &axes, g)?
    };
    finish(call, &reduced, &axes)
}

/// `x` without `axes`, each of size 1, unless they are to be kept.
fn finish(call: &Call<'_>, x: &Tensor, axes: &[usize]) -> Result<Vec<Tensor>> {
    if call.flag_or("keep_dims", false)? {
        return Ok(vec![x.clone()]);
    }
    let kept = x.dims().iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
    Ok(vec![x.reshape(kept.map(|(_, &size)| size).collect::<Vec<_>>())?])
}

/// The first position on `axis` that is `better` than all before it.
fn index_of(call: &Call<'_>, better: impl Fn(f64, f64) -> bool) -> Result<Vec<Tensor>> {
    let x = keys(&call.tensor("x")?)?;
    let axis = call.axis(call.int_or("axis", -1)?, x.rank())?;
    ensure!(x.dims()[axis] > 0, "axis {axis} is empty");
    let result = map_lanes(&x, axis, 1, |lane: &[f64], out: &mut Vec<i64>| {
        let best = (1..lane.len()).fold(0, |best, i| if better(lane[i], lane[best]) { i } else { best });
        out.push(best as i64);
    })?;
    finish(call, &result, &[axis])
}
