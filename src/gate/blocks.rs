//! How far each block's output is from what the model has there: alone, and in the chain, where errors add up.

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use half::f16;
use serde::{Deserialize, Serialize};

use super::verdict::{cosine, mean};
use super::{Baseline, Weights, along, plain};
use crate::error::Fault;
use crate::runner::{Chain, Rows};

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockReport {
    /// Its number.
    pub block: usize,
    /// Fed with what the model has before it.
    pub isolated: Deviation,
    /// Fed with what the chain has before it.
    pub cumulative: Deviation,
}

/// How far rows are from the model's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    /// Lowest cosine of a row; absent where a row is not finite.
    pub min_cosine: Option<f64>,
    /// Mean over rows of |difference| / |model's row|; absent where a row is not finite.
    pub relative_error: Option<f64>,
    /// Largest magnitude of a value.
    pub largest: f32,
}

/// Runs every block of the chain on the prompts and the baseline's continuations, `tokens` being those of the prompts.
///
/// # Errors
/// The weights are of another model than the chain, or a package fails.
pub fn measure(chain: &Chain, weights: &Weights, tokens: &[Vec<u32>], baseline: &Baseline) -> Result<Vec<BlockReport>> {
    let (config, file) = (weights.config(), chain.file());
    if (config.layers, config.hidden, config.vocab) != (file.model.layers, file.model.hidden, file.model.vocab) {
        return Err(Fault::usage(
            "the model is another than the chain's: other numbers of blocks, width or vocabulary",
        )
        .with_hint("name the model that was baked: `--model`")
        .into());
    }
    let width = config.hidden;
    let mut isolated = vec![Seen::default(); config.layers];
    let mut cumulative = vec![Seen::default(); config.layers];
    for (index, prompt) in tokens.iter().enumerate() {
        let all = along(prompt, baseline.ids(index));
        let mut stream: Vec<Vec<f32>> = Vec::with_capacity(config.layers + 1);
        plain::residual(weights, &all, &mut |_, hidden: &Tensor| {
            stream.push(hidden.flatten_all()?.to_vec1()?);
            Ok(())
        })?;
        let mut outputs = vec![Vec::with_capacity(all.len() * width); config.layers];
        chain
            .feed_watched(&mut chain.begin()?, &all, Rows::Last, &mut |block, rows| {
                outputs[block].extend_from_slice(rows);
            })
            .with_context(|| baseline.prompts[index].to_string())?;
        for block in 0..config.layers {
            let want = &stream[block + 1];
            cumulative[block].add(&outputs[block], want, width)?;
            // What a package is given is float16.
            let input: Vec<f32> = stream[block].iter().map(|&value| f16::from_f32(value).to_f32()).collect();
            isolated[block].add(&chain.block_alone(block, &input)?, want, width)?;
        }
    }
    let reports = isolated.iter().zip(&cumulative).enumerate();
    Ok(reports
        .map(|(block, (isolated, cumulative))| BlockReport {
            block,
            isolated: isolated.deviation(),
            cumulative: cumulative.deviation(),
        })
        .collect())
}

/// What was seen of a block's rows so far.
#[derive(Clone, Debug, Default)]
struct Seen {
    cosines: Vec<Option<f64>>,
    errors: Vec<f64>,
    largest: f32,
}

impl Seen {
    fn add(&mut self, got: &[f32], want: &[f32], width: usize) -> Result<()> {
        ensure!(got.len() == want.len(), "a block gave {} values, {} were expected", got.len(), want.len());
        for (got, want) in got.chunks(width).zip(want.chunks(width)) {
            self.cosines.push(cosine(got, want));
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
            let difference = norm(&mut got.iter().zip(want).map(|(got, want)| f64::from(*got) - f64::from(*want)));
            self.errors.push(difference / norm(&mut want.iter().map(|want| f64::from(*want))));
            self.largest = got.iter().fold(self.largest, |largest, value| largest.max(value.abs()));
        }
        Ok(())
    }

    fn deviation(&self) -> Deviation {
        let cosines: Option<Vec<f64>> = self.cosines.iter().copied().collect();
        Deviation {
            min_cosine: cosines.and_then(|cosines| cosines.into_iter().reduce(f64::min)),
            relative_error: mean(&self.errors).filter(|error| error.is_finite()),
            largest: self.largest,
        }
    }
}

impl BlockReport {
    /// Headings of [`Self::row`].
    pub const HEADER: [&'static str; 6] =
        ["block", "alone: min cosine", "error", "in the chain: min cosine", "error", "largest value"];

    /// Columns of [`Self::row`] that hold numbers: all.
    pub const NUMBERS: [usize; 6] = [0, 1, 2, 3, 4, 5];

    /// A row of a table.
    pub fn row(&self) -> Vec<String> {
        let cosine = |value: Option<f64>| value.map_or_else(|| "not finite".to_owned(), |value| format!("{value:.6}"));
        let error = |value: Option<f64>| super::report::scientific(value);
        vec![
            self.block.to_string(),
            cosine(self.isolated.min_cosine),
            error(self.isolated.relative_error),
            cosine(self.cumulative.min_cosine),
            error(self.cumulative.relative_error),
            format!("{:.1}", self.cumulative.largest),
        ]
    }
}
