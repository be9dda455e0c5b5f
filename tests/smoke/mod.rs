//! Smoke where there is no Core ML. What it does where there is, tests/standin runs.

use serde_json::{Value, json};

use crate::support::{Bench, TinyModel, stderr, stdout};

fn convert(bench: &Bench, more: &[&str]) -> Value {
    let output = bench.convert(&[&["--recipe", "fp16-v1", "--no-gate", "--json"], more].concat());
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
#[cfg(not(target_os = "macos"))]
fn smoke_needs_macos_and_says_so() {
    let bench = Bench::new(&TinyModel::new("llama", 71));
    convert(&bench, &["--only", "0"]);
    let output = bench.run(&["smoke", "out"]);
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    assert!(text.starts_with("anebake: error: Core ML needs macOS\n  hint: copy the output folder to a Mac"), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
#[cfg(not(target_os = "macos"))]
fn a_bake_keeps_that_smoke_was_skipped_and_what_a_mac_found_stays() {
    let bench = Bench::new(&TinyModel::new("llama", 72));
    let left_out = convert(&bench, &["--no-smoke"]);
    assert_eq!(left_out["smoke"]["outcome"], "skipped: --no-smoke");
    assert_eq!(bench.manifest("out").get("smoke"), None);

    let first = convert(&bench, &[]);
    let skipped = json!({ "outcome": "skipped: Core ML needs macOS", "passed": null, "recorded": false });
    assert_eq!(first["smoke"], skipped);
    let kept = bench.manifest("out")["smoke"].clone();
    assert_eq!((&kept["verdict"], &kept["packages"]), (&"skipped: Core ML needs macOS".into(), &json!([])));
    assert_eq!(kept["require"], json!(["load", "numerics"]));
    let package = &bench.manifest("out")["blocks"][0];
    assert_eq!(kept["content"][package["path"].as_str().unwrap()], package["sha256"]);
    assert_eq!(convert(&bench, &[])["smoke"]["recorded"], true);

    // As if the folder came back from a Mac.
    let mut manifest = bench.manifest("out");
    manifest["smoke"]["verdict"] = "fail".into();
    std::fs::write(bench.path("out/manifest.json"), manifest.to_string()).unwrap();
    let output = bench.run(&[
        "convert",
        "--model",
        "model",
        "--recipe",
        "fp16-v1",
        "--set",
        "package.context=128",
        "--no-gate",
        "--json",
    ]);
    let summary: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(summary["smoke"], json!({ "outcome": "fail", "passed": false, "recorded": true }));
    assert_eq!(output.status.code(), Some(1), "a check said no");
    assert!(stderr(&output).contains("smoke: found out before: FAIL"), "{}", stderr(&output));
    let other = convert(&bench, &["--set", "weights.dtype=int8", "--set", "weights.granularity=per_channel"]);
    assert_eq!(other["smoke"], skipped, "other content was not tried");
}

#[test]
fn what_counts_is_in_the_recipe_and_changes_no_package() {
    let bench = Bench::new(&TinyModel::new("llama", 73));
    let graph = ["--no-smoke", "--only", "0", "--set", "package.kv=mask", "--set", "package.query=4"];
    convert(&bench, &graph);
    let before = bench.manifest("out")["blocks"][0]["key"].clone();
    let sets = ["--set", "smoke.require=[\"load\", \"ane\"]", "--set", "smoke.min_cosine=0.99"];
    convert(&bench, &[&graph[..], &sets].concat());
    let manifest = bench.manifest("out");
    assert_eq!(manifest["blocks"][0]["key"], before);
    assert_eq!(manifest["recipe"]["smoke"], json!({ "require": ["load", "ane"], "min_cosine": 0.99 }));
    let wrong = bench.run(&["plan", "--model", "model", "--set", "smoke.require=[\"npu\"]"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("`smoke.require[0]` is `npu`, not one of `load`, `numerics`, `ane`"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn a_child_without_a_request_says_so_and_is_no_command_for_people() {
    let bench = Bench::new(&TinyModel::new("llama", 74));
    std::fs::create_dir(bench.path("empty")).unwrap();
    let mut child = bench.command();
    // Its stdin stays open, as a parent would keep it.
    child.args(["smoke-child", "empty"]).stdin(std::process::Stdio::piped());
    child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = child.spawn().unwrap();
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("cannot read `empty/request.json`"), "{}", stderr(&output));
    assert!(!stdout(&bench.run(&["--help"])).contains("smoke-child"));
}
