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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::recipe::Requirement;
    use crate::runner::{Array, Arrays};
    use crate::smoke::Case;

    /// Judges a package of two functions, four calls, by what a shell's program tells; `$1` is the folder, `tell` takes a
    /// line.
    fn judged(script: &str) -> PackageReport {
        let cache = tempfile::tempdir().unwrap();
        let arrays = Arrays::from([("x".to_owned(), Array::float(&[2], vec![0.5, 1.0]))]);
        let case = |function: &str, fresh| Case {
            function: function.to_owned(),
            inputs: arrays.clone(),
            expected: arrays.clone(),
            fresh,
        };
        let subject = Subject {
            package: "somewhere/block-03.mlpackage".into(),
            cases: vec![case("prefill", true), case("decode", false), case("decode", false), case("decode", false)],
        };
        let options = Options {
            units: ComputeUnits::CpuAndAne,
            time_limit: Duration::from_secs(600),
            repeat: 5,
            require: vec![Requirement::Load, Requirement::Numerics],
            min_cosine: 0.999,
            cache: cache.path().to_owned(),
        };
        let program = format!("tell() {{ echo \"$1\" >> \"$folder/events.jsonl\"; }}; folder=$1; {script}");
        let report = judge(&subject, &options, &Program::other("/bin/sh", &["-c", &program, "child"])).unwrap();
        let left = std::fs::read_dir(cache.path().join("smoke-v1")).unwrap().count();
        assert_eq!(left, 0, "requests go away");
        report
    }

    const BEGIN: &str = r#"
        tell '{"event":"begun","stage":"compile"}'; tell '{"event":"compiled","seconds":0.5,"cached":false}'
        tell '{"event":"begun","stage":"load"}'; tell '{"event":"loaded","function":"decode","seconds":0.25}'
        tell '{"event":"loaded","function":"prefill","seconds":1.5}'
    "#;
    const PLAN: &str = r#"
        plan() { tell '{"event":"planned","placement":{"function":"'$1'","ops":2,"preferred_on_ane":1,"supported_by_ane":2,
            "unknown":0,"cost_preferred_on_ane":0.5,"cost_supported_by_ane":1.0,"elsewhere":[]}}'; }
        tell '{"event":"begun","stage":"plan"}'; plan decode; plan prefill
    "#;

    fn plan() -> String {
        PLAN.replace("\n            \"unknown", "\"unknown")
    }

    fn predicted(function: &str, cosine: &str) -> String {
        format!(
            r#"tell '{{"event":"begun","stage":"predict"}}'
            tell '{{"event":"predicted","function":"{function}","seconds":0.125,"outputs":[
            {{"output":"y","cosine":{cosine},"largest_error":0.25,"not_finite":0}}]}}'
            "#
        )
        .replace("[\n            ", "[")
    }

    #[test]
    fn what_a_child_tells_becomes_a_report() {
        let calls = [predicted("prefill", "1.0"), predicted("decode", "0.9995").repeat(3)].concat();
        let end = r#"tell '{"event":"begun","stage":"repeat"}'
            tell '{"event":"repeated","function":"decode","seconds":[0.4,0.1,0.2]}'
            tell '{"event":"memory","bytes":1048576}'; tell '{"event":"done"}'"#;
        let report = judged(&[BEGIN, &plan(), &calls, end].concat());
        let measured = &report.measured;
        assert_eq!((&*report.package, &report.verdict), ("block-03.mlpackage", &Verdict::Pass), "{report:#?}");
        assert_eq!(measured.functions, ["prefill", "decode"]);
        let stages = [Stage::Compile, Stage::Load, Stage::Plan, Stage::Predict, Stage::Repeat];
        assert_eq!((&measured.done[..], measured.trouble.as_ref()), (&stages[..], None));
        let decode = measured.numerics.iter().find(|found| found.function == "decode").unwrap();
        assert_eq!((decode.calls, decode.of, decode.min_cosine, decode.largest_error), (3, 3, Some(0.9995), 0.25));
        assert_eq!((measured.times.compile, measured.times.compiled_before), (Some(0.5), false));
        let times = measured.times.functions.iter().find(|times| times.function == "decode").unwrap();
        assert_eq!((times.load, times.first, times.steady), (Some(0.25), Some(0.125), Some(0.2)));
        assert_eq!((measured.memory, measured.load_seconds()), (Some(1 << 20), Some(1.75)));
        assert_eq!(measured.placement.len(), 2);
        let back: PackageReport = serde_json::from_value(serde_json::to_value(&report).unwrap()).unwrap();
        assert_eq!(back, report);
    }

    #[test]
    fn a_child_that_dies_is_a_failure_with_its_stage_its_words_and_a_hint() {
        let script = [BEGIN, &plan(), &predicted("prefill", "1.0"), "echo 'from /x/y/z' >&2; kill -TRAP $$"].concat();
        let report = judged(&script);
        let trouble = report.measured.trouble.as_ref().unwrap();
        assert_eq!((trouble.stage, trouble.cause, &*trouble.text), (Some(Stage::Predict), Cause::Signal, "SIGTRAP"));
        assert_eq!(trouble.log, ["from z"]);
        assert!(trouble.hint.is_some());
        assert_eq!(report.failures, ["predict: killed by SIGTRAP", "`decode` gave no output to compare"]);
    }

    #[test]
    fn a_child_that_dies_before_its_plan_is_followed_by_one_that_only_plans() {
        let alone = "if grep -q '\"cases\":\\[\\]' \"$folder/request.json\"; then\n";
        let done = "tell '{\"event\":\"done\"}'; exit 0; fi\n";
        let report = judged(&[alone, &plan(), done, BEGIN, "kill -KILL $$"].concat());
        assert_eq!(report.measured.placement.len(), 2);
        assert_eq!(report.failures[0], "load: killed by SIGKILL");
    }

    #[test]
    fn errors_keep_domain_and_code_and_an_end_without_a_word_is_one_too() {
        let failed = r#"tell '{"event":"failed","text":"Core ML cannot load: no (com.apple.CoreML -14)","domain":
            "com.apple.CoreML","code":-14}'"#;
        let report = judged(&[BEGIN, &failed.replace("\n            ", "")].concat());
        let trouble = report.measured.trouble.as_ref().unwrap();
        assert_eq!(
            (trouble.cause, trouble.domain.as_deref(), trouble.code),
            (Cause::Error, Some("com.apple.CoreML"), Some(-14))
        );
        assert_eq!(report.failures[0], "load: Core ML cannot load: no (com.apple.CoreML -14)");
        assert!(!report.measured.done.contains(&Stage::Load) && report.measured.done.contains(&Stage::Compile));
        assert_eq!(judged("exit 3").failures[0], "start: exit status 3 without a result");
        assert_eq!(judged("exit 0").failures[0], "start: exit status 0 without a result");
        let garbage = judged(&[BEGIN, "tell nonsense; tell '{\"event\":\"done\"}'"].concat());
        assert_eq!(garbage.failures[0], "load: it told `nonsense`, which is no event");
    }
}
