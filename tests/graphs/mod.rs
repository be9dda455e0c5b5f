//! Whole chains of baked packages against candle-transformers: prefill, decode, states carried from the first
//! position of the cache to the last.

mod chain;
pub mod reference;
mod runner;
mod variants;

use std::path::Path;

use serde_json::json;

use crate::support::{Bench, Random, TinyModel};
use chain::{CONTEXT, Chain, PREFILL};

/// How far logits may be from the reference at any position.
#[derive(Clone, Copy, Debug)]
struct Tolerance {
    /// 1 - cosine.
    angle: f64,
    /// Largest error, as a share of the largest reference logit.
    error: f64,
}

/// Recipe arguments, and what rounding to float16 explains: in every op, or at the edges of blocks and in caches.
const FLOAT16: (&[&str], Tolerance) = (&["--recipe", "fp16-v1"], Tolerance { angle: 2e-4, error: 2.5e-2 });
const FLOAT32: (&[&str], Tolerance) =
    (&["--recipe", "fp16-v1", "--set", "package.compute_precision=float32"], Tolerance { angle: 1e-5, error: 5e-3 });

fn tokens() -> Vec<u32> {
    let mut random = Random(5);
    (0..CONTEXT).map(|_| (random.bits() % 96) as u32).collect()
}

/// The largest distance of two lists of logits.
fn distance(got: &[Vec<f64>], want: &[Vec<f32>]) -> Tolerance {
    assert_eq!(got.len(), want.len());
    let mut worst = Tolerance { angle: 0.0, error: 0.0 };
    for (got, want) in got.iter().zip(want) {
        let want: Vec<f64> = want.iter().map(|&value| f64::from(value)).collect();
        assert_eq!(got.len(), want.len());
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let cosine = dot(got, &want) / (dot(got, got) * dot(&want, &want)).sqrt();
        let largest = want.iter().fold(0.0, |m: f64, value| m.max(value.abs()));
        let error = got.iter().zip(&want).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / largest;
        assert!(cosine.is_finite() && error.is_finite(), "logits are not finite");
        worst = Tolerance { angle: worst.angle.max(1.0 - cosine), error: worst.error.max(error) };
    }
    worst
}

impl Tolerance {
    fn holds(self, distance: Self) -> bool {
        distance.angle <= self.angle && distance.error <= self.error
    }
}

/// A full and a padded prefill, then decode steps up to the last position of the cache.
fn fill(out: &Path) -> Vec<Vec<f64>> {
    let tokens = tokens();
    let mut chain = Chain::load(out);
    let mut logits = chain.prefill(&tokens[..PREFILL]);
    logits.extend(chain.prefill(&tokens[PREFILL..PREFILL + 40]));
    logits.extend(tokens[PREFILL + 40..].iter().map(|&token| chain.decode(token)));
    assert_eq!(logits.len(), CONTEXT);
    logits
}

/// A padded prefill of 7 tokens, then decode steps over the rows that the padding left in the cache.
fn short(out: &Path) -> Vec<Vec<f64>> {
    let tokens = tokens();
    let mut chain = Chain::load(out);
    let mut logits = chain.prefill(&tokens[..7]);
    logits.extend(tokens[7..PREFILL + 6].iter().map(|&token| chain.decode(token)));
    logits
}

fn check(model: &TinyModel) {
    let bench = Bench::new(model);
    let want = reference::logits(&bench.path("model"), &model.config, &tokens());
    for (arguments, tolerance) in [FLOAT16, FLOAT32] {
        bench.convert(arguments);
        let distance = distance(&fill(&bench.path("out")), &want);
        assert!(tolerance.holds(distance), "{arguments:?}: {distance:?} is beyond {tolerance:?}");
    }
    let got = short(&bench.path("out"));
    let distance = distance(&got, &want[..got.len()]);
    assert!(FLOAT32.1.holds(distance), "decoding over padding: {distance:?} is beyond {:?}", FLOAT32.1);
}

fn llama(seed: u64, scaling: serde_json::Value) -> TinyModel {
    let mut model = TinyModel::new("llama", seed);
    model.config["rope_scaling"] = scaling;
    model
}

fn llama3() -> serde_json::Value {
    json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64})
}

#[test]
fn qwen3_gives_the_logits_of_candle() {
    check(&TinyModel::new("qwen3", 1));
}

#[test]
fn qwen3_with_an_output_matrix_of_its_own_gives_the_logits_of_candle() {
    check(&TinyModel::new("qwen3", 2).untied(3));
}

