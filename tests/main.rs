//! The integration tests, one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod architecture;
mod cli;
mod coremltools;
mod docs;
mod ends;
mod faults;
mod figures;
mod gate;
mod graphs;
mod interpreter;
mod lint;
mod probe;
mod readers;
mod reproducible;
mod run;
mod support;
mod verify;
