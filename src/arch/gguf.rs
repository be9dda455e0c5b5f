//! Reads GGUF metadata, by the keys that llama.cpp's `gguf-py/gguf/constants.py` lists.

use std::str::FromStr;

use anyhow::{Result, bail};

use super::{Architecture, ModelConfig, RopeScaling};
use crate::error::Fault;

/// A metadata value, reduced to what a model description needs.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// Any integer type.
    Integer(i128),
    /// Any float type; a float32 is widened through its shortest decimal, so that the 1e-6 a converter wrote reads
    /// as 1e-6.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// A short array of integers: a per-block value.
    Integers(Vec<i128>),
    /// Any other array; its values are not kept.
    Array {
        /// Number of elements.
        length: u64,
    },
}

/// What the tensors of a GGUF file say about the model, beside its metadata.
#[derive(Clone, Debug, Default)]
pub struct GgufTensors {
    /// Rows of `token_embd.weight`.
    pub embedding_rows: Option<usize>,
    /// Whether `output.weight` is there; without it the embedding table serves as lm_head.
    pub has_output: bool,
    /// Values of `rope_freqs.weight`.
    pub rope_divisors: Option<Vec<f32>>,
}

/// Keys below the architecture that change the maths in a way the blocks lack, and the value at which they do not.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.temperature_scale", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
];

/// As [`ModelConfig::from_gguf`], sizes not yet validated.
pub(super) fn read<'a>(get: &dyn Fn(&str) -> Option<&'a GgufValue>, tensors: GgufTensors) -> Result<ModelConfig> {
    let name = match get("general.architecture") {
        Some(GgufValue::Text(name)) => name,
        Some(other) => bail!(Fault::input(format!("`general.architecture` is {other:?}; it must be a string"))),
        None => bail!(Fault::input("`general.architecture` is missing")),
    };
    let architecture = Architecture::from_str(name)?;
    let keys = Keys { get, architecture };
    let hidden = keys.size("embedding_length")?;
    let heads = keys.size("attention.head_count")?;
    let head_dim = match keys.optional_size("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => bail!(Fault::input(format!(
            "`{name}.attention.key_length` is missing, and `{name}.embedding_length` {hidden} is not a multiple of \
             `{name}.attention.head_count` {heads}"
        ))),
    };
    let max_positions = keys.size("context_length")?;
    refuse_what_blocks_lack(&keys, head_dim, max_positions)?;
    let vocab = match (tensors.embedding_rows, get("tokenizer.ggml.tokens")) {
        (Some(rows), _) => rows,
        (None, Some(GgufValue::Array { length })) => usize::try_from(*length).unwrap_or(usize::MAX),
        _ => keys.size("vocab_size")?,
    };
    Ok(ModelConfig {
        architecture,
        layers: keys.size("block_count")?,
        hidden,
        heads,
        kv_heads: keys.optional_size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        intermediate: keys.size("feed_forward_length")?,
        vocab,
        rms_norm_eps: keys.number("attention.layer_norm_rms_epsilon")?,
        rope_theta: keys.number("rope.freq_base")?,
        rope_scaling: rope_scaling(&keys, tensors.rope_divisors)?,
        max_positions,
        tied_embeddings: !tensors.has_output,
    })
}

fn refuse_what_blocks_lack(keys: &Keys<'_, '_>, head_dim: usize, max_positions: usize) -> Result<()> {
    for key in ["attention.value_length", "rope.dimension_count"] {
        match keys.optional_size(key)? {
            Some(size) if size != head_dim => bail!(Fault::input(format!(
                "{} is {size}, but the head dimension is {head_dim}; only equal ones are supported",
                keys.name(key)
            ))),
            _ => {}
        }
    }
    for &(key, neutral) in NEUTRAL {
        match keys.optional_number(key)? {
            Some(value) if value != neutral => {
                bail!(Fault::input(format!("{} is {value}; only {neutral} is supported", keys.name(key))))
            }
            _ => {}
        }
    }
    if keys.value("attention.causal") == Some(&GgufValue::Bool(false)) {
        bail!(Fault::input(format!("{} is false; only causal attention is supported", keys.name("attention.causal"))));
    }
    match keys.optional_size("attention.sliding_window")? {
        Some(window) if window != 0 && window < max_positions => bail!(Fault::input(format!(
            "{} is {window}, below the context of {max_positions}; sliding windows are not supported",
            keys.name("attention.sliding_window")
        ))),
        _ => Ok(()),
    }
}

