//! Which tokens come.

use std::process::Stdio;
use std::time::Duration;

use anebake::mil::Arithmetic;
use anebake::runner::{Chain, ReferenceRunner, Rows};
use rustix::process::{Pid, Signal, kill_process};

use super::{random, report};
use crate::support::{Bench, stderr, stdout};

const PROMPT: [u32; 5] = [5, 17, 90, 3, 42];
const IDS: &str = "5,17,90,3,42";

/// The continuation by `count` tokens, each the largest logit of a conversation that begins anew.
fn argmax_chain(bench: &Bench, count: usize) -> Vec<u32> {
    let chain = Chain::open(&bench.path("out"), &ReferenceRunner::new(Arithmetic::Fp16)).unwrap();
    let mut tokens = PROMPT.to_vec();
    for _ in 0..count {
        let logits = chain.feed(&mut chain.begin().unwrap(), &tokens, Rows::Last).unwrap();
        let largest = logits[0].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        tokens.push(logits[0].iter().position(|logit| *logit == largest).unwrap() as u32);
    }
    tokens.split_off(PROMPT.len())
}

#[test]
fn without_a_temperature_each_token_has_the_largest_logit() {
    let bench = random();
    let expected = argmax_chain(&bench, 12);
    let greedy = report(&bench, &["--ids", IDS, "--max-tokens", "12"]);
    assert_eq!((&greedy.ids, &greedy.prompt_ids[..], &*greedy.stop), (&expected, &PROMPT[..], "length"));
    assert_eq!((greedy.text, greedy.headroom.is_some()), (None, false));
    let stats = greedy.stats;
    assert_eq!((stats.prompt_tokens, stats.tokens, stats.seed, &*stats.arithmetic), (5, 12, None, "fp16"));
    assert!(stats.prefill_tokens_per_second > 0.0 && stats.decode_tokens_per_second.unwrap() > 0.0);
    assert!(stats.first_token_seconds > stats.load_seconds && stats.load_seconds > 0.0);
    assert!(stats.peak_memory_bytes.is_none_or(|bytes| bytes > 1 << 20));

    let output = bench.run(&["run", "out", "--ids", IDS, "--max-tokens", "12", "--stats"]);
    let printed: Vec<String> = expected.iter().map(ToString::to_string).collect();
    assert_eq!(stdout(&output), format!("{}\n", printed.join(",")));
    let shown = stderr(&output);
    let names: Vec<&str> = shown.lines().filter_map(|line| line.split("  ").next()).collect();
    assert!(["prompt", "first token", "continuation", "arithmetic"].iter().all(|name| names.contains(name)), "{shown}");
    assert!(shown.contains("12 tokens, ") && shown.contains("; ended by length"), "{shown}");
}

#[test]
fn the_same_seed_draws_the_same_tokens_and_others_draw_others() {
    let bench = random();
    let draw = |more: &[&str]| report(&bench, &[&["--ids", IDS, "--max-tokens", "12"], more].concat());
    let seeded = |seed: &str| draw(&["--temperature", "1.5", "--seed", seed]).ids;
    let first = seeded("1");
    assert_eq!(first, seeded("1"));
    assert!(["2", "3", "4"].into_iter().all(|seed| seeded(seed) != first));
    let greedy = draw(&[]).ids;
    assert_ne!(first, greedy);
    assert_eq!(draw(&["--temperature", "1.5", "--top-k", "1"]).ids, greedy);
    assert_eq!(draw(&["--temperature", "1.5", "--top-p", "1e-9"]).ids, greedy);
    // A seed that was not chosen is told, and draws the same again.
    let any = draw(&["--temperature", "1.5"]);
    assert_eq!(seeded(&any.stats.seed.unwrap().to_string()), any.ids);
    let other = draw(&["--temperature", "1.5"]).stats.seed;
    assert_ne!(other, any.stats.seed);
}

#[test]
fn a_full_context_ends_the_continuation_with_a_note() {
    let bench = random();
    let ids: Vec<String> = (0..120).map(|token| (token % 96).to_string()).collect();
    let ids = ids.join(",");
    let full = report(&bench, &["--ids", &ids, "--max-tokens", "200"]);
    // Eight are fed; the ninth is what the last position of the context gives.
    assert_eq!((full.ids.len(), &*full.stop), (9, "context"));
    let output = bench.run(&["run", "out", "--ids", &ids, "--max-tokens", "200"]);
    assert_eq!(stderr(&output), "anebake: the context of 128 tokens is full\n");
    let output = bench.run(&["run", "out", "--ids", &ids, "--max-tokens", "9"]);
    assert_eq!(stderr(&output), "");
}

#[test]
fn ctrl_c_ends_with_130() {
    let bench = random();
    // It waits for its prompt.
    let mut child = bench
        .command()
        .args(["run", "out", "--prompt", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _open = child.stdin.take();
    std::thread::sleep(Duration::from_millis(700));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(130), "\nanebake: interrupted\n"));
}
