//! The model as its papers have it, in float32 and in one piece: no cache, no padding, no fused op. Shares no code with
//! the graphs or with candle-transformers, from which only the tensor type is taken.
//!
//! It shows what candle-transformers does not: the residual stream after each block, and the logits of every position.

use anyhow::{Context, Result};
use candle_core::{D, Device, Tensor};

use super::weights::Weights;
use crate::arch::{Architecture, EMBEDDING, FINAL_NORM, ModelConfig, RopeScaling};

/// Runs all blocks on `tokens`, the first of which is at position 0; gives the residual stream behind the last,
/// [tokens, hidden]. `watch` is given the residual stream before the first block, as 0, and after each block `i`, as
/// `i + 1`.
///
/// # Errors
/// A token that the vocabulary lacks, or a tensor that does not fit.
pub fn residual(
    weights: &Weights,
    tokens: &[u32],
    watch: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
) -> Result<Tensor> {
    let config = weights.config();
    let tokens_in = Tensor::new(tokens, &Device::Cpu)?;
    let mut hidden = weights.get(EMBEDDING)?.index_select(&tokens_in, 0)?;
    watch(0, &hidden)?;
    let rope = Rope::new(config, tokens.len())?;
    let mask = causal_mask(tokens.len())?;
    for block in 0..config.layers {
        hidden = Block { weights, index: block }
            .forward(&hidden, &rope, &mask)
            .with_context(|| format!("block {block} of the plain forward pass"))?;
        watch(block + 1, &hidden)?;
    }
    Ok(hidden)
}

/// Logits of rows of the residual stream behind the last block: [rows, hidden] to [rows, vocab].
///
/// # Errors
/// A tensor does not fit.
pub fn logits(weights: &Weights, hidden: &Tensor) -> Result<Tensor> {
    let normed = rms_norm(hidden, weights.get(FINAL_NORM)?, weights.config().rms_norm_eps)?;
    Ok(normed.matmul(&weights.lm_head()?.t()?)?)
}

/// `x / sqrt(mean(x²) + eps) * gain` over the last axis.
fn rms_norm(x: &Tensor, gain: &Tensor, eps: f64) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    Ok(x.broadcast_div(&(mean + eps)?.sqrt()?)?.broadcast_mul(gain)?)
}

/// [tokens, tokens]: 0 where a row may look, minus infinity where it may not.
fn causal_mask(tokens: usize) -> Result<Tensor> {
    let values =
        (0..tokens).flat_map(|row| (0..tokens).map(move |column| if column <= row { 0.0 } else { f32::NEG_INFINITY }));
    Ok(Tensor::from_vec(values.collect::<Vec<f32>>(), (tokens, tokens), &Device::Cpu)?)
}

struct Block<'a> {
    weights: &'a Weights,
    index: usize,
}

impl Block<'_> {
    fn tensor(&self, role: &str) -> Result<&Tensor> {
        self.weights.get(&format!("model.layers.{}.{role}", self.index))
    }

    /// `x · weightᵀ`, and `bias` where the architecture has one.
    fn linear(&self, x: &Tensor, role: &str, bias: bool) -> Result<Tensor> {
        let y = x.matmul(&self.tensor(&format!("{role}.weight"))?.t()?)?;
        Ok(if bias { y.broadcast_add(self.tensor(&format!("{role}.bias"))?)? } else { y })
    }

    fn forward(&self, x: &Tensor, rope: &Rope, mask: &Tensor) -> Result<Tensor> {
        let eps = self.weights.config().rms_norm_eps;
        let normed = rms_norm(x, self.tensor("input_layernorm.weight")?, eps)?;
        let x = (x + self.attention(&normed, rope, mask)?)?;
        let normed = rms_norm(&x, self.tensor("post_attention_layernorm.weight")?, eps)?;
        let gate = self.linear(&normed, "mlp.gate_proj", false)?;
        // silu(x) = x / (1 + e^-x).
        let gate = (&gate / (gate.neg()?.exp()? + 1.0)?)?;
        let gated = (gate * self.linear(&normed, "mlp.up_proj", false)?)?;
        Ok((x + self.linear(&gated, "mlp.down_proj", false)?)?)
    }

    fn attention(&self, x: &Tensor, rope: &Rope, mask: &Tensor) -> Result<Tensor> {
        let ModelConfig { architecture, heads, kv_heads, head_dim, rms_norm_eps, .. } = *self.weights.config();
        let rows = x.dim(0)?;
        let bias = architecture == Architecture::Qwen2;
        // [count, tokens, head_dim]
        let split = |role: &str, count: usize| -> Result<Tensor> {
            let y = self.linear(x, &format!("self_attn.{role}_proj"), bias)?;
            let y = y.reshape((rows, count, head_dim))?.transpose(0, 1)?.contiguous()?;
            match (architecture, role) {
                (Architecture::Qwen3, "q" | "k") => {
                    rms_norm(&y, self.tensor(&format!("self_attn.{role}_norm.weight"))?, rms_norm_eps)
                }
                _ => Ok(y),
            }
        };
        let q = (rope.rotate(&split("q", heads)?)? * (head_dim as f64).powf(-0.5))?;
        let k = rope.rotate(&split("k", kv_heads)?)?;
        let v = split("v", kv_heads)?;
        let mut mixed = Vec::with_capacity(heads);
        // One head at a time: all scores at once would take heads · tokens² floats.
        for head in 0..heads {
            let shared = head / (heads / kv_heads);
            let scores = (q.get(head)?.matmul(&k.get(shared)?.t()?)? + mask)?;
            let scores = scores.broadcast_sub(&scores.max_keepdim(1)?)?.exp()?;
            let scores = scores.broadcast_div(&scores.sum_keepdim(1)?)?;
            mixed.push(scores.matmul(&v.get(shared)?)?);
        }
        self.linear(&Tensor::cat(&mixed, 1)?, "self_attn.o_proj", false)
    }
}

