//! `plan` and `explain`: what they say, and that they change nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{Bench, TinyModel, files, stdout};

/// Paths and bytes below a folder, but for the cache's own notes.
fn listing(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = files(folder);
    all.retain(|path, _| path.extension().is_none_or(|extension| extension != "sig"));
    all
}

fn run(bench: &Bench, arguments: &[&str]) -> String {
    let output = bench.run(arguments);
    assert!(output.status.success(), "{}", crate::support::stderr(&output));
    stdout(&output)
}

#[test]
fn a_plan_writes_nothing_before_and_after_a_bake() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let plan = ["plan", "--model", "model", "--set", "package.context=128"];
    let text = run(&bench, &plan);
    assert!(text.contains("block-00   bake ") && text.contains("never baked by this recipe"), "{text}");
    assert!(text.contains("0 cached, 4 to bake") && text.contains("coremltools makes the template"), "{text}");
    assert!(!bench.path("out").exists() && !bench.path("cache").exists());

    bench.convert(&["-q"]);
    let before = (listing(&bench.path("out")), listing(&bench.path("cache")));
    let text = run(&bench, &plan);
    assert!(text.contains("4 cached, 0 to bake") && text.contains("Python is not needed"), "{text}");
    let text = run(&bench, &["plan", "--model", "model", "--set", "package.context=256"]);
    assert!(text.contains("graph.context: 128 -> 256"), "{text}");
    assert_eq!(before, (listing(&bench.path("out")), listing(&bench.path("cache"))));
}

#[test]
fn an_explanation_names_what_changed() {
    let mut model = TinyModel::new("llama", 1);
    let bench = Bench::new(&model);
    let explain = |arguments: &[&str]| {
        let base = ["explain", "1", "--model", "model", "--set", "package.context=128"];
        run(&bench, &[&base, arguments].concat())
    };
    assert!(explain(&[]).contains("to bake  never baked by this recipe\n"));
    bench.convert(&["-q"]);
    let package = bench.manifest("out")["blocks"][1]["sha256"].as_str().unwrap().to_owned();
    assert!(explain(&[]).contains(&format!("cached   package {package}")));
    let changed = "to bake  since it was last baked by this recipe, this changed:\n";
    assert!(explain(&["--set", "package.context=256"]).ends_with(&format!("{changed}  graph.context: 128 -> 256\n")));
    let text = explain(&["--set", "weights.dtype=int4"]);
    assert!(text.contains("  graph.weights.self_attn.q_proj.weight.dtype: \"int8\" -> \"int4\"\n"), "{text}");

    model.values("model.layers.1.mlp.up_proj.weight")[0] += 1.0;
    model.write(&bench.path("model"));
    let text = explain(&[]);
    let lines: Vec<&str> = text.split_once(changed).unwrap().1.lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("  tensors[mlp.up_proj.weight].blake3: "), "{text}");
    let text = run(&bench, &["explain", "0", "--model", "model", "--set", "package.context=128"]);
    assert!(text.contains("cached   package "), "the other block did not change: {text}");

    assert!(bench.run(&["cache", "gc", "--max-size", "0"]).status.success());
    model.values("model.layers.1.mlp.up_proj.weight")[0] -= 1.0;
    model.write(&bench.path("model"));
    let text = explain(&[]);
    assert!(text.contains("to bake  "), "{text}");
}
