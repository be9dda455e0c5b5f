//! `manifest.json`: what an output folder holds, where it came from and how it was made.
//!
//! Everything but `timings` and the results of gate, lint and smoke is decided by the inputs; no absolute path, host or
//! date is in it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::part::{Part, PlannedTensor};
use super::pipeline::Outcome;
use super::plan::Plan;
use crate::cache::{BlobRef, Digest, FileIdentity};
use crate::checkpoint::Checkpoint;
use crate::error::{Fault, OrFault};
use crate::quant::{Granularity, GuardedGroup};
use crate::recipe::Recipe;

/// Name of the file in an output folder.
pub const FILE_NAME: &str = "manifest.json";

/// Version of the file's schema.
pub const SCHEMA: u32 = 1;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BakeManifest {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of anebake.
    pub anebake: String,
    /// `native` or `coremltools`.
    pub engine: String,
    /// Where the weights came from.
    pub model: ModelRecord,
    /// The resolved recipe.
    pub recipe: Value,
    /// Versions of the tools that took part.
    pub tools: Value,
    /// The blocks' packages, in order.
    pub blocks: Vec<PackageRecord>,
    /// The head's package; absent where it was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<PackageRecord>,
    /// What is no package, by path: embedding, tokenizer, `chain.json`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRecord>,
    /// What the gate said of these very packages; absent until it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Value>,
    /// What lint found in these very packages, by rule; absent until it has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lint: Option<Value>,
    /// What smoke found with these very packages; absent until it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoke: Option<Value>,
    /// How long it took; differs from run to run.
    pub timings: Timings,
}

/// The source of a bake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecord {
    /// What was asked for: `sample`, `hf:…`, or the name of a folder or file.
    pub source: String,
    /// What the model's files say about it.
    pub config: Value,
    /// The checkpoint's files.
    pub files: Vec<SourceFileRecord>,
}

/// A file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFileRecord {
    /// File name without folders.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// One package.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageRecord {
    /// Number of the block in the model; absent for the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Folder in the output.
    pub path: String,
    /// Hash of the package.
    pub sha256: Digest,
    /// Bytes of all its files.
    pub size: u64,
    /// Its key in the cache.
    pub key: String,
    /// Its files.
    pub files: Vec<FileRecord>,
    /// Its tensors.
    pub tensors: Vec<TensorRecord>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Path inside the package, or in the output.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256.
    pub sha256: Digest,
}

/// A tensor of a package.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape in the checkpoint, of its rows alone where it is split.
    pub shape: Vec<usize>,
    /// The first of its rows in the checkpoint, where it is split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_row: Option<usize>,
    /// Dtype in the checkpoint.
    pub stored_as: String,
    /// BLAKE3 of its bytes in the checkpoint.
    pub source_blake3: Digest,
    /// Dtype in the package: float16, float32, int8, int4.
    pub dtype: String,
    /// Granularity of its scales, where it is quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granularity: Option<String>,
    /// Elements that share a scale, where that is part of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<usize>,
    /// 10 log10(signal power / error power) in dB; absent where nothing was lost or coremltools quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqnr_db: Option<f64>,
    /// Rows or groups whose scale coremltools would have got wrong in silence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guarded: Vec<GuardedGroup>,
}

/// Seconds, for people; not part of any comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timings {
    /// The whole bake.
    pub seconds: f64,
    /// Each part: stamping or converting; 0 where it was cached.
    pub parts: Vec<PartTiming>,
}

/// Seconds of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartTiming {
    /// `block-00`, `head`, `embedding`.
    pub part: String,
    /// Whether it was in the cache.
    pub cached: bool,
    /// Seconds.
    pub seconds: f64,
}

