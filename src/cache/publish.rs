//! From the store to an output, sharing bytes where the file system can.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::condition::Condition;
use super::digest::BUFFER;
use super::failure::{cannot_read, cannot_write_to};
use super::sealed::Seal;
use super::signature::{Remembered, Signature, Verdict};
use super::{BlobRef, Cache, Damaged, Digest, Durability, MEMOS, note_use};
use crate::error::Fault;

/// How a blob got to its destination. All three are read-only files; only a hard link shares its inode with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Published {
    /// A clone that shares blocks until one is written to.
    Reflink,
    /// Another name of the blob.
    HardLink,
    /// A copy, verified while it was made, and synced.
    Copy,
}

/// That a file outside the cache, told by inode and device, held a blob.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    sha256: Digest,
    remembered: Remembered,
}

impl Cache {
    /// Makes the blob appear at `destination`, which must not exist while its folder must: by reflink, else by hard
    /// link, else by copying. A process that dies in between may leave part of a copy, so publish into a
    /// [`super::TempDir`] and rename from there.
    ///
    /// # Errors
    /// [`Damaged`], if the blob is missing or its bytes are wrong: bake again. Else: the destination exists or cannot be
    /// written, or its disk is full.
    pub fn publish(&self, blob: &BlobRef, destination: &Path) -> Result<Published> {
        self.require(blob)?;
        let source = self.blob_path(&blob.sha256);
        if reflink_copy::reflink(&source, destination).is_ok() {
            let finished = (|| {
                let file = File::open(destination)?;
                file.set_permissions(Permissions::from_mode(0o444))?;
                file.set_modified(fs::symlink_metadata(&source)?.modified()?)?;
                file.metadata()
            })();
            let metadata = finished.map_err(|error| abandon(destination, blob, error))?;
            self.confirm(blob, destination)?;
            self.remember_output(&blob.sha256, Signature::of(&metadata));
            return Ok(Published::Reflink);
        }
        if fs::hard_link(&source, destination).is_ok() {
            self.confirm(blob, destination)?;
            return Ok(Published::HardLink);
        }
        self.copy(blob, &source, destination)?;
        Ok(Published::Copy)
    }

    /// Whether the regular file at `path` is this blob, unchanged: another name of it, or a copy that
    /// [`Cache::publish`] made and `stat` still vouches for. A copy that cannot be vouched for is "no": publish again.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn same_file(&self, blob: &BlobRef, path: &Path) -> Result<bool> {
        let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(false) };
        if !metadata.is_file() || metadata.len() != blob.size {
            return Ok(false);
        }
        let now = Signature::of(&metadata);
        if self.is_known(&blob.sha256, &now) {
            return Ok(true);
        }
        match fs::symlink_metadata(self.blob_path(&blob.sha256)) {
            Ok(stored) if Signature::of(&stored).same_inode(&now) => {
                return Ok(self.examine(blob)? == Condition::Intact);
            }
            _ => {}
        }
        let memo = self.output_path(&now);
        let Some(output) = fs::read(&memo).ok().and_then(|bytes| Seal::Output.open::<Output>(&bytes)) else {
            return Ok(false);
        };
        let same = output.sha256 == blob.sha256 && output.remembered.judge(&now) != Verdict::Unknown;
        if same {
            note_use(&memo);
        }
        Ok(same)
    }

    /// Notes that a file that [`Cache::publish`] has just made was renamed to `path`; `before` is what `stat` said of it
    /// until then. A rename changes ctime, and the file would have to be hashed to be known again. As with a new hard
    /// link, what stays unseen is a write right between the two whose author also resets the mtime.
    pub fn note_rename(&self, blob: &BlobRef, before: &Metadata, path: &Path) {
        let Ok(after) = fs::symlink_metadata(path) else { return };
        let (before, after) = (Signature::of(before), Signature::of(&after));
        if before.but_for_rename(&after) != after {
            return;
        }
        match fs::symlink_metadata(self.blob_path(&blob.sha256)) {
            Ok(stored) if Signature::of(&stored).same_inode(&after) => self.remember(&blob.sha256, after),
            _ => self.remember_output(&blob.sha256, after),
        }
    }

    fn require(&self, blob: &BlobRef) -> Result<()> {
        match self.examine(blob)? {
            Condition::Intact => Ok(()),
            Condition::Missing => Err(Damaged { digest: blob.sha256, missing: true }.into()),
            Condition::Altered => Err(Damaged { digest: blob.sha256, missing: false }.into()),
        }
    }

    /// Looks at the blob again after something was made of it without reading it; takes that back if it is wrong.
    fn confirm(&self, blob: &BlobRef, made: &Path) -> Result<()> {
        self.require(blob).inspect_err(|_| {
            let _ = fs::remove_file(made);
        })
    }

    fn copy(&self, blob: &BlobRef, source: &Path, destination: &Path) -> Result<()> {
        let mut from = match File::open(source) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Damaged { digest: blob.sha256, missing: true }.into());
            }
            Err(error) => return Err(cannot_read(source, error)),
        };
        let mut to = File::create_new(destination).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Fault::input(format!("`{}` exists already", destination.display())).into(),
            _ => cannot_write_to(parent(destination), Some(blob.size), error),
        })?;
        let copied = copy_and_hash(&mut from, &mut to).and_then(|found| {
            if found != Some(*blob) {
                return Ok(None);
            }
            to.set_permissions(Permissions::from_mode(0o444))?;
            to.set_modified(from.metadata()?.modified()?)?;
            to.sync_data()?;
            to.metadata().map(Some)
        });
        match copied {
            Ok(Some(metadata)) => {
                self.remember_output(&blob.sha256, Signature::of(&metadata));
                Ok(())
            }
            Ok(None) => {
                let _ = fs::remove_file(destination);
                self.quarantine_blob(&blob.sha256);
                Err(Damaged { digest: blob.sha256, missing: false }.into())
            }
            Err(error) => Err(abandon(destination, blob, error)),
        }
    }

    fn remember_output(&self, digest: &Digest, signature: Signature) {
        let output = Output { sha256: *digest, remembered: Remembered::now(signature) };
        if let Ok(sealed) = Seal::Output.close(&output) {
            let _ = self.write_atomic(&self.output_path(&signature), &sealed, Durability::Expendable);
        }
    }

    fn output_path(&self, signature: &Signature) -> PathBuf {
        self.bucket(MEMOS).join("outputs").join(format!("{:x}-{:x}", signature.dev, signature.inode))
    }
}

