//! What a program needs beside the blocks' packages to run them as a language model: how the chain is wired, the table of
//! positions, the tokenizer's files.
//!
//! Head and embedding are parts like blocks and go through the pipeline; what is here is small and made when the output
//! is put together.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use half::f16;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::part::Part;
use super::pipeline::Bake;
use super::plan::KEY_VERSION;
use crate::arch::ModelConfig;
use crate::cache::{BlobRef, Cache, Digest, FileIdentity, Lookup, action_key};
use crate::chain::{
    self, BlockInfo, ChainFile, Embedding, FunctionInfo, Head, HeadOutput, Interface, KvCache, Mask, ModelInfo, Rope,
    RopeTable, TokenizerInfo,
};
use crate::checkpoint::Checkpoint;
use crate::error::{Fault, OrFault};
use crate::recipe::Recipe;

/// Name of the tokenizer's file in an output folder.
pub const TOKENIZER: &str = "tokenizer.json";

/// Name of the file of the tokenizer's settings in an output folder.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// How an output is wired, but for the tokenizer. `outputs` are the head's, by the tokens whose logits they hold.
pub fn chain(config: &ModelConfig, recipe: &Recipe, outputs: &[Range<usize>]) -> ChainFile {
    let package = &recipe.package;
    let mut functions: Vec<FunctionInfo> = package
        .functions
        .entries()
        .iter()
        .map(|&(name, tokens)| FunctionInfo { name: name.to_owned(), tokens, rows: package.rows(tokens) })
        .collect();
    functions.sort_by_key(|function| function.tokens);
    let outputs = outputs.iter().enumerate().map(|(number, tokens)| HeadOutput {
        name: format!("logits_{number}"),
        first: tokens.start,
        count: tokens.len(),
    });
    let table = (package.kv != KvCache::Slice).then(|| RopeTable {
        path: chain::ROPE.to_owned(),
        dtype: "float16".to_owned(),
        shape: [2, package.context, config.head_dim],
    });
    ChainFile {
        schema: chain::SCHEMA,
        model: ModelInfo {
            architecture: config.architecture.to_string(),
            layers: config.layers,
            hidden: config.hidden,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            vocab: config.vocab,
        },
        context: package.context,
        embedding: Embedding {
            path: Part::Embedding.path(),
            dtype: "float16".to_owned(),
            shape: [config.vocab, config.hidden],
        },
        blocks: (0..config.layers).map(|index| BlockInfo { path: Part::Block(index).path() }).collect(),
        functions,
        interface: Interface::of(package.kv),
        head: Head { path: Part::Head.path(), outputs: outputs.collect() },
        mask: Mask { visible: 0.0, hidden: -1e4 },
        rope: Rope { theta: config.rope_theta, scaling: json!(config.rope_scaling), table },
        kv: package.kv,
        tokenizer: None,
    }
}

/// The files of an output that are made when it is put together.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Name in the output folder and bytes in the cache, `chain.json` last.
    pub files: Vec<(String, BlobRef)>,
    /// Why no tokenizer is among them, where none is.
    pub no_tokenizer: Option<String>,
}

/// The files that complete a plan's output; none where parts are left out.
///
/// # Errors
/// The checkpoint's files changed meanwhile, or the cache cannot be written. A tokenizer that cannot be understood is none.
pub fn files(bake: &Bake<'_>) -> Result<Ends> {
    let Some(mut chain) = bake.plan.chain.clone() else { return Ok(Ends::default()) };
    let mut files = Vec::new();
    let mut no_tokenizer = None;
    match tokenizer(bake.cache, bake.checkpoint)? {
        Err(why) => no_tokenizer = Some(why),
        Ok(made) => {
            files.push((TOKENIZER.to_owned(), made.tokenizer));
            files.extend(made.config.map(|config| (TOKENIZER_CONFIG.to_owned(), config)));
            chain.tokenizer = Some(TokenizerInfo {
                path: TOKENIZER.to_owned(),
                config: made.config.map(|_| TOKENIZER_CONFIG.to_owned()),
                bos: made.bos,
                eos: made.eos,
                chat_template: made.chat_template,
            });
        }
    }
    if let Some(table) = &chain.rope.table {
        files.push((table.path.clone(), rope_blob(bake.cache, bake.checkpoint.config(), chain.context)?));
    }
    files.push((chain::FILE_NAME.to_owned(), chain_blob(bake.cache, &chain)?));
    Ok(Ends { files, no_tokenizer })
}

