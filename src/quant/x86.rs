//! The kernel for x86-64 with AVX2 and F16C.
//!
//! The only `unsafe` of `quant`: unaligned loads and stores of whole arrays, and the entry behind feature detection.
//! 32 values at a time; a shorter end is padded with zeros, which give code 0 and add nothing to the sums.

use std::arch::x86_64::*;

use super::rule::Step;
use super::stream::Lanes;
use super::{ComputeDtype, SourceDtype};

/// Values in a block.
const BLOCK: usize = 32;
/// Bytes of the widest block.
const BLOCK_BYTES: usize = BLOCK * 4;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Proof that this machine has AVX2 and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// Asks the machine.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }

    /// As [`super::portable::max_abs`].
    pub(super) fn max_abs(self, dtype: SourceDtype, bytes: &[u8]) -> f32 {
        // SAFETY: `self` exists only where AVX2 and F16C were detected.
        unsafe {
            match dtype {
                SourceDtype::F32 => f32::from_bits(max_u32(bytes)),
                SourceDtype::F16 => half::f16::from_bits(max_u16(bytes)).to_f32(),
                SourceDtype::Bf16 => f32::from_bits(u32::from(max_u16(bytes)) << 16),
            }
        }
    }

    /// As [`super::portable::quantize`].
    pub(super) fn quantize(self, dtype: SourceDtype, bytes: &[u8], step: &Step, codes: &mut [u8], lanes: &mut Lanes) {
        // SAFETY: `self` exists only where AVX2 and F16C were detected.
        unsafe {
            match (step.compute, dtype) {
                (ComputeDtype::F16, SourceDtype::F32) => quantize::<F32, true>(bytes, step, codes, lanes),
                (ComputeDtype::F16, SourceDtype::F16) => quantize::<F16, true>(bytes, step, codes, lanes),
                (ComputeDtype::F16, SourceDtype::Bf16) => quantize::<BF16, true>(bytes, step, codes, lanes),
                (ComputeDtype::F32, SourceDtype::F32) => quantize::<F32, false>(bytes, step, codes, lanes),
                (ComputeDtype::F32, SourceDtype::F16) => quantize::<F16, false>(bytes, step, codes, lanes),
                (ComputeDtype::F32, SourceDtype::Bf16) => quantize::<BF16, false>(bytes, step, codes, lanes),
            }
        }
    }

    /// As [`super::portable::to_half`].
    pub(super) fn to_half(self, dtype: SourceDtype, bytes: &[u8], out: &mut [u8], lanes: &mut Lanes) {
        // SAFETY: `self` exists only where AVX2 and F16C were detected.
        unsafe {
            match dtype {
                SourceDtype::F32 => to_half::<F32>(bytes, out, lanes),
                SourceDtype::F16 => to_half::<F16>(bytes, out, lanes),
                SourceDtype::Bf16 => to_half::<BF16>(bytes, out, lanes),
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn max_u16(bytes: &[u8]) -> u16 {
    let magnitude = _mm256_set1_epi16(i16::MAX);
    let mut max = [_mm256_setzero_si256(); 2];
    let mut take = |bytes: &[u8; 64]| {
        let (pair, _) = bytes.as_chunks::<32>();
        max[0] = _mm256_max_epi16(max[0], _mm256_and_si256(load256(&pair[0]), magnitude));
        max[1] = _mm256_max_epi16(max[1], _mm256_and_si256(load256(&pair[1]), magnitude));
    };
    let (blocks, tail) = bytes.as_chunks::<64>();
    blocks.iter().for_each(&mut take);
    if !tail.is_empty() {
        take(&padded(tail));
    }
    let max = _mm256_max_epi16(max[0], max[1]);
    let max = _mm_max_epi16(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    // `minpos` finds the smallest u16: that of the complements is the complement of the largest.
    !(_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(max, _mm_set1_epi16(-1))), 0) as u16)
}

#[target_feature(enable = "avx2")]
fn max_u32(bytes: &[u8]) -> u32 {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut max = [_mm256_setzero_si256(); 2];
    let mut take = |bytes: &[u8; 64]| {
        let (pair, _) = bytes.as_chunks::<32>();
        max[0] = _mm256_max_epi32(max[0], _mm256_and_si256(load256(&pair[0]), magnitude));
        max[1] = _mm256_max_epi32(max[1], _mm256_and_si256(load256(&pair[1]), magnitude));
    };
    let (blocks, tail) = bytes.as_chunks::<64>();
    blocks.iter().for_each(&mut take);
    if !tail.is_empty() {
        take(&padded(tail));
    }
    let max = _mm256_max_epi32(max[0], max[1]);
    let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0b01_00_11_10));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0b10_11_00_01));
    _mm_cvtsi128_si32(max) as u32
}

