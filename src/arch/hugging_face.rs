//! Reads a Hugging Face `config.json`, of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`).

use std::str::FromStr;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::{Architecture, ModelConfig, RopeScaling, llama, qwen2, qwen3};
use crate::error::Fault;

/// As [`ModelConfig::from_hugging_face`], sizes not yet validated.
pub(super) fn read(config: &Value, has_lm_head: bool) -> Result<ModelConfig> {
    let Some(object) = config.as_object() else {
        bail!(Fault::input("not a JSON object"));
    };
    let config = Keys { object, path: "" };
    let architecture = Architecture::from_str(config.required(config.text("model_type")?, "model_type")?)?;
    refuse_what_blocks_lack(&config, architecture)?;

    let hidden = config.size("hidden_size")?;
    let heads = config.size("num_attention_heads")?;
    let head_dim = match config.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => bail!(Fault::input(format!(
            "`head_dim` is missing, and `hidden_size` {hidden} is not a multiple of `num_attention_heads` {heads}"
        ))),
    };
    let (rope_theta, rope_scaling) = rope(&config)?;
    Ok(ModelConfig {
        architecture,
        layers: config.size("num_hidden_layers")?,
        hidden,
        heads,
        kv_heads: config.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        intermediate: config.size("intermediate_size")?,
        vocab: config.size("vocab_size")?,
        rms_norm_eps: config.required(config.number("rms_norm_eps")?, "rms_norm_eps")?,
        rope_theta,
        rope_scaling,
        max_positions: config.size("max_position_embeddings")?,
        tied_embeddings: config.flag("tie_word_embeddings")?.unwrap_or(!has_lm_head),
    })
}

fn refuse_what_blocks_lack(config: &Keys<'_>, architecture: Architecture) -> Result<()> {
    if config.get("quantization_config").is_some() {
        bail!(
            Fault::input("`quantization_config` is present: the checkpoint is quantized already")
                .with_hint("use the original checkpoint, in float32, float16 or bfloat16")
        );
    }
    let activation = config.required(config.text("hidden_act")?, "hidden_act")?;
    if activation != "silu" {
        bail!(Fault::input(format!("`hidden_act` is `{activation}`; only `silu` is supported")));
    }
    let off = match architecture {
        Architecture::Qwen3 => qwen3::OFF_IN_HUGGING_FACE,
        Architecture::Llama => llama::OFF_IN_HUGGING_FACE,
        Architecture::Qwen2 => qwen2::OFF_IN_HUGGING_FACE,
    };
    for &key in off {
        if config.flag(key)? == Some(true) {
            bail!(Fault::input(format!("`{key}` is true; for `{architecture}` only false is supported")));
        }
    }
    for kind in config.get("layer_types").and_then(Value::as_array).into_iter().flatten() {
        if kind != "full_attention" {
            bail!(Fault::input(format!("`layer_types` has {kind}; only `full_attention` is supported")));
        }
    }
    refuse_partial_rotary(config)
}

fn refuse_partial_rotary(keys: &Keys<'_>) -> Result<()> {
    match keys.number("partial_rotary_factor")? {
        Some(factor) if factor != 1.0 => {
            bail!(Fault::input(format!("`{}partial_rotary_factor` is {factor}; only 1 is supported", keys.path)))
        }
        _ => Ok(()),
    }
}

/// RoPE's base and scaling. Transformers 5 keeps both under `rope_parameters`; 4 keeps them at the top level.
fn rope(config: &Keys<'_>) -> Result<(f64, RopeScaling)> {
    let top = config.number("rope_theta")?;
    let parameters = config.object("rope_parameters", "rope_parameters.")?;
    let scaling = config.object("rope_scaling", "rope_scaling.")?;
    let nested = parameters.as_ref().map(|keys| keys.number("rope_theta")).transpose()?.flatten();
    let theta = match (nested, top) {
        (Some(nested), Some(top)) if nested != top => {
            bail!(Fault::input(format!("`rope_parameters.rope_theta` is {nested}, but `rope_theta` is {top}")))
        }
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => bail!(Fault::input("`rope_theta` is missing, here and under `rope_parameters`")),
    };
    let mut scalings = Vec::new();
    for keys in [parameters, scaling].into_iter().flatten() {
        refuse_partial_rotary(&keys)?;
        scalings.push(rope_scaling(&keys)?);
    }
    match &scalings[..] {
        [] => Ok((theta, RopeScaling::None)),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => Ok((theta, first.clone())),
        _ => bail!(Fault::input("`rope_parameters` and `rope_scaling` describe different scalings")),
    }
}

fn rope_scaling(keys: &Keys<'_>) -> Result<RopeScaling> {
    let kind = match (keys.text("rope_type")?, keys.text("type")?) {
        (Some(kind), _) | (None, Some(kind)) => kind,
        // Under transformers 5 an unscaled model may hold the base alone.
        (None, None) if keys.path == "rope_parameters." => "default",
        (None, None) => bail!(Fault::input(format!("`{}rope_type` is missing", keys.path))),
    };
    let number = |key: &str| keys.required(keys.number(key)?, key);
    match kind {
        "default" | "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_positions: keys.size("original_max_position_embeddings")?,
        }),
        other => bail!(Fault::input(format!(
            "RoPE scaling `{other}` is not supported; supported are `default`, `linear`, `llama3`"
        ))),
    }
}

/// A JSON object whose keys are read by type. A key that is null counts as missing, as it does in transformers.
struct Keys<'a> {
    object: &'a Map<String, Value>,
    /// Where the object lies, with a dot at the end: for messages.
    path: &'static str,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let typed =
            read(value).ok_or_else(|| Fault::input(format!("`{}{key}` is {value}; it must be {what}", self.path)))?;
        Ok(Some(typed))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number, 0 or more", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn size(&self, key: &str) -> Result<usize> {
        self.required(self.optional_size(key)?, key)
    }

    fn object(&self, key: &str, path: &'static str) -> Result<Option<Keys<'a>>> {
        let object = self.typed(key, "an object", Value::as_object)?;
        Ok(object.map(|object| Keys { object, path }))
    }

    fn required<T>(&self, value: Option<T>, key: &str) -> Result<T> {
        Ok(value.ok_or_else(|| Fault::input(format!("`{}{key}` is missing", self.path)))?)
    }
}
