//! Shapes: the same elements in another arrangement.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;

pub(super) fn register(registry: &mut Registry) {
    registry.moves("concat", concat);
    registry.moves("depth_to_space", |call| blocks_to_space(call, "block_size", true));
    registry.moves("expand_dims", expand_dims);
    registry.moves("flatten2d", flatten2d);
    registry.moves("pixel_shuffle", |call| blocks_to_space(call, "upscale_factor", false));
    registry.moves("pixel_unshuffle", |call| space_to_blocks(call, "downscale_factor", false));
    registry.moves("reshape", reshape);
    registry.moves("reverse", reverse);
    registry.moves("space_to_depth", |call| space_to_blocks(call, "block_size", true));
    registry.moves("split", split);
    registry.moves("squeeze", squeeze);
    registry.moves("stack", stack);
    registry.moves("transpose", transpose);
}

/// Side by side on `axis`; with `interleave`, position by position.
fn concat(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let values = call.tensors("values")?;
    ensure!(!values.is_empty(), "it has no values");
    let axis = call.axis(call.int("axis")?, values[0].rank())?;
    alike(&values)?;
    if !call.flag_or("interleave", false)? {
        let mut shape = values[0].dims().to_vec();
        shape[axis] = values.iter().map(|value| value.dims()[axis]).sum();
        result_elements(&shape)?;
        return Ok(vec![Tensor::cat(&values, axis)?]);
    }
    let stacked = stacked(&values, axis + 1)?;
    let mut shape = values[0].dims().to_vec();
    shape[axis] *= values.len();
    Ok(vec![stacked.reshape(shape)?])
}

fn stack(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let values = call.tensors("values")?;
    ensure!(!values.is_empty(), "it has no values");
    let axis = call.axis(call.int("axis")?, values[0].rank() + 1)?;
    Ok(vec![stacked(&values, axis)?])
}

fn stacked(values: &[Tensor], axis: usize) -> Result<Tensor> {
    alike(values)?;
    let mut shape = values[0].dims().to_vec();
    shape.push(values.len());
    result_elements(&shape)?;
    Ok(Tensor::stack(values, axis)?)
}

/// Checks that values have one rank and one dtype.
fn alike(values: &[Tensor]) -> Result<()> {
    let form = |value: &Tensor| (value.rank(), value.dtype());
    ensure!(values.iter().all(|value| form(value) == form(&values[0])), "values of several ranks or dtypes");
    Ok(())
}

/// `split_sizes`, or `num_splits` equal parts.
fn split(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axis = call.axis(call.int("axis")?, x.rank())?;
    let length = x.dims()[axis];
    let sizes = if call.optional("split_sizes")?.is_some() {
        call.sizes("split_sizes")?
    } else {
        let count = call.size("num_splits")?;
        ensure!(count == call.outputs.len(), "{count} parts, {} outputs", call.outputs.len());
        ensure!(count > 0 && length % count == 0, "{length} elements in {count} equal parts");
        vec![length / count; count]
    };
    ensure!(sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s)) == Some(length), "parts {sizes:?} of {length}");
    let mut start = 0;
    sizes
        .iter()
        .map(|&size| {
            let part = x.narrow(axis, start, size)?.contiguous()?;
            start += size;
            Ok(part)
        })
        .collect()
}

/// Two axes: those before `axis`, and the rest.
fn flatten2d(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axis = call.int_or("axis", 1)?;
    let axis = if axis == x.rank() as i64 { x.rank() } else { call.axis(axis, x.rank())? };
    let rows: usize = x.dims()[..axis].iter().product();
    let columns: usize = x.dims()[axis..].iter().product();
    Ok(vec![x.reshape((rows, columns))?])
}

/// Positions on `axes`, or on all, in the opposite order.
fn reverse(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axes = match call.optional("axes")? {
        Some(_) => call.axes("axes", x.rank())?,
        None => (0..x.rank()).collect(),
    };
    Ok(vec![if axes.is_empty() { x } else { x.flip(&axes)? }])
}

