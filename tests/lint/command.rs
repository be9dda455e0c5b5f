//! `anebake lint`, and lint as a part of `convert`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::support::{Bench, TinyModel, stderr, stdout};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Document {
    kind: String,
    subject: String,
    ane: bool,
    errors: usize,
    warnings: usize,
    infos: usize,
    findings: Vec<Finding>,
    programs: Vec<Program>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Finding {
    id: String,
    severity: String,
    allowed: bool,
    what: String,
    why: String,
    fix: String,
    evidence: Vec<Evidence>,
    places: Vec<Place>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Evidence {
    link: String,
    date: String,
    confidence: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Place {
    #[serde(default)]
    packages: Vec<String>,
    function: Option<String>,
    at: String,
    says: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    packages: Vec<String>,
    functions: Vec<anebake::lint::placement::Estimate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Described {
    id: String,
    subject: String,
    severity: String,
    severity_on_ane: String,
    what: String,
    why: String,
    fix: String,
    evidence: Vec<Evidence>,
}

fn lint(bench: &Bench, code: i32, arguments: &[&str]) -> String {
    let output = bench.run(&[&["lint"], arguments].concat());
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

fn refused(bench: &Bench, code: i32, arguments: &[&str]) -> String {
    let output = bench.run(&[&["lint"], arguments].concat());
    assert_eq!((output.status.code(), stdout(&output)), (Some(code), String::new()), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn recipes_packages_and_folders_are_told_apart() {
    let bench = Bench::new(&TinyModel::new("qwen3", 3));
    bench.convert(&["--no-gate", "--only", "0"]);
    std::fs::write(bench.path("my.toml"), "schema = 1\nextends = \"fp16-v1\"\n").unwrap();
    for (subject, kind) in
        [("int8-v1", "recipe"), ("my.toml", "recipe"), ("out", "output"), ("out/block-00.mlpackage", "package")]
    {
        let document: Document = serde_json::from_str(&lint(&bench, 0, &[subject, "--json"])).unwrap();
        assert_eq!((document.kind.as_str(), document.ane), (kind, false), "{subject}");
        assert_eq!(document.programs.is_empty(), kind == "recipe");
        assert_eq!(document.infos, document.findings.len(), "nothing worse");
    }
    let document: Document = serde_json::from_str(&lint(&bench, 0, &["out", "--json"])).unwrap();
    assert_eq!(document.programs[0].packages, ["block-00.mlpackage"]);
    assert_eq!(document.programs[0].functions.len(), 2);

    std::fs::create_dir(bench.path("empty")).unwrap();
    std::fs::create_dir(bench.path("a.mlmodelc")).unwrap();
    std::fs::create_dir(bench.path("broken.mlpackage")).unwrap();
    std::fs::write(bench.path("broken.mlpackage/Manifest.json"), "{}").unwrap();
    for (code, arguments, parts) in [
        (2, &["int9-v1"][..], &["no built-in recipe is named `int9-v1`"][..]),
        (2, &["empty"], &["`empty` holds no package", "hint: name a recipe"]),
        (2, &["a.mlmodelc"], &["is a compiled model", "`.mlpackage` that it was compiled from"]),
        (2, &["out/manifest.json"], &["`out/manifest.json` is no recipe"]),
        (2, &["out", "--set", "gate.steps=2"], &["`out` is no recipe", "leave out `--set`"]),
        (
            2,
            &["int8-v1", "--allow", "recipe-shortgate"],
            &["there is no lint rule", "did you mean `recipe-short-gate`?"],
        ),
        (2, &["--explain", "nothing"], &["there is no lint rule `nothing`", "anebake lint --list"]),
        (2, &[], &["RECIPE|PACKAGE|OUT"]),
        (2, &["int8-v1", "--deny", "all"], &["none of info, warn, error"]),
        (4, &["absent.mlpackage"], &["there is no package `absent.mlpackage`"]),
        (4, &["broken.mlpackage"], &["cannot open the package `broken.mlpackage`"]),
    ] {
        let message = refused(&bench, code, arguments);
        for part in parts {
            assert!(message.contains(part), "{arguments:?}: {message}");
        }
    }
}

#[test]
fn the_exit_status_follows_the_threshold_and_what_is_allowed() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let block = ["int8-block32-v1"];
    let with = |more: &[&'static str]| [&block[..], more].concat();
    lint(&bench, 0, &block);
    lint(&bench, 1, &with(&["--deny", "warn"]));
    lint(&bench, 1, &with(&["--ane"]));
    let text = lint(&bench, 0, &with(&["--ane", "--allow", "recipe-per-block"]));
    assert!(text.contains("allowed  recipe-per-block: "), "{text}");
    assert!(text.contains("0 errors, 2 warnings") && text.contains("1 allowed"), "{text}");
    lint(&bench, 1, &with(&["--deny", "info", "--allow", "recipe-per-block"]));
    let text = lint(&bench, 0, &["fp16-v1", "--set", "gate.min_cosine=0.5"]);
    assert!(text.contains("warn   recipe-loose-gate: ") && text.contains("`gate.min_cosine`: `0.5`"), "{text}");
}

#[test]
fn rules_are_listed_and_explained() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let listed: Vec<Described> = serde_json::from_str(&lint(&bench, 0, &["--list", "--json"])).unwrap();
    assert!(listed.len() >= 40);
    let text = lint(&bench, 0, &["--list"]);
    for rule in &listed {
        assert!(text.contains(&rule.id));
        let one: Described = serde_json::from_str(&lint(&bench, 0, &["--explain", &rule.id, "--json"])).unwrap();
        assert_eq!((&one.id, &one.why), (&rule.id, &rule.why));
    }
    let text = lint(&bench, 0, &["--explain", "weights-per-block"]);
    for part in [
        "weights-per-block: a weight has several scales along its inputs",
        "warn; error where the ANE is demanded",
        "https://github.com/apple/coremltools/issues/2510 (2025-05-09, corroborated)",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// A row so small that its scale underflows: coremltools writes zero, and the channel is gone.
#[test]
fn an_error_in_what_was_baked_fails_convert_unless_it_is_allowed() {
    let mut model = TinyModel::new("qwen3", 3);
    for value in &mut model.values("model.layers.0.mlp.down_proj.weight")[..96] {
        *value = 1e-6;
    }
    let bench = Bench::new(&model);
    let convert = |more: &[&str]| {
        let base = ["convert", "--model", "model", "--recipe", "int8-rtn-v1", "--set", "package.context=128"];
        bench.run(&[&base[..], more].concat())
    };
    let witness = ["--engine", "coremltools", "--only", "0"];
    let output = convert(&witness);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.contains("lint: `weights-vanished`; `anebake lint out` says more; the packages are kept"),
        "{message}"
    );
    let record = &bench.manifest("out")["lint"]["rules"]["weights-vanished"];
    assert_eq!(*record, serde_json::json!({ "severity": "error", "places": 1 }));
    // Cached and on record: the same answer.
    assert_eq!(convert(&witness).status.code(), Some(1));
    let output = convert(&[&witness[..], &["--allow", "weights-vanished", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let summary: BTreeMap<String, Value> = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(summary["lint"]["errors"], 0);
    assert!(summary["lint"]["rules"].as_array().unwrap().iter().any(|id| id == "weights-vanished"));
    // Our own engine guards the row.
    let output = convert(&["--no-gate"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = lint(&bench, 0, &["out"]);
    assert!(!text.contains("weights-vanished"), "{text}");

    let output = convert(&["--allow", "nothing"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_recipe_that_demands_the_ane_and_keeps_off_it_is_refused_before_anything_is_baked() {
    let bench = Bench::new(&TinyModel::new("qwen3", 3));
    let refused = ["--set", "smoke.require=['load', 'ane']", "--set", "package.compute_precision=float32"];
    let base = ["convert", "--model", "model", "--recipe", "fp16-ane-v1", "--no-gate", "--no-smoke"];
    let output = bench.run(&[&base[..], &refused].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = stderr(&output);
    for part in [
        "lint refuses `fp16-ane-v1`: the graph computes in float32 (`package.compute_precision`: `float32`)",
        "`--allow recipe-float32-compute` bakes it all the same",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!bench.path("out").exists());
    // Allowed, and then found in what was baked.
    let allowed = ["--allow", "recipe-float32-compute"];
    let output = bench.run(&[&base[..], &refused, &allowed, &["--set", "package.context=128"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("lint: `graph-float32-compute`"), "{}", stderr(&output));
}