fn rope_scaling(keys: &Keys<'_, '_>, divisors: Option<Vec<f32>>) -> Result<RopeScaling> {
    // llama.cpp reads a factor of 0 as none.
    let factor = match keys.optional_number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.optional_number("rope.scale_linear")?,
    }
    .filter(|factor| *factor != 0.0);
    let kind = match keys.value("rope.scaling.type") {
        None if factor.is_some() => "linear",
        None => "none",
        Some(GgufValue::Text(kind)) => kind,
        Some(other) => {
            bail!(Fault::input(format!("{} is {other:?}; it must be a string", keys.name("rope.scaling.type"))))
        }
    };
    let scaling = match (kind, factor) {
        ("none", _) => RopeScaling::None,
        ("linear", Some(factor)) if factor != 1.0 => RopeScaling::Linear { factor },
        ("linear", _) => RopeScaling::None,
        (other, _) => bail!(Fault::input(format!(
            "RoPE scaling `{other}` is not supported; supported are `none`, `linear` and `rope_freqs.weight`"
        ))),
    };
    match (divisors, scaling) {
        (None, scaling) => Ok(scaling),
        (Some(divisors), RopeScaling::None) => Ok(RopeScaling::Divisors { divisors }),
        (Some(_), _) => bail!(Fault::input("linear RoPE scaling together with `rope_freqs.weight` is not supported")),
    }
}

/// The keys below the architecture's name.
struct Keys<'g, 'a> {
    get: &'g dyn Fn(&str) -> Option<&'a GgufValue>,
    architecture: Architecture,
}

impl<'a> Keys<'_, 'a> {
    fn name(&self, key: &str) -> String {
        format!("`{}.{key}`", self.architecture)
    }

    fn value(&self, key: &str) -> Option<&'a GgufValue> {
        (self.get)(&format!("{}.{key}", self.architecture))
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        let size = match self.value(key) {
            None => return Ok(None),
            Some(GgufValue::Integer(size)) => *size,
            Some(GgufValue::Integers(sizes)) => match &sizes[..] {
                [first, rest @ ..] if rest.iter().all(|size| size == first) => *first,
                _ => bail!(Fault::input(format!("{} differs from block to block: {sizes:?}", self.name(key)))),
            },
            Some(other) => bail!(Fault::input(format!("{} is {other:?}; it must be an integer", self.name(key)))),
        };
        let size = usize::try_from(size)
            .ok()
            .ok_or_else(|| Fault::input(format!("{} is {size}; it must be 0 or more", self.name(key))))?;
        Ok(Some(size))
    }

    fn size(&self, key: &str) -> Result<usize> {
        Ok(self.optional_size(key)?.ok_or_else(|| self.missing(key))?)
    }

    fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(GgufValue::Float(value)) => Ok(Some(*value)),
            Some(GgufValue::Integer(value)) => Ok(Some(*value as f64)),
            Some(other) => bail!(Fault::input(format!("{} is {other:?}; it must be a number", self.name(key)))),
        }
    }

    fn number(&self, key: &str) -> Result<f64> {
        Ok(self.optional_number(key)?.ok_or_else(|| self.missing(key))?)
    }

    fn missing(&self, key: &str) -> Fault {
        Fault::input(format!("{} is missing", self.name(key)))
    }
}
