//! A tensor through a kernel: group after group, in chunks to a sink, with the sums of squares for the report.

use anyhow::Result;

use super::portable::{self, Buffers};
use super::rule::{self, Plan, Step};
#[cfg(target_arch = "x86_64")]
use super::x86::Avx2;
use super::{ComputeDtype, Converted, GuardedGroup, Quantized, Report, Scheme, Source, SourceDtype, WeightDtype};

/// Values that a kernel takes at once, at most.
pub(super) const PIECE: usize = 1024;
/// f32 sums side by side.
pub(super) const LANES: usize = 8;
/// Values after which the lanes are emptied into f64.
const LANES_HOLD: usize = 4096;
/// Codes gathered before they are packed and handed to the sink; source bytes that `convert` takes at once.
const CHUNK: usize = 64 * 1024;

/// Value `i` of a piece goes to lane `i % 8`; product and sum round apart, so every kernel gets the same bits.
#[derive(Clone, Copy, Default)]
pub(super) struct Lanes {
    pub signal: [f32; LANES],
    pub noise: [f32; LANES],
}

/// Which implementation computes; the results are the same in every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Implementation);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Kernel {
    /// Those that this machine can run, the fastest first.
    pub fn available() -> Vec<Self> {
        let portable = [Self(Implementation::Portable)].into_iter();
        #[cfg(target_arch = "x86_64")]
        return Avx2::detect().map(|avx2| Self(Implementation::Avx2(avx2))).into_iter().chain(portable).collect();
        #[cfg(not(target_arch = "x86_64"))]
        portable.collect()
    }

    /// `portable` or `avx2`.
    pub fn as_str(self) -> &'static str {
        match self.0 {
            Implementation::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2(_) => "avx2",
        }
    }

    fn max_abs(self, dtype: SourceDtype, bytes: &[u8]) -> f32 {
        match self.0 {
            Implementation::Portable => portable::max_abs(dtype, bytes),
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2(avx2) => avx2.max_abs(dtype, bytes),
        }
    }

    fn quantize(
        self,
        dtype: SourceDtype,
        bytes: &[u8],
        step: &Step,
        codes: &mut [u8],
        lanes: &mut Lanes,
        buffers: &mut Buffers,
    ) {
        match self.0 {
            Implementation::Portable => portable::quantize(dtype, bytes, step, codes, lanes, buffers),
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2(avx2) => avx2.quantize(dtype, bytes, step, codes, lanes),
        }
    }

    fn to_half(self, dtype: SourceDtype, bytes: &[u8], out: &mut [u8], lanes: &mut Lanes, buffers: &mut Buffers) {
        match self.0 {
            Implementation::Portable => portable::to_half(dtype, bytes, out, lanes, buffers),
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2(avx2) => avx2.to_half(dtype, bytes, out, lanes),
        }
    }
}

/// Reusable buffers, some 150 KB; one per thread.
pub struct Scratch {
    kernel: Kernel,
    buffers: Buffers,
    codes: Vec<u8>,
    packed: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Buffers for the fastest kernel of this machine.
    pub fn new() -> Self {
        Self::with_kernel(Kernel::available()[0])
    }

    /// Buffers for one kernel.
    pub fn with_kernel(kernel: Kernel) -> Self {
        Self { kernel, buffers: Buffers::default(), codes: vec![0; CHUNK], packed: Vec::with_capacity(CHUNK) }
    }
}