fn abandon(destination: &Path, blob: &BlobRef, error: io::Error) -> anyhow::Error {
    let _ = fs::remove_file(destination);
    cannot_write_to(parent(destination), Some(blob.size), error)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Copies to the end and says what was copied; nothing, if `from` cannot be read: as good as altered. Errors are those of
/// `to`.
fn copy_and_hash(from: &mut File, to: &mut File) -> io::Result<Option<BlobRef>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    let mut size = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(Some(BlobRef { sha256: Digest(hasher.finalize().into()), size })),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                to.write_all(&buffer[..count])?;
                size += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;
    use std::os::unix::fs::MetadataExt;
    use std::time::SystemTime;

    fn damage(error: &anyhow::Error) -> Damaged {
        *error.downcast_ref::<Damaged>().unwrap()
    }

    impl Cache {
        pub(in crate::cache) fn copy_for_test(&self, blob: &BlobRef, destination: &Path) {
            self.copy(blob, &self.blob_path(&blob.sha256), destination).unwrap();
        }
    }

    #[test]
    fn a_published_blob_is_read_only_and_known_again() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        let output = fixture.path("weight.bin");
        let how = fixture.cache.publish(&blob, &output).unwrap();
        let published = fs::metadata(&output).unwrap();
        assert_eq!(published.permissions().mode() & 0o7777, 0o444);
        let stored = fs::metadata(fixture.cache.blob_path(&blob.sha256)).unwrap();
        assert_eq!(published.ino() == stored.ino(), how == Published::HardLink);
        assert_eq!(fs::read(&output).unwrap(), b"weights");
        assert!(fixture.reopened().same_file(&blob, &output).unwrap());
    }

    #[test]
    fn an_existing_destination_is_left_alone() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        let output = fixture.file("weight.bin", b"mine");
        let error = fixture.cache.publish(&blob, &output).unwrap_err();
        assert_eq!(error.to_string(), format!("`{}` exists already", output.display()));
        assert_eq!(fs::read(&output).unwrap(), b"mine");
    }

    #[test]
    fn an_output_edited_in_place_is_never_served_again() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        let output = fixture.path("edited");
        fs::hard_link(fixture.cache.blob_path(&blob.sha256), &output).unwrap();
        assert!(fixture.cache.same_file(&blob, &output).unwrap());
        fixture.flip(&output, 3);
        assert!(!fixture.reopened().same_file(&blob, &output).unwrap());
        let error = fixture.cache.publish(&blob, &fixture.path("next")).unwrap_err();
        assert_eq!(damage(&error), Damaged { digest: blob.sha256, missing: true });
        assert!(!fixture.path("next").exists());
        fixture.cache.put(b"weights").unwrap();
        fixture.cache.publish(&blob, &fixture.path("next")).unwrap();
        assert_eq!(fs::read(fixture.path("next")).unwrap(), b"weights");
        assert!(!fixture.cache.same_file(&blob, &output).unwrap());
    }

    #[test]
    fn a_damaged_blob_is_not_published() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        fixture.flip(&fixture.cache.blob_path(&blob.sha256), 0);
        let error = fixture.cache.publish(&blob, &fixture.path("output")).unwrap_err();
        assert_eq!(damage(&error), Damaged { digest: blob.sha256, missing: false });
        assert_eq!(error.to_string(), format!("blob `{}` was damaged and is now in quarantine", blob.sha256));
        assert!(!fixture.path("output").exists());
    }

    #[test]
    fn a_copy_is_verified_while_it_is_made() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        fixture.flip_unseen(&blob, 0);
        let output = fixture.path("output");
        let source = fixture.cache.blob_path(&blob.sha256);
        let error = fixture.cache.copy(&blob, &source, &output).unwrap_err();
        assert_eq!(damage(&error), Damaged { digest: blob.sha256, missing: false });
        assert!(!output.exists() && !source.exists());
    }

    #[test]
    fn a_copy_is_known_again_by_stat_even_after_its_folder_moved_and_not_once_it_changed() {
        let fixture = Fixture::new();
        let [blob, other] = [b"weights", b"WEIGHTS"].map(|bytes| fixture.cache.put(bytes).unwrap());
        fs::create_dir(fixture.path("temporary")).unwrap();
        fixture.cache.copy_for_test(&blob, &fixture.path("temporary/copy"));
        fs::rename(fixture.path("temporary"), fixture.path("final")).unwrap();
        let output = fixture.path("final/copy");
        assert_eq!(fs::metadata(&output).unwrap().permissions().mode() & 0o7777, 0o444);
        let cache = fixture.reopened();
        assert!(cache.same_file(&blob, &output).unwrap());
        assert!(!cache.same_file(&other, &output).unwrap());

        let memo = cache.output_path(&Signature::of(&fs::metadata(&output).unwrap()));
        for index in 0..fs::read(&memo).unwrap().len() {
            fixture.flip(&memo, index);
            assert!(!cache.same_file(&blob, &output).unwrap(), "byte {index} of the memo");
            fixture.flip(&memo, index);
        }
        assert!(cache.same_file(&blob, &output).unwrap());
        fixture.flip(&output, 0);
        assert!(!cache.same_file(&blob, &output).unwrap(), "the mtime was set back");
    }

    #[test]
    fn a_renamed_output_is_known_by_stat_once_the_rename_was_noted_and_not_if_it_was_edited_meanwhile() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        for (round, linked) in [(0, true), (1, false)] {
            let [aside, output] = ["aside", "output"].map(|name| fixture.path(&format!("{name}{round}")));
            if linked {
                fixture.cache.publish(&blob, &aside).unwrap();
            } else {
                fixture.cache.copy_for_test(&blob, &aside);
            }
            let before = fs::symlink_metadata(&aside).unwrap();
            fs::rename(&aside, &output).unwrap();
            fixture.cache.note_rename(&blob, &before, &output);
            assert!(fixture.reopened().same_file(&blob, &output).unwrap());
            assert!(fixture.reopened().contains(&blob).unwrap());
        }
        let [aside, output] = ["aside", "edited"].map(|name| fixture.path(name));
        fixture.cache.copy_for_test(&blob, &aside);
        let before = fs::symlink_metadata(&aside).unwrap();
        fs::set_permissions(&aside, Permissions::from_mode(0o644)).unwrap();
        fs::write(&aside, "WEIGHTS").unwrap();
        fs::rename(&aside, &output).unwrap();
        fixture.cache.note_rename(&blob, &before, &output);
        assert!(!fixture.reopened().same_file(&blob, &output).unwrap());
    }

    #[test]
    fn a_file_of_the_same_bytes_that_was_not_published_is_not_known() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"weights").unwrap();
        let output = fixture.file("mine", b"weights");
        fs::File::open(&output).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(!fixture.cache.same_file(&blob, &output).unwrap());
        assert!(!fixture.cache.same_file(&blob, &fixture.path("absent")).unwrap());
        std::os::unix::fs::symlink(fixture.cache.blob_path(&blob.sha256), fixture.path("link")).unwrap();
        assert!(!fixture.cache.same_file(&blob, &fixture.path("link")).unwrap());
    }
}
