//! Baking, baking again, and what stays the same.

use crate::support::{Bench, TinyModel, stdout};

#[test]
fn baking_again_bakes_nothing_and_does_not_start_python() {
    let bench = Bench::new(&TinyModel::new("qwen3", 1));
    bench.convert(&[]);
    let before = bench.manifest("out");
    let again: serde_json::Value = serde_json::from_str(&stdout(&bench.convert(&["--json"]))).unwrap();
    assert_eq!((&again["baked"], &again["cached"], &again["python_started"]), (&0.into(), &4.into(), &false.into()));
    assert_eq!(before, bench.manifest("out"));
}

#[test]
fn a_second_model_of_the_same_shape_is_baked_without_python() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&[]);
    TinyModel::new("llama", 2).write(&bench.path("model"));
    let second: serde_json::Value = serde_json::from_str(&stdout(&bench.convert(&["--json"]))).unwrap();
    assert_eq!((&second["baked"], &second["python_started"]), (&4.into(), &false.into()));
}
