//! Temporary folders that outlive nobody: each holds a file that its process keeps locked, so whoever can take the lock
//! knows that the owner is gone, however it died.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use rustix::fs::{FlockOperation, flock};

use super::failure::cannot_write_to;
use super::now_ns;

/// Names of temporary folders begin with this.
pub const TEMPORARY_PREFIX: &str = ".anebake-tmp-";

/// A folder has this prefix until its lock is held, so that no sweeper takes it for stale in between.
const UNLOCKED_PREFIX: &str = ".anebake-new-";
/// After this long a folder of [`UNLOCKED_PREFIX`] is one whose process died before it got the lock.
const UNLOCKED_AGE: Duration = Duration::from_secs(3600);
const LOCK: &str = ".lock";

/// Whether [`remove_own_temporaries`] has begun; held while a temporary folder is made or something is moved out of one.
static ENDING: Mutex<bool> = Mutex::new(false);

/// The temporary folders of this process.
static OWN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A temporary folder, removed when dropped; if its process dies first, by the next [`sweep_stale`].
///
/// It holds a file `.lock` of its own: rename results out of it, not the folder itself.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
    _lock: File,
}

impl TempDir {
    /// Creates a temporary folder in `folder`, which exists.
    ///
    /// # Errors
    /// The folder cannot be written to, or its disk is full.
    pub fn new_in(folder: &Path) -> Result<Self> {
        Self::create_in(folder).map_err(|error| cannot_write_to(folder, None, error))
    }

    /// [`TempDir::new_in`], for a caller with better words for the failure.
    pub(super) fn create_in(folder: &Path) -> io::Result<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        if *ending {
            return Err(io::Error::other("the process is ending"));
        }
        let (path, new) = loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let name = format!("{:x}-{:x}-{serial:x}", std::process::id(), now_ns());
            let new = folder.join(format!("{UNLOCKED_PREFIX}{name}"));
            match fs::create_dir(&new) {
                Ok(()) => break (folder.join(format!("{TEMPORARY_PREFIX}{name}")), new),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        OWN.lock().unwrap_or_else(PoisonError::into_inner).extend([path.clone(), new.clone()]);
        let lock = (|| -> io::Result<File> {
            let lock = File::create_new(new.join(LOCK))?;
            // A file system without locks gets an unlocked folder: no sweeper can lock it either, so none removes it.
            let _ = flock(&lock, FlockOperation::NonBlockingLockExclusive);
            fs::rename(&new, &path)?;
            Ok(lock)
        })();
        if lock.is_err() {
            discard(&new);
            forget(&path);
        }
        forget(&new);
        Ok(Self { path, _lock: lock? })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `bytes` to `destination`, which lies on the same disk: the whole of them, durably, or nothing. `modified` is
    /// the time of the file's last change, if that is not to be now.
    ///
    /// # Errors
    /// They cannot be written, or the file not be replaced.
    pub fn write_out(&self, destination: &Path, bytes: &[u8], modified: Option<SystemTime>) -> io::Result<()> {
        let path = self.path.join("written");
        let mut file = File::create(&path)?;
        file.write_all(bytes)?;
        if let Some(modified) = modified {
            file.set_modified(modified)?;
        }
        file.sync_all()?;
        fs::rename(&path, destination)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        discard(&self.path);
        forget(&self.path);
    }
}

/// Removes the temporary folders in `folder` whose processes are gone; says how many. What cannot be removed stays.
pub fn sweep_stale(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let mut swept = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let path = entry.path();
        let stale = if name.starts_with(TEMPORARY_PREFIX.as_bytes()) {
            is_abandoned(&path)
        } else {
            name.starts_with(UNLOCKED_PREFIX.as_bytes()) && is_old(&path)
        };
        if stale && fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            swept += usize::from(discard(&path));
        }
    }
    swept
}

