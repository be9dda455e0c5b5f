//! Puts what was baked into an output folder: whole packages and files only, and a manifest that never vouches for wrong
//! ones.
//!
//! A package is built in a temporary folder inside the output and swapped in by one rename; so is a file. The manifest is
//! removed before the first of what it speaks of is replaced, and written last; `chain.json`, by which all packages are
//! one model, goes with it and comes back right before it. Bakes that publish into one folder at the same time take turns
//! (a lock on the folder itself), so that the output is always one bake's.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use serde_json::Value;
use walkdir::WalkDir;

use super::ends::{TOKENIZER, TOKENIZER_CONFIG};
use super::manifest::{BakeManifest, FILE_NAME, FileRecord, PackageRecord, ReadAhead};
use super::part::Part;
use super::pipeline::{BakedFile, Outcome};
use crate::cache::{BlobRef, Cache, Damaged, TempDir, move_out, sweep_stale};
use crate::chain;
use crate::error::{Fault, OrFault};

/// Something that an output folder holds.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    /// Name in the folder.
    pub path: String,
    /// What it is.
    pub contents: Contents<'a>,
}

/// What lies in an output folder under one name.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// A folder of files.
    Package(&'a [BakedFile]),
    /// A file.
    File(BlobRef),
}

impl<'a> Item<'a> {
    /// What the output holds of a baked part.
    ///
    /// # Errors
    /// A part that is no package is not one file.
    pub fn of(outcome: &'a Outcome) -> Result<Self> {
        let contents = match (outcome.part, &outcome.baked.files[..]) {
            (Part::Block(_) | Part::Head, files) => Contents::Package(files),
            (Part::Embedding, [file]) => Contents::File(file.blob),
            (Part::Embedding, files) => anyhow::bail!("{} files for {}", files.len(), outcome.part),
        };
        Ok(Self { path: outcome.part.path(), contents })
    }

    fn blobs(&self) -> impl Iterator<Item = &BlobRef> {
        let (files, file) = match &self.contents {
            Contents::Package(files) => (*files, None),
            Contents::File(blob) => (&[][..], Some(blob)),
        };
        files.iter().map(|file| &file.blob).chain(file)
    }
}

/// What publishing did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Packages written.
    pub packages_written: usize,
    /// Files beside them written, the manifest excepted.
    pub files_written: usize,
    /// Packages of an earlier bake that were removed.
    pub packages_removed: usize,
    /// What the gate said of this very content before.
    pub gate: Option<Value>,
    /// What lint found in this very content before.
    pub lint: Option<Value>,
    /// What smoke found with this very content before.
    pub smoke: Option<Value>,
}

/// Whether publishing came to its end.
#[derive(Debug)]
pub enum Publication {
    /// The output is complete.
    Done(Box<Published>),
    /// Cached files of these items turned out to be damaged; they are quarantined: make them again.
    Damaged(BTreeSet<String>),
}

