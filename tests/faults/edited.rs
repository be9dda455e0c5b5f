//! Outputs that somebody edits.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::damage::flip;
use super::{assert_manifest, packages};
use crate::support::{Bench, TinyModel, stderr};

/// The edit of somebody who hides it as well as he can.
fn flip_and_restore_time(path: &Path) {
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    flip(path);
    File::open(path).unwrap().set_modified(modified).unwrap();
}

const WEIGHTS: &str = "out/block-01.mlpackage/Data/com.apple.CoreML/weights/weight.bin";

#[test]
fn an_output_that_was_edited_cut_or_robbed_of_a_file_is_mended_by_the_next_bake() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&["-q"]);
    let expected = packages(&bench.path("out"));
    let program = "out/block-00.mlpackage/Data/com.apple.CoreML/model.mlmodel";
    let head = "out/head.mlpackage/Data/com.apple.CoreML/weights/weight.bin";
    let edits: [&dyn Fn(); 14] = [
        &|| flip(&bench.path(WEIGHTS)),
        &|| flip(&bench.path(program)),
        &|| flip_and_restore_time(&bench.path(WEIGHTS)),
        &|| flip_and_restore_time(&bench.path(program)),
        &|| {
            std::fs::set_permissions(bench.path(WEIGHTS), Permissions::from_mode(0o644)).unwrap();
            std::fs::write(bench.path(WEIGHTS), "short").unwrap();
        },
        &|| std::fs::remove_file(bench.path(WEIGHTS)).unwrap(),
        &|| std::fs::write(bench.path("out/block-01.mlpackage/surprise"), "more").unwrap(),
        &|| std::fs::remove_dir_all(bench.path("out/block-00.mlpackage")).unwrap(),
        &|| flip(&bench.path(head)),
        &|| std::fs::remove_dir_all(bench.path("out/head.mlpackage")).unwrap(),
        &|| flip_and_restore_time(&bench.path("out/embedding.bin")),
        &|| std::fs::remove_file(bench.path("out/embedding.bin")).unwrap(),
        &|| flip(&bench.path("out/chain.json")),
        &|| {
            std::fs::remove_file(bench.path("out/chain.json")).unwrap();
            std::fs::create_dir(bench.path("out/chain.json")).unwrap();
        },
    ];
    for (number, edit) in edits.iter().enumerate() {
        edit();
        assert!(packages(&bench.path("out")) != expected, "edit {number}");
        let output = bench.convert(&[]);
        assert!(packages(&bench.path("out")) == expected, "edit {number}: {}", stderr(&output));
        assert_eq!(assert_manifest(&bench.path("out")), Some(2));
    }
    assert!(bench.run(&["cache", "verify"]).status.success());
}

#[test]
fn a_bake_of_some_blocks_does_not_vouch_for_others_that_were_edited() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&["-q"]);
    bench.convert(&["-q", "--only", "0"]);
    assert_eq!(assert_manifest(&bench.path("out")), Some(2), "an unchanged block is kept");
    let chain = bench.path("out/chain.json");
    assert!(chain.exists() && bench.path("out/head.mlpackage").exists(), "and so is the rest");
    bench.convert(&["-q", "--only", "0", "--force"]);
    std::fs::remove_dir_all(bench.path("out/block-00.mlpackage")).unwrap();
    bench.convert(&["-q", "--only", "0"]);
    assert!(chain.exists(), "a block was put back as it was");
    flip(&bench.path(WEIGHTS));
    bench.convert(&["-q", "--only", "0", "--force"]);
    std::fs::remove_dir_all(bench.path("out/block-00.mlpackage")).unwrap();
    bench.convert(&["-q", "--only", "0"]);
    assert_eq!(assert_manifest(&bench.path("out")), Some(1));
    assert!(!bench.path("out/block-01.mlpackage").exists());
    assert!(!chain.exists(), "what it speaks of is not there");
    assert!(bench.path("out/head.mlpackage").exists() && bench.path("out/embedding.bin").exists());
    bench.convert(&["-q"]);
    assert!(chain.exists());
    assert_eq!(assert_manifest(&bench.path("out")), Some(2));
}
