//! The macOS code on Linux, against stand-ins for Core ML's classes: whole commands, calls in order, what goes wrong, and
//! that nothing is left behind. Nothing here says how Core ML itself behaves.

#![allow(clippy::unwrap_used)]

#[path = "../../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use support::{Bench, TinyModel, stderr, stdout};

/// A baked tiny model: blocks, head and chain in `out`. Baked once, tried in many ways.
fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let bench = Bench::new(&TinyModel::new("llama", 5));
        let base = ["convert", "--model", "model", "--recipe", "fp16-v1", "--set", "package.context=128"];
        let sets = ["--set", "package.functions.prefill=8", "--no-gate", "--no-smoke", "--out", "out"];
        let baked = command(&bench).args(base).args(sets).output().unwrap();
        assert!(baked.status.success(), "{}", stderr(&baked));
        bench
    })
}

fn command(bench: &Bench) -> Command {
    let mut command = bench.command();
    command.env("ANEBAKE_PYTHON", std::env::var_os("ANEBAKE_PYTHON").unwrap());
    command
}

/// What a run of `smoke` printed as JSON, what the stand-ins noted, and what all processes wrote on stderr.
struct Tried {
    status: Option<i32>,
    report: Value,
    notes: Vec<String>,
    text: String,
}

/// Runs `smoke` on a copy of the output, in a cache of its own.
fn smoke(arguments: &[&str], faults: &[(&str, &str)]) -> Tried {
    let folder = tempfile::tempdir().unwrap();
    let [log, text, cache] = ["log", "stderr", "cache"].map(|name| folder.path().join(name));
    let mut command = command(bench());
    command.arg("smoke").arg(copy(&folder)).arg("--json").args(arguments).env("ANEBAKE_CACHE_DIR", &cache);
    command.env("STANDIN_LOG", &log).env("STANDIN_STDERR", &text).envs(faults.iter().copied());
    let output = command.output().unwrap();
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let text = read(text);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{text}{}", stdout(&output)));
    let notes: Vec<String> = read(log).lines().map(str::to_owned).collect();
    assert!(!text.contains("without pool") && !text.contains("no pool in place"), "{text}");
    assert!(!notes.iter().any(|line| line.starts_with("broken")), "{notes:?}");
    Tried { status: output.status.code(), report, notes, text }
}

