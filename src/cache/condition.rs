//! Whether a blob of the store still holds its bytes: by `stat` where that suffices, else by reading it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::failure::cannot_read;
use super::sealed::Seal;
use super::signature::{Remembered, Signature, Verdict};
use super::{BLOBS, BlobRef, Cache, Digest, Durability};

/// The ending of a file that holds a blob's signature.
pub(super) const SIGNATURE_EXTENSION: &str = "sig";

/// How a blob was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Its bytes are right.
    Intact,
    /// There is none.
    Missing,
    /// Its bytes were wrong; it is in quarantine.
    Altered,
}

/// A signature is bound to its blob: stored beside another, it does not count.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredSignature {
    pub(super) sha256: Digest,
    remembered: Remembered,
}

impl Cache {
    pub(super) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.sharded(BLOBS, digest)
    }

    pub(super) fn signature_path(&self, digest: &Digest) -> PathBuf {
        self.blob_path(digest).with_extension(SIGNATURE_EXTENSION)
    }

    /// Says how a blob is, by `stat` where that suffices, else by its bytes.
    pub(super) fn examine(&self, blob: &BlobRef) -> Result<Condition> {
        let path = self.blob_path(&blob.sha256);
        let now = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_file() && metadata.len() == blob.size => Signature::of(&metadata),
            Ok(_) => {
                self.quarantine_blob(&blob.sha256);
                return Ok(Condition::Altered);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Condition::Missing),
            Err(error) => return Err(cannot_read(&path, error)),
        };
        if self.is_known(&blob.sha256, &now) {
            return Ok(Condition::Intact);
        }
        // The file may know more than this process: another one may have published the blob meanwhile.
        match self.stored_signature(&blob.sha256).map_or(Verdict::Unknown, |stored| stored.judge(&now)) {
            Verdict::Unchanged => return Ok(Condition::Intact),
            Verdict::LinksChanged => {
                self.remember(&blob.sha256, now);
                return Ok(Condition::Intact);
            }
            Verdict::Unknown => {}
        }
        self.rehash(blob)
    }

    /// Whether this process has seen that the inode with this signature holds the blob.
    pub(super) fn is_known(&self, digest: &Digest, now: &Signature) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(digest).copied();
        known.is_some_and(|known| known.judge(now) == Verdict::Unchanged)
    }

    /// Says how a blob is by its bytes, and remembers its signature if they are right.
    pub(super) fn rehash(&self, blob: &BlobRef) -> Result<Condition> {
        let path = self.blob_path(&blob.sha256);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Condition::Missing),
            Err(error) => return Err(cannot_read(&path, error)),
        };
        let before = file.metadata().map_err(|error| cannot_read(&path, error))?;
        // A file that the disk can no longer read is as good as altered.
        if !BlobRef::of_reader(&file).is_ok_and(|found| found == *blob) {
            self.quarantine_blob(&blob.sha256);
            return Ok(Condition::Altered);
        }
        let (before, after) =
            (Signature::of(&before), Signature::of(&file.metadata().map_err(|error| cannot_read(&path, error))?));
        if before == after {
            self.remember(&blob.sha256, after);
        }
        Ok(Condition::Intact)
    }

    /// Notes that the blob's bytes are right while `stat` says `signature`. On a full or read-only cache the note is
    /// lost, and the blob is hashed again next time.
    pub(super) fn remember(&self, digest: &Digest, signature: Signature) {
        let remembered = Remembered::now(signature);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest, remembered);
        if let Ok(sealed) = Seal::Signature.close(&StoredSignature { sha256: *digest, remembered }) {
            let _ = self.write_atomic(&self.signature_path(digest), &sealed, Durability::Expendable);
        }
    }

    fn stored_signature(&self, digest: &Digest) -> Option<Remembered> {
        let bytes = fs::read(self.signature_path(digest)).ok()?;
        let stored = Seal::Signature.open::<StoredSignature>(&bytes).filter(|stored| stored.sha256 == *digest)?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest, stored.remembered);
        Some(stored.remembered)
    }

    pub(super) fn quarantine_blob(&self, digest: &Digest) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(digest);
        self.quarantine(&self.blob_path(digest));
        let _ = fs::remove_file(self.signature_path(digest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;

    #[test]
    fn truncated_grown_and_replaced_blobs_are_found() {
        let fixture = Fixture::new();
        for bytes in [&b""[..], b"ab", b"abcd", b"xyz"] {
            let blob = fixture.cache.put(b"abc").unwrap();
            let path = fixture.cache.blob_path(&blob.sha256);
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            assert_eq!(fixture.cache.examine(&blob).unwrap(), Condition::Altered, "{bytes:?}");
        }
    }

    #[test]
    fn a_flipped_byte_is_found_even_with_the_mtime_set_back() {
        let fixture = Fixture::new();
        for index in 0..3 {
            let blob = fixture.cache.put(b"abc").unwrap();
            assert!(fixture.cache.contains(&blob).unwrap());
            fixture.flip(&fixture.cache.blob_path(&blob.sha256), index);
            assert_eq!(fixture.reopened().examine(&blob).unwrap(), Condition::Altered);
            assert_eq!(fixture.cache.examine(&blob).unwrap(), Condition::Missing);
        }
        assert_eq!(fixture.cache.stats().unwrap().quarantined, 3);
    }

    #[test]
    fn links_that_come_and_go_do_not_cost_a_hash() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"abc").unwrap();
        fixture.flip_unseen(&blob, 0);
        let [one, two] = ["one", "two"].map(|name| fixture.path(name));
        fs::hard_link(fixture.cache.blob_path(&blob.sha256), &one).unwrap();
        assert_eq!(fixture.reopened().examine(&blob).unwrap(), Condition::Intact);
        fs::hard_link(&one, &two).unwrap();
        fs::remove_file(&one).unwrap();
        fs::remove_file(&two).unwrap();
        assert_eq!(fixture.reopened().examine(&blob).unwrap(), Condition::Intact);
    }

    #[test]
    fn a_damaged_signature_costs_a_hash_and_is_written_anew() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"abc").unwrap();
        let path = fixture.cache.signature_path(&blob.sha256);
        let length = fs::read(&path).unwrap().len();
        for index in 0..length {
            fixture.flip(&path, index);
            let cache = fixture.reopened();
            assert_eq!(cache.stored_signature(&blob.sha256), None, "byte {index}");
            assert_eq!(cache.examine(&blob).unwrap(), Condition::Intact);
            assert!(cache.stored_signature(&blob.sha256).is_some());
        }
        for garbage in [&b""[..], b"{}", b"anebake signature"] {
            fixture.flip_unseen(&blob, 0);
            fs::write(&path, garbage).unwrap();
            assert_eq!(fixture.reopened().examine(&blob).unwrap(), Condition::Altered);
            fixture.cache.put(b"abc").unwrap();
        }
        let other = fixture.cache.put(b"other").unwrap();
        fs::copy(fixture.cache.signature_path(&other.sha256), &path).unwrap();
        assert_eq!(fixture.reopened().stored_signature(&blob.sha256), None, "another blob's");
    }
}
