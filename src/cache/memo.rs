//! Digests of ranges of source files, remembered while the files stay as they are.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::sealed::Seal;
use super::signature::{Signature, is_racy};
use super::{Cache, Digest, Durability, MEMOS, note_use, now_ns};

/// A file as `stat` saw it. Take it before the file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Where the file is; two paths to one file have two memos.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Last change of its bytes, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change of its bytes or of what is known of it; tells of a write that set the mtime back.
    pub ctime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub dev: u64,
}

impl FileIdentity {
    /// The identity of the file at `path`, links followed.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let metadata = fs::metadata(&path)?;
        Ok(Self::of_metadata(path, &metadata))
    }

    /// The identity of an open file: `path` and what `stat` says of it.
    pub fn of_metadata(path: PathBuf, metadata: &Metadata) -> Self {
        let Signature { size, mtime_ns, ctime_ns, inode, dev, nlink: _ } = Signature::of(metadata);
        Self { path, size, mtime_ns, ctime_ns, inode, dev }
    }
}

/// The digests remembered of one file. Share it between threads by reference.
#[derive(Debug)]
pub struct DigestMemo<'a> {
    cache: &'a Cache,
    identity: FileIdentity,
    hashed_at_ns: i64,
    digests: Mutex<HashMap<(u64, u64), Digest>>,
    changed: AtomicBool,
}

/// As stored. The path is for people; the file's name stands for it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    path: String,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    inode: u64,
    dev: u64,
    /// When the first of the digests was begun, at the latest.
    hashed_at_ns: i64,
    /// Offset, length, digest.
    digests: Vec<(u64, u64, Digest)>,
}

impl Stored {
    /// Whether the digests are those of the file as it is now. A file modified less than two seconds before it was
    /// hashed may have been modified again without a trace.
    fn holds_for(&self, file: &FileIdentity) -> bool {
        let then = (self.size, self.mtime_ns, self.ctime_ns, self.inode, self.dev);
        then == (file.size, file.mtime_ns, file.ctime_ns, file.inode, file.dev)
            && !is_racy(self.mtime_ns, self.hashed_at_ns)
    }
}

impl Cache {
    /// What is remembered of `file`; nothing, if it changed since, was too young when it was hashed, or the memo is
    /// damaged.
    pub fn digest_memo(&self, file: &FileIdentity) -> DigestMemo<'_> {
        let path = self.digests_path(file);
        let stored = fs::read(&path)
            .ok()
            .and_then(|bytes| Seal::Digests.open::<Stored>(&bytes))
            .filter(|stored| stored.holds_for(file));
        let (hashed_at_ns, digests) = match stored {
            Some(stored) => {
                note_use(&path);
                let digests = stored.digests.into_iter().map(|(offset, length, digest)| ((offset, length), digest));
                (stored.hashed_at_ns, digests.collect())
            }
            None => (now_ns(), HashMap::new()),
        };
        DigestMemo {
            cache: self,
            identity: file.clone(),
            hashed_at_ns,
            digests: Mutex::new(digests),
            changed: AtomicBool::new(false),
        }
    }

    fn digests_path(&self, file: &FileIdentity) -> PathBuf {
        self.bucket(MEMOS).join("digests").join(Digest::of(file.path.as_os_str().as_bytes()).to_string())
    }
}

