//! The gate at the end of a bake.

use serde_json::Value;

use super::faults::tokenizer;
use crate::support::{Bench, TinyModel, stderr, stdout};

/// A tiny checkpoint with a tokenizer, and a recipe with such a `[gate]`.
fn bench(gate: &str) -> Bench {
    let bench = Bench::new(&TinyModel::new("llama", 61));
    std::fs::write(bench.path("model/tokenizer.json"), tokenizer(17).to_string()).unwrap();
    let text = format!(
        "schema = 1\nname = \"tiny\"\nextends = \"fp16-v1\"\n[package]\ncontext = 128\n[gate]\nsteps = 4\n\
         prompts = [\"the cat sat.\", \"on the mat\"]\nmin_top1 = 0.25\n{gate}\n"
    );
    std::fs::write(bench.path("tiny.toml"), text).unwrap();
    bench
}

fn convert(bench: &Bench, more: &[&str]) -> (Option<i32>, String, String) {
    let output = bench.run(&[&["convert", "--model", "model", "--recipe", "tiny.toml"], more].concat());
    (output.status.code(), stdout(&output), stderr(&output))
}

fn gate(summary: &str) -> Value {
    serde_json::from_str::<Value>(summary).unwrap()["gate"].clone()
}

#[test]
fn a_bake_ends_with_the_gate_keeps_its_result_and_judges_the_same_content_once() {
    let bench = bench("min_cosine = 0.99");
    let (code, table, text) = convert(&bench, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(table.contains("\"the cat sat.\"") && table.contains("\npass: "), "{table}");
    let kept = bench.manifest("out")["gate"].clone();
    assert_eq!((&kept["arithmetic"], &kept["report"]["passed"]), (&"fp16".into(), &true.into()));
    assert_eq!(kept["report"]["steps"], 8);

    let (code, summary, _) = convert(&bench, &["--json"]);
    let found = gate(&summary);
    assert_eq!((code, &found["outcome"], &found["recorded"]), (Some(0), &"pass".into(), &true.into()));
    assert_eq!(found["right"][1], 8);
    let (_, again, text) = convert(&bench, &[]);
    assert_eq!(again, table);
    assert!(text.contains("gate: found out when this was baked first"), "{text}");

    let (code, summary, _) = convert(&bench, &["--json", "--set", "weights.dtype=int8", "--set", "gate.enforce=false"]);
    assert_eq!((code, gate(&summary)["recorded"].clone()), (Some(0), false.into()), "other content is judged anew");
}

#[test]
fn a_failing_gate_is_exit_status_1_where_the_recipe_enforces_it_and_the_packages_stay() {
    let bench = bench("min_cosine = 1.0");
    for round in ["found out", "recorded"] {
        let (code, table, text) = convert(&bench, &[]);
        assert_eq!(code, Some(1), "{round}: {text}");
        assert!(
            table.contains("\nFAIL: ") && text.contains("anebake: warning: the baked chain does not say"),
            "{text}"
        );
        assert!(bench.path("out/block-01.mlpackage").is_dir() && bench.path("out/chain.json").is_file());
    }
    let (code, summary, text) = convert(&bench, &["--json", "--set", "gate.enforce=false"]);
    assert_eq!((code, gate(&summary)["outcome"].clone()), (Some(0), "fail".into()), "{text}");
    assert!(text.contains("anebake: warning: the baked chain does not say"), "{text}");
}

#[test]
fn a_gate_that_is_left_out_says_why() {
    let bench = bench("min_cosine = 0.99");
    for (more, why) in [
        (["--json", "--no-gate", "-q"], "skipped: --no-gate"),
        (["--json", "--only", "0"], "skipped: only some parts were baked"),
    ] {
        let (code, summary, text) = convert(&bench, &more);
        assert_eq!((code, gate(&summary)["outcome"].clone()), (Some(0), why.into()), "{text}");
        assert_eq!(bench.manifest("out").get("gate"), None);
    }
    std::fs::write(bench.path("model/tokenizer.json"), "{}").unwrap();
    let (code, summary, text) = convert(&bench, &["--json"]);
    assert_eq!(code, Some(0), "{text}");
    let outcome = gate(&summary)["outcome"].as_str().unwrap().to_owned();
    assert!(outcome.starts_with("skipped: "), "{outcome}");
}
