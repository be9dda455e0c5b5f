//! Shapes: the same elements in another arrangement.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.moves("concat", concat);
    registry.moves("expand_dims", expand_dims);
    registry.moves("reshape", reshape);
    registry.moves("squeeze", squeeze);
    registry.moves("transpose", transpose);
}

fn concat(call: &Call<'_>) -> Result<Vec<Tensor>> {
    ensure!(!call.flag_or("interleave", false)?, "concat with interleave");
    let values = call.tensors("values")?;
    ensure!(!values.is_empty(), "it has no values");
    let axis = call.axis(call.int("axis")?, values[0].rank())?;
    Ok(vec![Tensor::cat(&values, axis)?])
}

fn expand_dims(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor("x")?;
    let rank = x.rank() + call.ints("axes")?.len();
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

/// To `shape`: one size may be -1, what is left; 0 keeps the size of that axis.
fn reshape(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, wanted) = (call.tensor("x")?, call.ints("shape")?);
    let mut shape = Vec::with_capacity(wanted.len());
    for (axis, &size) in wanted.iter().enumerate() {
        shape.push(match size {
            0 => x.dims().get(axis).copied().unwrap_or(0),
            -1 => 1,
            size => usize::try_from(size).map_err(|_| anyhow::anyhow!("shape {wanted:?}"))?,
        });
    }
    let known = crate::mil::elements(&shape)?;
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
