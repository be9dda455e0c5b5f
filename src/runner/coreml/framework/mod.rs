//! The calls.
//!
//! Every way in goes through [`guarded`]: an autorelease pool of its own, and an Objective-C exception becomes an error.

mod arrays;
mod completion;
mod model;
mod plan;

use std::panic::AssertUnwindSafe;
use std::path::Path;

use anyhow::{Context, Result};
use objc2::exception;
use objc2::rc::{Retained, autoreleasepool};
use objc2_core_ml::{MLAllComputeDevices, MLComputeUnits, MLModel, MLModelConfiguration};
use objc2_foundation::{NSError, NSException, NSString, NSURL, NSUnderlyingErrorKey};

use super::{ComputeUnits, Device, Failure, OLDEST};
use crate::error::Fault;

pub(super) use model::{DeviceState, LoadedFunction};
pub(super) use plan::plan;

use completion::Completion;

/// How far an error is followed to those that led to it.
const CAUSES: usize = 4;

/// Whether this system's Core ML has what is called here: before macOS 15 there are no states, and the classes are missing.
pub(super) fn check() -> Result<()> {
    if cfg!(target_os = "macos") && !objc2::available!(macos = 15.0) {
        return Err(Fault::environment(format!("this version of macOS has no states; {OLDEST} or later is needed"))
            .with_hint("update macOS; packages of target macOS15 load nowhere else")
            .into());
    }
    Ok(())
}

/// Runs `calls` in an autorelease pool; `call` names what they do, as a verb.
fn guarded<T>(call: &'static str, calls: impl FnOnce() -> Result<T>) -> Result<T> {
    autoreleasepool(|_| match exception::catch(AssertUnwindSafe(calls)) {
        Ok(result) => result,
        Err(thrown) => Err(raised(call, thrown).into()),
    })
}

fn raised(call: &'static str, thrown: Option<Retained<exception::Exception>>) -> Failure {
    let thrown = thrown.map(|thrown| thrown.downcast::<NSException>());
    let (domain, text) = match thrown {
        Some(Ok(exception)) => {
            let reason = exception.reason().map(|reason| reason.to_string());
            (exception.name().to_string(), reason.unwrap_or_else(|| "no reason is given".to_owned()))
        }
        Some(Err(other)) => ("exception".to_owned(), format!("{other:?}")),
        None => ("exception".to_owned(), "nothing was thrown".to_owned()),
    };
    Failure { call, domain, code: None, text }
}

/// An error of Core ML's.
fn failed(call: &'static str, error: &NSError) -> anyhow::Error {
    let mut text = error.localizedDescription().to_string();
    let mut cause = underlying(error);
    for _ in 0..CAUSES {
        let Some(error) = cause else { break };
        text.push_str(&format!("; because: {} ({} {})", error.localizedDescription(), error.domain(), error.code()));
        cause = underlying(&error);
    }
    Failure { call, domain: error.domain().to_string(), code: Some(error.code() as i64), text }.into()
}

fn underlying(error: &NSError) -> Option<Retained<NSError>> {
    // SAFETY: a constant.
    let key = unsafe { NSUnderlyingErrorKey };
    error.userInfo().objectForKey(key)?.downcast().ok()
}

fn url(path: &Path) -> Result<Retained<NSURL>> {
    let text = path.to_str().with_context(|| format!("`{}` is not UTF-8", path.display()))?;
    Ok(NSURL::fileURLWithPath(&NSString::from_str(text)))
}

fn configuration(units: ComputeUnits, function: Option<&str>) -> Retained<MLModelConfiguration> {
    let units = match units {
        ComputeUnits::Cpu => MLComputeUnits::CPUOnly,
        ComputeUnits::CpuAndGpu => MLComputeUnits::CPUAndGPU,
        ComputeUnits::CpuAndAne => MLComputeUnits::CPUAndNeuralEngine,
        ComputeUnits::All => MLComputeUnits::All,
    };
    // SAFETY: a new object and two of its setters.
    unsafe {
        let configuration = MLModelConfiguration::new();
        configuration.setComputeUnits(units);
        if let Some(function) = function {
            configuration.setFunctionName(Some(&NSString::from_str(function)));
        }
        configuration
    }
}

/// Compiles a package to the folder `to`, which does not exist yet.
pub(super) fn compile(package: &Path, to: &Path) -> Result<()> {
    guarded("compile", || {
        let (compiled, handler) = Completion::<NSURL>::new("compile");
        // SAFETY: the URL lives until the call returns; Core ML copies the block.
        unsafe { MLModel::compileModelAtURL_completionHandler(&*url(package)?, &handler) };
        let compiled = compiled.wait()?.path().context("the compiled model has no path")?.to_string();
        move_folder(Path::new(&compiled), to)
            .with_context(|| format!("cannot move the compiled model to `{}`", to.display()))
    })
}

/// Renames a folder; copies it where it lies on another volume.
fn move_folder(from: &Path, to: &Path) -> Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {}
        renamed => return Ok(renamed?),
    }
    for entry in walkdir::WalkDir::new(from) {
        let entry = entry?;
        let path = to.join(entry.path().strip_prefix(from)?);
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(path)?;
        } else {
            std::fs::copy(entry.path(), path)?;
        }
    }
    Ok(std::fs::remove_dir_all(from)?)
}

/// The processors that Core ML lists.
pub(super) fn devices() -> Result<Vec<Device>> {
    guarded("list the compute devices", || {
        // SAFETY: takes nothing.
        let devices = unsafe { MLAllComputeDevices() };
        Ok(devices.iter().map(|device| plan::kind(&device)).collect())
    })
}
