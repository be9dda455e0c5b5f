//! Values with elements replaced or combined, by index.

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Device, Tensor};

use super::gather::{along_axis, checked, positions};
use crate::mil::call::Call;
use crate::mil::registry::Registry;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("scatter", scatter);
    registry.computes("scatter_along_axis", scatter_along_axis);
    registry.computes("scatter_nd", scatter_nd);
}

/// How an update joins what is there.
fn mode(name: &str) -> Result<fn(f64, f64) -> f64> {
    Ok(match name {
        "update" => |_, new| new,
        "add" => |old, new| old + new,
        "sub" => |old, new| old - new,
        "mul" => |old, new| old * new,
        "div" => |old, new| old / new,
        "max" => f64::max,
        "min" => f64::min,
        other => bail!("mode `{other}`"),
    })
}

/// `data` with `updates` joined at flat `indices`, one by one.
fn joined(call: &Call<'_>, data: &Tensor, indices: &[usize], updates: &Tensor, default: &str) -> Result<Vec<Tensor>> {
    ensure!(data.dtype() == updates.dtype(), "`data` and `updates` are of different dtypes");
    ensure!(indices.len() == updates.elem_count(), "{} places for {:?}", indices.len(), updates.dims());
    let join = mode(call.text_or("mode", default)?)?;
    // float64 holds every 32-bit integer; a float is rounded after every step.
    let mut values: Vec<f64> = data.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let updates: Vec<f64> = updates.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let float = data.dtype() == DType::F32;
    for (&index, update) in indices.iter().zip(updates) {
        let joined = join(values[index], update);
        values[index] = if float { f64::from(joined as f32) } else { joined.trunc() };
    }
    Ok(vec![Tensor::from_vec(values, data.dims(), &Device::Cpu)?.to_dtype(data.dtype())?])
}

/// Slices of `data` along `axis`.
fn scatter(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (data, indices, updates) = (call.tensor("data")?, call.tensor("indices")?, call.tensor("updates")?);
    let axis = call.axis(call.int_or("axis", 0)?, data.rank())?;
    let chosen = checked(&indices, data.dims()[axis])?;
    let outer: usize = data.dims()[..axis].iter().product();
    let inner: usize = data.dims()[axis + 1..].iter().product();
    let size = data.dims()[axis];
    let places = outer * inner;
    ensure!(places.checked_mul(chosen.len()) == Some(updates.elem_count()), "updates {:?}", updates.dims());
    let flat: Vec<usize> = (0..outer)
        .flat_map(|o| chosen.iter().map(move |&index| (o * size + index as usize) * inner))
        .flat_map(|start| start..start + inner)
        .collect();
    joined(call, &data, &flat, &updates, "add")
}

fn scatter_along_axis(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (data, indices, updates) = (call.tensor("data")?, call.tensor("indices")?, call.tensor("updates")?);
    let axis = call.axis(call.int_or("axis", 0)?, data.rank())?;
    let flat: Vec<usize> = along_axis(data.dims(), &indices, axis)?.iter().map(|&index| index as usize).collect();
    joined(call, &data, &flat, &updates, "add")
}

fn scatter_nd(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (data, indices, updates) = (call.tensor("data")?, call.tensor("indices")?, call.tensor("updates")?);
    ensure!(indices.rank() > 0, "indices are a scalar");
    let depth = indices.dims()[indices.rank() - 1];
    ensure!(depth <= data.rank(), "positions of {depth} axes of {:?}", data.dims());
    let inner: usize = data.dims()[depth..].iter().product();
    let slices = positions(data.dims(), &indices, 0)?;
    ensure!(inner.checked_mul(slices.len()) == Some(updates.elem_count()), "updates {:?}", updates.dims());
    let flat: Vec<usize> = slices.into_iter().flat_map(|slice| slice * inner..(slice + 1) * inner).collect();
    joined(call, &data, &flat, &updates, "add")
}
