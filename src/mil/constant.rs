//! Values that a package holds: consts, and weights that its constexpr ops decompress. They are kept as they are
//! stored and decoded range by range.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::elements;
use super::value::{Dtype, bool_tensor, float_tensor, int_tensor, round_to_f16};
use crate::mlpackage::Package;
use crate::mlpackage::blob::{BlobDtype, Entry};

/// A value that a package holds.
#[derive(Debug)]
pub struct Constant {
    dtype: Dtype,
    shape: Vec<usize>,
    stored: Stored,
    tensor: OnceLock<Tensor>,
}

/// How it is kept.
#[derive(Debug)]
pub(super) enum Stored {
    /// As a tensor.
    Tensor(Tensor),
    /// In the package's blob file.
    Blob { package: Arc<Package>, entry: Entry },
    /// As float16 that the package does not hold in this form.
    Halves(Vec<f16>),
    /// `constexpr_blockwise_shift_scale`: integers with scales.
    Blockwise(Blockwise),
}

/// `scale * (data - offset)`, each scale for a block of `data`.
#[derive(Debug)]
pub(super) struct Blockwise {
    /// Integers, or floats.
    pub data: Arc<Constant>,
    /// Row-major.
    pub scale: Vec<f32>,
    /// Row-major, as many as scales.
    pub offset: Option<Vec<f32>>,
    /// Of `scale`: same rank as `data`, each size divides that of `data`.
    pub scale_shape: Vec<usize>,
    /// Consecutive elements that share a scale.
    run: usize,
    /// Whether the result is rounded to float16.
    round: bool,
}

impl Blockwise {
    /// # Errors
    /// The shapes do not fit each other.
    pub(super) fn new(
        data: Arc<Constant>,
        scale: Vec<f32>,
        offset: Option<Vec<f32>>,
        scale_shape: Vec<usize>,
        round: bool,
    ) -> Result<Self> {
        let shape = data.shape();
        let fits = shape.len() == scale_shape.len()
            && shape.iter().zip(&scale_shape).all(|(&size, &scales)| scales > 0 && size % scales == 0);
        ensure!(fits, "scales of shape {scale_shape:?} for data of shape {shape:?}");
        ensure!(scale.len() == elements(&scale_shape)?, "{} scales for shape {scale_shape:?}", scale.len());
        ensure!(offset.as_ref().is_none_or(|offset| offset.len() == scale.len()), "offsets are not as many as scales");
        let mut run = 1;
        for (&size, &scales) in shape.iter().zip(&scale_shape).rev() {
            run *= size / scales;
            if scales > 1 {
                break;
            }
        }
        Ok(Self { data, scale, offset, scale_shape, run: run.max(1), round })
    }

    /// Index of the scale of an element.
    fn scale_of(&self, element: usize) -> usize {
        let (mut rest, mut index, mut stride) = (element, 0, 1);
        for (&size, &scales) in self.data.shape.iter().zip(&self.scale_shape).rev() {
            index += rest % size / (size / scales) * stride;
            rest /= size;
            stride *= scales;
        }
        index
    }

    fn decode(&self, start: usize, out: &mut [f32]) -> Result<()> {
        self.data.decode(start, out)?;
        let (mut element, mut rest) = (start, out);
        while !rest.is_empty() {
            let (block, later) = rest.split_at_mut((self.run - element % self.run).min(rest.len()));
            let index = self.scale_of(element);
            let (scale, offset) = (self.scale[index], self.offset.as_ref().map_or(0.0, |offset| offset[index]));
            block.iter_mut().for_each(|value| *value = (*value - offset) * scale);
            if self.round {
                round_to_f16(block);
            }
            element += block.len();
            rest = later;
        }
        Ok(())
    }
}

/// Rows that a product can take as they are stored.
pub(super) enum StoredRows<'a> {
    /// float16, little-endian.
    Halves(&'a [u8]),
    /// int8, one scale a row.
    Int8 { data: &'a [u8], scales: &'a [f32], round: bool },
    /// Whatever [`Constant::decode`] takes.
    Other,
}

impl Constant {
    /// # Errors
    /// `stored` has not as many elements as `shape`, or is too large.
    pub(super) fn new(dtype: Dtype, shape: Vec<usize>, stored: Stored) -> Result<Self> {
        let count = elements(&shape)?;
        let holds = match &stored {
            Stored::Tensor(tensor) => tensor.elem_count(),
            Stored::Blob { entry, .. } => usize::try_from(entry.elements())?,
            Stored::Halves(values) => values.len(),
            Stored::Blockwise(blockwise) => elements(blockwise.data.shape())?,
        };
        ensure!(holds == count, "{holds} elements for shape {shape:?}");
        Ok(Self { dtype, shape, stored, tensor: OnceLock::new() })
    }

