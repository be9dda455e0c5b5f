//! What is no package, or a damaged one.

use std::path::Path;

use super::refused;
use crate::support::{Bench, TinyModel, files, stderr};

/// A copy of a package, to damage it.
fn copy(from: &Path, to: &Path) {
    for (path, bytes) in files(from) {
        let target = to.join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

#[test]
fn what_is_no_package_or_no_bake_is_refused_by_name() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&["-q"]);
    for (path, cause) in [
        ("nowhere", "No such file or directory (os error 2)"),
        ("model", "No such file or directory (os error 2)"),
        ("model/config.json", "Not a directory (os error 20)"),
    ] {
        let expected = format!(
            "anebake: error: cannot open the package `{path}`\n  caused by: cannot read `{path}/Manifest.json`\n  caused \
             by: {cause}"
        );
        refused(&bench.run(&["inspect", path]), 4, &expected);
    }
    refused(
        &bench.run(&["inspect", "out"]),
        2,
        "anebake: error: `out` is the output folder of a bake, not a package\n  hint: name a package in it, for \
         instance `out/block-00.mlpackage`",
    );
    refused(
        &bench.run(&["diff", "out", "out/block-00.mlpackage"]),
        2,
        "anebake: error: `out` and `out/block-00.mlpackage`: one is a package, the other is not\n  hint: compare two \
         packages, or two output folders",
    );
    refused(
        &bench.run(&["diff", "out", "model"]),
        4,
        "anebake: error: `model` is no finished bake: it has no `manifest.json`\n  hint: `anebake convert` writes one",
    );
    std::fs::create_dir(bench.path("other")).unwrap();
    std::fs::write(bench.path("other/manifest.json"), "{\"schema\": 1, \"surprise\": 2}").unwrap();
    let output = bench.run(&["diff", "out", "other"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("other/manifest.json"), "{}", stderr(&output));
}

#[test]
fn a_damaged_package_is_refused_by_the_file_and_the_value_at_fault() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&["-q"]);
    let data = Path::new("Data/com.apple.CoreML");
    let weights = data.join("weights/weight.bin");
    let whole = std::fs::read(bench.path("out/block-00.mlpackage").join(&weights)).unwrap();
    let model = data.join("model.mlmodel");
    let program = std::fs::read(bench.path("out/block-00.mlpackage").join(&model)).unwrap();
    let flipped = {
        let mut bytes = whole.clone();
        bytes[64] ^= 1;
        bytes
    };
    let missing = "No such file or directory (os error 2)";
    for (path, bytes, expected) in [
        (
            weights.as_path(),
            Some(&whole[..1000]),
            "malformed package `bad`\n  caused by: function `decode`, `q_proj_weight_quantized`, `data`\n  caused by: \
             `weight.bin`\n  caused by: blob at offset 256: 4096 bytes of data reach beyond the file of 1000 bytes"
                .to_owned(),
        ),
        (
            &weights,
            Some(&[]),
            "malformed package `bad`\n  caused by: function `decode`, `input_layernorm_weight`, `val`\n  caused by: \
             `weight.bin`\n  caused by: offset 64 lies outside the file of 0 bytes"
                .to_owned(),
        ),
        (
            &weights,
            Some(&flipped),
            "malformed package `bad`\n  caused by: function `decode`, `input_layernorm_weight`, `val`\n  caused by: \
             `weight.bin`\n  caused by: no blob at offset 64: found 0xdeadbeee, not 0xdeadbeef"
                .to_owned(),
        ),
        (
            &model,
            Some(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            "cannot open the package `bad`\n  caused by: `bad/Data/com.apple.CoreML/model.mlmodel` is no Core ML \
             model\n  caused by: failed to decode Protobuf message: invalid varint"
                .to_owned(),
        ),
        (
            &model,
            None,
            format!(
                "cannot open the package `bad`\n  caused by: cannot read \
                 `bad/Data/com.apple.CoreML/model.mlmodel`\n  caused by: {missing}"
            ),
        ),
        (
            Path::new("Manifest.json"),
            None,
            format!(
                "cannot open the package `bad`\n  caused by: cannot read `bad/Manifest.json`\n  caused by: {missing}"
            ),
        ),
        (
            Path::new("Manifest.json"),
            Some(b"{\"itemInfoEntries\": {}, \"rootModelIdentifier\": \"x\"}"),
            "cannot open the package `bad`\n  caused by: `Manifest.json` lists no item `x`".to_owned(),
        ),
        (
            Path::new("Manifest.json"),
            Some(b"{"),
            "cannot open the package `bad`\n  caused by: `bad/Manifest.json` is no package manifest\n  caused by: EOF \
             while parsing an object at line 1 column 1"
                .to_owned(),
        ),
    ] {
        copy(&bench.path("out/block-00.mlpackage"), &bench.path("bad"));
        match bytes {
            Some(bytes) => std::fs::write(bench.path("bad").join(path), bytes).unwrap(),
            None => std::fs::remove_file(bench.path("bad").join(path)).unwrap(),
        }
        refused(&bench.run(&["inspect", "bad"]), 4, &format!("anebake: error: {expected}"));
        std::fs::remove_dir_all(bench.path("bad")).unwrap();
    }
    // No truncation and no flipped bit of a program brings the reader down: an error, or a report.
    copy(&bench.path("out/block-00.mlpackage"), &bench.path("bad"));
    let target = bench.path("bad").join(&model);
    for step in 0..24 {
        let mut bytes = program[..program.len() - step * program.len() / 24].to_vec();
        let at = step * 997 % bytes.len();
        bytes[at] ^= 1 << (step % 8);
        std::fs::write(&target, bytes).unwrap();
        let output = bench.run(&["inspect", "bad"]);
        assert!(matches!(output.status.code(), Some(0 | 4)), "{step}: {}", stderr(&output));
    }
}
