//! How well model and chain predict a text: many more positions than the gate's prompts have.
//!
//! The model's side is the plain forward pass, which gives all positions of a window at once.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::baseline::top1;
use super::verdict::{kl, log_sum_exp, mean, quantile};
use super::{Weights, plain};
use crate::error::Fault;
use crate::runner::{Chain, Rows};

/// The longest window: the plain forward pass takes tokens² floats for the scores of a head.
const MAX_WINDOW: usize = 2048;
/// Positions whose logits are held at a time.
const ROWS: usize = 64;

/// What was found on a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerplexityReport {
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens of a window; each begins anew.
    pub window: usize,
    /// Tokens that were predicted: all but each window's first.
    pub predictions: usize,
    /// Perplexity of the model in float32: e to the mean surprise.
    pub baseline: f64,
    /// Perplexity of the chain; absent where its logits are not finite.
    pub chain: Option<f64>,
    /// Mean KL(model ‖ chain) in nats; absent where the chain's logits are not finite.
    pub mean_kl: Option<f64>,
    /// 99 % quantile of it.
    pub kl_99: Option<f64>,
    /// Share of positions where both have the same most likely token.
    pub top1: f64,
}

impl PerplexityReport {
    /// What was found, in a sentence about the text in `file`.
    pub fn sentence(&self, file: &std::path::Path) -> String {
        let Some(((chain, mean_kl), kl_99)) = self.chain.zip(self.mean_kl).zip(self.kl_99) else {
            return format!(
                "{}: perplexity {:.4} of the model; the chain's logits are not finite",
                file.display(),
                self.baseline
            );
        };
        format!(
            "{}: perplexity {chain:.4}, of the model {:.4} ({:+.2} %); KL {mean_kl:.1e}, 99 % {kl_99:.1e}; {:.2} % of \
             {} most likely tokens equal, windows of {}",
            file.display(),
            self.baseline,
            100.0 * (chain / self.baseline - 1.0),
            100.0 * self.top1,
            self.predictions,
            self.window,
        )
    }
}

/// Compares both on a text, window by window.
///
/// # Errors
/// A usage fault where the text has fewer than two tokens or one that the vocabulary lacks, or where the weights are of
/// another model.
pub fn measure(chain: &Chain, weights: &Weights, tokens: &[u32]) -> Result<PerplexityReport> {
    let file = chain.file();
    if weights.config().vocab != file.model.vocab {
        return Err(Fault::usage(format!(
            "the model has a vocabulary of {}, the chain one of {}",
            weights.config().vocab,
            file.model.vocab
        ))
        .into());
    }
    if tokens.len() < 2 {
        return Err(Fault::usage("the text has fewer than two tokens: there is nothing to predict").into());
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= file.model.vocab) {
        return Err(Fault::usage(format!("token {token} is none of the {} of the vocabulary", file.model.vocab)).into());
    }
    let window = file.context.min(MAX_WINDOW);
    let mut seen = Seen::default();
    for (number, tokens) in tokens.chunks(window).enumerate().filter(|(_, tokens)| tokens.len() > 1) {
        window_of(chain, weights, tokens, &mut seen).with_context(|| format!("window {number} of the text"))?;
    }
    let all = |values: &[f64]| values.iter().all(|value| value.is_finite()).then(|| values.to_vec());
    let kls = all(&seen.kls);
    Ok(PerplexityReport {
        tokens: tokens.len(),
        window,
        predictions: seen.baseline.len(),
        baseline: mean(&seen.baseline).context("nothing was predicted")?.exp(),
        chain: all(&seen.chain).and_then(|surprises| mean(&surprises)).map(f64::exp).filter(|value| value.is_finite()),
        mean_kl: kls.as_deref().and_then(mean),
        kl_99: kls.as_deref().and_then(|kls| quantile(kls, 0.99)),
        top1: seen.equal as f64 / seen.baseline.len() as f64,
    })
}

/// What was seen so far, position by position.
#[derive(Default)]
struct Seen {
    /// -ln of the probability that the model gave to the token that came.
    baseline: Vec<f64>,
    /// The same of the chain; NaN where its logits are not finite.
    chain: Vec<f64>,
    kls: Vec<f64>,
    equal: usize,
}

fn window_of(chain: &Chain, weights: &Weights, tokens: &[u32], seen: &mut Seen) -> Result<()> {
    let hidden = plain::residual(weights, tokens, &mut |_, _| Ok(()))?;
    let mut session = chain.begin()?;
    // The last token predicts what the window does not hold.
    let inputs = &tokens[..tokens.len() - 1];
    for (index, part) in inputs.chunks(ROWS).enumerate() {
        let first = index * ROWS;
        let model: Vec<Vec<f32>> = plain::logits(weights, &hidden.narrow(0, first, part.len())?)?.to_vec2()?;
        let chain = chain.feed(&mut session, part, Rows::All)?;
        for (row, (model, chain)) in model.iter().zip(&chain).enumerate() {
            let next = tokens[first + row + 1] as usize;
            let surprise = |logits: &[f32]| log_sum_exp(logits) - f64::from(logits[next]);
            let finite = chain.iter().all(|value| value.is_finite());
            seen.baseline.push(surprise(model));
            seen.chain.push(if finite { surprise(chain) } else { f64::NAN });
            seen.kls.push(kl(model, chain).filter(|_| finite).unwrap_or(f64::NAN));
            seen.equal += usize::from(finite && top1(model) == top1(chain));
        }
    }
    Ok(())
}
