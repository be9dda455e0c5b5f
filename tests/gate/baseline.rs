//! Baselines and the plain forward pass, each against candle-transformers as another test sets it up.

use anebake::checkpoint::Checkpoint;
use anebake::error::{Status, hints, status};
use anebake::gate::{Baseline, Prompt, Weights, plain};
use serde_json::{Value, json};

use super::{STEPS, prompts, weights};
use crate::graphs::reference;
use crate::support::{Bench, TinyModel};

/// Two float32 implementations of the same model differ by no more, as a share of the largest logit.
const TOLERANCE: f32 = 2e-5;

#[track_caller]
fn near(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let error = got.iter().zip(want).fold(0.0, |error: f32, (a, b)| error.max((a - b).abs()));
    assert!(error <= TOLERANCE * largest, "{what}: off by {error}, the largest logit is {largest}");
}

fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    u32::try_from(best.0).unwrap()
}

/// Baseline (a prefill, then steps with a cache) and plain pass (all at once) against one token at a time.
fn check(model: &TinyModel) {
    let bench = Bench::new(model);
    let weights = weights(&bench.path("model"));
    let prompts = prompts();
    let baseline = Baseline::compute(&weights, &prompts, None, STEPS).unwrap();
    for (index, prompt) in prompts.iter().enumerate() {
        let Prompt::Tokens(tokens) = prompt else { panic!("{prompt} is no list of tokens") };
        let all = [tokens, &baseline.ids(index)[..STEPS - 1]].concat();
        let want = reference::logits(&bench.path("model"), &model.config, &all);
        for step in 0..STEPS {
            let row = &want[tokens.len() - 1 + step];
            near(baseline.logits(index, step), row, &format!("baseline, {prompt}, step {step}"));
            assert_eq!(baseline.ids(index)[step], argmax(row));
        }
        let mut seen = Vec::new();
        let hidden = plain::residual(&weights, &all, &mut |block, hidden| {
            assert_eq!(hidden.dims(), [all.len(), 64]);
            seen.push(block);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [0, 1, 2]);
        let rows: Vec<Vec<f32>> = plain::logits(&weights, &hidden).unwrap().to_vec2().unwrap();
        for (position, (got, want)) in rows.iter().zip(&want).enumerate() {
            near(got, want, &format!("plain pass, {prompt}, position {position}"));
        }
    }
}

fn scaled(model_type: &str, seed: u64, scaling: Value) -> TinyModel {
    let mut model = TinyModel::new(model_type, seed);
    model.config["rope_scaling"] = scaling;
    model
}

fn llama3() -> Value {
    json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64})
}

#[test]
fn qwen3_is_candles() {
    check(&TinyModel::new("qwen3", 1));
    check(&TinyModel::new("qwen3", 2).untied(3));
}

#[test]
fn qwen2_is_candles() {
    check(&TinyModel::new("qwen2", 4));
    check(&TinyModel::new("qwen2", 5).untied(6));
}

#[test]
fn llama_is_candles_with_every_scaling_that_candle_has() {
    check(&TinyModel::new("llama", 7).untied(8));
    check(&scaled("llama", 9, llama3()));
    check(&scaled("llama", 10, json!({"rope_type": "linear", "factor": 2.5})));
}

#[test]
fn what_candle_cannot_do_is_refused_in_words() {
    let wide = TinyModel::shaped("llama", 11, [64, 4, 2, 32, 96]);
    for (model, message) in [
        (wide, "its `llama` has heads of hidden / heads = 64 / 4, the model has heads of 32"),
        (scaled("qwen3", 12, json!({"rope_type": "linear", "factor": 2.0})), "its `qwen3` has no RoPE scaling"),
        (scaled("qwen2", 13, llama3()), "its `qwen2` has no RoPE scaling"),
    ] {
        let bench = Bench::new(&model);
        let error = Baseline::compute(&weights(&bench.path("model")), &prompts(), None, 1).unwrap_err();
        assert_eq!(error.to_string(), format!("candle-transformers cannot make the baseline: {message}"));
        assert_eq!(hints(&error).collect::<Vec<_>>(), ["give logits made elsewhere: `--baseline FILE.npz`"]);
        assert_eq!(status(&error), Status::Input);
    }
}

#[test]
fn a_token_that_the_vocabulary_lacks_and_a_value_that_is_not_finite_are_named() {
    let mut model = TinyModel::new("llama", 14);
    let bench = Bench::new(&model);
    let prompt = Prompt::Tokens(vec![3, 96]);
    let error = Baseline::compute(&weights(&bench.path("model")), &[prompt], None, 1).unwrap_err();
    assert_eq!(error.to_string(), "prompt `[3, 96]`: token 96 is none of the 96 of the vocabulary");
    assert_eq!(status(&error), Status::Usage);
    model.values("model.layers.1.mlp.up_proj.weight")[7] = f32::INFINITY;
    model.write(&bench.path("model"));
    let checkpoint = Checkpoint::open(&bench.path("model")).unwrap();
    let error = Weights::load(&checkpoint).err().unwrap();
    assert_eq!(error.to_string(), "tensor `model.layers.1.mlp.up_proj.weight`: element 7 is inf");
}
