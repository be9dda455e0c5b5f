//! Bytes against `tests/golden/quant`, which coremltools itself wrote (`make_golden.py`).

use std::collections::HashMap;
use std::path::Path;

use half::f16;
use serde::Deserialize;

use super::{
    ComputeDtype, Granularity, Guard, Kernel, Quantized, Scheme, Scratch, Source, SourceDtype, WeightDtype, quantize,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    coremltools: String,
    columns: Vec<String>,
    cases: Vec<Case>,
}

/// Content, rows, columns, source dtype, weight dtype, granularity, compute dtype, offsets of source, data and scales.
#[derive(Deserialize)]
struct Case(String, usize, usize, String, String, String, String, usize, usize, usize);

struct Golden<'a> {
    content: &'a str,
    source: Source<'a>,
    scheme: Scheme,
    data: &'a [u8],
    scales: &'a [u8],
}

fn with_goldens(check: impl Fn(&[Golden])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quant");
    let file: File = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let blob = std::fs::read(folder.join("cases.bin")).unwrap();
    assert_eq!(file.coremltools, "9.0");
    assert_eq!(
        file.columns,
        ["content", "rows", "cols", "source_dtype", "dtype", "granularity", "compute", "source", "data", "scales"]
    );
    let goldens: Vec<_> = file.cases.iter().map(|case| golden(case, &blob)).collect();
    check(&goldens);
}

fn golden<'a>(case: &'a Case, blob: &'a [u8]) -> Golden<'a> {
    let Case(content, rows, cols, source_dtype, dtype, granularity, compute, source_at, data_at, scales_at) = case;
    let source_dtype = *SourceDtype::ALL.iter().find(|d| d.as_str() == source_dtype).unwrap();
    let granularity = match granularity.as_str() {
        "per_channel" => Granularity::PerChannel,
        "per_tensor" => Granularity::PerTensor,
        block => Granularity::PerBlock { block_size: block.strip_prefix("per_block_").unwrap().parse().unwrap() },
    };
    let scheme = Scheme {
        dtype: *WeightDtype::ALL.iter().find(|d| d.as_str() == dtype).unwrap(),
        granularity,
        compute: *ComputeDtype::ALL.iter().find(|d| d.as_str() == compute).unwrap(),
    };
    let values = rows * cols;
    let [scale_rows, scale_cols] = scheme.scale_shape(*rows, *cols).unwrap();
    let source = &blob[*source_at..][..values * source_dtype.size()];
    Golden {
        content,
        source: Source { dtype: source_dtype, bytes: source, rows: *rows, cols: *cols },
        scheme,
        data: &blob[*data_at..][..scheme.dtype.packed_len(values)],
        scales: &blob[*scales_at..][..scale_rows * scale_cols * scheme.compute.size()],
    }
}

fn bake(golden: &Golden, scratch: &mut Scratch) -> (Vec<i8>, Vec<u8>, Quantized) {
    let mut data = Vec::new();
    let mut sink = |bytes: &[u8]| {
        data.extend_from_slice(bytes);
        Ok(())
    };
    let quantized = quantize(&golden.source, &golden.scheme, scratch, &mut sink).unwrap();
    (unpack(golden.scheme.dtype, &data, golden.source.rows * golden.source.cols), data, quantized)
}

fn unpack(dtype: WeightDtype, data: &[u8], count: usize) -> Vec<i8> {
    let mut codes: Vec<i8> = match dtype {
        WeightDtype::Int8 => data.iter().map(|byte| *byte as i8).collect(),
        WeightDtype::Int4 => data.iter().flat_map(|byte| [(byte << 4) as i8 >> 4, *byte as i8 >> 4]).collect(),
    };
    codes.truncate(count);
    codes
}

fn scales(compute: ComputeDtype, bytes: &[u8]) -> Vec<f32> {
    match compute {
        ComputeDtype::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        ComputeDtype::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
    }
}

