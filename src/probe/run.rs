//! Core ML on every rung, and what the answers are.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::check::check;
use super::recommend::{Answer, Recommendation, recommend};
use super::scrub::Scrub;
use super::{About, Checked, MadeBy, Rung};
use crate::cache::Digest;
use crate::mil::Arithmetic;
use crate::runner::coreml::System;
use crate::runner::{ReferenceRunner, Runner};
use crate::smoke::{Options, PackageReport, Subject, Verdict, judge};

/// Version of the results' schema.
const SCHEMA: u32 = 1;

/// What a machine was found to take. Holds nothing that tells whose machine it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// Version of the schema.
    pub schema: u32,
    /// Version of anebake.
    pub anebake: String,
    /// What made the packages.
    pub made_by: MadeBy,
    /// The machine; absent where Core ML was not asked.
    pub system: Option<System>,
    /// Every rung that was asked for.
    pub rungs: Vec<RungResult>,
    /// The best recipe for this machine, if a whole block was right.
    pub recommendation: Option<Recommendation>,
}

/// What became of a rung.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungResult {
    /// The rung.
    #[serde(flatten)]
    pub about: About,
    /// Hash of its package.
    pub package_sha256: Digest,
    /// The reference runner beside the oracle.
    pub reference: Checked,
    /// Whether rounding explains the difference.
    pub agrees: bool,
    /// What Core ML made of it, in a word.
    pub answer: Answer,
    /// What Core ML made of it.
    pub core_ml: PackageReport,
}

/// Has the reference runner do a rung's calls and compares with the oracle's outputs; then has Core ML do them in a process
/// of their own, where there is one.
///
/// # Errors
/// An input fault where the rung's files are damaged; the process cannot be started. A rung that fails on Core ML is no
/// error.
pub fn run(folder: &Path, rung: &Rung, options: &Options) -> Result<(Checked, PackageReport)> {
    let package = rung.about.package(folder);
    let model = ReferenceRunner::new(Arithmetic::Fp16).open(&package)?;
    let cases = rung.cases(folder, model.functions())?;
    let checked = check(model.as_ref(), rung, &cases)?;
    drop(model);
    Ok((checked, judge(&Subject { package, cases }, options)?))
}

/// What a report says, in a word.
pub fn answer(report: &PackageReport) -> Answer {
    match report.verdict {
        Verdict::Skipped(_) => Answer::Unasked,
        Verdict::Fail if report.measured.trouble.is_some() => Answer::Failed,
        Verdict::Fail => Answer::Wrong,
        Verdict::Pass => {
            let measured = &report.measured;
            let planned = |name: &String| {
                measured
                    .placement
                    .iter()
                    .any(|placement| placement.function == *name && placement.all_preferred_on_ane())
            };
            if measured.functions.iter().all(planned) { Answer::Ane } else { Answer::Mixed }
        }
    }
}

impl Results {
    /// The results of rungs; `system` where Core ML was asked.
    ///
    /// # Errors
    /// None that is known: a report is written and read again without its names and paths.
    pub fn new(made_by: &MadeBy, system: Option<System>, rungs: Vec<(&Rung, Checked, PackageReport)>) -> Result<Self> {
        let scrub = Scrub::of_this_machine();
        let rungs = rungs
            .into_iter()
            .map(|(rung, reference, report)| {
                let mut value = serde_json::to_value(&report)?;
                scrub.value(&mut value);
                Ok(RungResult {
                    about: rung.about.clone(),
                    package_sha256: rung.package_sha256,
                    reference,
                    agrees: reference.agrees(),
                    answer: answer(&report),
                    core_ml: serde_json::from_value::<PackageReport>(value)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let answers: Vec<(&About, Answer)> = rungs.iter().map(|rung| (&rung.about, rung.answer)).collect();
        let recommendation = recommend(&answers);
        let anebake = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Self { schema: SCHEMA, anebake, made_by: made_by.clone(), system, rungs, recommendation })
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }

    /// Whether the reference runner agrees with the oracle everywhere.
    pub fn agrees(&self) -> bool {
        self.rungs.iter().all(|rung| rung.agrees)
    }
}
