//! One package: from what its child told to a report.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::event::{Event, Stage};
use super::process::{self, End, Program, Ran};
use super::request::{ArrayWriter, Request, Task};
use super::verdict::{Verdict, failures};
use super::{Options, Subject};
use crate::lint::symptom;
use crate::runner::coreml::{ComputeUnits, Placement};

/// What is known of a package on Core ML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageReport {
    /// Folder name of the package.
    pub package: String,
    /// Whether all that counts was seen.
    pub verdict: Verdict,
    /// What was not seen, in words.
    pub failures: Vec<String>,
    /// What was measured.
    pub measured: Measured,
}

/// What was measured on a package.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Functions that were called.
    pub functions: Vec<String>,
    /// What Core ML might use.
    pub units: ComputeUnits,
    /// Stages that were done, in order.
    pub done: Vec<Stage>,
    /// What went wrong, if something did.
    pub trouble: Option<Trouble>,
    /// Outputs beside the reference's, function by function.
    pub numerics: Vec<FunctionNumerics>,
    /// Where ops are planned to run, function by function. Where they ran is not known.
    pub placement: Vec<Placement>,
    /// How long things took.
    pub times: Times,
    /// The most memory that the child process had at once, in bytes.
    pub memory: Option<u64>,
}

/// How a child that did not end well ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// In which stage.
    pub stage: Option<Stage>,
    /// In which way.
    pub cause: Cause,
    /// The error's text, the signal's name, or the limit.
    pub text: String,
    /// Domain of an error of Core ML's, or the name of an exception.
    pub domain: Option<String>,
    /// Code of an error of Core ML's.
    pub code: Option<i64>,
    /// The last lines that the child wrote on stderr.
    pub log: Vec<String>,
    /// What it has meant before.
    pub hint: Option<Hint>,
}

/// The ways in which a child does not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// An error or exception.
    Error,
    /// A signal killed it.
    Signal,
    /// It did not end within its time limit.
    Timeout,
    /// It ended without a word.
    Exit,
}

/// A known failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hint {
    /// Name.
    pub id: String,
    /// What it means.
    pub means: String,
    /// What to do.
    pub fix: String,
    /// Where it was seen.
    pub evidence: String,
}

/// The outputs of one function beside the reference's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionNumerics {
    /// The function.
    pub function: String,
    /// Calls that were made.
    pub calls: usize,
    /// Calls that were to be made.
    pub of: usize,
    /// Lowest cosine of an output; absent where none has one.
    pub min_cosine: Option<f64>,
    /// Largest difference of two finite values.
    pub largest_error: f32,
    /// Values that are NaN or infinite, and are finite in the reference.
    pub not_finite: usize,
}

/// Seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Package to compiled model.
    pub compile: Option<f64>,
    /// Whether an earlier run had compiled it.
    pub compiled_before: bool,
    /// Each function.
    pub functions: Vec<FunctionTimes>,
}

/// Seconds of one function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionTimes {
    /// The function.
    pub function: String,
    /// Loading, the Neural Engine's compiler included where the system does not remember its result.
    pub load: Option<f64>,
    /// The first call.
    pub first: Option<f64>,
    /// Median of the timed calls.
    pub steady: Option<f64>,
}

impl Hint {
    /// The first known failure among texts.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let known = texts.into_iter().find_map(symptom)?;
        Some(Self {
            id: known.id.to_owned(),
            means: known.means.to_owned(),
            fix: known.fix.to_owned(),
            evidence: known.evidence.to_owned(),
        })
    }
}

impl Trouble {
    /// How a child ended, unless it ended well.
    pub(super) fn of(ran: &Ran) -> Option<Self> {
        let stage = ran.events.iter().rev().find_map(|event| match event {
            Event::Begun { stage } => Some(*stage),
            _ => None,
        });
        let failed = ran.events.iter().find_map(|event| match event {
            Event::Failed { text, domain, code } => Some((text.clone(), domain.clone(), *code)),
            _ => None,
        });
        let well = ran.end == End::Exit(0) && ran.garbage.is_none();
        let (cause, text, domain, code) = match (failed, &ran.end) {
            (Some((text, domain, code)), _) => (Cause::Error, text, domain, code),
            (None, End::Signal(name)) => (Cause::Signal, name.clone(), None, None),
            (None, End::Timeout(limit)) => (Cause::Timeout, format!("{} s", limit.as_secs_f64()), None, None),
            (None, End::Exit(_)) if well && ran.events.last() == Some(&Event::Done) => return None,
            (None, End::Exit(status)) => match &ran.garbage {
                Some(line) => (Cause::Exit, format!("it told `{line}`, which is no event"), None, None),
                None => (Cause::Exit, format!("exit status {status} without a result"), None, None),
            },
        };
        let looked_up = if cause == Cause::Timeout { "timeout" } else { &text };
        // What the frameworks wrote before the end is more particular than the name of a signal.
        let log = ran.log.join("\n");
        let texts = if cause == Cause::Error { [looked_up, &log] } else { [&log, looked_up] };
        let hint = Hint::of(texts);
        Some(Self { stage, cause, text, domain, code, log: ran.log.clone(), hint })
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stage {
            Some(stage) => write!(f, "{stage}: ")?,
            None => f.write_str("start: ")?,
        }
        match self.cause {
            Cause::Error | Cause::Exit => f.write_str(&self.text),
            Cause::Signal => write!(f, "killed by {}", self.text),
            Cause::Timeout => write!(f, "no end after {}", self.text),
        }
    }
}

