//! `diff`: what differs is named.

use crate::support::{Bench, TinyModel, stdout};
use serde_json::Value;

fn diff(bench: &Bench, left: &str, right: &str, status: i32) -> (Value, String) {
    let json = bench.run(&["diff", left, right, "--json"]);
    let text = bench.run(&["diff", left, right]);
    assert_eq!((json.status.code(), text.status.code()), (Some(status), Some(status)), "{}", stdout(&text));
    (serde_json::from_str(&stdout(&json)).unwrap(), stdout(&text))
}

#[test]
fn diff_names_the_tensor_that_differs_and_how_many_bytes() {
    let mut model = TinyModel::new("llama", 1);
    let bench = Bench::new(&model);
    bench.convert(&["--out", "a"]);
    // The largest of the row stays, so only one code changes.
    let row = &mut model.values("model.layers.1.mlp.up_proj.weight")[..64];
    let largest = row.iter().fold(0.0, |m: f32, value| m.max(value.abs()));
    let other = row.iter_mut().find(|value| value.abs() < largest / 2.0).unwrap();
    *other = -*other - largest / 10.0;
    model.write(&bench.path("model"));
    bench.convert(&["--out", "b"]);

    let (report, text) = diff(&bench, "a", "b", 1);
    assert_eq!(report["equal"], false);
    assert_eq!(report["packages"].as_array().unwrap().len(), 1);
    assert_eq!(report["packages"][0]["name"], "block-01.mlpackage");
    let expected = "block-01.mlpackage  differs\n  weight up_proj_weight_quantized.data  1 of 6144 bytes differ\n";
    assert_eq!(text, expected);

    let (report, text) = diff(&bench, "a/block-01.mlpackage", "b/block-01.mlpackage", 1);
    assert_eq!(report["packages"][0]["values"].as_array().unwrap().len(), 1);
    assert_eq!(text, expected);
    let (report, text) = diff(&bench, "a/block-00.mlpackage", "b/block-00.mlpackage", 0);
    assert_eq!((&report["equal"], text.as_str()), (&true.into(), "equal\n"));
}

#[test]
fn packages_that_differ_in_a_small_constant_alone_are_not_equal() {
    let mut model = TinyModel::new("qwen3", 2);
    let bench = Bench::new(&model);
    bench.convert(&["--out", "a"]);
    model.config["rms_norm_eps"] = 1e-5.into();
    model.write(&bench.path("model"));
    bench.convert(&["--out", "b"]);
    let expected = "block-00.mlpackage  differs\n  same ops and weights; names, metadata or small constants in \
                    `model.mlmodel` differ\n";
    let (_, text) = diff(&bench, "a/block-00.mlpackage", "b/block-00.mlpackage", 1);
    assert_eq!(text, expected);
    let (_, text) = diff(&bench, "a", "b", 1);
    assert!(text.contains("rms_norm_eps") && text.contains(expected), "{text}");
}
