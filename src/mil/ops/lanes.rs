//! Ops that work on one axis at a time, lane by lane.

use anyhow::Result;
use candle_core::{DType, Tensor};

use crate::mil::elements;
use crate::mil::value::{float_tensor, with_floats};

/// `x` with `axis` moved to the end, contiguous.
pub(super) fn axis_last(x: &Tensor, axis: usize) -> Result<Tensor> {
    let mut order: Vec<usize> = (0..x.rank()).filter(|&other| other != axis).collect();
    order.push(axis);
    Ok(x.permute(order)?.contiguous()?)
}

/// The inverse of [`axis_last`].
pub(super) fn axis_back(x: &Tensor, axis: usize) -> Result<Tensor> {
    let last = x.rank() - 1;
    let mut order: Vec<usize> = (0..last).collect();
    order.insert(axis, last);
    Ok(x.permute(order)?.contiguous()?)
}

/// Each lane of `x` along `axis`, as floats, turned into `count` others by `f`; in the dtype of `x`.
pub(super) fn map_lanes(
    x: &Tensor,
    axis: usize,
    count: usize,
    mut f: impl FnMut(&[f32], &mut Vec<f32>),
) -> Result<Tensor> {
    let moved = axis_last(&x.to_dtype(DType::F32)?, axis)?;
    let mut shape = moved.dims().to_vec();
    let length = shape[shape.len() - 1];
    let lanes: usize = shape[..shape.len() - 1].iter().product();
    *shape.last_mut().expect("it has an axis") = count;
    let mut values = Vec::with_capacity(elements(&shape)?);
    with_floats(&moved, |all| {
        for lane in 0..lanes {
            f(&all[lane * length..(lane + 1) * length], &mut values);
        }
    })?;
    Ok(axis_back(&float_tensor(values, &shape)?, axis)?.to_dtype(x.dtype())?)
}

/// Positions of a lane in order of its values; equal values keep their order, NaN counts as the largest.
pub(super) fn sorted(lane: &[f32], ascending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lane.len()).collect();
    if ascending {
        order.sort_by(|&a, &b| lane[a].total_cmp(&lane[b]));
    } else {
        order.sort_by(|&a, &b| lane[b].total_cmp(&lane[a]));
    }
    order
}
