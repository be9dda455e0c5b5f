//! Kernels against the definition, the definition against coremltools' formula, and what the interface promises.

use anyhow::{Result, anyhow};
use half::{bf16, f16};
use proptest::prelude::*;

use super::rule::{self, Plan};
use super::{
    ComputeDtype, Converted, Granularity, Guard, GuardedGroup, Kernel, QuantError, Quantized, Scheme, Scratch, Source,
    SourceDtype, WeightDtype, convert, quantize,
};

const INT8: Scheme =
    Scheme { dtype: WeightDtype::Int8, granularity: Granularity::PerChannel, compute: ComputeDtype::F16 };

fn schemes(granularities: &[Granularity]) -> Vec<Scheme> {
    let mut schemes = Vec::new();
    for &granularity in granularities {
        for dtype in WeightDtype::ALL {
            schemes.extend(ComputeDtype::ALL.map(|compute| Scheme { dtype, granularity, compute }));
        }
    }
    schemes
}

fn run(source: &Source, scheme: &Scheme, kernel: Kernel) -> Result<(Vec<u8>, Quantized)> {
    let mut data = Vec::new();
    let quantized = quantize(source, scheme, &mut Scratch::with_kernel(kernel), &mut |bytes| {
        data.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok((data, quantized))
}

fn run_convert(source: &Source, compute: ComputeDtype, kernel: Kernel) -> Result<(Vec<u8>, Converted)> {
    let mut data = Vec::new();
    let converted = convert(source, compute, &mut Scratch::with_kernel(kernel), &mut |bytes| {
        data.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok((data, converted))
}

fn f32_source(values: &[f32], rows: usize) -> Vec<u8> {
    assert!(values.len().is_multiple_of(rows));
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A 64-bit linear congruential generator's upper half.
fn noise(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 32) as u32
}

/// What the definition gives: codes, scales, guards, and the squares summed in f64.
fn define(source: &Source, scheme: &Scheme) -> (Vec<u8>, Vec<u8>, Vec<GuardedGroup>, f64) {
    let values: Vec<f32> = rule::decode(source.dtype, source.bytes).collect();
    let groups: usize = scheme.scale_shape(source.rows, source.cols).unwrap().iter().product();
    let (mut codes, mut scales, mut guarded, mut signal, mut error) = (Vec::new(), Vec::new(), Vec::new(), 0.0, 0.0);
    for (index, group) in values.chunks(values.len() / groups).enumerate() {
        let max = group.iter().fold(0f32, |max, value| max.max(value.abs()));
        let plan = rule::plan(max, scheme).unwrap();
        let (scale, guard) = match plan {
            Plan::Kernel(step, guard) | Plan::Scalar(step, guard) => (step.scale, guard),
            Plan::Blank(guard) => (1.0, Some(guard)),
        };
        rule::push(scheme.compute, scale, &mut scales);
        guarded.extend(guard.map(|reason| GuardedGroup { index, reason }));
        for &value in group {
            let code = match plan {
                Plan::Kernel(step, _) | Plan::Scalar(step, _) => step.code(value),
                Plan::Blank(_) => 0,
            };
            codes.push(code);
            signal += f64::from(value).powi(2);
            error += (f64::from(value) - f64::from(code) * f64::from(scale)).powi(2);
        }
    }
    let data = match scheme.dtype {
        WeightDtype::Int8 => codes.iter().map(|code| *code as u8).collect(),
        WeightDtype::Int4 => codes
            .chunks(2)
            .map(|pair| (pair[0] as u8 & 15) | (pair.get(1).map_or(0, |code| *code as u8) << 4))
            .collect(),
    };
    (data, scales, guarded, 10.0 * (signal / error).log10())
}

fn assert_kernels_equal_the_definition(source: &Source, scheme: &Scheme) {
    let name = format!("{:?} [{}, {}] {scheme:?}", source.dtype, source.rows, source.cols);
    let (data, scales, guarded, sqnr_db) = define(source, scheme);
    let mut reported = None;
    for kernel in Kernel::available() {
        let (ours, quantized) = run(source, scheme, kernel).unwrap();
        assert!(ours == data, "codes of {name} by {}", kernel.as_str());
        assert!(quantized.scales == scales, "scales of {name} by {}", kernel.as_str());
        assert_eq!(quantized.report.guarded, guarded, "{name} by {}", kernel.as_str());
        let db = quantized.report.sqnr_db;
        let beyond_f32 = db > 120.0 && sqnr_db > 120.0;
        assert!(beyond_f32 || (db - sqnr_db).abs() < 1e-4, "{name}: {db} dB, by definition {sqnr_db}");
        assert_eq!(reported.get_or_insert(db.to_bits()), &db.to_bits(), "{name}: kernels differ in SQNR");
    }
}

#[test]
fn every_finite_f16_is_quantized_and_packed_by_definition() {
    // 63,488 values of both signs = 2^11 * 31, in bit order and shuffled, at widths that leave every kind of tail.
    let finite: Vec<u16> = (0..=u16::MAX).filter(|bits| f16::from_bits(*bits).is_finite()).collect();
    let mut state = 3;
    let mut shuffled = finite.clone();
    for last in (1..shuffled.len()).rev() {
        shuffled.swap(last, noise(&mut state) as usize % (last + 1));
    }
    for values in [finite, shuffled] {
        let bytes: Vec<u8> = values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        for cols in [1, 31, 62, 64, 62 * 16, 63_488] {
            let source = Source { dtype: SourceDtype::F16, bytes: &bytes, rows: values.len() / cols, cols };
            for scheme in schemes(&[Granularity::PerChannel, Granularity::PerTensor]) {
                assert_kernels_equal_the_definition(&source, &scheme);
            }
        }
    }
}

#[test]
fn random_bit_patterns_are_quantized_and_packed_by_definition() {
    let mut state = 1;
    let granularities = [Granularity::PerChannel, Granularity::PerTensor, Granularity::PerBlock { block_size: 5 }];
    // Any exponent, and exponents within 2^16 of each other, where codes of every size occur.
    for (compute, keep, set) in ComputeDtype::ALL.iter().flat_map(|c| [(*c, !0, 0), (*c, 0x87ff_ffff, 0x3800_0000)]) {
        let mut draw = |mask: u32| loop {
            let bits = (noise(&mut state) & keep | set) & mask;
            if rule::round(compute, f32::from_bits(bits)).is_finite() {
                return bits;
            }
        };
        for (rows, cols) in [(3, 5), (7, 35), (2, 1055), (9, 2080)] {
            let wide: Vec<u8> = (0..rows * cols).flat_map(|_| draw(!0).to_le_bytes()).collect();
            let brain: Vec<u8> =
                (0..rows * cols).flat_map(|_| ((draw(0xffff_0000) >> 16) as u16).to_le_bytes()).collect();
            for (dtype, bytes) in [(SourceDtype::F32, &wide), (SourceDtype::Bf16, &brain)] {
                for scheme in schemes(&granularities).into_iter().filter(|scheme| scheme.compute == compute) {
                    assert_kernels_equal_the_definition(&Source { dtype, bytes, rows, cols }, &scheme);
                }
            }
        }
    }
}

#[test]
fn codes_stream_through_many_chunks_without_a_seam() {
    // Odd rows and more than two chunks: an int4 byte spans row ends and chunk ends.
    let (rows, cols) = (3, 50_001);
    let mut state = 2;
    let values: Vec<f32> = (0..rows * cols).map(|_| noise(&mut state) as f32 / 4e9 - 0.5).collect();
    let bytes = f32_source(&values, rows);
    let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows, cols };
    for scheme in schemes(&[Granularity::PerChannel, Granularity::PerTensor]) {
        assert_kernels_equal_the_definition(&source, &scheme);
    }
}

#[test]
fn source_may_lie_at_any_address() {
    let values: Vec<f32> = (0..90).map(|i| (i as f32).sin()).collect();
    let aligned = f32_source(&values, 2);
    for kernel in Kernel::available() {
        let source = Source { dtype: SourceDtype::F32, bytes: &aligned, rows: 2, cols: 45 };
        let expected = run(&source, &INT8, kernel).unwrap();
        for offset in 1..4 {
            let mut shifted = vec![0xff; offset];
            shifted.extend_from_slice(&aligned);
            assert_eq!(run(&Source { bytes: &shifted[offset..], ..source }, &INT8, kernel).unwrap(), expected);
        }
    }
}

#[test]
fn scale_is_coremltools_doubled_quotient_for_every_f16_maximum() {
    for dtype in WeightDtype::ALL {
        let scheme = Scheme { dtype, ..INT8 };
        let qmax = f32::from(dtype.qmax());
        for max in (1..0x7c00).map(f16::from_bits) {
            // (val_max - val_min) / (q_val_max - q_val_min), each operation rounded to float16
            let doubled = f16::from_f32(f16::from_f32(max.to_f32() + max.to_f32()).to_f32() / (2.0 * qmax)).to_f32();
            match rule::plan(max.to_f32(), &scheme).unwrap() {
                Plan::Kernel(step, None) => assert_eq!(step.scale, doubled, "{max}"),
                Plan::Kernel(step, Some(Guard::Large)) => {
                    assert!(doubled.is_infinite() && step.scale.is_finite(), "{max}");
                    assert!(max.to_f32() >= 32768.0, "{max}");
                }
                Plan::Blank(Guard::Underflow) => {
                    assert_eq!(doubled, 0.0, "{max}");
                    assert!(max.to_f32() <= qmax * 2f32.powi(-25), "{max}");
                }
                other => panic!("{max}: {other:?}"),
            }
        }
    }
}

#[test]
fn every_f16_maximum_with_a_normal_scale_is_the_largest_code() {
    for dtype in WeightDtype::ALL {
        for max in (1..0x7c00).map(f16::from_bits) {
            if let Some(Plan::Kernel(step, _)) = rule::plan(max.to_f32(), &Scheme { dtype, ..INT8 })
                && step.scale >= f16::MIN_POSITIVE.to_f32()
            {
                assert_eq!((step.code(max.to_f32()), step.code(-max.to_f32())), (dtype.qmax(), -dtype.qmax()), "{max}");
            }
        }
    }
}

#[test]
fn groups_without_a_usable_scale_are_blank_and_listed() {
    let rows = [[0.0, -0.0], [1e-30, 0.0], [3e-6, -1e-6], [1.0, 0.5], [-40000.0, 20000.0]];
    let bytes = f32_source(rows.as_flattened(), 5);
    let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows: 5, cols: 2 };
    for kernel in Kernel::available() {
        let (data, quantized) = run(&source, &INT8, kernel).unwrap();
        assert_eq!(data[..8], [0, 0, 0, 0, 0, 0, 127, 64]); // 63.5 in float16 is even-tied to 64
        assert_eq!(data[8..], [-127i8 as u8, 64]); // 20000 / f16(314.96) = 20000 / 315 is 63.5 in float16
        let listed: Vec<_> = quantized.report.guarded.iter().map(|guarded| (guarded.index, guarded.reason)).collect();
        assert_eq!(listed, [(0, Guard::Zero), (1, Guard::Zero), (2, Guard::Underflow), (4, Guard::Large)]);
        assert_eq!(quantized.scales[..6], [0, 0x3c, 0, 0x3c, 0, 0x3c]);
    }
}

#[test]
fn sqnr_is_infinite_only_where_nothing_was_lost() {
    let exact: Vec<f32> = (-127..=127).map(|code| code as f32 * 0.25).collect();
    let zeros = vec![0.0; 255];
    let tiny = vec![1e-42; 255];
    for kernel in Kernel::available() {
        let db = |values: &[f32]| {
            let bytes = f32_source(values, 1);
            let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows: 1, cols: values.len() };
            (
                run(&source, &INT8, kernel).unwrap().1.report.sqnr_db,
                run_convert(&source, ComputeDtype::F16, kernel).unwrap().1.sqnr_db,
            )
        };
        assert_eq!(db(&exact), (f64::INFINITY, f64::INFINITY));
        assert_eq!(db(&zeros), (f64::INFINITY, f64::INFINITY));
        assert_eq!(db(&tiny), (0.0, 0.0));
    }
}

#[test]
fn non_finite_values_are_counted_over_the_whole_tensor() {
    let values = [1.0, f32::NAN, 2.0, 3.0, f32::INFINITY, f32::NEG_INFINITY, 70000.0, f32::NAN];
    let bytes = f32_source(&values, 2);
    let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows: 2, cols: 4 };
    let expected = QuantError::NonFinite { nan: 2, infinite: 2 };
    for kernel in Kernel::available() {
        for compute in ComputeDtype::ALL {
            let error = run(&source, &Scheme { compute, ..INT8 }, kernel).unwrap_err();
            assert_eq!(error.downcast_ref(), Some(&expected));
            let error = run_convert(&source, compute, kernel).unwrap_err();
            assert_eq!(error.downcast_ref(), Some(&expected));
        }
    }
    assert_eq!(expected.to_string(), "2 values are NaN and 2 infinite");
}

