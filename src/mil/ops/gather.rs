//! Elements by index.

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{int_tensor, ints};

pub(super) fn register(registry: &mut Registry) {
    registry.moves("gather", gather);
    registry.moves("gather_along_axis", gather_along_axis);
    registry.moves("gather_nd", gather_nd);
}

/// Indices of an axis of `size`: negative ones count from the end.
pub(super) fn checked(indices: &Tensor, size: usize) -> Result<Vec<i64>> {
    let size = size as i64;
    ints(indices)?
        .into_iter()
        .map(|index| {
            let found = if index < 0 { index + size } else { index };
            ensure!((0..size).contains(&found), "index {index} of an axis of size {size}");
            Ok(found)
        })
        .collect()
}

/// Flat elements of `x`, by flat index.
pub(super) fn pick(x: &Tensor, indices: Vec<i64>, shape: &[usize]) -> Result<Tensor> {
    ensure!(indices.len() == result_elements(shape)?, "{} indices for shape {shape:?}", indices.len());
    let count = indices.len();
    Ok(x.flatten_all()?.contiguous()?.index_select(&int_tensor(indices, &[count])?, 0)?.reshape(shape)?)
}

/// How many leading axes `x` and `indices` share.
fn batch_dims(call: &Call<'_>, x: &Tensor, indices: &Tensor) -> Result<usize> {
    let count =
        usize::try_from(call.int_or("batch_dims", 0)?).ok().filter(|&count| count <= x.rank().min(indices.rank()));
    let count = count.context("batch_dims is larger than the rank")?;
    ensure!(x.dims()[..count] == indices.dims()[..count], "{:?} and {:?} in one batch", x.dims(), indices.dims());
    Ok(count)
}

/// Slices of `x` along `axis`, in the shape of `indices`.
fn gather(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    let axis = call.axis(call.int_or("axis", 0)?, x.rank())?;
    let batch = batch_dims(call, &x, &indices)?;
    ensure!(batch <= axis, "batch_dims {batch} reaches beyond axis {axis}");
    let flat = checked(&indices, x.dims()[axis])?;
    let mut shape = x.dims().to_vec();
    shape.splice(axis..=axis, indices.dims()[batch..].iter().copied());
    result_elements(&shape)?;
    if batch == 0 {
        let count = flat.len();
        let picked = x.contiguous()?.index_select(&int_tensor(flat, &[count])?, axis)?;
        return Ok(vec![picked.reshape(shape)?]);
    }
    let product = |sizes: &[usize]| sizes.iter().product::<usize>();
    let (batches, outer, inner) =
        (product(&x.dims()[..batch]), product(&x.dims()[batch..axis]), product(&x.dims()[axis + 1..]));
    let (size, per_batch) = (x.dims()[axis], product(&indices.dims()[batch..]));
    let mut all = Vec::with_capacity(result_elements(&shape)?);
    for b in 0..batches {
        for o in 0..outer {
            for index in &flat[b * per_batch..(b + 1) * per_batch] {
                let start = ((b * outer + o) * size + *index as usize) * inner;
                all.extend((start..start + inner).map(|i| i as i64));
            }
        }
    }
    Ok(vec![pick(&x, all, &shape)?])
}

/// `x[…, indices[…, i, …], …]`: `indices` has the shape of `x` but for `axis`.
fn gather_along_axis(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    let axis = call.axis(call.int_or("axis", 0)?, x.rank())?;
    let flat = along_axis(x.dims(), &indices, axis)?;
    Ok(vec![pick(&x, flat, indices.dims())?])
}

/// Flat indices into a value of `shape` of what `indices` choose on `axis`.
pub(super) fn along_axis(shape: &[usize], indices: &Tensor, axis: usize) -> Result<Vec<i64>> {
    let others =
        |sizes: &[usize]| sizes.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &s)| s).collect::<Vec<_>>();
    ensure!(
        shape.len() == indices.rank() && others(shape) == others(indices.dims()),
        "indices {:?} for {shape:?} on axis {axis}",
        indices.dims()
    );
    let inner: usize = shape[axis + 1..].iter().product();
    let chosen = checked(indices, shape[axis])?;
    let (size, count) = (shape[axis], indices.dims()[axis]);
    let flat = chosen.iter().enumerate().map(|(i, &index)| {
        let (outer, inside) = (i / (inner * count), i % inner);
        ((outer * size + index as usize) * inner + inside) as i64
    });
    Ok(flat.collect())
}

/// The last axis of `indices` is a position on the axes of `x` behind the batch.
fn gather_nd(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    ensure!(indices.rank() > 0, "indices are a scalar");
    let batch = batch_dims(call, &x, &indices)?;
    let depth = indices.dims()[indices.rank() - 1];
    ensure!(batch < indices.rank() && batch + depth <= x.rank(), "positions of {depth} axes of {:?}", x.dims());
    let mut shape = indices.dims()[..indices.rank() - 1].to_vec();
    shape.extend_from_slice(&x.dims()[batch + depth..]);
    let flat = positions(x.dims(), &indices, batch)?;
    let inner: usize = x.dims()[batch + depth..].iter().product();
    result_elements(&shape)?;
    let all = flat.iter().flat_map(|&start| (0..inner).map(move |i| (start * inner + i) as i64)).collect();
    Ok(vec![pick(&x, all, &shape)?])
}

/// Which slice of the axes that it does not name each position of `indices` chooses in a value of `shape`.
pub(super) fn positions(shape: &[usize], indices: &Tensor, batch: usize) -> Result<Vec<usize>> {
    let depth = indices.dims()[indices.rank() - 1];
    let batches: usize = shape[..batch].iter().product();
    let per_batch = indices.elem_count() / (batches * depth).max(1);
    ensure!(depth > 0, "positions of no axes");
    let chosen = ints(indices)?;
    chosen
        .chunks(depth)
        .enumerate()
        .map(|(i, position)| {
            let mut flat = if batch == 0 { 0 } else { i / per_batch.max(1) };
            for (&index, &size) in position.iter().zip(&shape[batch..]) {
                let found = if index < 0 { index + size as i64 } else { index };
                let found = usize::try_from(found).ok().filter(|&found| found < size);
                flat = flat * size + found.with_context(|| format!("index {index} of an axis of size {size}"))?;
            }
            Ok(flat)
        })
        .collect()
}
