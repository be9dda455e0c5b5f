//! What the tests of this module share, and those of the cache as a whole.

use super::*;
use crate::error::{Status, hints, status};
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// A cache in a temporary folder, and room for outputs beside it.
pub(super) struct Fixture {
    folder: tempfile::TempDir,
    pub(super) cache: Cache,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        Self { folder, cache }
    }

    /// Another handle of the same cache, as another process has it.
    pub(super) fn reopened(&self) -> Cache {
        Cache::open(Some(self.cache.root())).unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    pub(super) fn record(&self, document: &Value, blobs: &[BlobRef], subject: Option<&Value>) -> ActionKey {
        let key = action_key(document);
        self.cache.record(&key, document, &json!({"recorded": true}), blobs, subject).unwrap();
        key
    }

    /// Flips a bit in place, later by the file system's clock; mode and mtime are afterwards as before.
    pub(super) fn flip(&self, path: &Path, index: usize) {
        let metadata = fs::metadata(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let mut bytes = fs::read(path).unwrap();
        bytes[index] ^= 1;
        let mut file = File::options().write(true).open(path).unwrap();
        file.write_all(&bytes).unwrap();
        let ctime = |metadata: &fs::Metadata| (metadata.ctime(), metadata.ctime_nsec());
        while {
            file.set_permissions(metadata.permissions()).unwrap();
            file.set_modified(metadata.modified().unwrap()).unwrap();
            ctime(&file.metadata().unwrap()) == ctime(&metadata)
        } {}
    }

    /// Flips a bit of a blob as a failing disk does: `stat` says what the cache remembers.
    pub(super) fn flip_unseen(&self, blob: &BlobRef, index: usize) {
        let path = self.cache.blob_path(&blob.sha256);
        self.flip(&path, index);
        self.cache.remember(&blob.sha256, signature::Signature::of(&fs::metadata(&path).unwrap()));
    }
}

#[test]
fn the_default_folder_follows_the_environment() {
    let root = |variables: &[(&str, &str)]| {
        default_root(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    };
    let home = ("HOME", "/home/me");
    let system = if cfg!(target_os = "macos") { "/home/me/Library/Caches/anebake" } else { "/home/me/.cache/anebake" };
    assert_eq!(root(&[home]), Some(system.into()));
    assert_eq!(root(&[home, (CACHE_DIR_VARIABLE, "/c"), ("XDG_CACHE_HOME", "/x")]), Some("/c".into()));
    assert_eq!(root(&[home, (CACHE_DIR_VARIABLE, "")]), Some(system.into()));
    assert_eq!(root(&[home, ("XDG_CACHE_HOME", "relative")]), Some(system.into()));
    let xdg = if cfg!(target_os = "macos") { system } else { "/x/anebake" };
    assert_eq!(root(&[home, ("XDG_CACHE_HOME", "/x")]), Some(xdg.into()));
    assert_eq!(root(&[]), None);
}

#[test]
fn opening_and_looking_create_nothing() {
    let fixture = Fixture::new();
    assert_eq!(fixture.cache.lookup::<Value>(&action_key(&json!(1))).unwrap(), Lookup::Miss);
    assert_eq!(fixture.cache.verify(&mut |_| {}).unwrap(), []);
    assert!(!fixture.cache.root().exists());
}

#[test]
fn a_file_in_the_place_of_the_cache_is_refused() {
    let fixture = Fixture::new();
    let file = fixture.file("cache", b"");
    let error = Cache::open(Some(&file)).unwrap_err();
    assert_eq!(status(&error), Status::Input);
    assert_eq!(error.to_string(), format!("the cache `{}` is not a folder", file.display()));
}

#[test]
fn a_closed_cache_leaves_no_temporary_folder_and_opening_sweeps_those_of_the_dead() {
    let fixture = Fixture::new();
    let other = fixture.reopened();
    other.put(b"abc").unwrap();
    let folders = || fs::read_dir(fixture.cache.bucket(TEMPORARIES)).unwrap().count();
    assert_eq!(folders(), 1);
    fixture.reopened();
    assert_eq!(folders(), 1, "its handle lives");
    drop(other);
    assert_eq!(folders(), 0);
    fs::create_dir(fixture.cache.bucket(TEMPORARIES).join(format!("{TEMPORARY_PREFIX}dead"))).unwrap();
    fixture.reopened();
    assert_eq!(folders(), 0);
    assert!(fixture.cache.root().join("CACHEDIR.TAG").exists());
}

/// Full and read-only disks. `make test` runs them by the name of this module where it may mount.
mod tmpfs {
    use super::*;

    /// A small file system of its own.
    struct Tmpfs(tempfile::TempDir);

    impl Tmpfs {
        fn new(options: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tmpfs = Self(folder);
            assert!(tmpfs.mount(options).success(), "mounting needs root");
            tmpfs
        }

        fn mount(&self, options: &str) -> std::process::ExitStatus {
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.path()).status().unwrap()
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    impl Drop for Tmpfs {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.path()).status();
        }
    }

    #[test]
    #[ignore = "needs root for a tmpfs"]
    fn a_full_disk_names_the_folder_and_keeps_what_was_stored() {
        let disk = Tmpfs::new("size=256k");
        let root = disk.path().join("cache");
        let cache = Cache::open(Some(&root)).unwrap();
        let small = cache.put(&[1; 1000]).unwrap();
        let error = cache.put(&[2; 1_000_000]).unwrap_err();
        assert_eq!(status(&error), Status::Input);
        assert_eq!(error.to_string(), format!("disk full at the cache `{}`, 1000000 bytes are needed", root.display()));
        assert_eq!(hints(&error).count(), 1);

        let mut writer = cache.blob_writer().unwrap();
        assert!(writer.append(&[3; 1_000_000]).is_err());
        assert!(writer.commit().is_err(), "an incomplete blob is not committed");
        assert_eq!(cache.files(BLOBS).unwrap().iter().filter(|file| !file.is_signature()).count(), 1);

        let document = json!({"n": 1});
        let key = action_key(&document);
        assert!(cache.record(&key, &document, &vec![1; 1_000_000], &[small], None).is_err());
        assert_eq!(cache.lookup::<Value>(&key).unwrap(), Lookup::Miss);
        cache.record(&key, &document, &json!(1), &[small], None).unwrap();
        assert_eq!(cache.lookup::<Value>(&key).unwrap(), Lookup::Hit { result: json!(1) });
    }

    #[test]
    #[ignore = "needs root for a tmpfs"]
    fn publishing_to_another_file_system_copies_and_a_full_one_is_left_clean() {
        let disk = Tmpfs::new("size=256k");
        let fixture = Fixture::new();
        let [small, large] = [10_000, 1_000_000].map(|size| fixture.cache.put(&vec![7; size]).unwrap());
        let output = disk.path().join("small");
        assert_eq!(fixture.cache.publish(&small, &output).unwrap(), Published::Copy);
        assert!(fixture.reopened().same_file(&small, &output).unwrap());
        let error = fixture.cache.publish(&large, &disk.path().join("large")).unwrap_err();
        assert_eq!(error.to_string(), format!("disk full at `{}`, 1000000 bytes are needed", disk.path().display()));
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1);
        let blob = fixture.cache.adopt(&output).unwrap();
        assert_eq!(blob, small);
        assert!(!output.exists());
    }

    #[test]
    #[ignore = "needs root for a tmpfs"]
    fn a_read_only_cache_serves_and_says_clearly_that_it_cannot_store() {
        let disk = Tmpfs::new("size=1m");
        let root = disk.path().join("cache");
        let cache = Cache::open(Some(&root)).unwrap();
        let blob = cache.put(b"weights").unwrap();
        let document = json!({"n": 1});
        let key = action_key(&document);
        cache.record(&key, &document, &json!(1), &[blob], None).unwrap();
        drop(cache);
        assert!(disk.mount("remount,ro").success());
        let cache = Cache::open(Some(&root)).unwrap();
        assert_eq!(cache.lookup::<Value>(&key).unwrap(), Lookup::Hit { result: json!(1) });
        assert_eq!(cache.read(&blob).unwrap(), b"weights");
        let error = cache.put(b"more").unwrap_err();
        assert_eq!(status(&error), Status::Input);
        assert_eq!(error.to_string(), format!("the cache `{}` is not writable", root.display()));
    }
}
