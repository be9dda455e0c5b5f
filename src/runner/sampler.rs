//! The next token from logits.

use anyhow::{Result, bail};

use super::random::SplitMix64;

/// Chooses tokens.
#[derive(Clone, Debug)]
pub enum Sampler {
    /// The largest logit; of equal ones, the token with the smallest number.
    Greedy,
    /// At random.
    Random(Sampling),
}

/// How to choose at random. Filters apply in the order of the fields.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// Only so many of the largest logits.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together reach this probability.
    pub top_p: Option<f32>,
    /// Where chance comes from.
    pub random: SplitMix64,
}

impl Sampler {
    /// The next token. `logits` has one value for each token of the vocabulary.
    ///
    /// # Errors
    /// A logit is NaN or +∞, or all are -∞.
    pub fn next(&mut self, logits: &[f32]) -> Result<u32> {
        let largest = greedy(logits)?;
        match self {
            Self::Greedy => Ok(largest),
            Self::Random(sampling) => Ok(sampling.draw(logits)),
        }
    }
}

/// The token with the largest logit; of equal ones, the smallest number.
///
/// # Errors
/// A logit is NaN or +∞, or all are -∞.
pub fn greedy(logits: &[f32]) -> Result<u32> {
    let mut largest = (f32::NEG_INFINITY, None);
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            bail!("the logit of token {token} is {logit}");
        }
        if logit > largest.0 {
            largest = (logit, Some(token as u32));
        }
    }
    match largest.1 {
        Some(token) => Ok(token),
        None => bail!("there is no logit above -inf"),
    }
}

impl Sampling {
    fn draw(&mut self, logits: &[f32]) -> u32 {
        let mut candidates: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        candidates.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        candidates.truncate(self.top_k.unwrap_or(usize::MAX).max(1));
        let largest = candidates[0].1;
        let temperature = f64::from(self.temperature);
        let weight = |logit: f32| (f64::from(logit - largest) / temperature).exp();
        let mut weights: Vec<f64> = candidates.iter().map(|(_, logit)| weight(*logit)).collect();
        if let Some(top_p) = self.top_p {
            let wanted = f64::from(top_p) * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let enough = weights.iter().position(|weight| {
                sum += weight;
                sum >= wanted
            });
            weights.truncate(enough.map_or(weights.len(), |last| last + 1));
        }
        let mut left = self.uniform() * weights.iter().sum::<f64>();
        for ((token, _), weight) in candidates.iter().zip(&weights) {
            if left < *weight {
                return *token;
            }
            left -= weight;
        }
        // Rounding used up more than there is.
        candidates[0].0
    }

    /// The next number in [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32, top_k: Option<usize>, top_p: Option<f32>) -> Sampling {
        Sampling { temperature, top_k, top_p, random: SplitMix64(7) }
    }

    /// How often each of the tokens comes in 20,000 draws.
    fn shares(logits: &[f32], mut sampling: Sampling) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampling.draw(logits) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn close(found: &[f64], expected: &[f64]) {
        // Five standard deviations of 20,000 draws.
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.018), "{found:?}, not {expected:?}");
    }

    #[test]
    fn greedy_takes_the_largest_and_of_equal_ones_the_first() {
        assert_eq!(greedy(&[0.5, 2.0, -1.0, 2.0]).unwrap(), 1);
        assert_eq!(greedy(&[f32::NEG_INFINITY, -1e30]).unwrap(), 1);
        for (logits, message) in [
            ([1.0, f32::NAN], "the logit of token 1 is NaN"),
            ([f32::INFINITY, 1.0], "the logit of token 0 is inf"),
            ([f32::NEG_INFINITY; 2], "there is no logit above -inf"),
        ] {
            assert_eq!(greedy(&logits).unwrap_err().to_string(), message);
            assert!(Sampler::Random(sampling(1.0, None, None)).next(&logits).is_err());
        }
    }

    #[test]
    fn draws_have_the_probabilities_of_the_softmax() {
        let logits = [0.1_f32.ln(), 0.6_f32.ln(), 0.3_f32.ln(), f32::NEG_INFINITY];
        close(&shares(&logits, sampling(1.0, None, None)), &[0.1, 0.6, 0.3, 0.0]);
        // Squared by temperature 1/2: 0.01, 0.36, 0.09 of 0.46.
        close(&shares(&logits, sampling(0.5, None, None)), &[0.0217, 0.7826, 0.1957, 0.0]);
        close(&shares(&logits, sampling(1.0, Some(2), None)), &[0.0, 0.6667, 0.3333, 0.0]);
        close(&shares(&logits, sampling(1.0, None, Some(0.7))), &[0.0, 0.6667, 0.3333, 0.0]);
        close(&shares(&logits, sampling(1.0, None, Some(0.5))), &[0.0, 1.0, 0.0, 0.0]);
        close(&shares(&logits, sampling(1.0, Some(1), None)), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // First outputs of the reference implementation for seed 1234567: 6457827717110365317, 3203168211198807973.
        let mut sampling = Sampling { random: SplitMix64(1_234_567), ..sampling(1.0, None, None) };
        for expected in [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973] {
            assert_eq!(sampling.uniform(), (expected >> 11) as f64 / (1u64 << 53) as f64);
        }
    }
}
