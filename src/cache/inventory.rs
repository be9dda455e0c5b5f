//! What the cache holds.

use std::fs::Metadata;
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;
use walkdir::WalkDir;

use super::condition::SIGNATURE_EXTENSION;
use super::failure::cannot_read;
use super::{ACTIONS, BLOBS, Cache, Digest, MEMOS, QUARANTINE, TEMPORARIES};

/// What the cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Actions.
    pub entries: u64,
    /// Blobs.
    pub blobs: u64,
    /// Bytes of all files, those that are shared with outputs included.
    pub bytes: u64,
    /// Files in quarantine.
    pub quarantined: u64,
    /// When the entry that was used least recently was used, in seconds since 1970, to within a day.
    pub oldest_use: Option<u64>,
}

/// A file of a bucket.
pub(super) struct StoredFile {
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
}

impl StoredFile {
    /// The digest that the file's name is, without the ending of a signature.
    pub(super) fn digest(&self) -> Option<Digest> {
        let name = if self.is_signature() { self.path.file_stem() } else { self.path.file_name() };
        name?.to_str()?.parse().ok()
    }

    pub(super) fn is_signature(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == SIGNATURE_EXTENSION)
    }

    pub(super) fn modified(&self) -> SystemTime {
        self.metadata.modified().unwrap_or(UNIX_EPOCH)
    }
}

impl Cache {
    /// What the cache holds.
    ///
    /// # Errors
    /// A folder of the cache cannot be read.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = Stats::default();
        let mut oldest = None;
        for bucket in [ACTIONS, BLOBS, MEMOS, QUARANTINE, TEMPORARIES] {
            for file in self.files(bucket)? {
                stats.bytes += file.metadata.len();
                match bucket {
                    ACTIONS => {
                        stats.entries += 1;
                        oldest = oldest.into_iter().chain([file.modified()]).min();
                    }
                    BLOBS if !file.is_signature() => stats.blobs += 1,
                    QUARANTINE => stats.quarantined += 1,
                    _ => {}
                }
            }
        }
        stats.oldest_use = oldest.map(|at| at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
        Ok(stats)
    }

    /// The regular files of a bucket, in no order; a missing bucket has none.
    pub(super) fn files(&self, bucket: &str) -> Result<Vec<StoredFile>> {
        let folder = self.bucket(bucket);
        let mut files = Vec::new();
        for entry in WalkDir::new(&folder) {
            let found = entry.and_then(|entry| Ok((entry.metadata()?, entry)));
            match found {
                Ok((metadata, entry)) if metadata.is_file() => {
                    files.push(StoredFile { path: entry.into_path(), metadata });
                }
                Ok(_) => {}
                // Another process removed it.
                Err(error) if error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) => {}
                Err(error) => return Err(cannot_read(&folder, error.into())),
            }
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;
    use serde_json::json;
    use std::fs;
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn statistics_count_what_is_there() {
        let fixture = Fixture::new();
        assert_eq!(fixture.cache.stats().unwrap(), Stats::default());
        let [one, two] = [1, 2].map(|number| fixture.cache.put(&[number; 10_000]).unwrap());
        for (blob, days) in [(one, 3), (two, 1)] {
            let key = fixture.record(&json!({ "days": days }), &[blob], None);
            let entry = fs::File::open(fixture.cache.sharded(ACTIONS, &key.digest())).unwrap();
            entry.set_modified(SystemTime::now() - days * DAY).unwrap();
        }
        fixture.flip(&fixture.cache.blob_path(&two.sha256), 0);
        assert!(!fixture.cache.contains(&two).unwrap());
        let stats = fixture.cache.stats().unwrap();
        assert_eq!((stats.entries, stats.blobs, stats.quarantined), (2, 1, 1));
        assert!(stats.bytes > 20_000 && stats.bytes < 24_000);
        let oldest = UNIX_EPOCH + Duration::from_secs(stats.oldest_use.unwrap());
        let idle = SystemTime::now().duration_since(oldest).unwrap();
        assert!(idle >= 3 * DAY && idle < 4 * DAY);
    }
}
