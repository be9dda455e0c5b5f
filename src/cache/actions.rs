//! The table of actions: what a document led to when it was last carried out.

use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::condition::Condition;
use super::failure::cannot_read;
use super::sealed::Seal;
use super::{ACTIONS, ActionKey, BlobRef, Cache, Digest, Durability, MEMOS, action_key, canonical_json, note_use};

/// What the cache knows of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// It was carried out, and every blob that it led to is present and unchanged.
    Hit {
        /// What was recorded.
        result: R,
    },
    /// It was not, or one of its blobs was collected, or the result is not an `R`.
    Miss,
    /// It was, but its entry or one of its blobs was found damaged and is now in quarantine.
    Damaged,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry<D = Value, B = Vec<BlobRef>, R = Value> {
    key: Digest,
    document: D,
    subject: Option<D>,
    pub(super) blobs: B,
    result: R,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject<D = Value> {
    subject: D,
    document: D,
}

impl Entry {
    /// The entry in a file's bytes, if it is whole and stored under its own document's key.
    pub(super) fn open(bytes: &[u8], key: &Digest) -> Option<Self> {
        let entry = Seal::Action.open::<Self>(bytes)?;
        (entry.key == *key && action_key(&entry.document).0 == *key).then_some(entry)
    }
}

/// An entry as a look-up needs it: the document, whose key was checked when it was recorded, is passed over.
type Found<R> = Entry<IgnoredAny, Vec<BlobRef>, R>;

impl Cache {
    /// Looks an action up and checks that its blobs are present and, by `stat`, unchanged; one that `stat` cannot vouch
    /// for is hashed.
    ///
    /// # Errors
    /// The cache cannot be read. Damage is not an error.
    pub fn lookup<R: DeserializeOwned>(&self, key: &ActionKey) -> Result<Lookup<R>> {
        let path = self.sharded(ACTIONS, &key.0);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lookup::Miss),
            Err(error) => return Err(cannot_read(&path, error)),
        };
        let entry = match Seal::Action.open::<Found<R>>(&bytes) {
            Some(entry) if entry.key == key.0 => entry,
            None if Entry::open(&bytes, &key.0).is_some() => return Ok(Lookup::Miss),
            _ => {
                self.quarantine(&path);
                return Ok(Lookup::Damaged);
            }
        };
        let (mut missing, mut damaged) = (false, false);
        for blob in &entry.blobs {
            match self.examine(blob)? {
                Condition::Intact => {}
                Condition::Missing => missing = true,
                Condition::Altered => damaged = true,
            }
        }
        if damaged {
            return Ok(Lookup::Damaged);
        }
        if missing {
            return Ok(Lookup::Miss);
        }
        note_use(&path);
        Ok(Lookup::Hit { result: entry.result })
    }

    /// Records what an action led to; of two processes that record the same action, the later one wins. `blobs` are
    /// those that the result refers to. `subject` says what the action was about (a block of an output, say) whatever
    /// its inputs: [`Cache::last_document`] finds the document by it.
    ///
    /// # Errors
    /// The cache is full or read-only: the blobs and what was published of them are not affected.
    pub fn record(
        &self,
        key: &ActionKey,
        document: &Value,
        result: &impl Serialize,
        blobs: &[BlobRef],
        subject: Option<&Value>,
    ) -> Result<()> {
        if action_key(document) != *key {
            bail!("the document's key is not `{key}`");
        }
        let sealed = Seal::Action
            .close(&Entry { key: key.0, document, subject, blobs, result })
            .context("the action's result cannot be written as JSON")?;
        self.write_atomic(&self.sharded(ACTIONS, &key.0), &sealed, Durability::Synced)?;
        if let Some(subject) = subject {
            let sealed = Seal::Subject.close(&Subject { subject, document }).context("a document is JSON")?;
            self.write_atomic(&self.subject_path(subject), &sealed, Durability::Expendable)?;
        }
        Ok(())
    }

    /// The document last recorded for a subject, from which a miss can be explained.
    ///
    /// # Errors
    /// The cache cannot be read. A damaged memo counts as none.
    pub fn last_document(&self, subject: &Value) -> Result<Option<Value>> {
        let path = self.subject_path(subject);
        match fs::read(&path) {
            Ok(bytes) => Ok(Seal::Subject
                .open::<Subject>(&bytes)
                .filter(|memo| canonical_json(&memo.subject) == canonical_json(subject))
                .map(|memo| memo.document)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot_read(&path, error)),
        }
    }

    fn subject_path(&self, subject: &Value) -> PathBuf {
        self.bucket(MEMOS).join("subjects").join(Digest::of(&canonical_json(subject)).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;
    use serde_json::json;

    fn look(fixture: &Fixture, key: &ActionKey) -> Lookup<Value> {
        fixture.reopened().lookup(key).unwrap()
    }

    #[test]
    fn a_recorded_action_is_hit_and_another_is_missed() {
        let fixture = Fixture::new();
        let document = json!({"stage": "stamp", "eps": 1e-6, "scale": 0.1});
        assert_eq!(look(&fixture, &action_key(&document)), Lookup::Miss);
        let blob = fixture.cache.put(b"package").unwrap();
        let key = fixture.record(&document, &[blob], None);
        assert_eq!(look(&fixture, &key), Lookup::Hit { result: json!({"recorded": true}) });
        assert_eq!(look(&fixture, &action_key(&json!({"stage": "other"}))), Lookup::Miss);
        assert_eq!(fixture.reopened().lookup::<Vec<u8>>(&key).unwrap(), Lookup::Miss, "another type of result");
    }

    #[test]
    fn a_flipped_byte_anywhere_in_an_entry_is_damage_and_recording_again_mends_it() {
        let fixture = Fixture::new();
        let document = json!({"n": 1});
        let key = fixture.record(&document, &[], None);
        let path = fixture.cache.sharded(ACTIONS, &key.0);
        let length = fs::read(&path).unwrap().len();
        for index in 0..length {
            fixture.flip(&path, index);
            assert_eq!(look(&fixture, &key), Lookup::Damaged, "byte {index}");
            assert_eq!(look(&fixture, &key), Lookup::Miss, "it is in quarantine");
            fixture.record(&document, &[], None);
            assert!(matches!(look(&fixture, &key), Lookup::Hit { .. }));
        }
        assert_eq!(fixture.cache.stats().unwrap().quarantined, length as u64);
    }

    #[test]
    fn truncated_entries_garbage_and_the_entry_of_another_key_are_damage() {
        let fixture = Fixture::new();
        let key = fixture.record(&json!({"n": 1}), &[], None);
        let other = fixture.record(&json!({"n": 2}), &[], None);
        let path = fixture.cache.sharded(ACTIONS, &key.0);
        let good = fs::read(&path).unwrap();
        let others = fs::read(fixture.cache.sharded(ACTIONS, &other.0)).unwrap();
        for bad in [&b""[..], b"{}", b"\xff\xfe", &good[..good.len() / 2], &good[..good.len() - 1], &others] {
            fs::write(&path, bad).unwrap();
            let cache = fixture.reopened();
            assert_eq!(cache.lookup::<Value>(&key).unwrap(), Lookup::Damaged);
            assert_eq!(cache.damage_seen(), 1);
        }
    }

    #[test]
    fn a_collected_blob_is_a_miss_and_a_damaged_one_is_damage() {
        let fixture = Fixture::new();
        let [kept, lost] = [b"kept", b"lost"].map(|bytes| fixture.cache.put(bytes).unwrap());
        let key = fixture.record(&json!({"n": 1}), &[kept, lost], None);
        fs::remove_file(fixture.cache.blob_path(&lost.sha256)).unwrap();
        assert_eq!(look(&fixture, &key), Lookup::Miss);
        fixture.cache.put(b"lost").unwrap();
        assert!(matches!(look(&fixture, &key), Lookup::Hit { .. }));
        fixture.flip(&fixture.cache.blob_path(&lost.sha256), 2);
        assert_eq!(look(&fixture, &key), Lookup::Damaged);
        assert!(!fixture.cache.blob_path(&lost.sha256).exists());
    }

    #[test]
    fn a_subject_leads_to_the_document_last_recorded() {
        let fixture = Fixture::new();
        let subject = json!({"output": "out", "block": 3});
        assert_eq!(fixture.cache.last_document(&subject).unwrap(), None);
        for number in [1, 2] {
            fixture.record(&json!({ "n": number, "eps": 0.3 }), &[], Some(&subject));
            let last = fixture.reopened().last_document(&subject).unwrap();
            assert_eq!(last, Some(json!({ "n": number, "eps": 0.3 })));
        }
        assert_eq!(fixture.cache.last_document(&json!({"output": "out", "block": 4})).unwrap(), None);
        let path = fixture.cache.subject_path(&subject);
        for index in 0..fs::read(&path).unwrap().len() {
            fixture.flip(&path, index);
            assert_eq!(fixture.cache.last_document(&subject).unwrap(), None, "byte {index}");
            fixture.flip(&path, index);
        }
        assert!(fixture.cache.last_document(&subject).unwrap().is_some());
    }

    #[test]
    fn a_document_is_recorded_under_its_own_key_only() {
        let fixture = Fixture::new();
        let key = action_key(&json!({"n": 1}));
        let error = fixture.cache.record(&key, &json!({"n": 2}), &json!(null), &[], None).unwrap_err();
        assert_eq!(error.to_string(), format!("the document's key is not `{key}`"));
        assert_eq!(look(&fixture, &key), Lookup::Miss);
    }

    #[test]
    fn many_handles_recording_and_reading_one_action_see_whole_entries_only() {
        let fixture = Fixture::new();
        let document = json!({"n": 1});
        let key = action_key(&document);
        let hits: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..8)
                .map(|number: u8| {
                    let (fixture, document, key) = (&fixture, &document, &key);
                    scope.spawn(move || {
                        let cache = fixture.reopened();
                        let mut hits = 0;
                        for round in 0..25 {
                            let blob = cache.put(&[round; 5000]).unwrap();
                            let result = vec![number; 3000];
                            cache.record(key, document, &result, &[blob], Some(document)).unwrap();
                            match cache.lookup::<Vec<u8>>(key).unwrap() {
                                Lookup::Hit { result } => {
                                    assert!(result.len() == 3000 && result.iter().all(|byte| *byte == result[0]));
                                    hits += 1;
                                }
                                other => panic!("{other:?}"),
                            }
                        }
                        hits
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!(hits, 200);
        assert_eq!(fixture.cache.verify(&mut |_| {}).unwrap(), []);
        assert_eq!(fixture.cache.stats().unwrap().quarantined, 0);
    }

    const ROOT: &str = "ANEBAKE_TEST_CACHE";

    #[test]
    #[ignore = "needs a parent: run by the test of killing"]
    fn child_that_records_until_it_is_killed() {
        let cache = Cache::open(Some(std::env::var_os(ROOT).unwrap().as_ref())).unwrap();
        for number in (0..20).cycle() {
            let blob = cache.put(&[number; 100_000]).unwrap();
            let document = json!({ "number": number });
            cache.record(&action_key(&document), &document, &blob, &[blob], Some(&json!("subject"))).unwrap();
        }
    }

    #[test]
    fn processes_killed_at_any_moment_leave_only_whole_files_and_nothing_temporary() {
        let fixture = Fixture::new();
        for round in 0..25 {
            let mut children = [(); 2].map(|()| {
                std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["cache::actions::tests::child_that_records_until_it_is_killed", "--exact", "--ignored"])
                    .env(ROOT, fixture.cache.root())
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap()
            });
            std::thread::sleep(std::time::Duration::from_millis(10 + 7 * round % 60));
            for child in &mut children {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let cache = fixture.reopened();
            assert_eq!(cache.verify(&mut |_| {}).unwrap(), []);
            for number in 0..20 {
                let key = action_key(&json!({ "number": number }));
                match cache.lookup::<BlobRef>(&key).unwrap() {
                    Lookup::Hit { result } => assert_eq!(cache.read(&result).unwrap(), [number; 100_000]),
                    missed => assert_eq!(missed, Lookup::Miss),
                }
            }
            drop(cache);
            assert!(cache_is_tidy(&fixture));
        }
        assert!(fixture.cache.stats().unwrap().entries > 0, "the children got somewhere");
    }

    fn cache_is_tidy(fixture: &Fixture) -> bool {
        fs::read_dir(fixture.cache.bucket(crate::cache::TEMPORARIES))
            .map_or(true, |mut folders| folders.next().is_none())
    }
}
