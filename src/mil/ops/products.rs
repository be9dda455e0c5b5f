//! Products of matrices.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::elements;
use crate::mil::product::{product, transposed};
use crate::mil::registry::Registry;
use crate::mil::value::{float_tensor, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("linear", linear);
    registry.computes("matmul", matmul);
}

/// `x weightᵀ + bias` over the last axis: weight is `[out, in]`.
fn linear(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, weight) = (call.float_tensor("x")?, call.value("weight")?);
    ensure!(weight.shape().len() == 2 && x.rank() >= 1, "weight {:?} on {:?}", weight.shape(), x.dims());
    let (out, columns) = (weight.shape()[0], weight.shape()[1]);
    ensure!(x.dims().last() == Some(&columns), "weight {:?} on {:?}", weight.shape(), x.dims());
    let n = x.elem_count() / columns.max(1);
    let mut shape = x.dims().to_vec();
    *shape.last_mut().expect("its rank is at least 1") = out;
    elements(&shape)?;
    let turned = with_floats(&x, |x| transposed(x, columns))?;
    let rows = product(weight, 0..out, columns, &turned, n)?;
    let result = float_tensor(transposed(&rows, n), &shape)?;
    Ok(vec![match call.optional_tensor("bias")? {
        Some(bias) => result.broadcast_add(&bias)?,
        None => result,
    }])
}

/// Batched product; batch axes are broadcast, a vector is a matrix of one row or column.
fn matmul(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, y) = (call.float_tensor("x")?, call.float_tensor("y")?);
    let (x_vector, y_vector) = (x.rank() == 1, y.rank() == 1);
    ensure!(x.rank() > 0 && y.rank() > 0, "a scalar has no product");
    let x = if x_vector { x.unsqueeze(0)? } else { x };
    let y = if y_vector { y.unsqueeze(1)? } else { y };
    let x = if call.flag_or("transpose_x", false)? && !x_vector { x.t()? } else { x };
    let y = if call.flag_or("transpose_y", false)? && !y_vector { y.t()? } else { y };
    let (rows, columns) = (x.dims()[x.rank() - 2], y.dims()[y.rank() - 1]);
    let mut batch = batch_shape(&x.dims()[..x.rank() - 2], &y.dims()[..y.rank() - 2])?;
    batch.extend([rows, columns]);
    elements(&batch)?;
    let mut result = x.broadcast_matmul(&y)?;
    if x_vector {
        result = result.squeeze(result.rank() - 2)?;
    }
    if y_vector {
        result = result.squeeze(result.rank() - 1)?;
    }
    Ok(vec![result])
}

fn batch_shape(x: &[usize], y: &[usize]) -> Result<Vec<usize>> {
    let shape = candle_core::Shape::from(x).broadcast_shape_binary_op(&candle_core::Shape::from(y), "matmul")?;
    Ok(shape.dims().to_vec())
}
