//! Arithmetic and functions, element by element; operands are broadcast as numpy does.

use anyhow::{Result, bail, ensure};
use candle_core::cpu::erf::erf_f64;
use candle_core::{DType, Tensor};

use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{Dtype, float_tensor, floats, int_tensor, ints, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("add", |call| arithmetic(call, |x, y| x + y, Tensor::broadcast_add));
    registry.computes("sub", |call| arithmetic(call, |x, y| x - y, Tensor::broadcast_sub));
    registry.computes("mul", |call| arithmetic(call, |x, y| x * y, Tensor::broadcast_mul));
    registry.computes("maximum", |call| pairwise(call, larger, |x, y| Some(x.max(y))));
    registry.computes("minimum", |call| pairwise(call, smaller, |x, y| Some(x.min(y))));
    registry.computes("real_div", real_div);
    registry.computes("floor_div", |call| {
        pairwise(
            call,
            |x, y| (x / y).floor(),
            |x, y| {
                x.checked_div_euclid(y)
                    .map(|quotient| if y < 0 && x.rem_euclid(y) != 0 { quotient - 1 } else { quotient })
            },
        )
    });
    registry.computes("mod", |call| {
        pairwise(
            call,
            |x, y| {
                let rest = x % y;
                if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
            },
            |x, y| {
                let rest = x.checked_rem_euclid(y)?;
                Some(if y < 0 && rest != 0 { rest + y } else { rest })
            },
        )
    });
    registry.computes("pow", |call| pairwise(call, f32::powf, |x, y| Some(x.wrapping_pow(u32::try_from(y).ok()?))));

    registry.computes("abs", |call| unary_or(call, f32::abs, i64::wrapping_abs));
    registry.computes("acos", |call| unary(call, f32::acos));
    registry.computes("asin", |call| unary(call, f32::asin));
    registry.computes("atan", |call| unary(call, f32::atan));
    registry.computes("atanh", |call| unary(call, f32::atanh));
    registry.computes("ceil", |call| unary(call, f32::ceil));
    registry.computes("cos", |call| unary(call, f32::cos));
    registry.computes("cosh", |call| unary(call, f32::cosh));
    registry.computes("erf", |call| unary(call, |x| erf_f64(x.into()) as f32));
    registry.computes("exp", |call| unary(call, f32::exp));
    registry.computes("exp2", |call| unary(call, f32::exp2));
    registry.computes("floor", |call| unary(call, f32::floor));
    registry.computes("round", |call| unary(call, f32::round_ties_even));
    registry.computes("sign", |call| unary_or(call, |x| if x == 0.0 { 0.0 } else { x.signum() }, i64::signum));
    registry.computes("sin", |call| unary(call, f32::sin));
    registry.computes("sinh", |call| unary(call, f32::sinh));
    registry.computes("sqrt", |call| unary(call, f32::sqrt));
    registry.computes("square", |call| unary_or(call, |x| x * x, |x| x.wrapping_mul(x)));
    registry.computes("tan", |call| unary(call, f32::tan));
    registry.computes("tanh", |call| unary(call, f32::tanh));
    registry.computes("inverse", |call| {
        let epsilon = call.number_or("epsilon", 1e-4)?;
        unary(call, move |x| 1.0 / (x + epsilon))
    });
    registry.computes("log", |call| {
        let epsilon = call.number_or("epsilon", 1e-45)?;
        unary(call, move |x| (x + epsilon).ln())
    });
    registry.computes("rsqrt", |call| {
        let epsilon = call.number_or("epsilon", 1e-12)?;
        unary(call, move |x| 1.0 / (x + epsilon).sqrt())
    });
    registry.computes("clip", |call| {
        let (low, high) = (call.number("alpha")?, call.number("beta")?);
        unary(call, move |x| smaller(larger(x, low), high))
    });
    registry.computes("threshold", |call| {
        let low = call.number("alpha")?;
        let whole = if call.dtype("alpha")?.is_float() { low as i64 } else { call.int("alpha")? };
        unary_or(call, move |x| larger(x, low), move |x| x.max(whole))
    });

    registry.computes("cast", cast);
    registry.computes("quantize", quantize);
    registry.computes("dequantize", dequantize);
    registry.moves("identity", |call| Ok(vec![call.tensor("x")?]));
}