/// Brings an output folder in line with a manifest, which lists `items`. `partial` keeps what is there of the same bake
/// and the manifest does not list; otherwise it is removed. `ahead` is the output's manifest, if it is being read.
///
/// # Errors
/// The folder cannot be made or written; nothing half-written is left in it.
pub fn publish(
    cache: &Cache,
    out: &Path,
    mut manifest: BakeManifest,
    items: &[Item<'_>],
    partial: bool,
    ahead: Option<ReadAhead>,
) -> Result<Publication> {
    std::fs::create_dir_all(out).or_fault(|| unwritable(out, "cannot make the output folder"))?;
    let folder = locked(out)?;
    sweep_stale(out);
    let previous = match ahead {
        Some(ahead) => ahead.finish(out),
        None => BakeManifest::read(out),
    };
    let previous = previous.unwrap_or_default();
    if let Some(previous) = previous.as_ref().filter(|previous| partial && previous.same_bake(&manifest)) {
        keep_others(cache, &mut manifest, previous, out);
    }
    let sealed_at = previous.as_ref().and_then(|_| modified(&out.join(FILE_NAME)));
    let current = |item: &Item<'_>| is_current(cache, &out.join(&item.path), &item.contents, sealed_at);
    let mut stale: Vec<&Item<'_>> = items.iter().filter(|item| !current(item)).collect();
    if let Some(previous) = previous.as_ref().filter(|previous| previous.same_content(&manifest)) {
        if stale.is_empty() {
            let (gate, lint, smoke) = (previous.gate.clone(), previous.lint.clone(), previous.smoke.clone());
            let unchanged = Published { gate, lint, smoke, ..Published::default() };
            return Ok(Publication::Done(Box::new(unchanged)));
        }
        manifest.gate.clone_from(&previous.gate);
        manifest.lint.clone_from(&previous.lint);
        manifest.smoke.clone_from(&previous.smoke);
    }
    let temporary = TempDir::new_in(out).or_fault(|| unwritable(out, "cannot make a temporary folder"))?;
    remove_manifest(out)?;
    let chain = out.join(chain::FILE_NAME);
    let chain_aside = temporary.path().join("chain-before");
    if !stale.is_empty() {
        // The last of all, whether it is current or not.
        stale.retain(|item| item.path != chain::FILE_NAME);
        stale.extend(items.iter().filter(|item| item.path == chain::FILE_NAME));
        match std::fs::rename(&chain, &chain_aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).or_fault(|| unwritable(out, "cannot replace `chain.json`"));
            }
            _ => {}
        }
    }
    let mut published = Published::default();
    let mut damaged = BTreeSet::new();
    for item in stale {
        if item.path == chain::FILE_NAME && !damaged.is_empty() {
            break;
        }
        let path = out.join(&item.path);
        match place(cache, temporary.path(), &path, &item.contents) {
            Ok(()) if matches!(item.contents, Contents::Package(_)) => published.packages_written += 1,
            Ok(()) => published.files_written += 1,
            Err(error) if error.chain().any(|cause| cause.is::<Damaged>()) => {
                damaged.insert(item.path.clone());
            }
            Err(error) => {
                return Err(error).or_fault(|| unwritable(out, &format!("cannot write `{}`", path.display())));
            }
        }
    }
    if !damaged.is_empty() {
        return Ok(Publication::Damaged(damaged));
    }
    published.packages_removed = remove_leftovers(out, previous.as_ref(), &manifest)?;
    let chain_kept = manifest.files.iter().any(|file| file.path == chain::FILE_NAME);
    if chain_kept && chain.symlink_metadata().is_err() && chain_aside.symlink_metadata().is_ok() {
        move_out(|| Ok(std::fs::rename(&chain_aside, &chain)?))
            .or_fault(|| unwritable(out, "cannot put `chain.json` back"))?;
    }
    write_manifest(&temporary, out, &manifest, None).or_fault(|| unwritable(out, "cannot write the manifest"))?;
    drop(temporary);
    // What was replaced gave up its links to the store: noted now, so that no later change hides behind it.
    for blob in items.iter().flat_map(Item::blobs) {
        cache.contains(blob)?;
    }
    folder.sync_all().or_fault(|| unwritable(out, "cannot sync the output folder"))?;
    (published.gate, published.lint, published.smoke) = (manifest.gate, manifest.lint, manifest.smoke);
    Ok(Publication::Done(Box::new(published)))
}

/// Writes what the gate said of an output into its manifest.
///
/// # Errors
/// There is no manifest, or it cannot be read or written.
pub fn record_gate(out: &Path, result: Value) -> Result<()> {
    record(out, |manifest| manifest.gate = Some(result))
}

/// Writes what smoke found with an output into its manifest.
///
/// # Errors
/// As [`record_gate`].
pub fn record_smoke(out: &Path, result: Value) -> Result<()> {
    record(out, |manifest| manifest.smoke = Some(result))
}

fn record(out: &Path, change: impl FnOnce(&mut BakeManifest)) -> Result<()> {
    let folder = locked(out)?;
    let Some(mut manifest) = BakeManifest::read(out)? else {
        return Err(Fault::input(format!("`{}` is no finished bake: it has no `{FILE_NAME}`", out.display())).into());
    };
    change(&mut manifest);
    rewrite(&folder, out, &manifest)
}

/// Lets `lint` look at an output while no other bake can change it, and writes what it found into the manifest. Nothing
/// happens where there is no manifest, or `lint` gives nothing.
///
/// # Errors
/// Those of `lint`; the manifest cannot be read or written.
pub fn record_lint(out: &Path, lint: impl FnOnce(&BakeManifest) -> Result<Option<Value>>) -> Result<()> {
    let folder = locked(out)?;
    let Some(mut manifest) = BakeManifest::read(out)? else { return Ok(()) };
    let Some(found) = lint(&manifest)? else { return Ok(()) };
    manifest.lint = Some(found);
    rewrite(&folder, out, &manifest)
}

/// Puts a manifest in the place of the one that is there.
fn rewrite(folder: &File, out: &Path, manifest: &BakeManifest) -> Result<()> {
    let temporary = TempDir::new_in(out).or_fault(|| unwritable(out, "cannot make a temporary folder"))?;
    // The time until which folders are known to be unchanged stays.
    let sealed_at = modified(&out.join(FILE_NAME));
    write_manifest(&temporary, out, manifest, sealed_at).or_fault(|| unwritable(out, "cannot write the manifest"))?;
    folder.sync_all().or_fault(|| unwritable(out, "cannot sync the output folder"))
}

