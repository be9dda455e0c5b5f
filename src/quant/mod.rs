//! Weights in, bytes out: coremltools 9.0's `linear_symmetric` quantization, bit for bit.
//!
//! Owns rounding, scales, packing and the guards where coremltools is wrong in silence. Knows nothing of files,
//! packages or recipes.

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
