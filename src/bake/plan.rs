//! What to bake and under which key: from a recipe and a checkpoint to one action document for each block.

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::arch::{BlockTensor, ModelConfig, TensorKind};
use crate::cache::{
    ActionKey, Cache, Digest, DigestMemo, FileIdentity, action_key, action_key_of_members, canonical_json, digest_pair,
};
use crate::checkpoint::source::ModelSource;
use crate::checkpoint::{Checkpoint, TensorRef};
use crate::coremltools::{Environment, ToolVersions, sources_digest};
use crate::error::{Fault, OrFault};
use crate::quant::{ComputeDtype, Granularity, Scheme, WeightDtype};
use crate::recipe::{self, Recipe};

/// Part of every key. Raise it when the same document would lead to other bytes.
pub const KEY_VERSION: u32 = 1;

/// Who bakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Template and stamp.
    Native,
    /// coremltools, block by block.
    Coremltools,
}

impl Engine {
    /// The command line's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Coremltools => "coremltools",
        }
    }

    /// Whether every block needs Python, not the template alone.
    pub fn needs_python(self) -> bool {
        self == Self::Coremltools
    }
}

/// One tensor of one block.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// What it is.
    pub tensor: BlockTensor,
    /// Where it is.
    pub source: TensorRef,
    /// How it is quantized; `None` leaves it a float.
    pub scheme: Option<Scheme>,
}

impl PlannedTensor {
    /// `(rows, cols)`: `[out, in]` for a projection, `[1, n]` for a vector.
    pub fn matrix(&self) -> (usize, usize) {
        match self.tensor.shape[..] {
            [rows, cols] => (rows, cols),
            ref shape => (1, shape.iter().product()),
        }
    }
}

/// What coremltools is asked for.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The request.
    pub value: Value,
    canonical: Vec<u8>,
}

impl From<Value> for Graph {
    fn from(value: Value) -> Self {
        let canonical = canonical_json(&value);
        Self { value, canonical }
    }
}

/// One block of a bake.
#[derive(Clone, Debug)]
pub struct PlannedBlock {
    /// Number of the block in the model.
    pub index: usize,
    /// The graph that coremltools is asked for: everything that decides the program. Blocks of one graph share it.
    pub request: Arc<Graph>,
    /// Its tensors.
    pub tensors: Vec<PlannedTensor>,
}

impl PlannedBlock {
    /// Folder name of the package in the output.
    pub fn package_name(&self) -> String {
        format!("block-{:02}.mlpackage", self.index)
    }
}

/// A whole bake, before anything is read but headers.
#[derive(Debug)]
pub struct Plan {
    /// Who bakes.
    pub engine: Engine,
    /// Dtype of arithmetic.
    pub compute: ComputeDtype,
    /// The chosen blocks in order.
    pub blocks: Vec<PlannedBlock>,
    tools: ToolVersions,
    canonical_tools: Vec<u8>,
    model_label: String,
    recipe_name: String,
}

