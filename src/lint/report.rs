//! What the rules found, for people, scripts and manifests.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::placement::Estimate;
use super::{Evidence, Found, Rule, Severity};

/// Where a rule found something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Packages, where the subject has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// Function, where it is one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Op, value, key or file.
    pub at: String,
    /// What is there.
    pub says: String,
}

impl Place {
    /// In a line.
    pub fn line(&self) -> String {
        let package = match &self.packages[..] {
            [] => String::new(),
            [one] => format!("{one}: "),
            [first, others @ ..] => format!("{first} and {} more: ", others.len()),
        };
        let function = self.function.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        format!("{package}{function}{}: {}", self.at, self.says)
    }
}

/// What a rule found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rule.
    pub id: &'static str,
    /// How bad it is for this subject.
    pub severity: Severity,
    /// Whether the caller takes it.
    pub allowed: bool,
    /// What was found.
    pub what: &'static str,
    /// Why that matters.
    pub why: &'static str,
    /// What to do.
    pub fix: &'static str,
    /// Where it was learned.
    pub evidence: &'static [Evidence],
    /// Where it was found.
    pub places: Vec<Place>,
}

/// Programs that are equal, and what they look like to the ANE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Packages that have it.
    pub packages: Vec<String>,
    /// Its functions.
    pub functions: Vec<Estimate>,
}

/// What all rules found in a subject.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was looked at: `recipe`, `package` or `output`.
    pub kind: &'static str,
    /// Its name or path.
    pub subject: String,
    /// Whether the ANE is demanded: by the recipe, or by the caller.
    pub ane: bool,
    /// Errors that are not allowed.
    pub errors: usize,
    /// Warnings that are not allowed.
    pub warnings: usize,
    /// What is good to know, allowed things excepted.
    pub infos: usize,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
    /// The programs, each once.
    pub programs: Vec<Program>,
}

impl Report {
    pub(super) fn new(kind: &'static str, subject: String, ane: bool) -> Self {
        Self { kind, subject, ane, errors: 0, warnings: 0, infos: 0, findings: Vec::new(), programs: Vec::new() }
    }

    /// Adds what a rule found in `packages`.
    pub(super) fn add(&mut self, rule: &'static Rule, packages: &[String], found: &Found) {
        if found.places().is_empty() {
            return;
        }
        let place = |place: &Place| Place { packages: packages.to_vec(), ..place.clone() };
        let places = found.places().iter().map(place);
        match self.findings.iter_mut().find(|finding| finding.id == rule.id) {
            Some(finding) => finding.places.extend(places),
            None => self.findings.push(Finding {
                id: rule.id,
                severity: rule.severity(self.ane),
                allowed: false,
                what: rule.what,
                why: rule.why,
                fix: rule.fix,
                evidence: rule.evidence,
                places: places.collect(),
            }),
        }
        self.settle();
    }

    /// Adds what rules found in `packages`.
    pub(super) fn add_all(&mut self, found: &[(&'static Rule, Found)], packages: &[String]) {
        found.iter().for_each(|(rule, found)| self.add(rule, packages, found));
    }

    /// Takes what these rules found as wanted.
    pub fn allow(&mut self, ids: &[String]) {
        let ids: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        self.findings.iter_mut().for_each(|finding| finding.allowed = ids.contains(finding.id));
        self.settle();
    }

    fn settle(&mut self) {
        self.findings.sort_by_key(|finding| (finding.allowed, std::cmp::Reverse(finding.severity), finding.id));
        let count = |severity| self.findings.iter().filter(|f| !f.allowed && f.severity == severity).count();
        let (errors, warnings, infos) = (count(Severity::Error), count(Severity::Warn), count(Severity::Info));
        (self.errors, self.warnings, self.infos) = (errors, warnings, infos);
    }

    /// What was found that is at least so bad and not allowed.
    pub fn at_least(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| !finding.allowed && finding.severity >= severity)
    }

    /// The finding of a rule.
    pub fn finding(&self, id: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.id == id)
    }

    /// `1 error, 2 warnings, 3 notes`.
    pub fn summary(&self) -> String {
        let count = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let allowed = self.findings.iter().filter(|finding| finding.allowed).count();
        let allowed = if allowed == 0 { String::new() } else { format!(", {allowed} allowed") };
        let counts =
            [count(self.errors, "error"), count(self.warnings, "warning"), count(self.infos, "note")].join(", ");
        format!("{counts}{allowed}")
    }

    /// What a manifest keeps.
    pub fn record(&self) -> Record {
        let rules = self
            .findings
            .iter()
            .map(|f| (f.id.to_owned(), RuleRecord { severity: f.severity, places: f.places.len() }));
        Record { rules: rules.collect() }
    }
}

/// What a manifest keeps of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// What was found, by rule.
    pub rules: BTreeMap<String, RuleRecord>,
}

/// What a manifest keeps of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleRecord {
    /// How bad it was.
    pub severity: Severity,
    /// In how many places.
    pub places: usize,
}
