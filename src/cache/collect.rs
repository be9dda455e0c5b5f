//! Keeping the cache within limits.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;

use super::actions::Entry;
use super::condition::SIGNATURE_EXTENSION;
use super::failure::cannot_write;
use super::inventory::StoredFile;
use super::{ACTIONS, BLOBS, Cache, Digest, MEMOS, QUARANTINE, TEMPORARIES, sweep_stale};

/// At most this often does [`Cache::collect_if_due`] collect.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(24 * 3600);
const COLLECTION_STAMP: &str = "collected";

/// How much the cache may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of entries, blobs and quarantine together.
    pub max_bytes: u64,
    /// Age of an entry since it was last used; of a memo and of what is in quarantine likewise.
    pub max_age: Duration,
    /// Entries and blobs younger than this are spared: another bake may be about to record or to publish them.
    pub grace: Duration,
}

impl Default for Limits {
    /// 20 GiB, 30 days, one hour of grace.
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self { max_bytes: 20 << 30, max_age: 30 * DAY, grace: Duration::from_secs(3600) }
    }
}

/// What a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Freed {
    /// Actions forgotten.
    pub entries: u64,
    /// Blobs removed.
    pub blobs: u64,
    /// Bytes given back to the disk: a blob that an output still links to gives none.
    pub bytes: u64,
}

struct StoredEntry {
    file: StoredFile,
    blobs: HashSet<Digest>,
}

struct StoredBlob {
    file: StoredFile,
    references: u64,
}

impl Cache {
    /// [`Cache::gc`], but at most once a day; `None` when it was not due.
    ///
    /// # Errors
    /// As for [`Cache::gc`].
    pub fn collect_if_due(&self, limits: &Limits) -> Result<Option<Freed>> {
        let stamp = self.root.join(COLLECTION_STAMP);
        let is_recent = |at| age(at) < COLLECTION_INTERVAL;
        if !self.root.exists() || fs::metadata(&stamp).and_then(|stamp| stamp.modified()).is_ok_and(is_recent) {
            return Ok(None);
        }
        fs::write(&stamp, "").map_err(|error| cannot_write(&self.root, None, error))?;
        self.gc(limits).map(Some)
    }

    /// Brings the cache within its limits: forgets what was not used for too long, then, least recently used first, what
    /// there is too much of; removes blobs that no entry refers to, old memos and what killed processes left behind.
    ///
    /// # Errors
    /// The cache cannot be read or is read-only; what was removed stays removed.
    pub fn gc(&self, limits: &Limits) -> Result<Freed> {
        sweep_stale(&self.bucket(TEMPORARIES));
        self.remove_older(MEMOS, limits.max_age)?;
        let mut freed = Freed { bytes: self.remove_older(QUARANTINE, limits.max_age)?, ..Freed::default() };

        // Blobs first: one that is listed as unreferenced was so when the entries were read, later.
        let mut blobs = self.stored_blobs(limits.grace)?;
        let mut entries = self.stored_entries()?;
        for digest in entries.iter().flat_map(|entry| &entry.blobs) {
            if let Some(blob) = blobs.get_mut(digest) {
                blob.references += 1;
            }
        }
        let is_free = |blob: &StoredBlob| blob.references == 0 && self.idle(&blob.file) >= limits.grace;
        let size = |file: &StoredFile| file.metadata.len();
        let kept = |blob: &&StoredBlob| !is_free(blob);
        let mut total: u64 = blobs.values().filter(kept).map(|blob| size(&blob.file)).sum::<u64>()
            + entries.iter().map(|entry| size(&entry.file)).sum::<u64>();

        let quarantine: u64 = self.files(QUARANTINE)?.iter().map(size).sum();
        if total + quarantine > limits.max_bytes {
            freed.bytes += self.remove_older(QUARANTINE, Duration::ZERO)?;
        } else {
            total += quarantine;
        }

        entries.sort_by_key(|entry| entry.file.modified());
        for entry in &entries {
            let idle = age(entry.file.modified());
            let crowded = total > limits.max_bytes && idle >= limits.grace;
            if idle < limits.max_age && !crowded {
                continue;
            }
            freed.bytes += self.remove(&entry.file)?;
            freed.entries += 1;
            total -= size(&entry.file);
            for digest in &entry.blobs {
                if let Some(blob) = blobs.get_mut(digest) {
                    blob.references -= 1;
                    if is_free(blob) {
                        total -= size(&blob.file);
                    }
                }
            }
        }
        for (digest, blob) in &blobs {
            // Asked again, since another process may just have stored the same blob again.
            if is_free(blob) {
                freed.bytes += self.remove(&blob.file)?;
                freed.blobs += 1;
                let _ = fs::remove_file(self.signature_path(digest));
            }
        }
        Ok(freed)
    }