/// `f` of each element; integers are given to `f` as floats and come back as integers.
pub(super) fn unary(call: &Call<'_>, f: impl Fn(f32) -> f32) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let dtype = x.dtype();
    let values = with_floats(&x.to_dtype(DType::F32)?, |values| values.iter().map(|&x| f(x)).collect())?;
    Ok(vec![float_tensor(values, x.dims())?.to_dtype(dtype)?])
}

/// `f` of each float, `g` of each integer.
fn unary_or(call: &Call<'_>, f: impl Fn(f32) -> f32, g: impl Fn(i64) -> i64) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    if x.dtype() == DType::F32 {
        return unary(call, f);
    }
    Ok(vec![int_tensor(ints(&x)?.into_iter().map(g).collect(), x.dims())?])
}

/// The larger of two; NaN where one is.
pub(super) fn larger(x: f32, y: f32) -> f32 {
    if x.is_nan() || x > y { x } else { y }
}

/// The smaller of two; NaN where one is.
pub(super) fn smaller(x: f32, y: f32) -> f32 {
    if x.is_nan() || x < y { x } else { y }
}

/// Operands broadcast against each other.
pub(super) fn binary(
    call: &Call<'_>,
    f: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let (x, y) = operands(call)?;
    Ok(vec![f(&x, &y)?])
}

/// Operands broadcast against each other, floats by `f`, integers by `g`.
fn arithmetic(
    call: &Call<'_>,
    f: impl Fn(f32, f32) -> f32 + Copy,
    g: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let (x, y) = operands(call)?;
    Ok(vec![if x.dtype() == DType::F32 { broadcast(&x, &y, f)? } else { g(&x, &y)? }])
}

/// An axis of a result: its size, and how far its neighbours lie from each other in either operand, 0 where one is
/// repeated.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    steps: [usize; 2],
}

/// `f` of each pair of floats, on this core alone: candle shares such work out to threads that wait for each other by
/// spinning, which costs more than it saves wherever cores have other work.
fn broadcast(x: &Tensor, y: &Tensor, f: impl Fn(f32, f32) -> f32 + Copy) -> Result<Tensor> {
    let shape = x.shape().broadcast_shape_binary_op(y.shape(), "operands")?;
    let sizes = shape.dims();
    // Innermost first; neighbours that lie in memory as one axis would are one.
    let mut axes: Vec<Axis> = Vec::with_capacity(sizes.len());
    let mut strides = [1, 1];
    for (depth, &size) in sizes.iter().rev().enumerate() {
        let mut steps = [0, 0];
        for (operand, dims) in [x.dims(), y.dims()].into_iter().enumerate() {
            let own = dims.len().checked_sub(depth + 1).map_or(1, |axis| dims[axis]);
            if own > 1 {
                steps[operand] = strides[operand];
            }
            strides[operand] *= own;
        }
        match axes.last_mut() {
            _ if size == 1 => {}
            Some(inner) if steps == inner.steps.map(|step| step * inner.size) => inner.size *= size,
            _ => axes.push(Axis { size, steps }),
        }
    }
    if axes.is_empty() {
        axes.push(Axis { size: 1, steps: [0, 0] });
    }
    let mut values = Vec::with_capacity(shape.elem_count());
    if shape.elem_count() > 0 {
        with_floats(x, |x| with_floats(y, |y| walk(&axes, x, y, f, &mut values)))??;
    }
    float_tensor(values, sizes)
}

/// Appends `f` of each pair; `x` and `y` begin with the first.
fn walk(axes: &[Axis], x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32 + Copy, out: &mut Vec<f32>) {
    let Some((&Axis { size, steps }, inner)) = axes.split_last() else { return };
    if inner.is_empty() {
        return match steps {
            [0, 0] => out.extend(std::iter::repeat_n(f(x[0], y[0]), size)),
            [_, 0] => out.extend(x[..size].iter().map(|&x| f(x, y[0]))),
            [0, _] => out.extend(y[..size].iter().map(|&y| f(x[0], y))),
            [_, _] => out.extend(x[..size].iter().zip(&y[..size]).map(|(&x, &y)| f(x, y))),
        };
    }
    for i in 0..size {
        walk(inner, &x[i * steps[0]..], &y[i * steps[1]..], f, out);
    }
}

