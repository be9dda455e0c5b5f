//! `make bench`'s script, on a checkpoint that is no load.

use std::process::Command;

use serde_json::Value;

use crate::support::stderr;

#[test]
fn the_comparison_measures_every_native_road_and_judges_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(format!("{root}/.venv/bin/python"))
        .arg(format!("{root}/benches/compare.py"))
        .args([
            "--quick",
            "--skip",
            "mlx",
            "--skip",
            "coremltools",
            "--program",
            env!("CARGO_BIN_EXE_anebake"),
            "--folder",
        ])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let results: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("results-quick.json")).unwrap()).unwrap();
    let names: Vec<&str> =
        results["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    let expected = ["process", "floor", "floor, synced", "native, cold", "native", "all hit", "all hit, new out"];
    assert_eq!(names[..7], expected, "{names:?}");
    let verdicts = results["verdicts"].as_array().unwrap();
    let verdict = |what: &str| {
        let found = verdicts.iter().find(|verdict| verdict["what"] == what);
        found.unwrap_or_else(|| panic!("no verdict on {what}: {verdicts:?}"))
    };
    assert_eq!(verdict("all-hit rebakes that started Python")["met"], true);
    assert_eq!(verdict("peak memory, native, cold")["met"], true);
    let text = results.to_string();
    assert!(!text.contains(&folder.path().display().to_string()), "paths in {text}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("work")), "{left:?}");
}
