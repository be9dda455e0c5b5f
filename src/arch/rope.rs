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
                table.extend(frequencies.iter().map(|frequency| f16::from_f64(function(position as f64 * frequency))));
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
