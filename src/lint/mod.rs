//! What is known to go wrong: on the Neural Engine (ANE), in Core ML, in coremltools.
//!
//! Owns the rules: each has an id, a severity, what it finds, why that matters, what to do, and where it was learned.
//! [`recipe`], [`graph`], [`numerics`], [`state`], [`weights`], [`output`] and [`environment`] hold them by subject;
//! [`run`] applies them. Owns the look-up of failures by their text too ([`symptom()`]).
//!
//! Everything here is decided without running anything: nothing says that an op runs on the ANE, only that nothing is
//! known to keep it off ([`placement`]).

pub mod environment;
pub mod evidence;
pub mod graph;
pub mod numerics;
pub mod output;
pub mod placement;
pub mod recipe;
mod report;
pub mod run;
pub mod state;
pub mod symptom;
pub mod view;
pub mod weights;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Fault;
pub use evidence::{Confidence, Evidence};
pub use report::{Finding, Place, Record, Report};
pub use symptom::{Symptom, symptom};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Probably not what is wanted.
    Warn,
    /// Known to fail.
    Error,
}

impl Severity {
    /// Every severity, the mildest first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warn, Self::Error];

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Severity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|s| s.as_str() == text)
            .ok_or_else(|| format!("`{text}` is none of info, warn, error"))
    }
}

/// What a rule looks at, with the function that does it.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// A resolved recipe.
    Recipe(fn(&crate::recipe::Recipe, &mut Found)),
    /// A program. Packages with the same program are judged by it once.
    Graph(fn(&view::Graph<'_>, &mut Found)),
    /// A package with its weights.
    Package(fn(&view::PackageView<'_>, &mut Found)),
    /// A folder of packages.
    Output(fn(&output::Output, &mut Found)),
    /// The tools.
    Environment(fn(&environment::Tools, &mut Found)),
}

impl Check {
    /// What it looks at, in a word.
    pub fn subject(&self) -> &'static str {
        match self {
            Self::Recipe(_) => "recipe",
            Self::Graph(_) => "graph",
            Self::Package(_) => "package",
            Self::Output(_) => "output",
            Self::Environment(_) => "environment",
        }
    }
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name, stable.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// How bad it is where the recipe demands the ANE, if that is worse.
    pub on_ane: Option<Severity>,
    /// What it finds.
    pub what: &'static str,
    /// Why that matters.
    pub why: &'static str,
    /// What to do.
    pub fix: &'static str,
    /// Where it was learned; at least one.
    pub evidence: &'static [Evidence],
    /// How it is found.
    pub check: Check,
}

impl Rule {
    /// How bad it is, given whether the ANE is demanded.
    pub fn severity(&self, ane: bool) -> Severity {
        self.on_ane.filter(|_| ane).unwrap_or(self.severity)
    }
}

/// Every rule, by subject.
const ALL: [&[Rule]; 7] =
    [recipe::RULES, graph::RULES, numerics::RULES, state::RULES, weights::RULES, output::RULES, environment::RULES];

/// Every rule.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    ALL.into_iter().flatten()
}

/// The rule of that id.
///
/// # Errors
/// A usage fault: there is none.
pub fn rule(id: &str) -> Result<&'static Rule, Fault> {
    rules().find(|rule| rule.id == id).ok_or_else(|| {
        let near = rules().max_by(|a, b| likeness(a.id, id).total_cmp(&likeness(b.id, id)));
        let near = near.filter(|rule| likeness(rule.id, id) > 0.7).map(|rule| format!("did you mean `{}`? ", rule.id));
        Fault::usage(format!("there is no lint rule `{id}`"))
            .with_hint(format!("{}`anebake lint --list` lists them", near.unwrap_or_default()))
    })
}

fn likeness(a: &str, b: &str) -> f64 {
    strsim::jaro_winkler(a, b)
}

/// Collects what a rule finds.
#[derive(Debug, Default)]
pub struct Found {
    places: Vec<Place>,
}

impl Found {
    /// Something at `at`, in words `says`.
    pub fn add(&mut self, at: impl Into<String>, says: impl Into<String>) {
        self.places.push(Place { at: at.into(), says: says.into(), ..Place::default() });
    }

    /// Something in a function.
    pub fn in_function(&mut self, function: &str, at: impl Into<String>, says: impl Into<String>) {
        self.places.push(Place {
            function: Some(function.to_owned()),
            at: at.into(),
            says: says.into(),
            ..Place::default()
        });
    }

    /// What was found.
    pub fn places(&self) -> &[Place] {
        &self.places
    }
}
