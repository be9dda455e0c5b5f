//! The integration tests, one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod cli;
mod coremltools;
mod graphs;
mod readers;
mod reproducible;
mod support;
mod verify;
