//! Dot products of a stored row with a float32 vector, and decoding of rows. AVX2, FMA and F16C where the machine has
//! them, else plain loops; the two differ in the order of summation only, and where rows are decoded not at all.

use half::f16;

/// Σ w·x over float16 weights, little-endian.
pub(super) fn halves(weights: &[u8], x: &[f32]) -> f32 {
    debug_assert_eq!(weights.len(), x.len() * 2);
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::halves(weights, x) };
    }
    portable::sum(weights.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()), x)
}

/// Σ (q·scale)·x over int8 weights; with `round`, each product q·scale is a float16.
pub(super) fn int8(weights: &[u8], scale: f32, round: bool, x: &[f32]) -> f32 {
    debug_assert_eq!(weights.len(), x.len());
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe {
            if round { x86::int8::<true>(weights, scale, x) } else { x86::int8::<false>(weights, scale, x) }
        };
    }
    portable::sum(weights.iter().map(|&byte| portable::dequantized(byte, scale, round)), x)
}

/// Σ w·x over float32 weights.
pub(in crate::mil) fn floats(weights: &[f32], x: &[f32]) -> f32 {
    debug_assert_eq!(weights.len(), x.len());
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::floats(weights, x) };
    }
    portable::sum(weights.iter().copied(), x)
}

/// Σ w·x of two rows of float16 weights with each of four vectors.
pub(super) fn halves_by_four(rows: [&[u8]; 2], x: [&[f32]; 4]) -> [[f32; 4]; 2] {
    debug_assert!(x.iter().all(|x| rows.iter().all(|row| row.len() == x.len() * 2)));
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::halves_by_four(rows, x) };
    }
    rows.map(|row| x.map(|x| halves(row, x)))
}

/// Σ (q·scale)·x of two rows of int8 weights with each of four vectors; with `round`, each product q·scale is a float16.
pub(super) fn int8_by_four(rows: [&[u8]; 2], scales: [f32; 2], round: bool, x: [&[f32]; 4]) -> [[f32; 4]; 2] {
    debug_assert!(x.iter().all(|x| rows.iter().all(|row| row.len() == x.len())));
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe {
            if round { x86::int8_by_four::<true>(rows, scales, x) } else { x86::int8_by_four::<false>(rows, scales, x) }
        };
    }
    std::array::from_fn(|row| x.map(|x| int8(rows[row], scales[row], round, x)))
}

/// `out += factor * row`
pub(in crate::mil) fn add_scaled(row: &[f32], factor: f32, out: &mut [f32]) {
    debug_assert_eq!(row.len(), out.len());
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::add_scaled(row, factor, out) };
    }
    out.iter_mut().zip(row).for_each(|(out, value)| *out += factor * value);
}

/// float16 weights as float32.
pub(super) fn decode_halves(weights: &[u8], out: &mut [f32]) {
    debug_assert_eq!(weights.len(), out.len() * 2);
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::decode_halves(weights, out) };
    }
    let values = weights.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32());
    out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
}

/// int8 weights times their scale, as float32; with `round` they are float16 values.
pub(super) fn decode_int8(weights: &[u8], scale: f32, round: bool, out: &mut [f32]) {
    debug_assert_eq!(weights.len(), out.len());
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe {
            if round {
                x86::decode_int8::<true>(weights, scale, out);
            } else {
                x86::decode_int8::<false>(weights, scale, out);
            }
        };
    }
    out.iter_mut().zip(weights).for_each(|(out, &byte)| *out = portable::dequantized(byte, scale, round));
}

mod portable {
    use half::f16;

    pub(super) fn dequantized(byte: u8, scale: f32, round: bool) -> f32 {
        let value = f32::from(byte as i8) * scale;
        if round { f16::from_f32(value).to_f32() } else { value }
    }

    /// Eight partial sums, which the compiler can keep in vectors.
    pub(super) fn sum(weights: impl Iterator<Item = f32>, x: &[f32]) -> f32 {
        let mut sums = [0.0f32; 8];
        for (i, (weight, x)) in weights.zip(x).enumerate() {
            sums[i % 8] += weight * x;
        }
        sums.iter().sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_ps,
        _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_fmadd_ps, _mm256_loadu_ps,
        _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    };

    use super::portable;

    /// Elements of a vector.
    const LANES: usize = 8;
    /// Vectors, and partial sums, of one turn of a loop.
    const TURN: usize = 4;

    /// Whether the CPU has AVX2, FMA and F16C.
    pub(super) fn available() -> bool {
        std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c")
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn total(sums: [__m256; TURN]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
        // SAFETY: `lanes` holds a vector.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        lanes.iter().sum()
    }

    /// Eight halves as floats.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn load_halves(weights: &[u8; 2 * LANES]) -> __m256 {
        // SAFETY: 16 bytes are read from as many.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(weights.as_ptr().cast::<__m128i>()) })
    }