#[test]
fn values_that_round_beyond_float16_are_refused_in_float16_only() {
    let values = [1.0, 65519.0, 65520.0, 2.0, -70000.0, 65504.0];
    let bytes = f32_source(&values, 3);
    let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows: 3, cols: 2 };
    for kernel in Kernel::available() {
        let error = run(&source, &INT8, kernel).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&QuantError::Overflows16 { count: 2, largest: 70000.0 }));
        assert_eq!(error.to_string(), "2 values overflow `float16`, the largest is 70000, the limit 65504");
        run_convert(&source, ComputeDtype::F16, kernel).unwrap_err();
        run(&source, &Scheme { compute: ComputeDtype::F32, ..INT8 }, kernel).unwrap();
        let fits = Source { bytes: &bytes[..8], rows: 1, cols: 2, ..source };
        run(&fits, &INT8, kernel).unwrap();
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let bytes = [0; 24];
    let source = Source { dtype: SourceDtype::Bf16, bytes: &bytes, rows: 2, cols: 6 };
    let refuse = |source: Source, granularity| {
        let error = run(&source, &Scheme { granularity, ..INT8 }, Kernel::available()[0]).unwrap_err();
        error.downcast::<QuantError>().unwrap().to_string()
    };
    let block = |block_size| Granularity::PerBlock { block_size };
    assert_eq!(refuse(source, block(4)), "dim 1 is 6, not a multiple of block size 4");
    assert_eq!(refuse(source, block(0)), "dim 1 is 6, not a multiple of block size 0");
    assert_eq!(refuse(Source { rows: 3, ..source }, block(6)), "[3, 6] of `bfloat16` does not take 24 bytes");
    let huge = usize::MAX;
    assert!(refuse(Source { rows: huge, ..source }, block(6)).ends_with("does not take 24 bytes"));
    assert_eq!(refuse(Source { bytes: &[], cols: 0, ..source }, Granularity::PerTensor), "[2, 0] holds no values");
}

