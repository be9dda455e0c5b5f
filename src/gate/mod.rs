//! The gate: whether a baked chain says what its model says.
//!
//! The chain is run along the baseline's own tokens and its logits are held against the baseline's, step by step
//! ([`run`]). It passes where every most likely token is the baseline's, ties apart, and every cosine is high enough.
//! Owns prompts, baselines and their files, the verdict, and what helps to understand a failing one: block by block
//! ([`blocks`]), on a text ([`perplexity`]), and which weights to keep in float16 ([`hints`]). How packages are run is
//! left to `runner`.

mod baseline;
pub mod blocks;
mod file;
pub mod hints;
pub mod npz;
pub mod perplexity;
pub mod plain;
mod prompts;
mod report;
pub mod verdict;
mod weights;

use anyhow::{Context, Result};

use crate::error::Fault;
use crate::recipe::Gate;
use crate::runner::{Chain, Rows};
use crate::tokenizer::Tokenizer;

pub use baseline::{About, Baseline, CandleModel};
pub use prompts::Prompt;
pub use report::{Canary, Flip, PromptReport, Report, Thresholds, Worst};
pub use weights::Weights;

use verdict::{Outcome, Step};

/// The prompt whose answer everybody knows.
const CANARY: &str = "The capital of France is";
/// And the answer.
const ANSWER: &str = "Paris";

/// What the chain must reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Least cosine between a step's logits and the baseline's.
    pub min_cosine: f64,
    /// Least share of steps whose most likely token is the baseline's, or tied with it.
    pub min_top1: f64,
    /// Count a tie as wrong.
    pub strict: bool,
}

impl From<&Gate> for Options {
    fn from(gate: &Gate) -> Self {
        Self { min_cosine: gate.min_cosine, min_top1: gate.min_top1, strict: false }
    }
}

/// Judges a chain. `tokenizer` is the chain's own: it must make the baseline's tokens of the baseline's texts.
///
/// # Errors
/// A usage fault where baseline and chain cannot be compared (vocabulary, a prompt that does not fit the context, a
/// text without tokenizer), and whatever stops a package. A chain that says the wrong thing is no error.
pub fn run(chain: &Chain, tokenizer: Option<&Tokenizer>, baseline: &Baseline, options: &Options) -> Result<Report> {
    let fed = prompt_tokens(chain, tokenizer, baseline)?;
    let mut report = Report::new(baseline, options);
    for (index, prompt) in baseline.prompts.iter().enumerate() {
        if let (Prompt::Text(text), Some(tokenizer)) = (prompt, tokenizer) {
            let own = tokenizer.encode(text, true)?;
            if own != fed[index] {
                report.failures.push(format!(
                    "{prompt}: the chain's tokenizer makes other tokens of it, {own:?}, than the baseline has, {:?}",
                    fed[index]
                ));
            }
        }
        let steps = steps(chain, &fed[index], baseline, index).with_context(|| prompt.to_string())?;
        report.add(baseline, index, &fed[index], &steps, tokenizer)?;
    }
    report.finish(tokenizer)?;
    Ok(report)
}

/// The tokens of each prompt: the baseline's, or where it has none those of the chain's tokenizer.
///
/// # Errors
/// A usage fault: see [`run`].
pub fn prompt_tokens(chain: &Chain, tokenizer: Option<&Tokenizer>, baseline: &Baseline) -> Result<Vec<Vec<u32>>> {
    let model = &chain.file().model;
    if baseline.vocab != model.vocab {
        return Err(Fault::usage(format!(
            "the baseline has {} logits a step, the chain {}: they are of different models",
            baseline.vocab, model.vocab
        ))
        .with_hint("compare with the model that was baked: `--model`, or a baseline of it")
        .into());
    }
    let tokens = match &baseline.tokens {
        Some(tokens) => tokens.clone(),
        None => baseline.prompts.iter().map(|prompt| prompt.tokens(tokenizer)).collect::<Result<_>>()?,
    };
    check_prompts(chain, &baseline.prompts, &tokens, baseline.steps)?;
    Ok(tokens)
}

/// Checks that a chain can be asked these prompts, of these tokens, and continue them by `steps`.
///
/// # Errors
/// A usage fault that names the prompt: a token that the vocabulary lacks, or more than the context holds.
pub fn check_prompts(chain: &Chain, prompts: &[Prompt], tokens: &[Vec<u32>], steps: usize) -> Result<()> {
    let (model, context) = (&chain.file().model, chain.file().context);
    for (prompt, tokens) in prompts.iter().zip(tokens) {
        if let Some(token) = tokens.iter().find(|token| **token as usize >= model.vocab) {
            return Err(Fault::usage(format!(
                "{prompt}: token {token} is none of the {} of the vocabulary",
                model.vocab
            ))
            .into());
        }
        // The last token of a continuation is not fed.
        let needed = tokens.len() + steps - 1;
        if needed > context {
            return Err(Fault::usage(format!(
                "{prompt}: {} tokens and {steps} steps take {needed} positions, the chain's context has {context}",
                tokens.len()
            ))
            .with_hint("use a shorter prompt or fewer `--steps`, or bake with a larger `--set package.context=…`")
            .into());
        }
    }
    Ok(())
}

/// The chain along the baseline's tokens, as a conversation goes: the prompt at once, then token by token.
fn steps(chain: &Chain, tokens: &[u32], baseline: &Baseline, prompt: usize) -> Result<Vec<Step>> {
    let ids = baseline.ids(prompt);
    let mut session = chain.begin()?;
    let mut next = tokens;
    let mut steps = Vec::with_capacity(ids.len());
    for (step, expected) in ids.iter().enumerate() {
        let mut rows = chain.feed(&mut session, next, Rows::Last).with_context(|| format!("step {step}"))?;
        let row = rows.pop().context("the chain gave no logits")?;
        steps.push(Step::new(*expected, baseline.logits(prompt, step), &row));
        next = &ids[step..=step];
    }
    Ok(steps)
}

/// The chain along the baseline's tokens, all positions of a prompt at once: the same logits up to rounding, sooner.
fn steps_at_once(chain: &Chain, tokens: &[u32], baseline: &Baseline, prompt: usize) -> Result<Vec<Step>> {
    let ids = baseline.ids(prompt);
    let rows = chain.feed(&mut chain.begin()?, &along(tokens, ids), Rows::All)?;
    let rows = rows.iter().skip(tokens.len() - 1);
    let steps = ids.iter().zip(rows).enumerate();
    Ok(steps.map(|(step, (expected, row))| Step::new(*expected, baseline.logits(prompt, step), row)).collect())
}

/// A prompt and its continuation, but for the last token, which nothing follows.
fn along(tokens: &[u32], ids: &[u32]) -> Vec<u32> {
    tokens.iter().chain(&ids[..ids.len() - 1]).copied().collect()
}

/// Whether a step is good enough in its token.
fn holds(outcome: Outcome, strict: bool) -> bool {
    match outcome {
        Outcome::Equal => true,
        Outcome::Tie => !strict,
        Outcome::Wrong | Outcome::NotFinite => false,
    }
}