/// Rotary position embedding over the halves of a head: dimensions i and i + head_dim / 2 turn together.
struct Rope {
    /// [tokens, head_dim / 2]
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    fn new(config: &ModelConfig, tokens: usize) -> Result<Self> {
        let frequencies = frequencies(config);
        let table = |turn: fn(f64) -> f64| {
            let values = (0..tokens)
                .flat_map(|position| frequencies.iter().map(move |frequency| turn(position as f64 * frequency) as f32));
            Tensor::from_vec(values.collect::<Vec<f32>>(), (tokens, frequencies.len()), &Device::Cpu)
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// [heads, tokens, head_dim] turned.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let half = x.dim(2)? / 2;
        let (low, high) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let turned_low = (low.broadcast_mul(&self.cos)? - high.broadcast_mul(&self.sin)?)?;
        let turned_high = (high.broadcast_mul(&self.cos)? + low.broadcast_mul(&self.sin)?)?;
        Ok(Tensor::cat(&[turned_low, turned_high], 2)?)
    }
}

/// Radians per position of each pair of dimensions.
fn frequencies(config: &ModelConfig) -> Vec<f64> {
    let pairs = config.head_dim / 2;
    let plain = (0..pairs).map(|pair| config.rope_theta.powf(-(pair as f64) / pairs as f64));
    match &config.rope_scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
        RopeScaling::Divisors { divisors } => {
            plain.zip(divisors).map(|(frequency, divisor)| frequency / f64::from(*divisor)).collect()
        }
        // Llama 3.1: waves shorter than original / high_freq_factor stay, those longer than original / low_freq_factor
        // are stretched by the factor, those between get a mean of both.
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => plain
            .map(|frequency| {
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                let original = *original_max_positions as f64;
                if wavelength < original / high_freq_factor {
                    frequency
                } else if wavelength > original / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rope_scaling: RopeScaling) -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Llama,
            layers: 1,
            hidden: 8,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            intermediate: 8,
            vocab: 8,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling,
            max_positions: 64,
            tied_embeddings: true,
        }
    }

    #[test]
    fn frequencies_are_divided_one_by_one_or_all_alike() {
        let near = |got: Vec<f64>, want: [f64; 4]| {
            assert!(
                got.iter().zip(want).all(|(got, want)| (got / want - 1.0).abs() < 1e-12),
                "{got:?} is not {want:?}"
            );
        };
        near(frequencies(&config(RopeScaling::None)), [1.0, 0.1, 0.01, 0.001]);
        near(frequencies(&config(RopeScaling::Linear { factor: 4.0 })), [0.25, 0.025, 0.0025, 0.00025]);
        let divisors = vec![1.0, 2.0, 4.0, 8.0];
        near(frequencies(&config(RopeScaling::Divisors { divisors })), [1.0, 0.05, 0.0025, 0.000125]);
    }
}
