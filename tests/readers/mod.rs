//! Packages as coremltools reads them: opened, decompressed, and compared with the checkpoint as numpy reads it.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Bench, TinyModel, stderr};

/// Runs `decompress.py` on packages `(package, layer, checkpoint)` of a folder.
fn decompress(bench: &Bench, cases: &[(&str, usize, &str)]) -> Vec<Value> {
    let cases: Vec<Value> = cases
        .iter()
        .map(|(package, layer, checkpoint)| {
            json!({"package": bench.path(package), "layer": layer, "checkpoint": bench.path(checkpoint)})
        })
        .collect();
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/python"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/decompress.py"))
        .arg(Value::from(cases).to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Nothing is further from the source than rounding explains; what is quantized has these codes and scales, and errors
/// that come close to half a step, as they must if steps are no larger than needed.
fn assert_rounded(block: &Value, tensors: usize, schemes: &[(&str, u64, u64)]) {
    let block = block.as_object().unwrap();
    assert_eq!(block.len(), tensors);
    for (name, tensor) in block {
        assert!(tensor["excess"].as_f64().unwrap() <= 0.0, "{name}: {tensor}");
        let scheme = schemes.iter().find(|scheme| format!("{}_proj_weight", scheme.0) == *name);
        let found = tensor.get("code").map(|code| (code.as_u64().unwrap(), tensor["scales"].as_u64().unwrap()));
        assert_eq!(found, scheme.map(|scheme| (scheme.1, scheme.2)), "{name}");
        if scheme.is_some() {
            let error = tensor["error"].as_f64().unwrap();
            assert!((0.45..0.6).contains(&error), "{name}: largest error {error} steps");
        }
    }
}

const ROWS: [(&str, u64); 7] = [("q", 128), ("k", 64), ("v", 64), ("o", 64), ("gate", 96), ("up", 96), ("down", 64)];

fn every(code: u64, blocks: impl Fn(&str) -> u64) -> Vec<(&'static str, u64, u64)> {
    ROWS.map(|(name, rows)| (name, code, rows * blocks(name))).to_vec()
}

/// Input channels by blocks of 32.
fn blocks_of_32(name: &str) -> u64 {
    match name {
        "o" => 4,
        "down" => 3,
        _ => 2,
    }
}

#[test]
fn decompressed_weights_are_within_half_a_step_of_the_checkpoint() {
    let bench = Bench::new(&TinyModel::new("qwen3", 1));
    std::fs::write(
        bench.path("mixed.toml"),
        "schema = 1\nname = \"mixed\"\nextends = \"int8-rtn-v1\"\n\
         [[override]]\ntensors = 'layers\\.\\d+\\.mlp\\.down_proj'\ndtype = \"float16\"\n\
         [[override]]\ntensors = 'layers\\.\\d+\\.mlp\\.up_proj'\ndtype = \"int4\"\n\
         [[override]]\ntensors = 'layers\\.0\\.self_attn\\.o_proj'\ngranularity = \"per_block\"\nblock_size = 32\n",
    )
    .unwrap();
    let bakes: [(&str, &[&str]); 6] = [
        ("fp16", &["--recipe", "fp16-v1"]),
        ("int8", &["--recipe", "int8-v1"]),
        ("int8-f32", &["--recipe", "int8-rtn-f32-v1"]),
        ("int8-block", &["--recipe", "int8-block32-v1"]),
        ("int4-block", &["--recipe", "int8-block32-v1", "--set", "weights.dtype=int4"]),
        ("mixed", &["--recipe", "mixed.toml"]),
    ];
    for (out, arguments) in bakes {
        bench.convert(&[arguments, &["--out", out]].concat());
    }
    let checkpoint = "model/model.safetensors";
    let reports = decompress(
        &bench,
        &[
            ("fp16/block-00.mlpackage", 0, checkpoint),
            ("int8/block-01.mlpackage", 1, checkpoint),
            ("int8-f32/block-00.mlpackage", 0, checkpoint),
            ("int8-block/block-00.mlpackage", 0, checkpoint),
            ("int4-block/block-01.mlpackage", 1, checkpoint),
            ("mixed/block-00.mlpackage", 0, checkpoint),
            ("mixed/block-01.mlpackage", 1, checkpoint),
        ],
    );
    let mixed = |block: usize| -> Vec<_> {
        let mut schemes = every(127, |name| if block == 0 && name == "o" { 4 } else { 1 });
        schemes.retain(|scheme| scheme.0 != "down");
        schemes.iter_mut().filter(|scheme| scheme.0 == "up").for_each(|scheme| scheme.1 = 7);
        schemes
    };
    let expected = [
        vec![],
        every(127, |_| 1),
        every(127, |_| 1),
        every(127, blocks_of_32),
        every(7, blocks_of_32),
        mixed(0),
        mixed(1),
    ];
    assert_eq!(reports.len(), expected.len());
    for (report, schemes) in reports.iter().zip(&expected) {
        assert_rounded(report, 11, schemes);
    }
}

#[test]
fn a_package_of_another_block_is_not_within_half_a_step() {
    let bench = Bench::new(&TinyModel::new("llama", 2));
    bench.convert(&[]);
    let report = &decompress(&bench, &[("out/block-01.mlpackage", 0, "model/model.safetensors")])[0];
    let tensors = report.as_object().unwrap();
    assert_eq!(tensors.len(), 9);
    assert!(tensors.values().all(|tensor| tensor["excess"].as_f64().unwrap() > 0.0), "{report}");
}

#[test]
fn two_blocks_of_the_sample_are_within_half_a_step_of_its_float16_packages() {
    let bench = Bench::new(&TinyModel::new("llama", 3));
    for (out, recipe) in [("fp16", "fp16-v1"), ("int8", "int8-v1")] {
        let output = bench.run(&["convert", "--recipe", recipe, "--model", "sample", "--only", "0,29", "--out", out]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let cases =
        ["block-00.mlpackage", "block-29.mlpackage"].map(|name| (format!("int8/{name}"), format!("fp16/{name}")));
    let cases: Vec<_> = cases.iter().map(|(package, source)| (package.as_str(), 0, source.as_str())).collect();
    let rows = [("q", 576), ("k", 192), ("v", 192), ("o", 576), ("gate", 1536), ("up", 1536), ("down", 576)];
    let schemes = rows.map(|(name, rows)| (name, 127, rows));
    for report in decompress(&bench, &cases) {
        assert_rounded(&report, 9, &schemes);
    }
}