/// Pairs of elements, floats by `f`, integers by `g`, which refuses what has no result.
fn pairwise(
    call: &Call<'_>,
    f: impl Fn(f32, f32) -> f32 + Copy,
    g: impl Fn(i64, i64) -> Option<i64>,
) -> Result<Vec<Tensor>> {
    let (x, y) = operands(call)?;
    if x.dtype() == DType::F32 {
        return Ok(vec![broadcast(&x, &y, f)?]);
    }
    let shape = x.shape().broadcast_shape_binary_op(y.shape(), "operands")?;
    let (x, y) = (x.broadcast_as(&shape)?, y.broadcast_as(&shape)?);
    let pairs = ints(&x)?.into_iter().zip(ints(&y)?);
    let values = pairs
        .map(|(x, y)| g(x, y).ok_or_else(|| anyhow::anyhow!("{x} and {y} have no result")))
        .collect::<Result<Vec<_>>>()?;
    Ok(vec![int_tensor(values, shape.dims())?])
}

/// `x` and `y`, of one dtype, checked that their broadcast shape is not too large.
pub(super) fn operands(call: &Call<'_>) -> Result<(Tensor, Tensor)> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    ensure!(x.dtype() == y.dtype(), "operands are {:?} and {:?}", call.dtype("x")?, call.dtype("y")?);
    result_elements(x.shape().broadcast_shape_binary_op(y.shape(), "operands")?.dims())?;
    // Bools are numbers here, as numpy has it.
    let wide = |x: Tensor| if x.dtype() == DType::U8 { x.to_dtype(DType::I64) } else { Ok(x) };
    Ok((wide(x)?, wide(y)?))
}

/// Division; that of integers is rounded towards zero.
fn real_div(call: &Call<'_>) -> Result<Vec<Tensor>> {
    if call.dtype("x")?.is_float() {
        return arithmetic(call, |x, y| x / y, Tensor::broadcast_div);
    }
    pairwise(call, |x, y| x / y, i64::checked_div)
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

/// A parameter of one value, or of one for each place on `axis`, shaped to be broadcast against `x`.
fn along_axis(call: &Call<'_>, name: &str, x: &Tensor) -> Result<Option<Tensor>> {
    let Some(values) = call.optional_tensor(name)? else { return Ok(None) };
    let values = values.to_dtype(DType::F32)?;
    if values.rank() == 0 {
        return Ok(Some(values));
    }
    let axis = call.axis(call.int("axis")?, x.rank())?;
    ensure!(values.dims() == [x.dims()[axis]], "parameter `{name}` is {:?} for {:?}", values.dims(), x.dims());
    let mut shape = vec![1; x.rank()];
    shape[axis] = x.dims()[axis];
    Ok(Some(values.reshape(shape)?))
}

/// `round(input / scale) + zero_point`, kept inside the range of the output dtype.
fn quantize(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("input")?;
    let Some(scale) = along_axis(call, "scale", &x)? else { bail!("parameter `scale` is missing") };
    let (low, high) = match call.text("output_dtype")? {
        "int8" => (-128.0, 127.0),
        "uint8" => (0.0, 255.0),
        other => bail!("output_dtype `{other}`"),
    };
    let scaled = x.broadcast_div(&scale)?;
    let mut values: Vec<f32> = floats(&scaled)?.into_iter().map(f32::round_ties_even).collect();
    if let Some(zero_point) = along_axis(call, "zero_point", &x)? {
        let zero_points = floats(&zero_point.broadcast_as(scaled.shape())?)?;
        values.iter_mut().zip(zero_points).for_each(|(value, zero)| *value += zero);
    }
    let values = values.into_iter().map(|value| value.clamp(low, high) as i64).collect();
    Ok(vec![int_tensor(values, x.dims())?])
}

/// `(input - zero_point) * scale`
fn dequantize(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("input")?.to_dtype(DType::F32)?;
    let Some(scale) = along_axis(call, "scale", &x)? else { bail!("parameter `scale` is missing") };
    let shifted = match along_axis(call, "zero_point", &x)? {
        Some(zero_point) => x.broadcast_sub(&zero_point)?,
        None => x,
    };
    Ok(vec![shifted.broadcast_mul(&scale)?])
}
