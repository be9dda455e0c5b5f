//! The hot paths: `cargo bench --bench kernels`. Throughput is in items (weights) or bytes.

use std::fmt;

use anebake::cache::{Digest, action_key, canonical_json};
use anebake::quant::{
    ComputeDtype, Granularity, Kernel, Scheme, Scratch, Source, SourceDtype, WeightDtype, convert, quantize,
};
use divan::{
    Bencher, black_box,
    counter::{BytesCount, ItemsCount},
};
use serde_json::{Value, json};

const ROWS: usize = 1024;
const COLS: usize = 3072;

fn main() {
    divan::main();
}

/// bfloat16 bits of roughly normal values, standard deviation 0.03.
fn weights() -> Vec<u8> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..ROWS * COLS)
        .flat_map(|_| {
            let value = 0.03 * (0..12).map(|_| uniform()).sum::<f32>();
            ((value.to_bits() >> 16) as u16).to_le_bytes()
        })
        .collect()
}

struct Case {
    name: String,
    kernel: Kernel,
    scheme: Scheme,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn quantize_cases() -> Vec<Case> {
    let granularities = [Granularity::PerChannel, Granularity::PerBlock { block_size: 32 }, Granularity::PerTensor];
    let mut cases = Vec::new();
    for kernel in Kernel::available() {
        for compute in ComputeDtype::ALL {
            for granularity in granularities {
                for dtype in WeightDtype::ALL {
                    let name = [kernel.as_str(), compute.as_str(), granularity.as_str(), dtype.as_str()].join(" ");
                    cases.push(Case { name, kernel, scheme: Scheme { dtype, granularity, compute } });
                }
            }
        }
    }
    cases
}

#[divan::bench(args = quantize_cases())]
fn quantize_bf16(bencher: Bencher, case: &Case) {
    let bytes = weights();
    let source = Source { dtype: SourceDtype::Bf16, bytes: &bytes, rows: ROWS, cols: COLS };
    let mut scratch = Scratch::with_kernel(case.kernel);
    bencher
        .counter(ItemsCount::new(ROWS * COLS))
        .bench_local(|| quantize(black_box(&source), &case.scheme, &mut scratch, &mut swallow));
}

#[divan::bench(args = Kernel::available().into_iter().map(Kernel::as_str))]
fn convert_bf16_to_f16(bencher: Bencher, kernel: &str) {
    let bytes = weights();
    let source = Source { dtype: SourceDtype::Bf16, bytes: &bytes, rows: ROWS, cols: COLS };
    let kernel = Kernel::available().into_iter().find(|available| available.as_str() == kernel);
    let mut scratch = Scratch::with_kernel(kernel.expect("the name is of an available kernel"));
    bencher
        .counter(ItemsCount::new(ROWS * COLS))
        .bench_local(|| convert(black_box(&source), ComputeDtype::F16, &mut scratch, &mut swallow));
}

/// One stream, of a small JSON document, a gain and a projection.
#[divan::bench(args = [4 << 10, 64 << 10, 6 << 20])]
fn sha256(bencher: Bencher, length: usize) {
    let bytes = vec![0x5a; length];
    bencher.counter(BytesCount::new(length)).bench_local(|| Digest::of(black_box(&bytes)));
}

/// Of the size and shape of a block's action document.
fn document() -> Value {
    let tensors: Vec<Value> = (0..11)
        .map(|index| {
            let digest = Digest::of(&[index]).to_string();
            json!({ "name": format!("tensor.{index}.weight"), "shape": [1024, 3072], "stored_as": "BF16", "blake3": digest })
        })
        .collect();
    let scheme = json!({ "dtype": "int8", "granularity": "per_channel", "block_size": null });
    let weights: serde_json::Map<_, _> = (0..7).map(|index| (format!("projection.{index}"), scheme.clone())).collect();
    json!({
        "key_version": 1,
        "stage": "block",
        "graph": { "hidden": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "functions": { "decode": 1 }, "weights": weights },
        "tools": { "coremltools": "9.0", "numpy": "2.3.5", "protobuf": "7.36.2", "python": "3.11.7" },
        "tensors": tensors,
    })
}

#[divan::bench]
fn canonical_json_of_a_block(bencher: Bencher) {
    let document = document();
    bencher.bench_local(|| canonical_json(black_box(&document)));
}

#[divan::bench]
fn key_of_a_block(bencher: Bencher) {
    let document = document();
    bencher.bench_local(|| action_key(black_box(&document)));
}

fn swallow(bytes: &[u8]) -> anyhow::Result<()> {
    black_box(bytes);
    Ok(())
}