/// Judges a package.
pub(super) fn judge(subject: &Subject, options: &Options, program: &Program) -> Result<PackageReport> {
    let package = subject.package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = scratch(options)?;
    let mut writer = ArrayWriter::new(folder.path())?;
    let cases = subject.cases.iter().map(|case| writer.case(case)).collect::<Result<Vec<_>>>()?;
    writer.finish()?;
    let ask = |folder: &Path, task| {
        Request { cache: options.cache.clone(), units: options.units, task }.write(folder)?;
        process::run(program, folder, options.time_limit)
    };
    let package_path = std::path::absolute(&subject.package)?;
    let task = Task::Package { package: package_path.clone(), cases, repeat: options.repeat };
    let ran = ask(folder.path(), task)?;
    let mut measured = Measured::of(subject, options.units, &ran);
    let compiled = measured.done.contains(&Stage::Compile);
    if measured.trouble.is_some() && compiled && measured.placement.is_empty() {
        // It died before its plan: where its ops would go may tell why.
        let folder = scratch(options)?;
        let ran = ask(folder.path(), Task::Package { package: package_path, cases: Vec::new(), repeat: 0 })?;
        measured.placement = placements(&ran, &measured.functions);
    }
    let failures = failures(&measured, &options.require, options.min_cosine);
    let verdict = if failures.is_empty() { Verdict::Pass } else { Verdict::Fail };
    Ok(PackageReport { package, verdict, failures, measured })
}

/// A folder for a request; it goes away with the report.
pub(super) fn scratch(options: &Options) -> Result<crate::cache::TempDir> {
    let root = options.cache.join("smoke-v1");
    std::fs::create_dir_all(&root)?;
    crate::cache::sweep_stale(&root);
    crate::cache::TempDir::new_in(&root)
}

impl PackageReport {
    /// Nothing was done.
    pub(super) fn skipped(subject: &Subject, units: ComputeUnits, why: String) -> Self {
        Self {
            package: subject.package.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            verdict: Verdict::Skipped(why),
            failures: Vec::new(),
            measured: Measured { functions: subject.functions(), units, ..Measured::default() },
        }
    }
}

impl Measured {
    fn of(subject: &Subject, units: ComputeUnits, ran: &Ran) -> Self {
        let functions = subject.functions();
        let mut found = Self {
            trouble: Trouble::of(ran),
            placement: placements(ran, &functions),
            functions,
            units,
            ..Self::default()
        };
        let mut stage = None;
        for event in &ran.events {
            match event {
                Event::Begun { stage: next } => stage = Some(*next),
                _ => found.done.extend(stage.take().filter(|stage| !found.done.contains(stage))),
            }
            found.add(event);
        }
        // A failure ends a stage, and does not do it.
        if let Some(stage) =
            found.trouble.as_ref().filter(|trouble| trouble.cause == Cause::Error).and_then(|t| t.stage)
        {
            found.done.retain(|done| *done != stage);
        }
        for numerics in &mut found.numerics {
            numerics.of = subject.cases.iter().filter(|case| case.function == numerics.function).count();
        }
        found
    }

    fn add(&mut self, event: &Event) {
        match event {
            Event::Compiled { seconds, cached } => {
                (self.times.compile, self.times.compiled_before) = (Some(*seconds), *cached);
            }
            Event::Loaded { function, seconds } => self.times(function).load = Some(*seconds),
            Event::Predicted { function, seconds, outputs } => {
                self.times(function).first.get_or_insert(*seconds);
                let numerics = self.numerics(function);
                numerics.calls += 1;
                for output in outputs {
                    numerics.min_cosine = match (numerics.min_cosine, output.cosine) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                    numerics.largest_error = numerics.largest_error.max(output.largest_error);
                    numerics.not_finite += output.not_finite;
                }
            }
            Event::Repeated { function, seconds } => self.times(function).steady = median(seconds),
            Event::Memory { bytes } => self.memory = Some(*bytes),
            _ => {}
        }
    }

    fn times(&mut self, function: &str) -> &mut FunctionTimes {
        let all = &mut self.times.functions;
        let index = all.iter().position(|times| times.function == function).unwrap_or_else(|| {
            all.push(FunctionTimes { function: function.to_owned(), ..FunctionTimes::default() });
            all.len() - 1
        });
        &mut all[index]
    }

    fn numerics(&mut self, function: &str) -> &mut FunctionNumerics {
        let index = self.numerics.iter().position(|found| found.function == function).unwrap_or_else(|| {
            self.numerics.push(FunctionNumerics {
                function: function.to_owned(),
                calls: 0,
                of: 0,
                min_cosine: None,
                largest_error: 0.0,
                not_finite: 0,
            });
            self.numerics.len() - 1
        });
        &mut self.numerics[index]
    }

    /// Seconds that all functions took to load.
    pub fn load_seconds(&self) -> Option<f64> {
        self.times.functions.iter().filter_map(|times| times.load).reduce(|a, b| a + b)
    }
}

/// Plans that a child told of.
fn placements(ran: &Ran, functions: &[String]) -> Vec<Placement> {
    let planned = ran.events.iter().filter_map(|event| match event {
        Event::Planned { placement } => Some(placement.clone()),
        _ => None,
    });
    planned.filter(|placement| functions.contains(&placement.function)).collect()
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    crate::gate::verdict::quantile(values, 0.5)
}
