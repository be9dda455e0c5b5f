//! A file of a checkpoint: mapped, known by its identity, and watched for changes.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use memmap2::{Mmap, UncheckedAdvice};

use crate::error::{Fault, OrFault};

/// Identity of a file whose bytes were mapped, taken from the open file. Equal identities mean equal bytes, as in
/// git's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it was opened.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// Last modification, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// Device that the inode is on.
    pub device: u64,
}

impl SourceFile {
    fn new(path: &Path, metadata: &Metadata) -> Self {
        Self {
            path: path.to_owned(),
            size: metadata.size(),
            mtime_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
            inode: metadata.ino(),
            device: metadata.dev(),
        }
    }
}

/// An open file and its bytes.
#[derive(Debug)]
pub(super) struct MappedFile {
    source: SourceFile,
    file: File,
    map: Mmap,
}

impl MappedFile {
    /// Opens and maps `path`; reads its first page only.
    ///
    /// # Errors
    /// Input faults: the file cannot be opened, is empty, or holds a Git LFS pointer or a web page.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || -> io::Result<(File, Metadata)> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            Ok((file, metadata))
        };
        let (file, metadata) = open().or_fault(|| Fault::input(format!("cannot open `{}`", path.display())))?;
        if !metadata.is_file() {
            bail!(Fault::input(format!("`{}` is not a file", path.display())));
        }
        let source = SourceFile::new(path, &metadata);
        // SAFETY: bytes may change under the map if another process writes the file; the bytes are only ever read as
        // plain numbers, whose every bit pattern is valid, and `unchanged` reports a change.
        let map = unsafe { Mmap::map(&file) };
        let map = map.or_fault(|| Fault::input(format!("cannot map `{}`", path.display())))?;
        refuse_stand_ins(path, &map)?;
        Ok(Self { source, file, map })
    }

    pub(super) fn source(&self) -> &SourceFile {
        &self.source
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives back the memory of the whole pages inside `offset..offset + length`; a later read fetches them again.
    pub(super) fn release(&self, offset: usize, length: usize) {
        let page = rustix::param::page_size();
        let start = offset.next_multiple_of(page);
        let end = (offset + length).min(self.map.len()) / page * page;
        if start >= end {
            return;
        }
        // SAFETY: the map is read-only and backed by the file: a dropped page is read from the file again when it is
        // next touched, so that borrowed slices keep showing the file's bytes.
        let released = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        // Only memory use depends on it.
        drop(released);
    }

    /// Fails if the file was written, truncated or replaced since it was opened.
    pub(super) fn unchanged(&self) -> Result<()> {
        let path = &self.source.path;
        let now = || -> io::Result<[Metadata; 2]> { Ok([self.file.metadata()?, fs::metadata(path)?]) };
        let changed = || {
            Fault::input(format!("`{}` changed while it was being read", path.display()))
                .with_hint("run the same command again once nothing writes to the checkpoint")
        };
        for metadata in now().or_fault(changed)? {
            let now = SourceFile::new(path, &metadata);
            if now != self.source {
                let difference = format!(
                    "size {} is now {}, mtime {} ns is now {} ns, inode {} is now {}",
                    self.source.size, now.size, self.source.mtime_ns, now.mtime_ns, self.source.inode, now.inode
                );
                return Err(anyhow::Error::msg(difference)).or_fault(changed);
            }
        }
        Ok(())
    }
}

/// Refuses what a failed download leaves in a model file's place.
fn refuse_stand_ins(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = path.display();
    if bytes.is_empty() {
        bail!(Fault::input(format!("`{shown}` is empty")).with_hint("download the file again"));
    }
    let start = &bytes[..bytes.len().min(256)];
    if start.starts_with(b"version https://git-lfs.github.com/spec/") {
        let folder = path.parent().unwrap_or(Path::new("."));
        bail!(
            Fault::input(format!("`{shown}` is a Git LFS pointer, not the file that it points to"))
                .with_hint(format!("git -C {} lfs pull", folder.display()))
        );
    }
    let text = start.trim_ascii_start().to_ascii_lowercase();
    if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
        bail!(
            Fault::input(format!("`{shown}` is a web page, not a model file"))
                .with_hint("download the file itself, from the link that the page offers")
        );
    }
    Ok(())
}

/// Reads a JSON file beside the weights.
///
/// # Errors
/// As [`MappedFile::open`]; and an input fault where the file is not JSON.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let file = MappedFile::open(path)?;
    serde_json::from_slice(file.bytes())
        .or_fault(|| Fault::input("invalid JSON"))
        .with_context(|| format!("cannot read `{}`", path.display()))
}