#[test]
fn the_sinks_error_comes_back() {
    let source = Source { dtype: SourceDtype::F16, bytes: &[0, 0x3c], rows: 1, cols: 1 };
    let mut full = |_: &[u8]| Err(anyhow!("disk full"));
    let mut scratch = Scratch::new();
    assert_eq!(quantize(&source, &INT8, &mut scratch, &mut full).unwrap_err().to_string(), "disk full");
    for compute in ComputeDtype::ALL {
        assert_eq!(convert(&source, compute, &mut scratch, &mut full).unwrap_err().to_string(), "disk full");
    }
}

#[test]
fn conversion_rounds_to_nearest_even_and_keeps_what_fits() {
    // Between 1 and its float16 neighbours 1 + 2^-10 and 1 + 2^-9; the least subnormal and its half.
    let cases = [
        (1.0 + 2f32.powi(-11), 0x3c00),
        (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
        (1.0 + 2f32.powi(-11) + 2f32.powi(-23), 0x3c01),
        (-2f32.powi(-24), 0x8001),
        (2f32.powi(-25), 0x0000),
        (3.0 * 2f32.powi(-25), 0x0002),
        (65519.0, 0x7bff),
        (-0.0, 0x8000),
        (1.0 / 3.0, 0x3555),
    ];
    let values: Vec<f32> = cases.iter().map(|case| case.0).collect();
    let expected: Vec<u8> = cases.iter().flat_map(|case| u16::to_le_bytes(case.1)).collect();
    let bytes = f32_source(&values, 1);
    let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows: 1, cols: values.len() };
    for kernel in Kernel::available() {
        assert_eq!(run_convert(&source, ComputeDtype::F16, kernel).unwrap().0, expected);
        assert_eq!(run_convert(&source, ComputeDtype::F32, kernel).unwrap().0, bytes);
    }
}

