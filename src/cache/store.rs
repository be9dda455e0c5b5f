//! The store of blobs: files named by their SHA-256, written once, mode 0444.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, anyhow};
use sha2::{Digest as _, Sha256};

use super::condition::Condition;
use super::digest::BUFFER;
use super::failure::{cannot_read, cannot_write};
use super::signature::{Signature, backdate};
use super::{BlobRef, Cache, Damaged, Digest, in_folder};
use crate::error::{Fault, OrFault};

/// A blob in the making. Nothing is buffered: write pieces of 64 KB and more, or use [`Cache::put`]. Dropped without
/// [`BlobWriter::commit`], it leaves nothing behind.
#[derive(Debug)]
pub struct BlobWriter<'a> {
    cache: &'a Cache,
    file: File,
    path: PathBuf,
    hasher: Sha256,
    size: u64,
    expected: Option<u64>,
    failed: bool,
}

impl BlobWriter<'_> {
    /// Says how large the blob will be, for the message if the disk is full.
    #[must_use]
    pub fn with_expected_size(mut self, bytes: u64) -> Self {
        self.expected = Some(bytes);
        self
    }

    /// Writes all of `bytes`; [`io::Write::write_all`] with an error that says what to do.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).map_err(|error| cannot_write(&self.cache.root, self.expected, error))
    }

    /// Makes the blob durable and gives it its name. If the store has it already, that one is kept.
    ///
    /// # Errors
    /// A write failed, now or earlier.
    pub fn commit(self) -> Result<BlobRef> {
        if self.failed {
            return Err(anyhow!("the blob is incomplete: a write to it failed"));
        }
        let blob = BlobRef { sha256: Digest(self.hasher.clone().finalize().into()), size: self.size };
        self.cache.install(&self.file, &self.path, &blob)?;
        Ok(blob)
    }
}

impl Write for BlobWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.write(bytes) {
            Ok(count) => {
                self.hasher.update(&bytes[..count]);
                self.size += count as u64;
                Ok(count)
            }
            Err(error) => {
                self.failed |= error.kind() != io::ErrorKind::Interrupted;
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for BlobWriter<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Cache {
    /// Begins a blob.
    ///
    /// # Errors
    /// The cache is full or read-only.
    pub fn blob_writer(&self) -> Result<BlobWriter<'_>> {
        let path = self.temporary_path()?;
        let file = File::create_new(&path).map_err(|error| cannot_write(&self.root, None, error))?;
        Ok(BlobWriter { cache: self, file, path, hasher: Sha256::new(), size: 0, expected: None, failed: false })
    }

    /// Stores `bytes`.
    ///
    /// # Errors
    /// The cache is full or read-only.
    pub fn put(&self, bytes: &[u8]) -> Result<BlobRef> {
        let mut writer = self.blob_writer()?.with_expected_size(bytes.len() as u64);
        writer.append(bytes)?;
        writer.commit()
    }

    /// Moves the file at `path`, which nobody writes to any more, into the store; copies and removes it where it lies on
    /// another file system or has other names.
    ///
    /// # Errors
    /// `path` is not a readable file; the cache is full or read-only.
    pub fn adopt(&self, path: &Path) -> Result<BlobRef> {
        let unreadable = || Fault::input(format!("cannot read `{}`", path.display()));
        let metadata = fs::symlink_metadata(path).or_fault(unreadable)?;
        if !metadata.is_file() {
            return Err(Fault::input(format!("`{}` is not a file", path.display())).into());
        }
        let temporary = self.temporary_path()?;
        if metadata.nlink() == 1 && fs::rename(path, &temporary).is_ok() {
            let file = File::open(&temporary).or_fault(unreadable)?;
            let blob = BlobRef::of_reader(&file).or_fault(unreadable)?;
            self.install(&file, &temporary, &blob)?;
            let _ = fs::remove_file(&temporary);
            return Ok(blob);
        }
        let mut source = File::open(path).or_fault(unreadable)?;
        let mut writer = self.blob_writer()?.with_expected_size(metadata.len());
        let mut buffer = vec![0; BUFFER];
        loop {
            match source.read(&mut buffer).or_fault(unreadable)? {
                0 => break,
                count => writer.append(&buffer[..count])?,
            }
        }
        let blob = writer.commit()?;
        fs::remove_file(path).or_fault(|| Fault::input(format!("cannot remove `{}`", path.display())))?;
        Ok(blob)
    }

    /// Whether the store has this blob, present and unchanged by `stat`.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn contains(&self, blob: &BlobRef) -> Result<bool> {
        Ok(self.examine(blob)? == Condition::Intact)
    }

