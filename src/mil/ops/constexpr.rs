//! Constants that are stored compressed.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use half::f16;

use crate::mil::Arithmetic;
use crate::mil::call::Call;
use crate::mil::constant::{Blockwise, Constant, Stored, decode};
use crate::mil::elements;
use crate::mil::value::{Dtype, Value, float_tensor, floats, ints};
use crate::mlpackage::blob::BlobDtype;

/// Decompresses: gives a constant that is as small as it was stored, where its use allows that.
pub(in crate::mil) type Decompress = fn(&Call<'_>) -> Result<Constant>;

/// Every constexpr op.
const OPS: [(&str, Decompress); 5] = [
    ("constexpr_affine_dequantize", affine_dequantize),
    ("constexpr_blockwise_shift_scale", blockwise_shift_scale),
    ("constexpr_cast", cast),
    ("constexpr_lut_to_dense", lut_to_dense),
    ("constexpr_sparse_to_dense", sparse_to_dense),
];

/// The constexpr op called `name`.
pub(in crate::mil) fn find(name: &str) -> Option<Decompress> {
    OPS.iter().find(|(known, _)| *known == name).map(|(_, decompress)| *decompress)
}

/// Names of all constexpr ops.
pub(in crate::mil) fn names() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|(name, _)| *name)
}

/// The constant of a parameter.
fn constant(call: &Call<'_>, name: &str) -> Result<Arc<Constant>> {
    match call.value(name)? {
        Value::Constant(constant) => Ok(Arc::clone(constant)),
        _ => bail!("parameter `{name}` is no constant"),
    }
}

/// The numbers of a parameter.
fn numbers(call: &Call<'_>, name: &str) -> Result<Vec<f32>> {
    floats(&call.tensor(name)?.to_dtype(DType::F32)?)
}

fn declared(call: &Call<'_>) -> Result<Dtype> {
    Ok(call.outputs.first().context("it has no output")?.dtype)
}

/// Whether a result is rounded to float16.
fn rounds(call: &Call<'_>, dtype: Dtype) -> bool {
    call.arithmetic == Arithmetic::Fp16 && dtype == Dtype::F16
}

/// Values as a constant; float16 ones are kept as that.
fn held(dtype: Dtype, shape: Vec<usize>, values: Vec<f32>) -> Result<Constant> {
    let stored = match dtype {
        Dtype::F16 => Stored::Halves(values.into_iter().map(f16::from_f32).collect()),
        _ => Stored::Tensor(float_tensor(values, &shape)?.to_dtype(dtype.storage())?),
    };
    Constant::new(dtype, shape, stored)
}

/// `scale * (data - offset)`, in blocks of `data.shape / scale.shape`.
fn blockwise_shift_scale(call: &Call<'_>) -> Result<Constant> {
    let (data, scale) = (constant(call, "data")?, constant(call, "scale")?);
    let offset = call.optional("offset")?.map(|_| numbers(call, "offset")).transpose()?;
    let (shape, dtype) = (data.shape().to_vec(), declared(call)?);
    let scales = floats(&scale.tensor()?)?;
    let blockwise = Blockwise::new(data, scales, offset, scale.shape().to_vec(), rounds(call, dtype))?;
    Constant::new(dtype, shape, Stored::Blockwise(blockwise))
}

/// `scale * (quantized_data - zero_point)`, one of each, or one for each place on `axis`.
fn affine_dequantize(call: &Call<'_>) -> Result<Constant> {
    let data = constant(call, "quantized_data")?;
    let axis = call.axis(call.int("axis")?, data.shape().len())?;
    let (mut scales, mut zeros) = (numbers(call, "scale")?, numbers(call, "zero_point")?);
    let count = scales.len().max(zeros.len());
    ensure!(count == 1 || count == data.shape()[axis], "{count} scales on an axis of {}", data.shape()[axis]);
    for values in [&mut scales, &mut zeros] {
        if values.len() == 1 {
            *values = vec![values[0]; count];
        }
    }
    let mut scale_shape = vec![1; data.shape().len()];
    scale_shape[axis] = count;
    let (shape, dtype) = (data.shape().to_vec(), declared(call)?);
    let blockwise = Blockwise::new(data, scales, Some(zeros), scale_shape, rounds(call, dtype))?;
    Constant::new(dtype, shape, Stored::Blockwise(blockwise))
}

fn cast(call: &Call<'_>) -> Result<Constant> {
    let source = constant(call, "source_val")?;
    held(declared(call)?, source.shape().to_vec(), numbers(call, "source_val")?)
}

