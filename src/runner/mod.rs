//! Running packages: what a runner can do, and the chain of packages that is a language model.
//!
//! Owns the interface that every runner has ([`Runner`], [`Model`]), how blocks are chained ([`Chain`]), and how Core ML
//! is called ([`coreml`]). What an op means is left to `mil`.

mod chain;
pub mod coreml;
pub mod generate;
mod held;
pub mod memory;
pub mod random;
mod reference;
mod sampler;
mod step;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use crate::mlpackage::inventory::FunctionInfo;

pub use chain::{Chain, Rows, Session};
pub use held::{Held, OnDevice};
pub use reference::{ReferenceRunner, Replacements};
pub use sampler::{Sampler, Sampling, greedy};

/// Opens packages so that they can be run.
pub trait Runner {
    /// Loads a package.
    ///
    /// # Errors
    /// An input fault that names the package: it is malformed, or uses an op that this runner lacks.
    fn open(&self, package: &Path) -> Result<Box<dyn Model>>;
}

/// A package that can be run.
pub trait Model: Send + Sync {
    /// Interface of every function.
    fn functions(&self) -> &[FunctionInfo];

    /// States as they are before the first call: zeros.
    ///
    /// # Errors
    /// They cannot be made.
    fn new_state(&self) -> Result<State>;

    /// Brings the input `name`, which many calls share, to where the device reads it. What comes back stands for the same
    /// values.
    ///
    /// # Errors
    /// The device does not take it.
    fn hold(&self, name: &str, array: Array) -> Result<Array> {
        let _ = name;
        Ok(array)
    }

    /// Runs `function`; `state` is updated in place.
    ///
    /// # Errors
    /// There is no such function, an input is missing, unknown or of another shape, or an op fails.
    fn predict(&self, function: &str, inputs: &Arrays, state: &mut State) -> Result<Arrays>;
}

/// The states of one conversation with one package; only the runner that made them can read them.
pub struct State(Box<dyn Any + Send>);

impl State {
    /// Wraps a runner's own states.
    pub fn new<T: Any + Send>(states: T) -> Self {
        Self(Box::new(states))
    }

    /// The states, if `T` is what they are.
    pub fn downcast_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.downcast_mut()
    }
}

/// Inputs or outputs by name.
pub type Arrays = BTreeMap<String, Array>;

/// An input or output, row-major. Floats are exact images of what a package holds, whatever its dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Shape.
    pub shape: Vec<usize>,
    /// Values.
    pub data: Data,
}

/// Values of an array.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// float16 or float32.
    Float(Vec<f32>),
    /// Integers and bools.
    Int(Vec<i32>),
    /// Floats that a device keeps.
    Held(Held),
}

impl Array {
    /// Floats. Panics where `shape` does not hold as many values.
    pub fn float(shape: &[usize], values: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?}");
        Self { shape: shape.to_vec(), data: Data::Float(values) }
    }

    /// Integers. Panics where `shape` does not hold as many values.
    pub fn int(shape: &[usize], values: Vec<i32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?}");
        Self { shape: shape.to_vec(), data: Data::Int(values) }
    }

    /// The floats; those that a device keeps are read from it.
    ///
    /// # Errors
    /// It holds integers, or the device does not give them.
    pub fn floats(&self) -> Result<&[f32]> {
        match &self.data {
            Data::Float(values) => Ok(values),
            Data::Held(held) => held.floats(),
            Data::Int(_) => bail!("integers where floats were expected"),
        }
    }

    /// The floats, to be changed; those that a device keeps are copied from it first.
    ///
    /// # Errors
    /// It holds integers, or the device does not give them.
    pub fn floats_mut(&mut self) -> Result<&mut [f32]> {
        if let Data::Held(held) = &self.data {
            self.data = Data::Float(held.floats()?.to_vec());
        }
        match &mut self.data {
            Data::Float(values) => Ok(values),
            Data::Held(_) | Data::Int(_) => bail!("integers where floats were expected"),
        }
    }
}
