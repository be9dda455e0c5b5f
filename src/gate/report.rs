//! What the gate found: for people and, as JSON, for programs.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::prompts::{Prompt, shortened};
use super::verdict::{Outcome, Step, mean, quantile};
use super::{ANSWER, CANARY, Options, holds};
use crate::tokenizer::Tokenizer;

/// The verdict and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Whether nothing failed.
    pub passed: bool,
    /// What failed, in words; empty where the chain passes.
    pub failures: Vec<String>,
    /// What was asked for.
    pub thresholds: Thresholds,
    /// Steps in all.
    pub steps: usize,
    /// Steps whose most likely token is the baseline's.
    pub equal: usize,
    /// Steps with another token that the baseline itself hardly tells from its own.
    pub ties: usize,
    /// Steps with a wrong token, those that are not finite included.
    pub wrong: usize,
    /// The step of the lowest cosine; absent where no step is finite.
    pub worst: Option<Worst>,
    /// Mean KL(baseline ‖ chain) over all finite steps, in nats.
    pub mean_kl: Option<f64>,
    /// 99 % quantile of it.
    pub kl_99: Option<f64>,
    /// The known answer, where it was asked for.
    pub canary: Option<Canary>,
    /// Each prompt.
    pub prompts: Vec<PromptReport>,
    /// KL of every finite step, for the quantile.
    #[serde(skip)]
    kls: Vec<f64>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Least cosine of a step.
    pub min_cosine: f64,
    /// Least share of steps with the right token.
    pub min_top1: f64,
    /// Whether ties count as wrong.
    pub strict: bool,
}

/// The step of the lowest cosine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worst {
    /// Its prompt, from 0.
    pub prompt: usize,
    /// Its step, from 0.
    pub step: usize,
    /// The cosine.
    pub cosine: f64,
}

/// "The capital of France is".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canary {
    /// What the baseline says first.
    pub expected: String,
    /// What the chain says first.
    pub got: String,
    /// Whether they are the same.
    pub passed: bool,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptReport {
    /// What was asked.
    pub prompt: Prompt,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The baseline's continuation.
    pub expected: Vec<u32>,
    /// The chain's most likely token at each step along it.
    pub chosen: Vec<u32>,
    /// The baseline's continuation as text, where there is a tokenizer.
    pub text: Option<String>,
    /// Steps whose most likely token is the baseline's.
    pub equal: usize,
    /// Lowest cosine of its finite steps.
    pub min_cosine: Option<f64>,
    /// Mean KL of its finite steps, in nats.
    pub mean_kl: Option<f64>,
    /// Steps where the chain says something else, in order; the first is where a free conversation would part.
    pub flips: Vec<Flip>,
}

/// A step where the chain says something else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flip {
    /// The step, from 0.
    pub step: usize,
    /// `tie`, `wrong` or `not_finite`.
    pub outcome: Outcome,
    /// The baseline's token.
    pub expected: u32,
    /// The chain's.
    pub got: u32,
    /// The same as texts, where there is a tokenizer.
    pub texts: Option<[String; 2]>,
    /// In the baseline: logit of its token less that of the chain's; absent where the chain's row is not finite.
    pub margin: Option<f32>,
}

impl Report {
    /// Nothing judged yet.
    pub(super) fn new(baseline: &Baseline, options: &Options) -> Self {
        let Options { min_cosine, min_top1, strict } = *options;
        Self {
            passed: false,
            failures: Vec::new(),
            thresholds: Thresholds { min_cosine, min_top1, strict },
            steps: baseline.prompts.len() * baseline.steps,
            equal: 0,
            ties: 0,
            wrong: 0,
            worst: None,
            mean_kl: None,
            kl_99: None,
            canary: None,
            prompts: Vec::new(),
            kls: Vec::new(),
        }
    }

