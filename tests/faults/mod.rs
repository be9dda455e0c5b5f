//! Bad luck: killed and interrupted bakes, bakes side by side, full and read-only disks, damaged files, checkpoints that
//! change. Whatever happens, a package or file in the output is whole and right, and the next run completes.

mod concurrent;
mod damage;
mod edited;
mod interrupted;
mod killed;
mod sources;
mod tmpfs;
mod unprivileged;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anebake::bake::manifest::BakeManifest;
use sha2::{Digest, Sha256};

use crate::support::{Bench, Random, TinyModel, files, stderr};

/// Every file of a bake but its manifest, by path in the output.
type Packages = BTreeMap<PathBuf, Vec<u8>>;

const LAYERS: usize = 8;

/// A bench with a model of eight blocks, and the bakes of two recipes that nothing disturbed.
struct Fault {
    bench: Bench,
    random: Random,
    expected: [Packages; 2],
}

const RECIPES: [&str; 2] = ["int8-rtn-v1", "fp16-v1"];

impl Fault {
    /// Bakes both recipes, with a cache of their own.
    fn new() -> Self {
        let bench = Bench::new(&TinyModel::with_layers("llama", 1, LAYERS));
        let expected = RECIPES.map(|recipe| {
            bench.convert(&["-q", "--recipe", recipe, "--out", recipe, "--cache-dir", "calm"]);
            packages(&bench.path(recipe))
        });
        assert_ne!(expected[0], expected[1]);
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        println!("seed {seed}");
        Self { bench, random: Random(seed), expected }
    }

    /// `convert` of a recipe into `out`, not yet started.
    fn command(&self, recipe: &str, arguments: &[&str]) -> Command {
        let mut command = self.bench.command();
        command.args(["convert", "--model", "model", "--set", "package.context=128", "--recipe", recipe]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A folder that holds the templates of both recipes and no block of the model: a cache to start from.
    fn templates(&self) -> PathBuf {
        let folder = self.bench.path("templates");
        let other = Bench::new(&TinyModel::with_layers("llama", 99, 1));
        for recipe in RECIPES {
            other.convert(&["-q", "--recipe", recipe, "--cache-dir", folder.to_str().unwrap()]);
        }
        folder
    }

    /// Replaces the cache by a copy of `from`.
    fn cache_from(&self, from: &Path) {
        self.forget_cache();
        copy_tree(from, &self.bench.path("cache"));
    }

    fn forget_cache(&self) {
        if self.bench.path("cache").exists() {
            std::fs::remove_dir_all(self.bench.path("cache")).unwrap();
        }
    }

    /// A random duration of at most `longest`.
    fn moment(&mut self, longest: std::time::Duration) -> std::time::Duration {
        longest.mul_f64((self.random.bits() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Everything in the output is, to the byte, of one of the two bakes; a manifest vouches for right things only, and
    /// `chain.json` for one whole bake.
    fn assert_nothing_wrong(&self, out: &str) {
        let out = self.bench.path(out);
        let mut names: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(&out).into_iter().flatten() {
            names.push(entry.unwrap().file_name().into_string().unwrap());
        }
        for name in names.iter().filter(|name| !name.starts_with('.') && *name != "manifest.json") {
            let of = |packages: &Packages| -> Packages {
                packages
                    .iter()
                    .filter(|(path, _)| path.starts_with(name))
                    .map(|(a, b)| (a.clone(), b.clone()))
                    .collect()
            };
            let found = of(&packages(&out));
            assert!(self.expected.iter().any(|expected| of(expected) == found), "`{name}` is not whole");
        }
        if names.iter().any(|name| name == "chain.json") {
            let found = packages(&out);
            assert!(self.expected.contains(&found), "`chain.json` is there, and no whole bake");
        }
        assert_manifest(&out);
    }

    /// The output is the bake of `recipe` and nothing else, and no temporary folder is left.
    fn assert_complete(&self, recipe: usize, out: &str) {
        let folder = self.bench.path(out);
        assert!(packages(&folder) == self.expected[recipe], "the output is not that of {}", RECIPES[recipe]);
        assert_eq!(assert_manifest(&folder), Some(LAYERS));
        self.assert_tidy(out);
    }

    fn assert_tidy(&self, out: &str) {
        assert_eq!(temporaries(&self.bench.path(out)), Vec::<PathBuf>::new());
        assert_eq!(temporaries(&self.bench.path("cache/tmp-v1")), Vec::<PathBuf>::new());
    }
}

/// Every file of an output but its manifest and what is temporary.
fn packages(out: &Path) -> Packages {
    let mut all = files(out);
    all.retain(|path, _| path != Path::new("manifest.json") && !path.to_str().unwrap().starts_with('.'));
    all
}

/// Reads the manifest, if there is one, and checks all its hashes; says how many blocks it lists.
fn assert_manifest(out: &Path) -> Option<usize> {
    let manifest = BakeManifest::read(out).unwrap()?;
    for file in &manifest.files {
        let bytes = std::fs::read(out.join(&file.path)).unwrap();
        let sha256 = hex(&Sha256::digest(&bytes));
        assert_eq!((file.size, file.sha256.to_string()), (bytes.len() as u64, sha256), "{}", file.path);
    }
    for block in manifest.packages() {
        let mut lines = Vec::new();
        for file in &block.files {
            let bytes = std::fs::read(out.join(&block.path).join(&file.path)).unwrap();
            let sha256 = hex(&Sha256::digest(&bytes));
            assert_eq!((file.size, file.sha256.to_string()), (bytes.len() as u64, sha256.clone()), "{}", block.path);
            lines.push(format!("{}\0{}\0{sha256}\n", file.path, file.size));
        }
        lines.sort();
        assert_eq!(block.sha256.to_string(), hex(&Sha256::digest(lines.concat())));
    }
    Some(manifest.blocks.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Temporary folders in a folder. One of the other prefix, whose process died before it took its lock, is empty and
/// stays for an hour.
fn temporaries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(".anebake-tmp-")).collect()
}

fn copy_tree(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-Rp").args([from, to]).output().unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
}
