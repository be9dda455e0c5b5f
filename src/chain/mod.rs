//! `chain.json`: what a program needs to know to run the packages of an output folder as one language model.
//!
//! Owns the format. `bake` writes it, runners and apps read it. Every path is relative to the output folder.
//!
//! A call of a function has `rows` rows. The first are those of real tokens; what is beyond them is padding, any finite
//! values ([`FunctionInfo`]). What a block is given beside the rows, and who keeps keys and values, differs with
//! [`KvCache`]: [`Interface`] has the names, and an input that a variant lacks is absent there.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::error::{Fault, OrFault};

/// Name of the file in an output folder.
pub const FILE_NAME: &str = "chain.json";

/// Version of the file's schema.
pub const SCHEMA: u32 = 1;

/// Name of the head's package in an output folder.
pub const HEAD: &str = "head.mlpackage";

/// Name of the embedding table in an output folder.
pub const EMBEDDING: &str = "embedding.bin";

/// Name of the table of rotary position embedding in an output folder.
pub const ROPE: &str = "rope.bin";

/// Where keys and values are between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvCache {
    /// In states. A call is told the position of its first row and writes all its rows there, padding included:
    /// `position + rows` must not pass the context.
    Slice,
    /// In states. A call rewrites them as a whole and is told by a one-hot matrix which row goes where; padding goes
    /// nowhere. No integer takes part, so that the Neural Engine can take the graph as one piece.
    Mask,
    /// With the caller, who gives all of it and is given the new rows. No states, no integers.
    Io,
}

impl KvCache {
    /// Every case.
    pub const ALL: &'static [Self] = &[Self::Slice, Self::Mask, Self::Io];

    /// The spelling in recipes and in `chain.json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::Mask => "mask",
            Self::Io => "io",
        }
    }

    /// It in a few words.
    pub const fn means(self) -> &'static str {
        match self {
            Self::Slice => "states, written at a position",
            Self::Mask => "states, rewritten through a one-hot mask",
            Self::Io => "inputs and outputs, kept by the caller",
        }
    }

    /// What a block with these inputs has; `None` where it is no block.
    pub fn of_inputs<'a>(inputs: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        inputs.into_iter().find_map(|input| match input {
            POSITION => Some(Self::Slice),
            WRITE => Some(Self::Mask),
            _ if PAST.iter().any(|(past, _)| *past == input) => Some(Self::Io),
            _ => None,
        })
    }
}

impl fmt::Display for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for KvCache {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for KvCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let found = Self::ALL.iter().copied().find(|kv| kv.as_str() == word);
        found.ok_or_else(|| serde::de::Error::custom(format!("`{word}` is none of `slice`, `mask`, `io`")))
    }
}

/// Name of the input of positions.
const POSITION: &str = "position_offset";
/// Name of the input of the one-hot matrix.
const WRITE: &str = "write_mask";
/// Names of what is kept by the caller: inputs, and the outputs with their new rows.
const PAST: [(&str, &str); 2] = [("k_past", "k_new"), ("v_past", "v_new")];

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainFile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The model.
    pub model: ModelInfo,
    /// Positions in the cache: the most tokens that a conversation can have.
    pub context: usize,
    /// From a token to the first block's input.
    pub embedding: Embedding,
    /// The blocks, in the order in which they run.
    pub blocks: Vec<BlockInfo>,
    /// The functions that every package has, the head's too, by number of tokens, the smallest first.
    pub functions: Vec<FunctionInfo>,
    /// Names of a block's inputs, states and outputs.
    pub interface: Interface,
    /// From the last block's output to logits.
    pub head: Head,
    /// Values of the causal mask.
    pub mask: Mask,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Where keys and values are between calls: `slice`, `mask` or `io`.
    pub kv: KvCache,
    /// The tokenizer's files; absent where the checkpoint has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerInfo>,
}

/// The model's sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInfo {
    /// `model_type`.
    pub architecture: String,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of tokens, and of logits.
    pub vocab: usize,
}

/// The embedding table: a flat little-endian file, one row for each token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// File.
    pub path: String,
    /// `float16`.
    pub dtype: String,
    /// `[vocab, hidden]`.
    pub shape: [usize; 2],
}