impl Plan {
    /// Plans the chosen `blocks` of a model.
    ///
    /// # Errors
    /// An override matches nothing, a tensor is missing or has another shape, an option is not supported.
    pub fn new(
        recipe: &Recipe,
        checkpoint: &Checkpoint,
        model_label: &str,
        environment: &Environment,
        engine: Engine,
        blocks: &[usize],
    ) -> Result<Self> {
        let config = checkpoint.config();
        if recipe.package.context > config.max_positions {
            return Err(Fault::usage(format!(
                "`package.context` is {}, the model was made for {} positions",
                recipe.package.context, config.max_positions
            ))
            .with_hint(format!("add `--set package.context={}`", config.max_positions))
            .into());
        }
        let tensors = config.block_tensors();
        let roles: Vec<&str> = tensors.iter().filter(|t| t.kind == TensorKind::Projection).map(|t| t.role).collect();
        recipe.check_overrides(config.layers, &roles)?;
        let compute = match recipe.package.compute_precision {
            recipe::ComputePrecision::Float16 => ComputeDtype::F16,
            recipe::ComputePrecision::Float32 => ComputeDtype::F32,
        };
        let mut requests: Vec<(Vec<Option<Scheme>>, Arc<Graph>)> = Vec::new();
        let blocks = blocks
            .iter()
            .map(|&index| {
                let tensors = tensors
                    .iter()
                    .map(|tensor| {
                        Ok(PlannedTensor {
                            tensor: tensor.clone(),
                            source: checkpoint.block_tensor(index, tensor)?,
                            scheme: scheme(recipe, engine, index, tensor, compute)?,
                        })
                    })
                    .collect::<Result<Vec<_>>>()?;
                let schemes: Vec<_> = tensors.iter().map(|planned| planned.scheme).collect();
                let request = match requests.iter().find(|(known, _)| *known == schemes) {
                    Some((_, request)) => Arc::clone(request),
                    None => {
                        let request = Arc::new(Graph::from(graph_request(config, recipe, &tensors)));
                        requests.push((schemes, Arc::clone(&request)));
                        request
                    }
                };
                Ok(PlannedBlock { index, request, tensors })
            })
            .collect::<Result<_>>()?;
        let tools = environment.tool_versions()?;
        Ok(Self {
            engine,
            compute,
            blocks,
            canonical_tools: canonical_json(&json!(tools)),
            tools,
            model_label: model_label.to_owned(),
            recipe_name: recipe.name.clone(),
        })
    }

    /// The action document of a block, given its tensors' digests in the order of `block.tensors`.
    pub fn block_document(&self, block: &PlannedBlock, digests: &[Digest]) -> Value {
        let tensors: Vec<Value> = block
            .tensors
            .iter()
            .zip(digests)
            .map(|(planned, digest)| {
                json!({
                    "name": planned.tensor.role,
                    "shape": planned.tensor.shape,
                    "stored_as": planned.source.stored,
                    "sha256": digest.to_string(),
                })
            })
            .collect();
        let mut document = self.common("block", &block.request.value);
        document.insert("engine".to_owned(), json!(self.engine.as_str()));
        document.insert("tensors".to_owned(), Value::Array(tensors));
        Value::Object(document)
    }

    /// The key of [`Plan::block_document`], without building the document.
    pub fn block_key(&self, block: &PlannedBlock, digests: &[Digest]) -> ActionKey {
        let quoted = |text: &str| canonical_json(&Value::from(text));
        let mut tensors = Vec::with_capacity(256 * block.tensors.len());
        for (planned, digest) in block.tensors.iter().zip(digests) {
            let shape: Vec<String> = planned.tensor.shape.iter().map(ToString::to_string).collect();
            tensors.extend_from_slice(if tensors.is_empty() { b"[{\"name\":" } else { b",{\"name\":" });
            tensors.extend(quoted(planned.tensor.role));
            let middle = format!(",\"sha256\":\"{digest}\",\"shape\":[{}],\"stored_as\":", shape.join(","));
            tensors.extend_from_slice(middle.as_bytes());
            tensors.extend(quoted(&planned.source.stored));
            tensors.push(b'}');
        }
        tensors.push(b']');
        action_key_of_members(&[
            ("engine", &quoted(self.engine.as_str())),
            ("graph", &block.request.canonical),
            ("key_version", KEY_VERSION.to_string().as_bytes()),
            ("python_sources", &quoted(sources_digest())),
            ("stage", &quoted("block")),
            ("tensors", &tensors),
            ("tools", &self.canonical_tools),
        ])
    }

    /// The action document and key of the template that a block needs.
    pub fn template_action(&self, block: &PlannedBlock) -> (Value, ActionKey) {
        let document = Value::Object(self.common("template", &block.request.value));
        let key = action_key(&document);
        (document, key)
    }

