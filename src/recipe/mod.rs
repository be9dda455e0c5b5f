//! Recipes: how a checkpoint becomes packages, from TOML to a checked, resolved [`Recipe`].
//!
//! A recipe is a built-in name or a file. Its parents by `extends` come first, then the recipe, then `--set`; each
//! value remembers its [`Origin`]. Everything wrong with a recipe is a usage fault that names the recipe and the key
//! path. What the values do is left to `bake` and `quant`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::checkpoint::source::ModelSource;
use crate::error::{Fault, OrFault};

mod builtin;
mod check;
mod document;
mod layers;
mod show;
#[cfg(test)]
mod tests;
pub mod values;

pub use document::schema_text;
pub use values::{ComputePrecision, Granularity, KvCache, Norm, Requirement, Rounding, Scheme, Target, WeightDtype};

use document::{Document, ModelKeys, OverrideKeys, WeightKeys};
use layers::{Layer, Merged};

/// Where a value of a resolved recipe comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A built-in recipe of that name.
    BuiltIn(String),
    /// A recipe file.
    File(PathBuf),
    /// `--set` on the command line.
    Set,
    /// No recipe says it.
    Default,
}

impl Origin {
    /// The short form that follows a value: `int8-v1 (built-in)`, a path, `--set`, `default`.
    pub fn comment(&self) -> String {
        match self {
            Self::BuiltIn(name) => format!("{name} (built-in)"),
            Self::File(path) => path.display().to_string().replace(char::is_control, "?"),
            Self::Set => "--set".to_owned(),
            Self::Default => "default".to_owned(),
        }
    }
}

/// The form that begins an error message.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(name) => write!(f, "recipe `{name}`"),
            Self::File(path) => write!(f, "recipe `{}`", path.display()),
            Self::Set => f.write_str("`--set`"),
            Self::Default => f.write_str("recipe defaults"),
        }
    }
}

/// The functions of a package; each has a static number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Functions {
    /// Tokens of function `decode`: 1.
    #[schemars(range(min = 1, max = 1))]
    pub decode: usize,
    /// Tokens of function `prefill`.
    #[schemars(range(min = 2, max = 512))]
    pub prefill: usize,
}

impl Functions {
    /// Name and tokens of each function, the default function first.
    pub fn entries(&self) -> [(&'static str, usize); 2] {
        [("decode", self.decode), ("prefill", self.prefill)]
    }
}

/// The graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Package {
    /// Minimum deployment target.
    pub target: Target,
    /// Dtype in which the graph computes.
    pub compute_precision: ComputePrecision,
    /// Positions in the cache; at least every function's tokens.
    #[schemars(range(min = 64, max = 131_072))]
    pub context: usize,
    /// How RMSNorm is written.
    pub norm: Norm,
    /// Where keys and values are between calls. `slice`: in states, written at a position given as an integer. `mask`: in
    /// states, rewritten through a one-hot mask; no integer in the graph, for the Neural Engine. `io`: with the caller,
    /// as inputs and outputs.
    pub kv: KvCache,
    /// The least width at which functions compute: narrower ones are given this many rows, the rest of which the caller
    /// pads. The Neural Engine was seen to refuse widths 1 and 2. More than 1 needs `kv` `mask` or `io`.
    #[schemars(range(min = 1, max = 64))]
    pub query: usize,
    /// Functions and their tokens; this release takes `decode = 1` and `prefill` of 2 to 512.
    pub functions: Functions,
}

impl Package {
    /// Rows of a function that takes so many tokens.
    pub fn rows(&self, tokens: usize) -> usize {
        tokens.max(self.query)
    }
}

/// What the chain of packages must reach to pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gate {
    /// Least cosine between a step's logits and the baseline's.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_cosine: f64,
    /// Least share of steps whose most likely token is the baseline's.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_top1: f64,
    /// Greedy steps per prompt.
    #[schemars(range(min = 1, max = 1024))]
    pub steps: usize,
    /// Whether a missed gate fails the command.
    pub enforce: bool,
    /// Texts that the chain continues; at least one.
    pub prompts: Vec<String>,
}

/// What the packages must show on Core ML to pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Smoke {
    /// What counts; with `[]` nothing does. Where `ane` counts, a fallback to another processor fails.
    pub require: Vec<Requirement>,
    /// Least cosine between an output and the reference runner's.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_cosine: f64,
}

