//! Elements by index.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use crate::mil::call::Call;
use crate::mil::elements;
use crate::mil::registry::Registry;
use crate::mil::value::{int_tensor, ints};

pub(super) fn register(registry: &mut Registry) {
    registry.moves("gather", gather);
}

/// Indices of an axis of `size`: negative ones count from the end.
fn checked(indices: &Tensor, size: usize) -> Result<Vec<i64>> {
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

/// Slices of `x` along `axis`, in the shape of `indices`.
fn gather(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    ensure!(call.int_or("batch_dims", 0)? == 0, "gather with batch_dims");
    let axis = call.axis(call.int_or("axis", 0)?, x.rank())?;
    let flat = checked(&indices, x.dims()[axis])?;
    let mut shape = x.dims().to_vec();
    shape.splice(axis..=axis, indices.dims().iter().copied());
    elements(&shape)?;
    let count = flat.len();
    let picked = x.contiguous()?.index_select(&int_tensor(flat, &[count])?, axis)?;
    Ok(vec![picked.reshape(shape)?])
}