    /// Eight int8 values as floats.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn integers(weights: &[u8; LANES]) -> __m256 {
        // SAFETY: 8 bytes are read from as many.
        let bytes = unsafe { _mm_loadl_epi64(weights.as_ptr().cast::<__m128i>()) };
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
    }

    /// Eight int8 values times `scale`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn load_int8<const ROUND: bool>(weights: &[u8; LANES], scale: __m256) -> __m256 {
        let value = _mm256_mul_ps(integers(weights), scale);
        if ROUND { _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)) } else { value }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn load(x: &[f32; LANES]) -> __m256 {
        // SAFETY: 8 floats are read from as many.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn store(value: __m256, out: &mut [f32; LANES]) {
        // SAFETY: 8 floats are written to as many.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), value) };
    }

    /// Σ w·x, `weight(i)` being vector i of the weights; four partial sums hide the latency of the additions. Also how
    /// many elements it took.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn sum_of_vectors(x: &[f32], weight: impl Fn(usize) -> __m256) -> (f32, usize) {
        let (vectors, _) = x.as_chunks::<LANES>();
        let (turns, rest) = vectors.as_chunks::<TURN>();
        let mut sums = [_mm256_setzero_ps(); TURN];
        for (turn, x) in turns.iter().enumerate() {
            for i in 0..TURN {
                sums[i] = _mm256_fmadd_ps(weight(turn * TURN + i), load(&x[i]), sums[i]);
            }
        }
        for (i, x) in rest.iter().enumerate() {
            sums[0] = _mm256_fmadd_ps(weight(turns.len() * TURN + i), load(x), sums[0]);
        }
        (total(sums), vectors.len() * LANES)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn halves(weights: &[u8], x: &[f32]) -> f32 {
        let (packed, _) = weights.as_chunks::<{ 2 * LANES }>();
        let (sum, done) = sum_of_vectors(x, |i| load_halves(&packed[i]));
        let tail = weights[2 * done..].as_chunks::<2>().0.iter();
        sum + portable::sum(tail.map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()), &x[done..])
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn int8<const ROUND: bool>(weights: &[u8], scale: f32, x: &[f32]) -> f32 {
        let (packed, _) = weights.as_chunks::<LANES>();
        let (sum, done) = if ROUND {
            let factor = _mm256_set1_ps(scale);
            sum_of_vectors(x, |i| load_int8::<true>(&packed[i], factor))
        } else {
            // The scale is taken out of the sum.
            let (sum, done) = sum_of_vectors(x, |i| integers(&packed[i]));
            (sum * scale, done)
        };
        let tail = weights[done..].iter().map(|&byte| portable::dequantized(byte, scale, ROUND));
        sum + portable::sum(tail, &x[done..])
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn floats(weights: &[f32], x: &[f32]) -> f32 {
        let (packed, _) = weights.as_chunks::<LANES>();
        let (sum, done) = sum_of_vectors(x, |i| load(&packed[i]));
        sum + portable::sum(weights[done..].iter().copied(), &x[done..])
    }

    /// Σ w·x of two rows with each of four vectors, `weights(row, i)` being vector i of a row: each vector is loaded once
    /// for both rows, each weight once for all four. Also how many elements it took.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn sums_by_four(x: [&[f32]; 4], weights: impl Fn(usize, usize) -> __m256) -> ([[f32; 4]; 2], usize) {
        let [a, b, c, d] = x.map(|x| x.as_chunks::<LANES>().0);
        let mut sums = [[_mm256_setzero_ps(); 4]; 2];
        for (i, (((a, b), c), d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
            let x = [load(a), load(b), load(c), load(d)];
            for (row, sums) in sums.iter_mut().enumerate() {
                let weight = weights(row, i);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = _mm256_fmadd_ps(weight, x, *sum);
                }
            }
        }
        let zero = _mm256_setzero_ps();
        let totals = sums.map(|row| row.map(|sum| total([sum, zero, zero, zero])));
        (totals, a.len() * LANES)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn halves_by_four(rows: [&[u8]; 2], x: [&[f32]; 4]) -> [[f32; 4]; 2] {
        let packed = rows.map(|row| row.as_chunks::<{ 2 * LANES }>().0);
        let (sums, done) = sums_by_four(x, |row, i| load_halves(&packed[row][i]));
        let tail = |row: usize| rows[row][2 * done..].as_chunks::<2>().0.iter();
        let rest = |row, column: usize| {
            portable::sum(tail(row).map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()), &x[column][done..])
        };
        std::array::from_fn(|row| std::array::from_fn(|column| sums[row][column] + rest(row, column)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn int8_by_four<const ROUND: bool>(rows: [&[u8]; 2], scales: [f32; 2], x: [&[f32]; 4]) -> [[f32; 4]; 2] {
        let packed = rows.map(|row| row.as_chunks::<LANES>().0);
        let factors = [_mm256_set1_ps(scales[0]), _mm256_set1_ps(scales[1])];
        let (sums, done) = sums_by_four(x, |row, i| load_int8::<ROUND>(&packed[row][i], factors[row]));
        let rest = |row: usize, column: usize| {
            let tail = rows[row][done..].iter().map(|&byte| portable::dequantized(byte, scales[row], ROUND));
            portable::sum(tail, &x[column][done..])
        };
        std::array::from_fn(|row| std::array::from_fn(|column| sums[row][column] + rest(row, column)))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn add_scaled(row: &[f32], factor: f32, out: &mut [f32]) {
        let (vectors, tail) = row.as_chunks::<LANES>();
        let (sums, rest) = out.as_chunks_mut::<LANES>();
        let factors = _mm256_set1_ps(factor);
        vectors.iter().zip(sums).for_each(|(x, sum)| store(_mm256_fmadd_ps(load(x), factors, load(sum)), sum));
        rest.iter_mut().zip(tail).for_each(|(sum, value)| *sum += factor * value);
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn decode_halves(weights: &[u8], out: &mut [f32]) {
        let (packed, tail) = weights.as_chunks::<{ 2 * LANES }>();
        let (vectors, rest) = out.as_chunks_mut::<LANES>();
        packed.iter().zip(vectors).for_each(|(weights, out)| store(load_halves(weights), out));
        for (out, bytes) in rest.iter_mut().zip(tail.as_chunks::<2>().0) {
            *out = half::f16::from_le_bytes(*bytes).to_f32();
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn decode_int8<const ROUND: bool>(weights: &[u8], scale: f32, out: &mut [f32]) {
        let (packed, tail) = weights.as_chunks::<LANES>();
        let (vectors, rest) = out.as_chunks_mut::<LANES>();
        let factor = _mm256_set1_ps(scale);
        packed.iter().zip(vectors).for_each(|(weights, out)| store(load_int8::<ROUND>(weights, factor), out));
        rest.iter_mut().zip(tail).for_each(|(out, &byte)| *out = portable::dequantized(byte, scale, ROUND));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    /// Against float64, at every length around the vector widths.
    #[test]
    fn dot_products_are_sums_of_products() {
        for length in (0..80).chain([576, 1000]) {
            let (x, w) = (numbers(length, 1), numbers(length, 2));
            let close = |got: f32, weights: &dyn Fn(usize) -> f32| {
                let want: f64 = (0..length).map(|i| f64::from(weights(i)) * f64::from(x[i])).sum();
                let size: f64 = (0..length).map(|i| f64::from((weights(i) * x[i]).abs())).sum();
                assert!((f64::from(got) - want).abs() <= 1e-6 * size, "length {length}: {got} is not {want}");
            };
            close(floats(&w, &x), &|i| w[i]);
            let mut sums = x.clone();
            add_scaled(&w, 0.75, &mut sums);
            assert!((0..length).all(|i| (sums[i] - (x[i] + 0.75 * w[i])).abs() <= 1e-7));
            let packed: Vec<u8> = w.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
            close(halves(&packed, &x), &|i| f16::from_f32(w[i]).to_f32());
            let scaled = [1.0, -2.0, 0.5, 4.0].map(|factor| x.iter().map(|x| x * factor).collect::<Vec<_>>());
            let four = [&scaled[0][..], &scaled[1], &scaled[2], &scaled[3]];
            // Powers of two: sums of scaled values are scaled sums.
            let each = |sums: [f32; 4], weights: &dyn Fn(usize) -> f32| {
                [1.0, -0.5, 2.0, 0.25].iter().zip(sums).for_each(|(factor, sum)| close(factor * sum, weights));
            };
            let other: Vec<u8> = x.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
            let sums = halves_by_four([&packed, &other], four);
            each(sums[0], &|i| f16::from_f32(w[i]).to_f32());
            each(sums[1], &|i| f16::from_f32(x[i]).to_f32());
            let integers: Vec<u8> = w.iter().map(|&v| (v * 254.0) as i8 as u8).collect();
            for round in [false, true] {
                let weight = |i: usize| portable::dequantized(integers[i], 0.0123, round);
                close(int8(&integers, 0.0123, round, &x), &weight);
                let reversed: Vec<u8> = integers.iter().rev().copied().collect();
                let sums = int8_by_four([&integers, &reversed], [0.0123, 0.5], round, four);
                each(sums[0], &weight);
                each(sums[1], &|i| portable::dequantized(reversed[i], 0.5, round));
                let mut decoded = vec![0.0; length];
                decode_int8(&integers, 0.0123, round, &mut decoded);
                assert!((0..length).all(|i| decoded[i] == weight(i)));
            }
            let mut decoded = vec![0.0; length];
            decode_halves(&packed, &mut decoded);
            assert!((0..length).all(|i| decoded[i] == f16::from_f32(w[i]).to_f32()));
        }
    }

    #[test]
    fn scales_round_as_float16_where_they_should() {
        assert_eq!(portable::dequantized(3, 0.333_333_34, true), f16::from_f32(1.0).to_f32());
        assert_ne!(portable::dequantized(7, 0.0123, true), portable::dequantized(7, 0.0123, false));
    }
}