/// `[n, c, h, w]` and a size of blocks.
fn blocks(call: &Call<'_>, size: &str) -> Result<(Tensor, [usize; 4], usize)> {
    let x = call.tensor("x")?;
    let block = call.size(size)?;
    let &[n, c, h, w] = x.dims() else { anyhow::bail!("`x` is {:?}", x.dims()) };
    ensure!(
        block > 0 && block.checked_mul(block).is_some_and(|area| area <= x.elem_count().max(1)),
        "a block of {block}"
    );
    let shape = [n, c, h, w];
    Ok((x, shape, block))
}

/// Channels become blocks of space: `[n, c, h, w]` to `[n, c / b², h b, w b]`. The place in the block is the slower
/// part of a channel's number (`block_first`) or the faster.
fn blocks_to_space(call: &Call<'_>, size: &str, block_first: bool) -> Result<Vec<Tensor>> {
    let (x, [n, c, h, w], b) = blocks(call, size)?;
    ensure!(c % (b * b) == 0, "{c} channels in blocks of {b}");
    let out = c / (b * b);
    let moved = if block_first {
        x.reshape(&[n, b, b, out, h, w][..])?.permute(vec![0, 3, 4, 1, 5, 2])?
    } else {
        x.reshape(&[n, out, b, b, h, w][..])?.permute(vec![0, 1, 4, 2, 5, 3])?
    };
    Ok(vec![moved.contiguous()?.reshape((n, out, h * b, w * b))?])
}

/// The inverse of [`blocks_to_space`].
fn space_to_blocks(call: &Call<'_>, size: &str, block_first: bool) -> Result<Vec<Tensor>> {
    let (x, [n, c, h, w], b) = blocks(call, size)?;
    ensure!(h % b == 0 && w % b == 0, "{h} by {w} in blocks of {b}");
    let parts = x.reshape(&[n, c, h / b, b, w / b, b][..])?;
    let order = if block_first { vec![0, 3, 5, 1, 2, 4] } else { vec![0, 1, 3, 5, 2, 4] };
    Ok(vec![parts.permute(order)?.contiguous()?.reshape((n, c * b * b, h / b, w / b))?])
}

fn expand_dims(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let rank = x.rank() + call.value("axes")?.shape().iter().product::<usize>();
    ensure!(rank <= crate::mil::MOST_AXES, "a value of {rank} axes");
    let mut result = x;
    for axis in call.axes("axes", rank)? {
        result = result.unsqueeze(axis)?;
    }
    Ok(vec![result])
}

fn squeeze(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let axes = match call.optional("axes")? {
        Some(_) => call.axes("axes", x.rank())?,
        None => (0..x.rank()).filter(|&axis| x.dims()[axis] == 1).collect(),
    };
    let mut result = x;
    for &axis in axes.iter().rev() {
        ensure!(result.dims()[axis] == 1, "axis {axis} has size {}", result.dims()[axis]);
        result = result.squeeze(axis)?;
    }
    Ok(vec![result])
}

/// To `shape`: one size may be -1, what is left; 0 keeps the size of that axis, both counted from the last.
fn reshape(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, wanted) = (call.tensor("x")?, call.ints("shape")?);
    let mut shape = Vec::with_capacity(wanted.len());
    ensure!(wanted.len() <= crate::mil::MOST_AXES, "a value of {} axes", wanted.len());
    for (axis, &size) in wanted.iter().enumerate() {
        shape.push(match size {
            0 => (axis + x.rank()).checked_sub(wanted.len()).map_or(1, |axis| x.dims()[axis]),
            -1 => 1,
            size => usize::try_from(size).map_err(|_| anyhow::anyhow!("shape {wanted:?}"))?,
        });
    }
    let known = crate::mil::result_elements(&shape)?;
    if let Some(axis) = wanted.iter().position(|&size| size == -1) {
        ensure!(wanted.iter().filter(|&&size| size == -1).count() == 1, "shape {wanted:?} has two open sizes");
        ensure!(known > 0 && x.elem_count() % known == 0, "{} elements in shape {wanted:?}", x.elem_count());
        shape[axis] = x.elem_count() / known;
    }
    Ok(vec![x.reshape(shape)?])
}

fn transpose(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let order = call.ints("perm")?.iter().map(|&axis| call.axis(axis, x.rank())).collect::<Result<Vec<_>>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    ensure!(sorted.iter().copied().eq(0..x.rank()), "perm {order:?} for rank {}", x.rank());
    Ok(vec![x.permute(order)?.contiguous()?])
}
