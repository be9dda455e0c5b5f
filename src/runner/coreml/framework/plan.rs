//! What the compute plan says of each op.

use std::path::Path;

use anyhow::{Context, Result};
use objc2::ClassType;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2_core_ml::{
    MLCPUComputeDevice, MLComputeDeviceProtocol, MLComputePlan, MLGPUComputeDevice, MLModelStructureProgramBlock,
    MLNeuralEngineComputeDevice,
};
use objc2_foundation::NSString;

use super::completion::Completion;
use super::{ComputeUnits, Device, configuration, guarded, url};
use crate::runner::coreml::OpPlacement;

/// The placement of the ops of `function`, or of the only one.
pub(in super::super) fn plan(compiled: &Path, units: ComputeUnits, function: Option<&str>) -> Result<Vec<OpPlacement>> {
    guarded("plan", || {
        let (plan, handler) = Completion::<MLComputePlan>::new("plan");
        // SAFETY: the arguments live until the call returns; Core ML copies the block.
        unsafe {
            MLComputePlan::loadContentsOfURL_configuration_completionHandler(
                &*url(compiled)?,
                &configuration(units, function),
                &handler,
            );
        }
        let plan = plan.wait()?;
        let mut ops = Vec::new();
        // SAFETY: getters.
        unsafe {
            let program = plan.modelStructure().program().context("the model is no ML Program")?;
            let functions = program.functions();
            let name = function.unwrap_or("main");
            let function = functions
                .objectForKey(&NSString::from_str(name))
                .with_context(|| format!("the compute plan has no function `{name}`"))?;
            walk(&plan, &function.block(), &mut ops);
        }
        Ok(ops)
    })
}

/// # Safety
/// `block` is one of `plan`'s.
unsafe fn walk(plan: &MLComputePlan, block: &MLModelStructureProgramBlock, ops: &mut Vec<OpPlacement>) {
    // SAFETY: getters.
    let operations = unsafe { block.operations() };
    for op in operations.iter() {
        // SAFETY: getters, and questions about one of the plan's ops.
        let (usage, cost, operator, outputs, blocks) = unsafe {
            (
                plan.computeDeviceUsageForMLProgramOperation(&op),
                plan.estimatedCostOfMLProgramOperation(&op).map(|cost| cost.weight()),
                op.operatorName().to_string(),
                op.outputs(),
                op.blocks(),
            )
        };
        // SAFETY: getters.
        let (preferred, supported, output) = unsafe {
            (
                usage.as_ref().map(|usage| kind(&usage.preferredComputeDevice())),
                usage.as_ref().map(|usage| usage.supportedComputeDevices()),
                outputs.firstObject().map(|output| output.name().to_string()).unwrap_or_default(),
            )
        };
        let supported = supported.map(|devices| devices.iter().map(|device| kind(&device)).collect());
        ops.push(OpPlacement { operator, output, preferred, supported: supported.unwrap_or_default(), cost });
        for nested in blocks.iter() {
            // SAFETY: it is one of the plan's.
            unsafe { walk(plan, &nested, ops) };
        }
    }
}

/// Which processor a device is.
pub(super) fn kind(device: &ProtocolObject<dyn MLComputeDeviceProtocol>) -> Device {
    if device.isKindOfClass(MLNeuralEngineComputeDevice::class()) {
        Device::Ane
    } else if device.isKindOfClass(MLGPUComputeDevice::class()) {
        Device::Gpu
    } else if device.isKindOfClass(MLCPUComputeDevice::class()) {
        Device::Cpu
    } else {
        Device::Other
    }
}