    /// Adds the steps of a prompt.
    pub(super) fn add(
        &mut self,
        baseline: &Baseline,
        index: usize,
        tokens: &[u32],
        steps: &[Step],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<()> {
        let (prompt, expected) = (&baseline.prompts[index], baseline.ids(index));
        let spelled = |token: u32| tokenizer.map(|tokenizer| tokenizer.decode(&[token])).transpose();
        let mut flips = Vec::new();
        for (step, (judged, &expected)) in steps.iter().zip(expected).enumerate() {
            match judged.outcome {
                Outcome::Equal => self.equal += 1,
                Outcome::Tie => self.ties += 1,
                Outcome::Wrong | Outcome::NotFinite => self.wrong += 1,
            }
            let lower = |worst: &Worst, cosine: f64| cosine < worst.cosine;
            if let Some(cosine) = judged.cosine
                && self.worst.as_ref().is_none_or(|worst| lower(worst, cosine))
            {
                self.worst = Some(Worst { prompt: index, step, cosine });
            }
            match (judged.outcome, judged.cosine) {
                (Outcome::NotFinite, _) => {
                    self.failures.push(format!("{prompt}, step {step}: the chain's logits are not finite"));
                }
                (_, None) => self.failures.push(format!("{prompt}, step {step}: the chain's logits are all 0")),
                (_, Some(_)) => {}
            }
            if judged.outcome != Outcome::Equal {
                flips.push(Flip {
                    step,
                    outcome: judged.outcome,
                    expected,
                    got: judged.chosen,
                    texts: spelled(expected)?.zip(spelled(judged.chosen)?).map(|(a, b)| [a, b]),
                    margin: (judged.outcome != Outcome::NotFinite).then_some(judged.margin),
                });
            }
        }
        let kls: Vec<f64> = steps.iter().filter_map(|step| step.kl).collect();
        self.prompts.push(PromptReport {
            prompt: prompt.clone(),
            tokens: tokens.to_vec(),
            expected: expected.to_vec(),
            chosen: steps.iter().map(|step| step.chosen).collect(),
            text: tokenizer.map(|tokenizer| tokenizer.decode(expected)).transpose()?,
            equal: steps.iter().filter(|step| step.outcome == Outcome::Equal).count(),
            min_cosine: steps.iter().filter_map(|step| step.cosine).reduce(f64::min),
            mean_kl: mean(&kls),
            flips,
        });
        self.kls.extend(kls);
        Ok(())
    }

    /// The verdict, once all prompts are in.
    pub(super) fn finish(&mut self, tokenizer: Option<&Tokenizer>) -> Result<()> {
        self.mean_kl = mean(&self.kls);
        self.kl_99 = quantile(&self.kls, 0.99);
        let Thresholds { min_cosine, min_top1, strict } = self.thresholds;
        let right = self.equal + if strict { 0 } else { self.ties };
        if (right as f64) < min_top1 * self.steps as f64 {
            let flips = self.prompts.iter().flat_map(|prompt| prompt.flips.iter().map(move |flip| (prompt, flip)));
            let wrong: Vec<String> = flips
                .filter(|(_, flip)| !holds(flip.outcome, strict))
                .map(|(prompt, flip)| format!("{}, step {}", prompt.prompt, flip.step))
                .collect();
            self.failures.push(format!(
                "{right} of {} most likely tokens are right, {} are asked for; not so at {}",
                self.steps,
                (min_top1 * self.steps as f64).ceil(),
                wrong.join("; ")
            ));
        }
        if let Some(worst) = self.worst.filter(|worst| worst.cosine < min_cosine) {
            self.failures.push(format!(
                "the lowest cosine is {:.5}, {min_cosine} is asked for ({}, step {})",
                worst.cosine, self.prompts[worst.prompt].prompt, worst.step
            ));
        }
        self.canary = match tokenizer {
            Some(tokenizer) => self.look_at_canary(tokenizer)?,
            None => None,
        };
        if let Some(canary) = self.canary.as_ref().filter(|canary| !canary.passed) {
            self.failures.push(format!(
                "`{CANARY}` goes on with `{}`, not with `{}`",
                canary.got.escape_debug(),
                canary.expected.escape_debug()
            ));
        }
        self.passed = self.failures.is_empty();
        Ok(())
    }

    /// The known answer, where it was asked for and the baseline knows it.
    fn look_at_canary(&self, tokenizer: &Tokenizer) -> Result<Option<Canary>> {
        let asked = self.prompts.iter().find(|report| matches!(&report.prompt, Prompt::Text(text) if text == CANARY));
        let Some((report, (expected, got))) =
            asked.and_then(|report| Some((report, report.expected.first().zip(report.chosen.first())?)))
        else {
            return Ok(None);
        };
        let tied = report.flips.first().is_some_and(|flip| flip.step == 0 && holds(flip.outcome, false));
        let (expected, got) = (tokenizer.decode(&[*expected])?, tokenizer.decode(&[*got])?);
        let passed = expected == got || tied;
        Ok((expected.trim() == ANSWER).then_some(Canary { expected, got, passed }))
    }

    /// One line.
    pub fn summary(&self) -> String {
        let ties = match self.ties {
            0 => String::new(),
            1 => ", 1 tie".to_owned(),
            ties => format!(", {ties} ties"),
        };
        format!(
            "{}: {} of {} most likely tokens equal{ties}, lowest cosine {}, mean KL {}",
            if self.passed { "pass" } else { "FAIL" },
            self.equal,
            self.steps,
            fixed(self.worst.map(|worst| worst.cosine)),
            scientific(self.mean_kl),
        )
    }

    /// A row for each prompt, under [`Self::HEADER`].
    pub fn rows(&self) -> Vec<Vec<String>> {
        self.prompts
            .iter()
            .map(|report| {
                let prompt = match &report.prompt {
                    Prompt::Text(text) => quoted(text),
                    Prompt::Tokens(tokens) => format!("{tokens:?}"),
                };
                let said = report.text.as_deref().map_or_else(|| format!("{:?}", report.expected), quoted);
                vec![
                    shortened(&prompt, 34),
                    shortened(&said, 40),
                    format!("{}/{}", report.equal, report.expected.len()),
                    fixed(report.min_cosine),
                    scientific(report.mean_kl),
                    report.flips.first().map(Flip::to_string).unwrap_or_default(),
                ]
            })
            .collect()
    }

    /// Headings of [`Self::rows`].
    pub const HEADER: [&'static str; 6] = ["prompt", "baseline", "equal", "min cosine", "mean KL", "first divergence"];

    /// Columns of [`Self::rows`] that hold numbers.
    pub const NUMBERS: [usize; 3] = [2, 3, 4];

    /// Each tie, in words.
    pub fn tie_lines(&self) -> Vec<String> {
        let flips = self.prompts.iter().flat_map(|report| report.flips.iter().map(move |flip| (report, flip)));
        flips
            .filter(|(_, flip)| flip.outcome == Outcome::Tie)
            .map(|(report, flip)| format!("tie: {}, {flip}", report.prompt))
            .collect()
    }
}

impl std::fmt::Display for Flip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (expected, got) = match &self.texts {
            Some([expected, got]) => (quoted(expected), quoted(got)),
            None => (self.expected.to_string(), self.got.to_string()),
        };
        match (self.outcome, self.margin) {
            (Outcome::Tie, Some(margin)) => {
                write!(f, "step {}: {got} for {expected}, margin {margin:.4}, a tie", self.step)
            }
            (Outcome::Wrong, Some(margin)) => write!(f, "step {}: {got} for {expected}, margin {margin:.4}", self.step),
            _ => write!(f, "step {}: not finite", self.step),
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.escape_debug())
}

/// A cosine.
pub(super) fn fixed(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.5}"))
}

