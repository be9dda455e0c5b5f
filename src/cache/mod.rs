//! A content-addressed cache that is right without locks: under concurrent bakes, `kill -9`, a full disk and damaged
//! files.
//!
//! Two tables: actions (the digest of an *action document* → the result that it led to) and blobs (files by their
//! SHA-256); beside them memos, which only save time. It knows nothing of checkpoints, recipes or packages: callers
//! bring the documents, the results and the bytes.
//!
//! ```text
//! <root>/ac-v1/3f/3f…        one sealed JSON file per action: document, subject, blobs, result
//!        cas-v1/a0/a0…       blobs, mode 0444; `a0….sig`: what `stat` said when the bytes were last known to be right
//!        memo-v1/digests/    digests of ranges of source files, one file per source file
//!        memo-v1/outputs/    which blob a published copy holds
//!        memo-v1/subjects/   the document last recorded for a subject
//!        tmp-v1/             one folder per process, see [`TempDir`]
//!        quarantine-v1/      what was found damaged
//!        collected           its mtime: when limits were last enforced automatically
//! ```
//!
//! A bucket's name carries its version; another format is another bucket.
//!
//! Every write goes to a unique file in the process's temporary folder and is renamed into place. Actions and blobs are
//! synced first. Signatures and memos are not: they are sealed by a checksum, and a lost or torn one costs a re-hash. No
//! directory is synced: a rename that a power failure undoes is a miss.

mod actions;
mod collect;
mod condition;
mod digest;
mod document;
mod failure;
mod inventory;
mod memo;
mod publish;
mod sealed;
mod signature;
mod store;
mod temporary;
mod verify;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::error::{Fault, OrFault};

pub use actions::Lookup;
pub use collect::{Freed, Limits};
pub use digest::{BlobRef, Digest};
pub use document::{ActionKey, Change, action_key, action_key_of_members, canonical_json, difference};
pub use failure::Damaged;
pub use inventory::Stats;
pub use memo::{DigestMemo, FileIdentity};
pub use publish::Published;
pub use store::BlobWriter;
pub use temporary::{TEMPORARY_PREFIX, TempDir, move_out, remove_own_temporaries, sweep_stale};
pub use verify::{DamagedFile, FileKind, VerifyProgress};

use failure::cannot_write;
use signature::Remembered;

/// Environment variable that names the cache folder.
pub const CACHE_DIR_VARIABLE: &str = "ANEBAKE_CACHE_DIR";

const ACTIONS: &str = "ac-v1";
const BLOBS: &str = "cas-v1";
const MEMOS: &str = "memo-v1";
const TEMPORARIES: &str = "tmp-v1";
const QUARANTINE: &str = "quarantine-v1";

/// How long a use of an entry or memo goes unnoted after the last one that was noted.
const USE_RESOLUTION: Duration = Duration::from_secs(24 * 3600);

/// One cache folder. Share it between threads by reference; any number of processes may use the same folder.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    temporary: OnceLock<TempDir>,
    known: Mutex<HashMap<Digest, Remembered>>,
    damage: AtomicUsize,
    serial: AtomicUsize,
}

/// Whether bytes must be on the disk before their name is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Synced,
    Expendable,
}

impl Cache {
    /// Opens the cache at `root`; without one at `$ANEBAKE_CACHE_DIR`, else at the system's folder for caches
    /// (macOS `~/Library/Caches/anebake`, elsewhere `$XDG_CACHE_HOME/anebake` or `~/.cache/anebake`).
    ///
    /// Creates nothing: folders appear with the first write, so a cache that is only read may be read-only. Removes what
    /// killed processes left behind.
    ///
    /// # Errors
    /// No folder can be told (`$HOME` is unset), or something that is not a folder is in its place.
    pub fn open(root: Option<&Path>) -> Result<Self> {
        let root = match root {
            Some(root) => root.to_path_buf(),
            None => default_root(|name| std::env::var_os(name)).ok_or_else(|| {
                Fault::environment("no cache folder: neither `HOME` nor `ANEBAKE_CACHE_DIR` is set")
                    .with_hint("name one with `--cache-dir DIR`")
            })?,
        };
        let root = std::path::absolute(&root)
            .or_fault(|| Fault::input(format!("cannot resolve the cache folder `{}`", root.display())))?;
        if fs::metadata(&root).is_ok_and(|metadata| !metadata.is_dir()) {
            return Err(Fault::input(format!("the cache `{}` is not a folder", root.display()))
                .with_hint("name a folder with `--cache-dir DIR`")
                .into());
        }
        sweep_stale(&root.join(TEMPORARIES));
        Ok(Self {
            root,
            temporary: OnceLock::new(),
            known: Mutex::default(),
            damage: AtomicUsize::new(0),
            serial: AtomicUsize::new(0),
        })
    }

