//! The integration tests, one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod cli;
mod coremltools;
mod docs;
mod figures;
mod support;
