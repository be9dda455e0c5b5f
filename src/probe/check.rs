//! The reference runner against the oracle, on every rung.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Rung;
use crate::mil::Arithmetic;
use crate::runner::{Array, ReferenceRunner, Runner};

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

/// Runs a rung's calls on the reference runner and compares with what the folder holds.
///
/// # Errors
/// An input fault: the package or its arrays are damaged, or an op fails.
pub fn check(folder: &Path, rung: &Rung) -> Result<Checked> {
    let package = rung.about.package(folder);
    let model = ReferenceRunner::new(Arithmetic::Fp16).open(&package)?;
    let mut state = model.new_state()?;
    let mut worst = Checked { cosine: 1.0, error: 0.0 };
    for (index, call) in rung.calls(folder, model.functions())?.iter().enumerate() {
        let within = || format!("call {index} of `{}`", rung.about.id);
        let outputs = model.predict(&call.function, &call.inputs, &mut state).with_context(within)?;
        for (name, expected) in &call.expected {
            let found = outputs.get(name).with_context(|| format!("no output `{name}`")).with_context(within)?;
            let one = compare(found, expected).with_context(|| format!("output `{name}`")).with_context(within)?;
            worst = Checked { cosine: worst.cosine.min(one.cosine), error: worst.error.max(one.error) };
        }
    }
    Ok(worst)
}

fn compare(found: &Array, expected: &Array) -> Result<Checked> {
    ensure!(found.shape == expected.shape, "shape is {:?}, not {:?}", found.shape, expected.shape);
    let (found, expected) = (found.floats()?, expected.floats()?);
    let (mut dot, mut norms, mut error, mut largest) = (0.0, [0.0; 2], 0.0_f64, 0.0_f64);
    for (&found, &expected) in found.iter().zip(expected) {
        let (found, expected) = (f64::from(found), f64::from(expected));
        ensure!(found.is_finite(), "it holds {found}");
        dot += found * expected;
        norms[0] += found * found;
        norms[1] += expected * expected;
        error = error.max((found - expected).abs());
        largest = largest.max(expected.abs());
    }
    ensure!(largest > 0.0, "the oracle gives zeros");
    Ok(Checked { cosine: dot / (norms[0] * norms[1]).sqrt(), error: error / largest })
}
