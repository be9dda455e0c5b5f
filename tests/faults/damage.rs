//! A flipped byte in every kind of cache file.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Packages, assert_manifest, packages};
use crate::support::{Bench, TinyModel, files, stderr, stdout};

/// Flips a bit in the middle of a file, in place.
pub(super) fn flip(path: &Path) {
    let metadata = std::fs::metadata(path).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    let mut file = File::options().write(true).open(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_permissions(metadata.permissions()).unwrap();
}

/// Two models of one shape, what their bakes must be, and a cache that holds the first.
struct Damaged {
    bench: Bench,
    expected: [Packages; 2],
}

impl Damaged {
    fn new() -> Self {
        let bench = Bench::new(&TinyModel::new("llama", 1));
        std::fs::create_dir(bench.path("other")).unwrap();
        TinyModel::new("llama", 2).write(&bench.path("other"));
        for path in ["model/model.safetensors", "other/model.safetensors"] {
            // Older than the margin within which digests are not remembered.
            let file = File::options().write(true).open(bench.path(path)).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60)).unwrap();
        }
        let damaged = Self { bench, expected: [Packages::new(), Packages::new()] };
        let expected = ["model", "other"].map(|model| {
            damaged.bake(model, &["--cache-dir", "calm", "--out", model_out(model)]);
            packages(&damaged.bench.path(model_out(model)))
        });
        damaged.bake("model", &[]);
        Self { expected, ..damaged }
    }

    /// Bakes a model into `out`, succeeds, and returns what was said.
    fn bake(&self, model: &str, arguments: &[&str]) -> String {
        let base = ["convert", "-q", "--model", model, "--set", "package.context=128"];
        let output = self.bench.run(&[&base, arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    }

    fn assert_right(&self, model: usize, what: &Path) {
        let out = self.bench.path("out");
        assert!(packages(&out) == self.expected[model], "wrong bytes after {} was damaged", what.display());
        assert_eq!(assert_manifest(&out), Some(2));
    }

    /// Every file of the cache that holds something.
    fn cache_files(&self) -> Vec<PathBuf> {
        let all = files(&self.bench.path("cache")).into_iter();
        let mut paths: Vec<PathBuf> = all.filter(|(_, bytes)| !bytes.is_empty()).map(|(path, _)| path).collect();
        let kept = ["ac-v1", "cas-v1", "memo-v1"];
        paths.retain(|path| kept.iter().any(|bucket| path.starts_with(bucket)));
        paths
    }
}

fn model_out(model: &str) -> &'static str {
    if model == "model" { "calm-model" } else { "calm-other" }
}

fn kind(path: &Path) -> &'static str {
    let text = path.to_str().unwrap();
    [
        ("ac-v1", "entry"),
        ("memo-v1/digests", "digests"),
        ("memo-v1/subjects", "subject"),
        ("memo-v1/outputs", "output"),
        (".sig", "signature"),
    ]
    .iter()
    .find(|(part, _)| text.contains(part))
    .map_or("blob", |(_, kind)| kind)
}

#[test]
fn a_flipped_byte_in_any_cache_file_never_reaches_an_output_and_is_reported() {
    let damaged = Damaged::new();
    let paths = damaged.cache_files();
    let kinds: std::collections::BTreeSet<&str> = paths.iter().map(|path| kind(path)).collect();
    assert!(["entry", "blob", "signature", "digests", "subject"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    for (round, path) in paths.iter().enumerate() {
        let file = damaged.bench.path("cache").join(path);
        if !file.exists() {
            continue;
        }
        flip(&file);
        if round % 2 == 0 {
            std::fs::remove_dir_all(damaged.bench.path("out")).unwrap();
        }
        let mut said = damaged.bake("model", &[]);
        damaged.assert_right(0, path);
        // The template's parts are read when something is stamped.
        said += &damaged.bake("other", &["--force"]);
        damaged.assert_right(1, path);
        said += &damaged.bake("model", &[]);
        damaged.assert_right(0, path);
        let wrong = ["entry", "blob"].contains(&kind(path));
        assert_eq!(said.contains("damaged"), wrong, "{}: {said}", path.display());
    }
    // What a block was last made of is written when it is baked.
    damaged.bake("model", &["--force"]);
    let output = damaged.bench.run(&["cache", "verify"]);
    assert!(output.status.success(), "all is mended: {}", stdout(&output));
}

#[test]
fn cache_verify_finds_a_flipped_byte_in_every_kind_of_file() {
    let damaged = Damaged::new();
    assert!(damaged.bench.run(&["cache", "verify"]).status.success());
    for path in damaged.cache_files() {
        let file = damaged.bench.path("cache").join(&path);
        if !file.exists() {
            continue;
        }
        flip(&file);
        let output = damaged.bench.run(&["cache", "verify"]);
        assert_eq!(output.status.code(), Some(1), "{}", path.display());
        let line = format!("damaged  {}\n", file.display());
        assert!(stdout(&output).contains(&line), "{}: {}", path.display(), stdout(&output));
        assert!(damaged.bench.run(&["cache", "verify"]).status.success(), "it is in quarantine");
    }
    damaged.bake("model", &[]);
    damaged.assert_right(0, Path::new("everything"));
}
