//! From a model's own description to the shape of its blocks: one file per `model_type`.
//!
//! Owns [`ModelConfig`] (read from a Hugging Face `config.json` or from GGUF metadata) and the list of tensors that
//! a block is made of. Knows nothing of files: `checkpoint` hands it parsed metadata and looks tensors up.

use serde::Serialize;

/// A supported architecture; the spelling is the `model_type` of Hugging Face's `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3: per-head RMSNorm on q and k, no biases.
    Qwen3,
    /// Llama 2 and 3.x, SmolLM2.
    Llama,
    /// Qwen2 and 2.5: biases on q, k and v.
    Qwen2,
}

impl Architecture {
    /// Every supported architecture.
    pub const ALL: [Self; 3] = [Self::Qwen3, Self::Llama, Self::Qwen2];

    /// The `model_type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }
}

impl Serialize for Architecture {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// How RoPE's frequencies are stretched beyond the plain `theta^(-2i/head_dim)`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Plain frequencies.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor, > 0.
        factor: f64,
    },
    /// Llama 3's piecewise scaling.
    Llama3 {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are divided by `factor`.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` stay.
        high_freq_factor: f64,
        /// Context length before scaling, in tokens.
        original_max_positions: usize,
    },
    /// One divisor per frequency (GGUF's `rope_freqs.weight`), `head_dim / 2` values.
    Divisors {
        /// The divisors, lowest index = highest frequency.
        divisors: Vec<f32>,
    },
}

/// What a model's files say about it. Nothing here is a guess: a missing value is an error where it is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Architecture.
    pub architecture: Architecture,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; not always `hidden / heads`. Even.
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// RMSNorm's epsilon.
    pub rms_norm_eps: f64,
    /// RoPE base.
    pub rope_theta: f64,
    /// RoPE scaling.
    pub rope_scaling: RopeScaling,
    /// Longest context the model was made for, in tokens.
    pub max_positions: usize,
    /// Whether lm_head is the embedding table.
    pub tied_embeddings: bool,
}

/// What a block tensor is for; decides whether it is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// Matrix `[out, in]` of a 1x1 convolution; the only kind that is quantized.
    Projection,
    /// RMSNorm gain `[n]`.
    Gain,
    /// Bias `[out]`.
    Bias,
}

/// One tensor of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTensor {
    /// Name below `model.layers.N.`, for instance `self_attn.q_proj.weight`: the role, the same in every block.
    pub role: &'static str,
    /// Name of the const in the graph, for instance `q_proj_weight`.
    pub const_name: &'static str,
    /// What it is for.
    pub kind: TensorKind,
    /// Shape in the checkpoint: `[out, in]` or `[n]`.
    pub shape: Vec<usize>,
}