/// A block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockInfo {
    /// Folder of the package.
    pub path: String,
}

/// A function of every package.
///
/// The caller pads: its arrays have `rows` rows, of which the first are those of the call's tokens. Rows beyond them must
/// be finite, best the last real row again, and their outputs mean nothing. Where `rows` is more than `tokens` (a graph
/// as wide as the Neural Engine asks for), a call may as well hold up to `rows` tokens: the graph tells no difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionInfo {
    /// Name.
    pub name: String,
    /// The tokens of a call that it is made for.
    pub tokens: usize,
    /// Rows of its arrays, at least `tokens`.
    pub rows: usize,
}

/// Names of a block's features. Arrays are row-major; inputs that a variant lacks are absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// float16 [1, rows, hidden]: the residual stream; also the head's input.
    pub hidden: String,
    /// float16, the additive mask. `slice` and `mask`: [1, 1, rows, context], row `i` sees the columns up to position +
    /// i. `io`: [1, 1, rows, context + rows], row `i` sees the columns below position, and of the last `rows` columns
    /// those up to `i`.
    pub mask: String,
    /// `slice`: int32 [1], position of the first row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// `mask` and `io`: rows of [`Rope::table`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope: Option<RopeInputs>,
    /// `mask`: float16 [1, 1, context, rows], 1 at (position + i, i) for each real row `i`, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<String>,
    /// `slice` and `mask`: states, float16 [1, kv_heads, context, width], zeros at first. Width is head_dim, with `mask`
    /// the next multiple of 32.
    pub states: Vec<String>,
    /// `io`: what the caller keeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<Past>,
    /// Output, float16 [1, rows, hidden].
    pub output: String,
}

/// Inputs of cosines and sines: float16 [1, 1, rows, head_dim], for row `i` the table's row at position + i. Beyond the
/// table any finite values do: such rows are padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeInputs {
    /// Cosines.
    pub cos: String,
    /// Sines.
    pub sin: String,
}

/// Keys or values that the caller keeps for a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Past {
    /// Input, float16 [1, kv_heads, context, head_dim], zeros at first.
    pub input: String,
    /// Output, float16 [1, kv_heads, rows, head_dim]: those of real tokens are put into the input at position + i before
    /// the next call.
    pub output: String,
}

impl Interface {
    /// The names that blocks have.
    pub fn of(kv: KvCache) -> Self {
        let states = match kv {
            KvCache::Slice | KvCache::Mask => vec!["k_cache".to_owned(), "v_cache".to_owned()],
            KvCache::Io => Vec::new(),
        };
        let rope = || RopeInputs { cos: "rope_cos".to_owned(), sin: "rope_sin".to_owned() };
        let past = PAST.map(|(input, output)| Past { input: input.to_owned(), output: output.to_owned() });
        Self {
            hidden: "hidden_state".to_owned(),
            mask: "causal_mask".to_owned(),
            position: (kv == KvCache::Slice).then(|| POSITION.to_owned()),
            rope: (kv != KvCache::Slice).then(rope),
            write: (kv == KvCache::Mask).then(|| WRITE.to_owned()),
            states,
            past: if kv == KvCache::Io { past.to_vec() } else { Vec::new() },
            output: "hidden_out".to_owned(),
        }
    }

    /// Which of the features that not every variant has are there.
    fn extent(&self) -> (bool, bool, bool, usize, usize) {
        let Self { position, rope, write, states, past, .. } = self;
        (position.is_some(), rope.is_some(), write.is_some(), states.len(), past.len())
    }
}

/// The head: final norm and output matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Folder of the package.
    pub path: String,
    /// Outputs, float16 [1, rows, count]; side by side they are the logits.
    pub outputs: Vec<HeadOutput>,
}

/// One part of the logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadOutput {
    /// Name.
    pub name: String,
    /// Token of its first logit.
    pub first: usize,
    /// Number of logits.
    pub count: usize,
}

/// Values of the causal mask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mask {
    /// Where a token may look.
    pub visible: f32,
    /// Where it may not.
    pub hidden: f32,
}

