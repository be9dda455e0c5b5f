//! Arrays that cross into and out of Python.

use crate::quant::SourceDtype;
use anyhow::{Result, bail};
use half::f16;

/// A tensor of a checkpoint as it lies in memory: little-endian, row-major.
#[derive(Clone, Debug)]
pub struct SourceArray<'a> {
    /// Dtype of the values.
    pub dtype: SourceDtype,
    /// `[out, in]` or `[n]`.
    pub shape: Vec<usize>,
    /// The values.
    pub bytes: &'a [u8],
}

impl SourceArray<'_> {
    pub(super) fn dtype_name(&self) -> &'static str {
        match self.dtype {
            SourceDtype::F32 => "float32",
            SourceDtype::F16 => "float16",
            SourceDtype::Bf16 => "bfloat16",
        }
    }
}

/// Dtype of an input or output of a function; the spelling is numpy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayDtype {
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// Signed 32-bit integer.
    I32,
}

impl ArrayDtype {
    /// Every dtype.
    pub const ALL: [Self; 3] = [Self::F16, Self::F32, Self::I32];

    /// numpy's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F16 => "float16",
            Self::F32 => "float32",
            Self::I32 => "int32",
        }
    }
}

/// A value of a function's input, output or state: little-endian, row-major. Equality is equality of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Dtype of the values.
    pub dtype: ArrayDtype,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// The values.
    pub bytes: Vec<u8>,
}

impl Array {
    /// A float16 array. Panics where `shape` does not hold as many values.
    pub fn f16(shape: &[usize], values: &[f16]) -> Self {
        Self::new(ArrayDtype::F16, shape, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A float32 array. Panics where `shape` does not hold as many values.
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self::new(ArrayDtype::F32, shape, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An int32 array. Panics where `shape` does not hold as many values.
    pub fn i32(shape: &[usize], values: &[i32]) -> Self {
        Self::new(ArrayDtype::I32, shape, values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    fn new(dtype: ArrayDtype, shape: &[usize], count: usize, bytes: Vec<u8>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), count, "shape {shape:?} does not hold {count} values");
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    pub(super) fn from_parts(dtype: &str, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self> {
        let Some(dtype) = ArrayDtype::ALL.into_iter().find(|known| known.as_str() == dtype) else {
            bail!("an array of dtype `{dtype}`, which no block has");
        };
        Ok(Self { dtype, shape, bytes })
    }

    /// Every value as f32; exact for float16, rounded for integers beyond 2^24.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            ArrayDtype::F16 => self.bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            ArrayDtype::F32 => self.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            ArrayDtype::I32 => self.bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
        }
    }
}
