//! What the model should say: greedy continuations and their logits, from candle-transformers in float32 on the source
//! checkpoint. Shares no code with the graphs.

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor};
use candle_nn::Activation;
use candle_transformers::models::{llama, qwen2, qwen3};
use serde::{Deserialize, Serialize};

use super::prompts::Prompt;
use super::weights::Weights;
use crate::arch::{Architecture, ModelConfig, RopeScaling};
use crate::error::{Fault, OrFault};
use crate::tokenizer::Tokenizer;

/// candle's llama cuts its cache where this is below the number of KV heads.
const LEAST_POSITIONS: usize = 1024;

/// Greedy continuations of prompts, and the logits that led to each of their tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// What was asked.
    pub prompts: Vec<Prompt>,
    /// Tokens of each prompt, where they are known.
    pub tokens: Option<Vec<Vec<u32>>>,
    /// Tokens of each continuation.
    pub steps: usize,
    /// Logits of each step.
    pub vocab: usize,
    /// The continuations, [prompts, steps]: at each step the token of the largest logit.
    pub ids: Vec<u32>,
    /// [prompts, steps, vocab]; step 0 follows the prompt alone.
    pub logits: Vec<f32>,
    /// Where it comes from.
    pub about: Option<About>,
}

/// Where a baseline comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// What computed it.
    pub made_by: String,
    /// What was asked for: `sample`, `hf:…`, or the name of a folder or file.
    pub model: String,
    /// `model_type`.
    pub architecture: String,
    /// The checkpoint's files: name and size in bytes.
    pub files: Vec<(String, u64)>,
}

impl Baseline {
    /// Continues each prompt greedily by `steps` tokens.
    ///
    /// # Errors
    /// A usage fault where a prompt has no tokens or one that the vocabulary lacks; an input fault where candle cannot
    /// build the model, and says why.
    pub fn compute(weights: &Weights, prompts: &[Prompt], tokenizer: Option<&Tokenizer>, steps: usize) -> Result<Self> {
        let vocab = weights.config().vocab;
        let tokens: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.tokens(tokenizer)).collect::<Result<_>>()?;
        for (prompt, tokens) in prompts.iter().zip(&tokens) {
            if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
                return Err(
                    Fault::usage(format!("{prompt}: token {token} is none of the {vocab} of the vocabulary")).into()
                );
            }
        }
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        let mut model = CandleModel::new(weights, longest + steps)?;
        let mut ids = Vec::with_capacity(prompts.len() * steps);
        let mut logits = Vec::with_capacity(prompts.len() * steps * vocab);
        for (prompt, tokens) in prompts.iter().zip(&tokens) {
            model.begin()?;
            let mut next = tokens.clone();
            let mut position = 0;
            for step in 0..steps {
                let row = model.forward(&next, position)?;
                if let Some(token) = row.iter().position(|value| !value.is_finite()) {
                    bail!(Fault::input(format!(
                        "the baseline of {prompt}, step {step}: the logit of token {token} is {}",
                        row[token]
                    )));
                }
                position += next.len();
                let best = top1(&row);
                next = vec![best];
                ids.push(best);
                logits.extend(row);
            }
        }
        Ok(Self { prompts: prompts.to_vec(), tokens: Some(tokens), steps, vocab, ids, logits, about: None })
    }

    /// The continuation of a prompt.
    pub fn ids(&self, prompt: usize) -> &[u32] {
        &self.ids[prompt * self.steps..(prompt + 1) * self.steps]
    }

    /// Logits of one step.
    pub fn logits(&self, prompt: usize, step: usize) -> &[f32] {
        let start = (prompt * self.steps + step) * self.vocab;
        &self.logits[start..start + self.vocab]
    }

    /// The same with fewer steps.
    #[must_use]
    pub fn with_steps(&self, steps: usize) -> Self {
        let steps = steps.min(self.steps);
        let all = 0..self.prompts.len();
        Self {
            steps,
            ids: all.clone().flat_map(|prompt| &self.ids(prompt)[..steps]).copied().collect(),
            logits: all
                .flat_map(|prompt| (0..steps).map(move |step| (prompt, step)))
                .flat_map(|(prompt, step)| self.logits(prompt, step))
                .copied()
                .collect(),
            prompts: self.prompts.clone(),
            tokens: self.tokens.clone(),
            vocab: self.vocab,
            about: self.about.clone(),
        }
    }
}

/// The token of the largest logit, the first of equals, as numpy's `argmax` has it. NaN is never the largest.
pub fn top1(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (token, &logit)| if logit > best.1 { (token, logit) } else { best });
    u32::try_from(best.0).expect("vocabularies are below 2^32")
}

/// A model of candle-transformers with the cache of one conversation.
pub struct CandleModel(Candle);

enum Candle {
    Qwen3(Box<qwen3::ModelForCausalLM>),
    Qwen2(Box<qwen2::ModelForCausalLM>),
    Llama { model: Box<llama::Llama>, config: llama::Config, cache: Box<llama::Cache> },
}

impl CandleModel {
    /// Builds the model for conversations of so many tokens.
    ///
    /// # Errors
    /// An input fault where candle cannot build the model, and says why.
    pub fn new(weights: &Weights, positions: usize) -> Result<Self> {
        let config = weights.config();
        refuse(config).map_err(|what| {
            Fault::input(format!("candle-transformers cannot make the baseline: {what}"))
                .with_hint("give logits made elsewhere: `--baseline FILE.npz`")
        })?;
        let positions = positions.max(LEAST_POSITIONS);
        let model = match config.architecture {
            Architecture::Qwen3 => qwen3::ModelForCausalLM::new(&qwen3_config(config, positions), weights.builder())
                .map(|model| Candle::Qwen3(Box::new(model))),
            Architecture::Qwen2 => qwen2::ModelForCausalLM::new(&qwen2_config(config, positions), weights.builder())
                .map(|model| Candle::Qwen2(Box::new(model))),
            Architecture::Llama => {
                let config = llama_config(config, positions);
                llama::Llama::load(weights.builder(), &config).and_then(|model| {
                    let cache = Box::new(llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?);
                    Ok(Candle::Llama { model: Box::new(model), config, cache })
                })
            }
        };
        model.map(Self).or_fault(|| Fault::input("candle-transformers cannot build the model"))
    }