    /// Its dtype.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// It as a tensor; made once.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor.clone());
        }
        let tensor = match &self.stored {
            Stored::Tensor(tensor) => tensor.clone(),
            _ => {
                let mut values = vec![0.0; elements(&self.shape)?];
                self.decode(0, &mut values)?;
                match self.dtype {
                    Dtype::F16 | Dtype::F32 => float_tensor(values, &self.shape)?,
                    Dtype::Bool => bool_tensor(values.iter().map(|&v| u8::from(v != 0.0)).collect(), &self.shape)?,
                    Dtype::Int { bits, .. } => int_tensor(self.integers(&values, bits)?, &self.shape)?,
                    Dtype::Text => bail!("a string in the blob file"),
                }
            }
        };
        Ok(self.tensor.get_or_init(|| tensor).clone())
    }

    /// Integers: float32 holds those of up to 24 bits; wider ones are read again.
    fn integers(&self, values: &[f32], bits: u8) -> Result<Vec<i64>> {
        if bits <= 24 {
            return Ok(values.iter().map(|&value| value as i64).collect());
        }
        let Stored::Blob { package, entry } = &self.stored else { bail!("{bits}-bit integers that are no blob") };
        let words = entry.data(package.weights()).as_chunks::<4>().0;
        Ok(match entry.dtype {
            BlobDtype::UInt32 => words.iter().map(|b| i64::from(u32::from_le_bytes(*b))).collect(),
            _ => words.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
        })
    }

    /// Elements `start..` as f32.
    ///
    /// # Errors
    /// It holds no numbers, or fewer than that.
    pub(super) fn decode(&self, start: usize, out: &mut [f32]) -> Result<()> {
        let end = start + out.len();
        let short = || format!("elements {start}..{end} of a value of shape {:?}", self.shape);
        match &self.stored {
            Stored::Tensor(tensor) => {
                let tensor = tensor.flatten_all()?.narrow(0, start, out.len())?.to_dtype(candle_core::DType::F32)?;
                out.copy_from_slice(&tensor.to_vec1::<f32>()?);
            }
            Stored::Blob { package, entry } => {
                decode(entry.dtype, entry.data(package.weights()), start, out).with_context(short)?;
            }
            Stored::Halves(values) => {
                values.get(start..end).with_context(short)?.convert_to_f32_slice(out);
            }
            Stored::Blockwise(blockwise) => blockwise.decode(start, out)?,
        }
        Ok(())
    }

    /// Its bytes, where it lies in the blob file.
    pub(super) fn blob(&self) -> Option<(BlobDtype, &[u8])> {
        match &self.stored {
            Stored::Blob { package, entry } => Some((entry.dtype, entry.data(package.weights()))),
            _ => None,
        }
    }

    /// It as rows of `columns` elements.
    pub(super) fn rows(&self, columns: usize) -> StoredRows<'_> {
        match &self.stored {
            Stored::Blob { .. } => match self.blob() {
                Some((BlobDtype::Float16, bytes)) => StoredRows::Halves(bytes),
                _ => StoredRows::Other,
            },
            Stored::Blockwise(Blockwise { data, scale, offset: None, run, round, .. }) if *run == columns => {
                match data.blob() {
                    Some((BlobDtype::Int8, data)) => StoredRows::Int8 { data, scales: scale, round: *round },
                    _ => StoredRows::Other,
                }
            }
            _ => StoredRows::Other,
        }
    }
}

/// Elements `start..` of packed `bytes` as f32. Elements of less than a byte lie from the low bits up.
pub(super) fn decode(dtype: BlobDtype, bytes: &[u8], start: usize, out: &mut [f32]) -> Result<()> {
    let width = dtype.bits() as usize;
    if width.is_multiple_of(8) {
        let size = width / 8;
        let from = start.checked_mul(size).context("offset overflows")?;
        let bytes = bytes.get(from..from + out.len() * size).context("the blob is too short")?;
        let pairs = || bytes.as_chunks::<2>().0.iter();
        let words = || bytes.as_chunks::<4>().0.iter();
        match dtype {
            BlobDtype::Float16 => out.iter_mut().zip(pairs()).for_each(|(o, b)| *o = f16::from_le_bytes(*b).to_f32()),
            BlobDtype::BFloat16 => {
                out.iter_mut().zip(pairs()).for_each(|(o, b)| *o = half::bf16::from_le_bytes(*b).to_f32());
            }
            BlobDtype::Int16 => out.iter_mut().zip(pairs()).for_each(|(o, b)| *o = i16::from_le_bytes(*b).into()),
            BlobDtype::UInt16 => out.iter_mut().zip(pairs()).for_each(|(o, b)| *o = u16::from_le_bytes(*b).into()),
            BlobDtype::Float32 => out.iter_mut().zip(words()).for_each(|(o, b)| *o = f32::from_le_bytes(*b)),
            BlobDtype::Int32 => out.iter_mut().zip(words()).for_each(|(o, b)| *o = i32::from_le_bytes(*b) as f32),
            BlobDtype::UInt32 => out.iter_mut().zip(words()).for_each(|(o, b)| *o = u32::from_le_bytes(*b) as f32),
            BlobDtype::Int8 => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = (*b as i8).into()),
            _ => out.iter_mut().zip(bytes).for_each(|(o, b)| *o = (*b).into()),
        }
        return Ok(());
    }
    let end = start.checked_add(out.len()).and_then(|end| end.checked_mul(width)).context("offset overflows")?;
    ensure!(end.div_ceil(8) <= bytes.len(), "the blob is too short");
    for (i, value) in out.iter_mut().enumerate() {
        let bit = (start + i) * width;
        let low = u16::from(bytes[bit / 8]);
        let high = bytes.get(bit / 8 + 1).map_or(0, |&byte| u16::from(byte));
        let packed = ((high << 8 | low) >> (bit % 8)) & ((1 << width) - 1);
        *value = match dtype {
            BlobDtype::Int4 => f32::from(((packed << 4) as u8 as i8) >> 4),
            _ => f32::from(packed),
        };
    }
    Ok(())
}
