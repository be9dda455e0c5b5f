//! The integration tests, one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod architecture;
mod cli;
mod coremltools;
mod docs;
mod ends;
mod faults;
mod figures;
mod graphs;
mod readers;
mod reproducible;
mod support;
mod verify;