/// Rotary position embedding. Base and scaling are for information: what counts lies in the packages of a `slice`, else in
/// the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Scaling as the model's files mean it.
    pub scaling: Value,
    /// `mask` and `io`: what [`RopeInputs`] are cut from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<RopeTable>,
}

/// Cosines and sines of every position, ready to be copied: a flat little-endian file, all cosines, then all sines. Value
/// `j` of a row is that of the frequency `j mod (head_dim / 2)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeTable {
    /// File.
    pub path: String,
    /// `float16`.
    pub dtype: String,
    /// `[2, context, head_dim]`.
    pub shape: [usize; 3],
}

/// The tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerInfo {
    /// Hugging Face `tokenizer.json`.
    pub path: String,
    /// Hugging Face `tokenizer_config.json`, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Token that begins a text, where the model has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos: Option<u32>,
    /// Tokens that end a text or a turn.
    pub eos: Vec<u32>,
    /// Jinja template of a conversation, where the model has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
}

impl ChainFile {
    /// Reads and checks the file of an output folder.
    ///
    /// # Errors
    /// An input fault: it is missing, malformed, of another schema, or contradicts itself.
    pub fn read(out: &Path) -> Result<Self> {
        let path = out.join(FILE_NAME);
        let text = std::fs::read(&path).or_fault(|| {
            Fault::input(format!("cannot read `{}`", path.display()))
                .with_hint("name the output folder of a whole bake: `anebake convert` without `--only`")
        })?;
        serde_json::from_slice(&text)
            .map_err(anyhow::Error::from)
            .and_then(|file: Self| file.check().map(|()| file))
            .or_fault(|| Fault::input(format!("`{}` describes no chain", path.display())))
    }

    fn check(&self) -> Result<()> {
        if self.schema != SCHEMA {
            bail!("schema is {}, this version of anebake reads {SCHEMA}", self.schema);
        }
        let paths = self.blocks.iter().map(|block| &block.path).chain([&self.embedding.path, &self.head.path]);
        let tokenizer = self.tokenizer.iter().flat_map(|files| std::iter::once(&files.path).chain(&files.config));
        let rope = self.rope.table.iter().map(|table| &table.path);
        if let Some(path) = paths.chain(tokenizer).chain(rope).find(|path| !is_plain(path)) {
            bail!("`{path}` is no path inside the folder");
        }
        if self.blocks.len() != self.model.layers {
            bail!("it lists {} blocks, the model has {}", self.blocks.len(), self.model.layers);
        }
        if self.embedding.dtype != "float16" || self.embedding.shape != [self.model.vocab, self.model.hidden] {
            bail!("embedding is {} {:?}", self.embedding.dtype, self.embedding.shape);
        }
        if self.interface.extent() != Interface::of(self.kv).extent() {
            bail!("the interface is not that of a chain with `kv` `{}`", self.kv);
        }
        match &self.rope.table {
            None if self.kv == KvCache::Slice => {}
            None => bail!("a chain with `kv` `{}` lacks its table of positions", self.kv),
            Some(RopeTable { dtype, shape, .. }) => {
                if dtype != "float16" || *shape != [2, self.context, self.model.head_dim] {
                    bail!("the table of positions is {dtype} {shape:?}");
                }
            }
        }
        let first = self.functions.first().context("it lists no function")?;
        if first.tokens != 1 || self.functions.iter().any(|f| f.tokens == 0 || f.tokens > self.context) {
            bail!("functions must take 1 to {} tokens, the first of them 1", self.context);
        }
        if let Some(function) = self.functions.iter().find(|f| f.rows < f.tokens || f.rows > self.context) {
            bail!("function `{}` has {} rows for {} tokens", function.name, function.rows, function.tokens);
        }
        let mut next = 0;
        for output in &self.head.outputs {
            if output.first != next || output.count == 0 {
                bail!("output `{}` begins at {}, not at {next}", output.name, output.first);
            }
            next = next.checked_add(output.count).context("too many logits")?;
        }
        if next != self.model.vocab {
            bail!("the head has {next} logits, the vocabulary {}", self.model.vocab);
        }
        Ok(())
    }
}

fn is_plain(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_))) && !path.is_empty()
}