#[test]
fn logits_in_several_parts_are_those_of_candle_tied_and_untied() {
    // Two parts, the second as small as it can be.
    let tied = TinyModel::new("llama", 15).vocabulary(16, 16_385);
    check(&tied);
    check(&TinyModel::new("qwen3", 17).vocabulary(18, 16_385).untied(19));
    let bench = Bench::new(&tied);
    bench.convert(&[]);
    let chain = anebake::chain::ChainFile::read(&bench.path("out")).unwrap();
    let parts: Vec<_> = chain.head.outputs.iter().map(|part| (part.name.as_str(), part.first, part.count)).collect();
    assert_eq!(parts, [("logits_0", 0, 16_368), ("logits_1", 16_368, 17)]);
}

#[test]
fn llama_gives_the_logits_of_candle() {
    check(&TinyModel::new("llama", 4).untied(5));
}

#[test]
fn llama_with_llama3_scaling_gives_the_logits_of_candle() {
    check(&llama(6, llama3()));
}

#[test]
fn llama_with_linear_scaling_gives_the_logits_of_candle() {
    check(&llama(7, json!({"rope_type": "linear", "factor": 2.5})));
}

#[test]
fn qwen2_with_biases_gives_the_logits_of_candle() {
    check(&TinyModel::new("qwen2", 8));
}

#[test]
fn qwen2_with_an_output_matrix_of_its_own_gives_the_logits_of_candle() {
    check(&TinyModel::new("qwen2", 9).untied(10));
}

/// Every weight replaced by what the quantizer's definition makes of it, in float32.
fn quantized(model: &TinyModel) -> TinyModel {
    let mut model = model.clone();
    model.dtype = safetensors::Dtype::F32;
    // The output matrix is quantized, the embedding table that it is tied to is not.
    model.config["tie_word_embeddings"] = false.into();
    model.tensors.insert("lm_head.weight".to_owned(), model.tensors["model.embed_tokens.weight"].clone());
    for (name, (shape, values)) in &mut model.tensors {
        values.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
        if name.contains("_proj.weight") || name == "lm_head.weight" {
            for row in values.chunks_mut(shape[1]) {
                let scale = row.iter().fold(0.0, |m: f32, value| m.max(value.abs())) / 127.0;
                row.iter_mut().for_each(|value| *value = (*value / scale).round_ties_even() * scale);
            }
        }
    }
    model
}

#[test]
fn int8_with_float32_compute_gives_the_logits_of_candle_on_the_rounded_weights() {
    let model = TinyModel::new("qwen3", 11);
    let bench = Bench::new(&model);
    bench.convert(&["--recipe", "int8-rtn-f32-v1"]);
    let got = fill(&bench.path("out"));
    let plain = reference::logits(&bench.path("model"), &model.config, &tokens());
    let model = quantized(&model);
    model.write(&bench.path("model"));
    let rounded = reference::logits(&bench.path("model"), &model.config, &tokens());
    let (near, far) = (distance(&got, &rounded), distance(&got, &plain));
    assert!(FLOAT32.1.holds(near), "{near:?}");
    assert!(!FLOAT32.1.holds(far), "the comparison does not tell int8 from float weights: {far:?}");
}

/// Bakes a changed model and expects that the looser tolerance notices.
fn is_noticed(model: &TinyModel, what: &str, change: impl Fn(&mut TinyModel)) {
    let bench = Bench::new(model);
    let want = reference::logits(&bench.path("model"), &model.config, &tokens());
    let mut changed = model.clone();
    change(&mut changed);
    changed.write(&bench.path("model"));
    let (arguments, tolerance) = FLOAT16;
    bench.convert(arguments);
    let distance = distance(&fill(&bench.path("out")), &want);
    assert!(!tolerance.holds(distance), "{what} goes unnoticed: {distance:?}");
}

#[test]
fn a_wrong_config_or_tensor_is_noticed() {
    let qwen3 = TinyModel::new("qwen3", 12);
    is_noticed(&qwen3, "eps", |model| model.config["rms_norm_eps"] = 1e-3.into());
    is_noticed(&qwen3, "theta", |model| model.config["rope_theta"] = 11_000.0.into());
    is_noticed(&qwen3, "the last norm", |model| model.values("model.norm.weight").reverse());
    is_noticed(&TinyModel::new("llama", 20).untied(21), "two rows of the output matrix", |model| {
        let (first, second) = model.values("lm_head.weight")[7 * 64..9 * 64].split_at_mut(64);
        first.swap_with_slice(second);
    });
    is_noticed(&qwen3, "a head norm", |model| {
        let gains = model.values("model.layers.1.self_attn.k_norm.weight").clone();
        model.values("model.layers.1.self_attn.q_norm.weight").copy_from_slice(&gains);
    });
    is_noticed(&llama(13, llama3()), "scaling", |model| model.config["rope_scaling"]["high_freq_factor"] = 3.0.into());
    is_noticed(&TinyModel::new("qwen2", 14), "a bias", |model| {
        model.values("model.layers.1.self_attn.k_proj.bias").reverse();
    });
}
