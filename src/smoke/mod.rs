//! Smoke: whether packages run on Core ML, where their ops are planned to run, and whether their numbers are right.
//!
//! Each package is tried in a child process with a time limit, because a failed compilation for the Neural Engine can kill
//! the process at the first prediction; signals and hangs are results like any other. Expected outputs come from the
//! reference runner on the same inputs. Owns the child, its protocol, the verdict and the report. How Core ML is called is
//! left to `runner::coreml`, what an error has meant before to `lint`.
//!
//! What a plan prefers is not what ran: Core ML tells nobody where an op ran.

mod chain;
mod child;
mod event;
mod numerics;
mod output;
mod package;
mod process;
mod record;
mod report;
mod request;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::recipe::{Requirement, Smoke};
use crate::runner::Arrays;
use crate::runner::coreml::{ComputeUnits, unavailable};

pub use chain::ChainReport;
pub use child::run as run_child;
pub use event::Stage;
pub use numerics::Comparison;
pub use output::{Scope, judge_output};
pub use package::{Cause, FunctionNumerics, FunctionTimes, Hint, Measured, PackageReport, Times, Trouble};
pub use process::CHILD;
pub use report::SmokeReport;
pub use verdict::Verdict;

use process::Program;

/// A call, and what it should give.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The function.
    pub function: String,
    /// Its inputs.
    pub inputs: Arrays,
    /// Its outputs, from the reference runner.
    pub expected: Arrays,
    /// Whether it begins with new states; otherwise those of the case before it go on.
    pub fresh: bool,
}

/// What is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// A `.mlpackage` folder.
    pub package: PathBuf,
    /// The calls, in order.
    pub cases: Vec<Case>,
}

impl Subject {
    /// The functions that are called, in the order of their first call.
    fn functions(&self) -> Vec<String> {
        let mut functions: Vec<String> = Vec::new();
        for case in &self.cases {
            if !functions.contains(&case.function) {
                functions.push(case.function.clone());
            }
        }
        functions
    }
}

/// How it is judged.
#[derive(Clone, Debug)]
pub struct Options {
    /// What Core ML may use.
    pub units: ComputeUnits,
    /// How long a package may take.
    pub time_limit: Duration,
    /// Timed calls of each function.
    pub repeat: usize,
    /// What counts.
    pub require: Vec<Requirement>,
    /// Least cosine between an output and the reference's, where numerics count.
    pub min_cosine: f64,
    /// anebake's cache folder: compiled models are kept there, requests for a while.
    pub cache: PathBuf,
}

impl Options {
    /// The least that a package may take before it is taken to hang: compilers for the Neural Engine take minutes.
    pub const TIME_LIMIT: Duration = Duration::from_secs(300);

    /// With what a recipe asks for.
    pub fn new(smoke: &Smoke, cache: PathBuf) -> Self {
        Self {
            units: ComputeUnits::default(),
            time_limit: Self::TIME_LIMIT,
            repeat: 20,
            require: smoke.require.clone(),
            min_cosine: smoke.min_cosine,
            cache,
        }
    }
}

/// Judges one package in a child process of this program; skipped where there is no Core ML.
///
/// # Errors
/// The child cannot be started, or its request cannot be written. A package that fails is no error.
pub fn judge(subject: &Subject, options: &Options) -> Result<PackageReport> {
    if let Some(why) = unavailable() {
        return Ok(PackageReport::skipped(subject, options.units, why));
    }
    package::judge(subject, options, &Program::this()?)
}