    /// The cache's folder, absolute; it may not exist yet.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many damaged files this handle has come across.
    pub fn damage_seen(&self) -> usize {
        self.damage.load(Ordering::Relaxed)
    }

    fn bucket(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// `bucket/ab/abcd…`
    fn sharded(&self, bucket: &str, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(bucket).join(&name[..2]).join(name)
    }

    /// A path for a new file in this process's temporary folder, which is created when first asked for.
    fn temporary_path(&self) -> Result<PathBuf> {
        let folder = match self.temporary.get() {
            Some(folder) => folder,
            None => {
                let fresh = TempDir::create_in(&self.prepared_temporaries()?)
                    .map_err(|error| cannot_write(&self.root, None, error))?;
                // Where two threads get here together, the later one's folder goes away with the returned `Err`.
                let _ = self.temporary.set(fresh);
                self.temporary.get().expect("set above or by another thread")
            }
        };
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        Ok(folder.path().join(format!("{serial:x}")))
    }

    /// A new temporary folder on the cache's disk, removed when dropped.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn temporary_folder(&self) -> Result<TempDir> {
        TempDir::create_in(&self.prepared_temporaries()?).map_err(|error| cannot_write(&self.root, None, error))
    }

    fn prepared_temporaries(&self) -> Result<PathBuf> {
        let folder = self.bucket(TEMPORARIES);
        fs::create_dir_all(&folder).map_err(|error| cannot_write(&self.root, None, error))?;
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            let text = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of anebake; it may be deleted. See https://bford.info/cachedir/\n";
            fs::write(&tag, text).map_err(|error| cannot_write(&self.root, None, error))?;
        }
        Ok(folder)
    }

    fn write_atomic(&self, destination: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
        let temporary = self.temporary_path()?;
        let written = (|| {
            let mut file = File::create_new(&temporary)?;
            file.write_all(bytes)?;
            if durability == Durability::Synced {
                file.sync_data()?;
            }
            in_folder(destination, || fs::rename(&temporary, destination))
        })();
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            cannot_write(&self.root, Some(bytes.len() as u64), error)
        })
    }

    /// Moves a damaged file out of the way and counts it. On a read-only cache the file stays where it is: it is found
    /// damaged again, never served.
    fn quarantine(&self, path: &Path) {
        self.damage.fetch_add(1, Ordering::Relaxed);
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let to = self.bucket(QUARANTINE).join(format!("{name}.{:x}-{:x}-{serial:x}", now_ns(), std::process::id()));
        let _ = in_folder(&to, || fs::rename(path, &to));
    }
}

/// Does `action` on `path`; if that fails because the folder is missing, creates it and does it again.
fn in_folder(path: &Path, mut action: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    match action() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            action()
        }
        done => done,
    }
}

/// The cache folder by the environment, which `variable` reads; an empty value counts as unset, and so does a relative
/// `XDG_CACHE_HOME` (by its specification).
fn default_root(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(explicit) = folder(CACHE_DIR_VARIABLE) {
        return Some(explicit);
    }
    let caches = if cfg!(target_os = "macos") {
        folder("HOME")?.join("Library/Caches")
    } else {
        match folder("XDG_CACHE_HOME").filter(|path| path.is_absolute()) {
            Some(caches) => caches,
            None => folder("HOME")?.join(".cache"),
        }
    };
    Some(caches.join("anebake"))
}

/// Nanoseconds since 1970.
fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// Notes that a file was used, in its modification time, if the last note is older than [`USE_RESOLUTION`]. Failing is
/// no matter: on a read-only cache nothing is collected either.
fn note_use(path: &Path) {
    let Ok(modified) = fs::metadata(path).and_then(|metadata| metadata.modified()) else { return };
    let now = SystemTime::now();
    if now.duration_since(modified).is_ok_and(|age| age >= USE_RESOLUTION)
        && let Ok(file) = File::open(path)
    {
        let _ = file.set_modified(now);
    }
}

#[cfg(test)]
mod tests;
