//! Values of a program.

use std::sync::Arc;

use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor, WithDType};
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::constant::Constant;

/// Dtype of a value, as MIL spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// `fp16`.
    F16,
    /// `fp32`; `fp64` is read as it.
    F32,
    /// `bool`.
    Bool,
    /// An integer of so many bits, signed or not.
    Int {
        /// Width in bits.
        bits: u8,
        /// Whether it is signed.
        signed: bool,
    },
    /// `string`.
    Text,
}

impl Dtype {
    /// 32-bit integers, what indices and shapes are.
    pub const INT32: Self = Self::Int { bits: 32, signed: true };

    /// The dtype of MIL's spelling; `None` for bf16, fp8 and what MIL does not define.
    pub fn from_mil(name: &str) -> Option<Self> {
        Some(match name {
            "fp16" => Self::F16,
            "fp32" | "fp64" => Self::F32,
            "bool" => Self::Bool,
            "string" => Self::Text,
            _ => {
                let (bits, signed) = match name.strip_prefix("uint") {
                    Some(bits) => (bits, false),
                    None => (name.strip_prefix("int")?, true),
                };
                Self::Int { bits: bits.parse().ok().filter(|bits| (1..=64).contains(bits))?, signed }
            }
        })
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32)
    }

    /// How candle holds it: floats as F32, integers as I64, bools as U8.
    pub(super) fn storage(self) -> DType {
        match self {
            Self::F16 | Self::F32 => DType::F32,
            Self::Bool => DType::U8,
            Self::Int { .. } | Self::Text => DType::I64,
        }
    }

    /// `value` as a value of this integer dtype, wrapped as two's complement does.
    pub(super) fn wrap(self, value: i64) -> i64 {
        match self {
            Self::Int { bits, signed } if bits < 64 => {
                let shift = 64 - u32::from(bits);
                if signed { (value << shift) >> shift } else { ((value as u64) << shift >> shift) as i64 }
            }
            _ => value,
        }
    }
}

/// A value of a program.
#[derive(Clone, Debug)]
pub enum Value {
    /// The result of an op, an input or a state.
    Tensor(Tensor, Dtype),
    /// A const or the result of a constexpr op; read from the package when it is needed.
    Constant(Arc<Constant>),
    /// A string.
    Text(Arc<str>),
}

impl Value {
    /// Its dtype.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Tensor(_, dtype) => *dtype,
            Self::Constant(constant) => constant.dtype(),
            Self::Text(_) => Dtype::Text,
        }
    }

    /// Its shape; that of a string is empty.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Tensor(tensor, _) => tensor.dims(),
            Self::Constant(constant) => constant.shape(),
            Self::Text(_) => &[],
        }
    }

    /// It as a tensor of [`Dtype::storage`]; a constant is made one once.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor, _) => Ok(tensor.clone()),
            Self::Constant(constant) => constant.tensor(),
            Self::Text(text) => bail!("the string `{text}` where a tensor was expected"),
        }
    }
}

/// The elements of a float tensor, in order.
pub(super) fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// The elements of a tensor of integers or bools, in order.
pub(super) fn ints(tensor: &Tensor) -> Result<Vec<i64>> {
    Ok(tensor.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?)
}

/// Calls `f` on the elements of a float tensor; those of a view are copied first.
pub(super) fn with_floats<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_values(tensor, f)
}

/// Calls `f` on the elements of a tensor of `T`; those of a view are copied first.
pub(super) fn with_values<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else { bail!("a tensor that is not in memory") };
    let start = layout.start_offset();
    Ok(f(&storage.as_slice::<T>()?[start..start + layout.shape().elem_count()]))
}

/// A tensor of floats.
pub(super) fn float_tensor(values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// A tensor of integers.
pub(super) fn int_tensor(values: Vec<i64>, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// A tensor of bools.
pub(super) fn bool_tensor(values: Vec<u8>, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// Rounds every value to float16, ties to even; beyond its range it becomes infinite.
pub(super) fn round_to_f16(values: &mut [f32]) {
    const CHUNK: usize = 256;
    let mut halves = [f16::ZERO; CHUNK];
    for chunk in values.chunks_mut(CHUNK) {
        let halves = &mut halves[..chunk.len()];
        halves.convert_from_f32_slice(chunk);
        halves.convert_to_f32_slice(chunk);
    }
}
