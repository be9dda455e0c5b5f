//! `anebake lint RECIPE|PACKAGE|OUT`

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use super::Opened;
use crate::bake::manifest::BakeManifest;
use crate::bake::output::record_lint;
use crate::bake::part::Part;
use crate::bake::pipeline::Outcome;
use crate::cli::{Global, Lint};
use crate::coremltools::Environment;
use crate::error::{Fault, Status};
use crate::lint::environment::Tools;
use crate::lint::recipe::demands_ane;
use crate::lint::run::{self, Subject};
use crate::lint::{Evidence, Finding, Record, Report, Rule, Severity, rule, rules};
use crate::recipe::Recipe;
use crate::ui::Ui;

/// Places of a finding that are shown; `--json` and `-v` show all.
const SHOWN: usize = 6;

/// A rule, for scripts.
#[derive(Serialize)]
struct Described {
    id: &'static str,
    subject: &'static str,
    severity: Severity,
    /// Where the recipe demands the ANE.
    severity_on_ane: Severity,
    what: &'static str,
    why: &'static str,
    fix: &'static str,
    evidence: &'static [Evidence],
}

impl From<&'static Rule> for Described {
    fn from(rule: &'static Rule) -> Self {
        Self {
            id: rule.id,
            subject: rule.check.subject(),
            severity: rule.severity(false),
            severity_on_ane: rule.severity(true),
            what: rule.what,
            why: rule.why,
            fix: rule.fix,
            evidence: rule.evidence,
        }
    }
}

