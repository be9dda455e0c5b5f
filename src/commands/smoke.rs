//! `anebake smoke OUT`, and smoke at the end of a bake.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::recipe_table;
use crate::bake::manifest::BakeManifest;
use crate::bake::output::record_smoke;
use crate::cache::Cache;
use crate::cli::{self, Global};
use crate::error::Status;
use crate::recipe;
use crate::runner::coreml::unavailable;
use crate::smoke::{self, Options, PackageReport, Scope, SmokeReport, Verdict, judge_output};
use crate::ui::Ui;

/// Calls of one token that follow the prompt, where nobody says how many.
const STEPS: usize = 8;

pub(super) fn run(options: &cli::Smoke, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let cache = Cache::open(global.cache_dir.as_deref())?;
    let manifest = BakeManifest::read(&options.out)?;
    let chosen = Options {
        units: options.units,
        time_limit: Duration::from_secs(options.time_limit.into()),
        ..Options::new(&recipe_table(manifest.as_ref(), "smoke")?, cache.root().to_owned())
    };
    let scope = Scope { only: options.parts.only.clone(), steps: options.steps.into(), chain: !options.no_chain };
    let report = judge_output(&options.out, &scope, &chosen, &mut |package| tell(package, ui))?;
    // A part of an output says nothing about the rest.
    if manifest.is_some() && scope.only.is_none() {
        record_smoke(&options.out, report.to_value()?)?;
    }
    if ui.is_json() {
        ui.json(&report)?;
    } else {
        print(&report, ui)?;
    }
    Ok(if report.verdict == Verdict::Pass { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
}

/// The hidden command: one request.
pub(super) fn child(options: &cli::SmokeChild) -> Result<ExitCode> {
    smoke::run_child(&options.folder)?;
    Ok(ExitCode::SUCCESS)
}

fn tell(package: &PackageReport, ui: &Ui) {
    let load =
        package.measured.load_seconds().map_or_else(String::new, |seconds| format!("  loaded in {seconds:.2} s"));
    ui.note(format!("{:<20} {}{load}", package.package, package.verdict));
}

fn print(report: &SmokeReport, ui: &Ui) -> Result<()> {
    ui.table(&SmokeReport::HEADER, &report.rows(), &SmokeReport::NUMBERS)?;
    report.lines().into_iter().try_for_each(|line| ui.data(line))
}

/// What came of smoke at the end of a bake, for scripts.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// `pass`, `fail`, or `skipped: ` and why.
    outcome: Verdict,
    /// Whether the packages passed; none where smoke was skipped.
    pub(super) passed: Option<bool>,
    /// Whether this was found out by an earlier run with the same content.
    recorded: bool,
}

impl Outcome {
    fn new(verdict: Verdict, recorded: bool) -> Self {
        let passed = match &verdict {
            Verdict::Pass => Some(true),
            Verdict::Fail => Some(false),
            Verdict::Skipped(_) => None,
        };
        Self { outcome: verdict, passed, recorded }
    }
}

/// Tries what was just baked into `out`, and keeps the result in its manifest; what is `recorded` of the same content
/// stands, unless it was skipped and need not be now.
pub(super) fn at_end_of_bake(
    out: &Path,
    asked: &recipe::Smoke,
    cache: &Cache,
    recorded: Option<&Value>,
    left_out: bool,
    ui: &Ui,
) -> Result<Outcome> {
    if left_out {
        return Ok(Outcome::new(Verdict::Skipped("--no-smoke".to_owned()), false));
    }
    let options = Options::new(asked, cache.root().to_owned());
    let known = recorded.and_then(SmokeReport::recorded);
    match known {
        Some(report) if !matches!(report.verdict, Verdict::Skipped(_)) => {
            ui.note(format!("smoke: found out before: {}", report.summary()));
            return Ok(Outcome::new(report.verdict, true));
        }
        Some(report) if unavailable().is_some() => return Ok(Outcome::new(report.verdict, true)),
        _ => {}
    }
    if let Some(why) = unavailable() {
        let manifest = BakeManifest::read(out)?;
        let report = SmokeReport::skipped(manifest.as_ref(), &options, &why);
        record_smoke(out, report.to_value()?)?;
        return Ok(Outcome::new(report.verdict, false));
    }
    ui.note("smoke: trying the packages on Core ML, each in a process of its own; `--no-smoke` leaves it out");
    let scope = Scope { only: None, steps: STEPS, chain: true };
    let report = judge_output(out, &scope, &options, &mut |package| tell(package, ui))?;
    record_smoke(out, report.to_value()?)?;
    if !ui.is_json() && !ui.is_quiet() {
        print(&report, ui)?;
    }
    if report.verdict == Verdict::Fail {
        ui.warn(format!(
            "the packages fail on this machine; they are kept. `anebake smoke {}` repeats it",
            out.display()
        ));
    }
    Ok(Outcome::new(report.verdict, false))
}