/// Removes all temporary folders of this process, at once: for the thread that handles Ctrl-C, which then ends the
/// process. Writers that are still at work fail.
pub fn remove_own_temporaries() {
    *ENDING.lock().unwrap_or_else(PoisonError::into_inner) = true;
    let own = std::mem::take(&mut *OWN.lock().unwrap_or_else(PoisonError::into_inner));
    for path in own {
        discard(&path);
    }
}

/// Does `rename`, which moves a folder out of a temporary one, unless [`remove_own_temporaries`] has begun: by then the
/// folder may lack files. Removal waits for `rename`.
///
/// # Errors
/// Those of `rename`; or the process is ending.
pub fn move_out<T>(rename: impl FnOnce() -> Result<T>) -> Result<T> {
    let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    if *ending {
        bail!("the process is ending");
    }
    rename()
}

fn forget(path: &Path) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
}

/// Removes a folder; more than once if files appear in it meanwhile.
fn discard(path: &Path) -> bool {
    for _ in 0..5 {
        match fs::remove_dir_all(path) {
            Ok(()) => return true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
            Err(_) => {}
        }
    }
    false
}

fn is_abandoned(path: &Path) -> bool {
    match File::options().read(true).write(true).open(path.join(LOCK)) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok(),
        // It bears the prefix only since it had a lock file: somebody began to remove it.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age >= UNLOCKED_AGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    const FOLDER: &str = "ANEBAKE_TEST_TEMPORARY_FOLDER";

    /// One of the ignored tests below, to be run in another process.
    fn child(test: &str, folder: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([&format!("cache::temporary::tests::{test}"), "--exact", "--ignored", "--nocapture"])
            .env(FOLDER, folder);
        command
    }

    fn temporaries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    #[ignore = "needs a parent: run by the test of sweeping"]
    fn child_that_waits_to_be_killed() {
        let kept = TempDir::new_in(Path::new(&std::env::var_os(FOLDER).unwrap())).unwrap();
        fs::write(kept.path().join("half"), "half a file").unwrap();
        println!("ready");
        let _ = io::stdin().lines().next();
    }

    #[test]
    #[ignore = "needs a parent: run by the test of removal"]
    fn child_that_removes_its_own() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let [first, _second] = [(); 2].map(|()| TempDir::new_in(&folder).unwrap());
        fs::create_dir(first.path().join("inner")).unwrap();
        assert_eq!(temporaries(&folder), 2);
        remove_own_temporaries();
        assert_eq!(temporaries(&folder), 0);
    }

    #[test]
    fn a_live_process_keeps_its_folder_and_a_killed_one_loses_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = child("child_that_waits_to_be_killed", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(output.any(|line| line.contains("ready")));
        assert_eq!(sweep_stale(folder.path()), 0);
        assert_eq!(temporaries(folder.path()), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(sweep_stale(folder.path()), 1);
        assert_eq!(temporaries(folder.path()), 0);
    }

    #[test]
    fn all_folders_of_a_process_can_be_removed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let output = child("child_that_removes_its_own", folder.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn a_dropped_folder_is_gone_and_a_sweep_spares_the_live_and_the_foreign() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("package")).unwrap();
        fs::write(folder.path().join(format!("{TEMPORARY_PREFIX}file")), "not a folder").unwrap();
        fs::create_dir(folder.path().join(format!("{UNLOCKED_PREFIX}young"))).unwrap();
        let live = TempDir::new_in(folder.path()).unwrap();
        assert_eq!(sweep_stale(folder.path()), 0);
        assert_eq!(temporaries(folder.path()), 4);
        drop(live);
        assert_eq!(temporaries(folder.path()), 3);
    }

    #[test]
    fn a_folder_whose_removal_was_begun_or_that_never_got_its_lock_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(format!("{TEMPORARY_PREFIX}begun"))).unwrap();
        let old = folder.path().join(format!("{UNLOCKED_PREFIX}old"));
        fs::create_dir(&old).unwrap();
        File::open(&old).unwrap().set_modified(SystemTime::now() - 2 * UNLOCKED_AGE).unwrap();
        assert_eq!(sweep_stale(folder.path()), 2);
        assert_eq!(temporaries(folder.path()), 0);
    }
}
