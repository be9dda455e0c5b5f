//! Puts baked packages into an output folder: whole packages only, and a manifest that never vouches for wrong ones.
//!
//! A package is built in a temporary folder inside the output and swapped in by one rename. The manifest is removed
//! before the first package it speaks of is replaced, and written last. Bakes that publish into one folder at the same
//! time take turns (a lock on the folder itself), so that the output is always one bake's.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use walkdir::WalkDir;

use super::manifest::{BakeManifest, FILE_NAME};
use super::pipeline::{BakedBlock, BakedFile};
use crate::cache::{BlobRef, Cache, Damaged, TempDir, move_out, sweep_stale};
use crate::error::{Fault, OrFault};

/// What publishing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Packages written.
    pub written: usize,
    /// Packages that were there already.
    pub kept: usize,
    /// Packages of an earlier bake that were removed.
    pub removed: usize,
}

/// Whether publishing came to its end.
#[derive(Debug)]
pub enum Publication {
    /// The output is complete.
    Done(Published),
    /// Cached files of these blocks turned out to be damaged; they are quarantined: bake the blocks again.
    Damaged(BTreeSet<usize>),
}

/// Brings an output folder in line with a manifest. `partial` keeps packages of the same bake that the manifest does
/// not list; otherwise they are removed.
///
/// # Errors
/// The folder cannot be made or written; nothing half-written is left in it.
pub fn publish(
    cache: &Cache,
    out: &Path,
    mut manifest: BakeManifest,
    blocks: &[(usize, &BakedBlock)],
    partial: bool,
) -> Result<Publication> {
    std::fs::create_dir_all(out).or_fault(|| unwritable(out, "cannot make the output folder"))?;
    let folder = File::open(out).or_fault(|| unwritable(out, "cannot open the output folder"))?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)
        .or_fault(|| unwritable(out, "cannot lock the output folder"))?;
    sweep_stale(out);
    let previous = BakeManifest::read(out).unwrap_or_default();
    if let Some(previous) = previous.as_ref().filter(|previous| partial && previous.same_bake(&manifest)) {
        keep_others(cache, &mut manifest, previous, out);
    }
    let manifest_file = previous.as_ref().and_then(|_| out.join(FILE_NAME).metadata().ok());
    let sealed_at = manifest_file.and_then(|metadata| metadata.modified().ok());
    let mut published = Published::default();
    let mut stale = Vec::new();
    let mut damaged = BTreeSet::new();
    for (index, block) in blocks {
        let record = manifest.blocks.iter().find(|record| record.index == *index);
        let path = out.join(&record.with_context(|| format!("the manifest lacks block {index}"))?.path);
        if is_current(cache, &path, &block.files, sealed_at) {
            published.kept += 1;
        } else {
            stale.push((*index, path, *block));
        }
    }
    if let Some(previous) = &previous
        && stale.is_empty()
        && previous.same_content(&manifest)
    {
        return Ok(Publication::Done(published));
    }
    let temporary = TempDir::new_in(out).or_fault(|| unwritable(out, "cannot make a temporary folder"))?;
    remove_manifest(out)?;
    for (index, path, block) in stale {
        match place(cache, temporary.path(), &path, &block.files) {
            Ok(()) => published.written += 1,
            Err(error) if error.chain().any(|cause| cause.is::<Damaged>()) => {
                damaged.insert(index);
            }
            Err(error) => {
                return Err(error).or_fault(|| unwritable(out, &format!("cannot write `{}`", path.display())));
            }
        }
    }
    if !damaged.is_empty() {
        return Ok(Publication::Damaged(damaged));
    }
    published.removed = remove_leftovers(out, previous.as_ref(), &manifest)?;
    write_manifest(temporary.path(), out, &manifest).or_fault(|| unwritable(out, "cannot write the manifest"))?;
    drop(temporary);
    // Packages that were replaced gave up their links to the store: noted now, so that no later change hides behind it.
    for (_, block) in blocks {
        for file in &block.files {
            cache.contains(&file.blob)?;
        }
    }
    folder.sync_all().or_fault(|| unwritable(out, "cannot sync the output folder"))?;
    Ok(Publication::Done(published))
}

/// Adds the records of packages of the same bake that are still there, unchanged.
fn keep_others(cache: &Cache, manifest: &mut BakeManifest, previous: &BakeManifest, out: &Path) {
    let known: BTreeSet<usize> = manifest.blocks.iter().map(|record| record.index).collect();
    let whole = |files: &[super::manifest::FileRecord], package: &Path| {
        files.iter().all(|file| {
            let (path, blob) = (package.join(&file.path), BlobRef { sha256: file.sha256, size: file.size });
            cache.same_file(&blob, &path).unwrap_or(false)
                || File::open(&path).and_then(BlobRef::of_reader).is_ok_and(|found| found == blob)
        })
    };
    let others = previous.blocks.iter().filter(|record| !known.contains(&record.index));
    manifest.blocks.extend(others.filter(|record| whole(&record.files, &out.join(&record.path))).cloned());
    manifest.blocks.sort_by_key(|record| record.index);
}

