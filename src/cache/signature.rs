//! Telling from `stat` alone that a file still holds the bytes it was once seen to hold.
//!
//! The rule is git's: a file is unchanged if size, times, inode and device are. Two refinements. Hard links come and go
//! with the outputs and change ctime: a ctime that changed together with the number of links, and nothing else, is
//! taken for that. And a file that was modified less than [`MARGIN`] before it was looked at is not to be trusted
//! ("racily clean"): a write within the same tick of the file system's clock leaves no trace. So that fresh blobs can be
//! trusted at once, [`backdate`] moves their mtime out of that margin; any later write moves it back. What stays unseen
//! is a write whose author also resets the mtime, within the same tick as, or together with, a new hard link.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::now_ns;

/// The coarsest clock of a file system in use (FAT: 2 s).
pub(super) const MARGIN: Duration = Duration::from_secs(2);

/// What `stat` says of a file; times in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signature {
    pub(super) size: u64,
    pub(super) mtime_ns: i64,
    pub(super) ctime_ns: i64,
    pub(super) inode: u64,
    pub(super) dev: u64,
    pub(super) nlink: u64,
}

impl Signature {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            mtime_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            dev: metadata.dev(),
            nlink: metadata.nlink(),
        }
    }

    pub(super) fn same_inode(&self, other: &Self) -> bool {
        (self.inode, self.dev) == (other.inode, other.dev)
    }

    /// As it is after a rename that `other` was taken after.
    pub(super) fn but_for_rename(self, other: &Self) -> Self {
        Self { ctime_ns: other.ctime_ns, ..self }
    }

    fn but_for_links(self, other: &Self) -> Self {
        Self { ctime_ns: other.ctime_ns, nlink: other.nlink, ..self }
    }
}

/// A signature and when it was taken of bytes that were known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Remembered {
    pub(super) signature: Signature,
    pub(super) recorded_ns: i64,
}

/// What a remembered signature says of a file as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The bytes are those that were seen.
    Unchanged,
    /// So they are, but somebody linked or unlinked the file: remember the new signature.
    LinksChanged,
    /// Only its bytes can tell.
    Unknown,
}

impl Remembered {
    /// Remembers `signature` as taken just now.
    pub(super) fn now(signature: Signature) -> Self {
        Self { signature, recorded_ns: now_ns() }
    }

    pub(super) fn judge(&self, now: &Signature) -> Verdict {
        let then = &self.signature;
        if is_racy(then.mtime_ns, self.recorded_ns) {
            Verdict::Unknown
        } else if then == now {
            Verdict::Unchanged
        } else if then.nlink != now.nlink && then.ctime_ns != now.ctime_ns && then.but_for_links(now) == *now {
            Verdict::LinksChanged
        } else {
            Verdict::Unknown
        }
    }
}

/// Whether a file modified at `mtime_ns` may have been modified again, unseen, after it was looked at.
pub(super) fn is_racy(mtime_ns: i64, looked_at_ns: i64) -> bool {
    looked_at_ns.saturating_sub(mtime_ns) < i64::try_from(MARGIN.as_nanos()).expect("two seconds fit")
}

/// Sets a finished file's mtime to twice [`MARGIN`] ago.
pub(super) fn backdate(file: &File) -> io::Result<()> {
    file.set_modified(SystemTime::now() - 2 * MARGIN)
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn only_a_change_of_links_and_ctime_together_is_forgiven() {
        let seen = Signature { size: 9, mtime_ns: 10 * SECOND, ctime_ns: 20 * SECOND, inode: 5, dev: 6, nlink: 1 };
        let remembered = Remembered { signature: seen, recorded_ns: 21 * SECOND };
        assert_eq!(remembered.judge(&seen), Verdict::Unchanged);
        let linked = Signature { ctime_ns: 30 * SECOND, nlink: 2, ..seen };
        assert_eq!(remembered.judge(&linked), Verdict::LinksChanged);
        for changed in [
            Signature { size: 8, ..seen },
            Signature { mtime_ns: 11 * SECOND, ..seen },
            Signature { ctime_ns: 30 * SECOND, ..seen },
            Signature { inode: 4, ..seen },
            Signature { dev: 7, ..seen },
            Signature { nlink: 2, ..seen },
            Signature { mtime_ns: 30 * SECOND, ..linked },
            Signature { size: 8, ..linked },
        ] {
            assert_eq!(remembered.judge(&changed), Verdict::Unknown, "{changed:?}");
        }
    }

    #[test]
    fn a_signature_taken_within_the_margin_of_the_last_write_is_not_trusted() {
        let signature = Signature { size: 9, mtime_ns: 10 * SECOND, ctime_ns: 10 * SECOND, inode: 5, dev: 6, nlink: 1 };
        let judged = |recorded_ns| Remembered { signature, recorded_ns }.judge(&signature);
        assert_eq!(judged(9 * SECOND), Verdict::Unknown);
        assert_eq!(judged(12 * SECOND - 1), Verdict::Unknown);
        assert_eq!(judged(12 * SECOND), Verdict::Unchanged);
    }
}
