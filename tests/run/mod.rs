//! `anebake run` on baked tiny models.

mod headroom;
mod mistakes;
mod text;
mod tokens;

use serde::Deserialize;
use serde_json::Value;

use crate::support::{Bench, TinyModel, stderr};

/// What `--json` prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    text: Option<String>,
    ids: Vec<u32>,
    prompt_ids: Vec<u32>,
    stop: String,
    stats: Stats,
    headroom: Option<Headroom>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stats {
    arithmetic: String,
    load_seconds: f64,
    prompt_tokens: usize,
    prefill_tokens_per_second: f64,
    first_token_seconds: f64,
    tokens: usize,
    decode_tokens_per_second: Option<f64>,
    seed: Option<u64>,
    peak_memory_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Headroom {
    ops: Vec<Op>,
    first_overflow: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Op {
    package: String,
    function: String,
    #[expect(dead_code, reason = "part of the format")]
    step: usize,
    op: String,
    output: String,
    largest: Option<f32>,
}

/// A baked random model without a tokenizer.
fn random() -> Bench {
    let bench = Bench::new(&TinyModel::new("qwen3", 11));
    bench.convert(&["--recipe", "fp16-v1"]);
    bench
}

/// `run out --json` with more arguments.
fn report(bench: &Bench, arguments: &[&str]) -> Report {
    let output = bench.run(&[&["run", "out", "--json"], arguments].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}
