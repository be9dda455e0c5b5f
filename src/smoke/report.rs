//! What smoke found: for people and, as JSON, for programs and other people. No path and no name of a machine is in it.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Options;
use super::chain::ChainReport;
use super::package::{Hint, Measured, PackageReport, Trouble};
use super::verdict::Verdict;
use crate::bake::manifest::BakeManifest;
use crate::cache::Digest;
use crate::recipe::Requirement;
use crate::runner::coreml::{ComputeUnits, Device, System};

/// Version of the report's schema.
const SCHEMA: u32 = 1;
/// Kinds of ops that are listed where they are planned elsewhere.
const KINDS: usize = 8;

/// The verdict and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmokeReport {
    /// Version of the format.
    pub schema: u32,
    /// Version of anebake.
    pub anebake: String,
    /// Whether all packages and the chain passed.
    pub verdict: Verdict,
    /// Name of the recipe, where it is known.
    pub recipe: Option<String>,
    /// What counted.
    pub require: Vec<Requirement>,
    /// Least cosine, where numerics counted.
    pub min_cosine: f64,
    /// What Core ML might use.
    pub units: ComputeUnits,
    /// The machine; absent where nothing was run.
    pub system: Option<System>,
    /// Hash of each package of the output, so that it can be told which bake this speaks of.
    pub content: BTreeMap<String, Digest>,
    /// Each package.
    pub packages: Vec<PackageReport>,
    /// The whole chain, where it was run.
    pub chain: Option<ChainReport>,
}

impl SmokeReport {
    /// Nothing judged yet.
    pub(super) fn new(manifest: Option<&BakeManifest>, options: &Options) -> Self {
        let content = manifest.iter().flat_map(|manifest| manifest.packages());
        Self {
            schema: SCHEMA,
            anebake: env!("CARGO_PKG_VERSION").to_owned(),
            verdict: Verdict::Fail,
            recipe: manifest.and_then(|manifest| Some(manifest.recipe["name"].as_str()?.to_owned())),
            require: options.require.clone(),
            min_cosine: options.min_cosine,
            units: options.units,
            system: None,
            content: content.map(|record| (record.path.clone(), record.sha256)).collect(),
            packages: Vec::new(),
            chain: None,
        }
    }

    /// Nothing was run.
    pub fn skipped(manifest: Option<&BakeManifest>, options: &Options, why: &str) -> Self {
        Self { verdict: Verdict::Skipped(why.to_owned()), ..Self::new(manifest, options) }
    }

    /// A report that a manifest keeps; none where it is of another version.
    pub fn recorded(value: &Value) -> Option<Self> {
        serde_json::from_value(value.clone()).ok().filter(|report: &Self| report.schema == SCHEMA)
    }

    /// The verdict, once everything is in.
    pub(super) fn finish(&mut self) {
        let chain = self.chain.iter().map(|chain| &chain.verdict);
        self.verdict = Verdict::of_all(self.packages.iter().map(|package| &package.verdict).chain(chain));
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that can be thought of.
    pub fn to_value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }

    /// Headings of [`Self::rows`]. The ANE columns are what the plan prefers, not what ran.
    pub const HEADER: [&'static str; 10] = [
        "package",
        "verdict",
        "function",
        "min cosine",
        "max error",
        "ops for ANE",
        "cost for ANE",
        "load",
        "first",
        "steady",
    ];

    /// Columns of [`Self::rows`] that hold numbers.
    pub const NUMBERS: [usize; 7] = [3, 4, 5, 6, 7, 8, 9];

    /// A row for each function of each package.
    pub fn rows(&self) -> Vec<Vec<String>> {
        self.packages.iter().flat_map(PackageReport::rows).collect()
    }