    /// The blobs; signatures without one are removed on the way, if `grace` has passed.
    fn stored_blobs(&self, grace: Duration) -> Result<HashMap<Digest, StoredBlob>> {
        let (signatures, blobs): (Vec<_>, Vec<_>) = self.files(BLOBS)?.into_iter().partition(StoredFile::is_signature);
        let blobs: HashMap<_, _> =
            blobs.into_iter().filter_map(|file| Some((file.digest()?, StoredBlob { file, references: 0 }))).collect();
        for signature in signatures {
            let orphan = signature.digest().is_none_or(|digest| !blobs.contains_key(&digest));
            if orphan && age(signature.modified()) >= grace {
                self.remove(&signature)?;
            }
        }
        Ok(blobs)
    }

    fn stored_entries(&self) -> Result<Vec<StoredEntry>> {
        let mut entries = Vec::new();
        for file in self.files(ACTIONS)? {
            let entry = file.digest().and_then(|key| Entry::open(&fs::read(&file.path).ok()?, &key));
            match entry {
                Some(entry) => {
                    let blobs = entry.blobs.iter().map(|blob| blob.sha256).collect();
                    entries.push(StoredEntry { file, blobs });
                }
                None if file.path.exists() => self.quarantine(&file.path),
                None => {}
            }
        }
        Ok(entries)
    }

    /// For how long nobody stored, verified or published a blob: its signature is written then.
    fn idle(&self, blob: &StoredFile) -> Duration {
        let changed = UNIX_EPOCH + Duration::from_secs(blob.metadata.ctime().try_into().unwrap_or(0));
        let signature = blob.path.with_extension(SIGNATURE_EXTENSION);
        age(fs::metadata(signature).and_then(|signature| signature.modified()).unwrap_or(changed))
    }

    fn remove_older(&self, bucket: &str, max_age: Duration) -> Result<u64> {
        let mut bytes = 0;
        for file in self.files(bucket)? {
            let changed = UNIX_EPOCH + Duration::from_secs(file.metadata.ctime().try_into().unwrap_or(0));
            let used = if bucket == QUARANTINE { changed } else { file.modified() };
            if age(used) >= max_age {
                bytes += self.remove(&file)?;
            }
        }
        Ok(bytes)
    }