impl DigestMemo<'_> {
    /// The digest of `length` bytes from `offset`, if it is known.
    pub fn get(&self, offset: u64, length: u64) -> Option<Digest> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner).get(&(offset, length)).copied()
    }

    /// Remembers a digest that was computed after this memo was made.
    pub fn insert(&self, offset: u64, length: u64, digest: Digest) {
        self.changed.store(true, Ordering::Relaxed);
        self.digests.lock().unwrap_or_else(PoisonError::into_inner).insert((offset, length), digest);
    }

    /// Writes the memo if something was added. Of two writers the later one wins. Saves nothing if the file is no longer
    /// what it was.
    ///
    /// # Errors
    /// The cache is full or read-only; nothing but time is lost.
    pub fn save(&self) -> Result<()> {
        let Self { cache, identity, hashed_at_ns, .. } = self;
        let unchanged = fs::metadata(&identity.path)
            .is_ok_and(|metadata| FileIdentity::of_metadata(identity.path.clone(), &metadata) == *identity);
        if !unchanged || !self.changed.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let mut digests: Vec<_> = {
            let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
            digests.iter().map(|(&(offset, length), &digest)| (offset, length, digest)).collect()
        };
        digests.sort_unstable();
        let FileIdentity { path, size, mtime_ns, ctime_ns, inode, dev } = identity;
        let sealed = Seal::Digests
            .close(&Stored {
                path: path.to_string_lossy().into_owned(),
                size: *size,
                mtime_ns: *mtime_ns,
                ctime_ns: *ctime_ns,
                inode: *inode,
                dev: *dev,
                hashed_at_ns: *hashed_at_ns,
                digests,
            })
            .context("digests are JSON")?;
        cache.write_atomic(&cache.digests_path(identity), &sealed, Durability::Expendable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    struct Fixture {
        _folder: tempfile::TempDir,
        cache: Cache,
        source: PathBuf,
    }

    impl Fixture {
        fn new(age: Duration) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let source = folder.path().join("model.safetensors");
            fs::write(&source, "weights").unwrap();
            let fixture =
                Self { cache: Cache::open(Some(&folder.path().join("cache"))).unwrap(), source, _folder: folder };
            fixture.set_age(age);
            fixture
        }

        fn set_age(&self, age: Duration) {
            File::open(&self.source).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }

        fn identity(&self) -> FileIdentity {
            FileIdentity::of(&self.source).unwrap()
        }

        fn save_one(&self) {
            let memo = self.cache.digest_memo(&self.identity());
            memo.insert(8, 4, Digest::of(b"four"));
            memo.save().unwrap();
        }

        fn get(&self) -> Option<Digest> {
            self.cache.digest_memo(&self.identity()).get(8, 4)
        }
    }

    const OLD: Duration = Duration::from_secs(10);

    #[test]
    fn digests_of_an_unchanged_file_are_remembered_and_added_to() {
        let fixture = Fixture::new(OLD);
        fixture.save_one();
        assert_eq!(fixture.get(), Some(Digest::of(b"four")));
        let memo = fixture.cache.digest_memo(&fixture.identity());
        assert_eq!(memo.get(8, 5), None);
        memo.insert(8, 5, Digest::of(b"five"));
        memo.save().unwrap();
        assert_eq!(fixture.cache.digest_memo(&fixture.identity()).get(8, 5), Some(Digest::of(b"five")));
        assert_eq!(fixture.get(), Some(Digest::of(b"four")));
    }

    #[test]
    fn a_file_modified_just_before_it_was_hashed_is_not_trusted() {
        let fixture = Fixture::new(Duration::from_millis(1500));
        fixture.save_one();
        assert_eq!(fixture.get(), None);
        fixture.set_age(Duration::from_secs(3));
        fixture.save_one();
        assert!(fixture.get().is_some());
    }

    #[test]
    fn any_change_of_the_file_empties_its_memo() {
        let fixture = Fixture::new(OLD);
        fixture.save_one();
        let was = fixture.identity();
        for changed in [
            FileIdentity { size: was.size + 1, ..was.clone() },
            FileIdentity { mtime_ns: was.mtime_ns + 1, ..was.clone() },
            FileIdentity { ctime_ns: was.ctime_ns + 1, ..was.clone() },
            FileIdentity { inode: was.inode + 1, ..was.clone() },
            FileIdentity { dev: was.dev + 1, ..was.clone() },
            FileIdentity { path: "/elsewhere".into(), ..was.clone() },
        ] {
            assert_eq!(fixture.cache.digest_memo(&changed).get(8, 4), None, "{changed:?}");
        }
        fs::write(&fixture.source, "WEIGHTS").unwrap();
        let file = File::open(&fixture.source).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_nanos(was.mtime_ns.try_into().unwrap())).unwrap();
        assert_eq!(fixture.identity().mtime_ns, was.mtime_ns);
        assert_eq!(fixture.get(), None, "the mtime was set back");
    }

    #[test]
    fn a_file_that_changed_while_it_was_hashed_is_not_remembered() {
        let fixture = Fixture::new(OLD);
        let before = fixture.identity();
        let memo = fixture.cache.digest_memo(&before);
        memo.insert(8, 4, Digest::of(b"four"));
        fs::write(&fixture.source, "longer weights").unwrap();
        memo.save().unwrap();
        assert_eq!(fixture.cache.digest_memo(&before).get(8, 4), None);
    }

    #[test]
    fn a_flipped_byte_anywhere_in_a_memo_or_garbage_empties_it() {
        let fixture = Fixture::new(OLD);
        fixture.save_one();
        let path = fixture.cache.digests_path(&fixture.identity());
        let good = fs::read(&path).unwrap();
        for index in 0..good.len() {
            let mut bytes = good.clone();
            bytes[index] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(fixture.get(), None, "byte {index}");
        }
        for garbage in [&b""[..], b"{}", b"[[", &good[..good.len() - 1]] {
            fs::write(&path, garbage).unwrap();
            assert_eq!(fixture.get(), None);
        }
        fs::write(&path, good).unwrap();
        assert!(fixture.get().is_some());
    }
}
