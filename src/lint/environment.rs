//! Rules over the tools: their versions, and the system's.

use std::path::Path;

use serde_json::Value;

use super::Severity::{Error, Info};
use super::evidence::Confidence::{Corroborated, Measured, Single, Vendor};
use super::evidence::{seen, thread};
use super::{Check, Rule};
use crate::coremltools::Environment;

/// Where macOS says which version it is.
const SYSTEM_VERSION: &str = "/System/Library/CoreServices/SystemVersion.plist";

/// Versions, where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// coremltools.
    pub coremltools: Option<String>,
    /// numpy.
    pub numpy: Option<String>,
    /// Python.
    pub python: Option<String>,
    /// macOS; none on other systems.
    pub macos: Option<String>,
}

impl Tools {
    /// Those of an environment and of this system.
    pub fn of(environment: &Environment) -> Self {
        let version = |package| environment.package_version(package);
        Self {
            coremltools: version("coremltools"),
            numpy: version("numpy"),
            python: environment.python_version(),
            macos: macos_version(Path::new(SYSTEM_VERSION)),
        }
    }

    /// Those that a manifest names.
    pub fn recorded(tools: &Value) -> Self {
        let version = |name: &str| tools.get(name).and_then(Value::as_str).map(str::to_owned);
        Self { coremltools: version("coremltools"), numpy: version("numpy"), python: version("python"), macos: None }
    }
}

/// `ProductVersion` of a property list.
fn macos_version(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once("<key>ProductVersion</key>")?;
    let (_, rest) = rest.split_once("<string>")?;
    rest.split_once("</string>").map(|(version, _)| version.trim().to_owned())
}

/// The first two numbers of a version.
fn numbers(version: Option<&String>) -> Option<(u32, u32)> {
    let mut parts = version?.split('.').map(|part| part.chars().take_while(char::is_ascii_digit).collect::<String>());
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|part| part.parse().ok()).unwrap_or(0)))
}

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "environment-coremltools",
        severity: Error,
        on_ane: None,
        what: "another coremltools than 9.0",
        why: "graphs, layout and the arithmetic of quantization are those of 9.0: other versions give other bytes, or \
              refuse what is authored",
        fix: "`python -m pip install coremltools==9.0`",
        evidence: &[seen(Measured, "2026-11-29", "https://github.com/apple/coremltools/releases/tag/9.0")],
        check: Check::Environment(|tools, found| {
            let version = numbers(tools.coremltools.as_ref());
            if let (Some(text), true) = (&tools.coremltools, version.is_some_and(|version| version != (9, 0))) {
                found.add("coremltools", text.clone());
            }
        }),
    },
    Rule {
        id: "environment-numpy",
        severity: Error,
        on_ane: None,
        what: "numpy 2.4 or later with coremltools 9.0",
        why: "one-element arrays no longer become numbers by themselves: conversions end in a `TypeError`",
        fix: "`python -m pip install 'numpy<2.4'`",
        evidence: &[
            seen(Corroborated, "2026-01-02", thread!("apple/coremltools", 2633)),
            seen(Corroborated, "2026", thread!("apple/coremltools", 2755)),
        ],
        check: Check::Environment(|tools, found| {
            let old = numbers(tools.coremltools.as_ref()).is_none_or(|version| version <= (9, 0));
            let new = numbers(tools.numpy.as_ref()).is_some_and(|version| version >= (2, 4));
            if let (Some(text), true) = (&tools.numpy, old && new) {
                found.add("numpy", text.clone());
            }
        }),
    },
    Rule {
        id: "environment-python",
        severity: Error,
        on_ane: None,
        what: "Python 3.13 or later with coremltools 9.0",
        why: "its native library is empty there: `BlobWriter not loaded`",
        fix: "use Python 3.12 or earlier",
        evidence: &[
            seen(Corroborated, "2025-11-06", thread!("apple/coremltools", 2617)),
            seen(Corroborated, "2024-10-07", thread!("apple/coremltools", 2361)),
        ],
        check: Check::Environment(|tools, found| {
            let old = numbers(tools.coremltools.as_ref()).is_none_or(|version| version <= (9, 0));
            let new = numbers(tools.python.as_ref()).is_some_and(|version| version >= (3, 13));
            if let (Some(text), true) = (&tools.python, old && new) {
                found.add("Python", text.clone());
            }
        }),
    },
    Rule {
        id: "environment-macos",
        severity: Error,
        on_ane: None,
        what: "macOS before 15",
        why: "it does not know the opset of the packages: `Unknown opset 'CoreML8'`; they can be baked there, not run",
        fix: "run the packages on macOS 15 or later",
        evidence: &[
            seen(Corroborated, "2024-07-21", thread!("apple/coremltools", 2283)),
            seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/stateful-models.html"),
        ],
        check: Check::Environment(|tools, found| {
            if let (Some(text), Some(version)) = (&tools.macos, numbers(tools.macos.as_ref()))
                && version < (15, 0)
            {
                found.add("macOS", text.clone());
            }
        }),
    },
    Rule {
        id: "environment-compiler-service",
        severity: Info,
        on_ane: None,
        what: "macOS 27, whose ANE compiler service keeps deleted files open",
        why: "178 GiB were held by it after many compiles, free again only when the service ended",
        fix: "look with `lsof +L1 -c ANECompiler`, and end the service when disk runs short",
        evidence: &[
            seen(Single, "2026-09", "https://github.com/cadamcat/llms-on-apple-neural-engine"),
            seen(Corroborated, "2025", thread!("apple/coremltools", 2549)),
        ],
        check: Check::Environment(|tools, found| {
            if let (Some(text), Some((27, _))) = (&tools.macos, numbers(tools.macos.as_ref())) {
                found.add("macOS", text.clone());
            }
        }),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_macos_is_read_from_its_property_list() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "<dict>\n\t<key>ProductName</key>\n\t<string>macOS</string>\n\t<key>ProductVersion</key>\n\t\
                    <string>15.6.1</string>\n</dict>";
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(macos_version(file.path()).as_deref(), Some("15.6.1"));
        std::fs::write(file.path(), "<dict/>").unwrap();
        assert_eq!(macos_version(file.path()), None);
        assert_eq!(macos_version(Path::new("/nowhere")), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let of = |text: &str| numbers(Some(&text.to_owned()));
        assert_eq!(of("2.10.1"), Some((2, 10)));
        assert_eq!(of("9"), Some((9, 0)));
        assert_eq!(of("3.13rc1"), Some((3, 13)));
        assert_eq!(of("new"), None);
    }
}
