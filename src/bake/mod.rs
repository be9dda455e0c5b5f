//! The bake: plan, template, stamp, pipeline, output.
//!
//! Owns the order of work and what makes up a key. Authoring is `coremltools`' and Python's, arithmetic is `quant`'s,
//! storage is `cache`'s.

pub mod ends;
pub mod layout;
pub mod manifest;
pub mod output;
pub mod part;
pub mod pipeline;
pub mod plan;
mod planner;
pub mod stamp;
pub mod survey;
pub mod template;
pub mod verify;
pub mod witness;