pub(super) fn run(options: &Lint, global: &Global, ui: &Ui) -> Result<ExitCode> {
    if let Some(id) = &options.explain {
        explain(rule(id)?, ui)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.list {
        list(ui)?;
        return Ok(ExitCode::SUCCESS);
    }
    known_rules(&options.allow)?;
    let subject = Subject::find(options.subject.as_deref().unwrap_or_default(), &options.sets)?;
    let mut report = match &subject {
        Subject::Recipe(recipe) => {
            let environment = Environment::find(global.python.as_deref()).ok();
            if environment.is_none() {
                ui.note("no Python environment with coremltools was found: its versions are not looked at");
            }
            run::recipe(recipe, environment.as_ref().map(Tools::of).as_ref(), options.ane)
        }
        Subject::Package(path) => run::package(path, options.ane)?,
        Subject::Output(path) => run::output(path, options.ane)?,
    };
    report.allow(&options.allow);
    if ui.is_json() {
        ui.json(&report)?;
    } else {
        print(&report, global.verbose, ui)?;
    }
    let denied = report.at_least(options.deny).next().is_some();
    Ok(if denied { ExitCode::from(Status::CheckFailed as u8) } else { ExitCode::SUCCESS })
}

/// Checks that there are rules of these ids.
///
/// # Errors
/// A usage fault: one is unknown.
pub(super) fn known_rules(ids: &[String]) -> Result<()> {
    ids.iter().try_for_each(|id| Ok(rule(id).map(|_| ())?))
}

fn list(ui: &Ui) -> Result<()> {
    if ui.is_json() {
        return ui.json(&rules().map(Described::from).collect::<Vec<_>>());
    }
    let rows: Vec<Vec<String>> = rules()
        .map(|rule| {
            let (severity, on_ane) = (rule.severity(false), rule.severity(true));
            let on_ane = if on_ane == severity { String::new() } else { on_ane.to_string() };
            vec![
                rule.id.to_owned(),
                rule.check.subject().to_owned(),
                severity.to_string(),
                on_ane,
                rule.what.to_owned(),
            ]
        })
        .collect();
    ui.table(&["rule", "subject", "severity", "on ANE", "finds"], &rows, &[])
}

fn explain(rule: &'static Rule, ui: &Ui) -> Result<()> {
    if ui.is_json() {
        return ui.json(&Described::from(rule));
    }
    let on_ane = match rule.severity(true) {
        severity if severity == rule.severity => String::new(),
        severity => format!("; {severity} where the ANE is demanded"),
    };
    ui.data(format!("{}: {}", rule.id, rule.what))?;
    ui.data(format!("  severity  {}{on_ane}", rule.severity))?;
    ui.data(format!("  looks at  {}", rule.check.subject()))?;
    ui.data(format!("  why       {}", rule.why))?;
    ui.data(format!("  fix       {}", rule.fix))?;
    rule.evidence.iter().try_for_each(|evidence| ui.data(format!("  seen      {}", line(evidence))))
}

fn line(evidence: &Evidence) -> String {
    format!("{} ({}, {})", evidence.link, evidence.date, evidence.confidence.as_str())
}

fn print(report: &Report, all: bool, ui: &Ui) -> Result<()> {
    for finding in &report.findings {
        print_finding(finding, all, ui)?;
    }
    for program in &report.programs {
        let packages = match &program.packages[..] {
            [] => String::new(),
            [one] => format!("{one}, "),
            [first, others @ ..] => format!("{first} and {} more, ", others.len()),
        };
        for function in &program.functions {
            let integer = match function.integer {
                0 => "no integer op between inputs and outputs".to_owned(),
                1 => "1 integer op between inputs and outputs".to_owned(),
                count => format!("{count} integer ops between inputs and outputs"),
            };
            ui.data(format!("{packages}{}: {}; {integer}", function.function, function.sentence()))?;
        }
    }
    ui.data(report.summary())?;
    if !report.findings.is_empty() {
        ui.note("`anebake lint --explain ID` says why, and where it was seen");
    }
    Ok(())
}

fn print_finding(finding: &Finding, all: bool, ui: &Ui) -> Result<()> {
    let severity = if finding.allowed { "allowed" } else { finding.severity.as_str() };
    ui.data(format!("{severity:5}  {}: {}", finding.id, finding.what))?;
    let shown = if all { finding.places.len() } else { SHOWN };
    for place in finding.places.iter().take(shown) {
        ui.data(format!("       {}", place.line()))?;
    }
    if finding.places.len() > shown {
        ui.data(format!("       and {} more (`-v` shows them)", finding.places.len() - shown))?;
    }
    if all {
        ui.data(format!("       why: {}", finding.why))?;
    }
    ui.data(format!("       fix: {}", finding.fix))
}

/// What lint found before and after a bake, for scripts.
#[derive(Debug, Default, Serialize)]
pub(super) struct Linted {
    /// Rules that found errors, those of `--allow` excepted.
    pub(super) errors: usize,
    /// Rules that found what is probably not wanted, those of `--allow` excepted.
    warnings: usize,
    /// Ids of all rules that found something.
    rules: BTreeSet<String>,
    #[serde(skip)]
    serious: BTreeSet<String>,
}

impl Linted {
    fn add(&mut self, record: &Record, allow: &[String]) {
        for (id, found) in &record.rules {
            self.rules.insert(id.clone());
            if allow.contains(id) || found.severity == Severity::Info || !self.serious.insert(id.clone()) {
                continue;
            }
            match found.severity {
                Severity::Error => self.errors += 1,
                _ => self.warnings += 1,
            }
        }
    }

    /// One line where something is not as it should be.
    pub(super) fn warn(&self, out: &Path, ui: &Ui) {
        if self.serious.is_empty() {
            return;
        }
        let ids: Vec<String> = self.serious.iter().map(|id| format!("`{id}`")).collect();
        let kept = if self.errors > 0 { "; the packages are kept, `--allow ID` takes them as they are" } else { "" };
        ui.warn(format!("lint: {}; `anebake lint {}` says more{kept}", ids.join(", "), out.display()));
    }
}

/// Lints recipe and tools before anything of a bake is opened or fetched.
///
/// # Errors
/// A rule that is not allowed finds an error: the check said no.
pub(super) fn lint_recipe(recipe: &Recipe, environment: Option<&Environment>, allow: &[String]) -> Result<Linted> {
    // Other tools than these end a bake by themselves, as faults of the environment.
    let python = environment.and_then(Environment::python_version);
    let mut report = run::recipe(recipe, Some(&Tools { python, ..Tools::default() }), false);
    report.allow(allow);
    if let Some(finding) = report.at_least(Severity::Error).next() {
        let place = finding.places.first().map(|place| format!(" ({})", place.line())).unwrap_or_default();
        let message = format!("lint refuses `{}`: {}{place}", report.subject, finding.what);
        let hint = format!("{}; `--allow {}` bakes it all the same", finding.fix, finding.id);
        return Err(Fault::new(Status::CheckFailed, message).with_hint(hint).into());
    }
    let mut linted = Linted::default();
    linted.add(&report.record(), allow);
    Ok(linted)
}

/// Lints the packages of a bake; what is `recorded` of the same content stands. Where another bake has overtaken this
/// one in the same folder, it is left to that one.
///
/// # Errors
/// A package cannot be read, or the manifest not be written.
pub(super) fn lint_packages(
    opened: &Opened,
    outcomes: &[Outcome],
    out: &Path,
    recorded: Option<Value>,
    allow: &[String],
    linted: &mut Linted,
) -> Result<()> {
    let mut record = recorded.and_then(|value| serde_json::from_value::<Record>(value).ok());
    if record.is_none() {
        let ours = |manifest: &BakeManifest| {
            outcomes.iter().filter(|outcome| outcome.part != Part::Embedding).all(|outcome| {
                let path = outcome.part.path();
                manifest.packages().any(|known| known.path == path && known.sha256 == outcome.baked.package)
            })
        };
        record_lint(out, |manifest| {
            if !ours(manifest) {
                return Ok(None);
            }
            let found = run::packages(out, demands_ane(&opened.recipe.resolved()))?.record();
            Ok(Some(serde_json::to_value(record.insert(found))?))
        })?;
    }
    linted.add(&record.unwrap_or_default(), allow);
    Ok(())
}
