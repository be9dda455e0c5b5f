//! Reading everything again, for `anebake cache verify`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

use super::actions::Entry;
use super::condition::{Condition, StoredSignature};
use super::failure::cannot_read;
use super::inventory::StoredFile;
use super::sealed::Seal;
use super::{ACTIONS, BLOBS, BlobRef, Cache, MEMOS};

/// How far a verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read so far.
    pub checked_bytes: u64,
    /// Bytes there are.
    pub total_bytes: u64,
}

/// What a file of the cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// The result of an action.
    Entry,
    /// A file of the store.
    Blob,
    /// What `stat` said of a blob.
    Signature,
    /// Something remembered to save time.
    Memo,
}

/// A file that was found damaged and is now in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DamagedFile {
    /// What it was for.
    pub kind: FileKind,
    /// Where it was.
    pub path: PathBuf,
}

impl Cache {
    /// Reads and checks every file, whatever `stat` says; moves damaged ones into quarantine and lists them, sorted.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> Result<Vec<DamagedFile>> {
        let buckets = [ACTIONS, BLOBS, MEMOS].map(|bucket| self.files(bucket).map(|files| (bucket, files)));
        let buckets = buckets.into_iter().collect::<Result<Vec<_>>>()?;
        let total_bytes = buckets.iter().flat_map(|(_, files)| files).map(|file| file.metadata.len()).sum();
        let mut checked_bytes = 0;
        let mut damaged = Vec::new();
        for (bucket, file) in buckets.iter().flat_map(|(bucket, files)| files.iter().map(move |file| (bucket, file))) {
            let (kind, right) = self.check(bucket, file)?;
            if !right {
                damaged.push(DamagedFile { kind, path: file.path.clone() });
            }
            checked_bytes += file.metadata.len();
            progress(VerifyProgress { checked_bytes, total_bytes });
        }
        damaged.sort();
        Ok(damaged)
    }

    /// What a file is for and whether it is whole; if not, it is in quarantine now. One that is gone meanwhile, replaced
    /// or collected, is nobody's damage.
    fn check(&self, bucket: &str, file: &StoredFile) -> Result<(FileKind, bool)> {
        let name = file.digest();
        if bucket == BLOBS
            && !file.is_signature()
            && let Some(sha256) = name
        {
            let blob = BlobRef { sha256, size: file.metadata.len() };
            return Ok((FileKind::Blob, self.rehash(&blob)? != Condition::Altered));
        }
        let kind = match bucket {
            ACTIONS => FileKind::Entry,
            BLOBS => FileKind::Signature,
            _ => FileKind::Memo,
        };
        let bytes = match fs::read(&file.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((kind, true)),
            Err(error) => return Err(cannot_read(&file.path, error)),
        };
        let right = match kind {
            FileKind::Entry => name.is_some_and(|key| Entry::open(&bytes, &key).is_some()),
            FileKind::Memo => memo_seal(&file.path).is_some_and(|seal| seal.body(&bytes).is_some()),
            FileKind::Signature | FileKind::Blob => {
                Seal::Signature.open::<StoredSignature>(&bytes).is_some_and(|stored| name == Some(stored.sha256))
            }
        };
        if !right {
            self.quarantine(&file.path);
        }
        Ok((kind, right))
    }
}

fn memo_seal(path: &Path) -> Option<Seal> {
    match path.parent()?.file_name()?.to_str()? {
        "digests" => Some(Seal::Digests),
        "outputs" => Some(Seal::Output),
        "subjects" => Some(Seal::Subject),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;
    use crate::cache::{Digest, FileIdentity};
    use serde_json::json;

    #[test]
    fn verification_finds_a_flipped_byte_in_every_kind_of_file() {
        let fixture = Fixture::new();
        let source = fixture.file("source", b"weights");
        let blob = fixture.cache.put(b"bytes of a blob").unwrap();
        fixture.record(&json!({"n": 1}), &[blob], Some(&json!("block 0")));
        fixture.cache.copy_for_test(&blob, &fixture.path("copy"));
        let memo = fixture.cache.digest_memo(&FileIdentity::of(&source).unwrap());
        memo.insert(0, 1, Digest::of(b"w"));
        memo.save().unwrap();
        let mut last = None;
        assert_eq!(fixture.cache.verify(&mut |progress| last = Some(progress)).unwrap(), []);
        let last = last.unwrap();
        assert_eq!(last.checked_bytes, last.total_bytes);

        let files: Vec<_> =
            [ACTIONS, BLOBS, MEMOS].iter().flat_map(|bucket| fixture.cache.files(bucket).unwrap()).collect();
        assert_eq!(files.len(), 6, "an entry, a blob, a signature, three memos");
        for file in &files {
            fixture.flip(&file.path, 20.min(file.metadata.len() as usize - 1));
        }
        let damaged = fixture.cache.verify(&mut |_| {}).unwrap();
        let kinds: Vec<_> = damaged.iter().map(|file| file.kind).collect();
        use FileKind::{Blob, Entry, Memo, Signature};
        // With a damaged blob goes its signature.
        assert!(kinds == [Entry, Blob, Memo, Memo, Memo] || kinds == [Entry, Blob, Signature, Memo, Memo, Memo]);
        assert!(damaged.iter().all(|file| !file.path.exists()));
        assert_eq!(fixture.cache.stats().unwrap().quarantined, damaged.len() as u64);
        assert_eq!(fixture.cache.verify(&mut |_| {}).unwrap(), []);
    }
}
