//! `chain.json`: what a program needs to know to run the packages of an output folder as one language model.
//!
//! Owns the format. `bake` writes it, runners and apps read it. Every path is relative to the output folder.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
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
    /// The functions that every package has, by number of tokens, the smallest first.
    pub functions: Vec<FunctionInfo>,
    /// Names of a block's inputs, states and outputs.
    pub interface: Interface,
    /// From the last block's output to logits.
    pub head: Head,
    /// Values of the causal mask.
    pub mask: Mask,
    /// Rotary position embedding.
    pub rope: Rope,
    /// How the packages keep keys and values; `slice`: states written in the graph at `position_offset`.
    pub kv: String,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionInfo {
    /// Name.
    pub name: String,
    /// Tokens of one call.
    pub tokens: usize,
}

/// Names of a block's features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// float16 [1, tokens, hidden]: the residual stream; also the head's input.
    pub hidden: String,
    /// float16 [1, 1, tokens, context]: the additive mask.
    pub mask: String,
    /// int32 [1]: position of the first token of the call.
    pub position: String,
    /// States, float16 [1, kv_heads, context, head_dim].
    pub states: Vec<String>,
    /// Output, float16 [1, tokens, hidden].
    pub output: String,
}

/// The head: final norm and output matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Folder of the package.
    pub path: String,
    /// Outputs, float16 [1, tokens, count]; side by side they are the logits.
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

/// Rotary position embedding, for information: the tables lie in the packages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Scaling as the model's files mean it.
    pub scaling: Value,
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
        if let Some(path) = paths.chain(tokenizer).find(|path| !is_plain(path)) {
            bail!("`{path}` is no path inside the folder");
        }
        if self.blocks.len() != self.model.layers {
            bail!("it lists {} blocks, the model has {}", self.blocks.len(), self.model.layers);
        }
        if self.embedding.dtype != "float16" || self.embedding.shape != [self.model.vocab, self.model.hidden] {
            bail!("embedding is {} {:?}", self.embedding.dtype, self.embedding.shape);
        }
        let first = self.functions.first().context("it lists no function")?;
        if first.tokens != 1 || self.functions.iter().any(|f| f.tokens == 0 || f.tokens > self.context) {
            bail!("functions must take 1 to {} tokens, the first of them 1", self.context);
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
