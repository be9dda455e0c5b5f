//! What is refused, and how.

use super::random;
use crate::support::{Bench, stderr};

#[track_caller]
fn refused(bench: &Bench, arguments: &[&str], code: i32, text: &str) {
    let output = bench.run(&[&["run"], arguments].concat());
    assert_eq!(stderr(&output).trim_end(), text);
    assert_eq!(output.status.code(), Some(code));
    assert!(output.stdout.is_empty());
}

#[test]
fn what_a_chain_cannot_do_is_said_with_what_would_help() {
    let bench = random();
    refused(
        &bench,
        &["out", "--prompt", "Hi"],
        4,
        "anebake: error: `out` has no tokenizer\n  hint: give tokens: `--ids 1,2,3`",
    );
    refused(&bench, &["out", "--prompt", ""], 2, "anebake: error: the prompt is empty");
    std::fs::write(bench.path("empty"), "\n").unwrap();
    refused(&bench, &["out", "--prompt-file", "empty"], 2, "anebake: error: the prompt is empty");
    let long = vec!["1"; 129].join(",");
    refused(
        &bench,
        &["out", "--ids", &long],
        2,
        "anebake: error: the prompt has 129 tokens, the context holds 128\n  hint: shorten it, or bake with a larger \
         `--set package.context=…`",
    );
    refused(&bench, &["out", "--ids", "1,96"], 2, "anebake: error: token 96 is none of the 96 of the vocabulary");
    refused(
        &bench,
        &["nowhere", "--ids", "1"],
        4,
        "anebake: error: cannot read `nowhere/chain.json`\n  caused by: No such file or directory (os error 2)\n  \
         hint: name the output folder of a whole bake: `anebake convert` without `--only`",
    );
    let output = bench.run(&["run", "out", "--prompt-file", "nowhere"]);
    assert!(stderr(&output).starts_with("anebake: error: cannot read `nowhere`\n"));
    std::fs::remove_dir_all(bench.path("out/head.mlpackage")).unwrap();
    let output = bench.run(&["run", "out", "--ids", "1"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("head.mlpackage"), "{}", stderr(&output));
}

#[test]
fn options_that_contradict_each_other_or_make_no_sense_are_usage_errors() {
    let bench = Bench { folder: tempfile::tempdir().unwrap() };
    for (arguments, says) in [
        (&["out"][..], "the following required arguments were not provided"),
        (&["out", "--prompt", "a", "--ids", "1"], "cannot be used with"),
        (&["out", "--ids", "1", "--chat"], "cannot be used with"),
        (&["out", "--ids", "1,x"], "invalid value 'x'"),
        (&["out", "--ids", "1", "--temperature", "-1"], "it must be a number from 0 up"),
        (&["out", "--ids", "1", "--temperature", "nan"], "it must be a number from 0 up"),
        (&["out", "--ids", "1", "--temperature", "1", "--top-p", "0"], "it must be above 0 and at most 1"),
        (&["out", "--ids", "1", "--temperature", "1", "--top-k", "0"], "invalid value '0'"),
        (&["out", "--ids", "1", "--seed", "1"], "--temperature <T>"),
        (&["out", "--ids", "1", "--max-tokens", "0"], "invalid value '0'"),
        (&["out", "--ids", "1", "--arithmetic", "f16"], "`f16` is none of f32, fp16"),
        (&["out", "--prompt", "a", "--system", "b"], "--chat"),
        (&["out", "--ids", "1", "--headroom-top", "3"], "--headroom"),
    ] {
        let output = bench.run(&[&["run"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
}
