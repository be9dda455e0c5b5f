//! anebake bakes the checkpoint of a transformer language model into Core ML packages.

pub mod arch;
pub mod bake;
pub mod cache;
pub mod checkpoint;
pub mod commands;
pub mod coremltools;
pub mod error;
pub mod mlpackage;
pub mod quant;
pub mod recipe;
