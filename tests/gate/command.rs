//! `anebake gate` on the command line.

use std::process::Output;

use anebake::gate::hints::Hints;
use anebake::gate::{About, Baseline, Prompt, Report, blocks::BlockReport, perplexity::PerplexityReport};
use serde::Deserialize;

use super::faults::tokenizer;
use crate::support::{Bench, TinyModel, stderr, stdout};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Document {
    out: String,
    model: Option<String>,
    recipe: Option<String>,
    arithmetic: String,
    baseline: Option<About>,
    gate: Report,
    blocks: Option<Vec<BlockReport>>,
    perplexity: Option<PerplexityReport>,
    hints: Option<Hints>,
    seconds: Seconds,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Seconds {
    baseline: f64,
    gate: f64,
}

/// A bake of `model` in `out`, and prompts of tokens in `prompts.json`.
fn baked(seed: u64, arguments: &[&str]) -> Bench {
    let bench = Bench::new(&TinyModel::new("qwen3", seed));
    bench.convert(arguments);
    std::fs::write(bench.path("prompts.json"), "[[5, 9, 33], [1, 2, 3, 4, 5, 6, 7]]").unwrap();
    bench
}

fn document(output: &Output) -> Document {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

#[test]
fn a_sound_chain_passes_and_a_saved_baseline_gives_the_same_verdict() {
    let bench = baked(61, &["--recipe", "fp16-v1"]);
    let run = |more: &[&str]| bench.run(&[&["gate", "out", "--json"], more].concat());
    let output = run(&["--prompts", "prompts.json", "--save-baseline", "b.npz", "--blocks"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let first = document(&output);
    assert!(first.gate.passed);
    assert_eq!((first.model.as_deref(), first.recipe.as_deref()), (Some("model"), Some("fp16-v1")));
    assert_eq!((first.gate.steps, first.gate.equal + first.gate.ties), (16, 16));
    assert_eq!((first.gate.thresholds.min_cosine, first.gate.thresholds.min_top1), (0.999, 1.0));
    assert_eq!(first.blocks.unwrap().len(), 2);
    assert_eq!(first.baseline.unwrap().architecture, "qwen3");

    std::fs::rename(bench.path("model"), bench.path("elsewhere")).unwrap();
    let output = run(&["--baseline", "b.npz"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let second = document(&output);
    assert_eq!(second.gate.prompts, first.gate.prompts);
    assert_eq!(second.model, None);
    let short = document(&run(&["--baseline", "b.npz", "--steps", "3", "--arithmetic", "f32"]));
    assert_eq!((short.gate.steps, short.arithmetic.as_str()), (6, "f32"));
}

#[test]
fn a_failing_chain_ends_with_status_1_a_table_and_what_to_try() {
    let coarse = ["--recipe", "fp16-v1", "--set", "weights.dtype=int4", "--set", "gate.enforce=false"];
    let bench = baked(62, &coarse);
    let output = bench.run(&["gate", "out", "--prompts", "prompts.json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("\nFAIL: "), "{text}");
    assert!(text.contains("0.999 is asked for (prompt `["), "{text}");
    assert!(text.contains("[[override]]\ntensors = '"), "{text}");
    let output = bench.run(&["gate", "out", "--prompts", "prompts.json", "--no-hints", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = document(&output);
    assert!(!report.gate.passed && report.hints.is_none());
    let lenient = ["gate", "out", "--prompts", "prompts.json", "--min-cosine", "0.1", "--no-hints", "--json"];
    let failures = document(&bench.run(&lenient)).gate.failures;
    assert!(failures.iter().all(|failure| !failure.contains("cosine")), "{failures:?}");
}

#[test]
fn mistakes_are_named() {
    let bench = baked(63, &["--recipe", "fp16-v1"]);
    std::fs::write(bench.path("empty.txt"), "\n").unwrap();
    std::fs::write(bench.path("text.txt"), "hello\n").unwrap();
    std::fs::write(bench.path("text.json"), "[1]").unwrap();
    std::fs::write(bench.path("unknown.json"), "[[96]]").unwrap();
    let long: Vec<u32> = vec![1; 122];
    std::fs::write(bench.path("long.json"), serde_json::to_string(&[&long]).unwrap()).unwrap();
    let other = |vocab: usize, tokens: Option<Vec<Vec<u32>>>| Baseline {
        prompts: vec![Prompt::Text("hello".to_owned())],
        tokens,
        steps: 1,
        vocab,
        ids: vec![0],
        logits: [vec![1.0], vec![0.0; vocab - 1]].concat(),
        about: None,
    };
    other(95, None).save(&bench.path("vocab.npz")).unwrap();
    other(96, None).save(&bench.path("untokenized.npz")).unwrap();
    other(96, Some(vec![vec![4]])).save(&bench.path("short.npz")).unwrap();
    std::fs::create_dir(bench.path("nothing")).unwrap();
    std::fs::create_dir(bench.path("other")).unwrap();
    TinyModel::with_layers("qwen3", 64, 3).write(&bench.path("other"));
    for (arguments, status, message, hint) in [
        (&["nothing"][..], 4, "cannot read `nothing/chain.json`", "name the output folder of a whole bake"),
        (&["out", "--prompts", "empty.txt"], 2, "there is no prompt in `empty.txt`", "write one prompt a line"),
        (&["out", "--prompts", "none.txt"], 2, "cannot read the prompts in `none.txt`", ""),
        (&["out", "--prompts", "text.json"], 2, "there is no JSON array of prompts in `text.json`", "write one prompt"),
        (
            &["out", "--prompts", "text.txt"],
            2,
            "prompt `hello` is a text, and the model has no tokenizer",
            "give tokens",
        ),
        (&["out", "--prompts", "unknown.json"], 2, "prompt `[96]`: token 96 is none of the 96 of the vocabulary", ""),
        (
            &["out", "--prompts", "long.json"],
            2,
            "122 tokens and 8 steps take 129 positions, the chain's context has 128",
            "use a shorter prompt",
        ),
        (&["out", "--baseline", "vocab.npz"], 2, "the baseline has 95 logits a step, the chain 96", "--model"),
        (&["out", "--baseline", "untokenized.npz"], 2, "prompt `hello` is a text, and the model has no", "give tokens"),
        (&["out", "--baseline", "short.npz", "--steps", "2"], 2, "`--steps` is 2, the baseline has 1 steps", ""),
        (&["out", "--baseline", "none.npz"], 4, "cannot open `none.npz`", ""),
        (&["out", "--min-cosine", "1.5"], 2, "`--min-cosine` is 1.5, not in 0..=1", ""),
        (&["out", "--model", "other"], 2, "`other` is not the model that was baked, `model`", "name the model"),
        (&["out", "--baseline", "short.npz", "--prompts", "text.txt"], 2, "cannot be used with", ""),
        (&["out", "--steps", "0"], 2, "0 is not in 1..=1024", ""),
        (&["out", "--arithmetic", "f64"], 2, "`f64` is none of f32, fp16", ""),
    ] {
        let output = bench.run(&[&["gate"], arguments].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(message), "{arguments:?}: {text}");
        assert!(text.contains(hint), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    std::fs::rename(bench.path("model"), bench.path("elsewhere")).unwrap();
    let output = bench.run(&["gate", "out"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the model `model` that the manifest names is not here"), "{}", stderr(&output));
    let output = bench.run(&["gate", "out", "--model", "elsewhere", "--prompts", "prompts.json", "-q"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn texts_go_through_the_tokenizer_of_the_output_and_one_with_truncated_merges_is_caught() {
    let bench = Bench::new(&TinyModel::new("qwen3", 65));
    std::fs::write(bench.path("model/tokenizer.json"), tokenizer(17).to_string()).unwrap();
    // Whether a random model's near answers survive rounding is not what this test is about.
    let lenient =
        ["--recipe", "fp16-v1", "--set", "gate.min_top1=0", "--set", "gate.prompts=['the band was on that.']"];
    bench.convert(&lenient);
    std::fs::write(bench.path("text.txt"), "there she was. ".repeat(30)).unwrap();
    let run = || bench.run(&["gate", "out", "--perplexity", "text.txt", "--json"]);
    let output = run();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = document(&output);
    assert_eq!(report.gate.thresholds.min_top1, 0.0);
    let [prompt] = &report.gate.prompts[..] else { panic!("{:?}", report.gate.prompts) };
    assert_eq!(prompt.prompt, Prompt::Text("the band was on that.".to_owned()));
    assert!(prompt.text.is_some() && prompt.tokens.len() < 21, "{prompt:?}");
    let perplexity = report.perplexity.unwrap();
    assert!(perplexity.tokens > 128 && perplexity.chain.unwrap() > 1.0, "{perplexity:?}");

    std::fs::remove_file(bench.path("out/tokenizer.json")).unwrap();
    std::fs::write(bench.path("out/tokenizer.json"), tokenizer(8).to_string()).unwrap();
    let output = run();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let failures = document(&output).gate.failures;
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].starts_with("prompt `the band was on that.`: the chain's tokenizer makes other tokens of it"));
}
