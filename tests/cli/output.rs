//! stdout is data, stderr is talk.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{convert, refused};
use crate::support::{Bench, TinyModel, files, stderr, stdout};

#[test]
fn quiet_success_prints_nothing_and_progress_goes_to_stderr_even_when_python_starts() {
    let bench = Bench::new(&TinyModel::new("qwen3", 1));
    let quiet = bench.convert(&["-q"]);
    assert_eq!((stdout(&quiet), stderr(&quiet)), (String::new(), String::new()));
    assert_eq!(files(&bench.path("out")).len(), 12);

    let talk = bench.convert(&["--set", "package.context=256"]);
    assert_eq!(stdout(&talk), "");
    for needle in [
        "template",
        "block-00  baked",
        "block-01  baked",
        "head      ",
        "embedding ",
        "(4/4)",
        "2 blocks, head, embedding of model by int8-v1: 2 baked, 2 cached",
    ] {
        assert!(stderr(&talk).contains(needle), "{}", stderr(&talk));
    }

    let json = bench.convert(&["--json", "--set", "package.context=64"]);
    let summary: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(summary["python_started"], true, "stdout stays pure although it was started");
}

#[test]
fn a_reader_that_leaves_after_one_line_is_no_failure() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    bench.convert(&["-q"]);
    for arguments in [
        &["inspect", "out/block-00.mlpackage"][..],
        &["inspect", "--json", "out/block-00.mlpackage"],
        &["completions", "bash"],
        &["recipe", "list"],
        &["plan", "--model", "model"],
        &["--help"],
    ] {
        let mut command = bench.command();
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!line.is_empty());
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{arguments:?}");
        // And one that never came.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = bench.command().args(arguments).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_stdout_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let bench = Bench::new(&TinyModel::new("llama", 1));
    let output = bench.command().args(["recipe", "list"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).starts_with("anebake: error: cannot write to stdout\n"), "{}", stderr(&output));
}

#[test]
fn an_output_that_is_a_file_is_left_alone() {
    let bench = Bench::new(&TinyModel::new("llama", 1));
    std::fs::write(bench.path("file"), "mine").unwrap();
    for (out, cause) in [("file", "File exists (os error 17)"), ("file/below", "Not a directory (os error 20)")] {
        let expected = format!(
            "anebake: error: cannot make the output folder (output folder `{out}`)\n  caused by: {cause}\n  hint: free \
             space or choose another folder with `--out`; finished blocks stay in the cache"
        );
        refused(&convert(&bench, &["-q", "--out", out]), 4, &expected);
    }
    assert_eq!(std::fs::read(bench.path("file")).unwrap(), b"mine");
    let mut command = bench.command();
    let output = command.args(["convert", "--model", "model", "--cache-dir", "file"]).output().unwrap();
    let expected = format!(
        "anebake: error: the cache `{}` is not a folder\n  hint: name a folder with `--cache-dir DIR`",
        bench.path("file").display()
    );
    refused(&output, 4, &expected);
}
