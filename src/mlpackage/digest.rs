//! Hashes of packages as they lie on disk.

use std::collections::BTreeMap;
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
        let blob =
            BlobRef::of_file(entry.path()).with_context(|| format!("cannot read `{}`", entry.path().display()))?;
        found.insert(parts.join("/"), blob);
    }
    Ok(found)
}

/// [`digest_of`] the files of the package at `package`.
///
/// # Errors
/// An input fault that names the package: it cannot be read.
pub fn package_digest(package: &Path) -> Result<Digest> {
    let files = files(package).or_fault(|| Fault::input(format!("cannot read the package `{}`", package.display())))?;
    Ok(digest_of(files.iter().map(|(path, blob)| (&**path, blob))))
}

/// [`package_hash`] of files by their paths inside the package.
pub fn digest_of<'a>(files: impl Iterator<Item = (&'a str, &'a BlobRef)>) -> Digest {
    let files: Vec<(&str, u64, String)> =
        files.map(|(path, blob)| (path, blob.size, blob.sha256.to_string())).collect();
    let listed: Vec<_> = files.iter().map(|(path, size, sha256)| PackageFile { path, size: *size, sha256 }).collect();
    Digest(package_hash(&listed))
}
