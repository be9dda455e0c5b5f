//! Arithmetic, functions and activations, element by element; operands are broadcast as numpy does.

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Tensor};

use crate::mil::call::Call;
use crate::mil::elements;
use crate::mil::registry::Registry;
use crate::mil::value::{Dtype, float_tensor, int_tensor, ints, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("add", |call| binary(call, Tensor::broadcast_add));
    registry.computes("sub", |call| binary(call, Tensor::broadcast_sub));
    registry.computes("mul", |call| binary(call, Tensor::broadcast_mul));
    registry.computes("real_div", real_div);
    registry.computes("maximum", |call| binary(call, Tensor::broadcast_maximum));
    registry.computes("minimum", |call| binary(call, Tensor::broadcast_minimum));

    registry.computes("abs", |call| unary(call, f32::abs));
    registry.computes("rsqrt", |call| {
        let epsilon = call.number_or("epsilon", 1e-12)?;
        unary(call, move |x| 1.0 / (x + epsilon).sqrt())
    });

    registry.computes("silu", |call| unary(call, |x| x * sigmoid(x)));
    registry.computes("sigmoid", |call| unary(call, sigmoid));

    registry.computes("cast", cast);
    registry.moves("identity", |call| Ok(vec![call.tensor("x")?]));
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `f` of each element; integers are given to `f` as floats and come back as integers.
fn unary(call: &Call<'_>, f: impl Fn(f32) -> f32) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let dtype = x.dtype();
    let values = with_floats(&x.to_dtype(DType::F32)?, |values| values.iter().map(|&x| f(x)).collect())?;
    Ok(vec![float_tensor(values, x.dims())?.to_dtype(dtype)?])
}

/// Operands broadcast against each other.
fn binary(call: &Call<'_>, f: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>) -> Result<Vec<Tensor>> {
    let (x, y) = operands(call)?;
    Ok(vec![f(&x, &y)?])
}

/// `x` and `y`, of one dtype, checked that their broadcast shape is not too large.
fn operands(call: &Call<'_>) -> Result<(Tensor, Tensor)> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    ensure!(x.dtype() == y.dtype(), "operands are {:?} and {:?}", call.dtype("x")?, call.dtype("y")?);
    elements(x.shape().broadcast_shape_binary_op(y.shape(), "operands")?.dims())?;
    Ok((x, y))
}

/// Division; that of integers is rounded towards zero, and by zero an error.
fn real_div(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, y) = operands(call)?;
    if x.dtype().is_int() {
        ensure!(ints(&y)?.iter().all(|&y| y != 0), "an integer is divided by zero");
    }
    Ok(vec![x.broadcast_div(&y)?])
}

/// To the declared dtype. A float becomes an integer by truncation, a number a bool by being no zero.
fn cast(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let Some(to) = Dtype::from_mil(call.text("dtype")?) else { bail!("cast to `{}`", call.text("dtype")?) };
    Ok(vec![match to {
        Dtype::F16 | Dtype::F32 => x.to_dtype(DType::F32)?,
        Dtype::Bool => x.ne(&x.zeros_like()?)?,
        Dtype::Int { .. } if x.dtype() == DType::F32 => {
            let values = with_floats(&x, |values| values.iter().map(|&x| x.trunc() as i64).collect())?;
            int_tensor(values, x.dims())?
        }
        Dtype::Int { .. } => x.to_dtype(DType::I64)?,
        Dtype::Text => bail!("cast to a string"),
    }])
}
