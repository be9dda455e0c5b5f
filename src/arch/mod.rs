//! From a model's own description to the shape of its blocks: one file per `model_type`.
//!
//! Owns [`ModelConfig`] (read from a Hugging Face `config.json` or from GGUF metadata) and the lists of tensors that
//! blocks, head and embedding are made of. Knows nothing of files: `checkpoint` hands it parsed metadata and looks tensors up.
//!
//! A description that asks for maths which the blocks do not do (another activation, a sliding window, a RoPE
//! variant) is refused here, by the key that asks for it.

mod gguf;
mod hugging_face;
mod llama;
mod qwen2;
mod qwen3;
mod rope;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::error::Fault;

pub use gguf::{GgufTensors, GgufValue};

/// Sizes above this are taken for a damaged or hostile file; no known model comes near.
const MAX_SIZE: usize = 1_000_000;
/// The same for positions, which long-context models count in millions.
const MAX_POSITIONS: usize = 1_000_000_000;

/// Hugging Face name of the embedding table.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Hugging Face name of the final norm's gain.
pub const FINAL_NORM: &str = "model.norm.weight";

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

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Architecture {
    type Err = Fault;

    /// An input fault that lists what is supported, for anything but a name of [`Self::ALL`].
    fn from_str(name: &str) -> Result<Self, Fault> {
        Self::ALL.into_iter().find(|architecture| architecture.as_str() == name).ok_or_else(|| {
            let supported = Self::ALL.map(|architecture| format!("`{architecture}`")).join(", ");
            Fault::input(format!("architecture `{name}` is not supported; supported are {supported}"))
        })
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

impl ModelConfig {
    /// Reads a Hugging Face `config.json`, of transformers 4 or 5.
    ///
    /// `has_lm_head` says whether the checkpoint holds `lm_head.weight`: it decides about [`Self::tied_embeddings`]
    /// where the file does not say. Defaults are taken only where transformers documents them: `head_dim` is
    /// `hidden_size / num_attention_heads`, `num_key_value_heads` is `num_attention_heads`, and switches are off.
    ///
    /// # Errors
    /// Input faults: a missing or unusable key, an unsupported architecture, or a feature that the blocks lack.
    pub fn from_hugging_face(config: &serde_json::Value, has_lm_head: bool) -> Result<Self> {
        hugging_face::read(config, has_lm_head)?.validated()
    }

    /// Reads GGUF metadata; `get` looks a key up.
    ///
    /// Defaults are llama.cpp's own: `attention.key_length` is `embedding_length / attention.head_count`,
    /// `attention.head_count_kv` is `attention.head_count`, `rope.scaling.type` is `linear` where a factor is given.
    ///
    /// # Errors
    /// As [`Self::from_hugging_face`].
    pub fn from_gguf<'a>(get: impl Fn(&str) -> Option<&'a GgufValue>, tensors: GgufTensors) -> Result<Self> {
        gguf::read(&get, tensors)?.validated()
    }

    /// The tensors of one block, the same for every block, in the order in which the block uses them.
    pub fn block_tensors(&self) -> Vec<ModelTensor> {
        match self.architecture {
            Architecture::Qwen3 => qwen3::block_tensors(self),
            Architecture::Llama => llama::block_tensors(self),
            Architecture::Qwen2 => qwen2::block_tensors(self),
        }
    }

    /// The tensors of the head, whose output matrix is split into parts of so many rows: the final norm's gain, then the
    /// parts in order.
    pub fn head_tensors(&self, rows: &[usize]) -> Vec<ModelTensor> {
        let parts = rows.iter().enumerate();
        let part = |(number, &rows)| ModelTensor::rows("lm_head", number, TensorKind::Projection, rows, self.hidden);
        std::iter::once(ModelTensor::gain("norm.weight", "norm_weight", self.hidden)).chain(parts.map(part)).collect()
    }

    /// The embedding table in parts of so many rows.
    pub fn embedding_tensors(&self, rows: &[usize]) -> Vec<ModelTensor> {
        let parts = rows.iter().enumerate();
        let part =
            |(number, &rows)| ModelTensor::rows("embed_tokens", number, TensorKind::Embedding, rows, self.hidden);
        parts.map(part).collect()
    }

    /// Hugging Face name of the output matrix.
    pub fn output_matrix(&self) -> &'static str {
        if self.tied_embeddings { EMBEDDING } else { "lm_head.weight" }
    }

    fn validated(self) -> Result<Self> {
        for (what, size, limit) in [
            ("number of blocks", self.layers, MAX_SIZE),
            ("hidden size", self.hidden, MAX_SIZE),
            ("number of attention heads", self.heads, MAX_SIZE),
            ("number of key/value heads", self.kv_heads, MAX_SIZE),
            ("head dimension", self.head_dim, MAX_SIZE),
            ("intermediate size", self.intermediate, MAX_SIZE),
            ("vocabulary size", self.vocab, MAX_SIZE),
            ("number of positions", self.max_positions, MAX_POSITIONS),
        ] {
            if size == 0 || size > limit {
                bail!(Fault::input(format!("the {what} is {size}; it must be from 1 to {limit}")));
            }
        }
        if !self.head_dim.is_multiple_of(2) {
            bail!(Fault::input(format!("the head dimension is {}; RoPE needs an even one", self.head_dim)));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            bail!(Fault::input(format!(
                "{} attention heads cannot share {} key/value heads evenly",
                self.heads, self.kv_heads
            )));
        }
        for (what, value) in [("RMSNorm epsilon", self.rms_norm_eps), ("RoPE base", self.rope_theta)] {
            if !(value.is_finite() && value > 0.0) {
                bail!(Fault::input(format!("the {what} is {value}; it must be finite and above 0")));
            }
        }
        self.rope_scaling.validate(self.head_dim)?;
        Ok(self)
    }
}

