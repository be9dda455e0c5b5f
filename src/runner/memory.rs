//! How much memory this process took.

/// The most memory that the process had at once, in bytes, where the system tells.
#[cfg(not(target_os = "macos"))]
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

/// The most memory that the process had at once, in bytes, where the system tells.
#[cfg(target_os = "macos")]
pub fn peak() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to a whole `rusage`, which the call fills where it gives 0.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } == 0;
    // SAFETY: it was filled. macOS counts in bytes.
    done.then(|| unsafe { usage.assume_init() }.ru_maxrss.unsigned_abs())
}
