//! What two rows of logits have to do with each other, and when the chain's is good enough.

use serde::{Deserialize, Serialize};

use super::baseline::top1;

/// How a step of the chain came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The chain's most likely token is the baseline's.
    Equal,
    /// It is another, whose logit in the baseline is less than a float16 step below the largest: no float16 chain can
    /// be asked to order the two.
    Tie,
    /// It is another.
    Wrong,
    /// A logit of the chain is infinite or no number.
    NotFinite,
}

/// A step of the chain beside the baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How it came out.
    pub outcome: Outcome,
    /// The chain's most likely token.
    pub chosen: u32,
    /// In the baseline: logit of its own token less that of the chosen one; 0 where they are the same.
    pub margin: f32,
    /// Cosine of the two rows of logits; absent where the chain's is not finite.
    pub cosine: Option<f64>,
    /// KL(baseline ‖ chain) in nats; absent where the chain's row is not finite.
    pub kl: Option<f64>,
}

impl Step {
    /// Compares the chain's logits with those of the baseline, whose token is `expected`: the place of its largest.
    pub fn new(expected: u32, baseline: &[f32], chain: &[f32]) -> Self {
        let chosen = top1(chain);
        let margin = baseline[expected as usize] - baseline[chosen as usize];
        let finite = chain.iter().all(|value| value.is_finite());
        let outcome = match (finite, chosen == expected) {
            (false, _) => Outcome::NotFinite,
            (true, true) => Outcome::Equal,
            (true, false) if is_tie(baseline[expected as usize], baseline[chosen as usize]) => Outcome::Tie,
            (true, false) => Outcome::Wrong,
        };
        let (cosine, kl) = if finite { (cosine(baseline, chain), kl(baseline, chain)) } else { (None, None) };
        Self { outcome, chosen, margin, cosine, kl }
    }
}

/// Whether two logits differ by less than one float16 step at the magnitude of the larger.
pub fn is_tie(a: f32, b: f32) -> bool {
    f64::from(a - b).abs() < float16_step(a.abs().max(b.abs()))
}

/// The distance between float16 numbers at a magnitude: 2^(e-10) for 2^e ≤ magnitude < 2^(e+1), and 2^-24 below 2^-14.
pub fn float16_step(magnitude: f32) -> f64 {
    // The exponent as float32 holds it; float32's own subnormals are far below float16's smallest step.
    let exponent = (magnitude.to_bits() >> 23 & 0xff) as i32 - 127;
    2f64.powi(exponent.max(-14) - 10)
}

/// Cosine of the angle between two rows; absent where one of them has no direction.
pub fn cosine(a: &[f32], b: &[f32]) -> Option<f64> {
    let (mut dot, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (f64::from(a), f64::from(b));
        dot += a * b;
        aa += a * a;
        bb += b * b;
    }
    Some(dot / (aa.sqrt() * bb.sqrt())).filter(|cosine| cosine.is_finite())
}

/// KL divergence of the distributions that two rows of logits stand for, in nats: Σ p (ln p - ln q).
pub fn kl(p: &[f32], q: &[f32]) -> Option<f64> {
    let (p_norm, q_norm) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - p_norm, f64::from(q) - q_norm);
        p.exp() * (p - q)
    });
    // Rounding may leave a distance of nothing a little below it.
    Some(terms.sum::<f64>().max(0.0)).filter(|kl| kl.is_finite())
}

/// ln Σ e^x, from the largest on.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = f64::from(largest);
    logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln() + largest
}

