//! Values made, repeated, padded, ordered.

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};

use super::gather::pick;
use super::lanes::{axis_back, axis_last, keys, map_lanes, sorted};
use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{Dtype, float_tensor, floats, int_tensor, ints};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("argsort", argsort);
    registry.computes("band_part", band_part);
    registry.computes("cumsum", cumsum);
    registry.computes("fill", |call| {
        let shape = call.sizes("shape")?;
        full(call, &shape)
    });
    registry.computes("fill_like", |call| {
        let shape = call.tensor("ref_tensor")?.dims().to_vec();
        full(call, &shape)
    });
    registry.computes("one_hot", one_hot);
    registry.moves("pad", pad);
    registry.computes("range_1d", range);
    registry.computes("shape", |call| {
        let x = call.value("x")?;
        ensure!(x.dtype() != Dtype::Text, "a string has no shape");
        let shape: Vec<i64> = x.shape().iter().map(|&size| size as i64).collect();
        let rank = shape.len();
        Ok(vec![int_tensor(shape, &[rank])?])
    });
    registry.moves("tile", tile);
    registry.computes("topk", topk);
}

/// `value` everywhere.
fn full(call: &Call<'_>, shape: &[usize]) -> Result<Vec<Tensor>> {
    let count = result_elements(shape)?;
    if call.optional("value")?.is_none() {
        return Ok(vec![float_tensor(vec![0.0; count], shape)?]);
    }
    let value = call.tensor("value")?;
    ensure!(value.elem_count() == 1, "parameter `value` has {} values", value.elem_count());
    Ok(vec![value.reshape(())?.broadcast_as(shape)?.contiguous()?])
}

fn tile(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, reps) = (call.tensor("x")?, call.sizes("reps")?);
    ensure!(reps.len() == x.rank(), "reps {reps:?} for {:?}", x.dims());
    let shape: Option<Vec<usize>> = x.dims().iter().zip(&reps).map(|(&size, &reps)| size.checked_mul(reps)).collect();
    let shape = shape.context("reps overflow")?;
    result_elements(&shape)?;
    ensure!(reps.iter().all(|&reps| reps > 0), "reps {reps:?}");
    // An axis before each, over which it is repeated.
    let pairs = |first: &dyn Fn(usize) -> usize| -> Vec<usize> {
        reps.iter().zip(x.dims()).flat_map(|(&reps, &size)| [first(reps), size]).collect()
    };
    let repeated = x.reshape(pairs(&|_| 1))?.broadcast_as(pairs(&|reps| reps))?;
    Ok(vec![repeated.contiguous()?.reshape(shape)?])
}

/// `pad` holds what is added before and after each of the last axes.
fn pad(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, pad) = (call.tensor("x")?, call.ints("pad")?);
    let rank = x.rank();
    ensure!(pad.len() % 2 == 0 && pad.len() / 2 <= rank, "pad {pad:?} for {:?}", x.dims());
    let first = rank - pad.len() / 2;
    let mode = call.text_or("mode", "constant")?;
    let mut result = x;
    for (i, pair) in pad.chunks(2).enumerate() {
        let axis = first + i;
        let size = result.dims()[axis] as i64;
        let (before, after) = (pair[0], pair[1]);
        let length =
            usize::try_from(size.checked_add(before).and_then(|l| l.checked_add(after)).context("pad too large")?);
        let length = length.ok().with_context(|| format!("pad {before}, {after} of an axis of size {size}"))?;
        let mut shape = result.dims().to_vec();
        shape[axis] = length;
        result_elements(&shape)?;
        if before == 0 && after == 0 {
            continue;
        }
        if mode == "constant" {
            // A place behind the last stands for the constant.
            let fill = call
                .optional_tensor("constant_val")?
                .map_or(Ok(result.zeros_like()?.flatten_all()?), |value| value.to_dtype(result.dtype())?.flatten_all());
            let mut one = result.dims().to_vec();
            one[axis] = 1;
            let fill = match fill {
                Ok(fill) if fill.elem_count() > 0 => {
                    fill.narrow(0, 0, 1)?.reshape(())?.broadcast_as(one)?.contiguous()?
                }
                _ => Tensor::zeros(one, result.dtype(), &Device::Cpu)?,
            };
            let extended = Tensor::cat(&[&result, &fill], axis)?;
            let indices =
                (0..length as i64).map(|i| Some(i - before).filter(|p| (0..size).contains(p)).unwrap_or(size));
            result = extended.index_select(&int_tensor(indices.collect(), &[length])?, axis)?;
            continue;
        }
        ensure!(size > 0, "an axis without elements cannot be padded with its own");
        let source = |position: i64| -> Result<i64> {
            Ok(match mode {
                "replicate" => position.clamp(0, size - 1),
                "reflect" => {
                    let turned = if position < 0 { -position } else { position };
                    if turned >= size { 2 * (size - 1) - turned } else { turned }
                }
                other => bail!("mode `{other}`"),
            })
        };
        let indices = (0..length as i64).map(|i| source(i - before)).collect::<Result<Vec<_>>>()?;
        ensure!(indices.iter().all(|i| (0..size).contains(i)), "pad {before}, {after} of an axis of size {size}");
        result = result.contiguous()?.index_select(&int_tensor(indices, &[length])?, axis)?;
    }
    Ok(vec![result])
}