/// Whether `package` holds exactly `files`. A folder that was last changed before the manifest was written, `sealed_at`,
/// holds what was put there; any other is listed.
fn is_current(cache: &Cache, package: &Path, files: &[BakedFile], sealed_at: Option<SystemTime>) -> bool {
    let mut folders = BTreeSet::from([package.to_owned()]);
    for file in files {
        let path = package.join(&file.path);
        folders.extend(path.ancestors().skip(1).take_while(|folder| *folder != package).map(Path::to_owned));
    }
    let untouched = |folder: &PathBuf| {
        let changed = folder.symlink_metadata().ok().filter(Metadata::is_dir).and_then(|m| m.modified().ok());
        changed.zip(sealed_at).is_some_and(|(changed, sealed)| changed < sealed)
    };
    (folders.iter().all(untouched) || holds_only(package, files.len()))
        && files.iter().all(|file| cache.same_file(&file.blob, &package.join(&file.path)).unwrap_or(false))
}

/// Whether `package` is a folder with this many files in it.
fn holds_only(package: &Path, count: usize) -> bool {
    let mut found = 0;
    for entry in WalkDir::new(package) {
        match entry {
            Ok(entry) if entry.file_type().is_dir() => {}
            Ok(_) => found += 1,
            Err(_) => return false,
        }
    }
    package.is_dir() && found == count
}

/// Writes a package to `path`, which must not exist.
///
/// # Errors
/// The folder cannot be written, or a cached file is [`Damaged`].
pub fn write_package(cache: &Cache, path: &Path, files: &[BakedFile]) -> Result<()> {
    // One by one: what removes the temporary folder around them must not find it made again.
    std::fs::create_dir(path)?;
    let mut folders = BTreeSet::from([path.to_owned()]);
    for file in files {
        let mut folder = path.to_owned();
        for part in Path::new(&file.path).parent().into_iter().flatten() {
            folder.push(part);
            if folders.insert(folder.clone()) {
                std::fs::create_dir(&folder)?;
            }
        }
        cache.publish(&file.blob, &path.join(&file.path))?;
    }
    Ok(())
}

/// Builds a package in the folder `aside` and swaps it in at `path`; what was there is left in `aside`.
fn place(cache: &Cache, aside: &Path, path: &Path, files: &[BakedFile]) -> Result<()> {
    let built = aside.join(path.file_name().context("a package without a name")?);
    write_package(cache, &built, files)?;
    move_out(|| swap_in(&built, path))
}

/// Moves `built` to `path`; what was there stays beside `built`.
fn swap_in(built: &Path, path: &Path) -> Result<()> {
    if path.symlink_metadata().is_err() {
        return Ok(std::fs::rename(built, path)?);
    }
    if rustix::fs::renameat_with(CWD, built, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    std::fs::rename(path, built.with_extension("replaced"))?;
    Ok(std::fs::rename(built, path)?)
}

fn remove_manifest(out: &Path) -> Result<()> {
    match std::fs::remove_file(out.join(FILE_NAME)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).or_fault(|| unwritable(out, "cannot replace the manifest"))
        }
        _ => Ok(()),
    }
}

/// Removes packages that an earlier manifest listed and the new one does not.
fn remove_leftovers(out: &Path, previous: Option<&BakeManifest>, manifest: &BakeManifest) -> Result<usize> {
    let listed: BTreeSet<&str> = manifest.blocks.iter().map(|record| record.path.as_str()).collect();
    let mut removed = 0;
    for record in previous.iter().flat_map(|previous| &previous.blocks) {
        let path = out.join(&record.path);
        let plain = Path::new(&record.path).components().count() == 1 && record.path.starts_with("block-");
        if plain && !listed.contains(record.path.as_str()) && path.is_dir() {
            std::fs::remove_dir_all(&path)
                .or_fault(|| unwritable(out, "cannot remove a package of an earlier bake"))?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn write_manifest(aside: &Path, out: &Path, manifest: &BakeManifest) -> Result<()> {
    let path = aside.join(FILE_NAME);
    let mut file = File::create(&path)?;
    file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    Ok(std::fs::rename(&path, out.join(FILE_NAME))?)
}

fn unwritable(out: &Path, what: &str) -> Fault {
    Fault::input(format!("{what} (output folder `{}`)", out.display()))
        .with_hint("free space or choose another folder with `--out`; finished blocks stay in the cache")
}