#[test]
fn bytes_are_those_of_coremltools_except_where_its_scale_is_zero_or_infinite() {
    with_goldens(|goldens| {
        assert!(goldens.len() > 1000);
        let mut guards: HashMap<&str, usize> = HashMap::new();
        for kernel in Kernel::available() {
            let mut scratch = Scratch::with_kernel(kernel);
            for golden in goldens {
                let Golden { content, source, scheme, .. } = golden;
                let name = format!("{content} {:?} {scheme:?} {:?} {}", source.dtype, source.rows, kernel.as_str());
                let (codes, data, quantized) = bake(golden, &mut scratch);
                let theirs = scales(scheme.compute, golden.scales);
                let wrong: Vec<_> =
                    (0..theirs.len()).filter(|&g| theirs[g] == 0.0 || theirs[g].is_infinite()).collect();
                let guarded: Vec<_> = quantized.report.guarded.iter().map(|guarded| guarded.index).collect();
                assert_eq!(guarded, wrong, "{name}");
                if wrong.is_empty() {
                    assert!(data == golden.data, "codes of {name}");
                    assert!(quantized.scales == golden.scales, "scales of {name}");
                    continue;
                }
                let expected = unpack(scheme.dtype, golden.data, codes.len());
                let ours = scales(scheme.compute, &quantized.scales);
                let group_len = codes.len() / theirs.len();
                let groups = codes.chunks(group_len).zip(expected.chunks(group_len)).enumerate();
                for (index, (codes, expected)) in groups {
                    match quantized.report.guarded.iter().find(|guarded| guarded.index == index) {
                        None => {
                            assert_eq!(codes, expected, "group {index} of {name}");
                            assert_eq!(ours[index].to_bits(), theirs[index].to_bits(), "group {index} of {name}");
                        }
                        Some(guarded) if guarded.reason == Guard::Large => {
                            assert!(theirs[index].is_infinite(), "group {index} of {name}");
                        }
                        Some(guarded) => {
                            assert_eq!(theirs[index], 0.0, "group {index} of {name}");
                            // 0 / 0 is NaN, which numpy casts to 0; anything else / 0 ends at the clip's bounds.
                            let all_zero = expected.iter().all(|code| *code == 0);
                            assert_eq!(guarded.reason == Guard::Zero, all_zero, "group {index} of {name}");
                            assert!(
                                codes.iter().all(|code| *code == 0) && ours[index] == 1.0,
                                "group {index} of {name}"
                            );
                        }
                    }
                }
                for guarded in &quantized.report.guarded {
                    *guards.entry(guarded.reason.as_str()).or_default() += 1;
                }
            }
        }
        assert!(Guard::ALL.iter().all(|guard| guards[guard.as_str()] > 10), "{guards:?}");
    });
}

#[test]
fn groups_whose_doubled_maximum_overflows_get_the_codes_of_their_halves_and_twice_their_scale() {
    with_goldens(|goldens| {
        let mut compared = 0;
        for golden in goldens.iter().filter(|golden| matches!(golden.content, "large" | "huge")) {
            let halved = goldens
                .iter()
                .find(|other| {
                    other.content == format!("{}_halved", golden.content)
                        && (other.scheme, other.source.dtype) == (golden.scheme, golden.source.dtype)
                        && (other.source.rows, other.source.cols) == (golden.source.rows, golden.source.cols)
                })
                .unwrap();
            for kernel in Kernel::available() {
                let (_, data, quantized) = bake(golden, &mut Scratch::with_kernel(kernel));
                assert!(data == halved.data, "{} {:?}", golden.content, golden.scheme);
                let ours = scales(golden.scheme.compute, &quantized.scales);
                let doubled: Vec<_> = scales(golden.scheme.compute, halved.scales).iter().map(|s| s + s).collect();
                assert_eq!(ours, doubled, "{} {:?}", golden.content, golden.scheme);
                compared += quantized.report.guarded.len();
            }
        }
        assert!(compared > 50, "{compared}");
    });
}