/// A tokenizer in the cache.
#[derive(Serialize, Deserialize)]
struct Made {
    tokenizer: BlobRef,
    config: Option<BlobRef>,
    bos: Option<u32>,
    eos: Vec<u32>,
    chat_template: Option<String>,
}

/// The checkpoint's tokenizer, by what it is made of, or why there is none.
fn tokenizer(cache: &Cache, checkpoint: &Checkpoint) -> Result<std::result::Result<Made, String>> {
    let none = || "the checkpoint has no tokenizer".to_owned();
    let sources = checkpoint.tokenizer_sources()?;
    let identities: Vec<FileIdentity> = sources.iter().map(|(path, _)| identity(path)).collect::<Result<_>>()?;
    let mut listed = Vec::with_capacity(sources.len());
    for ((path, range), identity) in sources.iter().zip(&identities) {
        // A GGUF file, which may have any name, is told by its content alone.
        let weights = checkpoint.files().iter().any(|file| file.path == *path);
        let name = path.file_name().filter(|_| !weights).map(|name| name.to_string_lossy());
        listed.push(json!({ "name": name, "size": range.end, "blake3": front_digest(cache, identity, range.end)? }));
    }
    let document = json!({ "key_version": KEY_VERSION, "stage": "tokenizer", "sources": listed });
    let key = action_key(&document);
    if let Lookup::Hit { result } = cache.lookup::<Option<Made>>(&key)? {
        return Ok(result.ok_or_else(none));
    }
    let read = match checkpoint.tokenizer() {
        Ok(files) => files,
        Err(error) => return Ok(Err(format!("the checkpoint's tokenizer cannot be used: {error:#}"))),
    };
    let made = match read {
        None => None,
        Some(files) => Some(Made {
            tokenizer: cache.put(&files.tokenizer)?,
            config: files.config.map(|bytes| cache.put(&bytes)).transpose()?,
            bos: files.bos,
            eos: files.eos,
            chat_template: files.chat_template,
        }),
    };
    for ((path, _), before) in sources.iter().zip(&identities) {
        if identity(path)? != *before {
            return Err(Fault::input(format!("`{}` changed while it was being read", path.display()))
                .with_hint("run the same command again once nothing writes to the checkpoint")
                .into());
        }
    }
    let blobs: Vec<BlobRef> = made.iter().flat_map(|made| [Some(made.tokenizer), made.config]).flatten().collect();
    cache.record(&key, &document, &made, &blobs, None)?;
    Ok(made.ok_or_else(none))
}

fn identity(path: &Path) -> Result<FileIdentity> {
    FileIdentity::of(path).or_fault(|| Fault::input(format!("cannot look at `{}`", path.display())))
}

/// Digest of the first bytes of a file, from its memo where it is known.
fn front_digest(cache: &Cache, file: &FileIdentity, length: u64) -> Result<Digest> {
    let memo = cache.digest_memo(file);
    if let Some(known) = memo.get(0, length) {
        return Ok(known);
    }
    let mut bytes = Vec::new();
    File::open(&file.path)
        .and_then(|file| file.take(length).read_to_end(&mut bytes))
        .or_fault(|| Fault::input(format!("cannot read `{}`", file.path.display())))?;
    let digest = Digest::of_source(&bytes, &mut |_| {});
    memo.insert(0, length, digest);
    // As in a bake: one that cannot be written costs a hash next time.
    let _ = memo.save();
    Ok(digest)
}

/// The table of positions in the cache, by what it is made of.
fn rope_blob(cache: &Cache, config: &ModelConfig, context: usize) -> Result<BlobRef> {
    let document = json!({
        "key_version": KEY_VERSION,
        "stage": "rope",
        "context": context,
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
    });
    let bytes = || Ok(config.rope_table(context).into_iter().flat_map(f16::to_le_bytes).collect());
    kept(cache, &document, bytes)
}

/// `chain.json` in the cache, by its content.
fn chain_blob(cache: &Cache, chain: &ChainFile) -> Result<BlobRef> {
    let document = json!({ "key_version": KEY_VERSION, "stage": "chain", "chain": chain });
    kept(cache, &document, || {
        let mut text = serde_json::to_vec_pretty(chain)?;
        text.push(b'\n');
        Ok(text)
    })
}

/// The file that `document` describes, from the cache or made.
fn kept(cache: &Cache, document: &Value, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<BlobRef> {
    let key = action_key(document);
    if let Lookup::Hit { result } = cache.lookup::<BlobRef>(&key)? {
        return Ok(result);
    }
    let blob = cache.put(&make()?)?;
    cache.record(&key, document, &blob, &[blob], None)?;
    Ok(blob)
}
