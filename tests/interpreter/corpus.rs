//! Packages that a Python script authored, with inputs and what they should give.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use anebake::mil::Arithmetic;
use anebake::mlpackage::{Package, spec};
use anebake::runner::{Array, Model, ReferenceRunner, Runner};
use serde::Deserialize;

use super::Tolerance;

/// What a script wrote.
pub struct Corpus {
    folder: tempfile::TempDir,
    pub cases: Vec<Case>,
    values: Vec<u8>,
    models: OnceLock<Vec<(spec::Model, Vec<u8>)>>,
}

/// A package with calls.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    #[serde(rename = "name")]
    _name: String,
    /// File name of the package.
    pub package: String,
    /// What messages call it.
    pub label: String,
    /// The op that it is about.
    pub op: String,
    /// Whether floats of the program are float16.
    pub half: bool,
    pub tolerance: Tolerance,
    pub calls: Vec<Call>,
}

/// One call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub inputs: BTreeMap<String, Stored>,
    /// By arithmetic.
    pub outputs: BTreeMap<String, BTreeMap<String, Stored>>,
}

/// An array in `values.bin`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    kind: Kind,
    shape: Vec<usize>,
    offset: usize,
    size: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Float,
    Int,
}

impl Corpus {
    /// Runs a script of this folder.
    pub fn author(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new(root.join(".venv/bin/python"))
            .arg(root.join("tests/interpreter").join(script))
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let cases = serde_json::from_slice(&std::fs::read(folder.path().join("cases.json")).unwrap()).unwrap();
        let values = std::fs::read(folder.path().join("values.bin")).unwrap();
        Self { folder, cases, values, models: OnceLock::new() }
    }

    /// Loads the package of a case.
    pub fn open(&self, case: &Case, arithmetic: Arithmetic) -> anyhow::Result<Box<dyn Model>> {
        ReferenceRunner::new(arithmetic).open(&self.folder.path().join(&case.package))
    }

    /// Model and `weight.bin` of every package.
    pub fn models(&self) -> &[(spec::Model, Vec<u8>)] {
        self.models.get_or_init(|| {
            let read = |case: &Case| {
                let package = Package::open(&self.folder.path().join(&case.package)).unwrap();
                (package.model().clone(), package.weights().to_vec())
            };
            self.cases.iter().map(read).collect()
        })
    }

    /// A stored array.
    pub fn array(&self, stored: &Stored) -> Array {
        let words = self.values[stored.offset..][..stored.size].as_chunks::<4>().0.iter();
        match stored.kind {
            Kind::Float => Array::float(&stored.shape, words.map(|bytes| f32::from_le_bytes(*bytes)).collect()),
            Kind::Int => Array::int(&stored.shape, words.map(|bytes| i32::from_le_bytes(*bytes)).collect()),
        }
    }
}