impl RopeScaling {
    fn validate(&self, head_dim: usize) -> Result<()> {
        let positive = |what: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            Err(Fault::input(format!("the RoPE scaling's {what} is {value}; it must be finite and above 0")))
        };
        match self {
            Self::None => {}
            Self::Linear { factor } => positive("factor", *factor)?,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                positive("factor", *factor)?;
                positive("low_freq_factor", *low_freq_factor)?;
                positive("high_freq_factor", *high_freq_factor)?;
                if low_freq_factor >= high_freq_factor {
                    bail!(Fault::input(format!(
                        "the RoPE scaling's low_freq_factor {low_freq_factor} is not below its high_freq_factor \
                         {high_freq_factor}"
                    )));
                }
                if *original_max_positions == 0 || *original_max_positions > MAX_POSITIONS {
                    bail!(Fault::input(format!(
                        "the RoPE scaling's original context is {original_max_positions}; it must be from 1 to \
                         {MAX_POSITIONS}"
                    )));
                }
            }
            Self::Divisors { divisors } => {
                if divisors.len() != head_dim / 2 {
                    bail!(Fault::input(format!(
                        "`rope_freqs.weight` has {} values; a head dimension of {head_dim} needs {}",
                        divisors.len(),
                        head_dim / 2
                    )));
                }
                for divisor in divisors {
                    positive("divisor in `rope_freqs.weight`", f64::from(*divisor))?;
                }
            }
        }
        Ok(())
    }
}

/// What a tensor is for; decides whether it is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// Matrix `[out, in]` of a 1x1 convolution; the only kind that is quantized.
    Projection,
    /// RMSNorm gain `[n]`.
    Gain,
    /// Bias `[out]`.
    Bias,
    /// Rows of the embedding table, `[rows, hidden]`.
    Embedding,
}

/// One tensor of a block, of the head, or of the embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTensor {
    /// The role: in a block the name below `model.layers.N.`, for instance `self_attn.q_proj.weight`, the same in every
    /// block; elsewhere the name below `model.`, rows of a matrix numbered: `lm_head_0.weight`.
    pub role: Cow<'static, str>,
    /// Name of the const in the graph, for instance `q_proj_weight`.
    pub const_name: Cow<'static, str>,
    /// What it is for.
    pub kind: TensorKind,
    /// Shape in the checkpoint: `[out, in]` or `[n]`.
    pub shape: Vec<usize>,
}

impl ModelTensor {
    fn projection(role: &'static str, const_name: &'static str, out: usize, input: usize) -> Self {
        Self { role: role.into(), const_name: const_name.into(), kind: TensorKind::Projection, shape: vec![out, input] }
    }

    fn gain(role: &'static str, const_name: &'static str, size: usize) -> Self {
        Self { role: role.into(), const_name: const_name.into(), kind: TensorKind::Gain, shape: vec![size] }
    }

    fn bias(role: &'static str, const_name: &'static str, size: usize) -> Self {
        Self { role: role.into(), const_name: const_name.into(), kind: TensorKind::Bias, shape: vec![size] }
    }

    /// Rows of a matrix, the part with this number.
    fn rows(matrix: &str, number: usize, kind: TensorKind, rows: usize, columns: usize) -> Self {
        let (role, const_name) = (format!("{matrix}_{number}.weight"), format!("{matrix}_{number}_weight"));
        Self { role: role.into(), const_name: const_name.into(), kind, shape: vec![rows, columns] }
    }
}
