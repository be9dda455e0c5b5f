//! What can go wrong on the disk, in the words of the user.

use std::io;
use std::path::Path;

use super::Digest;
use crate::error::Fault;

/// A blob that was relied on cannot be served. Find it with [`anyhow::Error::downcast_ref`]; baking again makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("blob `{digest}` {}", if *.missing { "is no longer in the cache" } else { "was damaged and is now in quarantine" })]
pub struct Damaged {
    /// The blob's digest.
    pub digest: Digest,
    /// It is absent (collected, or quarantined before), not found damaged just now.
    pub missing: bool,
}

/// A failed write to the cache at `root`; `needed`: the bytes that were to be written, if known.
pub(super) fn cannot_write(root: &Path, needed: Option<u64>, error: io::Error) -> anyhow::Error {
    write_fault(root, "the cache ", needed, &error, "`anebake cache gc`, or another folder with `--cache-dir DIR`")
        .with_source(error)
        .into()
}

/// A failed write to `folder`, which is not the cache's.
pub(super) fn cannot_write_to(folder: &Path, needed: Option<u64>, error: io::Error) -> anyhow::Error {
    write_fault(folder, "", needed, &error, "make room there, or name another folder").with_source(error).into()
}

fn write_fault(folder: &Path, what: &str, needed: Option<u64>, error: &io::Error, room: &str) -> Fault {
    let folder = folder.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let needed = needed.map_or_else(String::new, |bytes| format!(", {bytes} bytes are needed"));
            let state = if error.kind() == io::ErrorKind::StorageFull { "disk full" } else { "disk quota reached" };
            Fault::input(format!("{state} at {what}`{folder}`{needed}")).with_hint(room)
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            let hint = format!("make `{folder}` writable, or name another folder");
            let hint = if what.is_empty() { hint } else { format!("{hint} with `--cache-dir DIR`") };
            Fault::input(format!("{what}`{folder}` is not writable")).with_hint(hint)
        }
        _ => Fault::input(format!("cannot write to {what}`{folder}`")),
    }
}

/// A failed read of a file of the cache.
pub(super) fn cannot_read(path: &Path, error: io::Error) -> anyhow::Error {
    Fault::input(format!("cannot read `{}` of the cache", path.display())).with_source(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Status, hints, status};
    use rustix::io::Errno;

    #[test]
    fn a_full_disk_names_folder_bytes_and_a_way_out() {
        for (number, state) in [(Errno::NOSPC, "disk full"), (Errno::DQUOT, "disk quota reached")] {
            let error = cannot_write(Path::new("/c"), Some(12), number.into());
            assert_eq!(status(&error), Status::Input);
            assert_eq!(error.to_string(), format!("{state} at the cache `/c`, 12 bytes are needed"));
            assert_eq!(
                hints(&error).collect::<Vec<_>>(),
                ["`anebake cache gc`, or another folder with `--cache-dir DIR`"]
            );
        }
    }

    #[test]
    fn a_read_only_folder_says_so() {
        let error = cannot_write_to(Path::new("/out"), None, Errno::ROFS.into());
        assert_eq!(error.to_string(), "`/out` is not writable");
        assert_eq!(hints(&error).collect::<Vec<_>>(), ["make `/out` writable, or name another folder"]);
    }
}
