//! What to bake and under which key: from a recipe and a checkpoint to one action document for each part.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::ends;
use super::part::{Part, PlannedPart, PlannedTensor};
use super::planner::Planner;
use crate::arch::TensorKind;
use crate::cache::{
    ActionKey, Cache, Digest, DigestMemo, FileIdentity, action_key, action_key_of_members, canonical_json,
};
use crate::chain::ChainFile;
use crate::checkpoint::source::ModelSource;
use crate::checkpoint::{Checkpoint, TensorRef};
use crate::coremltools::{Environment, ToolVersions, sources_digest};
use crate::error::{Fault, OrFault};
use crate::quant::ComputeDtype;
use crate::recipe::Recipe;

/// Part of every key. Raise it when the same document would lead to other bytes.
pub const KEY_VERSION: u32 = 2;

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

    /// Whether every package needs Python, not the template alone.
    pub fn needs_python(self) -> bool {
        self == Self::Coremltools
    }
}

/// A whole bake, before anything is read but headers.
#[derive(Debug)]
pub struct Plan {
    /// Who bakes.
    pub engine: Engine,
    /// Dtype of arithmetic.
    pub compute: ComputeDtype,
    /// The chosen parts in order.
    pub parts: Vec<PlannedPart>,
    /// How the output is wired, but for the tokenizer; none where parts are left out.
    pub chain: Option<ChainFile>,
    tools: ToolVersions,
    canonical_tools: Vec<u8>,
    model_label: String,
    recipe_name: String,
}

impl Plan {
    /// Plans the chosen `parts` of a model.
    ///
    /// # Errors
    /// An override matches nothing, a tensor is missing or has another shape, an option is not supported.
    pub fn new(
        recipe: &Recipe,
        checkpoint: &Checkpoint,
        model_label: &str,
        environment: &Environment,
        engine: Engine,
        parts: &[Part],
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
        let block_tensors = config.block_tensors();
        let projections = block_tensors.iter().filter(|tensor| tensor.kind == TensorKind::Projection);
        let roles: Vec<&str> = projections.map(|tensor| &*tensor.role).collect();
        recipe.check_overrides(config.layers, &roles)?;
        let mut planner = Planner::new(recipe, checkpoint, engine, block_tensors);
        let planned = parts.iter().map(|part| planner.part(*part)).collect::<Result<_>>()?;
        let chain = (parts == Part::all(config.layers)).then(|| ends::chain(config, recipe, &planner.rows));
        let tools = environment.tool_versions()?;
        Ok(Self {
            engine,
            compute: planner.compute,
            parts: planned,
            chain,
            canonical_tools: canonical_json(&json!(tools)),
            tools,
            model_label: model_label.to_owned(),
            recipe_name: recipe.name.clone(),
        })
    }

    /// The action document of a part, given its tensors' digests in the order of `part.tensors`.
    pub fn part_document(&self, part: &PlannedPart, digests: &[Digest]) -> Value {
        let tensors: Vec<Value> = part
            .tensors
            .iter()
            .zip(digests)
            .map(|(planned, digest)| {
                json!({
                    "name": planned.tensor.role,
                    "shape": planned.tensor.shape,
                    "stored_as": planned.source.stored,
                    "blake3": digest.to_string(),
                })
            })
            .collect();
        let mut document = self.common(part.part.kind(), part);
        if part.part.is_package() {
            document.insert("engine".to_owned(), json!(self.engine.as_str()));
        }
        document.insert("tensors".to_owned(), Value::Array(tensors));
        Value::Object(document)
    }

    /// The key of [`Plan::part_document`], without building the document.
    pub fn part_key(&self, part: &PlannedPart, digests: &[Digest]) -> ActionKey {
        let quoted = |text: &str| canonical_json(&Value::from(text));
        let mut tensors = Vec::with_capacity(256 * part.tensors.len());
        for (planned, digest) in part.tensors.iter().zip(digests) {
            let shape: Vec<String> = planned.tensor.shape.iter().map(ToString::to_string).collect();
            let open = if tensors.is_empty() { '[' } else { ',' };
            tensors.extend(format!("{open}{{\"blake3\":\"{digest}\",\"name\":").into_bytes());
            tensors.extend(quoted(&planned.tensor.role));
            let middle = format!(",\"shape\":[{}],\"stored_as\":", shape.join(","));
            tensors.extend_from_slice(middle.as_bytes());
            tensors.extend(quoted(&planned.source.stored));
            tensors.push(b'}');
        }
        tensors.push(b']');
        let (stage, engine, sources) =
            (quoted(part.part.kind()), quoted(self.engine.as_str()), quoted(sources_digest()));
        let version = KEY_VERSION.to_string();
        let members: [(&str, &[u8]); 7] = [
            ("engine", &engine),
            ("graph", &part.request.canonical),
            ("key_version", version.as_bytes()),
            ("python_sources", &sources),
            ("stage", &stage),
            ("tensors", &tensors),
            ("tools", &self.canonical_tools),
        ];
        if part.part.is_package() {
            return action_key_of_members(&members);
        }
        let own = |(name, _): &(&str, &[u8])| !["engine", "python_sources", "tools"].contains(name);
        action_key_of_members(&members.into_iter().filter(own).collect::<Vec<_>>())
    }

    /// The action document and key of the template that a part needs.
    pub fn template_action(&self, part: &PlannedPart) -> (Value, ActionKey) {
        let document = Value::Object(self.common("template", part));
        let key = action_key(&document);
        (document, key)
    }

    /// Under which name a part's last document is remembered, to explain a miss.
    pub fn subject(&self, part: &PlannedPart) -> Value {
        json!({
            "model": self.model_label,
            "recipe": self.recipe_name,
            "engine": self.engine.as_str(),
            "part": part.part.name(),
        })
    }

    /// The versions of the tools that take part.
    pub fn tools(&self) -> &ToolVersions {
        &self.tools
    }

    fn common(&self, stage: &str, part: &PlannedPart) -> Map<String, Value> {
        let mut document = Map::new();
        document.insert("key_version".to_owned(), json!(KEY_VERSION));
        document.insert("stage".to_owned(), json!(stage));
        document.insert("graph".to_owned(), part.request.value.clone());
        if part.part.is_package() {
            document.insert("tools".to_owned(), json!(self.tools));
            document.insert("python_sources".to_owned(), json!(sources_digest()));
        }
        document
    }
}

/// Digests of tensors as they are stored, if the memos know them all.
pub fn known_digests(memos: &[DigestMemo<'_>], tensors: &[PlannedTensor]) -> Option<Vec<Digest>> {
    let known = |tensor: &TensorRef| memos[tensor.file].get(tensor.offset, tensor.length);
    tensors.iter().map(|planned| known(&planned.source)).collect()
}

/// Digests of tensors as they are stored, from the memos where they are known.
pub fn tensor_digests(checkpoint: &Checkpoint, memos: &[DigestMemo<'_>], tensors: &[PlannedTensor]) -> Vec<Digest> {
    let digest = |tensor: &TensorRef| {
        let memo = &memos[tensor.file];
        memo.get(tensor.offset, tensor.length).unwrap_or_else(|| {
            let mut released = 0;
            let digest = Digest::of_source(checkpoint.stored_bytes(tensor), &mut |done| {
                checkpoint.release(tensor, released..done as u64);
                released = done as u64;
            });
            memo.insert(tensor.offset, tensor.length, digest);
            digest
        })
    };
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