    /// Forgets all tokens.
    ///
    /// # Errors
    /// The new cache cannot be made.
    pub fn begin(&mut self) -> Result<()> {
        match &mut self.0 {
            Candle::Qwen3(model) => model.clear_kv_cache(),
            Candle::Qwen2(model) => model.clear_kv_cache(),
            Candle::Llama { config, cache, .. } => {
                **cache = llama::Cache::new(true, DType::F32, config, &Device::Cpu)?;
            }
        }
        Ok(())
    }

    /// Logits after `tokens`, the first of which is at `position`.
    ///
    /// # Errors
    /// The forward pass fails.
    pub fn forward(&mut self, tokens: &[u32], position: usize) -> Result<Vec<f32>> {
        let input = Tensor::from_slice(tokens, (1, tokens.len()), &Device::Cpu)?;
        let logits = match &mut self.0 {
            Candle::Qwen3(model) => model.forward(&input, position),
            Candle::Qwen2(model) => model.forward(&input, position),
            Candle::Llama { model, cache, .. } => model.forward(&input, position, cache),
        };
        logits
            .and_then(|logits| logits.flatten_all()?.to_vec1())
            .context("the forward pass of candle-transformers failed")
    }
}

/// What candle's models do not do, in words.
fn refuse(config: &ModelConfig) -> Result<(), String> {
    let architecture = config.architecture;
    if architecture != Architecture::Qwen3 && config.head_dim * config.heads != config.hidden {
        return Err(format!(
            "its `{architecture}` has heads of hidden / heads = {} / {}, the model has heads of {}",
            config.hidden, config.heads, config.head_dim
        ));
    }
    match (&config.rope_scaling, architecture) {
        (RopeScaling::Divisors { .. }, _) => Err("it takes no RoPE divisors (`rope_freqs.weight`)".to_owned()),
        (RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. }, Architecture::Qwen3 | Architecture::Qwen2) => {
            Err(format!("its `{architecture}` has no RoPE scaling"))
        }
        _ => Ok(()),
    }
}

fn qwen3_config(config: &ModelConfig, positions: usize) -> qwen3::Config {
    qwen3::Config {
        vocab_size: config.vocab,
        hidden_size: config.hidden,
        intermediate_size: config.intermediate,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        head_dim: config.head_dim,
        attention_bias: false,
        num_key_value_heads: config.kv_heads,
        max_position_embeddings: positions,
        sliding_window: None,
        max_window_layers: config.layers,
        tie_word_embeddings: config.tied_embeddings,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

fn qwen2_config(config: &ModelConfig, positions: usize) -> qwen2::Config {
    qwen2::Config {
        vocab_size: config.vocab,
        hidden_size: config.hidden,
        intermediate_size: config.intermediate,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        num_key_value_heads: config.kv_heads,
        max_position_embeddings: positions,
        // candle applies it whatever `use_sliding_window` says.
        sliding_window: positions,
        max_window_layers: config.layers,
        tie_word_embeddings: config.tied_embeddings,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

fn llama_config(config: &ModelConfig, positions: usize) -> llama::Config {
    let rope_scaling = match config.rope_scaling {
        // candle has no linear scaling, but its `llama3` divides every frequency by the factor where all wavelengths
        // (2π and longer) lie above the original context.
        RopeScaling::Linear { factor } => Some(llama::Llama3RopeConfig {
            factor: factor as f32,
            low_freq_factor: 1.0,
            high_freq_factor: 2.0,
            original_max_position_embeddings: 1,
            rope_type: llama::Llama3RopeType::Llama3,
        }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            Some(llama::Llama3RopeConfig {
                factor: factor as f32,
                low_freq_factor: low_freq_factor as f32,
                high_freq_factor: high_freq_factor as f32,
                original_max_position_embeddings: original_max_positions,
                rope_type: llama::Llama3RopeType::Llama3,
            })
        }
        RopeScaling::None | RopeScaling::Divisors { .. } => None,
    };
    llama::Config {
        hidden_size: config.hidden,
        intermediate_size: config.intermediate,
        vocab_size: config.vocab,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        num_key_value_heads: config.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: config.rms_norm_eps,
        rope_theta: config.rope_theta as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling,
        max_position_embeddings: positions,
        tie_word_embeddings: config.tied_embeddings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logit_is_found_the_first_of_equals_and_never_nan() {
        assert_eq!(top1(&[1.0, 3.0, 3.0, -1.0]), 1);
        assert_eq!(top1(&[f32::NAN, -5.0, -4.0]), 2);
        assert_eq!(top1(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
    }

    #[test]
    fn fewer_steps_are_the_first_ones_of_each_prompt() {
        let baseline = Baseline {
            prompts: vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2])],
            tokens: None,
            steps: 3,
            vocab: 2,
            ids: vec![0, 1, 0, 1, 1, 0],
            logits: (0..12u8).map(f32::from).collect(),
            about: None,
        };
        let short = baseline.with_steps(2);
        assert_eq!((short.steps, short.ids.as_slice()), (2, &[0, 1, 1, 1][..]));
        assert_eq!(short.logits, [0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(short.logits(1, 1), baseline.logits(1, 1));
        assert_eq!(baseline.with_steps(9), baseline);
    }
}
