//! Tokens per second of a baked chain through the reference runner, beside candle-transformers in float32 on the
//! checkpoint that it was baked from. Both take turns in one process; prints JSON.
//!
//! `cargo bench --bench chain -- MODEL OUT [ROUNDS]`

use std::path::Path;
use std::time::Instant;

use anebake::checkpoint::Checkpoint;
use anebake::gate::{CandleModel, Weights};
use anebake::mil::Arithmetic;
use anebake::runner::{Chain, ReferenceRunner, Rows};
use serde_json::json;

/// Tokens of the prompt: two calls of `prefill` as recipes have it.
const PROMPT: usize = 128;
/// Tokens decoded after it.
const STEPS: usize = 32;

fn prompt(vocab: usize) -> Vec<u32> {
    (0..PROMPT as u32).map(|i| (i * 37 + 11) % vocab as u32).collect()
}

/// Tokens per second of the prompt and of the steps after it, each after one uncounted token.
fn speed(mut feed: impl FnMut(&[u32], usize) -> anyhow::Result<()>, vocab: usize) -> anyhow::Result<[f64; 2]> {
    let tokens = prompt(vocab);
    let start = Instant::now();
    feed(&tokens, 0)?;
    let prefill = PROMPT as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    for step in 0..STEPS {
        feed(&tokens[step..=step], PROMPT + step)?;
    }
    Ok([prefill, STEPS as f64 / start.elapsed().as_secs_f64()])
}

#[allow(clippy::print_stdout, reason = "its output is what it is for")]
fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [model, out, rest @ ..] = &arguments[..] else {
        // `cargo test --benches` runs it without arguments.
        return Ok(());
    };
    let rounds: usize = rest.first().map_or(Ok(5), |rounds| rounds.parse())?;
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let vocab = checkpoint.config().vocab;
    let weights = Weights::load(&checkpoint)?;
    let mut candle = CandleModel::new(&weights, PROMPT + STEPS)?;
    let chains = Arithmetic::ALL
        .into_iter()
        .map(|arithmetic| Ok((arithmetic, Chain::open(Path::new(out), &ReferenceRunner::new(arithmetic))?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut found: Vec<(String, Vec<[f64; 2]>)> = vec![("candle".to_owned(), Vec::new())];
    found.extend(chains.iter().map(|(arithmetic, _)| (arithmetic.to_string(), Vec::new())));
    for round in 0..=rounds {
        for (i, (_, speeds)) in found.iter_mut().enumerate() {
            let measured = if i == 0 {
                candle.begin()?;
                speed(|tokens, position| candle.forward(tokens, position).map(drop), vocab)?
            } else {
                let chain = &chains[i - 1].1;
                let mut session = chain.begin()?;
                speed(|tokens, _| chain.feed(&mut session, tokens, Rows::Last).map(drop), vocab)?
            };
            // The first round warms up.
            if round > 0 {
                speeds.push(measured);
            }
        }
    }
    let column = |speeds: &[[f64; 2]], i: usize| speeds.iter().map(|speed| speed[i]).collect::<Vec<_>>();
    let result: serde_json::Map<_, _> = found
        .into_iter()
        .map(|(name, speeds)| (name, json!({"prefill": column(&speeds, 0), "decode": column(&speeds, 1)})))
        .collect();
    println!("{}", serde_json::Value::Object(result));
    Ok(())
}