/// The mean; absent where there is nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The value below which a share of all lies, linear between neighbours as in numpy's `quantile`.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(low + (high - low) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: Option<f64>, want: f64) {
        let got = got.unwrap();
        assert!((got - want).abs() <= 1e-9 * want.abs().max(1e-3), "{got} is not {want}");
    }

    #[test]
    fn float16_steps_are_those_of_the_format() {
        for (magnitude, step) in [
            (1.0, 2f64.powi(-10)),
            (1.999, 2f64.powi(-10)),
            (2.0, 2f64.powi(-9)),
            (18.3, 2f64.powi(-6)),
            (65504.0, 32.0),
            (0.0, 2f64.powi(-24)),
            (1e-30, 2f64.powi(-24)),
            (6.2e-5, 2f64.powi(-24)),
        ] {
            assert_eq!(float16_step(magnitude), step, "{magnitude}");
            let here = half::f16::from_f32(magnitude);
            let next = half::f16::from_bits(here.to_bits() + 1);
            if next.is_finite() && magnitude != 1.999 {
                assert_eq!(f64::from(next.to_f32() - here.to_f32()), step, "{magnitude}");
            }
        }
    }

    #[test]
    fn a_tie_is_less_than_a_step_apart_at_the_larger_magnitude() {
        let step = 2f32.powi(-6);
        assert!(is_tie(18.0, 18.0));
        assert!(is_tie(18.0, 18.0 - step / 2.0));
        assert!(!is_tie(18.0, 18.0 - step));
        assert!(!is_tie(18.0, 18.0 + step));
        assert!(is_tie(-18.0, -18.0 + step / 2.0));
        // 16 is the larger: steps above it are twice those below.
        assert!(is_tie(16.0, 16.0 - step * 0.75));
        assert!(!is_tie(15.99, 15.99 - step * 0.75));
    }

    #[test]
    fn outcomes_follow_the_largest_logit_and_the_tie_rule() {
        let baseline = [18.0, 17.999, 3.0, -2.0];
        let outcome = |chain: [f32; 4]| Step::new(0, &baseline, &chain).outcome;
        assert_eq!(outcome(baseline), Outcome::Equal);
        assert_eq!(outcome([17.0, 17.5, 3.0, -2.0]), Outcome::Tie);
        assert_eq!(outcome([17.0, 16.0, 18.0, -2.0]), Outcome::Wrong);
        assert_eq!(outcome([18.0, f32::NAN, 3.0, -2.0]), Outcome::NotFinite);
        assert_eq!(outcome([18.0, 3.0, f32::NEG_INFINITY, -2.0]), Outcome::NotFinite);
        // Both logits equal: the first wins, here the baseline's.
        assert_eq!(outcome([18.0, 18.0, 3.0, -2.0]), Outcome::Equal);
        let step = Step::new(0, &baseline, &[17.0, 16.0, 18.0, -2.0]);
        assert_eq!((step.chosen, step.margin), (2, 15.0));
        let broken = Step::new(0, &baseline, &[f32::NAN; 4]);
        assert_eq!((broken.cosine, broken.kl), (None, None));
    }

    #[test]
    fn cosine_and_kl_are_those_worked_out_by_hand() {
        near(cosine(&[3.0, 4.0], &[4.0, 3.0]), 0.96);
        near(cosine(&[1.0, 0.0], &[-2.0, 0.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), None);
        // p = (3/4, 1/4), q = (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2, wherever the logits lie.
        let want = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        let three = 3f32.ln();
        let got = kl(&[three, 0.0], &[7.0, 7.0]).unwrap();
        assert!((got - want).abs() < 1e-7, "{got} is not {want}");
        near(kl(&[5.0, 1.0], &[105.0, 101.0]), 0.0);
        // Logits that would overflow when raised.
        assert!(kl(&[30_000.0, 0.0], &[29_000.0, 0.0]).unwrap() < 1e-12);
    }

    #[test]
    fn quantiles_are_numpys() {
        let values = [4.0, 1.0, 3.0, 2.0];
        near(quantile(&values, 0.5), 2.5);
        near(quantile(&values, 0.99), 3.97);
        near(quantile(&[7.0], 0.99), 7.0);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(mean(&[]), None);
        near(mean(&values), 2.5);
    }
}
