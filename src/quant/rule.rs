//! The arithmetic of one value and one scale: the definition that the kernels equal, and what degenerate groups take.
//!
//! numpy computes a float16 operation in float32 and rounds its result, ties to even; `half` rounds the same way.

use half::f16;

use super::{ComputeDtype, Guard, Scheme, SourceDtype};

/// A finite scale above zero and what it takes to use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub scale: f32,
    pub qmax: f32,
    pub compute: ComputeDtype,
}

/// How a group is to be quantized.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    /// With this scale, by a kernel.
    Kernel(Step, Option<Guard>),
    /// With this scale, value by value: squares would leave f32's range.
    Scalar(Step, Option<Guard>),
    /// Codes 0, scale 1.
    Blank(Guard),
}

/// Squares of a group's values, and of their errors, stay well within f32 where its largest value lies in here.
pub(super) fn squares_fit(max: f32) -> bool {
    (f32::from_bits(0x2b80_0000)..=f32::from_bits(0x5880_0000)).contains(&max) // 2^-40, 2^50
}

/// `astype` to the compute dtype, read back as f32.
pub(super) fn round(compute: ComputeDtype, value: f32) -> f32 {
    match compute {
        ComputeDtype::F16 => f16::from_f32(value).to_f32(),
        ComputeDtype::F32 => value,
    }
}

/// From the largest absolute source value of a group to its plan; none where the compute dtype cannot hold it.
///
/// coremltools: `(max_abs - -max_abs) / (qmax - -qmax)`. Doubling both sides is exact unless `2·max` overflows, so
/// `max / qmax` rounds to the same scale there and to the right one where coremltools gets an infinity.
pub(super) fn plan(source_max: f32, scheme: &Scheme) -> Option<Plan> {
    let compute = scheme.compute;
    let max = round(compute, source_max);
    if !max.is_finite() {
        return None;
    }
    if max == 0.0 {
        return Some(Plan::Blank(Guard::Zero));
    }
    let qmax = f32::from(scheme.dtype.qmax());
    let scale = round(compute, max / qmax);
    if scale == 0.0 {
        return Some(Plan::Blank(Guard::Underflow));
    }
    let guard = round(compute, max + max).is_infinite().then_some(Guard::Large);
    let step = Step { scale, qmax, compute };
    Some(if squares_fit(source_max) { Plan::Kernel(step, guard) } else { Plan::Scalar(step, guard) })
}

impl Step {
    /// `clip(round(weight / scale), -qmax, qmax)` of numpy in the compute dtype, `weight` being `value` in that dtype.
    pub fn code(&self, value: f32) -> i8 {
        let quotient = round(self.compute, round(self.compute, value) / self.scale);
        quotient.round_ties_even().clamp(-self.qmax, self.qmax) as i8
    }
}

/// Little-endian source bytes as f32, exactly.
pub(super) fn decode(dtype: SourceDtype, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(dtype.size()).map(move |value| match (dtype, value) {
        (SourceDtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b]) => f32::from_le_bytes([0, 0, a, b]),
        (_, value) => f32::from_le_bytes(value.try_into().expect("chunks are 2 or 4 bytes")),
    })
}

/// A value in the compute dtype, little-endian, appended.
pub(super) fn push(compute: ComputeDtype, value: f32, out: &mut Vec<u8>) {
    match compute {
        ComputeDtype::F16 => out.extend(f16::from_f32(value).to_le_bytes()),
        ComputeDtype::F32 => out.extend(value.to_le_bytes()),
    }
}

/// Int4 codes as coremltools stores them, replacing `out`: low nibble first, two's complement; after an odd number of
/// codes the last high nibble is 0.
pub(super) fn pack_int4(codes: &[u8], out: &mut Vec<u8>) {
    let (pairs, last) = codes.as_chunks::<2>();
    out.resize(codes.len().div_ceil(2), 0);
    for (byte, pair) in out.iter_mut().zip(pairs) {
        let pair = u16::from_le_bytes(*pair); // both codes in one lane: the loop becomes shifts, ands and a narrowing
        *byte = ((pair & 0x0f) | (pair >> 4 & 0xf0)) as u8;
    }
    if let (&[code], Some(byte)) = (last, out.last_mut()) {
        *byte = code & 0x0f;
    }
}
