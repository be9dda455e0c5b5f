//! The embedded coremltools: packages of both engines, judged by bytes, by each other, and by a float64 block.

mod engines;
mod graphs;
mod reference;
mod start;

use anebake::coremltools::{Array, Environment, Oracle, PACKAGE, PROBES, Python, State, TemplateReply};
use half::f16;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The interpreter, started on first use.
fn python() -> &'static Python {
    Python::start(&Environment::find(None).unwrap()).unwrap()
}

/// A small block; tests change what they are about. Every tensor and scale has at least 10 elements.
fn request(architecture: &str) -> Value {
    json!({
        "part": "block", "architecture": architecture, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 96,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_scaling": {"type": "none"}, "context": 12,
        "functions": {"decode": 1, "prefill": 4}, "compute_precision": "float16", "norm": "max_scaled",
        "kv": "slice", "target": "macOS15", "weights": {}
    })
}

/// A template of `request` in a folder of its own.
struct Template {
    folder: tempfile::TempDir,
    reply: TemplateReply,
}

impl Template {
    fn of(request: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let reply = python().template(request, folder.path()).unwrap();
        Self { folder, reply }
    }

    fn package(&self) -> PathBuf {
        self.folder.path().join(PACKAGE)
    }

    fn probe(&self, role: &str) -> Vec<u8> {
        let probe = &self.reply.tensors.iter().find(|tensor| tensor.role == role).unwrap().probe;
        let bytes = std::fs::read(self.folder.path().join(PROBES).join(&probe.file)).unwrap();
        bytes[usize::try_from(probe.offset).unwrap()..].to_vec()
    }
}

fn weight_bin(package: &Path) -> Vec<u8> {
    std::fs::read(package.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap()
}

/// Feeds rows to one function at a position, with the mask that a runner makes.
fn feed(
    oracle: &Oracle,
    function: &str,
    rows: &[f16],
    context: usize,
    position: usize,
    state: &mut State,
    hidden: usize,
) -> Array {
    let tokens = rows.len() / hidden;
    let mask: Vec<f16> = (0..tokens)
        .flat_map(|row| {
            (0..context).map(move |column| f16::from_f32(if column <= position + row { 0.0 } else { -1e4 }))
        })
        .collect();
    let hidden_state = Array::f16(&[1, tokens, hidden], rows);
    let causal_mask = Array::f16(&[1, 1, tokens, context], &mask);
    let position_offset = Array::i32(&[1], &[i32::try_from(position).unwrap()]);
    let inputs =
        [("hidden_state", &hidden_state), ("causal_mask", &causal_mask), ("position_offset", &position_offset)];
    let mut outputs = oracle.predict(function, &inputs, state).unwrap();
    assert_eq!(outputs.len(), 1);
    let (name, output) = outputs.remove(0);
    assert_eq!(name, "hidden_out");
    assert_eq!(output.shape, [1, tokens, hidden]);
    output
}

/// Pseudo-random float16 rows in [-2, 2).
fn rows(count: usize, mut seed: u64) -> Vec<f16> {
    let next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f16::from_f32((seed >> 40) as f32 / (1u32 << 22) as f32 - 2.0)
    };
    std::iter::repeat_with(next).take(count).collect()
}
