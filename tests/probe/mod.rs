//! `anebake probe`: the ladder is baked whole, and the reference runner agrees with the oracle on every rung.

use std::collections::BTreeSet;
use std::fs;

use anebake::probe::{Answer, FILE_NAME, Ladder, Results};
use sha2::{Digest, Sha256};

use crate::support::{Bench, TinyModel, files, stderr, stdout};

/// What the ladder must ask, in its order.
const RUNGS: [&str; 30] = [
    "rms-norm",
    "rms-norm-pair",
    "qk-norm",
    "rope",
    "scores-softmax",
    "mlp",
    "block-stateless",
    "block-io",
    "block-mask",
    "block-slice",
    "query-1",
    "query-2",
    "query-8",
    "query-64",
    "two-functions",
    "weights-int8-per-channel",
    "weights-int8-per-block-of-32",
    "weights-int4-per-channel",
    "weights-int4-per-block-of-32",
    "weights-palettes-of-4-bits",
    "stack-2",
    "stack-4",
    "stack-8",
    "stack-14",
    "stack-28",
    "stack-io-2",
    "stack-io-28",
    "macos26-float16",
    "macos26-int8",
    "macos26-palettes",
];

fn results(bench: &Bench, arguments: &[&str], status: i32) -> Results {
    let output = bench.run(&[&["probe", "ladder", "--json"], arguments].concat());
    assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_whole_ladder_is_baked_once_and_the_reference_runner_agrees_with_the_oracle_on_every_rung() {
    let bench = Bench::new(&TinyModel::new("qwen3", 1));
    let folder = bench.path("ladder");
    let written = bench.path("results.json");
    let found = results(&bench, &["--results", written.to_str().unwrap()], 0);
    let ids: Vec<&str> = found.rungs.iter().map(|rung| &*rung.about.id).collect();
    assert_eq!(ids, RUNGS);
    for rung in &found.rungs {
        assert!(rung.agrees && rung.reference.cosine > 0.9999, "{}: {:?}", rung.about.id, rung.reference);
        if cfg!(not(target_os = "macos")) {
            assert_eq!(rung.answer, Answer::Unasked);
        }
    }
    // No two rungs are the same package.
    let packages: BTreeSet<String> = found.rungs.iter().map(|rung| rung.package_sha256.to_string()).collect();
    assert_eq!(packages.len(), RUNGS.len());
    let stacks =
        |id: &str| fs::metadata(folder.join(format!("{id}.mlpackage/Data/com.apple.CoreML/weights/weight.bin")));
    let (one, many) = (stacks("block-mask").unwrap().len(), stacks("stack-28").unwrap().len());
    assert!(many > 27 * one, "28 blocks have weights of their own: {many} bytes, one has {one}");

    // What is shared tells nothing of this machine.
    let text = fs::read_to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), found);
    let here = bench.path("").canonicalize().unwrap();
    assert!(!text.contains(here.to_str().unwrap()) && !text.contains("/tmp/"), "{text}");

    // A second run makes nothing, and needs no Python where everything is there.
    let before = files(&folder);
    let again = bench.command().args(["probe", "ladder", "--json"]).env("ANEBAKE_PYTHON", "/nowhere").output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_eq!(serde_json::from_slice::<Results>(&again.stdout).unwrap(), found);
    assert!(files(&folder) == before);

    // What is damaged is made again, to the same bytes, and nothing else is.
    let package = folder.join("rope.mlpackage/Data/com.apple.CoreML/model.mlmodel");
    let other = folder.join("mlp.npz");
    let other_time = fs::metadata(&other).unwrap().modified().unwrap();
    let mut bytes = fs::read(&package).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&package, bytes).unwrap();
    fs::remove_file(folder.join("qk-norm.npz")).unwrap();
    results(&bench, &["--only", "rope,qk-norm"], 0);
    assert!(files(&folder) == before);
    assert_eq!(fs::metadata(&other).unwrap().modified().unwrap(), other_time);

    // Calls that do not belong to a package are told, with exit status 1.
    plant(&bench, "rms-norm", "qk-norm");
    let found = results(&bench, &["--only", "rms-norm,mlp"], 1);
    let agrees: Vec<(&str, bool)> = found.rungs.iter().map(|rung| (&*rung.about.id, rung.agrees)).collect();
    assert_eq!(agrees, [("rms-norm", false), ("mlp", true)]);

    // The table is for people; where Core ML is not, it says so and what to do.
    let table = bench.run(&["probe", "ladder", "--only", "block-mask"]);
    assert_eq!(table.status.code(), Some(0), "{}", stderr(&table));
    if cfg!(not(target_os = "macos")) {
        assert!(stdout(&table).ends_with("Core ML: skipped: Core ML needs macOS\n"), "{}", stdout(&table));
        assert!(stderr(&table).contains("carry it to a Mac and run `anebake probe ladder"), "{}", stderr(&table));
    }
    let unknown = bench.run(&["probe", "ladder", "--only", "block-masc"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).starts_with("anebake: error: the ladder has no `block-masc`\n  hint: it has rms-norm, "));
}

/// Gives a rung the calls of another one, and lists them as its own.
fn plant(bench: &Bench, rung: &str, other: &str) {
    let folder = bench.path("ladder");
    let bytes = fs::read(folder.join(format!("{other}.npz"))).unwrap();
    fs::write(folder.join(format!("{rung}.npz")), &bytes).unwrap();
    let path = folder.join(FILE_NAME);
    let mut ladder = Ladder::read(&folder).unwrap().unwrap();
    let digest: [u8; 32] = Sha256::digest(&bytes).into();
    ladder.rungs.iter_mut().find(|one| one.about.id == rung).unwrap().calls_sha256 = anebake::cache::Digest(digest);
    fs::write(path, serde_json::to_vec(&ladder).unwrap()).unwrap();
}

#[test]
fn without_python_and_without_a_ladder_the_environment_is_at_fault() {
    let bench = Bench::new(&TinyModel::new("qwen3", 1));
    let output = bench.command().args(["probe", "ladder"]).env("ANEBAKE_PYTHON", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
    assert!(!bench.path("ladder").exists());
}

#[test]
fn a_damaged_list_of_rungs_is_named() {
    let bench = Bench::new(&TinyModel::new("qwen3", 1));
    let folder = bench.path("ladder");
    fs::create_dir(&folder).unwrap();
    for text in ["{", "{}", r#"{"schema": 1, "complete": true, "rungs": [{"id": "../x"}]}"#] {
        fs::write(folder.join(FILE_NAME), text).unwrap();
        let output = bench.run(&["probe", "ladder"]);
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert!(stderr(&output).contains("ladder/probe.json` describes no ladder"), "{}", stderr(&output));
    }
}
