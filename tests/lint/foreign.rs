//! Packages of coremltools alone, `foreign.py`: every planted fault is found, and nothing else is said to be wrong; our
//! own bakes have none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anebake::lint::{Report, Severity, run};

use crate::support::{Bench, TinyModel, stderr};

/// Ids of what is at least a warning.
fn serious(report: &Report) -> BTreeSet<&'static str> {
    report.at_least(Severity::Warn).map(|finding| finding.id).collect()
}

#[test]
fn every_planted_fault_is_found_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join(".venv/bin/python"))
        .arg(root.join("tests/lint/foreign.py"))
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let planted: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("sound", &[][..]),
        // The first row of sines is zero, and so is its scale.
        ("global-config", &["weights-quantized-table", "weights-zero-scale"]),
        ("per-block", &["weights-per-block"]),
        ("float32", &["graph-float32-compute", "graph-float32-interface"]),
        ("infinite-mask", &["graph-infinite-mask"]),
        ("three-states", &["state-many"]),
        ("range", &["graph-flexible-input"]),
        ("wide-head", &["graph-long-axis", "graph-undivided-head"]),
        ("narrow-head", &[]),
        ("palette", &["weights-palette", "weights-palette-of-sixteen"]),
    ]);
    for (name, faults) in &planted {
        let report = run::package(&folder.path().join(format!("{name}.mlpackage")), false).unwrap();
        assert_eq!(serious(&report), faults.iter().copied().collect(), "{name}: {:#?}", report.findings);
    }
    // Of a folder as a whole.
    let whole = run::output(folder.path(), false).unwrap();
    let all: BTreeSet<&str> = planted.values().flat_map(|faults| faults.iter().copied()).collect();
    assert_eq!(serious(&whole), all);
    let tables = &whole.finding("weights-quantized-table").unwrap().places;
    assert_eq!(tables.len(), 2, "cosines and sines: {tables:?}");
}

#[test]
fn what_keeps_ops_off_the_ane_is_an_error_where_it_is_demanded() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(&TinyModel::new("qwen3", 3));
    bench.convert(&["--recipe", "int8-block32-v1", "--no-gate", "--out", folder.path().to_str().unwrap()]);
    let (plain, demanded) = (run::output(folder.path(), false).unwrap(), run::output(folder.path(), true).unwrap());
    assert_eq!(plain.finding("weights-per-block").unwrap().severity, Severity::Warn);
    assert_eq!(demanded.finding("weights-per-block").unwrap().severity, Severity::Error);
    assert_eq!((plain.errors, demanded.errors), (0, 1));
}

/// head_dim is 32, as wide as the ANE wants it.
#[test]
fn our_own_bakes_have_no_false_alarm() {
    let bench = Bench::new(&TinyModel::new("qwen3", 3));
    for (recipe, own) in [
        ("fp16-v1", &[][..]),
        ("int8-rtn-v1", &[]),
        ("int8-v1", &[]),
        ("int8-block32-v1", &["recipe-per-block", "weights-per-block"]),
        ("int8-rtn-f32-v1", &["graph-float32-compute", "recipe-float32-compute"]),
        ("fp16-ane-v1", &[]),
        ("int8-ane-v1", &[]),
        ("fp16-io-v1", &[]),
        ("int8-io-v1", &[]),
    ] {
        let output = bench.convert(&["--recipe", recipe, "--no-gate", "--out", recipe]);
        let report = run::output(&bench.path(recipe), false).unwrap();
        let loaded = anebake::recipe::Recipe::load(recipe, &[]).unwrap();
        let mut said = serious(&report);
        said.extend(serious(&run::recipe(&loaded, None, false)));
        assert_eq!(said, own.iter().copied().collect(), "{recipe}");
        let names: Vec<String> = own.iter().map(|id| format!("`{id}`")).collect();
        let line = format!("anebake: warning: lint: {}; `anebake lint {recipe}` says more", names.join(", "));
        assert_eq!(
            stderr(&output).matches("lint").count(),
            if own.is_empty() { 0 } else { line.matches("lint").count() }
        );
        assert!(own.is_empty() || stderr(&output).contains(&line), "{}", stderr(&output));
    }
    // The cache that is written at `position_offset` is told about, function by function.
    let report = run::output(&bench.path("int8-v1"), false).unwrap();
    let integers = &report.finding("graph-integer-ops").unwrap().places;
    let of = |function: &str| {
        let places = integers.iter().filter(|place| place.function.as_deref() == Some(function));
        places.map(|place| place.at.split(' ').next().unwrap()).collect::<Vec<_>>()
    };
    let expected =
        ["concat", "slice_by_size", "slice_by_size", "add", "concat", "concat", "slice_update", "slice_update"];
    let sorted = |mut list: Vec<&'static str>| {
        list.sort_unstable();
        list
    };
    for function in ["decode", "prefill"] {
        let mut found: Vec<&str> = of(function);
        found.sort_unstable();
        assert_eq!(found, sorted(expected.to_vec()), "{function}");
    }
    let head = report.programs.iter().find(|program| program.packages == ["head.mlpackage"]).unwrap();
    assert!(head.functions.iter().all(|function| function.integer == 0 && function.free == function.ops));
}

/// The graphs without integers are proven to have none, block by block and function by function.
#[test]
fn packages_of_the_ane_and_io_recipes_have_no_integer_between_inputs_and_outputs() {
    for model_type in ["qwen3", "llama", "qwen2"] {
        let bench = Bench::new(&TinyModel::new(model_type, 3));
        for recipe in ["fp16-ane-v1", "int8-ane-v1", "fp16-io-v1", "int8-io-v1"] {
            bench.convert(&["--recipe", recipe, "--no-gate", "--out", recipe]);
            let report = run::output(&bench.path(recipe), false).unwrap();
            assert!(report.finding("graph-integer-ops").is_none(), "{model_type} {recipe}: {:?}", report.findings);
            assert_eq!(report.programs.len(), 2, "blocks and head");
            for function in report.programs.iter().flat_map(|program| &program.functions) {
                assert_eq!((function.integer, function.free), (0, function.ops), "{model_type} {recipe}: {function:?}");
                assert!(function.ops > 10);
            }
            if model_type == "qwen3" {
                // Nothing is known against them, were the ANE demanded.
                let demanded = run::output(&bench.path(recipe), true).unwrap();
                assert_eq!(serious(&demanded), BTreeSet::new(), "{recipe}");
                let loaded = anebake::recipe::Recipe::load(recipe, &[]).unwrap();
                assert_eq!(serious(&run::recipe(&loaded, None, true)), BTreeSet::new(), "{recipe}");
            }
        }
    }
}
