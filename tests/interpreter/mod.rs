//! The interpreter of ML Programs: every op against coremltools' `value_inference` or numpy, whole programs of other
//! tools, the blocks that are baked, and packages that are malformed.

mod blocks;
mod cases;
mod corpus;
mod fuzz;
pub mod graph;
mod malformed;
mod programs;

use std::collections::BTreeMap;

use anebake::mil::Arithmetic;
use anebake::runner::{Array, Data};
use corpus::{Case, Corpus, Stored};

/// How near a value must be to what is expected.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Tolerance {
    /// The same value; zeros of either sign are.
    Exact,
    /// Units in the last place: of float16 where that is the dtype and the arithmetic, else of float32.
    Ulp(u32),
    /// So large a share of the largest expected value, and one unit in the last place of the dtype.
    Close(f64),
}

/// float16 or float32 bits as numbers that rise by one from value to value.
fn rank(value: f32, half: bool) -> i64 {
    let (bits, sign) = if half {
        (i64::from(half::f16::from_f32(value).to_bits()), 1 << 15)
    } else {
        (i64::from(value.to_bits()), 1 << 31)
    };
    if bits >= sign { sign - bits } else { bits }
}

impl Tolerance {
    /// Whether `got` may stand for `want`; `half`: both are float16.
    fn holds(self, got: f32, want: f32, largest: f64, half: bool) -> bool {
        if got == want || got.is_nan() && want.is_nan() {
            return true;
        }
        if !got.is_finite() || !want.is_finite() {
            return false;
        }
        let units = u64::from(rank(got, half).abs_diff(rank(want, half)) as u32);
        match self {
            Self::Exact => false,
            Self::Ulp(count) => units <= u64::from(count),
            Self::Close(share) => {
                units <= 1
                    || (f64::from(got) - f64::from(want)).abs() <= share * largest + if half { ulp(want) } else { 0.0 }
            }
        }
    }

    /// What is wrong with `got`, if anything is.
    fn compare(self, got: &Array, want: &Array, half: bool) -> Option<String> {
        if got.shape != want.shape {
            return Some(format!("shape {:?}, not {:?}", got.shape, want.shape));
        }
        match (&got.data, &want.data) {
            (Data::Int(got), Data::Int(want)) => (got != want).then(|| format!("{got:?}, not {want:?}")),
            (Data::Float(got), Data::Float(want)) => {
                let finite = want.iter().filter(|value| value.is_finite());
                let largest = finite.fold(0.0, |m: f64, value| m.max(f64::from(value.abs())));
                let wrong = got.iter().zip(want).position(|(got, want)| !self.holds(*got, *want, largest, half))?;
                Some(format!("[{wrong}] is {:?}, not {:?} ({self:?}, largest {largest})", got[wrong], want[wrong]))
            }
            _ => Some("another kind of values".to_owned()),
        }
    }
}

/// The distance to the next float16.
fn ulp(value: f32) -> f64 {
    let exponent = f64::from(value.abs()).max(2f64.powi(-14)).log2().floor();
    2f64.powf(exponent - 10.0)
}

/// Runs every call of a case in an arithmetic, on one state; what is wrong with it, if anything is.
fn run(corpus: &Corpus, case: &Case, arithmetic: Arithmetic, tolerance: Tolerance) -> Result<(), String> {
    let text = |error: anyhow::Error| format!("{error:#}");
    let model = corpus.open(case, arithmetic).map_err(text)?;
    let mut state = model.new_state().map_err(text)?;
    let half = case.half && arithmetic == Arithmetic::Fp16;
    for (step, call) in case.calls.iter().enumerate() {
        let named = |values: &BTreeMap<String, Stored>| -> BTreeMap<String, Array> {
            values.iter().map(|(name, value)| (name.clone(), corpus.array(value))).collect()
        };
        let got = model.predict("main", &named(&call.inputs), &mut state).map_err(text)?;
        let want = named(&call.outputs[arithmetic.as_str()]);
        if !got.keys().eq(want.keys()) {
            return Err(format!("outputs {:?}, not {:?}", got.keys(), want.keys()));
        }
        for (name, want) in &want {
            if let Some(wrong) = tolerance.compare(&got[name], want, half) {
                return Err(format!("call {step}, {arithmetic}, `{name}`: {wrong}"));
            }
        }
    }
    Ok(())
}
