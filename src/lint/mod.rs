//! What is known to go wrong: on the Neural Engine (ANE), in Core ML, in coremltools.
//!
//! Owns the look-up of failures by their text ([`symptom`]). Loads and runs nothing.

pub mod symptom;

pub use symptom::{Symptom, symptom};
