//! Weights in, bytes out: coremltools 9.0's `linear_symmetric` quantization, bit for bit.
//!
//! Owns rounding, scales, packing and the guards where coremltools is wrong in silence. Knows nothing of files,
//! packages or recipes. `rule` is the arithmetic's definition, one value at a time; `portable` and `x86` are kernels
//! that must equal it in every bit; `stream` walks a tensor group by group through one of them.
//!
//! Per group (a row, a block of a row, or the tensor), with `qmax` 127 or 7, all in the compute dtype:
//! `scale = max|w| / qmax`, `code = clamp(rint(w / scale), -qmax, qmax)`, ties to even.

mod error;
mod portable;
mod rule;
mod stream;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod goldens;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use error::QuantError;
pub use stream::{Kernel, Scratch, convert, quantize};

/// Dtype of source values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceDtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl SourceDtype {
    /// Every source dtype.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// `float32`, `float16` or `bfloat16`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Bytes of one value.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Dtype of quantized codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightDtype {
    /// One byte a code.
    Int8,
    /// Two codes a byte.
    Int4,
}

impl WeightDtype {
    /// Every weight dtype.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    /// `int8` or `int4`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// The largest code; symmetric quantization uses `-qmax..=qmax`.
    pub const fn qmax(self) -> i8 {
        match self {
            Self::Int8 => 127,
            Self::Int4 => 7,
        }
    }

    /// Bytes that `codes` codes take when packed; an odd last int4 code takes a whole byte.
    pub const fn packed_len(self, codes: usize) -> usize {
        match self {
            Self::Int8 => codes,
            Self::Int4 => codes.div_ceil(2),
        }
    }
}

/// Which weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A row: one output channel.
    PerChannel,
    /// `block_size` consecutive inputs of a row.
    PerBlock {
        /// Divides the number of columns.
        block_size: usize,
    },
    /// The whole tensor.
    PerTensor,
}

impl Granularity {
    /// `per_channel`, `per_block` or `per_tensor`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PerChannel => "per_channel",
            Self::PerBlock { .. } => "per_block",
            Self::PerTensor => "per_tensor",
        }
    }
}

/// Dtype of the arithmetic, of scales and of unquantized consts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeDtype {
    /// IEEE binary16: each operation in f32, its result rounded to f16, as numpy does.
    F16,
    /// IEEE binary32.
    F32,
}

impl ComputeDtype {
    /// Every compute dtype.
    pub const ALL: [Self; 2] = [Self::F16, Self::F32];

    /// `float16` or `float32`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }

    /// Bytes of one value.
    pub const fn size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// How a tensor is quantized: symmetric, round to nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Dtype of the codes.
    pub dtype: WeightDtype,
    /// Which weights share a scale.
    pub granularity: Granularity,
    /// Dtype of the arithmetic and of the scales.
    pub compute: ComputeDtype,
}

impl Scheme {
    /// Shape `[rows, columns]` of the scales of a `[rows, cols]` tensor.
    ///
    /// # Errors
    /// [`QuantError::BlockSize`] where the block size does not divide `cols`.
    pub fn scale_shape(&self, rows: usize, cols: usize) -> Result<[usize; 2], QuantError> {
        match self.granularity {
            Granularity::PerChannel => Ok([rows, 1]),
            Granularity::PerTensor => Ok([1, 1]),
            Granularity::PerBlock { block_size } if block_size > 0 && cols.is_multiple_of(block_size) => {
                Ok([rows, cols / block_size])
            }
            Granularity::PerBlock { block_size } => Err(QuantError::BlockSize { cols, block_size }),
        }
    }
}

/// A matrix of source values.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Dtype of the values.
    pub dtype: SourceDtype,
    /// The values: `[rows, cols]`, row-major, little-endian, at any alignment.
    pub bytes: &'a [u8],
    /// Output channels; 1 for a vector.
    pub rows: usize,
    /// Input channels.
    pub cols: usize,
}

/// What [`quantize`] leaves beside the codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Little-endian scales of the compute dtype, row-major in [`Scheme::scale_shape`].
    pub scales: Vec<u8>,
    /// How it went.
    pub report: Report,
}

/// What [`convert`] leaves beside the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Converted {
    /// `10 log10(Σ w² / Σ (w - converted)²)`, infinite where nothing was lost.
    pub sqnr_db: f64,
}

/// What quantization cost, and where the result is not coremltools'.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Signal to quantization noise, `10 log10(Σ w² / Σ (w - code·scale)²)` over the tensor, `w` as in the source,
    /// products and squares in f32: good to 1e-4 dB below 120 dB, infinite where nothing was lost, and the same bits
    /// whatever the kernel.
    pub sqnr_db: f64,
    /// The groups to which a [`Guard`] applied, by rising index.
    pub guarded: Vec<GuardedGroup>,
}

/// A group whose result departs from coremltools'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardedGroup {
    /// Index into the scales.
    pub index: usize,
    /// Why.
    pub reason: Guard,
}

/// Where coremltools is wrong in silence, and what is written instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// Every weight is zero in the compute dtype. Written: codes 0, scale 1; coremltools: scale 0.
    Zero,
    /// `max|w| / qmax` rounds to zero in the compute dtype: max|w| ≤ qmax·2⁻²⁵ in float16, qmax·2⁻¹⁵⁰ in float32.
    /// Written: codes 0, scale 1; coremltools: codes ±qmax, scale 0.
    Underflow,
    /// `2·max|w|` overflows: max|w| ≥ 32768 in float16, 2¹²⁷ in float32. Written: the scale without doubling;
    /// coremltools: codes 0, scale infinite.
    Large,
}

impl Guard {
    /// Every guard.
    pub const ALL: [Self; 3] = [Self::Zero, Self::Underflow, Self::Large];

    /// `zero`, `underflow` or `large`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Underflow => "underflow",
            Self::Large => "large",
        }
    }
}
