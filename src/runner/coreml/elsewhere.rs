//! What stands for Core ML where it is not: every way in says so.

use std::path::Path;

use anyhow::Result;

use super::{ComputeUnits, Device, NEEDS_MACOS, OpPlacement};
use crate::error::Fault;
use crate::mlpackage::inventory::FunctionInfo;
use crate::runner::{Array, Arrays};

fn elsewhere() -> anyhow::Error {
    Fault::environment(NEEDS_MACOS)
        .with_hint("copy the output folder to a Mac and run the same command there; it needs no Python")
        .into()
}

pub(super) fn check() -> Result<()> {
    Err(elsewhere())
}

pub(super) fn devices() -> Result<Vec<Device>> {
    Err(elsewhere())
}

pub(super) fn compile(_package: &Path, _to: &Path) -> Result<()> {
    Err(elsewhere())
}

pub(super) fn plan(_compiled: &Path, _units: ComputeUnits, _function: Option<&str>) -> Result<Vec<OpPlacement>> {
    Err(elsewhere())
}

/// There is none.
pub(super) enum LoadedFunction {}

/// There are none.
pub(super) enum DeviceState {}

impl LoadedFunction {
    pub(super) fn load(_compiled: &Path, _units: ComputeUnits, _function: Option<&str>) -> Result<Self> {
        Err(elsewhere())
    }

    pub(super) fn new_state(&self) -> Result<DeviceState> {
        match *self {}
    }

    pub(super) fn hold(&self, _array: Array) -> Result<Array> {
        match *self {}
    }

    pub(super) fn predict(
        &self,
        _function: &FunctionInfo,
        _inputs: &Arrays,
        state: &mut DeviceState,
    ) -> Result<Arrays> {
        match *state {}
    }
}
