//! What `verify` must not let pass: faults planted into a native package after the bake.

use std::fs;
use std::path::PathBuf;

use anebake::bake::part::{Graph, Part, PlannedPart};
use anebake::bake::pipeline::BakedPart;
use anebake::bake::verify::{Verdict, verify};
use anebake::cache::Digest;
use anebake::coremltools::{Environment, Python};
use anebake::mlpackage::{Package, WEIGHTS};

use crate::support::{Bench, TinyModel};

/// Both engines' packages of block 0, and the verdict on them as they lie there.
struct Pair {
    bench: Bench,
}

impl Pair {
    fn new(model: &TinyModel) -> Self {
        let bench = Bench::new(model);
        bench.convert(&["--only", "0", "--out", "native"]);
        bench.convert(&["--only", "0", "--out", "witness", "--engine", "coremltools"]);
        Self { bench }
    }

    fn native(&self) -> PathBuf {
        self.bench.path("native/block-00.mlpackage")
    }

    fn verdict(&self) -> Verdict {
        let python = Python::start(&Environment::find(None).unwrap()).unwrap();
        let planned = PlannedPart {
            part: Part::Block(0),
            request: std::sync::Arc::new(Graph::from(serde_json::json!({}))),
            tensors: vec![],
        };
        let baked = BakedPart { package: Digest::of(b""), files: vec![], tensors: vec![] };
        verify(python, &planned, &baked, &self.native(), &self.bench.path("witness/block-00.mlpackage")).unwrap()
    }

    /// Changes one byte of the native package's `weight.bin` and puts it back after looking.
    fn with_byte(&self, offset: usize, change: impl Fn(u8) -> u8) -> Verdict {
        let path = self.native().join(WEIGHTS);
        let before = fs::read(&path).unwrap();
        let mut bytes = before.clone();
        bytes[offset] = change(bytes[offset]);
        // The output may be a link to the cache's file.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let verdict = self.verdict();
        fs::write(&path, before).unwrap();
        verdict
    }

    /// Offset of the first data byte of a value.
    fn offset(&self, output: &str, part: &str) -> usize {
        let package = Package::open(&self.native()).unwrap();
        let blobs = package.blobs().unwrap();
        let found = blobs.iter().find(|used| used.output == output && used.slot == part).unwrap();
        usize::try_from(found.entry.data_offset()).unwrap()
    }
}

#[test]
fn verify_fails_on_any_changed_byte() {
    let pair = Pair::new(&TinyModel::new("llama", 1));
    assert!(pair.verdict().passed() && pair.verdict().same_weight_file);

    for (output, part, bytes) in [
        ("down_proj_weight_quantized", "data", 6144),
        ("q_proj_weight_quantized", "scale", 128),
        ("input_layernorm_weight", "val", 128),
        ("rope_sin", "val", 4096),
    ] {
        let offset = pair.offset(output, part) + 33;
        let verdict = pair.with_byte(offset, |byte| byte ^ 0x55);
        assert!(!verdict.passed());
        assert_eq!(verdict.weight_differences, [format!("`{output}.{part}`: 1 of {bytes} bytes differ")]);
        assert_eq!(verdict.exceptions, [""; 0]);
        assert!(!verdict.output_differences.is_empty(), "{output}.{part}: outputs are the same");
    }

    // Reserved bytes of the file's header belong to no value.
    let verdict = pair.with_byte(40, |byte| byte ^ 1);
    assert_eq!(verdict.weight_differences, ["every value is equal, yet `weight.bin` has other bytes between them"]);
    assert!(!verdict.passed() && verdict.output_differences.is_empty());
}

#[test]
fn verify_fails_on_another_graph_of_the_same_weights() {
    let mut model = TinyModel::new("qwen3", 2);
    let pair = Pair::new(&model);
    model.config["rms_norm_eps"] = 2e-6.into();
    model.write(&pair.bench.path("model"));
    pair.bench.convert(&["--only", "0", "--out", "native"]);
    let verdict = pair.verdict();
    assert!(verdict.same_weight_file && verdict.weight_differences.is_empty());
    assert!(!verdict.passed());
    assert!(!verdict.output_differences.is_empty());
}
