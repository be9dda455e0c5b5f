//! The same chains through the reference runner, against candle-transformers and, as a second witness, mlx-lm.

use std::path::Path;
use std::process::Command;

use anebake::mil::Arithmetic;
use anebake::runner::{Chain, ReferenceRunner, Rows};

use super::{FLOAT16, FLOAT32, Tolerance, distance, llama, llama3, reference, tokens};
use crate::support::{Bench, TinyModel};

/// Logits of every token: a full prefill, a padded one, then decode steps to the end of the cache.
fn logits(out: &Path, arithmetic: Arithmetic) -> Vec<Vec<f64>> {
    let tokens = tokens();
    let chain = Chain::open(out, &ReferenceRunner::new(arithmetic)).unwrap();
    let mut session = chain.begin().unwrap();
    let mut logits = Vec::new();
    let parts = [&tokens[..64], &tokens[64..104]].into_iter().chain(tokens[104..].chunks(1));
    for part in parts {
        logits.extend(chain.feed(&mut session, part, Rows::All).unwrap());
    }
    logits.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect()
}

/// Logits of every token by mlx-lm in float32.
fn mlx(folder: &Path) -> Vec<Vec<f32>> {
    let tokens = tokens();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join(".venv/bin/python"))
        .arg(root.join("tests/graphs/mlx_logits.py"))
        .arg(folder)
        .args(tokens.iter().map(u32::to_string))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let values: Vec<f32> = output.stdout.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(values.len() % tokens.len(), 0);
    values.chunks(values.len() / tokens.len()).map(<[f32]>::to_vec).collect()
}

/// What is left where nothing is rounded but what a package stores: weights, embeddings and tables are float16.
const UNROUNDED: Tolerance = Tolerance { angle: 1e-5, error: 5e-3 };

fn check(model: &TinyModel) {
    let bench = Bench::new(model);
    let witnesses = [reference::logits(&bench.path("model"), &model.config, &tokens()), mlx(&bench.path("model"))];
    let between: Vec<Vec<f64>> = witnesses[1].iter().map(|row| row.iter().map(|&v| v.into()).collect()).collect();
    let between = distance(&between, &witnesses[0]);
    assert!(Tolerance { angle: 1e-6, error: 1e-3 }.holds(between), "the witnesses differ: {between:?}");
    for (arguments, arithmetic, tolerance) in [
        (FLOAT16.0, Arithmetic::Fp16, FLOAT16.1),
        (FLOAT16.0, Arithmetic::F32, UNROUNDED),
        (FLOAT32.0, Arithmetic::Fp16, FLOAT32.1),
    ] {
        bench.convert(arguments);
        let got = logits(&bench.path("out"), arithmetic);
        for (name, want) in ["candle", "mlx-lm"].iter().zip(&witnesses) {
            let distance = distance(&got, want);
            assert!(tolerance.holds(distance), "{name}, {arguments:?} in {arithmetic}: {distance:?}");
        }
    }
}

#[test]
fn qwen3_through_the_runner_gives_the_logits_of_candle_and_mlx() {
    check(&TinyModel::new("qwen3", 21));
}

#[test]
fn llama_through_the_runner_gives_the_logits_of_candle_and_mlx() {
    check(&llama(22, llama3()).untied(23));
}

#[test]
fn qwen2_through_the_runner_gives_the_logits_of_candle_and_mlx() {
    check(&TinyModel::new("qwen2", 24));
}
