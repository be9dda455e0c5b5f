//! SHA-256 of two independent byte strings side by side.
//!
//! The CPU's SHA instructions wait for each other's results; a second stream fills the gaps, so two digests cost little
//! more than one. Where the instructions are missing, the `sha2` crate computes one digest after the other. The
//! algorithm is FIPS 180-4; its constants are taken from there.

use sha2::{Digest as _, Sha256};

use super::Digest;

/// The digests of `left` and `right`. `passed` is told now and then how many bytes of either were read for good.
pub fn digest_pair(left: &[u8], right: &[u8], passed: &mut dyn FnMut(usize)) -> (Digest, Digest) {
    #[cfg(target_arch = "x86_64")]
    if x86::is_available() {
        return x86::digest_pair(left, right, passed);
    }
    (one(left, passed), one(right, passed))
}

/// Bytes of a message between two reports.
const STEP: usize = 8 << 20;

fn one(message: &[u8], passed: &mut dyn FnMut(usize)) -> Digest {
    let mut hasher = Sha256::new();
    let mut done = 0;
    for part in message.chunks(STEP) {
        hasher.update(part);
        done += part.len();
        passed(done);
    }
    Digest(hasher.finalize().into())
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_blend_epi16, _mm_loadu_si128, _mm_set_epi64x, _mm_setzero_si128,
        _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32,
        _mm_storeu_si128,
    };

    use super::Digest;

    const BLOCK: usize = 64;
    /// Blocks of a message between two reports.
    const STEP: usize = super::STEP / BLOCK;

    const INITIAL: [u32; 8] =
        [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

    #[rustfmt::skip]
    const ROUND: [u32; 64] = [
        0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
        0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
        0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
        0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
        0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
        0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
        0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
        0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
    ];

    pub(super) fn is_available() -> bool {
        is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("ssse3")
    }

    /// Both digests; the CPU must have what [`is_available`] asks for.
    pub(super) fn digest_pair(left: &[u8], right: &[u8], passed: &mut dyn FnMut(usize)) -> (Digest, Digest) {
        assert!(is_available(), "the caller asks first");
        let (mut a, mut b) = (INITIAL, INITIAL);
        let (left_blocks, left_rest) = left.as_chunks::<BLOCK>();
        let (right_blocks, right_rest) = right.as_chunks::<BLOCK>();
        let both = left_blocks.len().min(right_blocks.len());
        let (left_end, right_end) = (padded(left_rest, left.len()), padded(right_rest, right.len()));
        // SAFETY: the CPU has the instructions, as asserted above.
        unsafe {
            for start in (0..both).step_by(STEP) {
                let step = start..both.min(start + STEP);
                compress([&mut a, &mut b], [&left_blocks[step.clone()], &right_blocks[step.clone()]]);
                passed(step.end * BLOCK);
            }
            for (state, blocks) in [(&mut a, left_blocks), (&mut b, right_blocks)] {
                for start in (both..blocks.len()).step_by(STEP) {
                    let step = start..blocks.len().min(start + STEP);
                    compress([&mut *state], [&blocks[step.clone()]]);
                    passed(step.end * BLOCK);
                }
            }
            compress([&mut a], [left_end.as_chunks().0]);
            compress([&mut b], [right_end.as_chunks().0]);
        }
        (finish(a), finish(b))
    }

    /// The last block or two: the rest of the message, a one bit, zeros, and the message's length in bits.
    fn padded(rest: &[u8], length: usize) -> Vec<u8> {
        let mut end = rest.to_vec();
        end.push(0x80);
        end.resize((rest.len() + 9).next_multiple_of(BLOCK) - 8, 0);
        end.extend((length as u64 * 8).to_be_bytes());
        end
    }

    fn finish(state: [u32; 8]) -> Digest {
        let mut bytes = [0; 32];
        for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(state) {
            *bytes = word.to_be_bytes();
        }
        Digest(bytes)
    }

    /// Compresses as many blocks of each message as the first has, all messages in step.
    #[target_feature(enable = "sha,sse2,ssse3,sse4.1")]
    unsafe fn compress<const LANES: usize>(states: [&mut [u32; 8]; LANES], messages: [&[[u8; BLOCK]]; LANES]) {
        let big_endian = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        let (mut abef, mut cdgh) = ([_mm_setzero_si128(); LANES], [_mm_setzero_si128(); LANES]);
        for lane in 0..LANES {
            let (low, high) = states[lane].split_at(4);
            let badc = _mm_shuffle_epi32(load(low), 0b10_11_00_01);
            let hgfe = _mm_shuffle_epi32(load(high), 0b00_01_10_11);
            abef[lane] = _mm_alignr_epi8(badc, hgfe, 8);
            cdgh[lane] = _mm_blend_epi16(hgfe, badc, 0xf0);
        }
        let blocks = messages[0].len();
        let messages = messages.map(|message| &message[..blocks]);
        let mut block = 0;
        while block < blocks {
            let (abef_before, cdgh_before) = (abef, cdgh);
            let mut words = [[_mm_setzero_si128(); 4]; LANES];
            for lane in 0..LANES {
                for (word, bytes) in words[lane].iter_mut().zip(messages[lane][block].as_chunks::<16>().0) {
                    *word = _mm_shuffle_epi8(load(bytes), big_endian);
                }
            }
            for quad in 0..16 {
                let constants = load(&ROUND[4 * quad..4 * quad + 4]);
                for lane in 0..LANES {
                    let w = &mut words[lane];
                    if quad >= 4 {
                        let [oldest, older, newer, newest] = [quad, quad + 1, quad + 2, quad + 3].map(|i| w[i % 4]);
                        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(oldest, older), _mm_alignr_epi8(newest, newer, 4));
                        w[quad % 4] = _mm_sha256msg2_epu32(sum, newest);
                    }
                    let input = _mm_add_epi32(w[quad % 4], constants);
                    cdgh[lane] = _mm_sha256rnds2_epu32(cdgh[lane], abef[lane], input);
                    let input = _mm_shuffle_epi32(input, 0b00_00_11_10);
                    abef[lane] = _mm_sha256rnds2_epu32(abef[lane], cdgh[lane], input);
                }
            }
            for lane in 0..LANES {
                abef[lane] = _mm_add_epi32(abef[lane], abef_before[lane]);
                cdgh[lane] = _mm_add_epi32(cdgh[lane], cdgh_before[lane]);
            }
            block += 1;
        }
        for (lane, state) in states.into_iter().enumerate() {
            let feba = _mm_shuffle_epi32(abef[lane], 0b00_01_10_11);
            let dchg = _mm_shuffle_epi32(cdgh[lane], 0b10_11_00_01);
            let (low, high) = state.split_at_mut(4);
            store(low, _mm_blend_epi16(feba, dchg, 0xf0));
            store(high, _mm_alignr_epi8(dchg, feba, 8));
        }
    }

    /// Sixteen bytes, at any alignment.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn load<T: Copy>(values: &[T]) -> __m128i {
        assert_eq!(size_of_val(values), 16);
        // SAFETY: `values` is sixteen bytes of plain numbers.
        unsafe { _mm_loadu_si128(values.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn store(words: &mut [u32], value: __m128i) {
        assert_eq!(words.len(), 4);
        // SAFETY: `words` is sixteen bytes.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_digests_are_those_of_the_sha2_crate_at_every_pair_of_lengths_around_the_blocks() {
        let bytes: Vec<u8> = (0..2048u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let lengths: Vec<usize> = (0..=130).chain([191, 192, 193, 1000, 2047, 2048]).collect();
        for &left in &lengths {
            for &right in &lengths {
                let (left, right) = (&bytes[..left], &bytes[bytes.len() - right..]);
                assert_eq!(digest_pair(left, right, &mut |_| {}), (Digest::of(left), Digest::of(right)));
            }
        }
    }

    #[test]
    fn messages_of_several_steps_have_their_digests_and_report_every_step() {
        let bytes: Vec<u8> = (0..3 * STEP as u32 + 700).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for lengths in [[bytes.len(), 2 * STEP + 65], [STEP, bytes.len()], [bytes.len(), 0]] {
            let [left, right] = lengths.map(|length| &bytes[..length]);
            let mut reports = Vec::new();
            let digests = digest_pair(left, right, &mut |done| reports.push(done));
            assert_eq!(digests, (Digest::of(left), Digest::of(right)));
            reports.sort_unstable();
            let steps = std::iter::once(&0).chain(&reports).zip(&reports);
            assert!(steps.into_iter().all(|(before, after)| after - before <= STEP), "{reports:?}");
            assert!(bytes.len() - reports.last().unwrap() < 64, "{reports:?}");
        }
    }

    #[test]
    fn the_digest_of_abc_is_the_standards() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest_pair(b"abc", b"", &mut |_| {}).0.to_string(), known);
    }
}
