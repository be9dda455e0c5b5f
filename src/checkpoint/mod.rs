//! Where weights come from: a folder, a GGUF file, the Hugging Face hub, the sample model.

pub mod hub;
pub mod sample;
pub mod source;