    /// What else there is to say, line by line: failures with hints, ops that are planned elsewhere, the chain, the verdict.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut hinted = Vec::new();
        let chain = self.chain.iter().map(|chain| ("chain", &chain.failures, &chain.trouble));
        let packages =
            self.packages.iter().map(|report| (&*report.package, &report.failures, &report.measured.trouble));
        for (name, failures, trouble) in packages.chain(chain) {
            lines.extend(failures.iter().map(|failure| format!("{name}: {failure}")));
            if let Some(trouble) = trouble {
                lines.extend(trouble.lines(&mut hinted));
            }
        }
        lines.extend(self.elsewhere());
        lines.extend(self.chain.as_ref().map(ChainReport::summary));
        lines.push(self.summary());
        lines
    }

    /// Kinds of ops that plans put elsewhere than on the Neural Engine, where it might be used.
    fn elsewhere(&self) -> Vec<String> {
        if !self.units.has_ane() {
            return Vec::new();
        }
        let mut kinds: BTreeMap<(&str, Option<Device>, bool), usize> = BTreeMap::new();
        let placements = self.packages.iter().flat_map(|report| &report.measured.placement);
        for op in placements.flat_map(|placement| &placement.elsewhere) {
            *kinds.entry((&op.operator, op.preferred, op.supported_by_ane)).or_default() += 1;
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let total = kinds.len();
        let line = |((operator, preferred, supported), count): ((&str, Option<Device>, bool), usize)| {
            let device = preferred.map_or("nowhere that is told", Device::as_str);
            let supported = if supported { "supports it" } else { "does not support it" };
            format!("not for the ANE: {count} × {operator}, planned for {device}; the ANE {supported}")
        };
        let mut lines: Vec<String> = kinds.into_iter().take(KINDS).map(line).collect();
        if total > KINDS {
            lines.push(format!("and {} more kinds of ops; `--json` lists them all", total - KINDS));
        }
        lines
    }

    /// One line.
    pub fn summary(&self) -> String {
        let passed = self.packages.iter().filter(|package| package.verdict == Verdict::Pass).count();
        let machine =
            self.system.as_ref().map(|system| format!(" on {}, {} ({})", system.chip, system.os, system.build));
        let require: Vec<&str> = self.require.iter().map(|requirement| requirement.as_str()).collect();
        let word = match &self.verdict {
            Verdict::Fail => "FAIL".to_owned(),
            other => other.to_string(),
        };
        format!(
            "{word}: {passed} of {} packages pass{}; units {}, counted: {}",
            self.packages.len(),
            machine.unwrap_or_default(),
            self.units,
            if require.is_empty() { "nothing".to_owned() } else { require.join(", ") },
        )
    }
}

impl PackageReport {
    /// A row for each function.
    fn rows(&self) -> Vec<Vec<String>> {
        let measured = &self.measured;
        let functions: &[String] = if measured.functions.is_empty() { &[String::new()] } else { &measured.functions };
        let row = |(index, function): (usize, &String)| {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let mut row = vec![first(self.package.clone()), first(self.verdict.to_string()), function.clone()];
            row.extend(measured.cells(function));
            row
        };
        functions.iter().enumerate().map(row).collect()
    }
}

impl Measured {
    fn cells(&self, function: &str) -> [String; 7] {
        let none = || "-".to_owned();
        let numerics = self.numerics.iter().find(|numerics| numerics.function == function);
        let placement = self.placement.iter().find(|placement| placement.function == function);
        let times = self.times.functions.iter().find(|times| times.function == function);
        let time = |seconds: Option<f64>| seconds.map_or_else(none, duration);
        [
            numerics.and_then(|found| found.min_cosine).map_or_else(none, |cosine| format!("{cosine:.5}")),
            numerics.map_or_else(none, |found| match found.not_finite {
                0 => format!("{:.1e}", found.largest_error),
                count => format!("{count} NaN"),
            }),
            placement.map_or_else(none, |placement| format!("{}/{}", placement.preferred_on_ane, placement.ops)),
            placement
                .and_then(|placement| placement.cost_preferred_on_ane)
                .map_or_else(none, |share| format!("{:.0} %", share * 100.0)),
            time(times.and_then(|times| times.load)),
            time(times.and_then(|times| times.first)),
            time(times.and_then(|times| times.steady)),
        ]
    }
}

impl Trouble {
    /// The end of its log and its hint, unless that was given before.
    fn lines(&self, hinted: &mut Vec<Hint>) -> Vec<String> {
        let mut lines: Vec<String> =
            self.log.iter().rev().take(3).rev().map(|line| format!("  it wrote: {line}")).collect();
        if let Some(hint) = self.hint.as_ref().filter(|hint| !hinted.contains(hint)) {
            lines.push(format!("  hint: {}: {}", hint.id, hint.means));
            lines.push(format!("        {}", hint.fix));
            lines.push(format!("        {}", hint.evidence));
            hinted.push(hint.clone());
        }
        lines
    }
}

fn duration(seconds: f64) -> String {
    if seconds >= 1.0 { format!("{seconds:.2} s") } else { format!("{:.2} ms", seconds * 1000.0) }
}
