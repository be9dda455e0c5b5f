//! The same inputs give the same bytes: in another folder, process, time zone, locale, with another umask, another
//! number of threads, and nothing in the cache.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{Bench, TinyModel, stderr};

/// Relative path to contents of every file below.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = walkdir::WalkDir::new(folder).into_iter().map(Result::unwrap);
    entries
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| {
            let path = entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            (path, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// Bakes the model with an empty cache, under a umask, with environment variables and arguments.
fn bake(
    model: &TinyModel,
    umask: &str,
    environment: &[(&str, &str)],
    arguments: &str,
) -> (Bench, BTreeMap<String, Vec<u8>>) {
    let bench = Bench::new(model);
    let program = env!("CARGO_BIN_EXE_anebake");
    let script = format!("umask {umask}; exec '{program}' convert --model model --set package.context=128 {arguments}");
    let template = bench.command();
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(bench.folder.path())
        .envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let out = arguments.rsplit_once("--out ").unwrap().1;
    let files = files(&bench.path(out));
    (bench, files)
}

fn without_timings(files: &BTreeMap<String, Vec<u8>>) -> Value {
    let mut manifest: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
    assert!(manifest.as_object_mut().unwrap().remove("timings").is_some());
    manifest
}

/// Every file hashed in the manifest is there with that hash.
fn assert_hashes(files: &BTreeMap<String, Vec<u8>>) {
    let manifest = without_timings(files);
    let mut listed = 0;
    let blocks = manifest["blocks"].as_array().unwrap().iter().chain([&manifest["head"]]);
    let folders = blocks.map(|record| (format!("{}/", record["path"].as_str().unwrap()), &record["files"]));
    for (folder, list) in folders.chain([(String::new(), &manifest["files"])]) {
        for file in list.as_array().unwrap() {
            let path = format!("{folder}{}", file["path"].as_str().unwrap());
            let hash: String = Sha256::digest(&files[&path]).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(file["sha256"], hash, "{path}");
            listed += 1;
        }
    }
    assert_eq!(listed + 1, files.len());
}

fn assert_reproducible(arguments: &str, count: usize) {
    let model = TinyModel::new("qwen3", 1);
    let (first, a) = bake(&model, "022", &[("TZ", "UTC"), ("LANG", "C")], &format!("{arguments} --jobs 1 --out out"));
    let elsewhere = [
        ("TZ", "Asia/Kathmandu"),
        ("LANG", "de_DE.UTF-8"),
        ("LC_ALL", "de_DE.UTF-8"),
        ("USER", "somebody"),
        ("PYTHONHASHSEED", "7"),
    ];
    let (second, b) = bake(&model, "077", &elsewhere, &format!("{arguments} --jobs 2 --out else/where"));
    assert_hashes(&a);
    assert_eq!(without_timings(&a), without_timings(&b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (path, bytes) in a.iter().filter(|(path, _)| *path != "manifest.json") {
        assert!(*bytes == b[path], "`{path}` differs");
    }
    assert_eq!(a.len(), count);

    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    for (bench, files) in [(first, a), (second, b)] {
        let folder = bench.folder.path().to_str().unwrap().to_owned();
        let mut forbidden = vec![
            folder,
            env!("CARGO_MANIFEST_DIR").to_owned(),
            "/tmp/".to_owned(),
            "/home/".to_owned(),
            "conversion_date".to_owned(),
            "Kathmandu".to_owned(),
            "somebody".to_owned(),
        ];
        // A short host name may be part of a word.
        forbidden.extend(Some(host.trim().to_owned()).filter(|host| host.len() > 5));
        forbidden.extend((2024..2100).map(|year| format!("{year}-")));
        for (path, bytes) in files.iter().filter(|(path, _)| !path.ends_with(".bin")) {
            for text in &forbidden {
                let found = bytes.windows(text.len()).any(|window| window == text.as_bytes());
                assert!(!found, "`{path}` holds `{text}`");
            }
        }
    }
}

#[test]
fn a_native_bake_gives_the_same_bytes_everywhere() {
    assert_reproducible("--recipe int8-v1", 12);
    // And the table of positions.
    assert_reproducible("--recipe int8-ane-v1", 13);
    assert_reproducible("--recipe fp16-io-v1", 13);
}

#[test]
fn a_bake_by_coremltools_gives_the_same_bytes_everywhere() {
    assert_reproducible("--recipe int8-v1 --engine coremltools", 12);
    assert_reproducible("--recipe int8-ane-v1 --engine coremltools", 13);
}