/// The output folder, locked until it is closed.
fn locked(out: &Path) -> Result<File> {
    let folder = File::open(out).or_fault(|| unwritable(out, "cannot open the output folder"))?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)
        .or_fault(|| unwritable(out, "cannot lock the output folder"))?;
    Ok(folder)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Adds the records of what is there of the same bake, unchanged. `chain.json` speaks of all of it: it stays if all does.
fn keep_others(cache: &Cache, manifest: &mut BakeManifest, previous: &BakeManifest, out: &Path) {
    let whole = |file: &FileRecord, folder: &Path| {
        let (path, blob) = (folder.join(&file.path), BlobRef { sha256: file.sha256, size: file.size });
        cache.same_file(&blob, &path).unwrap_or(false) || BlobRef::of_file(&path).is_ok_and(|found| found == blob)
    };
    let package = |record: &&PackageRecord| record.files.iter().all(|file| whole(file, &out.join(&record.path)));
    let listed: BTreeSet<Option<usize>> = manifest.blocks.iter().map(|record| record.index).collect();
    let others = previous.blocks.iter().filter(|record| !listed.contains(&record.index));
    manifest.blocks.extend(others.filter(package).cloned());
    manifest.blocks.sort_by_key(|record| record.index);
    if manifest.head.is_none() {
        manifest.head = previous.head.as_ref().filter(package).cloned();
    }
    let listed: BTreeSet<String> = manifest.files.iter().map(|file| file.path.clone()).collect();
    let others = previous.files.iter().filter(|file| !listed.contains(&file.path));
    manifest.files.extend(others.filter(|file| whole(file, out)).cloned());
    manifest.files.sort_by(|a, b| a.path.cmp(&b.path));
    let kept: BTreeSet<&str> = manifest.paths().collect();
    if !previous.paths().all(|path| kept.contains(path)) {
        manifest.files.retain(|file| file.path != chain::FILE_NAME);
    }
}

/// Whether `path` holds exactly this.
fn is_current(cache: &Cache, path: &Path, contents: &Contents<'_>, sealed_at: Option<SystemTime>) -> bool {
    match contents {
        Contents::Package(files) => is_current_package(cache, path, files, sealed_at),
        Contents::File(blob) => cache.same_file(blob, path).unwrap_or(false),
    }
}

/// Whether `package` holds exactly `files`. A folder that was last changed before the manifest was written, `sealed_at`,
/// holds what was put there; any other is listed.
fn is_current_package(cache: &Cache, package: &Path, files: &[BakedFile], sealed_at: Option<SystemTime>) -> bool {
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

/// Builds something in the folder `aside` and swaps it in at `path`; what was there is left in `aside`.
fn place(cache: &Cache, aside: &Path, path: &Path, contents: &Contents<'_>) -> Result<()> {
    let built = aside.join(path.file_name().context("a package without a name")?);
    match contents {
        Contents::Package(files) => {
            write_package(cache, &built, files)?;
            move_out(|| swap_in(&built, path))
        }
        Contents::File(blob) => {
            cache.publish(blob, &built)?;
            let before = built.symlink_metadata()?;
            move_out(|| swap_in(&built, path))?;
            cache.note_rename(blob, &before, path);
            Ok(())
        }
    }
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

/// Removes what an earlier manifest listed and the new one does not; says how many packages that were.
fn remove_leftovers(out: &Path, previous: Option<&BakeManifest>, manifest: &BakeManifest) -> Result<usize> {
    let listed: BTreeSet<&str> = manifest.paths().collect();
    let mut removed = 0;
    // A manifest may have been edited: nothing is removed but what a bake writes.
    let ours = |path: &str| {
        let block = path.starts_with("block-") && path.ends_with(".mlpackage");
        let named = [chain::HEAD, chain::EMBEDDING, chain::ROPE, chain::FILE_NAME, TOKENIZER, TOKENIZER_CONFIG];
        Path::new(path).components().count() == 1 && (block || named.contains(&path))
    };
    for name in previous.iter().flat_map(|previous| previous.paths()) {
        let path = out.join(name);
        if listed.contains(name) || !ours(name) {
            continue;
        }
        let done = match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => {
                removed += 1;
                std::fs::remove_dir_all(&path)
            }
            Ok(_) => std::fs::remove_file(&path),
            Err(_) => Ok(()),
        };
        done.or_fault(|| unwritable(out, &format!("cannot remove `{name}` of an earlier bake")))?;
    }
    Ok(removed)
}

/// Writes the manifest; `modified` is the time of its last change, if that is not to be now.
fn write_manifest(aside: &TempDir, out: &Path, manifest: &BakeManifest, modified: Option<SystemTime>) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(manifest)?;
    text.push(b'\n');
    Ok(aside.write_out(&out.join(FILE_NAME), &text, modified)?)
}

fn unwritable(out: &Path, what: &str) -> Fault {
    Fault::input(format!("{what} (output folder `{}`)", out.display()))
        .with_hint("free space or choose another folder with `--out`; finished blocks stay in the cache")
}
