//! The machine, as far as it decides what Core ML does.

use serde::{Deserialize, Serialize};

use super::Device;

/// Facts about this machine. Nothing in it tells whose machine it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Operating system and version, for instance `macOS 15.3.1`.
    pub os: String,
    /// Build of the operating system, for instance `24D70`.
    pub build: String,
    /// Chip, for instance `Apple M4 Pro`.
    pub chip: String,
    /// Model of the machine, for instance `Mac16,11`.
    pub model: String,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processors that Core ML lists.
    pub devices: Vec<Device>,
}

const UNKNOWN: &str = "unknown";

impl System {
    /// Asks the operating system; `devices` is left empty.
    pub fn of_this_machine() -> Self {
        let text = |name| sysctl(name).unwrap_or_else(|| UNKNOWN.to_owned());
        let version = sysctl("kern.osproductversion");
        Self {
            os: match version {
                Some(version) => format!("macOS {version}"),
                None => std::env::consts::OS.to_owned(),
            },
            build: text("kern.osversion"),
            chip: text("machdep.cpu.brand_string"),
            model: text("hw.model"),
            memory: sysctl("hw.memsize").and_then(|bytes| bytes.parse().ok()),
            devices: Vec::new(),
        }
    }
}

/// A value of the kernel's; none where there is no such name, or the kernel is another.
fn sysctl(name: &str) -> Option<String> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
