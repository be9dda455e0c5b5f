//! Comparisons, logic and choice.

use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};

use super::elementwise::{binary, operands};
use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{int_tensor, ints};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("equal", |call| binary(call, Tensor::broadcast_eq));
    registry.computes("not_equal", |call| binary(call, Tensor::broadcast_ne));
    registry.computes("less", |call| binary(call, Tensor::broadcast_lt));
    registry.computes("less_equal", |call| binary(call, Tensor::broadcast_le));
    registry.computes("greater", |call| binary(call, Tensor::broadcast_gt));
    registry.computes("greater_equal", |call| binary(call, Tensor::broadcast_ge));
    registry.computes("logical_and", |call| logical(call, |x, y| x && y));
    registry.computes("logical_or", |call| logical(call, |x, y| x || y));
    registry.computes("logical_xor", |call| logical(call, |x, y| x != y));
    registry.computes("logical_not", |call| {
        let x = call.tensor("x")?;
        Ok(vec![x.eq(&x.zeros_like()?)?])
    });
    registry.moves("select", select);
    registry.computes("non_zero", non_zero);
}

fn logical(call: &Call<'_>, f: impl Fn(bool, bool) -> bool) -> Result<Vec<Tensor>> {
    let (x, y) = operands(call)?;
    let shape = x.shape().broadcast_shape_binary_op(y.shape(), "operands")?;
    let (x, y) = (ints(&x.broadcast_as(&shape)?)?, ints(&y.broadcast_as(&shape)?)?);
    let values = x.iter().zip(&y).map(|(&x, &y)| i64::from(f(x != 0, y != 0))).collect();
    Ok(vec![int_tensor(values, shape.dims())?.to_dtype(DType::U8)?])
}

/// `a` where `cond` holds, else `b`.
fn select(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (cond, a, b) = (call.tensor("cond")?, call.tensor("a")?, call.tensor("b")?);
    ensure!(a.dtype() == b.dtype(), "`a` is {:?}, `b` is {:?}", call.dtype("a")?, call.dtype("b")?);
    let shape = a.shape().broadcast_shape_binary_op(b.shape(), "select")?;
    let shape = shape.broadcast_shape_binary_op(cond.shape(), "select")?;
    result_elements(shape.dims())?;
    let cond = cond.ne(&cond.zeros_like()?)?.broadcast_as(&shape)?;
    Ok(vec![cond.where_cond(&a.broadcast_as(&shape)?, &b.broadcast_as(&shape)?)?])
}

/// Positions of the elements that are not zero, `[count, rank]`.
fn non_zero(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let set = ints(&x.ne(&x.zeros_like()?)?)?;
    let mut positions = Vec::new();
    let mut count = 0;
    for flat in (0..set.len()).filter(|&flat| set[flat] != 0) {
        let (mut rest, start) = (flat, positions.len());
        for &size in x.dims().iter().rev() {
            positions.push((rest % size) as i64);
            rest /= size;
        }
        positions[start..].reverse();
        count += 1;
    }
    Ok(vec![int_tensor(positions, &[count, x.rank()])?])
}
