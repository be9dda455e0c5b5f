//! Which graphs a machine's Neural Engine takes: a ladder of small packages, from one norm to 28 blocks, each of which
//! asks one question.
//!
//! Owns the ladder's folder and what is made of it. [`bake`] fills the folder, with the calls of every package and what
//! they give by the oracle; [`run`] compares the reference runner with that, anywhere, and has Core ML do the same calls,
//! each package in a process of its own; `recommend` says what follows for a bake. The packages themselves are
//! authored in Python.

mod bake;
mod check;
mod recommend;
mod run;
mod scrub;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::Digest;
use crate::coremltools::ToolVersions;
use crate::error::{Fault, OrFault};
use crate::gate::npz::{NpyArray, NpyValues, NpzFile};
use crate::mlpackage::inventory::FunctionInfo;
use crate::runner::Array;
use crate::smoke::Case;

pub use bake::{Progress, bake};
pub use check::Checked;
pub use recommend::{Answer, Recommendation};
pub use run::{Results, RungResult, run};

/// Name of the file that lists the rungs of a folder.
pub const FILE_NAME: &str = "probe.json";

/// Version of the file's schema.
const SCHEMA: u32 = 1;

/// What `probe.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ladder {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What made the packages; a ladder made by anything else is made again.
    pub made_by: MadeBy,
    /// Whether all rungs are listed: baking was not interrupted.
    pub complete: bool,
    /// The rungs, the lowest first.
    pub rungs: Vec<Rung>,
}

/// What decides the bytes of the packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeBy {
    /// Digest of the Python sources.
    pub python_sources: String,
    /// Versions of coremltools, numpy, protobuf and Python.
    pub tools: ToolVersions,
}

/// A package and its calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// What it is.
    #[serde(flatten)]
    pub about: About,
    /// The function of each call. States begin as zeros and are carried from call to call.
    pub calls: Vec<String>,
    /// Hash of the package.
    pub package_sha256: Digest,
    /// Digest of the file that holds the arrays of the calls.
    pub calls_sha256: Digest,
}

/// What a rung is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its name, and that of its files.
    pub id: String,
    /// The part of the ladder that it belongs to.
    pub group: Group,
    /// What it asks of a machine.
    pub asks: String,
    /// Deployment target of the package.
    pub target: String,
    /// How its projections are stored.
    pub weights: String,
    /// Cache variant, where the rung is a whole block.
    pub kv: Option<String>,
    /// Blocks in the package.
    pub blocks: usize,
    /// Rows of its smallest function.
    pub rows: usize,
}

/// Parts of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// A piece of a block.
    Op,
    /// A block, by how it keeps keys and values.
    Block,
    /// The number of rows, and of functions.
    Query,
    /// How weights are stored.
    Weights,
    /// Several blocks in a package.
    Stack,
    /// A newer deployment target.
    Target,
}

impl About {
    /// Its package in the folder.
    pub fn package(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.mlpackage", self.id))
    }

    /// The arrays of its calls.
    fn arrays(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.npz", self.id))
    }
}

impl Ladder {
    /// Reads the ladder of a folder; `None` where it has none.
    ///
    /// # Errors
    /// An input fault: the file cannot be read or is no ladder.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE_NAME);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))?,
        };
        let parsed = serde_json::from_slice::<Self>(&bytes).map_err(anyhow::Error::from).and_then(|ladder| {
            if ladder.schema != SCHEMA {
                bail!("schema is {}, this version of anebake reads {SCHEMA}", ladder.schema);
            }
            let plain = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            match ladder.rungs.iter().find(|rung| !plain(&rung.about.id)) {
                Some(rung) => bail!("`{}` is no name of a rung", rung.about.id),
                None => Ok(ladder),
            }
        });
        let ladder = parsed.or_fault(|| {
            Fault::input(format!("`{}` describes no ladder", path.display()))
                .with_hint("remove the file; `anebake probe` then makes the ladder again")
        })?;
        Ok(Some(ladder))
    }
}

impl Rung {
    /// Its calls, and what they give by the oracle.
    ///
    /// # Errors
    /// An input fault: the file of arrays is missing, damaged, or lacks one.
    fn cases(&self, folder: &Path, interface: &[FunctionInfo]) -> Result<Vec<Case>> {
        let path = self.about.arrays(folder);
        let mut file = NpzFile::open(&path)?;
        let mut call = |index: usize, function: &str| -> Result<Case> {
            let info = interface.iter().find(|info| info.name == function);
            let info = info.with_context(|| format!("the package has no function `{function}`"))?;
            let mut read = |kind: &str, name: &str| -> Result<(String, Array)> {
                let key = format!("{index}.{kind}.{name}");
                let array = file.read(&key)?.with_context(|| format!("it has no array `{key}`"))?;
                Ok((name.to_owned(), array.try_into()?))
            };
            let inputs = info.inputs.iter().map(|input| read("in", &input.name)).collect::<Result<_>>()?;
            let expected = info.outputs.iter().map(|output| read("out", &output.name)).collect::<Result<_>>()?;
            Ok(Case { function: function.to_owned(), inputs, expected, fresh: index == 0 })
        };
        let calls = self.calls.iter().enumerate().map(|(index, function)| call(index, function));
        calls.collect::<Result<_>>().or_fault(|| {
            Fault::input(format!("`{}` does not hold the calls of `{}`", path.display(), self.about.id))
                .with_hint("run `anebake probe` where coremltools is installed to make the ladder again")
        })
    }
}

impl TryFrom<NpyArray> for Array {
    type Error = anyhow::Error;

    fn try_from(array: NpyArray) -> Result<Self> {
        match array.values {
            NpyValues::Float(values) => Ok(Self::float(&array.shape, values)),
            NpyValues::Int(values) => {
                let values = values.into_iter().map(i32::try_from).collect::<Result<_, _>>();
                Ok(Self::int(&array.shape, values.context("an integer has more than 32 bits")?))
            }
            NpyValues::Text(_) => bail!("texts where numbers were expected"),
        }
    }
}