    /// Removes a file; the bytes that this gives back to the disk.
    fn remove(&self, file: &StoredFile) -> Result<u64> {
        match fs::remove_file(&file.path) {
            Ok(()) => Ok(if file.metadata.nlink() == 1 { file.metadata.len() } else { 0 }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(cannot_write(&self.root, None, error)),
        }
    }
}

fn age(at: SystemTime) -> Duration {
    SystemTime::now().duration_since(at).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;
    use crate::cache::{ActionKey, BlobRef, Lookup};
    use serde_json::json;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const NO_GRACE: Limits =
        Limits { max_bytes: u64::MAX, max_age: Duration::from_secs(30 * 24 * 3600), grace: Duration::ZERO };

    /// An action that was last used so long ago, with a blob of 10,000 bytes of its own.
    fn action(fixture: &Fixture, number: u8, idle: Duration) -> (ActionKey, BlobRef) {
        let blob = fixture.cache.put(&[number; 10_000]).unwrap();
        let key = fixture.record(&json!({ "number": number }), &[blob], None);
        set_age(fixture, &key, idle);
        (key, blob)
    }

    fn set_age(fixture: &Fixture, key: &ActionKey, idle: Duration) {
        let entry = fs::File::open(fixture.cache.sharded(ACTIONS, &key.digest())).unwrap();
        entry.set_modified(SystemTime::now() - idle).unwrap();
    }

    fn is_hit(fixture: &Fixture, key: &ActionKey) -> bool {
        matches!(fixture.cache.lookup::<serde_json::Value>(key).unwrap(), Lookup::Hit { .. })
    }

    #[test]
    fn what_was_not_used_for_too_long_goes_and_blobs_in_use_stay() {
        let fixture = Fixture::new();
        let (old, blob) = action(&fixture, 1, 31 * DAY);
        let (new, _) = action(&fixture, 2, 29 * DAY);
        let shared = fixture.record(&json!({"also": 1}), &[blob], None);
        let freed = fixture.cache.gc(&NO_GRACE).unwrap();
        assert_eq!((freed.entries, freed.blobs), (1, 0));
        assert!(!is_hit(&fixture, &old) && is_hit(&fixture, &new) && is_hit(&fixture, &shared));
        set_age(&fixture, &shared, 31 * DAY);
        let freed = fixture.cache.gc(&NO_GRACE).unwrap();
        assert_eq!((freed.entries, freed.blobs), (1, 1));
        assert!(freed.bytes > 10_000 && freed.bytes < 11_000);
        assert!(!fixture.cache.contains(&blob).unwrap() && is_hit(&fixture, &new));
        assert!(!fixture.cache.signature_path(&blob.sha256).exists());
    }

    #[test]
    fn too_much_goes_least_recently_used_first_and_only_until_it_fits() {
        let fixture = Fixture::new();
        let actions = [3, 1, 4, 2].map(|days| (days, action(&fixture, days, u32::from(days) * DAY).0));
        let freed = fixture.cache.gc(&Limits { max_bytes: 25_000, ..NO_GRACE }).unwrap();
        assert_eq!((freed.entries, freed.blobs), (2, 2));
        for (days, key) in actions {
            assert_eq!(is_hit(&fixture, &key), days <= 2, "{days} days");
        }
    }

    #[test]
    fn the_grace_spares_what_another_bake_may_be_about_to_record() {
        let fixture = Fixture::new();
        let pending = fixture.cache.put(b"not recorded yet").unwrap();
        let (young, _) = action(&fixture, 1, Duration::from_secs(60));
        let limits = Limits { max_bytes: 0, ..Limits::default() };
        assert_eq!(fixture.cache.gc(&limits).unwrap(), Freed::default());
        assert!(fixture.cache.contains(&pending).unwrap() && is_hit(&fixture, &young));

        let signature = fixture.cache.signature_path(&pending.sha256);
        let two_hours_ago = SystemTime::now() - Duration::from_secs(7200);
        fs::File::open(&signature).unwrap().set_modified(two_hours_ago).unwrap();
        assert_eq!(fixture.cache.put(b"not recorded yet").unwrap(), pending);
        assert_eq!(fixture.cache.gc(&limits).unwrap(), Freed::default(), "stored again just now");
        fs::File::open(&signature).unwrap().set_modified(two_hours_ago).unwrap();
        assert_eq!(fixture.cache.gc(&limits).unwrap(), Freed { entries: 0, blobs: 1, bytes: 16 });
        assert!(!fixture.cache.contains(&pending).unwrap());
    }

    #[test]
    fn a_blob_that_an_output_links_to_frees_nothing_and_leaves_the_output() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"shared").unwrap();
        let output = fixture.path("output");
        fs::hard_link(fixture.cache.blob_path(&blob.sha256), &output).unwrap();
        assert_eq!(fixture.cache.gc(&NO_GRACE).unwrap(), Freed { entries: 0, blobs: 1, bytes: 0 });
        assert_eq!(fs::read(output).unwrap(), b"shared");
    }

    #[test]
    fn a_use_is_noted_once_a_day_and_keeps_an_entry() {
        let fixture = Fixture::new();
        let (key, _) = action(&fixture, 1, 2 * DAY);
        let path = fixture.cache.sharded(ACTIONS, &key.digest());
        assert!(is_hit(&fixture, &key));
        let noted = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(age(noted) < DAY);
        set_age(&fixture, &key, DAY / 2);
        assert!(is_hit(&fixture, &key));
        assert!(age(fs::metadata(&path).unwrap().modified().unwrap()) >= DAY / 2);
    }

    #[test]
    fn automatic_collection_happens_at_most_once_a_day() {
        let fixture = Fixture::new();
        assert_eq!(fixture.cache.collect_if_due(&NO_GRACE).unwrap(), None, "nothing there yet");
        let (key, _) = action(&fixture, 1, 31 * DAY);
        assert_eq!(fixture.cache.collect_if_due(&NO_GRACE).unwrap().unwrap().entries, 1);
        assert!(!is_hit(&fixture, &key));
        action(&fixture, 1, 31 * DAY);
        assert_eq!(fixture.cache.collect_if_due(&NO_GRACE).unwrap(), None);
        let stamp = fs::File::open(fixture.cache.root().join(COLLECTION_STAMP)).unwrap();
        stamp.set_modified(SystemTime::now() - 2 * DAY).unwrap();
        assert_eq!(fixture.cache.collect_if_due(&NO_GRACE).unwrap().unwrap().entries, 1);
    }

    #[test]
    fn quarantine_goes_before_anything_of_use() {
        let fixture = Fixture::new();
        let (key, _) = action(&fixture, 1, 2 * DAY);
        let (bad, blob) = action(&fixture, 2, DAY);
        fixture.flip(&fixture.cache.blob_path(&blob.sha256), 0);
        assert_eq!(fixture.cache.lookup::<serde_json::Value>(&bad).unwrap(), Lookup::Damaged);
        let freed = fixture.cache.gc(&Limits { max_bytes: 15_000, ..NO_GRACE }).unwrap();
        assert_eq!((freed.entries, freed.blobs, freed.bytes), (0, 0, 10_000));
        assert!(is_hit(&fixture, &key));
    }
}
