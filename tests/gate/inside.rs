//! What explains a verdict: deviation block by block, perplexity, and weights to keep in float16.

use std::sync::Arc;
use std::time::Duration;

use anebake::checkpoint::Checkpoint;
use anebake::gate::hints::{Hints, Search};
use anebake::gate::{blocks, perplexity};
use anebake::mil::Arithmetic;
use anebake::runner::{Chain, ReferenceRunner};

use super::faults::edit_weights;
use super::{Baked, OPTIONS, weights};
use crate::graphs::reference;
use crate::support::{Random, TinyModel};

fn chain(baked: &Baked, arithmetic: Arithmetic) -> Chain {
    Chain::open(&baked.out(), &ReferenceRunner::new(arithmetic)).unwrap()
}

#[test]
fn deviation_is_seen_at_the_block_that_makes_it_alone_and_from_there_on_in_the_chain() {
    let baked = Baked::new(&TinyModel::with_layers("qwen3", 31, 4), &["--recipe", "fp16-v1"]);
    let tokens = baked.baseline.tokens.clone().unwrap();
    let weights = weights(&baked.bench.path("model"));
    let sound = blocks::measure(&chain(&baked, Arithmetic::Fp16), &weights, &tokens, &baked.baseline).unwrap();
    assert_eq!(sound.iter().map(|block| block.block).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for block in &sound {
        for deviation in [block.isolated, block.cumulative] {
            assert!(deviation.min_cosine.unwrap() > 0.9999, "{block:?}");
            assert!(deviation.relative_error.unwrap() < 5e-3, "{block:?}");
        }
    }
    // Every weight of one projection of block 2 negated.
    edit_weights(&baked.out(), 2, "down_proj_weight", "val", |bytes| {
        bytes.chunks_mut(2).for_each(|value| value[1] ^= 0x80);
    });
    let broken = blocks::measure(&chain(&baked, Arithmetic::Fp16), &weights, &tokens, &baked.baseline).unwrap();
    let far = |block: usize, cumulative: bool| {
        let deviation = if cumulative { broken[block].cumulative } else { broken[block].isolated };
        deviation.relative_error.unwrap() > 0.1
    };
    assert_eq!([0, 1, 2, 3].map(|block| far(block, false)), [false, false, true, false]);
    assert_eq!([0, 1, 2, 3].map(|block| far(block, true)), [false, false, true, true]);
}

#[test]
fn every_variant_of_the_cache_passes_block_by_block_and_as_a_chain() {
    for (seed, recipe) in [(36, "fp16-ane-v1"), (37, "fp16-io-v1")] {
        let baked = Baked::new(&TinyModel::new("qwen3", seed), &["--recipe", recipe]);
        baked.passes();
        let tokens = baked.baseline.tokens.clone().unwrap();
        let weights = weights(&baked.bench.path("model"));
        let blocks = blocks::measure(&chain(&baked, Arithmetic::Fp16), &weights, &tokens, &baked.baseline).unwrap();
        for block in &blocks {
            assert!(block.isolated.min_cosine.unwrap() > 0.9999, "{recipe}: {block:?}");
            assert!(block.cumulative.min_cosine.unwrap() > 0.9999, "{recipe}: {block:?}");
        }
    }
}

#[test]
fn perplexity_of_the_model_is_that_of_candle_and_the_chains_is_near() {
    let model = TinyModel::new("qwen3", 32);
    let baked = Baked::new(&model, &["--recipe", "fp16-v1"]);
    let mut random = Random(9);
    // Two windows of the context, 128, and a bit.
    let tokens: Vec<u32> = (0..300).map(|_| (random.bits() % 96) as u32).collect();
    let weights = weights(&baked.bench.path("model"));
    let report = perplexity::measure(&chain(&baked, Arithmetic::Fp16), &weights, &tokens).unwrap();
    let mut surprise = 0.0;
    for window in tokens.chunks(128) {
        let rows = reference::logits(&baked.bench.path("model"), &model.config, window);
        for (row, next) in rows.iter().zip(&window[1..]) {
            let total: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            surprise += total.ln() - f64::from(row[*next as usize]);
        }
    }
    assert_eq!((report.tokens, report.window, report.predictions), (300, 128, 297));
    let want = (surprise / 297.0).exp();
    assert!((report.baseline / want - 1.0).abs() < 1e-5, "{} is not {want}", report.baseline);
    assert!((report.chain.unwrap() / want - 1.0).abs() < 2e-2, "{report:?}");
    assert!(report.top1 > 0.95 && report.mean_kl.unwrap() < 1e-3, "{report:?}");

    let negated = |bytes: &mut [u8]| bytes.chunks_mut(2).for_each(|value| value[1] ^= 0x80);
    edit_weights(&baked.out(), 0, "down_proj_weight", "val", negated);
    let broken = perplexity::measure(&chain(&baked, Arithmetic::Fp16), &weights, &tokens).unwrap();
    assert_eq!(broken.baseline, report.baseline);
    assert!(broken.top1 < 0.9 && broken.mean_kl.unwrap() > 1e-2, "{broken:?}");
}

fn search(baked: &Baked, budget: Duration) -> Hints {
    let runner = ReferenceRunner::new(Arithmetic::Fp16);
    let out = baked.out();
    let open = |replacements| Chain::open(&out, &runner.clone().with_replacements(replacements));
    let tokens = baked.baseline.tokens.clone().unwrap();
    let search = Search {
        out: &out,
        open: &open,
        checkpoint: Arc::new(Checkpoint::open(&baked.bench.path("model")).unwrap()),
        tokens: &tokens,
        baseline: &baked.baseline,
        options: &OPTIONS,
        budget,
    };
    search.find().unwrap()
}

#[test]
fn the_override_that_a_failing_chain_is_told_makes_it_pass() {
    // Only the MLP's last projection is coarse, in all four blocks.
    let set = "override=[{ tensors = 'layers\\..*down_proj', dtype = \"int4\" }]";
    let model = TinyModel::with_layers("qwen3", 33, 4);
    let baked = Baked::new(&model, &["--recipe", "fp16-v1", "--set", set]);
    baked.fails("int4");
    let hints = search(&baked, Duration::from_secs(600));
    assert!(!hints.as_baked.passed && !hints.stopped_early);
    assert_eq!(hints.kinds.iter().map(|kind| kind.kind.as_str()).collect::<Vec<_>>(), ["mlp.down_proj"]);
    assert!(hints.kinds[0].restored.passed);
    let suggestion = hints.suggestion.as_ref().unwrap();
    assert!(suggestion.measured.passed && suggestion.share > 0.0 && suggestion.share < 0.3, "{suggestion:?}");

    let recipe = format!(
        "schema = 1\nextends = 'fp16-v1'\n\n[[override]]\ntensors = 'layers\\..*down_proj'\ndtype = 'int4'\n\n{}",
        suggestion.toml
    );
    std::fs::write(baked.bench.path("mended.toml"), recipe).unwrap();
    let checked = baked.bench.run(&["recipe", "check", "mended.toml"]);
    assert!(checked.status.success(), "{}", crate::support::stderr(&checked));
    baked.bench.convert(&["--recipe", "./mended.toml"]);
    baked.passes();

    // And there is nothing to say of a chain whose weights are all float16.
    baked.bench.convert(&["--recipe", "fp16-v1"]);
    let hints = search(&baked, Duration::from_secs(600));
    assert!(hints.kinds.is_empty() && hints.suggestion.is_none());
    assert!(hints.conclusion().starts_with("no weight of this chain is quantized"), "{}", hints.conclusion());
}

#[test]
fn the_output_matrix_is_restored_by_its_parts_and_time_that_runs_out_is_told() {
    let set = "override=[{ tensors = 'lm_head', dtype = \"int4\" }]";
    let baked = Baked::new(&TinyModel::new("llama", 34).untied(35), &["--recipe", "fp16-v1", "--set", set]);
    baked.fails("int4");
    let hints = search(&baked, Duration::from_secs(600));
    assert_eq!(hints.suggestion.unwrap().tensors, ["lm_head"]);
    // A second kind, and neither alone is enough.
    let both = "override=[{ tensors = 'lm_head|layers\\..*(down|o)_proj', dtype = \"int4\" }]";
    baked.bench.convert(&["--recipe", "fp16-v1", "--set", both]);
    let hints = search(&baked, Duration::from_secs(600));
    assert_eq!(hints.kinds.len(), 3);
    assert!(hints.kinds.iter().all(|kind| !kind.restored.passed), "{hints:?}");
    let suggestion = hints.suggestion.unwrap();
    assert!(suggestion.measured.passed && suggestion.tensors.len() > 1, "{suggestion:?}");
    let hints = search(&baked, Duration::ZERO);
    assert!(hints.stopped_early && hints.suggestion.is_none());
    assert_eq!(hints.conclusion(), "no override was found; time ran out before everything was tried");
}
