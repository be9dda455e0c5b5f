//! Cosines and sines of rotary position embedding.
//!
//! The same tables as the graphs of `kv = "slice"` hold (python/anebake/rope.py). Functions come from `libm`, which is the
//! same code on every system: so are the bytes.

use half::f16;

use super::{ModelConfig, RopeScaling};

impl ModelConfig {
    /// float16 [2, context, head_dim]: the cosines of every position, then the sines. Both halves of a row are the same
    /// frequencies.
    pub fn rope_table(&self, context: usize) -> Vec<f16> {
        let frequencies = self.rope_frequencies();
        let mut table = Vec::with_capacity(2 * context * self.head_dim);
        for function in [libm::cos, libm::sin] {
            for position in 0..context {
                let start = table.len();
                table.extend(frequencies.iter().map(|frequency| to_f16(function(position as f64 * frequency))));
                table.extend_from_within(start..);
            }
        }
        table
    }

    /// Angle for each position, in radians: `theta^(-2i/head_dim)` after scaling, head_dim / 2 values.
    fn rope_frequencies(&self) -> Vec<f64> {
        let plain =
            (0..self.head_dim).step_by(2).map(|i| libm::pow(self.rope_theta, -(i as f64) / self.head_dim as f64));
        match &self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            RopeScaling::Divisors { divisors } => {
                plain.zip(divisors).map(|(frequency, &divisor)| frequency / f64::from(divisor)).collect()
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => plain
                .map(|frequency| {
                    // Long waves are stretched, short ones stay, those between are blended.
                    let turns = original_max_positions as f64 * frequency / std::f64::consts::TAU;
                    let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    (1.0 - keep) * frequency / factor + keep * frequency
                })
                .collect(),
        }
    }
}

/// `value` as the nearest float16, ties to even. `f16::from_f64` rounds to float32 on the way where the CPU converts no
/// other floats, and that twice-rounded value is another one now and then.
fn to_f16(value: f64) -> f16 {
    let nearest = value as f32;
    let bits = match f64::from(nearest) {
        same if same == value => nearest.to_bits(),
        // Rounded to odd: the last bit tells that something was cut off, so the next rounding sees on which side it was.
        larger if larger.abs() > value.abs() => (nearest.to_bits() - 1) | 1,
        _ => nearest.to_bits() | 1,
    };
    f16::from_f32(f32::from_bits(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_once() {
        // Just below and above the middle between two float16, nearer to it than float32 tells.
        let (low, high) = (f16::from_f32(0.5), f16::from_f32(0.5 + 2.0f32.powi(-11)));
        let middle = 0.5 + 2.0f64.powi(-12);
        for sign in [1.0, -1.0] {
            let signed = |value: f16| if sign > 0.0 { value } else { -value };
            assert_eq!(to_f16(sign * (middle - 1e-12)), signed(low));
            assert_eq!(to_f16(sign * middle), signed(low), "a tie goes to the even one");
            assert_eq!(to_f16(sign * (middle + 1e-12)), signed(high));
        }
        for exact in [0.0, -0.0, 1.0, -1.0, 0.333_251_953_125] {
            assert_eq!(to_f16(exact).to_bits(), f16::from_f32(exact as f32).to_bits());
        }
        assert_eq!(to_f16(1e-9), f16::ZERO);
    }
}