impl BakeManifest {
    /// The manifest of a bake: of its parts, and of the files beside them.
    ///
    /// # Errors
    /// A part cannot be written as JSON.
    pub fn new(
        plan: &Plan,
        recipe: &Recipe,
        checkpoint: &Checkpoint,
        source: &str,
        outcomes: &[Outcome],
        ends: &[(String, BlobRef)],
        seconds: f64,
    ) -> Result<Self> {
        let files = checkpoint.files().iter().map(|file| SourceFileRecord {
            name: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            size: file.size,
        });
        let (mut blocks, mut head, mut flat) = (Vec::with_capacity(outcomes.len()), None, Vec::new());
        for outcome in outcomes {
            match outcome.part {
                Part::Block(_) => blocks.push(package_record(plan, outcome)?),
                Part::Head => head = Some(package_record(plan, outcome)?),
                Part::Embedding => flat.extend(file_records(outcome)),
            }
        }
        flat.extend(ends.iter().map(|(path, blob)| FileRecord {
            path: path.clone(),
            size: blob.size,
            sha256: blob.sha256,
        }));
        flat.sort_by(|a, b| a.path.cmp(&b.path));
        let timing = |outcome: &Outcome| PartTiming {
            part: outcome.part.name(),
            cached: outcome.cached,
            seconds: milliseconds(outcome.seconds),
        };
        Ok(Self {
            schema: SCHEMA,
            anebake: env!("CARGO_PKG_VERSION").to_owned(),
            engine: plan.engine.as_str().to_owned(),
            model: ModelRecord {
                source: source.to_owned(),
                config: serde_json::to_value(checkpoint.config())?,
                files: files.collect(),
            },
            recipe: recipe.resolved(),
            tools: serde_json::to_value(plan.tools())?,
            blocks,
            head,
            files: flat,
            gate: None,
            lint: None,
            smoke: None,
            timings: Timings { seconds: milliseconds(seconds), parts: outcomes.iter().map(timing).collect() },
        })
    }

    /// Reads the manifest of an output folder; `None` where there is none.
    ///
    /// # Errors
    /// The file cannot be read or is no manifest of this version.
    pub fn read(out: &Path) -> Result<Option<Self>> {
        let path = out.join(FILE_NAME);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).or_fault(|| Fault::input(format!("cannot read `{}`", path.display())));
            }
        };
        serde_json::from_slice(&text).map(Some).or_fault(|| {
            Fault::input(format!("`{}` is no manifest that this version of anebake reads", path.display()))
                .with_hint("bake again into an empty folder")
        })
    }

    /// The packages: blocks in order, then the head.
    pub fn packages(&self) -> impl Iterator<Item = &PackageRecord> {
        self.blocks.iter().chain(&self.head)
    }

    /// Names in the output of all that is listed.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.packages().map(|record| &*record.path).chain(self.files.iter().map(|file| &*file.path))
    }

    /// Whether two manifests describe the same bake: all but what is in the output, gate, lint, smoke and timings.
    pub fn same_bake(&self, other: &Self) -> bool {
        let head = |m: &Self| (m.schema, m.anebake.clone(), m.engine.clone(), m.model.clone());
        head(self) == head(other) && self.recipe == other.recipe && self.tools == other.tools
    }

    /// Whether two manifests are equal but for gate, lint, smoke and timings.
    pub fn same_content<'a>(&'a self, other: &'a Self) -> bool {
        let content = |m: &'a Self| (&m.blocks, &m.head, &m.files);
        self.same_bake(other) && content(self) == content(other)
    }
}

/// The manifest of an output folder, read by a thread of its own while the bake looks for its parts: where all of them
/// are cached, reading it would be a tenth of the time.
#[derive(Debug)]
pub struct ReadAhead(Option<JoinHandle<Option<Seen>>>);

/// A manifest and the file that it was read from. While that is open, no other file can have its inode number.
#[derive(Debug)]
struct Seen {
    manifest: BakeManifest,
    identity: FileIdentity,
    _open: File,
}

impl Seen {
    fn read(path: PathBuf) -> Option<Self> {
        let mut file = File::open(&path).ok()?;
        let metadata = file.metadata().ok()?;
        let mut text = Vec::with_capacity(usize::try_from(metadata.len()).ok()? + 1);
        file.read_to_end(&mut text).ok()?;
        let manifest = serde_json::from_slice(&text).ok()?;
        Some(Self { manifest, identity: FileIdentity::of_metadata(path, &metadata), _open: file })
    }

    /// Whether the file is still there and as it was.
    fn is_current(&self) -> bool {
        let path = &self.identity.path;
        path.metadata().is_ok_and(|now| FileIdentity::of_metadata(path.clone(), &now) == self.identity)
    }
}

impl ReadAhead {
    /// Starts to read the manifest of `out`, if there is one.
    pub fn start(out: &Path) -> Self {
        let path = out.join(FILE_NAME);
        Self(std::thread::Builder::new().spawn(move || Seen::read(path)).ok())
    }

