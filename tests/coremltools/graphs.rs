//! What the authored graphs compute, against the float64 block.

use super::reference::Block;
use super::{Template, feed, python, request, rows};
use half::f16;
use serde_json::{Value, json};

const CONTEXT: usize = 12;

/// The largest error, as a share of the largest reference value.
fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0, |m: f64, w| m.max(w.abs()));
    got.iter().zip(want).fold(0.0, |m: f64, (g, w)| m.max((f64::from(*g) - w).abs())) / largest
}

fn check(request: &Value, tolerance: f64) {
    let template = Template::of(request);
    let mut block = Block::of(request, &template);
    let hidden = block.hidden();
    let stream = rows(CONTEXT * hidden, 7);
    let want: Vec<f64> = stream
        .chunks(hidden)
        .flat_map(|row| block.token(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()))
        .collect();
    let oracle = python().oracle(&template.package()).unwrap();
    assert_eq!(oracle.functions().unwrap(), ["decode", "prefill"]);
    for (function, tokens) in [("decode", 1), ("prefill", 4)] {
        let mut state = oracle.new_state(function).unwrap();
        for (step, part) in stream.chunks(tokens * hidden).enumerate() {
            let position = step * tokens;
            let got = feed(&oracle, function, part, CONTEXT, position, &mut state, hidden).to_f32();
            let distance = error(&got, &want[position * hidden..][..tokens * hidden]);
            assert!(distance < tolerance, "{request}: {function} at {position} is off by {distance:.1e}");
        }
        for (name, cache) in [("k_cache", &block.keys), ("v_cache", &block.values)] {
            let got = state.get(name).unwrap();
            assert_eq!(got.shape[2], CONTEXT);
            let want: Vec<f64> = (0..got.shape[1])
                .flat_map(|head| cache.iter().flat_map(move |position| position[head].iter().copied()))
                .collect();
            let distance = error(&got.to_f32(), &want);
            assert!(distance < tolerance, "{request}: {name} after {function} is off by {distance:.1e}");
        }
    }
}

/// Every norm and precision of one architecture.
fn check_all(base: Value) {
    for norm in ["max_scaled", "layer_norm_pair"] {
        // Half of what rounding to float16 at the output and in the caches alone makes likely would be too tight.
        for (precision, tolerance) in [("float16", 8e-3), ("float32", 1e-3)] {
            let mut request = base.clone();
            request["norm"] = norm.into();
            request["compute_precision"] = precision.into();
            check(&request, tolerance);
        }
    }
}

#[test]
fn qwen3_agrees_with_the_float64_block_from_first_to_last_position() {
    check_all(request("qwen3"));
}

#[test]
fn llama_with_llama3_scaling_agrees_with_the_float64_block_from_first_to_last_position() {
    let mut request = request("llama");
    request["heads"] = 6.into();
    request["head_dim"] = 16.into();
    request["rope_scaling"] = json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_positions": 64});
    check_all(request);
}

#[test]
fn qwen2_agrees_with_the_float64_block_from_first_to_last_position() {
    check_all(request("qwen2"));
}

#[test]
fn linear_and_tabled_rope_scaling_agree_with_the_float64_block() {
    let mut request = request("llama");
    request["rope_scaling"] = json!({"type": "linear", "factor": 2.5});
    check(&request, 8e-3);
    let divisors: Vec<f64> = (0..16).map(|i| 1.0 + f64::from(i) / 4.0).collect();
    request["rope_scaling"] = json!({"type": "divisors", "divisors": divisors});
    check(&request, 8e-3);
}

#[test]
fn norms_hold_from_zero_rows_to_the_largest_float16() {
    let hidden = 64;
    // Without RoPE or head norms in the way, v is the projection of the normed row.
    let scaled = |by: f32| rows(hidden, 3).iter().map(|x| f16::from_f32(x.to_f32() * by)).collect::<Vec<_>>();
    let mut spike = scaled(1.0);
    spike[5] = f16::MIN;
    let signs = rows(hidden, 9).iter().map(|x| if x.is_sign_negative() { f16::MIN } else { f16::MAX }).collect();
    let cases = [scaled(32_000.0), signs, spike, scaled(1.0), scaled(1e-3), vec![f16::ZERO; hidden]];
    for norm in ["max_scaled", "layer_norm_pair"] {
        for precision in ["float16", "float32"] {
            let mut request = request("llama");
            request["norm"] = norm.into();
            request["compute_precision"] = precision.into();
            let template = Template::of(&request);
            let mut block = Block::of(&request, &template);
            let oracle = python().oracle(&template.package()).unwrap();
            let mut state = oracle.new_state("decode").unwrap();
            for (position, row) in cases.iter().enumerate() {
                feed(&oracle, "decode", row, CONTEXT, position, &mut state, hidden);
                block.token(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
            }
            let values = state.get("v_cache").unwrap().to_f32();
            for position in 0..cases.len() {
                let want = &block.values[position];
                let got: Vec<f32> =
                    (0..2).flat_map(|head| values[(head * CONTEXT + position) * 32..][..32].to_vec()).collect();
                if position == cases.len() - 1 {
                    assert!(got.iter().all(|x| *x == 0.0), "{norm} {precision}: a row of zeros gave {got:?}");
                } else {
                    let distance = error(&got, &want.concat());
                    assert!(distance < 5e-3, "{norm} {precision}: case {position} is off by {distance:.1e}");
                }
            }
        }
    }
}