/// Elements of packed `bytes`, `bits` wide.
fn unpacked(call: &Call<'_>, name: &str, bits: u32, count: usize) -> Result<Vec<f32>> {
    let dtype = match bits {
        1 => BlobDtype::UInt1,
        2 => BlobDtype::UInt2,
        3 => BlobDtype::UInt3,
        4 => BlobDtype::UInt4,
        6 => BlobDtype::UInt6,
        8 => BlobDtype::UInt8,
        bits => bail!("indices of {bits} bits"),
    };
    let bytes: Vec<u8> = ints(&call.tensor(name)?)?.into_iter().map(|byte| byte as u8).collect();
    ensure!(dtype.bytes(count as u64) == Some(bytes.len() as u64), "{} bytes for {count} elements", bytes.len());
    let mut values = vec![0.0; count];
    decode(dtype, &bytes, 0, &mut values)?;
    Ok(values)
}

/// The shape that the ops of the iOS 16 opset are given.
fn old_shape(call: &Call<'_>) -> Result<Option<Vec<usize>>> {
    call.optional("shape")?.map(|_| call.sizes("shape")).transpose()
}

/// Indices into one table (iOS 16: packed), or into tables for blocks (iOS 18).
fn lut_to_dense(call: &Call<'_>) -> Result<Constant> {
    let dtype = declared(call)?;
    let lut = numbers(call, "lut")?;
    if let Some(shape) = old_shape(call)? {
        ensure!(lut.len().is_power_of_two(), "a table of {} values", lut.len());
        let indices = unpacked(call, "indices", lut.len().ilog2(), elements(&shape)?)?;
        let values = indices.iter().map(|&index| lut[index as usize]).collect();
        return held(dtype, shape, values);
    }
    let indices = constant(call, "indices")?;
    let values = looked_up(call, &numbers(call, "indices")?, indices.shape(), &lut)?;
    held(dtype, call.outputs[0].shape.clone().context("its shape is not static")?, values)
}

/// Tables of shape `[…, palettes, vector]`, one for each block of the indices; a vector fills `vector_axis`.
fn looked_up(call: &Call<'_>, indices: &[f32], shape: &[usize], lut: &[f32]) -> Result<Vec<f32>> {
    let lut_shape = call.value("lut")?.shape();
    let rank = shape.len();
    ensure!(rank > 0, "indices are a scalar");
    ensure!(lut_shape.len() == rank + 2, "a table of shape {lut_shape:?} for indices {shape:?}");
    let (tables, palettes, width) = (&lut_shape[..rank], lut_shape[rank], lut_shape[rank + 1]);
    let fits = shape.iter().zip(tables).all(|(&size, &tables)| tables > 0 && size % tables == 0);
    ensure!(fits && indices.len() == elements(shape)?, "a table of shape {lut_shape:?} for indices {shape:?}");
    let axis = if width == 1 { 0 } else { call.axis(call.int("vector_axis")?, rank)? };
    let inner: usize = shape[axis + 1..].iter().product();
    let mut values = vec![0.0; elements(&[indices.len(), width])?];
    for (i, &index) in indices.iter().enumerate() {
        let (mut rest, mut table, mut stride) = (i, 0, 1);
        for (&size, &tables) in shape.iter().zip(tables).rev() {
            table += rest % size / (size / tables) * stride;
            (rest, stride) = (rest / size, stride * tables);
        }
        let index = index as usize;
        ensure!(index < palettes, "index {index} of a table of {palettes}");
        let vector = &lut[(table * palettes + index) * width..][..width];
        // The axis grows by `width`: place (outer, position * width + j, inside).
        let (before, inside) = (i / inner, i % inner);
        for (j, &value) in vector.iter().enumerate() {
            values[(before * width + j) * inner + inside] = value;
        }
    }
    Ok(values)
}

/// Where a mask of bits is set, the next of `nonzero`, else 0.
fn spread(mask: &[f32], nonzero: &[f32]) -> Result<Vec<f32>> {
    let set = mask.iter().filter(|&&bit| bit != 0.0).count();
    ensure!(set == nonzero.len(), "a mask of {set} elements for {} values", nonzero.len());
    let mut next = nonzero.iter();
    Ok(mask.iter().map(|&bit| if bit == 0.0 { 0.0 } else { next.next().copied().unwrap_or_default() }).collect())
}

/// `nonzero_data` at the set bits of `mask` (iOS 16: packed).
fn sparse_to_dense(call: &Call<'_>) -> Result<Constant> {
    let nonzero = numbers(call, "nonzero_data")?;
    let (mask, shape) = match old_shape(call)? {
        Some(shape) => (unpacked(call, "mask", 1, elements(&shape)?)?, shape),
        None => (numbers(call, "mask")?, constant(call, "mask")?.shape().to_vec()),
    };
    held(declared(call)?, shape, spread(&mask, &nonzero)?)
}
