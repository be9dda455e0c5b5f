//! Starting the interpreter, and what must not depend on the process.

use super::{Template, python, request};
use anebake::coremltools::{Environment, PACKAGE, started};
use serde_json::json;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "ANEBAKE_TEST_FOLDER";

fn int8() -> serde_json::Value {
    let mut request = request("qwen3");
    for role in ["self_attn.q_proj.weight", "mlp.down_proj.weight"] {
        request["weights"][role] = json!({"dtype": "int8", "granularity": "per_channel", "block_size": null});
    }
    request
}

/// Every file below `folder` with its bytes.
fn tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().map(Result::unwrap);
    files
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| {
            let name = entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
#[ignore = "needs a process of its own; `bytes_do_not_depend_on_the_process` runs it"]
fn child_makes_a_template() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let environment = Environment::find(None).unwrap();
    environment.tool_versions().unwrap();
    assert!(!started(), "asking for versions started Python");
    // A request that fails half-way leaves names behind in coremltools.
    let mut broken = int8();
    broken["norm"] = "none".into();
    let spoilt = tempfile::tempdir().unwrap();
    python().template(&broken, spoilt.path()).unwrap_err();
    assert!(started());
    python().template(&int8(), Path::new(&folder)).unwrap();
    println!("template made");
}

#[test]
fn bytes_do_not_depend_on_the_process() {
    let own = Template::of(&int8());
    let expected = tree(own.folder.path());
    assert_eq!(expected.iter().filter(|(name, _)| name.starts_with(PACKAGE)).count(), 3);
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "coremltools::start::child_makes_a_template", "--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("template made"), "{output:?}");
        assert!(tree(folder.path()) == expected, "a template of another process differs");
        assert!(output.stderr.is_empty(), "Python is not quiet: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn starting_again_gives_the_same_interpreter() {
    assert!(std::ptr::eq(python(), python()));
}