/// The model of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What to bake where the command line names no model. Paths are relative to the working directory.
    pub source: Option<ModelSource>,
}

/// How projection weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weights {
    /// Not quantized.
    Float16,
    /// As integers with scales.
    Quantized(Quantization),
}

/// How weights become integers with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quantization {
    /// How integers relate to weights.
    pub scheme: Scheme,
    /// Dtype of the integers; never `float16`.
    pub dtype: WeightDtype,
    /// How many weights share a scale.
    pub granularity: Granularity,
    /// Inputs per scale: some with `per_block`, and only there.
    pub block_size: Option<usize>,
    /// How quotients become integers.
    pub rounding: Rounding,
}

impl Weights {
    /// Dtype of the stored weights.
    pub fn dtype(&self) -> WeightDtype {
        match self {
            Self::Float16 => WeightDtype::Float16,
            Self::Quantized(quantization) => quantization.dtype,
        }
    }

    fn from_keys(keys: &WeightKeys) -> Self {
        match keys.dtype.unwrap_or(WeightDtype::Float16) {
            WeightDtype::Float16 => Self::Float16,
            dtype => Self::Quantized(Quantization {
                scheme: keys.scheme.unwrap_or(Scheme::LinearSymmetric),
                dtype,
                granularity: keys.granularity.unwrap_or(Granularity::PerChannel),
                block_size: keys.block_size,
                rounding: keys.rounding.unwrap_or(Rounding::Nearest),
            }),
        }
    }

    fn keys(&self) -> WeightKeys {
        match *self {
            Self::Float16 => WeightKeys { dtype: Some(WeightDtype::Float16), ..WeightKeys::default() },
            Self::Quantized(quantization) => WeightKeys {
                dtype: Some(quantization.dtype),
                scheme: Some(quantization.scheme),
                granularity: Some(quantization.granularity),
                block_size: quantization.block_size,
                rounding: Some(quantization.rounding),
            },
        }
    }
}

/// Serialized as the keys of `[weights]`.
impl Serialize for Weights {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.keys().serialize(serializer)
    }
}

/// Other weights for the tensors that a pattern matches.
#[derive(Clone, Debug)]
pub struct Override {
    tensors: String,
    whole: Regex,
    weights: Weights,
}

impl Override {
    fn new(tensors: String, weights: Weights, at: &str, origin: &Origin) -> Result<Self> {
        let whole = Regex::new(&tensors).and_then(|_| Regex::new(&format!("^(?:{tensors})$"))).map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Fault::usage(format!("{origin}: `{at}.tensors` is no regular expression: `{tensors}`: {reason}"))
                .with_hint("escape a literal dot as `\\.`, for instance 'layers\\.(0|27)\\.mlp\\.down_proj'")
        })?;
        Ok(Self { tensors, whole, weights })
    }

    /// The pattern as written. It must match a tensor's whole name without `.weight`: `layers.N.<role>`, or
    /// [`OUTPUT_MATRIX`].
    pub fn tensors(&self) -> &str {
        &self.tensors
    }

    /// What holds for those tensors: `[weights]` with this entry's keys over it.
    pub fn weights(&self) -> Weights {
        self.weights
    }

    fn matches(&self, name: &str) -> bool {
        self.whole.is_match(name)
    }
}

impl PartialEq for Override {
    fn eq(&self, other: &Self) -> bool {
        self.tensors == other.tensors && self.weights == other.weights
    }
}

/// Name of the output matrix, also where it is the embedding table.
pub const OUTPUT_MATRIX: &str = "lm_head";

fn tensor_name(block: usize, role: &str) -> String {
    format!("layers.{block}.{}", role.strip_suffix(".weight").unwrap_or(role))
}

/// A checked recipe with every value filled in.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Name: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// The model.
    pub model: Model,
    /// The graph.
    pub package: Package,
    /// Weights of tensors that no override matches.
    pub weights: Weights,
    /// Overrides, parents' first; the last that matches a tensor wins.
    pub overrides: Vec<Override>,
    /// The gate. Decides nothing about a package's bytes.
    pub gate: Gate,
    /// What counts on Core ML. Decides nothing about a package's bytes.
    pub smoke: Smoke,
    origins: BTreeMap<String, Origin>,
}

/// Equal in every value, wherever it comes from.
impl PartialEq for Recipe {
    fn eq(&self, other: &Self) -> bool {
        self.resolved() == other.resolved()
    }
}