/// The output, in a folder of its own: its manifest is written to.
fn copy(folder: &tempfile::TempDir) -> PathBuf {
    let out = folder.path().join("out");
    for (path, bytes) in support::files(&bench().path("out")) {
        let to = out.join(path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
    out
}

impl Tried {
    fn package(&self) -> &Value {
        &self.report["packages"][0]
    }

    fn trouble(&self) -> &Value {
        &self.package()["measured"]["trouble"]
    }

    fn calls(&self, name: &str) -> usize {
        self.notes.iter().filter(|line| **line == format!("call {name}")).count()
    }

    /// Processes that ended by themselves left nothing behind.
    fn assert_nothing_alive(&self) {
        let ends: Vec<&String> = self.notes.iter().filter(|line| line.starts_with("alive")).collect();
        assert!(!ends.is_empty() && ends.iter().all(|line| *line == "alive"), "{ends:?}\n{}", self.text);
    }
}

#[test]
fn packages_and_chain_say_what_the_reference_says_through_the_whole_way() {
    let tried = smoke(&["--steps", "4"], &[]);
    assert_eq!(tried.status, Some(0), "{:#}\n{}", tried.report, tried.text);
    let packages = tried.report["packages"].as_array().unwrap();
    let names: Vec<&str> = packages.iter().map(|package| package["package"].as_str().unwrap()).collect();
    assert_eq!(names, ["block-00.mlpackage", "block-01.mlpackage", "head.mlpackage"]);
    for package in &packages[..2] {
        let measured = &package["measured"];
        assert_eq!(measured["functions"], serde_json::json!(["prefill", "decode"]));
        assert_eq!(measured["done"], serde_json::json!(["compile", "load", "plan", "state", "predict", "repeat"]));
        for numerics in measured["numerics"].as_array().unwrap() {
            // The stand-in computes what the reference does: the way there and back is exact.
            assert_eq!(numerics["largest_error"], 0.0, "{numerics}");
            assert_eq!(numerics["calls"], numerics["of"]);
        }
        for placement in measured["placement"].as_array().unwrap() {
            assert_eq!((&placement["preferred_on_ane"], &placement["unknown"]), (&placement["ops"], &0.into()));
            assert!(placement["ops"].as_u64().unwrap() > 20);
        }
        assert!(measured["memory"].as_u64().unwrap() > 1 << 20);
    }
    let chain = &tried.report["chain"];
    assert_eq!((&chain["verdict"], &chain["equal"]), (&"pass".into(), &5.into()), "{chain}");
    assert_eq!(chain["tokens"], chain["expected"]);
    assert!(chain["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(tried.report["system"]["devices"], serde_json::json!(["cpu", "ane"]));
    assert!(tried.notes.iter().any(|line| line == "load decode units=3"));
    tried.assert_nothing_alive();
}

/// Names of arrays by function and feature, in the order of the calls.
fn arrays<'a>(notes: &'a [String], kind: &str, function: &str, feature: &str) -> Vec<&'a str> {
    let start = format!("{kind} {function} {feature} ");
    notes.iter().filter_map(|line| line.strip_prefix(&start)).collect()
}

#[test]
fn a_blocks_output_is_the_next_blocks_input_without_a_copy() {
    let tried = smoke(&["--steps", "4"], &[]);
    // Processes one after another: those of three packages, that of the chain, the parent.
    let processes: Vec<&[String]> = tried.notes.split(|line| line.starts_with("alive")).collect();
    let notes = processes[3];
    let (given, got) =
        (arrays(notes, "input", "decode", "hidden_state"), arrays(notes, "output", "decode", "hidden_out"));
    // Each step: block 0, block 1, head.
    assert_eq!((given.len(), got.len()), (12 + 1, 8), "{notes:#?}");
    let steps = &given[given.len() - 12..];
    for step in 0..4 {
        assert_eq!(steps[step * 3 + 1], got[step * 2], "block 1 takes what block 0 wrote");
        assert_eq!(steps[step * 3 + 2], got[step * 2 + 1], "the head takes what block 1 wrote");
    }
    let masks = arrays(notes, "input", "decode", "causal_mask");
    assert!(masks.chunks(2).all(|pair| pair[0] == pair[1]), "all blocks share one mask: {masks:?}");
    let distinct: std::collections::BTreeSet<&&str> = got.iter().collect();
    assert!(distinct.len() <= 4, "buffers are used again: {got:?}");
    tried.assert_nothing_alive();
}

#[test]
fn buffers_that_core_ml_declines_are_no_fault() {
    let tried = smoke(&["--steps", "2"], &[("STANDIN_DECLINE", "1")]);
    assert_eq!(tried.status, Some(0), "{:#}", tried.report);
    tried.assert_nothing_alive();
}

#[test]
fn compiled_models_are_kept_and_compiled_again_for_another_package_only() {
    let folder = tempfile::tempdir().unwrap();
    let out = copy(&folder);
    let (log, cache) = (folder.path().join("log"), folder.path().join("cache"));
    let compilations = || {
        let mut command = command(bench());
        command.args(["smoke", "--json", "--steps", "1", "--no-chain"]).arg(&out);
        command.env("ANEBAKE_CACHE_DIR", &cache).env("STANDIN_LOG", &log);
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let before = |package: &Value| package["measured"]["times"]["compiled_before"].as_bool().unwrap();
        report["packages"].as_array().unwrap().iter().filter(|package| !before(package)).count()
    };
    assert_eq!(compilations(), 3);
    assert_eq!(compilations(), 0);
    let model = support::files(&cache.join("compiled-v1")).into_keys().find(|path| path.ends_with("Manifest.json"));
    std::fs::write(cache.join("compiled-v1").join(model.unwrap()), "{}").unwrap();
    assert_eq!(compilations(), 1);
}

#[test]
fn an_error_of_each_call_is_told_with_domain_code_and_stage() {
    for (call, stage, code, text) in [
        ("compile", "compile", Some(3), "the package cannot be compiled"),
        ("load", "load", Some(-14), "with error code: -14."),
        ("plan", "plan", Some(-14), "with error code: -14."),
        ("input", "predict", Some(1), "the inputs are refused"),
        ("array", "predict", Some(2), "no memory"),
        ("predict", "predict", Some(0), "Unable to compute the prediction"),
    ] {
        let fault = format!("error:{call}");
        let tried = smoke(&["--only", "0", "--steps", "2"], &[("STANDIN_FAULT", &fault)]);
        let trouble = tried.trouble();
        assert_eq!((tried.status, &trouble["stage"]), (Some(1), &stage.into()), "{call}: {:#}", tried.report);
        assert_eq!((&trouble["cause"], trouble["code"].as_i64()), (&"error".into(), code), "{call}");
        assert_eq!(trouble["domain"], "com.apple.CoreML");
        let told = trouble["text"].as_str().unwrap();
        assert!(told.contains(text) && told.contains("ANECCompile() FAILED"), "{call}: {told}");
        assert!(!told.contains("/private/"), "{call}: {told}");
        assert!(trouble["hint"].is_object(), "{call}: {trouble}");
        tried.assert_nothing_alive();
    }
}

#[test]
fn an_exception_of_each_call_is_an_error_and_leaves_nothing_behind() {
    for (call, stage) in [
        ("compile", "compile"),
        ("load", "load"),
        ("plan", "plan"),
        ("state", "state"),
        ("input", "predict"),
        ("array", "predict"),
        ("predict", "predict"),
    ] {
        let fault = format!("exception:{call}");
        let tried = smoke(&["--only", "0", "--steps", "2"], &[("STANDIN_FAULT", &fault)]);
        let trouble = tried.trouble();
        assert_eq!((tried.status, &trouble["stage"]), (Some(1), &stage.into()), "{call}: {:#}", tried.report);
        assert_eq!(trouble["domain"], "NSInternalInconsistencyException", "{call}: {trouble}");
        assert!(trouble["text"].as_str().unwrap().contains(&format!("the stand-in throws at {call}")), "{trouble}");
        tried.assert_nothing_alive();
    }
}

#[test]
fn a_completion_with_neither_result_nor_error_is_told_as_that() {
    for call in ["compile", "plan"] {
        let tried = smoke(&["--only", "0", "--steps", "1"], &[("STANDIN_FAULT", &format!("nothing:{call}"))]);
        let text = tried.trouble()["text"].as_str().unwrap();
        assert!(text.contains("neither a result nor an error"), "{call}: {text}");
    }
}

#[test]
fn a_crash_at_the_fourth_call_keeps_what_was_done_before_it() {
    let tried = smoke(&["--only", "0", "--steps", "4"], &[("STANDIN_FAULT", "crash:predict:4")]);
    let measured = &tried.package()["measured"];
    assert_eq!(tried.status, Some(1));
    assert_eq!((&tried.trouble()["cause"], &tried.trouble()["text"]), (&"signal".into(), &"SIGTRAP".into()));
    assert_eq!(tried.trouble()["stage"], "predict");
    let calls: BTreeMap<&str, u64> = measured["numerics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|function| (function["function"].as_str().unwrap(), function["calls"].as_u64().unwrap()))
        .collect();
    assert_eq!(calls, BTreeMap::from([("decode", 1), ("prefill", 2)]));
    assert_eq!(measured["placement"].as_array().unwrap().len(), 2);
    let failures = tried.package()["failures"].to_string();
    assert!(failures.contains("killed by SIGTRAP") && failures.contains("ran 1 of 4 calls"), "{failures}");
    assert_eq!(tried.calls("predict"), 4);
}

#[test]
fn a_crash_while_loading_still_tells_where_ops_are_planned() {
    let tried = smoke(&["--only", "1", "--steps", "1"], &[("STANDIN_FAULT", "crash:load")]);
    assert_eq!((&tried.trouble()["stage"], &tried.trouble()["cause"]), (&"load".into(), &"signal".into()));
    assert_eq!(tried.package()["measured"]["placement"].as_array().unwrap().len(), 2);
}

#[test]
fn a_hang_is_killed_at_the_limit() {
    let arguments = ["--only", "0", "--steps", "2", "--time-limit", "40"];
    let tried = smoke(&arguments, &[("STANDIN_FAULT", "hang:predict:2")]);
    assert_eq!((&tried.trouble()["cause"], &tried.trouble()["text"]), (&"timeout".into(), &"40 s".into()));
    assert_eq!(tried.package()["measured"]["numerics"][0]["calls"], 1);
    assert!(tried.trouble()["hint"].is_object(), "{}", tried.trouble());
}

#[test]
fn a_fallback_passes_or_fails_as_the_recipe_asks() {
    let cpu = [("STANDIN_CPU", "softmax")];
    let tried = smoke(&["--only", "0", "--steps", "1"], &cpu);
    assert_eq!(tried.status, Some(0), "{:#}", tried.report);
    let placement = &tried.package()["measured"]["placement"][0];
    assert_eq!(placement["elsewhere"][0]["operator"], "ios18.softmax");
    assert_eq!(placement["elsewhere"][0]["supported_by_ane"], false);

    let folder = tempfile::tempdir().unwrap();
    let out = copy(&folder);
    let path = out.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["recipe"]["smoke"]["require"] = serde_json::json!(["load", "numerics", "ane"]);
    std::fs::write(&path, manifest.to_string()).unwrap();
    let run = |units: &str, faults: &[(&str, &str)]| -> Output {
        let mut command = command(bench());
        command.arg("smoke").arg(&out).args(["--only", "0", "--steps", "1", "--units", units]);
        command.env("ANEBAKE_CACHE_DIR", folder.path().join("cache")).envs(faults.iter().copied());
        command.output().unwrap()
    };
    assert_eq!(run("cpu-and-ane", &[]).status.code(), Some(0));
    let fallback = run("cpu-and-ane", &cpu);
    assert_eq!(fallback.status.code(), Some(1));
    let table = stdout(&fallback);
    assert!(table.contains("are not planned for the Neural Engine, first `ios18.softmax`"), "{table}");
    assert!(table.contains("not for the ANE: ") && table.contains("\nFAIL: 0 of 1 packages pass"), "{table}");
    let without = run("cpu", &[]);
    assert!(stdout(&without).contains("`--units cpu` leaves it out"), "{}", stdout(&without));
}

#[test]
fn a_bake_of_every_cache_variant_ends_with_smoke_and_finds_the_same_content_out_once() {
    for (model, more) in [
        ("qwen3", &["--recipe", "fp16-v1"][..]),
        ("llama", &["--recipe", "fp16-ane-v1"]),
        ("qwen2", &["--recipe", "fp16-v1", "--set", "package.kv=io"]),
    ] {
        let bench = Bench::new(&TinyModel::new(model, 8));
        let run = |arguments: &[&str]| {
            let output = command(&bench).args(arguments).output().unwrap();
            (output.status.code(), stdout(&output), stderr(&output))
        };
        let base = ["convert", "--model", "model", "--set", "package.context=128", "--no-gate"];
        let (status, table, text) = run(&[&base, more].concat());
        assert_eq!(status, Some(0), "{text}{table}");
        assert!(table.contains("chain: pass, ") && table.contains("\npass: 3 of 3 packages pass"), "{table}");
        let kept = bench.manifest("out")["smoke"].clone();
        assert_eq!((&kept["verdict"], kept["packages"].as_array().unwrap().len()), (&"pass".into(), 3));
        let (status, summary, text) = run(&[&base, more, &["--json"]].concat());
        let summary: Value = serde_json::from_str(&summary).unwrap();
        assert_eq!((status, &summary["smoke"]["recorded"]), (Some(0), &true.into()), "{text}");
        assert!(text.contains("smoke: found out before: pass: 3 of 3"), "{text}");

        let tokens = |runner: &str| run(&["run", "out", "--ids", "3,1,4,1,5", "-n", "6", "--runner", runner]);
        let (by_reference, by_core_ml) = (tokens("reference"), tokens("coreml"));
        assert_eq!(by_core_ml, by_reference, "{model}");
        assert_eq!(by_core_ml.1.trim().split(',').count(), 6);
    }
}
