//! Hashes of packages as they lie on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use walkdir::WalkDir;

use super::{PackageFile, package_hash};
use crate::cache::{BlobRef, Digest};
use crate::error::{Fault, OrFault};

/// The files below a folder, by path, with `/` between its parts.
///
/// # Errors
/// One of them cannot be read.
pub fn files(folder: &Path) -> Result<BTreeMap<String, BlobRef>> {
    let mut found = BTreeMap::new();
    for entry in WalkDir::new(folder).sort_by_file_name() {
        let entry = entry?;
        if !entry.file_type().is_file() {
            continue;
        }
        let path = entry.path().strip_prefix(folder)?;
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let blob = File::open(entry.path())
            .and_then(BlobRef::of_reader)
            .with_context(|| format!("cannot read `{}`", entry.path().display()))?;
        found.insert(parts.join("/"), blob);
    }
    Ok(found)
}

/// [`package_hash`] of the package at `package`, from its files.
///
/// # Errors
/// An input fault that names the package: it cannot be read.
pub fn package_digest(package: &Path) -> Result<Digest> {
    let files = files(package).or_fault(|| Fault::input(format!("cannot read the package `{}`", package.display())))?;
    let digests: Vec<String> = files.values().map(|blob| blob.sha256.to_string()).collect();
    let listed: Vec<PackageFile<'_>> = files
        .iter()
        .zip(&digests)
        .map(|((path, blob), sha256)| PackageFile { path, size: blob.size, sha256 })
        .collect();
    Ok(Digest(package_hash(&listed)))
}
