//! What a program needs beside the blocks' packages to run them as a language model: how the chain is wired, the
//! tokenizer's files.
//!
//! Head and embedding are parts like blocks and go through the pipeline; what is here is small and made when the output
//! is put together.

use std::ops::Range;

use anyhow::Result;
use serde_json::json;

use super::part::Part;
use super::pipeline::Bake;
use super::plan::KEY_VERSION;
use crate::arch::ModelConfig;
use crate::cache::{BlobRef, Cache, Lookup, action_key};
use crate::chain::{
    self, BlockInfo, ChainFile, Embedding, FunctionInfo, Head, HeadOutput, Interface, Mask, ModelInfo, Rope,
};
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
        .map(|&(name, tokens)| FunctionInfo { name: name.to_owned(), tokens })
        .collect();
    functions.sort_by_key(|function| function.tokens);
    let outputs = outputs.iter().enumerate().map(|(number, tokens)| HeadOutput {
        name: format!("logits_{number}"),
        first: tokens.start,
        count: tokens.len(),
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
        interface: Interface {
            hidden: "hidden_state".to_owned(),
            mask: "causal_mask".to_owned(),
            position: "position_offset".to_owned(),
            states: vec!["k_cache".to_owned(), "v_cache".to_owned()],
            output: "hidden_out".to_owned(),
        },
        head: Head { path: Part::Head.path(), outputs: outputs.collect() },
        mask: Mask { visible: 0.0, hidden: -1e4 },
        rope: Rope { theta: config.rope_theta, scaling: json!(config.rope_scaling) },
        kv: package.kv.to_string(),
        tokenizer: None,
    }
}

/// The files of an output that are made when it is put together.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Name in the output folder and bytes in the cache, `chain.json` last.
    pub files: Vec<(String, BlobRef)>,
    /// Whether a tokenizer is among them.
    pub tokenizer: bool,
}

/// The files that complete a plan's output; none where parts are left out.
///
/// # Errors
/// The checkpoint's tokenizer cannot be read, or the cache cannot be written.
pub fn files(bake: &Bake<'_>) -> Result<Ends> {
    let Some(chain) = bake.plan.chain.clone() else { return Ok(Ends::default()) };
    let mut files = Vec::new();
    let tokenizer = chain.tokenizer.is_some();
    files.push((chain::FILE_NAME.to_owned(), chain_blob(bake.cache, &chain)?));
    Ok(Ends { files, tokenizer })
}

/// `chain.json` in the cache, by its content.
fn chain_blob(cache: &Cache, chain: &ChainFile) -> Result<BlobRef> {
    let document = json!({ "key_version": KEY_VERSION, "stage": "chain", "chain": chain });
    let key = action_key(&document);
    if let Lookup::Hit { result } = cache.lookup::<BlobRef>(&key)? {
        return Ok(result);
    }
    let mut text = serde_json::to_vec_pretty(chain)?;
    text.push(b'\n');
    let blob = cache.put(&text)?;
    cache.record(&key, &document, &blob, &[blob], None)?;
    Ok(blob)
}
