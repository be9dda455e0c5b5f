//! The verdict on a package, and the rules that lead to it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::package::Measured;
use crate::recipe::Requirement;

/// Whether something passed. In JSON one word, or `skipped: ` and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that counts was seen.
    Pass,
    /// Something that counts was not.
    Fail,
    /// It was not looked at.
    Skipped(String),
}

const SKIPPED: &str = "skipped: ";

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Fail => f.write_str("fail"),
            Self::Skipped(why) => write!(f, "{SKIPPED}{why}"),
        }
    }
}

impl FromStr for Verdict {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix(SKIPPED)) {
            ("pass", _) => Ok(Self::Pass),
            ("fail", _) => Ok(Self::Fail),
            (_, Some(why)) => Ok(Self::Skipped(why.to_owned())),
            _ => Err(format!("`{text}` is no verdict")),
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Verdict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Verdict {
    /// That of many: the worst; skipped only where all were.
    pub fn of_all<'a>(verdicts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut worst = None;
        for verdict in verdicts {
            match (&worst, verdict) {
                (_, Self::Fail) => return Self::Fail,
                (None | Some(Self::Skipped(_)), other) => worst = Some(other.clone()),
                _ => {}
            }
        }
        worst.unwrap_or_else(|| Self::Skipped("there is nothing to judge".to_owned()))
    }
}

/// What of `require` was not seen, in words.
pub(super) fn failures(measured: &Measured, require: &[Requirement], min_cosine: f64) -> Vec<String> {
    let mut failures = Vec::new();
    for requirement in require {
        match requirement {
            Requirement::Load => failures.extend(measured.trouble.as_ref().map(ToString::to_string)),
            Requirement::Numerics => numerics(measured, min_cosine, &mut failures),
            Requirement::Ane => ane(measured, &mut failures),
        }
    }
    failures
}

fn numerics(measured: &Measured, min_cosine: f64, failures: &mut Vec<String>) {
    for function in &measured.functions {
        let Some(found) = measured.numerics.iter().find(|found| found.function == *function) else {
            failures.push(format!("`{function}` gave no output to compare"));
            continue;
        };
        if found.calls < found.of {
            failures.push(format!("`{function}` ran {} of {} calls", found.calls, found.of));
        }
        if found.not_finite > 0 {
            failures.push(format!("`{function}` gave {} values that are not finite", found.not_finite));
        }
        match found.min_cosine {
            Some(cosine) if cosine < min_cosine => failures.push(format!(
                "`{function}`: the lowest cosine to the reference is {cosine:.5}, {min_cosine} is asked for"
            )),
            // Outputs without a direction are all zero, or not finite.
            None if found.not_finite == 0 && found.largest_error > 0.0 => {
                failures.push(format!("`{function}` gave zeros only, or should have"));
            }
            _ => {}
        }
    }
}

