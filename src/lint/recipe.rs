//! Rules over a resolved recipe: what can be told before anything is baked.

use serde_json::Value;

use super::Severity::{Error, Info, Warn};
use super::evidence::Confidence::{Contradicted, Corroborated, Hint, Measured, Single, Vendor};
use super::evidence::{page, seen, thread};
use super::placement::LONGEST_INNER;
use super::{Check, Rule};
use crate::recipe::{ComputePrecision, Granularity, Norm, Quantization, Recipe, WeightDtype, Weights};

/// Whether a resolved recipe demands the ANE: `smoke.require` names it.
pub fn demands_ane(resolved: &Value) -> bool {
    let required = resolved.pointer("/smoke/require").and_then(Value::as_array);
    required.is_some_and(|list| list.iter().any(|word| word == "ane"))
}

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "recipe-float32-compute",
        severity: Warn,
        on_ane: Some(Error),
        what: "the graph computes in float32",
        why: "the ANE computes in float16: ops in float32 go to the CPU or the GPU, all of them here",
        fix: "set `package.compute_precision = \"float16\"`; the norms of anebake's graphs are safe in it",
        evidence: &[
            seen(Corroborated, "2025-09-06", thread!("apple/coremltools", 2585)),
            seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/typed-execution.html"),
        ],
        check: Check::Recipe(|recipe, found| {
            if recipe.package.compute_precision == ComputePrecision::Float32 {
                found.add("`package.compute_precision`", "`float32`");
            }
        }),
    },
    Rule {
        id: "recipe-per-block",
        severity: Warn,
        on_ane: Some(Error),
        what: "several weights of one output channel have scales of their own",
        why: "the ANE compiler takes one scale for an output channel or a tensor; ops with finer ones go to the CPU",
        fix: "set `granularity = \"per_channel\"`, and keep the tensors that suffer in float16 by an override",
        evidence: PER_BLOCK,
        check: Check::Recipe(|recipe, found| {
            for (at, quantization) in quantized(recipe) {
                if quantization.granularity == Granularity::PerBlock {
                    found.add(at, format!("per_block, {} inputs a scale", quantization.block_size.unwrap_or_default()));
                }
            }
        }),
    },
    Rule {
        id: "recipe-quantized-placement",
        severity: Info,
        on_ane: None,
        what: "the weights are quantized",
        why: "whether ops with quantized weights run on the ANE is reported both ways: never on an M4, and at 1.5 to 3 \
              times the speed of float16 on an M5",
        fix: "measure on the device that counts: `anebake probe` there, or `anebake smoke` on the baked folder",
        evidence: &[
            seen(Contradicted, "2026-09-12", thread!("kasper0406/stablehlo-coreml", 110)),
            seen(Contradicted, "2026-09-13", thread!("onnxsim/onnxsim", 1403)),
        ],
        check: Check::Recipe(|recipe, found| {
            for (at, quantization) in quantized(recipe) {
                found.add(at, format!("{} {}", quantization.dtype, quantization.granularity));
            }
        }),
    },
    Rule {
        id: "recipe-unenforced-gate",
        severity: Info,
        on_ane: None,
        what: "quantized weights, and a gate that stops nothing",
        why: "blocks that are each right to 0.9998 were seen to end in a chain of cosine 0.41",
        fix: "read what the gate said before you ship; `gate.enforce = true` makes it the exit status",
        evidence: CHAIN,
        check: Check::Recipe(|recipe, found| {
            if !recipe.gate.enforce && quantized(recipe).next().is_some() {
                found.add("`gate.enforce`", "`false`");
            }
        }),
    },
    Rule {
        id: "recipe-short-gate",
        severity: Warn,
        on_ane: None,
        what: "a gate of very few steps",
        why: "errors of quantized weights add up along a continuation: tokens flipped at the third step, and the cosine \
              was lost at the fifth, where the first ones were right",
        fix: "set `gate.steps` to 8 or more",
        evidence: CHAIN,
        check: Check::Recipe(|recipe, found| {
            if recipe.gate.steps < 5 && quantized(recipe).next().is_some() {
                found.add("`gate.steps`", format!("`{}`", recipe.gate.steps));
            }
        }),
    },
    Rule {
        id: "recipe-loose-gate",
        severity: Warn,
        on_ane: None,
        what: "a gate that lets a broken chain pass",
        why: "chains below a cosine of 0.99 were seen to write other text than their model",
        fix: "set `gate.min_cosine` to 0.99 or more; `[[override]]` keeps single tensors in float16",
        evidence: CHAIN,
        check: Check::Recipe(|recipe, found| {
            if recipe.gate.enforce && recipe.gate.min_cosine < 0.99 {
                found.add("`gate.min_cosine`", format!("`{}`", recipe.gate.min_cosine));
            }
        }),
    },
    Rule {
        id: "recipe-cache-in-graph",
        severity: Info,
        on_ane: Some(Warn),
        what: "the cache is written in the graph, at a position that is known only at run time",
        why: "integers that move through the graph, and slices at run time, break the program into pieces; ANE compilers \
              rejected such writes on M5 and macOS 26, while apps ship them on iPhones",
        fix: "set `package.kv = \"mask\"` (a float16 mask in its place) or `\"io\"` (the caller keeps the cache)",
        evidence: &[
            seen(Contradicted, "2026-07-16", thread!("FluidInference/mobius", 77)),
            seen(Contradicted, "2026-04-28", page!("john-rocky/CoreML-LLM", "docs/MLSTATE_PATTERN.md")),
            seen(Corroborated, "2026-06-11", thread!("apple/coreai-torch", 6)),
        ],
        check: Check::Recipe(|recipe, found| {
            if recipe.package.kv.as_str() == "slice" {
                found.add("`package.kv`", "`slice`");
            }
        }),
    },
    Rule {
        id: "recipe-short-query",
        severity: Info,
        on_ane: Some(Warn),
        what: "a function with fewer than four query rows",
        why: "an M5 refused the first ANE request of programs with a query width of 1 or 2 and aborted; 4, 8 and 64 ran",
        fix: "`package.kv = \"mask\"` or `\"io\"`, and `package.query = 4` or more with it",
        evidence: SHORT_QUERY,
        check: Check::Recipe(|recipe, found| {
            for (name, tokens) in recipe.package.functions.entries() {
                let rows = tokens.max(recipe.package.query);
                if rows < 4 {
                    found.add(format!("`package.functions.{name}`"), format!("{rows} query rows"));
                }
            }
        }),
    },
    Rule {
        id: "recipe-wide-prefill",
        severity: Warn,
        on_ane: None,
        what: "a prefill of 128 tokens or more that writes the cache in the graph",
        why: "cache writes of 128 rows failed on the ANE where 16 and 32 ran; other reports have compiles run out of \
              memory, and results that change from run to run",
        fix: "set `package.functions.prefill` to 64 or less",
        evidence: WIDE_PREFILL,
        check: Check::Recipe(|recipe, found| {
            let tokens = recipe.package.functions.prefill;
            if tokens >= 128 && recipe.package.kv.as_str() == "slice" {
                found.add("`package.functions.prefill`", format!("{tokens} tokens"));
            }
        }),
    },
    Rule {
        id: "recipe-long-context",
        severity: Warn,
        on_ane: Some(Error),
        what: "more positions than an axis of the ANE has",
        why: "mask and scores have an axis as long as the context, and 16384 is the longest inner axis on most chips",
        fix: "set `package.context` to 16384 or less",
        evidence: AXIS,
        check: Check::Recipe(|recipe, found| {
            if recipe.package.context as u64 > LONGEST_INNER {
                found.add("`package.context`", format!("{} positions", recipe.package.context));
            }
        }),
    },
    Rule {
        id: "recipe-odd-context",
        severity: Warn,
        on_ane: None,
        what: "a context that is no multiple of 32",
        why: "the last axis of mask and scores is as long as the context; rows that do not fill 64 bytes are padded, and \
              tensors with such a last axis failed on the ANE",
        fix: "set `package.context` to a multiple of 32",
        evidence: ALIGNMENT,
        check: Check::Recipe(|recipe, found| {
            if !recipe.package.context.is_multiple_of(32) {
                found.add("`package.context`", format!("{} positions", recipe.package.context));
            }
        }),
    },
    Rule {
        id: "recipe-norm-pair",
        severity: Info,
        on_ane: None,
        what: "RMSNorm as `layer_norm` over `[x, -x]` in float16",
        why: "its epsilon of 1e-6 is a subnormal float16: hardware that flushes those to zero divides by zero where a row \
              is all zeros",
        fix: "set `package.norm = \"max_scaled\"`, or make sure that no row of zeros comes in",
        evidence: &[seen(Measured, "2026-11-29", thread!("apple/coremltools", 2585))],
        check: Check::Recipe(|recipe, found| {
            let half = recipe.package.compute_precision == ComputePrecision::Float16;
            if half && recipe.package.norm == Norm::LayerNormPair {
                found.add("`package.norm`", "`layer_norm_pair`");
            }
        }),
    },
    Rule {
        id: "recipe-four-bits",
        severity: Info,
        on_ane: None,
        what: "weights of 4 bits, rounded to the nearest",
        why: "the source is far from what 16 values a scale can hold; small models lose their text without calibration",
        fix: "run the gate on many prompts (`anebake gate OUT --prompts FILE --perplexity FILE`), or use int8",
        evidence: &[seen(Single, "2026-09-23", thread!("apple/coremltools", 2716))],
        check: Check::Recipe(|recipe, found| {
            for (at, quantization) in quantized(recipe) {
                if quantization.dtype == WeightDtype::Int4 {
                    found.add(at, "int4");
                }
            }
        }),
    },
    Rule {
        id: "recipe-no-gain-on-m1",
        severity: Info,
        on_ane: None,
        what: "int8 weights shrink the package, and do not speed up every chip",
        why: "the ANE of an M1 expands int8 weights to float16 in memory; from A14 and M2 on it streams them",
        fix: "use `fp16-v1` where an M1 is what counts and size is not",
        evidence: &[seen(Hint, "2026-08-18", "https://github.com/sbryngelson/ane-guide")],
        check: Check::Recipe(|recipe, found| {
            for (at, quantization) in quantized(recipe) {
                if quantization.dtype == WeightDtype::Int8 {
                    found.add(at, "int8");
                }
            }
        }),
    },
];