/// A divergence.
pub(super) fn scientific(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two prompts of two steps over four tokens.
    fn baseline() -> Baseline {
        let row = [9.0, 8.999, 1.0, -3.0];
        Baseline {
            prompts: vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])],
            tokens: None,
            steps: 2,
            vocab: 4,
            ids: vec![0; 4],
            logits: row.repeat(4),
            about: None,
        }
    }

    fn judge(options: Options, rows: [[f32; 4]; 4]) -> Report {
        let baseline = baseline();
        let mut report = Report::new(&baseline, &options);
        for prompt in 0..2 {
            let step = |step: usize| Step::new(0, baseline.logits(prompt, step), &rows[prompt * 2 + step]);
            report.add(&baseline, prompt, &[1], &[step(0), step(1)], None).unwrap();
        }
        report.finish(None).unwrap();
        report
    }

    const ASKED: Options = Options { min_cosine: 0.999, min_top1: 1.0, strict: false };
    const SAME: [f32; 4] = [9.0, 8.999, 1.0, -3.0];
    const TIED: [f32; 4] = [9.0, 9.001, 1.0, -3.0];
    const FAR: [f32; 4] = [9.0, 5.0, 1.0, -3.0];
    const WRONG: [f32; 4] = [8.99, 8.9, 9.0, -3.0];

    #[test]
    fn an_equal_chain_passes() {
        let report = judge(ASKED, [SAME; 4]);
        assert!(report.passed && report.failures.is_empty());
        assert_eq!((report.steps, report.equal, report.ties, report.wrong), (4, 4, 0, 0));
        assert_eq!(report.summary(), "pass: 4 of 4 most likely tokens equal, lowest cosine 1.00000, mean KL 0.0e0");
    }

    #[test]
    fn a_tie_is_listed_and_fails_only_where_it_is_told_to() {
        let report = judge(ASKED, [SAME, TIED, SAME, SAME]);
        assert!(report.passed, "{:?}", report.failures);
        assert_eq!((report.equal, report.ties, report.wrong), (3, 1, 0));
        assert_eq!(report.tie_lines(), ["tie: prompt `[1]`, step 1: 1 for 0, margin 0.0010, a tie"]);
        let strict = judge(Options { strict: true, ..ASKED }, [SAME, TIED, SAME, SAME]);
        assert_eq!(
            strict.failures,
            ["3 of 4 most likely tokens are right, 4 are asked for; not so at prompt `[1]`, step 1"]
        );
        let lenient = Options { strict: true, min_top1: 0.75, ..ASKED };
        assert!(judge(lenient, [SAME, TIED, SAME, SAME]).passed);
    }

    #[test]
    fn a_wrong_token_a_low_cosine_and_what_is_not_finite_fail_by_name() {
        let report = judge(Options { min_cosine: 0.0, ..ASKED }, [SAME, SAME, SAME, WRONG]);
        assert_eq!(report.failures.len(), 1);
        assert!(report.failures[0].ends_with("not so at prompt `[2, 3]`, step 1"), "{}", report.failures[0]);
        assert_eq!(report.prompts[1].flips[0].to_string(), "step 1: 2 for 0, margin 8.0000");

        let report = judge(ASKED, [SAME, SAME, FAR, SAME]);
        assert_eq!(report.worst.map(|worst| (worst.prompt, worst.step)), Some((1, 0)));
        assert_eq!(report.failures.len(), 1);
        assert!(report.failures[0].contains("0.999 is asked for (prompt `[2, 3]`, step 0)"), "{}", report.failures[0]);

        let lenient = Options { min_cosine: 0.0, min_top1: 0.0, strict: false };
        let report = judge(lenient, [SAME, [f32::NAN; 4], SAME, SAME]);
        assert_eq!(report.failures, ["prompt `[1]`, step 1: the chain's logits are not finite"]);
        let report = judge(lenient, [SAME, [0.0; 4], SAME, SAME]);
        assert_eq!(report.failures, ["prompt `[1]`, step 1: the chain's logits are all 0"]);
    }

    #[test]
    fn a_report_reads_back_from_json_even_where_it_holds_nothing_finite() {
        let report = judge(ASKED, [[f32::INFINITY; 4], TIED, WRONG, SAME]);
        let text = serde_json::to_string(&report).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(Report { kls: report.kls.clone(), ..read }, report);
    }
}