impl Recipe {
    /// Reads a recipe, its parents, and `--set` arguments (`key=value`, dotted keys, TOML values, bare words as
    /// strings). A name without `/` and `.toml` is a built-in recipe's.
    ///
    /// # Errors
    /// Anything wrong, as a usage fault that names the recipe, the key path, the value and what is allowed.
    pub fn load(name_or_path: &str, sets: &[String]) -> Result<Self> {
        Self::from_layers(layers::load(name_or_path)?, layers::parse_sets(sets)?)
    }

    /// Its own TOML text, without what it inherits.
    ///
    /// # Errors
    /// As [`Recipe::load`], where the recipe cannot be found or read.
    pub fn own_text(name_or_path: &str) -> Result<String> {
        layers::text(name_or_path)
    }

    fn from_layers(layers: Vec<Layer>, sets: Option<Layer>) -> Result<Self> {
        let mut merged = Merged::default();
        let fallback_name = layers.last().map(Layer::name).unwrap_or_default();
        let last = layers.len().saturating_sub(1);
        for (index, layer) in layers.into_iter().enumerate() {
            merged.add(layer, index == last)?;
        }
        if let Some(sets) = sets {
            merged.add(sets, true)?;
        }
        let Merged { mut table, mut origins } = merged;
        let origin = |key: &str| origins.get(key).cloned().unwrap_or(Origin::Default);

        // Overrides stand on the final `[weights]`, so they resolve once all layers are merged.
        let entries = match table.remove("override") {
            Some(toml::Value::Array(entries)) => entries,
            _ => Vec::new(),
        };
        let weight_keys = table.get("weights").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let mut overrides = Vec::with_capacity(entries.len());
        for (index, entry) in entries.into_iter().enumerate() {
            let at = format!("override[{index}]");
            overrides.push(read_override(entry, &weight_keys, &at, &origin(&at))?);
        }

        let document: Document = table.try_into().or_fault(|| Fault::usage("the recipe does not resolve"))?;
        for (function, tokens) in document.package.functions.entries() {
            let context = document.package.context;
            if tokens > context {
                let key = format!("package.functions.{function}");
                return Err(Fault::usage(format!(
                    "{}: `{key}` is {tokens}, more than `package.context`, {context}",
                    origin(&key)
                ))
                .with_hint(format!("set `{key}` to at most {context}, or raise `package.context`"))
                .into());
            }
        }
        let Package { query, kv, functions, .. } = document.package;
        if query > 1 && kv == KvCache::Slice {
            return Err(Fault::usage(format!(
                "{}: `package.query` is {query}, but `package.kv` is `slice`, which would write the padding over the \
                 last positions",
                origin("package.query")
            ))
            .with_hint("set `package.kv` to `mask` or `io`, or `package.query` to 1")
            .into());
        }
        if query > functions.prefill {
            return Err(Fault::usage(format!(
                "{}: `package.query` is {query}, more than `package.functions.prefill`, {}",
                origin("package.query"),
                functions.prefill
            ))
            .into());
        }
        if document.gate.prompts.is_empty() {
            return Err(Fault::usage(format!("{}: `gate.prompts` is empty", origin("gate.prompts")))
                .with_hint("name at least one prompt, or remove the key: there are five by default")
                .into());
        }
        let source = document.model.source.as_deref().map(str::parse).transpose()?;
        let mut recipe = Self {
            name: document.name.unwrap_or(fallback_name),
            description: document.description.unwrap_or_default(),
            model: Model { source },
            package: document.package,
            weights: Weights::from_keys(&document.weights),
            overrides,
            gate: document.gate,
            smoke: document.smoke,
            origins: BTreeMap::new(),
        };
        add_defaults(&recipe.resolved(), "", &mut origins);
        recipe.origins = origins;
        Ok(recipe)
    }

    /// Where each value comes from, by key path (`weights.dtype`); an override's is `override[0]`.
    pub fn origins(&self) -> &BTreeMap<String, Origin> {
        &self.origins
    }

    /// The weights of one tensor. `role` is its name below `model.layers.N.`, with or without `.weight`.
    pub fn weights_for(&self, block: usize, role: &str) -> Weights {
        self.weights_of(&tensor_name(block, role))
    }

    /// The weights of the tensor with this whole name.
    pub fn weights_of(&self, name: &str) -> Weights {
        let matching = self.overrides.iter().rev().find(|entry| entry.matches(name));
        matching.map_or(self.weights, Override::weights)
    }

