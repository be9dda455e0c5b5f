//! The recipe as it is written: what serde reads and prints, and what the JSON Schema is derived from.
//!
//! The schema is also the checker: `check` walks it, so a key, a word or a range is stated here and nowhere else.

use std::sync::LazyLock;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};

use super::values::{ComputePrecision, Granularity, KvCache, Norm, Requirement, Rounding, Scheme, Target, WeightDtype};
use super::{Functions, Gate, Package, Smoke};

/// What the gate asks where a recipe does not say: short, with one likely answer each.
const DEFAULT_PROMPTS: [&str; 5] = [
    "The capital of France is",
    "2 plus 2 equals",
    "The opposite of hot is",
    "Once upon a time there was a",
    "The chemical symbol for gold is",
];

/// A recipe of anebake: how a checkpoint becomes Core ML packages.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "anebake recipe")]
pub(super) struct Document {
    /// Version of the recipe format.
    #[schemars(range(min = 1, max = 1))]
    pub schema: u32,
    /// Name of the recipe; without it, the file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", regex(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$"))]
    pub name: Option<String>,
    /// What the recipe is for, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub description: Option<String>,
    /// The recipe whose values hold where this one says nothing: a built-in name, or a path relative to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub extends: Option<String>,
    /// The model to bake where the command line names none.
    #[serde(default)]
    pub model: ModelKeys,
    /// The graph.
    #[serde(default)]
    pub package: Package,
    /// How projection weights are stored.
    #[serde(default)]
    pub weights: WeightKeys,
    /// Other weight keys for some tensors; the last entry that matches a tensor wins. A recipe's entries follow its
    /// parent's.
    #[serde(default, rename = "override", skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideKeys>,
    /// What the chain of packages must reach to pass.
    #[serde(default)]
    pub gate: Gate,
    /// What the packages must show on Core ML to pass.
    #[serde(default)]
    pub smoke: Smoke,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelKeys {
    /// `hf:owner/name[@revision]`, `sample`, or a path to a `.gguf` file or a folder, relative to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub source: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub(super) struct WeightKeys {
    /// Dtype of the stored weights; `float16` by default, for which the other keys of this table have no meaning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WeightDtype")]
    pub dtype: Option<WeightDtype>,
    /// How integers relate to weights; `linear_symmetric` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Scheme")]
    pub scheme: Option<Scheme>,
    /// How many weights share a scale; `per_channel` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Granularity")]
    pub granularity: Option<Granularity>,
    /// Inputs per scale; with `per_block` only, and needed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "usize", range(min = 2, max = 65536))]
    pub block_size: Option<usize>,
    /// How quotients become integers; `nearest` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Rounding")]
    pub rounding: Option<Rounding>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(super) struct OverrideKeys {
    /// Regular expression that must match a tensor's whole name, `layers.N.<role>` without `.weight`, for instance
    /// `layers.0.mlp.down_proj`, or `lm_head`.
    pub tensors: String,
    #[serde(flatten)]
    pub weights: WeightKeys,
}

/// The JSON Schema of a recipe, subschemas inlined.
pub(super) static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Document>().to_value();
    close(&mut schema);
    schema
});

/// Forbids unknown keys in every object, those made by `flatten` included.
fn close(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(object) => {
            if object.contains_key("properties") {
                object.insert("additionalProperties".into(), false.into());
            }
            object.values_mut().for_each(close);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// The text of `schemas/recipe.schema.json`.
pub fn schema_text() -> String {
    let mut text = serde_json::to_string_pretty(&*SCHEMA).expect("a JSON value prints");
    text.push('\n');
    text
}

impl Default for Package {
    fn default() -> Self {
        Self {
            target: Target::MacOs15,
            compute_precision: ComputePrecision::Float16,
            context: 512,
            norm: Norm::MaxScaled,
            kv: KvCache::Slice,
            query: 1,
            functions: Functions::default(),
        }
    }
}

impl Default for Functions {
    fn default() -> Self {
        Self { decode: 1, prefill: 64 }
    }
}

impl Default for Smoke {
    fn default() -> Self {
        Self { require: vec![Requirement::Load, Requirement::Numerics], min_cosine: 0.999 }
    }
}

impl Default for Gate {
    fn default() -> Self {
        let prompts = DEFAULT_PROMPTS.map(str::to_owned).to_vec();
        Self { min_cosine: 0.999, min_top1: 1.0, steps: 8, enforce: true, prompts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipe_schema_file_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/recipe.schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, schema_text()).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == schema_text(),
            "schemas/recipe.schema.json is stale; write it anew with \
             `UPDATE_SCHEMA=1 cargo test --release --lib recipe_schema`"
        );
    }
}