    /// The bytes of a (small) blob, verified by their digest.
    ///
    /// # Errors
    /// [`Damaged`], if the blob is missing or its bytes are wrong; or the cache cannot be read.
    pub fn read(&self, blob: &BlobRef) -> Result<Vec<u8>> {
        let path = self.blob_path(&blob.sha256);
        match fs::read(&path) {
            Ok(bytes) if BlobRef::of(&bytes) == *blob => Ok(bytes),
            Ok(_) => {
                self.quarantine_blob(&blob.sha256);
                Err(Damaged { digest: blob.sha256, missing: false }.into())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Damaged { digest: blob.sha256, missing: true }.into())
            }
            Err(error) => Err(cannot_read(&path, error)),
        }
    }

    /// Gives a finished file in the temporary folder its name in the store; where the store has the blob, intact,
    /// leaves the file to the caller and marks the blob as used.
    fn install(&self, file: &File, path: &Path, blob: &BlobRef) -> Result<()> {
        let failed = |error| cannot_write(&self.root, Some(blob.size), error);
        let destination = self.blob_path(&blob.sha256);
        // The first attempt fails if another process stores the same blob between the look and the rename.
        for _ in 0..3 {
            if self.examine(blob)? == Condition::Intact {
                // Its signature's age is the blob's: collection spares what was just stored again.
                if let Ok(signature) = File::open(self.signature_path(&blob.sha256)) {
                    let _ = signature.set_modified(SystemTime::now());
                }
                return Ok(());
            }
            file.set_permissions(Permissions::from_mode(0o444)).map_err(failed)?;
            backdate(file).map_err(failed)?;
            file.sync_data().map_err(failed)?;
            match in_folder(&destination, || rename_new(path, &destination)) {
                Ok(()) => {
                    self.remember(&blob.sha256, Signature::of(&file.metadata().map_err(failed)?));
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(anyhow!("blob `{}` comes and goes while it is stored", blob.sha256))
    }
}

/// Renames unless the destination exists, so that a blob's inode, which outputs may share, stays. Where the file system
/// cannot do that the destination is replaced, by equal bytes.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::rename(from, to),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::tests::Fixture;
    use crate::cache::{BLOBS, TEMPORARIES};

    fn temporaries(fixture: &Fixture) -> usize {
        let files = fixture.cache.files(TEMPORARIES).unwrap();
        files.iter().filter(|file| file.path.file_name().unwrap() != ".lock").count()
    }

    fn damage(error: &anyhow::Error) -> Damaged {
        *error.downcast_ref::<Damaged>().unwrap()
    }

    #[test]
    fn a_committed_blob_has_its_digest_its_bytes_and_mode_0444() {
        let fixture = Fixture::new();
        let mut writer = fixture.cache.blob_writer().unwrap();
        writer.append(b"a").unwrap();
        writer.write_all(b"bc").unwrap();
        let blob = writer.commit().unwrap();
        assert_eq!(blob, BlobRef::of(b"abc"));
        assert_eq!(fixture.cache.read(&blob).unwrap(), b"abc");
        let mode = fs::metadata(fixture.cache.blob_path(&blob.sha256)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o444);
        assert_eq!(temporaries(&fixture), 0);
    }

    #[test]
    fn an_unfinished_blob_leaves_nothing_behind() {
        let fixture = Fixture::new();
        let mut writer = fixture.cache.blob_writer().unwrap();
        writer.append(b"half").unwrap();
        assert_eq!(temporaries(&fixture), 1);
        drop(writer);
        assert_eq!(temporaries(&fixture), 0);
        assert!(fixture.cache.files(BLOBS).unwrap().is_empty());
    }

    #[test]
    fn storing_a_blob_again_keeps_its_inode() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"abc").unwrap();
        let inode = || fs::metadata(fixture.cache.blob_path(&blob.sha256)).unwrap().ino();
        let first = inode();
        assert_eq!(fixture.reopened().put(b"abc").unwrap(), blob);
        assert_eq!(inode(), first);
        assert_eq!(temporaries(&fixture), 0);
    }

    #[test]
    fn a_damaged_blob_is_replaced_when_it_is_stored_again() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"abc").unwrap();
        fixture.flip(&fixture.cache.blob_path(&blob.sha256), 0);
        assert_eq!(fixture.cache.put(b"abc").unwrap(), blob);
        assert_eq!(fixture.cache.read(&blob).unwrap(), b"abc");
        assert_eq!(fixture.cache.damage_seen(), 1);
    }

    #[test]
    fn reading_trusts_no_signature() {
        let fixture = Fixture::new();
        let blob = fixture.cache.put(b"abc").unwrap();
        fixture.flip_unseen(&blob, 0);
        assert_eq!(fixture.reopened().examine(&blob).unwrap(), Condition::Intact, "it is not read");
        let error = fixture.cache.read(&blob).unwrap_err();
        assert_eq!(damage(&error), Damaged { digest: blob.sha256, missing: false });
        let error = fixture.cache.read(&blob).unwrap_err();
        assert_eq!(damage(&error), Damaged { digest: blob.sha256, missing: true });
    }

    #[test]
    fn an_adopted_file_is_moved_and_one_with_other_names_is_copied() {
        let fixture = Fixture::new();
        let path = fixture.file("made", b"by others");
        let inode = fs::metadata(&path).unwrap().ino();
        let blob = fixture.cache.adopt(&path).unwrap();
        assert_eq!(blob, BlobRef::of(b"by others"));
        assert!(!path.exists());
        let stored = fs::metadata(fixture.cache.blob_path(&blob.sha256)).unwrap();
        assert_eq!((stored.ino(), stored.permissions().mode() & 0o7777), (inode, 0o444));

        let path = fixture.file("named twice", b"more");
        let other = fixture.path("other name");
        fs::hard_link(&path, &other).unwrap();
        let blob = fixture.cache.adopt(&path).unwrap();
        fs::write(&other, "MORE").unwrap();
        assert_eq!(fixture.cache.read(&blob).unwrap(), b"more");
        assert!(!path.exists());

        let path = fixture.file("known", b"more");
        assert_eq!(fixture.cache.adopt(&path).unwrap(), blob);
        assert!(!path.exists());
        assert_eq!(temporaries(&fixture), 0);
        let error = fixture.cache.adopt(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read `{}`", path.display()));
    }
}
