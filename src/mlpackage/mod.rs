//! Core ML packages on disk: `Manifest.json`, `model.mlmodel`, `weights/weight.bin`.
//!
//! Owns the formats: decoding the program ([`spec`]), the blob file ([`blob`]), the inventory of a package and its
//! hash. Leaves making packages to `bake`, running them to later modules.

pub mod blob;
pub mod compare;
mod digest;
pub mod inventory;
pub mod spec;

use std::fs::File;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};
use memmap2::{Mmap, UncheckedAdvice};
use prost::Message;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::error::{Fault, OrFault};

pub use digest::{digest_of, files, package_digest};

/// Path of the program inside a package that anebake makes.
pub const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
/// Path of the blob file inside a package that anebake makes.
pub const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";
/// Path of the package's table of contents.
pub const MANIFEST: &str = "Manifest.json";

/// How programs spell the folder that holds `model.mlmodel`.
const MODEL_PATH_PREFIX: &str = "@model_path/";

/// A package that was opened and whose program was decoded.
#[derive(Debug)]
pub struct Package {
    path: PathBuf,
    model_path: PathBuf,
    model: spec::Model,
    model_size: u64,
    weights: Option<Mmap>,
}

impl Package {
    /// Opens a `.mlpackage` folder: reads its manifest, decodes its program, maps its weights.
    ///
    /// # Errors
    /// An input fault that names the file which is missing, unreadable or malformed.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_parts(path).or_fault(|| Fault::input(format!("cannot open the package `{}`", path.display())))
    }

    fn open_parts(path: &Path) -> Result<Self> {
        let model_path = locate(path)?;
        let bytes = std::fs::read(&model_path).with_context(|| format!("cannot read `{}`", model_path.display()))?;
        let model = decode(&bytes).with_context(|| format!("`{}` is no Core ML model", model_path.display()))?;
        let weights_path = model_path.with_file_name("weights").join("weight.bin");
        let weights = match File::open(&weights_path) {
            Ok(file) => {
                // SAFETY: the map is read only; packages are replaced by rename, never rewritten in place.
                let map = unsafe { Mmap::map(&file) };
                Some(map.with_context(|| format!("cannot map `{}`", weights_path.display()))?)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", weights_path.display())),
        };
        Ok(Self { path: path.to_owned(), model_path, model, model_size: bytes.len() as u64, weights })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The decoded model.
    pub fn model(&self) -> &spec::Model {
        &self.model
    }

    /// Its `model.mlmodel`.
    pub fn model_path(&self) -> &Path {
        &self.model_path
    }

    /// Size of `model.mlmodel` in bytes.
    pub fn model_size(&self) -> u64 {
        self.model_size
    }

    /// The whole of `weight.bin`; empty where the package has none.
    pub fn weights(&self) -> &[u8] {
        self.weights.as_deref().unwrap_or_default()
    }

    /// Gives back the memory that reading `weight.bin` up to an offset took. It can still be read.
    pub fn release_weights(&self, end: usize) {
        let Some(map) = &self.weights else { return };
        let end = end.min(map.len()) / rustix::param::page_size() * rustix::param::page_size();
        if end > 0 {
            // SAFETY: the map is read-only and backed by the file: a dropped page is read from the file again when it
            // is next touched, so that borrowed slices keep showing the file's bytes.
            let released = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, 0, end) };
            // Only memory use depends on it.
            drop(released);
        }
    }

    /// Every use of the blob file, function by function in program order.
    ///
    /// # Errors
    /// The model is no ML Program, or a use does not fit the blob file.
    pub fn blobs(&self) -> Result<Vec<inventory::BlobUse>> {
        inventory::blobs(&self.model, self.weights())
            .or_fault(|| Fault::input(format!("malformed package `{}`", self.path.display())))
    }

    /// Interface and op counts of every function.
    ///
    /// # Errors
    /// The model is no ML Program.
    pub fn functions(&self) -> Result<Vec<inventory::FunctionInfo>> {
        inventory::functions(&self.model)
            .or_fault(|| Fault::input(format!("malformed package `{}`", self.path.display())))
    }
}

/// Where the program of a `.mlpackage` folder lies, by the package's manifest.
///
/// # Errors
/// The manifest is missing or malformed.
pub fn locate(path: &Path) -> Result<PathBuf> {
    let manifest_path = path.join(MANIFEST);
    let text = std::fs::read(&manifest_path).with_context(|| format!("cannot read `{}`", manifest_path.display()))?;
    let manifest: Manifest = serde_json::from_slice(&text)
        .with_context(|| format!("`{}` is no package manifest", manifest_path.display()))?;
    let item = manifest
        .item_info_entries
        .get(&manifest.root_model_identifier)
        .with_context(|| format!("`{MANIFEST}` lists no item `{}`", manifest.root_model_identifier))?;
    let inside = Path::new(&item.path).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(inside && !item.path.is_empty(), "`{MANIFEST}`: `{}` is no path inside the package", item.path);
    Ok(path.join("Data").join(&item.path))
}

/// Decodes `model.mlmodel`.
///
/// # Errors
/// The bytes are no protobuf of Core ML's `Model`.
pub fn decode(bytes: &[u8]) -> Result<spec::Model> {
    Ok(spec::Model::decode(bytes)?)
}

/// A file of a package, for its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageFile<'a> {
    /// Path inside the package, with `/`.
    pub path: &'a str,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: &'a str,
}

/// A package's hash: SHA-256 over one line `path NUL size NUL sha256 LF` for each file, sorted by path.
pub fn package_hash(files: &[PackageFile<'_>]) -> [u8; 32] {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort_by_key(|file| file.path);
    let mut hasher = Sha256::new();
    for file in sorted {
        hasher.update(format!("{}\0{}\0{}\n", file.path, file.size, file.sha256));
    }
    hasher.finalize().into()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    item_info_entries: std::collections::BTreeMap<String, Item>,
    root_model_identifier: String,
}

#[derive(Deserialize)]
struct Item {
    path: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_hash_depends_on_every_field_but_not_on_order() {
        let file = |path, size, sha256| PackageFile { path, size, sha256 };
        let one = package_hash(&[file("a", 1, "00"), file("b", 2, "11")]);
        assert_eq!(one, package_hash(&[file("b", 2, "11"), file("a", 1, "00")]));
        for other in [file("c", 1, "00"), file("a", 2, "00"), file("a", 1, "01")] {
            assert_ne!(one, package_hash(&[other, file("b", 2, "11")]));
        }
    }
}
