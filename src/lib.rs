//! anebake bakes the checkpoint of a transformer language model into Core ML packages: one per transformer block,
//! quantized, cached by content, the same bytes for the same inputs.
//!
//! ```text
//! recipe (TOML) ─┐
//! checkpoint ────┴─> plan ──> template ──> stamp ──> cache ──> out/ (packages + manifest.json)
//!                      │         │            │
//!                      │    coremltools     native Rust
//!                      │    (embedded,      (per block,
//!                      │     once)           in parallel)
//!                      └ every action has a key; a hit skips all to its right
//! ```
//!
//! All blocks of a model are the same graph with other weights. coremltools authors and converts one of them, the
//! template; the others are stamped: their tensors are quantized in Rust with coremltools' own arithmetic, bit for bit,
//! and written where the template holds its own.
//!
//! Modules depend on those below them only:
//!
//! | module | owns |
//! |---|---|
//! | [`commands`] | one file for each subcommand; no algorithms |
//! | [`ui`] | the only printer |
//! | [`cli`] | what the command line can say |
//! | [`probe`] | which graphs a machine's Neural Engine takes |
//! | [`smoke`] | whether packages run on Core ML, and where |
//! | [`gate`] | whether a chain says what its model says |
//! | [`lint`] | what is known to go wrong: rules over recipe, package and environment; failures by their text |
//! | [`bake`] | plan, template, stamp, pipeline, output |
//! | [`runner`] | running packages, and the chain of them |
//! | [`mil`] | what a package's program means: the interpreter |
//! | [`recipe`] | TOML to a checked, resolved recipe |
//! | [`checkpoint`] | where weights come from: safetensors, GGUF, the hub |
//! | [`tokenizer`] | text to tokens and back; GGUF vocabularies |
//! | [`arch`] | a model's description to the shape of its blocks |
//! | [`coremltools`] | the only user of Python |
//! | [`quant`] | weights in, bytes out |
//! | [`mlpackage`] | packages on disk: program, blob file, inventory |
//! | [`chain`] | `chain.json`: how the packages of an output are wired |
//! | [`cache`] | action keys, content store, collection |
//! | [`error`] | exit status and hints; every module may use it |

pub mod arch;
pub mod bake;
pub mod cache;
pub mod chain;
pub mod checkpoint;
pub mod cli;
pub mod commands;
pub mod coremltools;
pub mod error;
pub mod gate;
pub mod lint;
pub mod mil;
pub mod mlpackage;
pub mod probe;
pub mod quant;
pub mod recipe;
pub mod runner;
pub mod smoke;
pub mod tokenizer;
pub mod ui;