    /// Checks that every override matches one of the model's tensors that can be quantized: `layers` blocks of `roles`,
    /// and the output matrix.
    ///
    /// # Errors
    /// A usage fault that names the first override without a match.
    pub fn check_overrides(&self, layers: usize, roles: &[&str]) -> Result<()> {
        for (index, entry) in self.overrides.iter().enumerate() {
            let in_block = |block| roles.iter().any(|role| entry.matches(&tensor_name(block, role)));
            if !entry.matches(OUTPUT_MATRIX) && !(0..layers).any(in_block) {
                let at = format!("override[{index}]");
                let origin = self.origins.get(&at).unwrap_or(&Origin::Default);
                let last = roles.last().map(|role| tensor_name(layers.saturating_sub(1), role)).unwrap_or_default();
                return Err(Fault::usage(format!(
                    "{origin}: `{at}.tensors` matches none of the {} projections of this model: `{}`",
                    layers * roles.len() + 1,
                    entry.tensors
                ))
                .with_hint(format!("it must match a whole name, for instance `{last}`"))
                .into());
            }
        }
        Ok(())
    }

    /// Every value, defaults included, in the shape of a recipe file without `extends`.
    pub fn resolved(&self) -> Value {
        let document = Document {
            schema: 1,
            name: Some(self.name.clone()),
            description: Some(self.description.clone()),
            extends: None,
            model: ModelKeys { source: self.model.source.as_ref().map(ToString::to_string) },
            package: self.package.clone(),
            weights: self.weights.keys(),
            overrides: self
                .overrides
                .iter()
                .map(|entry| OverrideKeys { tensors: entry.tensors.clone(), weights: entry.weights.keys() })
                .collect(),
            gate: self.gate.clone(),
            smoke: self.smoke.clone(),
        };
        serde_json::to_value(document).expect("a recipe holds nothing that JSON cannot")
    }

    /// [`Self::resolved`] as TOML; it reads back to an equal recipe.
    pub fn resolved_toml(&self) -> String {
        show::toml_text(self, false)
    }

    /// [`Self::resolved_toml`] with each value's origin in a comment.
    pub fn resolved_toml_with_origins(&self) -> String {
        show::toml_text(self, true)
    }

    /// What decides a package's bytes, apart from overrides: `package` and `weights`. A caller adds
    /// [`Self::weights_for`] of its tensors.
    pub fn build_document(&self) -> Value {
        json!({ "package": self.package, "weights": self.weights })
    }
}

fn read_override(entry: toml::Value, below: &toml::Table, at: &str, origin: &Origin) -> Result<Override> {
    let mut entry: toml::Table = entry.try_into().or_fault(|| Fault::usage(format!("{origin}: `{at}`")))?;
    let Some(toml::Value::String(tensors)) = entry.remove("tensors") else {
        return Err(Fault::usage(format!("{origin}: `{at}.tensors` is missing"))
            .with_hint("add a pattern, for instance tensors = 'layers\\.0\\.mlp\\.down_proj'")
            .into());
    };
    if entry.is_empty() {
        return Err(Fault::usage(format!("{origin}: `{at}` changes nothing for `{tensors}`"))
            .with_hint("add a key of `[weights]`, for instance dtype = \"float16\"")
            .into());
    }
    let (keys, _) = layers::weights_over(below, &entry, at, origin)?;
    let keys: WeightKeys = keys.try_into().or_fault(|| Fault::usage(format!("{origin}: `{at}`")))?;
    Override::new(tensors, Weights::from_keys(&keys), at, origin)
}

fn add_defaults(value: &Value, path: &str, origins: &mut BTreeMap<String, Origin>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                add_defaults(value, &check::join(path, key), origins);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {}
        _ => {
            origins.entry(path.to_owned()).or_insert(Origin::Default);
        }
    }
}

/// A line of `recipe list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Whether its meaning may no longer change.
    pub frozen: bool,
}

/// The built-in recipes, the flagship first.
///
/// # Errors
/// None, as long as the built-in recipes are sound.
pub fn list() -> Result<Vec<Listed>> {
    let describe = |entry: &builtin::BuiltIn| {
        let recipe = Recipe::load(entry.name, &[])?;
        Ok(Listed { name: recipe.name, description: recipe.description, frozen: entry.frozen })
    };
    builtin::ALL.iter().map(describe).collect()
}