pub(super) const PER_BLOCK: &[super::Evidence] = &[
    seen(Corroborated, "2025-05-09", thread!("apple/coremltools", 2510)),
    seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/opt-quantization-perf.html"),
];

pub(super) const CHAIN: &[super::Evidence] = &[
    seen(Single, "2026-06-10", "https://github.com/sarthak-fleet/tinygpt/commit/bbbc623"),
    seen(Contradicted, "2026-09-23", thread!("apple/coremltools", 2716)),
];

pub(super) const SHORT_QUERY: &[super::Evidence] =
    &[seen(Single, "2026-09", "https://github.com/cadamcat/llms-on-apple-neural-engine")];

pub(super) const WIDE_PREFILL: &[super::Evidence] = &[
    seen(Corroborated, "2025-07-10", thread!("apple/coremltools", 2553)),
    seen(Corroborated, "2025-07-11", thread!("Anemll/Anemll", 27)),
    seen(Single, "2025-02-13", thread!("pytorch/executorch", 8439)),
    seen(Single, "2026-07-04", thread!("apple/coreai-models", 84)),
];

pub(super) const AXIS: &[super::Evidence] = &[
    seen(Corroborated, "2025-09-25", thread!("FluidInference/FluidAudio", 121)),
    seen(Corroborated, "2026-03-03", thread!("maderix/ANE", 26)),
];

pub(super) const ALIGNMENT: &[super::Evidence] = &[
    seen(Corroborated, "2025-12-19", thread!("apple/coremltools", 2631)),
    seen(Vendor, "2026-11-29", "https://github.com/apple/coreai-models"),
];

/// Every place where a recipe says how weights are quantized.
fn quantized(recipe: &Recipe) -> impl Iterator<Item = (String, Quantization)> {
    let all = std::iter::once(("`weights`".to_owned(), recipe.weights));
    let overrides =
        recipe.overrides.iter().map(|entry| (format!("`override` for `{}`", entry.tensors()), entry.weights()));
    all.chain(overrides).filter_map(|(at, weights)| match weights {
        Weights::Quantized(quantization) => Some((at, quantization)),
        Weights::Float16 => None,
    })
}
