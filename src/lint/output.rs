//! Rules over a folder of packages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Severity::{Error, Info, Warn};
use super::evidence::Confidence::{Corroborated, Hint, Measured, Single};
use super::evidence::{seen, thread};
use super::{Check, Rule};
use crate::bake::manifest::{self, BakeManifest};
use crate::chain;

/// Where this project says what an output folder is.
const README: &str = "README.md#the-ends-of-the-chain";

/// A folder of packages.
#[derive(Debug, Default)]
pub struct Output {
    /// The folder.
    pub path: PathBuf,
    /// Its manifest, where it has one.
    pub manifest: Option<BakeManifest>,
    /// Names of its packages, sorted.
    pub packages: Vec<String>,
    /// Programs that loading every function of every package makes.
    pub programs: usize,
    /// Packages that cannot be read, and why.
    pub unreadable: Vec<(String, String)>,
}

impl Output {
    /// What a folder holds; its packages are not opened.
    ///
    /// # Errors
    /// Its manifest cannot be read.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let manifest = BakeManifest::read(path)?;
        Ok(Self { path: path.to_owned(), manifest, packages: package_names(path), ..Self::default() })
    }
}

/// Names of the packages in a folder, sorted.
pub fn package_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".mlpackage") && folder.join(name).is_dir())
        .collect();
    names.sort_unstable();
    names
}

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "output-unreadable",
        severity: Error,
        on_ane: None,
        what: "a package that cannot be read",
        why: "Core ML will not read it either",
        fix: "bake again",
        evidence: MEASURED,
        check: Check::Output(|output, found| {
            for (name, why) in &output.unreadable {
                found.add(format!("`{name}`"), why.clone());
            }
        }),
    },
    Rule {
        id: "output-not-as-baked",
        severity: Error,
        on_ane: None,
        what: "a file that the manifest lists is missing or of another size",
        why: "the folder is not what was baked and judged",
        fix: "bake again into this folder, or copy it whole",
        evidence: MEASURED,
        check: Check::Output(|output, found| {
            let Some(manifest) = &output.manifest else { return };
            let files = manifest.files.iter().map(|file| (file.path.clone(), file.size));
            let inside = manifest.packages().flat_map(|record| {
                record.files.iter().map(move |file| (format!("{}/{}", record.path, file.path), file.size))
            });
            for (path, size) in files.chain(inside) {
                match output.path.join(&path).metadata() {
                    Ok(metadata) if metadata.len() == size => {}
                    Ok(metadata) => found.add(format!("`{path}`"), format!("{} bytes, not {size}", metadata.len())),
                    Err(_) => found.add(format!("`{path}`"), "missing"),
                }
            }
        }),
    },
    Rule {
        id: "output-stray-package",
        severity: Warn,
        on_ane: None,
        what: "a package that the manifest does not list",
        why: "it is of another bake: whoever loads all packages of the folder mixes models",
        fix: "move it away",
        evidence: MEASURED,
        check: Check::Output(|output, found| {
            let Some(manifest) = &output.manifest else { return };
            let listed: BTreeSet<&str> = manifest.packages().map(|record| &*record.path).collect();
            for name in output.packages.iter().filter(|name| !listed.contains(name.as_str())) {
                found.add(format!("`{name}`"), "not listed");
            }
        }),
    },
    Rule {
        id: "output-without-manifest",
        severity: Info,
        on_ane: None,
        what: "packages without a manifest",
        why: "nothing says which model, recipe and tools they came from, nor how to tell whether they are whole",
        fix: "`anebake convert` writes one",
        evidence: MEASURED,
        check: Check::Output(|output, found| {
            if output.manifest.is_none() {
                found.add(format!("`{}`", manifest::FILE_NAME), "missing");
            }
        }),
    },
    Rule {
        id: "output-without-chain",
        severity: Info,
        on_ane: None,
        what: "packages without `chain.json`",
        why: "nothing says how they are wired: neither the gate nor a runner can use them as a model",
        fix: "bake all parts: `anebake convert` without `--only`",
        evidence: MEASURED,
        check: Check::Output(|output, found| {
            if !output.path.join(chain::FILE_NAME).is_file() {
                found.add(format!("`{}`", chain::FILE_NAME), "missing");
            }
        }),
    },
    Rule {
        id: "output-unproven",
        severity: Info,
        on_ane: None,
        what: "no passed gate is on record for these packages",
        why: "blocks that are each right to 0.9998 were seen to end in a chain of cosine 0.41",
        fix: "`anebake gate` tells how far the chain is from its model",
        evidence: super::recipe::CHAIN,
        check: Check::Output(|output, found| {
            let Some(manifest) = output.manifest.as_ref().filter(|manifest| manifest.head.is_some()) else { return };
            match manifest.gate.as_ref().and_then(|gate| gate.pointer("/report/passed")?.as_bool()) {
                Some(true) => {}
                Some(false) => found.add("the gate", "failed"),
                None => found.add("the gate", "has not run"),
            }
        }),
    },
    Rule {
        id: "output-many-programs",
        severity: Warn,
        on_ane: None,
        what: "120 loaded programs or more",
        why: "a process was found to hold about 127 programs on the ANE; each function of each package is one, and the \
              next load ends in `GetANEFModel: must re-compile`",
        fix: "load one function of each package, unload what is not used, or put fewer functions into a package",
        evidence: &[seen(Hint, "2026-08-18", "https://github.com/sbryngelson/ane-guide")],
        check: Check::Output(|output, found| {
            if output.programs >= 120 {
                let packages = output.packages.len();
                found.add(format!("{packages} packages"), format!("{} functions together", output.programs));
            }
        }),
    },
    Rule {
        id: "output-many-calls",
        severity: Info,
        on_ane: None,
        what: "each token takes many predictions",
        why: "a prediction costs about 1.6 ms whatever it computes: with 28 packages, int8 made the files small and not \
              the tokens fast",
        fix: "know it when you compare speeds; several blocks in a package are fewer calls, and see \
              `state-several-blocks`",
        evidence: &[
            seen(Corroborated, "2026-08-02", thread!("FluidInference/mobius", 81)),
            seen(Single, "2026-06-10", "https://github.com/sarthak-fleet/tinygpt/commit/bbbc623"),
        ],
        check: Check::Output(|output, found| {
            if output.packages.len() >= 16 {
                found.add(format!("{} packages", output.packages.len()), "one prediction each");
            }
        }),
    },
];

const MEASURED: &[super::Evidence] = &[seen(Measured, "2026-11-29", README)];