    /// Under which name a block's last document is remembered, to explain a miss.
    pub fn subject(&self, block: &PlannedBlock) -> Value {
        json!({
            "model": self.model_label,
            "recipe": self.recipe_name,
            "engine": self.engine.as_str(),
            "block": block.index,
        })
    }

    /// The versions of the tools that take part.
    pub fn tools(&self) -> &ToolVersions {
        &self.tools
    }

    fn common(&self, stage: &str, request: &Value) -> Map<String, Value> {
        let document = json!({
            "key_version": KEY_VERSION,
            "stage": stage,
            "graph": request,
            "tools": self.tools,
            "python_sources": sources_digest(),
        });
        match document {
            Value::Object(map) => map,
            _ => unreachable!("`json!` of braces is an object"),
        }
    }
}

/// Digests of tensors as they are stored, if the memos know them all.
pub fn known_digests(memos: &[DigestMemo<'_>], tensors: &[PlannedTensor]) -> Option<Vec<Digest>> {
    let known = |tensor: &TensorRef| memos[tensor.file].get(tensor.offset, tensor.length);
    tensors.iter().map(|planned| known(&planned.source)).collect()
}

/// Digests of tensors as they are stored, from the memos where they are known. What must be hashed is hashed in pairs.
pub fn tensor_digests(checkpoint: &Checkpoint, memos: &[DigestMemo<'_>], tensors: &[PlannedTensor]) -> Vec<Digest> {
    let known = |tensor: &TensorRef| memos[tensor.file].get(tensor.offset, tensor.length);
    let keep = |tensor: &TensorRef, digest| {
        memos[tensor.file].insert(tensor.offset, tensor.length, digest);
        checkpoint.release(tensor);
    };
    // Neighbours by length share most of their blocks.
    let mut unknown: Vec<&TensorRef> =
        tensors.iter().map(|planned| &planned.source).filter(|tensor| known(tensor).is_none()).collect();
    unknown.sort_by_key(|tensor| tensor.length);
    for pair in unknown.chunks(2) {
        match *pair {
            [left, right] => {
                let (a, b) = digest_pair(checkpoint.stored_bytes(left), checkpoint.stored_bytes(right));
                keep(left, a);
                keep(right, b);
            }
            _ => pair.iter().for_each(|tensor| keep(tensor, Digest::of(checkpoint.stored_bytes(tensor)))),
        }
    }
    let digest = |tensor: &TensorRef| known(tensor).unwrap_or_else(|| Digest::of(checkpoint.stored_bytes(tensor)));
    tensors.iter().map(|planned| digest(&planned.source)).collect()
}

/// The digest memos of a checkpoint's files, in the order of [`Checkpoint::files`].
///
/// # Errors
/// A file is not there any more, or is another one than was opened: its memo would speak of other bytes.
pub fn digest_memos<'a>(cache: &'a Cache, checkpoint: &Checkpoint) -> Result<Vec<DigestMemo<'a>>> {
    let files = checkpoint.files().iter();
    let memos = files
        .map(|file| {
            let identity = FileIdentity::of(&file.path)
                .or_fault(|| Fault::input(format!("cannot look at `{}`", file.path.display())))?;
            Ok(cache.digest_memo(&identity))
        })
        .collect::<Result<_>>()?;
    checkpoint.unchanged()?;
    Ok(memos)
}

