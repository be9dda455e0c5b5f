//! The program as its users run it.

mod checkpoints;
mod convert;
mod environment;
mod help;
mod json;
mod mistakes;
mod options;
mod output;
mod packages;
mod planning;
mod setup;
mod templates;

use std::process::Output;

use crate::support::{Bench, stderr};

/// Expects an exit status, an empty stdout, and exactly this text on stderr.
#[track_caller]
fn refused(output: &Output, code: i32, text: &str) {
    assert_eq!(stderr(output).trim_end(), text.trim_end());
    assert_eq!(output.status.code(), Some(code));
    assert!(output.stdout.is_empty());
}

/// `convert --model model --set package.context=128` with more arguments.
fn convert(bench: &Bench, arguments: &[&str]) -> Output {
    bench.run(&[&["convert", "--model", "model", "--set", "package.context=128"], arguments].concat())
}
