//! Ops that work on one axis or several at a time, lane by lane.

use std::cmp::Ordering;

use anyhow::Result;
use candle_core::{DType, Device, Tensor, WithDType};

use crate::mil::result_elements;
use crate::mil::value::with_values;

/// `x` with `axes` moved to the end, contiguous.
pub(super) fn axes_last(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let mut order: Vec<usize> = (0..x.rank()).filter(|axis| !axes.contains(axis)).collect();
    order.extend(axes);
    Ok(x.permute(order)?.contiguous()?)
}

/// `x` with `axis` moved to the end, contiguous.
pub(super) fn axis_last(x: &Tensor, axis: usize) -> Result<Tensor> {
    axes_last(x, &[axis])
}

/// The inverse of [`axis_last`].
pub(super) fn axis_back(x: &Tensor, axis: usize) -> Result<Tensor> {
    let last = x.rank() - 1;
    let mut order: Vec<usize> = (0..last).collect();
    order.insert(axis, last);
    Ok(x.permute(order)?.contiguous()?)
}

/// Each lane of `x` along `axis` turned into `count` values by `f`. `T` is the dtype of `x`.
pub(super) fn map_lanes<T: WithDType, U: WithDType>(
    x: &Tensor,
    axis: usize,
    count: usize,
    mut f: impl FnMut(&[T], &mut Vec<U>),
) -> Result<Tensor> {
    let moved = axis_last(x, axis)?;
    let length = x.dims()[axis];
    let mut shape = moved.dims().to_vec();
    let lanes: usize = shape[..shape.len() - 1].iter().product();
    *shape.last_mut().expect("it has an axis") = count;
    let mut values = Vec::with_capacity(result_elements(&shape)?);
    with_values(&moved, |all| {
        for lane in 0..lanes {
            f(&all[lane * length..(lane + 1) * length], &mut values);
        }
    })?;
    axis_back(&Tensor::from_vec(values, shape, &Device::Cpu)?, axis)
}

/// Each lane of `x` along all of `axes` folded to one value by `f`; the axes keep size 1. `T` is the dtype of `x`.
pub(super) fn fold_lanes<T: WithDType>(x: &Tensor, axes: &[usize], f: impl Fn(&[T]) -> T) -> Result<Tensor> {
    let moved = axes_last(x, axes)?;
    let length: usize = axes.iter().map(|&axis| x.dims()[axis]).product();
    let shape: Vec<usize> =
        x.dims().iter().enumerate().map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect();
    let lanes: usize = shape.iter().product();
    let values: Vec<T> =
        with_values(&moved, |all| (0..lanes).map(|lane| f(&all[lane * length..(lane + 1) * length])).collect())?;
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// Numbers that lanes are ordered by: float64 holds every float and every 32-bit integer.
pub(super) fn keys(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F64)?)
}

/// Positions of a lane in order of its values; equal values keep their order, NaN counts as the largest.
pub(super) fn sorted(lane: &[f64], ascending: bool) -> Vec<usize> {
    let compare = |a: f64, b: f64| -> Ordering { a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())) };
    let mut order: Vec<usize> = (0..lane.len()).collect();
    if ascending {
        order.sort_by(|&a, &b| compare(lane[a], lane[b]));
    } else {
        order.sort_by(|&a, &b| compare(lane[b], lane[a]));
    }
    order
}