    /// What [`BakeManifest::read`] gives of the same folder at this moment.
    ///
    /// # Errors
    /// As [`BakeManifest::read`].
    pub fn finish(self, out: &Path) -> Result<Option<BakeManifest>> {
        let seen = self.0.and_then(|thread| thread.join().ok().flatten());
        match seen.filter(Seen::is_current) {
            Some(seen) => Ok(Some(seen.manifest)),
            None => BakeManifest::read(out),
        }
    }
}

fn package_record(plan: &Plan, outcome: &Outcome) -> Result<PackageRecord> {
    let planned = plan.parts.iter().find(|planned| planned.part == outcome.part);
    let planned = planned.with_context(|| format!("{} was not planned", outcome.part))?;
    let compute = plan.compute.as_str();
    let tensors = planned.tensors.iter().zip(&outcome.digests);
    Ok(PackageRecord {
        index: match outcome.part {
            Part::Block(index) => Some(index),
            Part::Head | Part::Embedding => None,
        },
        path: outcome.part.path(),
        sha256: outcome.baked.package,
        size: outcome.baked.size(),
        key: outcome.key.to_string(),
        files: file_records(outcome).collect(),
        tensors: tensors.map(|(tensor, digest)| tensor_record(tensor, *digest, compute, outcome)).collect(),
    })
}

fn file_records(outcome: &Outcome) -> impl Iterator<Item = FileRecord> {
    let files = outcome.baked.files.iter();
    files.map(|file| FileRecord { path: file.path.clone(), size: file.blob.size, sha256: file.blob.sha256 })
}

fn tensor_record(planned: &PlannedTensor, digest: Digest, compute: &str, outcome: &Outcome) -> TensorRecord {
    let report = outcome.baked.tensors.iter().find(|report| report.role == planned.tensor.role);
    let block_size = planned.scheme.and_then(|scheme| match scheme.granularity {
        Granularity::PerBlock { block_size } => Some(block_size),
        _ => None,
    });
    TensorRecord {
        name: planned.source.name.clone(),
        shape: planned.tensor.shape.clone(),
        first_row: planned.rows.as_ref().map(|rows| rows.start),
        stored_as: planned.source.stored.clone(),
        source_blake3: digest,
        dtype: planned.scheme.map_or(compute, |scheme| scheme.dtype.as_str()).to_owned(),
        granularity: planned.scheme.map(|scheme| scheme.granularity.as_str().to_owned()),
        block_size,
        sqnr_db: report.and_then(|report| report.sqnr_db),
        guarded: report.map(|report| report.guarded.clone()).unwrap_or_default(),
    }
}

fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(out: &Path, engine: &str) {
        let manifest = json!({
            "schema": SCHEMA, "anebake": "", "engine": engine, "model": {"source": "", "config": {}, "files": []},
            "recipe": {}, "tools": {}, "blocks": [], "timings": {"seconds": 0.0, "parts": []},
        });
        let aside = out.join("aside");
        std::fs::write(&aside, manifest.to_string()).unwrap();
        std::fs::rename(&aside, out.join(FILE_NAME)).unwrap();
    }

    /// The thread of `ahead` has read what there is.
    fn settle(ahead: &ReadAhead) {
        while ahead.0.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_manifest_read_ahead_is_the_one_that_is_there_at_the_end() {
        let out = tempfile::tempdir().unwrap();
        let out = out.path();
        let engine = |ahead: ReadAhead| ahead.finish(out).unwrap().map(|manifest| manifest.engine);
        let ahead = ReadAhead::start(out);
        settle(&ahead);
        write(out, "first");
        assert_eq!(engine(ahead).as_deref(), Some("first"), "there was none");
        let ahead = ReadAhead::start(out);
        settle(&ahead);
        assert_eq!(engine(ahead).as_deref(), Some("first"));
        let ahead = ReadAhead::start(out);
        settle(&ahead);
        write(out, "other");
        assert_eq!(engine(ahead).as_deref(), Some("other"), "it was replaced by one of the same size");
        let ahead = ReadAhead::start(out);
        settle(&ahead);
        std::fs::remove_file(out.join(FILE_NAME)).unwrap();
        assert_eq!(engine(ahead), None, "it was removed");
        std::fs::write(out.join(FILE_NAME), "{}").unwrap();
        assert!(ReadAhead::start(out).finish(out).is_err(), "it is no manifest");
    }
}