fn ane(measured: &Measured, failures: &mut Vec<String>) {
    if !measured.units.has_ane() {
        failures.push(format!("the Neural Engine is asked for, and `--units {}` leaves it out", measured.units));
        return;
    }
    for function in &measured.functions {
        match measured.placement.iter().find(|placement| placement.function == *function) {
            None => failures.push(format!("`{function}`: it is not known where its ops are planned")),
            Some(placement) if placement.all_preferred_on_ane() => {}
            Some(placement) => {
                let elsewhere = placement.elsewhere.len();
                let first = placement.elsewhere.first().map(|op| format!(", first `{}`", op.operator));
                failures.push(format!(
                    "`{function}`: {elsewhere} of {} ops are not planned for the Neural Engine{}",
                    placement.ops,
                    first.unwrap_or_default()
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::super::package::{Cause, FunctionNumerics, Trouble};
    use super::*;
    use crate::runner::coreml::{ComputeUnits, Device, OpPlacement, Placement};

    const ALL: [Requirement; 3] = [Requirement::Load, Requirement::Numerics, Requirement::Ane];

    fn placed(device: Device) -> Placement {
        let op = |operator: &str, preferred| OpPlacement {
            operator: operator.into(),
            output: "out".into(),
            preferred: Some(preferred),
            supported: vec![Device::Cpu, Device::Ane],
            cost: Some(0.5),
        };
        Placement::new("decode", &[op("ios18.conv", Device::Ane), op("ios18.softmax", device)])
    }

    fn good() -> Measured {
        Measured {
            functions: vec!["decode".into()],
            units: ComputeUnits::CpuAndAne,
            numerics: vec![FunctionNumerics {
                function: "decode".into(),
                calls: 3,
                of: 3,
                min_cosine: Some(0.9999),
                largest_error: 0.01,
                not_finite: 0,
            }],
            placement: vec![placed(Device::Ane)],
            ..Measured::default()
        }
    }

    fn words(change: impl FnOnce(&mut Measured), require: &[Requirement]) -> Vec<String> {
        let mut measured = good();
        change(&mut measured);
        failures(&measured, require, 0.999)
    }

    #[test]
    fn what_was_seen_passes_whatever_counts() {
        assert_eq!(words(|_| {}, &ALL), [""; 0]);
    }

    #[test]
    fn each_requirement_fails_for_its_own_reason_and_only_where_it_counts() {
        let trouble = |measured: &mut Measured| {
            measured.trouble = Some(Trouble {
                stage: Some(Stage::Predict),
                cause: Cause::Signal,
                text: "SIGTRAP".into(),
                domain: None,
                code: None,
                log: vec![],
                hint: None,
            });
        };
        assert_eq!(words(trouble, &ALL), ["predict: killed by SIGTRAP"]);
        assert_eq!(words(trouble, &[Requirement::Numerics]), [""; 0]);
        let far = |measured: &mut Measured| measured.numerics[0].min_cosine = Some(0.41);
        let told = ["`decode`: the lowest cosine to the reference is 0.41000, 0.999 is asked for"];
        assert_eq!(words(far, &ALL), told);
        assert_eq!(words(far, &[Requirement::Load, Requirement::Ane]), [""; 0]);
        let short = |measured: &mut Measured| measured.numerics[0].calls = 1;
        assert_eq!(words(short, &ALL), ["`decode` ran 1 of 3 calls"]);
        let none = |measured: &mut Measured| measured.numerics.clear();
        assert_eq!(words(none, &ALL), ["`decode` gave no output to compare"]);
        let nan = |measured: &mut Measured| {
            measured.numerics[0].not_finite = 64;
            measured.numerics[0].min_cosine = None;
        };
        assert_eq!(words(nan, &ALL), ["`decode` gave 64 values that are not finite"]);
        let zeros = |measured: &mut Measured| measured.numerics[0].min_cosine = None;
        assert_eq!(words(zeros, &ALL), ["`decode` gave zeros only, or should have"]);
        assert_eq!(words(|_| {}, &[]), [""; 0]);
    }

    #[test]
    fn a_fallback_is_never_a_pass_where_the_ane_counts() {
        let fallback = |measured: &mut Measured| measured.placement = vec![placed(Device::Cpu)];
        let told = ["`decode`: 1 of 2 ops are not planned for the Neural Engine, first `ios18.softmax`"];
        assert_eq!(words(fallback, &ALL), told);
        assert_eq!(words(fallback, &[Requirement::Load, Requirement::Numerics]), [""; 0]);
        let unknown = |measured: &mut Measured| measured.placement.clear();
        assert_eq!(words(unknown, &ALL), ["`decode`: it is not known where its ops are planned"]);
        let cpu = |measured: &mut Measured| measured.units = ComputeUnits::CpuAndGpu;
        assert_eq!(words(cpu, &ALL), ["the Neural Engine is asked for, and `--units cpu-and-gpu` leaves it out"]);
    }

    #[test]
    fn verdicts_read_back_and_the_worst_of_many_counts() {
        let skipped = Verdict::Skipped("Core ML needs macOS".to_owned());
        for verdict in [Verdict::Pass, Verdict::Fail, skipped.clone()] {
            let text = serde_json::to_string(&verdict).unwrap();
            assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict);
        }
        assert_eq!(skipped.to_string(), "skipped: Core ML needs macOS");
        assert!(serde_json::from_str::<Verdict>("\"maybe\"").is_err());
        assert_eq!(Verdict::of_all([&skipped, &Verdict::Pass]), Verdict::Pass);
        assert_eq!(Verdict::of_all([&Verdict::Pass, &Verdict::Fail, &skipped]), Verdict::Fail);
        assert_eq!(Verdict::of_all([&skipped, &skipped]), skipped);
        assert!(matches!(Verdict::of_all([]), Verdict::Skipped(_)));
    }
}
