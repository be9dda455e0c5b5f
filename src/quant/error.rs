//! Why a tensor cannot be quantized or converted. The caller adds the tensor's name.

use super::{ComputeDtype, Source, rule};

/// A tensor that is refused. Counts are over the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// Values that are no numbers.
    #[error("{nan} values are NaN and {infinite} infinite")]
    NonFinite {
        /// Number of NaNs.
        nan: usize,
        /// Number of infinities.
        infinite: usize,
    },
    /// Finite values that round to an infinity in float16: |w| ≥ 65520.
    #[error("{count} values overflow `float16`, the largest is {largest}, the limit 65504")]
    Overflows16 {
        /// How many.
        count: usize,
        /// The largest absolute value.
        largest: f32,
    },
    /// The block size does not divide the columns.
    #[error("dim 1 is {cols}, not a multiple of block size {block_size}")]
    BlockSize {
        /// Columns.
        cols: usize,
        /// The block size asked for.
        block_size: usize,
    },
    /// The bytes are not those of a matrix of this shape and dtype.
    #[error("[{rows}, {cols}] of `{dtype}` does not take {bytes} bytes")]
    Length {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Source dtype.
        dtype: &'static str,
        /// Bytes at hand.
        bytes: usize,
    },
    /// No values at all.
    #[error("[{rows}, {cols}] holds no values")]
    Empty {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
}

impl Source<'_> {
    /// Checks that the bytes fill the shape.
    pub(super) fn check(&self) -> Result<(), QuantError> {
        let Self { rows, cols, .. } = *self;
        if rows == 0 || cols == 0 {
            return Err(QuantError::Empty { rows, cols });
        }
        let needed = rows.checked_mul(cols).and_then(|values| values.checked_mul(self.dtype.size()));
        if needed == Some(self.bytes.len()) {
            return Ok(());
        }
        Err(QuantError::Length { rows, cols, dtype: self.dtype.as_str(), bytes: self.bytes.len() })
    }

    /// Counts what `compute` cannot hold; called once something is known to be wrong.
    pub(super) fn refusal(&self, compute: ComputeDtype) -> QuantError {
        let (mut nan, mut infinite, mut count, mut largest) = (0, 0, 0, 0f32);
        for value in rule::decode(self.dtype, self.bytes) {
            if value.is_nan() {
                nan += 1;
            } else if value.is_infinite() {
                infinite += 1;
            } else if rule::round(compute, value).is_infinite() {
                count += 1;
                largest = largest.max(value.abs());
            }
        }
        if nan + infinite > 0 {
            QuantError::NonFinite { nan, infinite }
        } else {
            QuantError::Overflows16 { count, largest }
        }
    }
}
