//! What a package's program means: an interpreter of ML Programs over a package's own `model.mlmodel` and
//! `weight.bin`.
//!
//! Owns the semantics of ops. A function is resolved once ([`Program::load`]): names become slots, consts become
//! values that point into the mapped blob file, every op is looked up in the [`registry`]. Running it is a loop over
//! its ops. candle-core holds the tensors; products with weights are computed from the weights as they are stored
//! ([`product`]), never from a float32 copy of a whole matrix.
//!
//! Floats are held as f32 whatever their dtype. [`Arithmetic`] says what is rounded.

mod call;
mod constant;
mod function;
mod headroom;
mod ops;
mod product;
mod program;
mod registry;
mod value;

use std::fmt;
use std::str::FromStr;

pub use function::{Inputs, Outputs, States};
pub use headroom::{Headroom, OpHeadroom};
pub use program::Program;
pub use value::{Dtype, Value};

/// What happens to the result of an op that the program declares as float16. Sums, products and functions are always
/// computed in float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// Nothing is rounded: what the graph means.
    F32,
    /// Every result is rounded to the dtype that the program declares for it: the best that a device can do.
    #[default]
    Fp16,
}

impl Arithmetic {
    /// Both.
    pub const ALL: [Self; 2] = [Self::F32, Self::Fp16];

    /// The command line's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Fp16 => "fp16",
        }
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Arithmetic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|a| a.as_str() == text).ok_or_else(|| format!("`{text}` is none of f32, fp16"))
    }
}

/// Types of the ops that the interpreter has, sorted; `const` and those that read and write states are always there.
pub fn op_types() -> Vec<&'static str> {
    let mut names: Vec<_> = registry::registry().names().chain(ops::constexpr::names()).collect();
    names.sort_unstable();
    names
}

/// The most elements that a constant may have.
const MOST_ELEMENTS: usize = 1 << 28;
/// The most elements that the result of an op may have, 512 MiB of floats; a program that asks for more is refused
/// before anything is allocated. What a package stores is bounded by its size, what it computes is not.
const MOST_RESULT: usize = 1 << 27;
/// The most elements of all results that are alive at once.
const MOST_ALIVE: usize = 1 << 29;
/// The most axes that a value may have. Core ML has five.
const MOST_AXES: usize = 16;

/// The number of elements of `shape`.
///
/// # Errors
/// More than any real model needs.
fn elements(shape: &[usize]) -> anyhow::Result<usize> {
    anyhow::ensure!(shape.len() <= MOST_AXES, "a value of {} axes", shape.len());
    // An axis of size 0 must not hide a product that overflows: sizes are multiplied before it is known.
    let sizes = shape.iter().map(|&size| size.max(1));
    let product = sizes.into_iter().try_fold(1usize, |product, size| product.checked_mul(size));
    product
        .filter(|&count| count <= MOST_ELEMENTS)
        .map(|count| if shape.contains(&0) { 0 } else { count })
        .ok_or_else(|| anyhow::anyhow!("a value of shape {shape:?} is too large"))
}

/// The number of elements of the result of an op.
///
/// # Errors
/// More than the interpreter computes.
fn result_elements(shape: &[usize]) -> anyhow::Result<usize> {
    let count = elements(shape)?;
    anyhow::ensure!(count <= MOST_RESULT, "a result of shape {shape:?} is too large");
    Ok(count)
}