#[test]
fn conversion_of_every_finite_value_of_16_bits_is_that_of_its_f32() {
    for kernel in Kernel::available() {
        for compute in ComputeDtype::ALL {
            for dtype in [SourceDtype::F16, SourceDtype::Bf16] {
                let widen = |bits: u16| match dtype {
                    SourceDtype::F16 => f16::from_bits(bits).to_f32(),
                    _ => bf16::from_bits(bits).to_f32(),
                };
                let fits = |bits: &u16| match compute {
                    ComputeDtype::F16 => widen(*bits).abs() < 65520.0,
                    ComputeDtype::F32 => widen(*bits).is_finite(),
                };
                let bits: Vec<u16> = (0..=u16::MAX).filter(fits).collect();
                let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
                let expected: Vec<u8> = match compute {
                    ComputeDtype::F16 => {
                        bits.iter().flat_map(|bits| f16::from_f32(widen(*bits)).to_le_bytes()).collect()
                    }
                    ComputeDtype::F32 => bits.iter().flat_map(|bits| widen(*bits).to_le_bytes()).collect(),
                };
                let source = Source { dtype, bytes: &bytes, rows: 1, cols: bits.len() };
                let (data, converted) = run_convert(&source, compute, kernel).unwrap();
                assert!(data == expected, "{dtype:?} to {compute:?}");
                let lossless = (dtype, compute) != (SourceDtype::Bf16, ComputeDtype::F16);
                assert_eq!(converted.sqnr_db.is_infinite(), lossless, "{dtype:?} to {compute:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn dequantized_weights_lie_within_half_a_step(
        values in prop::collection::vec(-1f32..1.0, 96),
        exponent in -10i32..14,
        int4: bool,
        float16: bool,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(exponent)).collect();
        let bytes = f32_source(&values, 2);
        let source = Source { dtype: SourceDtype::F32, bytes: &bytes, rows: 2, cols: 48 };
        let dtype = if int4 { WeightDtype::Int4 } else { WeightDtype::Int8 };
        let compute = if float16 { ComputeDtype::F16 } else { ComputeDtype::F32 };
        for kernel in Kernel::available() {
            let (data, quantized) = run(&source, &Scheme { dtype, compute, ..INT8 }, kernel).unwrap();
            for (index, value) in values.iter().enumerate() {
                let (code, scale) = match dtype {
                    WeightDtype::Int8 => (data[index] as i8, index / 48),
                    WeightDtype::Int4 => ((data[index / 2] << (4 - index % 2 * 4)) as i8 >> 4, index / 48),
                };
                let scale = match compute {
                    ComputeDtype::F16 => {
                        f16::from_le_bytes(quantized.scales[2 * scale..][..2].try_into().unwrap()).to_f64()
                    }
                    ComputeDtype::F32 => {
                        f32::from_le_bytes(quantized.scales[4 * scale..][..4].try_into().unwrap()).into()
                    }
                };
                // Beyond the half step in float16: the quotient's rounding (below 128 at most 2^-5), the weight's own
                // (2^-11 of at most qmax steps), and at the clip a scale that is short by 2^-25 while subnormal.
                let qmax = f64::from(dtype.qmax());
                let bound = match compute {
                    ComputeDtype::F16 => scale * (0.5 + 2f64.powi(-5) + qmax * 2f64.powi(-11)) + qmax * 2f64.powi(-25),
                    ComputeDtype::F32 => scale * (0.5 + 2f64.powi(-16)),
                };
                let error = (f64::from(*value) - f64::from(code) * scale).abs();
                prop_assert!(error <= bound, "{value} became {code} * {scale}, off by {error} > {bound}");
            }
        }
    }
}
