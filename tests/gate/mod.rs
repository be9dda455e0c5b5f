//! The gate: baselines, their files, the verdict on sound chains and on chains with a planted fault.

mod baseline;
mod command;
mod convert;
mod faults;
mod inside;
mod npz;

use std::path::{Path, PathBuf};

use anebake::checkpoint::Checkpoint;
use anebake::gate::{self, Baseline, Options, Prompt, Report, Weights};
use anebake::mil::Arithmetic;
use anebake::runner::{Chain, ReferenceRunner, Runner};

use crate::support::{Bench, Random, TinyModel};

/// Steps of every continuation.
const STEPS: usize = 6;

/// What every chain here must reach, as the default recipe has it.
const OPTIONS: Options = Options { min_cosine: 0.999, min_top1: 1.0, strict: false };

/// Random prompts: of a few tokens, and one that fills more than one prefill.
fn prompts() -> Vec<Prompt> {
    let mut random = Random(77);
    let mut tokens = |count: usize| (0..count).map(|_| (random.bits() % 96) as u32).collect();
    [5, 12, 3, 75].map(|count| Prompt::Tokens(tokens(count))).to_vec()
}

/// The baseline of prompts like [`prompts`] to which a random model gives clear answers: of a dozen of each length, the
/// one whose likeliest two logits are never near each other. Rounding then does not reorder them, on any processor.
fn clear_baseline(weights: &Weights) -> Baseline {
    let mut random = Random(78);
    let mut chosen = Vec::new();
    for prompt in prompts() {
        let Prompt::Tokens(tokens) = prompt else { panic!("{prompt} is no list of tokens") };
        let mut prompt = || Prompt::Tokens(tokens.iter().map(|_| (random.bits() % 96) as u32).collect());
        let candidates: Vec<Prompt> = (0..12).map(|_| prompt()).collect();
        let baseline = Baseline::compute(weights, &candidates, None, STEPS).unwrap();
        let clear = |index: usize| (0..STEPS).map(|step| margin(baseline.logits(index, step))).fold(1.0, f32::min);
        let best = (0..candidates.len()).max_by(|a, b| clear(*a).total_cmp(&clear(*b))).unwrap();
        chosen.push(candidates[best].clone());
    }
    Baseline::compute(weights, &chosen, None, STEPS).unwrap()
}

/// How far the two largest logits are apart, as a share of the largest.
fn margin(logits: &[f32]) -> f32 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(f32::total_cmp);
    let [.., second, first] = sorted[..] else { panic!("fewer than two logits") };
    (first - second) / first.abs()
}

fn weights(model: &Path) -> Weights {
    Weights::load(&Checkpoint::open(model).unwrap()).unwrap()
}

/// A baked model and what it should say.
struct Baked {
    bench: Bench,
    baseline: Baseline,
}

impl Baked {
    fn new(model: &TinyModel, arguments: &[&str]) -> Self {
        let bench = Bench::new(model);
        bench.convert(arguments);
        let baseline = clear_baseline(&weights(&bench.path("model")));
        Self { bench, baseline }
    }

    fn out(&self) -> PathBuf {
        self.bench.path("out")
    }

    fn judge_with(&self, runner: &dyn Runner) -> Report {
        gate::run(&Chain::open(&self.out(), runner).unwrap(), None, &self.baseline, &OPTIONS).unwrap()
    }

    fn judge(&self, arithmetic: Arithmetic) -> Report {
        self.judge_with(&ReferenceRunner::new(arithmetic))
    }

    /// The chain as it was baked passes.
    #[track_caller]
    fn passes(&self) {
        let report = self.judge(Arithmetic::Fp16);
        assert!(report.passed, "{}: {:?}", report.summary(), report.failures);
    }

    /// The chain, changed, fails, and not by a hair.
    #[track_caller]
    fn fails(&self, what: &str) {
        let report = self.judge(Arithmetic::Fp16);
        assert!(!report.passed, "{what} goes unnoticed: {}", report.summary());
        assert!(report.worst.is_none_or(|worst| worst.cosine < 0.998), "{what}: {}", report.summary());
    }
}
