//! `verify --against coremltools` on every architecture, recipe and oddity of weights, and `diff`.

mod different;
mod equal;
mod faults;
mod guarded;
mod identical;

use crate::support::{Bench, TinyModel, stderr, stdout};
use serde_json::Value;

const LAYER: &str = "model.layers.0";

/// Runs `verify` on `model/` and returns its report; the exit status must be what the report says.
fn verify(bench: &Bench, arguments: &[&str]) -> Value {
    let base = ["verify", "--against", "coremltools", "--json"];
    let output = bench.run(&[&base, arguments].concat());
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(output.status.code(), Some(i32::from(report["passed"] == false)));
    report
}

const TINY: [&str; 6] = ["--model", "model", "--set", "package.context=128", "--only", "0"];

/// Block 0 of a tiny model.
fn verify_tiny(bench: &Bench, arguments: &[&str]) -> Value {
    verify(bench, &[&TINY, arguments].concat())["parts"][0].take()
}

fn lines(block: &Value, key: &str) -> Vec<String> {
    serde_json::from_value(block[key].clone()).unwrap()
}

/// No byte and no bit of a block differs.
fn assert_identical(block: &Value) {
    assert_same(block, 18);
}

/// No byte and no bit differs.
fn assert_same(block: &Value, outputs: u64) {
    assert_eq!(block["same_weight_file"], true, "{block}");
    assert_eq!(block["outputs_compared"], outputs, "{block}");
    for key in ["exceptions", "weight_differences", "output_differences"] {
        assert_eq!(lines(block, key), [""; 0], "{block}");
    }
}

/// Copies tensor `from` of block 0 to `to`, times `factor`.
fn copy(model: &mut TinyModel, from: &str, to: &str, factor: f32) {
    let values = model.values(&format!("{LAYER}.{from}")).iter().map(|value| value * factor).collect();
    *model.values(&format!("{LAYER}.{to}")) = values;
}
