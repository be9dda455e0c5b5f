//! `--json` of every command, read back field by field.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::support::{Bench, TinyModel, stderr};

macro_rules! documents {
    ($($name:ident { $($field:ident: $kind:ty,)* })*) => {$(
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct $name { $($field: $kind,)* }
    )*};
}

documents! {
    Summary {
        out: PathBuf, recipe: String, model: String, blocks: usize, parts: usize, baked: usize, cached: usize, repaired: usize,
        packages_written: usize, files_written: usize, packages_removed: usize, bytes: u64, seconds: f64, python_started: bool,
        lint: Value, gate: Value, smoke: Value,
    }
    Plan {
        recipe: String, model: String, kv: String, query: usize, parts: Vec<PlannedPart>, cached: usize, to_bake: usize, bytes: u64,
        cache_bytes_needed: u64, cache_bytes_free: Option<u64>, out_bytes_free: Option<u64>, python_needed: bool,
    }
    PlannedPart { name: String, cached: bool, reason: Option<String>, bytes: u64, key: String, }
    Explanation {
        part: String, key: String, cached: bool, package: Option<String>, reason: Option<String>,
        changes: Vec<Change>, document: Value,
    }
    Change { path: String, old: Option<Value>, new: Option<Value>, }
    Inspection {
        path: PathBuf, specification_version: i32, model_bytes: u64, weight_bytes: u64,
        tools: BTreeMap<String, String>, kv: Option<String>, functions: Vec<Function>, weights: Vec<Weight>,
    }
    Function {
        name: String, default: bool, opset: String, inputs: Vec<Feature>, states: Vec<Feature>, outputs: Vec<Feature>,
        ops: BTreeMap<String, usize>,
    }
    Feature { name: String, dtype: String, shape: Vec<i64>, }
    Weight {
        name: String, part: String, op: String, functions: Vec<String>, dtype: String, shape: Vec<u64>,
        scheme: Option<String>, offset: u64, bytes: u64,
    }
    Difference {
        equal: bool, inputs: Vec<Change>, only_left: Vec<String>, only_right: Vec<String>,
        packages: Vec<PackageDifference>, files: Vec<String>,
    }
    PackageDifference { name: String, same_model_file: bool, same_weight_file: bool, ops: Vec<String>, values: Vec<ValueDifference>, }
    ValueDifference {
        name: String, part: String, kind: String, differing: Option<u64>, of: Option<u64>, left: Option<String>,
        right: Option<String>, same_as: Option<String>, all_ones: Option<bool>,
    }
    Verification { passed: bool, recipe: String, model: String, parts: Vec<Verdict>, }
    Verdict {
        part: String, same_weight_file: bool, exceptions: Vec<String>, weight_differences: Vec<String>,
        outputs_compared: usize, output_differences: Vec<String>,
    }
    Check { name: String, ok: bool, required: bool, detail: String, fix: Option<String>, }
    ListedRecipe { name: String, description: String, frozen: bool, }
    CheckedRecipe { name: String, valid: bool, }
    CachePath { path: PathBuf, }
    CacheStats { path: PathBuf, stats: Stats, limits: Limits, }
    Stats { entries: u64, blobs: u64, bytes: u64, quarantined: u64, oldest_use: Option<u64>, }
    Limits { bytes: u64, age_seconds: u64, }
    CacheVerification { bytes: u64, damaged: Vec<DamagedFile>, }
    DamagedFile { kind: String, path: PathBuf, }
    Freed { entries: u64, blobs: u64, bytes: u64, }
}

/// Runs a command with `--json`, expects a status, and reads all of stdout as one document.
#[track_caller]
fn json<T: DeserializeOwned>(bench: &Bench, code: i32, arguments: &[&str]) -> T {
    let output = bench.run(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

#[test]
fn json_of_every_command_holds_the_known_fields_and_no_others() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let model = ["--model", "model", "--set", "package.context=128"];
    let with_model = |arguments: &[&'static str]| [arguments, &model].concat();

    let summary: Summary = json(&bench, 0, &with_model(&["convert"]));
    assert_eq!((summary.blocks, summary.parts, summary.baked, summary.cached), (2, 4, 4, 0));
    assert_eq!((summary.packages_written, summary.files_written), (3, 2));
    assert!(summary.python_started);
    let plan: Plan = json(&bench, 0, &with_model(&["plan"]));
    assert_eq!((plan.cached, plan.to_bake, plan.bytes), (4, 0, summary.bytes));
    let names: Vec<&str> = plan.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["block-00", "block-01", "head", "embedding"]);
    let explanation: Explanation =
        json(&bench, 0, &["explain", "0", "--model", "model", "--set", "package.context=256"]);
    assert_eq!(explanation.part, "block-00");
    assert_eq!(explanation.changes.len(), 1);
    assert_eq!(explanation.changes[0].path, "graph.context");
    let inspection: Inspection = json(&bench, 0, &["inspect", "out/block-00.mlpackage"]);
    assert_eq!(inspection.functions.len(), 2);
    assert!(inspection.weights.len() > 10);

    let summary: Summary = json(&bench, 0, &with_model(&["convert", "--out", "four", "--set", "weights.dtype=int4"]));
    assert_eq!((summary.out, summary.baked, summary.cached), ("four".into(), 3, 1), "the embedding is the same");
    let difference: Difference = json(&bench, 1, &["diff", "out", "four"]);
    assert!(
        !difference.equal
            && difference.packages.len() == 3
            && difference.files.is_empty()
            && !difference.packages[0].values.is_empty()
    );
    let difference: Difference = json(&bench, 0, &["diff", "out", "out"]);
    assert!(difference.equal && difference.inputs.is_empty());
    let verification: Verification = json(&bench, 0, &with_model(&["verify", "--only", "1"]));
    assert!(verification.passed && verification.parts[0].outputs_compared > 0);

    let checks: Vec<Check> = json(&bench, 0, &["doctor"]);
    assert!(checks.iter().any(|check| check.name == "coremltools" && check.ok));
    let recipes: Vec<ListedRecipe> = json(&bench, 0, &["recipe", "list"]);
    assert_eq!(recipes[0].name, "int8-v1");
    let recipe: BTreeMap<String, Value> = json(&bench, 0, &["recipe", "show", "int8-v1"]);
    assert_eq!(recipe["name"], "int8-v1");
    let checked: CheckedRecipe = json(&bench, 0, &["recipe", "check", "fp16-v1"]);
    assert!(checked.valid);

    let path: CachePath = json(&bench, 0, &["cache", "path"]);
    assert_eq!(path.path, bench.path("cache"));
    let stats: CacheStats = json(&bench, 0, &["cache", "stats"]);
    assert!(stats.stats.entries >= 6 && stats.stats.quarantined == 0);
    let verification: CacheVerification = json(&bench, 0, &["cache", "verify"]);
    assert!(verification.damaged.is_empty() && verification.bytes > 0);
    let freed: Freed = json(&bench, 0, &["cache", "gc", "--max-size", "0"]);
    assert_eq!(freed.entries, stats.stats.entries);
}