#[target_feature(enable = "avx2,f16c")]
fn quantize<const SOURCE: u8, const HALF: bool>(bytes: &[u8], step: &Step, codes: &mut [u8], lanes: &mut Lanes) {
    let mut sums = load_lanes(lanes);
    let mut blocks = bytes.chunks_exact(BLOCK * size(SOURCE));
    let (outs, last) = codes.as_chunks_mut::<BLOCK>();
    for (block, out) in blocks.by_ref().zip(outs) {
        store256(out, quantize_block::<SOURCE, HALF>(block, step, &mut sums));
    }
    let tail = blocks.remainder();
    if !tail.is_empty() {
        let tail = padded::<BLOCK_BYTES>(tail);
        let mut out = [0; BLOCK];
        let block = &tail[..BLOCK * size(SOURCE)];
        store256(&mut out, quantize_block::<SOURCE, HALF>(block, step, &mut sums));
        last.copy_from_slice(&out[..last.len()]);
    }
    store_lanes(lanes, sums);
}

/// 32 codes in order.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn quantize_block<const SOURCE: u8, const HALF: bool>(block: &[u8], step: &Step, sums: &mut [__m256; 2]) -> __m256i {
    let scale = _mm256_set1_ps(step.scale);
    let (low, high) = (_mm256_set1_ps(-step.qmax), _mm256_set1_ps(step.qmax));
    let mut codes = [_mm256_setzero_si256(); 4];
    for (index, code) in codes.iter_mut().enumerate() {
        let source = load8::<SOURCE>(block, index);
        let weight = if HALF && SOURCE != F16 { round_half(source) } else { source };
        let quotient = _mm256_div_ps(weight, scale);
        let quotient = if HALF { round_half(quotient) } else { quotient };
        // numpy: clip(round(x)); `cvtps` rounds ties to even, and the bounds are integers
        *code = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(quotient, low), high));
        add_squares(source, _mm256_mul_ps(_mm256_cvtepi32_ps(*code), scale), sums);
    }
    let [a, b, c, d] = codes;
    let interleaved = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_permutevar8x32_epi32(interleaved, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[target_feature(enable = "avx2,f16c")]
fn to_half<const SOURCE: u8>(bytes: &[u8], out: &mut [u8], lanes: &mut Lanes) {
    let mut sums = load_lanes(lanes);
    let mut blocks = bytes.chunks_exact(8 * size(SOURCE));
    let (outs, last) = out.as_chunks_mut::<16>();
    for (block, out) in blocks.by_ref().zip(outs) {
        *out = to_half_block::<SOURCE>(block, &mut sums);
    }
    let tail = blocks.remainder();
    if !tail.is_empty() {
        let tail = padded::<32>(tail);
        let out = to_half_block::<SOURCE>(&tail[..8 * size(SOURCE)], &mut sums);
        last.copy_from_slice(&out[..last.len()]);
    }
    store_lanes(lanes, sums);
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn to_half_block<const SOURCE: u8>(block: &[u8], sums: &mut [__m256; 2]) -> [u8; 16] {
    let source = load8::<SOURCE>(block, 0);
    let half = _mm256_cvtps_ph(source, _MM_FROUND_TO_NEAREST_INT);
    add_squares(source, _mm256_cvtph_ps(half), sums);
    let mut out = [0; 16];
    store128(&mut out, half);
    out
}

const fn size(source: u8) -> usize {
    if source == F32 { 4 } else { 2 }
}

/// Values `8·index..` of a block, exactly.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load8<const SOURCE: u8>(block: &[u8], index: usize) -> __m256 {
    let bytes = &block[8 * size(SOURCE) * index..][..8 * size(SOURCE)];
    if SOURCE == F32 {
        return _mm256_castsi256_ps(load256(bytes.first_chunk().expect("8 f32 are 32 bytes")));
    }
    let bits = load128(bytes.first_chunk().expect("8 values of 2 bytes are 16 bytes"));
    if SOURCE == F16 {
        _mm256_cvtph_ps(bits)
    } else {
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
    }
}

/// numpy's `astype(float16)`, read back as f32.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn round_half(x: __m256) -> __m256 {
    _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
}

#[target_feature(enable = "avx2")]
#[inline]
fn add_squares(source: __m256, result: __m256, sums: &mut [__m256; 2]) {
    let error = _mm256_sub_ps(source, result);
    sums[0] = _mm256_add_ps(sums[0], _mm256_mul_ps(source, source));
    sums[1] = _mm256_add_ps(sums[1], _mm256_mul_ps(error, error));
}

fn padded<const N: usize>(tail: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    whole[..tail.len()].copy_from_slice(tail);
    whole
}

#[target_feature(enable = "avx2")]
#[inline]
fn load128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes; the instruction takes any alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the instruction takes any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store128(out: &mut [u8; 16], value: __m128i) {
    // SAFETY: 16 writable bytes; the instruction takes any alignment.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store256(out: &mut [u8; 32], value: __m256i) {
    // SAFETY: 32 writable bytes; the instruction takes any alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_lanes(lanes: &Lanes) -> [__m256; 2] {
    // SAFETY: eight readable f32 each; the instruction takes any alignment.
    unsafe { [_mm256_loadu_ps(lanes.signal.as_ptr()), _mm256_loadu_ps(lanes.noise.as_ptr())] }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_lanes(lanes: &mut Lanes, sums: [__m256; 2]) {
    // SAFETY: eight writable f32 each; the instruction takes any alignment.
    unsafe {
        _mm256_storeu_ps(lanes.signal.as_mut_ptr(), sums[0]);
        _mm256_storeu_ps(lanes.noise.as_mut_ptr(), sums[1]);
    }
}