/// Quantizes a matrix. The codes go to `sink` in chunks of at most 64 KiB, [`WeightDtype::packed_len`] bytes in all:
/// row-major `[rows, cols]`, int4 two to a byte, low nibble first, across row ends. Scales and report are returned.
///
/// The arithmetic is that of `coremltools.optimize._utils.compute_qparams_by_dtype` (9.0, `LINEAR_SYMMETRIC`, signed)
/// on the weight cast to the compute dtype, except where a [`super::Guard`] says otherwise.
///
/// # Errors
/// A [`QuantError`] for what is refused, or whatever `sink` returns. The sink may have been given some chunks by then.
pub fn quantize(
    source: &Source,
    scheme: &Scheme,
    scratch: &mut Scratch,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Quantized> {
    source.check()?;
    let [scale_rows, scale_cols] = scheme.scale_shape(source.rows, source.cols)?;
    let groups = scale_rows * scale_cols;
    let size = source.dtype.size();
    let Scratch { kernel, buffers, codes, packed } = scratch;
    let mut chunks = Chunks { codes, packed, filled: 0, dtype: scheme.dtype, sink };
    let mut sums = Sums::default();
    let mut scales = Vec::with_capacity(groups * scheme.compute.size());
    let mut guarded = Vec::new();

    for (index, group) in source.bytes.chunks_exact(source.bytes.len() / groups).enumerate() {
        let max = kernel.max_abs(source.dtype, group);
        let plan = rule::plan(max, scheme).ok_or_else(|| source.refusal(scheme.compute))?;
        let (scale, guard) = match plan {
            Plan::Kernel(step, guard) | Plan::Scalar(step, guard) => (step.scale, guard),
            Plan::Blank(guard) => (1.0, Some(guard)),
        };
        rule::push(scheme.compute, scale, &mut scales);
        guarded.extend(guard.map(|reason| GuardedGroup { index, reason }));
        for piece in group.chunks(PIECE * size) {
            let codes = chunks.room(piece.len() / size)?;
            match plan {
                Plan::Kernel(step, _) => {
                    kernel.quantize(source.dtype, piece, &step, codes, sums.lanes(codes.len()), buffers);
                }
                Plan::Scalar(step, _) => {
                    for (value, code) in rule::decode(source.dtype, piece).zip(codes) {
                        let rounded = step.code(value);
                        *code = rounded as u8;
                        sums.add(value, f64::from(rounded) * f64::from(step.scale));
                    }
                }
                Plan::Blank(_) => {
                    codes.fill(0);
                    rule::decode(source.dtype, piece).for_each(|value| sums.add(value, 0.0));
                }
            }
        }
    }
    chunks.finish()?;
    Ok(Quantized { scales, report: Report { sqnr_db: sums.sqnr_db(), guarded } })
}

/// Converts values to the compute dtype, rounding to nearest, ties to even, as numpy's `astype` does. They go to
/// `sink` in chunks, little-endian, row-major.
///
/// # Errors
/// A [`QuantError`] for what is refused, or whatever `sink` returns. The sink may have been given some chunks by then.
pub fn convert(
    source: &Source,
    compute: ComputeDtype,
    scratch: &mut Scratch,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Converted> {
    source.check()?;
    let Scratch { kernel, buffers, packed, .. } = scratch;
    let mut sums = Sums::default();
    for chunk in source.bytes.chunks(CHUNK) {
        let max = kernel.max_abs(source.dtype, chunk);
        if !rule::round(compute, max).is_finite() {
            return Err(source.refusal(compute).into());
        }
        packed.clear();
        match (source.dtype, compute) {
            (SourceDtype::F16, ComputeDtype::F16) | (SourceDtype::F32, ComputeDtype::F32) => {
                sink(chunk)?;
                continue;
            }
            (SourceDtype::F16 | SourceDtype::Bf16, ComputeDtype::F32) => {
                packed.resize(chunk.len() * 2, 0);
                for (piece, out) in chunk.chunks(PIECE * 2).zip(packed.chunks_mut(PIECE * 4)) {
                    portable::to_single(source.dtype, piece, out, buffers);
                }
            }
            (SourceDtype::F32 | SourceDtype::Bf16, ComputeDtype::F16) if rule::squares_fit(max) => {
                let size = source.dtype.size();
                packed.resize(chunk.len() / size * 2, 0);
                for (piece, out) in chunk.chunks(PIECE * size).zip(packed.chunks_mut(PIECE * 2)) {
                    kernel.to_half(source.dtype, piece, out, sums.lanes(out.len() / 2), buffers);
                }
            }
            (SourceDtype::F32 | SourceDtype::Bf16, ComputeDtype::F16) => {
                for value in rule::decode(source.dtype, chunk) {
                    rule::push(compute, value, packed);
                    sums.add(value, rule::round(compute, value).into());
                }
            }
        }
        sink(packed)?;
    }
    Ok(Converted { sqnr_db: sums.sqnr_db() })
}

/// Codes on their way to the sink.
struct Chunks<'a> {
    codes: &'a mut [u8],
    packed: &'a mut Vec<u8>,
    filled: usize,
    dtype: WeightDtype,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl Chunks<'_> {
    /// Space for the next `count` codes, at most [`PIECE`].
    fn room(&mut self, count: usize) -> Result<&mut [u8]> {
        if self.filled + count > self.codes.len() {
            // Whole bytes only: with int4 an odd last code waits for its neighbour.
            let even = self.filled & !1;
            self.send(even)?;
            self.codes.copy_within(even..self.filled, 0);
            self.filled -= even;
        }
        let room = self.filled..self.filled + count;
        self.filled = room.end;
        Ok(&mut self.codes[room])
    }

    fn send(&mut self, count: usize) -> Result<()> {
        let codes = &self.codes[..count];
        match self.dtype {
            WeightDtype::Int8 => (self.sink)(codes),
            WeightDtype::Int4 => {
                rule::pack_int4(codes, self.packed);
                (self.sink)(self.packed)
            }
        }
    }

    fn finish(mut self) -> Result<()> {
        self.send(self.filled)
    }
}

/// `Σ w²` and `Σ (w - result)²`.
#[derive(Default)]
struct Sums {
    lanes: Lanes,
    held: usize,
    signal: f64,
    noise: f64,
}

impl Sums {
    /// The lanes, for `count` values.
    fn lanes(&mut self, count: usize) -> &mut Lanes {
        if self.held + count > LANES_HOLD {
            self.drain();
        }
        self.held += count;
        &mut self.lanes
    }

    fn add(&mut self, value: f32, result: f64) {
        let value = f64::from(value);
        self.signal += value * value;
        self.noise += (value - result) * (value - result);
    }

    fn drain(&mut self) {
        self.signal += self.lanes.signal.iter().copied().map(f64::from).sum::<f64>();
        self.noise += self.lanes.noise.iter().copied().map(f64::from).sum::<f64>();
        self.lanes = Lanes::default();
        self.held = 0;
    }

    fn sqnr_db(mut self) -> f64 {
        self.drain();
        if self.noise == 0.0 { f64::INFINITY } else { 10.0 * (self.signal / self.noise).log10() }
    }
}
