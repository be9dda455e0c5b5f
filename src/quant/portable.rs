//! The kernel for every machine: safe loops that the compiler vectorises, float16 through `half`'s slice conversions.

use half::{f16, slice::HalfFloatSliceExt};

use super::rule::Step;
use super::stream::{LANES, Lanes, PIECE};
use super::{ComputeDtype, SourceDtype};

/// Adding and taking away 1.5·2²³ rounds |x| < 2²² to an integer, ties to even; the low byte of the sum is its code.
const ROUNDER: f32 = 12_582_912.0;

/// Work space for one piece.
pub(super) struct Buffers {
    source: Box<[f32]>,
    value: Box<[f32]>,
    half: Box<[f16]>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { source: vec![0.0; PIECE].into(), value: vec![0.0; PIECE].into(), half: vec![f16::ZERO; PIECE].into() }
    }
}

/// The largest |w|; infinite or NaN where a value is.
pub(super) fn max_abs(dtype: SourceDtype, bytes: &[u8]) -> f32 {
    // Without their sign, bits order like the numbers they stand for, and NaN above all.
    let max_u16 = || {
        let (values, _) = bytes.as_chunks::<2>();
        values.iter().fold(0, |max: i16, value| max.max(i16::from_le_bytes(*value) & i16::MAX)) as u16
    };
    match dtype {
        SourceDtype::F16 => f16::from_bits(max_u16()).to_f32(),
        SourceDtype::Bf16 => f32::from_bits(u32::from(max_u16()) << 16),
        SourceDtype::F32 => {
            let (values, _) = bytes.as_chunks::<4>();
            let max = values.iter().fold(0, |max: i32, value| max.max(i32::from_le_bytes(*value) & i32::MAX));
            f32::from_bits(max as u32)
        }
    }
}

/// Codes of one piece (at most [`PIECE`] values), and its squares added to `lanes`.
pub(super) fn quantize(
    dtype: SourceDtype,
    bytes: &[u8],
    step: &Step,
    codes: &mut [u8],
    lanes: &mut Lanes,
    buffers: &mut Buffers,
) {
    let count = codes.len();
    let (source, value, half) = (&mut buffers.source[..count], &mut buffers.value[..count], &mut buffers.half[..count]);
    decode(dtype, bytes, source, half);
    match (step.compute, dtype) {
        (ComputeDtype::F16, SourceDtype::F32 | SourceDtype::Bf16) => {
            half.convert_from_f32_slice(source); // numpy: weight.astype(float16)
            half.convert_to_f32_slice(value);
        }
        (ComputeDtype::F16, SourceDtype::F16) | (ComputeDtype::F32, _) => value.copy_from_slice(source),
    }
    value.iter_mut().for_each(|v| *v /= step.scale);
    if step.compute == ComputeDtype::F16 {
        half.convert_from_f32_slice(value); // numpy: float16 division rounds its result
        half.convert_to_f32_slice(value);
    }
    for (v, code) in value.iter_mut().zip(codes) {
        // numpy: clip(round(x)); the bounds are integers, so the order does not matter
        let rounded = v.clamp(-step.qmax, step.qmax) + ROUNDER;
        *code = rounded.to_bits() as u8;
        *v = (rounded - ROUNDER) * step.scale;
    }
    add_squares(source, value, lanes);
}

/// Values of one piece (at most [`PIECE`]) in float16, little-endian, and its squares added to `lanes`.
pub(super) fn to_half(dtype: SourceDtype, bytes: &[u8], out: &mut [u8], lanes: &mut Lanes, buffers: &mut Buffers) {
    let count = out.len() / 2;
    let (source, value, half) = (&mut buffers.source[..count], &mut buffers.value[..count], &mut buffers.half[..count]);
    decode(dtype, bytes, source, half);
    half.convert_from_f32_slice(source);
    half.convert_to_f32_slice(value);
    for (out, half) in out.as_chunks_mut::<2>().0.iter_mut().zip(half) {
        *out = half.to_le_bytes();
    }
    add_squares(source, value, lanes);
}

/// Values of one piece (at most [`PIECE`]) in float32, little-endian: exact.
pub(super) fn to_single(dtype: SourceDtype, bytes: &[u8], out: &mut [u8], buffers: &mut Buffers) {
    let count = out.len() / 4;
    let source = &mut buffers.source[..count];
    decode(dtype, bytes, source, &mut buffers.half[..count]);
    for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(source) {
        *out = value.to_le_bytes();
    }
}

fn decode(dtype: SourceDtype, bytes: &[u8], source: &mut [f32], half: &mut [f16]) {
    match dtype {
        SourceDtype::F32 => {
            for (value, bytes) in source.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        SourceDtype::Bf16 => {
            for (value, bytes) in source.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        SourceDtype::F16 => {
            for (value, bytes) in half.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*bytes);
            }
            half.convert_to_f32_slice(source);
        }
    }
}

fn add_squares(source: &[f32], result: &[f32], lanes: &mut Lanes) {
    let ((source, source_tail), (result, result_tail)) = (source.as_chunks::<LANES>(), result.as_chunks::<LANES>());
    let Lanes { mut signal, mut noise } = *lanes;
    for (w, r) in source.iter().zip(result) {
        for lane in 0..LANES {
            let error = w[lane] - r[lane];
            signal[lane] += w[lane] * w[lane];
            noise[lane] += error * error;
        }
    }
    for (lane, (w, r)) in source_tail.iter().zip(result_tail).enumerate() {
        signal[lane] += w * w;
        noise[lane] += (w - r) * (w - r);
    }
    *lanes = Lanes { signal, noise };
}
