//! The reference runner against the oracle, on every rung.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Rung;
use crate::runner::Model;
use crate::smoke::{Case, Comparison};

/// Least cosine between an output of the reference runner and the oracle's.
const MIN_COSINE: f64 = 0.9999;
/// Largest error of an output, as a share of its largest value: sums of float16 in another order, through 28 blocks.
const MAX_ERROR: f64 = 1.0 / 64.0;

/// What a rung's outputs are like, over all its calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// Least cosine of an output.
    pub cosine: f64,
    /// Largest error, as a share of the output's largest value.
    pub error: f64,
}

impl Checked {
    /// Whether that is what rounding explains.
    pub fn agrees(&self) -> bool {
        self.cosine >= MIN_COSINE && self.error <= MAX_ERROR
    }
}

/// Runs the cases of a rung on the reference runner and compares with what they expect.
///
/// # Errors
/// An op fails, or an output is no other's image.
pub(super) fn check(model: &dyn Model, rung: &Rung, cases: &[Case]) -> Result<Checked> {
    let mut state = model.new_state()?;
    let mut worst = Checked { cosine: 1.0, error: 0.0 };
    for (index, call) in cases.iter().enumerate() {
        let mut one = || -> Result<()> {
            let outputs = model.predict(&call.function, &call.inputs, &mut state)?;
            for found in Comparison::of_all(&outputs, &call.expected)? {
                let largest = call.expected[&found.output].floats()?.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                ensure!(largest > 0.0, "the oracle's `{}` is zero", found.output);
                let whole = found.cosine.filter(|_| found.not_finite == 0);
                worst.cosine = worst.cosine.min(whole.unwrap_or(-1.0));
                worst.error = worst.error.max(f64::from(found.largest_error / largest));
            }
            Ok(())
        };
        one().with_context(|| format!("call {index} of `{}`", rung.about.id))?;
    }
    Ok(worst)
}
