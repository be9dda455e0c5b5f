//! A whole chain: whether it says what the reference says, and how fast.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::Options;
use super::event::Event;
use super::package::{Trouble, scratch};
use super::process::{self, Program, Ran};
use super::record::Recorded;
use super::request::{Request, Task};
use super::verdict::Verdict;
use crate::recipe::Requirement;

/// What is known of a chain on Core ML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainReport {
    /// Whether all that counts was seen.
    pub verdict: Verdict,
    /// What was not seen, in words.
    pub failures: Vec<String>,
    /// What went wrong, if something did.
    pub trouble: Option<Trouble>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// What it says.
    pub tokens: Vec<u32>,
    /// What the reference says.
    pub expected: Vec<u32>,
    /// Tokens that are equal, before the first that is not.
    pub equal: usize,
    /// Whether the first other token is one that the reference hardly tells from its own: then no float16 chain can be
    /// asked to go on alike.
    pub tie: bool,
    /// Seconds to load all packages.
    pub load: Option<f64>,
    /// Seconds from the prompt to the first token.
    pub first_token: Option<f64>,
    /// Tokens per second after it.
    pub tokens_per_second: Option<f64>,
    /// The most memory that the child process had at once, in bytes.
    pub memory: Option<u64>,
}

/// Judges the chain in `out`.
pub(super) fn judge(out: &Path, recorded: &Recorded, options: &Options, program: &Program) -> Result<ChainReport> {
    let folder = scratch(options)?;
    let task =
        Task::Chain { out: std::path::absolute(out)?, prompt: recorded.prompt.clone(), tokens: recorded.tokens.len() };
    Request { cache: options.cache.clone(), units: options.units, task }.write(folder.path())?;
    let limit = limit(options.time_limit, recorded.packages().count());
    let ran = process::run(program, folder.path(), limit)?;
    Ok(ChainReport::new(recorded, &ran, &options.require))
}

/// How long a chain may take: its packages are compiled by now.
fn limit(package: Duration, packages: usize) -> Duration {
    package.saturating_mul(u32::try_from(packages.div_ceil(4)).unwrap_or(u32::MAX).max(1))
}

impl ChainReport {
    fn new(recorded: &Recorded, ran: &Ran, require: &[Requirement]) -> Self {
        let mut report = Self {
            verdict: Verdict::Pass,
            failures: Vec::new(),
            trouble: Trouble::of(ran),
            prompt_tokens: recorded.prompt.len(),
            tokens: Vec::new(),
            expected: recorded.tokens.iter().map(|(token, _)| *token).collect(),
            equal: 0,
            tie: false,
            load: None,
            first_token: None,
            tokens_per_second: None,
            memory: None,
        };
        let mut times = Vec::new();
        for event in &ran.events {
            match event {
                Event::Loaded { seconds, .. } => report.load = Some(*seconds),
                Event::Token { token, seconds } => {
                    report.tokens.push(*token);
                    times.push(*seconds);
                }
                Event::Memory { bytes } => report.memory = Some(*bytes),
                _ => {}
            }
        }
        report.first_token = times.first().copied();
        if let [first, .., last] = times[..]
            && last > first
        {
            report.tokens_per_second = Some((times.len() - 1) as f64 / (last - first));
        }
        let same = report.tokens.iter().zip(&report.expected).take_while(|(got, expected)| got == expected);
        report.equal = same.count();
        report.tie = report.equal < report.tokens.len()
            && recorded.tokens.get(report.equal).is_some_and(|(_, hardly_known)| *hardly_known);
        if require.contains(&Requirement::Load) {
            report.failures.extend(report.trouble.as_ref().map(ToString::to_string));
        }
        if require.contains(&Requirement::Numerics) {
            report.failures.extend(report.wrong());
        }
        if !report.failures.is_empty() {
            report.verdict = Verdict::Fail;
        }
        report
    }

    /// What is wrong with its tokens.
    fn wrong(&self) -> Option<String> {
        let (got, expected) = (self.tokens.get(self.equal), self.expected.get(self.equal));
        match (got, expected) {
            (_, None) => None,
            (Some(_), Some(_)) if self.tie => None,
            (Some(got), Some(expected)) => {
                Some(format!("token {} is {got}, the reference says {expected}", self.equal + 1))
            }
            (None, Some(_)) => Some(format!("{} of {} tokens came", self.tokens.len(), self.expected.len())),
        }
    }

    /// One line.
    pub fn summary(&self) -> String {
        let seconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} s"));
        let rate = self.tokens_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        format!(
            "chain: {}, {} of {} tokens as the reference{}; load {}, first token {}, {rate} tokens/s",
            self.verdict,
            self.equal,
            self.expected.len(),
            if self.tie { ", then a tie" } else { "" },
            seconds(self.load),
            seconds(self.first_token),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::End;
    use super::*;

    fn judged(tokens: &[u32], hardly_known: usize, end: End) -> ChainReport {
        let expected = [5, 6, 7, 8];
        let tokens_of_reference = expected.iter().enumerate().map(|(i, token)| (*token, i == hardly_known)).collect();
        let recorded = Recorded::of_tokens(vec![1, 2], tokens_of_reference);
        let mut events = vec![Event::Loaded { function: String::new(), seconds: 2.0 }];
        let token = |(i, token): (usize, &u32)| Event::Token { token: *token, seconds: 0.5 + 0.25 * i as f64 };
        events.extend(tokens.iter().enumerate().map(token));
        if end == End::Exit(0) {
            events.push(Event::Done);
        }
        let ran = Ran { events, garbage: None, end, log: vec![] };
        ChainReport::new(&recorded, &ran, &[Requirement::Load, Requirement::Numerics])
    }

    #[test]
    fn a_chain_must_say_what_the_reference_says_as_far_as_that_knows() {
        let report = judged(&[5, 6, 7, 8], 9, End::Exit(0));
        assert_eq!((&report.verdict, report.equal, report.tie), (&Verdict::Pass, 4, false));
        assert_eq!((report.load, report.first_token, report.tokens_per_second), (Some(2.0), Some(0.5), Some(4.0)));
        assert_eq!(
            report.summary(),
            "chain: pass, 4 of 4 tokens as the reference; load 2.00 s, first token 0.50 s, 4.0 tokens/s"
        );
        let report = judged(&[5, 9, 1, 1], 9, End::Exit(0));
        assert_eq!(report.failures, ["token 2 is 9, the reference says 6"]);
        let report = judged(&[5, 9, 1, 1], 1, End::Exit(0));
        assert_eq!((&report.verdict, report.equal, report.tie), (&Verdict::Pass, 1, true));
    }

    #[test]
    fn a_chain_that_dies_keeps_the_tokens_that_came() {
        let report = judged(&[5, 6], 9, End::Signal("SIGKILL".to_owned()));
        assert_eq!(report.failures, ["start: killed by SIGKILL", "2 of 4 tokens came"]);
        assert_eq!((report.tokens, report.verdict), (vec![5, 6], Verdict::Fail));
        assert_eq!(limit(Duration::from_secs(10), 29), Duration::from_secs(80));
    }
}