/// From `start` in steps, up to but not `end`.
fn range(call: &Call<'_>) -> Result<Vec<Tensor>> {
    if call.dtype("end")?.is_float() {
        let (start, end, step) = (call.number("start")?, call.number("end")?, call.number("step")?);
        let count = ((f64::from(end) - f64::from(start)) / f64::from(step)).ceil();
        ensure!(count.is_finite(), "a range from {start} to {end} in steps of {step}");
        let count = result_elements(&[count.max(0.0) as usize])?;
        return Ok(vec![float_tensor((0..count).map(|i| start + i as f32 * step).collect(), &[count])?]);
    }
    let (start, end, step) = (call.int("start")?, call.int("end")?, call.int("step")?);
    ensure!(step != 0, "a range in steps of 0");
    let span = if step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
    let count = result_elements(&[usize::try_from(span.max(0))?.div_ceil(usize::try_from(step.unsigned_abs())?)])?;
    Ok(vec![int_tensor((0..count as i64).map(|i| start + i * step).collect(), &[count])?])
}

/// An axis more, `on_value` at the index, else `off_value`.
fn one_hot(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let indices = call.tensor("indices")?;
    let size = call.size("one_hot_vector_size")?;
    let axis = call.axis(call.int_or("axis", -1)?, indices.rank() + 1)?;
    let (on, off) = (call.number_or("on_value", 1.0)?, call.number_or("off_value", 0.0)?);
    let mut shape = indices.dims().to_vec();
    shape.push(size);
    let mut values = vec![off; result_elements(&shape)?];
    for (i, &index) in ints(&indices)?.iter().enumerate() {
        let found = if index < 0 { index + size as i64 } else { index };
        ensure!((0..size as i64).contains(&found), "index {index} of {size}");
        values[i * size + found as usize] = on;
    }
    let floats = call.optional("on_value")?.is_some_and(|value| value.dtype().is_float());
    let result = axis_back(&float_tensor(values, &shape)?, axis)?;
    Ok(vec![if floats { result } else { result.to_dtype(DType::I64)? }])
}

fn cumsum(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axis = call.axis(call.int_or("axis", 0)?, x.rank())?;
    let (exclusive, reverse) = (call.flag_or("exclusive", false)?, call.flag_or("reverse", false)?);
    Ok(vec![if x.dtype() == DType::F32 {
        map_lanes(&x, axis, x.dims()[axis], |lane: &[f32], out| running_sum(lane, out, exclusive, reverse))?
    } else {
        let x = x.to_dtype(DType::I64)?;
        map_lanes(&x, axis, x.dims()[axis], |lane: &[i64], out| running_sum(lane, out, exclusive, reverse))?
    }])
}

fn running_sum<T>(lane: &[T], out: &mut Vec<T>, exclusive: bool, reverse: bool)
where
    T: Copy + Default + std::ops::Add<Output = T>,
{
    let start = out.len();
    out.resize(start + lane.len(), T::default());
    let out = &mut out[start..];
    let mut sum = T::default();
    for i in 0..lane.len() {
        let i = if reverse { lane.len() - 1 - i } else { i };
        let next = sum + lane[i];
        out[i] = if exclusive { sum } else { next };
        sum = next;
    }
}

fn argsort(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = keys(&call.tensor("x")?)?;
    let axis = call.axis(call.int_or("axis", -1)?, x.rank())?;
    let ascending = call.flag_or("ascending", false)?;
    let order = map_lanes(&x, axis, x.dims()[axis], |lane: &[f64], out: &mut Vec<i64>| {
        out.extend(sorted(lane, ascending).iter().map(|&i| i as i64));
    })?;
    Ok(vec![order])
}

/// The `k` largest (or smallest) on an axis, and where they are; with `sort = false` in the order of their places.
fn topk(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axis = call.axis(call.int_or("axis", -1)?, x.rank())?;
    let k = match call.int_or("k", 1)? {
        -1 => x.dims()[axis],
        k => usize::try_from(k).ok().filter(|&k| k <= x.dims()[axis]).with_context(|| format!("k is {k}"))?,
    };
    let (ascending, sort) = (call.flag_or("ascending", false)?, call.flag_or("sort", true)?);
    let indices = map_lanes(&keys(&x)?, axis, k, |lane: &[f64], out: &mut Vec<i64>| {
        let mut order = sorted(lane, ascending);
        order.truncate(k);
        if !sort {
            order.sort_unstable();
        }
        out.extend(order.iter().map(|&i| i as i64));
    })?;
    let picked = pick_lanes(&x, &indices, axis)?;
    Ok(if call.flag_or("return_indices", true)? { vec![picked, indices] } else { vec![picked] })
}

fn pick_lanes(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor> {
    let (x, indices) = (axis_last(x, axis)?, axis_last(indices, axis)?);
    let (length, k) = (x.dims()[x.rank() - 1], indices.dims()[indices.rank() - 1]);
    let flat = ints(&indices)?.into_iter().enumerate().map(|(i, index)| (i / k.max(1) * length) as i64 + index);
    axis_back(&pick(&x, flat.collect(), indices.dims())?, axis)
}

/// Elements of the last two axes with `column - row` from `-lower` to `upper`, else 0; -1 is no limit.
fn band_part(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    ensure!(x.rank() >= 2, "band_part of {:?}", x.dims());
    let (lower, upper) = (call.int_or("lower", -1)?, call.int_or("upper", -1)?);
    let (rows, columns) = (x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]);
    let mut values = floats(&x.to_dtype(DType::F32)?)?;
    for (i, value) in values.iter_mut().enumerate() {
        let (row, column) = ((i / columns % rows) as i64, (i % columns) as i64);
        if lower >= 0 && row - column > lower || upper >= 0 && column - row > upper {
            *value = 0.0;
        }
    }
    Ok(vec![float_tensor(values, x.dims())?.to_dtype(x.dtype())?])
}
