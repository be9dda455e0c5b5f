//! Core ML: the only module that calls it.
//!
//! Owns compiling, loading and running packages on macOS, what the compute plan says of each op, and facts about the
//! machine. [`framework`] alone calls Apple's code; everywhere else it is replaced by `elsewhere`, which says that macOS is
//! needed. What a result means is left to `smoke`.
//!
//! Arrays live in IOSurface-backed buffers. What a call writes is handed to the next call as it is
//! ([`Data::Held`]); it is read when somebody asks for its values. A failed compilation for the Neural
//! Engine can kill the process at the first prediction: call this from a child process where that matters.

mod compiled;
mod failure;
#[cfg(coreml)]
mod framework;
#[cfg(not(coreml))]
#[path = "elsewhere.rs"]
mod framework;
mod inputs;
#[cfg(any(coreml, test))]
mod layout;
mod placement;
mod system;
mod units;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Array, Arrays, Data, Model, Runner, State};
use crate::error::{Fault, OrFault};
use crate::mlpackage::Package;
use crate::mlpackage::inventory::FunctionInfo;

pub use compiled::{Compiled, CompiledModels};
pub use failure::Failure;
pub use placement::{Device, Elsewhere, OpPlacement, Placement};
pub use system::System;
pub use units::ComputeUnits;

use framework::{DeviceState, LoadedFunction};

/// Why nothing runs here.
pub const NEEDS_MACOS: &str = "Core ML needs macOS";

/// The oldest version of macOS whose Core ML has states and functions.
#[cfg(coreml)]
const OLDEST: &str = "macOS 15";

/// Why Core ML cannot be called here; none where it can.
pub fn unavailable() -> Option<String> {
    framework::check().err().map(|error| error.to_string())
}

/// Runs packages on Core ML.
#[derive(Clone, Debug)]
pub struct CoreMlRunner {
    units: ComputeUnits,
    compiled: CompiledModels,
    system: System,
}

impl CoreMlRunner {
    /// A runner that may use `units`; compiled models are kept in anebake's cache folder `cache`.
    ///
    /// # Errors
    /// An environment fault: this is not macOS, or its version is too old.
    pub fn new(units: ComputeUnits, cache: &Path) -> Result<Self> {
        framework::check()?;
        let devices = framework::devices()?;
        let system = System { devices, ..System::of_this_machine() };
        Ok(Self { units, compiled: CompiledModels::new(cache, &system), system })
    }

    /// The machine.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// Compiles a package, unless an earlier run did.
    ///
    /// # Errors
    /// The package or the cache is at fault, or Core ML refuses the package ([`Failure`]).
    pub fn compile(&self, package: &Path) -> Result<Compiled> {
        self.compiled.get(package, &framework::compile)
    }

    /// Loads a function of a compiled package for execution.
    ///
    /// # Errors
    /// Core ML refuses it ([`Failure`]).
    pub fn load(&self, compiled: &Compiled, function: &FunctionInfo) -> Result<Function> {
        let name = function_name(function);
        Ok(Function { loaded: LoadedFunction::load(&compiled.path, self.units, name)?, info: function.clone() })
    }

    /// Where Core ML plans to run each op of a function.
    ///
    /// # Errors
    /// There is no plan ([`Failure`]), or it does not know the function.
    pub fn plan(&self, compiled: &Compiled, function: &FunctionInfo) -> Result<Vec<OpPlacement>> {
        framework::plan(&compiled.path, self.units, function_name(function))
    }
}

/// The name by which Core ML knows a function; none where it may be one that the package does not name.
fn function_name(function: &FunctionInfo) -> Option<&str> {
    let unnamed = function.default && function.name == "main";
    (!unnamed).then_some(&function.name)
}

impl Runner for CoreMlRunner {
    /// Compiles and loads all functions of a package.
    fn open(&self, package: &Path) -> Result<Box<dyn Model>> {
        let fault = || Fault::input(format!("cannot load the package `{}` on Core ML", package.display()));
        let functions = Package::open(package)?.functions()?;
        let compiled = self.compile(package).or_fault(fault)?;
        let load = |info: &FunctionInfo| Ok((info.name.clone(), self.load(&compiled, info)?));
        let loaded = functions.iter().map(load).collect::<Result<_>>().or_fault(fault)?;
        Ok(Box::new(CoreMlModel { functions, loaded }))
    }
}

/// A function of a package, ready to run.
pub struct Function {
    info: FunctionInfo,
    loaded: LoadedFunction,
}

impl Function {
    /// States as they are before the first call: zeros. All functions of a package take them.
    ///
    /// # Errors
    /// They cannot be made ([`Failure`]).
    pub fn new_state(&self) -> Result<State> {
        Ok(State::new(self.loaded.new_state()?))
    }

    /// Brings the input `name` to where the device reads it. Only float16 ones are brought there before they are used.
    ///
    /// # Errors
    /// There is no buffer for it ([`Failure`]).
    pub fn hold(&self, name: &str, array: Array) -> Result<Array> {
        let half = self.info.inputs.iter().any(|feature| feature.name == name && feature.dtype == "fp16");
        if half && matches!(array.data, Data::Float(_)) { self.loaded.hold(array) } else { Ok(array) }
    }

    /// Runs it once.
    ///
    /// # Errors
    /// An input is missing, unknown or of another shape; the states are another runner's; Core ML fails ([`Failure`]).
    pub fn predict(&self, inputs: &Arrays, state: &mut State) -> Result<Arrays> {
        inputs::check(&self.info, inputs)?;
        let state: &mut DeviceState = state.downcast_mut().context("the states are those of another runner")?;
        self.loaded.predict(&self.info, inputs, state)
    }
}

struct CoreMlModel {
    functions: Vec<FunctionInfo>,
    loaded: BTreeMap<String, Function>,
}

impl CoreMlModel {
    /// Any function: states and buffers are the same for all.
    fn any(&self) -> Result<&Function> {
        self.loaded.values().next().context("the package has no function")
    }
}

impl Model for CoreMlModel {
    fn functions(&self) -> &[FunctionInfo] {
        &self.functions
    }

    fn new_state(&self) -> Result<State> {
        self.any()?.new_state()
    }

    fn hold(&self, name: &str, array: Array) -> Result<Array> {
        self.any()?.hold(name, array)
    }

    fn predict(&self, function: &str, inputs: &Arrays, state: &mut State) -> Result<Arrays> {
        let Some(function) = self.loaded.get(function) else { bail!("there is no function `{function}`") };
        function.predict(inputs, state)
    }
}