fn scheme(
    recipe: &Recipe,
    engine: Engine,
    block: usize,
    tensor: &BlockTensor,
    compute: ComputeDtype,
) -> Result<Option<Scheme>> {
    if tensor.kind != TensorKind::Projection {
        return Ok(None);
    }
    let recipe::Weights::Quantized(weights) = recipe.weights_for(block, tensor.role) else { return Ok(None) };
    let dtype = match weights.dtype {
        recipe::WeightDtype::Float16 => return Ok(None),
        recipe::WeightDtype::Int8 => WeightDtype::Int8,
        recipe::WeightDtype::Int4 => WeightDtype::Int4,
    };
    let granularity = match weights.granularity {
        recipe::Granularity::PerChannel => Granularity::PerChannel,
        recipe::Granularity::PerTensor if engine == Engine::Native => {
            return Err(Fault::usage(
                "`weights.granularity = \"per_tensor\"` needs the engine `coremltools`: its scales are stored in the \
                 program, which the native engine does not rewrite",
            )
            .with_hint("add `--engine coremltools`, or use `per_channel`, which is never less exact")
            .into());
        }
        recipe::Granularity::PerTensor => Granularity::PerTensor,
        recipe::Granularity::PerBlock => Granularity::PerBlock { block_size: weights.block_size.unwrap_or_default() },
    };
    if let Granularity::PerBlock { block_size } = granularity
        && (block_size == 0 || !tensor.shape[1].is_multiple_of(block_size))
    {
        return Err(Fault::usage(format!(
            "tensor `layers.{block}.{}`: dim 1 is {}, not a multiple of block size {block_size}",
            tensor.role, tensor.shape[1]
        ))
        .with_hint("choose a `weights.block_size` that divides it, or an `[[override]]` for this tensor")
        .into());
    }
    Ok(Some(Scheme { dtype, granularity, compute }))
}

fn graph_request(config: &ModelConfig, recipe: &Recipe, tensors: &[PlannedTensor]) -> Value {
    let package = &recipe.package;
    let weights: Map<String, Value> = tensors
        .iter()
        .filter_map(|planned| {
            let scheme = planned.scheme?;
            let block_size = match scheme.granularity {
                Granularity::PerBlock { block_size } => Some(block_size),
                _ => None,
            };
            let value = json!({
                "dtype": scheme.dtype.as_str(),
                "granularity": scheme.granularity.as_str(),
                "block_size": block_size,
            });
            Some((planned.tensor.role.to_owned(), value))
        })
        .collect();
    json!({
        "architecture": config.architecture,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate": config.intermediate,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "context": package.context,
        "functions": package.functions,
        "compute_precision": package.compute_precision,
        "norm": package.norm,
        "kv": package.kv,
        "target": package.target,
        "weights": weights,
    })
}

/// Parses `0,3,8-11` against a number of layers; `None` means all.
///
/// # Errors
/// A usage fault for what is no block of the model.
pub fn choose_blocks(only: Option<&str>, layers: usize) -> Result<Vec<usize>> {
    let Some(text) = only else { return Ok((0..layers).collect()) };
    let wrong = |part: &str| {
        Fault::usage(format!("`--only {text}`: `{part}` is no block of a model with {layers} blocks"))
            .with_hint(format!("blocks are 0 to {}; write for instance `0,3,8-11`", layers - 1))
    };
    let mut blocks = std::collections::BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let parse = |number: &str| number.trim().parse::<usize>().ok().filter(|&n| n < layers);
        match (parse(first), parse(last)) {
            (Some(first), Some(last)) if first <= last => blocks.extend(first..=last),
            _ => return Err(wrong(part).into()),
        }
    }
    Ok(blocks.into_iter().collect())
}

/// What names a model in notes and in the manifest: never an absolute path.
pub fn model_label(source: &ModelSource) -> String {
    match source {
        ModelSource::Folder(path) | ModelSource::Gguf(path) => {
            let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
            absolute.file_name().map_or_else(|| source.to_string(), |name| name.to_string_lossy().into_owned())
        }
        ModelSource::Hub { .. } | ModelSource::Sample => source.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_takes_numbers_and_ranges_and_refuses_the_rest() {
        assert_eq!(choose_blocks(None, 3).unwrap(), [0, 1, 2]);
        assert_eq!(choose_blocks(Some("5,0-2,1"), 6).unwrap(), [0, 1, 2, 5]);
        for wrong in ["6", "2-1", "", "a", "0-", "-1", "0,,1"] {
            let error = choose_blocks(Some(wrong), 6).unwrap_err();
            assert_eq!(crate::error::status(&error), crate::error::Status::Usage, "{wrong}");
        }
    }
}
