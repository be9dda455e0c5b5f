//! Parts of a value, and values with a part replaced.

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.moves("slice_by_index", slice_by_index);
    registry.moves("slice_by_size", slice_by_size);
    registry.moves("slice_update", slice_update);
}

/// A part of one axis: positions `begin`, `begin + stride`, …, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// First position.
    begin: usize,
    /// Step, not 0.
    stride: i64,
    /// Number of positions.
    count: usize,
}

/// `begin`, `size`: a size of -1 is all that is left.
fn slice_by_size(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let (begin, size) = (call.ints("begin")?, call.ints("size")?);
    ensure!(begin.len() == x.rank() && size.len() == x.rank(), "begin {begin:?}, size {size:?} of {:?}", x.dims());
    let mut result = x.clone();
    for (axis, ((&begin, &size), &length)) in begin.iter().zip(&size).zip(x.dims()).enumerate() {
        let start = if begin < 0 { begin + length as i64 } else { begin };
        let start = usize::try_from(start).ok().filter(|&start| start <= length);
        let start = start.with_context(|| format!("begin {begin} of an axis of size {length}"))?;
        let count = if size == -1 { Some(length - start) } else { usize::try_from(size).ok() };
        let count = count.filter(|&count| start + count <= length);
        let count = count.with_context(|| format!("{size} elements from {start} of an axis of size {length}"))?;
        if count != length {
            result = result.narrow(axis, start, count)?;
        }
    }
    Ok(vec![result.contiguous()?])
}

/// The parts that `begin`, `end`, `stride` and the masks choose of a value of `shape`, with numpy's rules.
fn parts(call: &Call<'_>, shape: &[usize]) -> Result<Vec<Part>> {
    let rank = shape.len();
    let (begin, end) = (call.ints("begin")?, call.ints("end")?);
    let stride = call.optional_ints("stride")?.unwrap_or_else(|| vec![1; rank]);
    let mask = |name| Ok::<_, anyhow::Error>(call.optional_flags(name)?.unwrap_or_else(|| vec![false; rank]));
    let (begin_mask, end_mask, squeeze_mask) = (mask("begin_mask")?, mask("end_mask")?, mask("squeeze_mask")?);
    let lengths = [begin.len(), end.len(), stride.len(), begin_mask.len(), end_mask.len(), squeeze_mask.len()];
    ensure!(lengths.iter().all(|&length| length == rank), "begin {begin:?}, end {end:?} of {shape:?}");
    (0..rank)
        .map(|axis| {
            let (size, stride) = (shape[axis] as i64, stride[axis]);
            ensure!(stride != 0, "stride 0 on axis {axis}");
            let from_front = |position: i64| if position < 0 { position.saturating_add(size) } else { position };
            if squeeze_mask[axis] {
                let position = if begin_mask[axis] { 0 } else { from_front(begin[axis]) };
                ensure!((0..size).contains(&position), "position {} of an axis of size {size}", begin[axis]);
                return Ok(Part { begin: position as usize, stride: 1, count: 1 });
            }
            let (low, high) = if stride > 0 { (0, size) } else { (-1, size - 1) };
            let start = if begin_mask[axis] {
                if stride > 0 { low } else { high }
            } else {
                from_front(begin[axis]).clamp(low, high)
            };
            let stop = if end_mask[axis] {
                if stride > 0 { high } else { low }
            } else {
                from_front(end[axis]).clamp(low, high)
            };
            let span = if stride > 0 { stop - start } else { start - stop };
            let count = if span <= 0 { 0 } else { (span as u64).div_ceil(stride.unsigned_abs()) as usize };
            Ok(Part { begin: start.max(0) as usize, stride, count })
        })
        .collect()
}

/// The chosen part; axes of `squeeze_mask` are dropped.
fn slice_by_index(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let parts = parts(call, x.dims())?;
    let squeezed = call.optional_flags("squeeze_mask")?.unwrap_or_else(|| vec![false; x.rank()]);
    let counts: Vec<usize> = parts.iter().map(|part| part.count).collect();
    let result = if parts.iter().all(|part| part.stride == 1 || part.count <= 1) {
        let narrowed = parts.iter().enumerate().try_fold(x.clone(), |x, (axis, part)| match part.count {
            0 => x.narrow(axis, 0, 0),
            count => x.narrow(axis, part.begin, count),
        })?;
        narrowed.contiguous()?
    } else {
        super::gather::pick(&x, chosen(&parts, x.dims()), &counts)?
    };
    let kept: Vec<usize> = counts.iter().zip(&squeezed).filter(|(_, squeezed)| !**squeezed).map(|(&c, _)| c).collect();
    Ok(vec![result.reshape(kept)?])
}

/// `x` with the chosen part replaced by `update`.
fn slice_update(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, update) = (call.tensor("x")?, call.tensor("update")?);
    let parts = parts(call, x.dims())?;
    let counts: Vec<usize> = parts.iter().map(|part| part.count).collect();
    ensure!(
        update.elem_count() == counts.iter().product::<usize>() && x.dtype() == update.dtype(),
        "update {:?} for a part of shape {counts:?}",
        update.dims()
    );
    let update = update.reshape(counts)?;
    let result = if call.in_place { x.clone() } else { x.copy()? };
    let partial: Vec<usize> = (0..x.rank()).filter(|&axis| !whole(&parts[axis], x.dims()[axis])).collect();
    match partial[..] {
        [] => Ok(vec![update.copy()?]),
        [axis] if parts[axis].stride == 1 => {
            result.slice_set(&update.contiguous()?, axis, parts[axis].begin)?;
            Ok(vec![result])
        }
        _ => Ok(vec![scattered(&result, &update, &parts)?]),
    }
}

fn whole(part: &Part, size: usize) -> bool {
    *part == Part { begin: 0, stride: 1, count: size }
}

/// Flat indices, into a row-major value of `shape`, of the elements that `parts` choose, in order.
fn chosen(parts: &[Part], shape: &[usize]) -> Vec<i64> {
    let mut indices = vec![0i64];
    for (part, &size) in parts.iter().zip(shape) {
        let positions = || (0..part.count).map(|i| part.begin as i64 + i as i64 * part.stride);
        indices = indices.iter().flat_map(|&index| positions().map(move |p| index * size as i64 + p)).collect();
    }
    indices
}

/// `x` with `update` at the chosen elements, whatever the strides.
fn scattered(x: &Tensor, update: &Tensor, parts: &[Part]) -> Result<Tensor> {
    let indices = chosen(parts, x.dims());
    let count = indices.len();
    let indices = crate::mil::value::int_tensor(indices, &[count])?;
    let flat = x.flatten_all()?.scatter(&indices, &update.flatten_all()?, 0)?;
    Ok(flat.reshape(x.dims())?)
}
