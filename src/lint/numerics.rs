//! Rules over a program: what makes numbers wrong.

use super::Severity::{Error, Info, Warn};
use super::evidence::Confidence::{Contradicted, Corroborated, Hint, Measured, Single};
use super::evidence::{page, seen, thread};
use super::graph::{gives, of_kind};
use super::view::{Function, Graph, Op};
use super::{Check, Found, Rule};
use crate::mlpackage::spec;

/// The most elements of a constant that are looked at.
const MOST_ELEMENTS: usize = 1 << 20;

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "graph-infinite-mask",
        severity: Warn,
        on_ane: None,
        what: "a constant of minus infinity, or so low that float16 makes it that",
        why: "a row of a mask that is minus infinity throughout gives NaN, and the ANE is said not to handle it in \
              softmax; another report saw no difference",
        fix: "use -1e4 or -4e4 in its place: it fits float16 and hides as well",
        evidence: &[
            seen(Corroborated, "2026-04-22", thread!("apple/coremltools", 2669)),
            seen(Contradicted, "2026-04-25", page!("john-rocky/CoreML-LLM", "docs/SESSION_2026_04_25_MASK_VALUE.md")),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for (name, value) in constants(function) {
                    let lowest = graph.floats(value, MOST_ELEMENTS).and_then(|v| v.into_iter().reduce(f32::min));
                    if let Some(lowest) = lowest.filter(|&lowest| lowest < -65_504.0) {
                        found.in_function(function.name, format!("const `{name}`"), format!("holds {lowest:e}"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-fused-attention",
        severity: Warn,
        on_ane: Some(Error),
        what: "the fused attention op in float16",
        why: "on macOS 26.1 and iOS 26 it gave infinities and NaN on the ANE; it was right on macOS 15",
        fix: "write attention out: product, scale, mask, softmax, product",
        evidence: &[
            seen(Corroborated, "2025-12-09", thread!("pytorch/executorch", 15833)),
            seen(Corroborated, "2025-12-09", thread!("pytorch/executorch", 16144)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let fused = |op: &&Op<'_>| op.kind() == "scaled_dot_product_attention" && gives(op, &["fp16"]);
                for op in function.runtime_ops().filter(fused) {
                    found.in_function(function.name, op.label(), "in float16");
                }
            }
        }),
    },
    Rule {
        id: "graph-unscaled-norm",
        severity: Warn,
        on_ane: None,
        what: "squares of a stream that is not scaled, summed in float16",
        why: "the square of anything above 256 overflows float16; residual streams of real models pass 29000, and the \
              norm then gives zeros or NaN",
        fix: "divide by the largest magnitude first (in anebake `package.norm = \"max_scaled\"`), or use `layer_norm` \
              over `[x, -x]`",
        evidence: &[
            seen(Corroborated, "2025-09-06", thread!("apple/coremltools", 2585)),
            seen(Corroborated, "2026-05-12", thread!("pytorch/executorch", 19523)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| gives(op, &["fp16"])) {
                    let Some(x) = squared(graph, function, op) else { continue };
                    let sums = |(taker, _): (&Op<'_>, &str)| matches!(taker.kind(), "reduce_mean" | "reduce_sum");
                    let summed = op.kind() == "reduce_sum_square" || function.takers(op.name()).any(sums);
                    if summed && !is_scaled(function, x) {
                        found.in_function(function.name, op.label(), format!("squares `{x}`"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-log-sum-exp",
        severity: Warn,
        on_ane: None,
        what: "`reduce_log_sum_exp` in float16",
        why: "the ANE raises to powers before it scales: where inputs pass 7.6, the result drops to zero",
        fix: "subtract the maximum first and write it out",
        evidence: &[
            seen(Corroborated, "2026-05-29", thread!("apple/coremltools", 2690)),
            seen(Corroborated, "2026-05-29", thread!("apple/coremltools", 2726)),
        ],
        check: Check::Graph(|graph, found| in_half(graph, "reduce_log_sum_exp", found)),
    },
    Rule {
        id: "graph-softplus",
        severity: Warn,
        on_ane: None,
        what: "`softplus` in float16",
        why: "on the ANE its result drops to zero where inputs pass 10.4",
        fix: "write it as max(x, 0) + log(1 + exp(-|x|))",
        evidence: &[
            seen(Corroborated, "2026-07-27", thread!("apple/coremltools", 2687)),
            seen(Corroborated, "2026-05-28", thread!("apple/coremltools", 2725)),
        ],
        check: Check::Graph(|graph, found| in_half(graph, "softplus", found)),
    },
    Rule {
        id: "graph-log-of-softmax",
        severity: Warn,
        on_ane: None,
        what: "the logarithm of a softmax in float16",
        why: "probabilities below 6e-8 are zero in float16, and their logarithm is minus infinity",
        fix: "give out logits, or subtract the logarithm of the sum from them",
        evidence: &[seen(Single, "2026-05-29", thread!("apple/coremltools", 2728))],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind() == "log" && gives(op, &["fp16"])) {
                    let softmax = op.names("x").find_map(|x| function.giver(x)).filter(|op| op.kind() == "softmax");
                    if let Some(softmax) = softmax {
                        found.in_function(function.name, op.label(), format!("of {}", softmax.label()));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-last-axis-slice",
        severity: Info,
        on_ane: None,
        what: "a slice of the last axis that does not begin at its start",
        why: "on M1 and A14, values above 4094 are said to become infinite in it: rotary embeddings are often written so",
        fix: "slice another axis, or multiply by a constant permutation",
        evidence: &[seen(Hint, "2026-08-18", "https://github.com/sbryngelson/ane-guide")],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| gives(op, &["fp16"])) {
                    if cuts_last_axis(function, op) {
                        found.in_function(function.name, op.label(), "last axis, not from its start");
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-quantized-activations",
        severity: Warn,
        on_ane: None,
        what: "activations are quantized in the graph",
        why: "compiles for the ANE failed with it, cosines fell to 0.5, and products of activations with other scales \
              were wrong by the ratio of the scales; one report measures 1.9 times the speed",
        fix: "quantize weights only, or compare the outputs on the ANE with those on the CPU for every block",
        evidence: &[
            seen(Contradicted, "2026-04-13", page!("john-rocky/CoreML-LLM", "docs/STAGE1_W4A8_FINAL.md")),
            seen(Corroborated, "2026-09-14", thread!("apple/coreai-torch", 112)),
        ],
        check: Check::Graph(|graph, found| of_kind(graph, &["quantize", "dequantize"], "on an activation", found)),
    },
    Rule {
        id: "graph-argmax",
        severity: Info,
        on_ane: Some(Warn),
        what: "the most likely token is chosen in the graph, in float16",
        why: "logits of large vocabularies tie in float16, and ANE and CPU choose differently, also from run to run",
        fix: "give out the logits, or the few largest, and choose outside",
        evidence: &[
            seen(Corroborated, "2026", page!("john-rocky/CoreML-LLM", "docs/QWEN35_LESSONS.md")),
            seen(Corroborated, "2026-09-18", thread!("apple/coreai-torch", 116)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind() == "reduce_argmax") {
                    let Some((_, x)) = function.argument(op, "x") else { continue };
                    let longest = x.shape().into_iter().flatten().max().unwrap_or_default();
                    if x.dtype() == "fp16" && longest >= 1024 {
                        found.in_function(function.name, op.label(), format!("among {longest} in float16"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-small-probabilities",
        severity: Info,
        on_ane: None,
        what: "a softmax over 4096 positions or more, in float16",
        why: "probabilities are then near the smallest floats: products with them were 5 % off on the ANE, or zero",
        fix: "multiply the probabilities by 64 before the product and divide after it",
        evidence: &[seen(Single, "2026-09", "https://github.com/cadamcat/llms-on-apple-neural-engine")],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind() == "softmax" && gives(op, &["fp16"])) {
                    let last = op.results().next().and_then(|kind| super::view::sizes(kind).last().copied().flatten());
                    if let Some(positions) = last.filter(|&positions| positions >= 4096) {
                        found.in_function(function.name, op.label(), format!("over {positions}"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-index-width",
        severity: Error,
        on_ane: None,
        what: "a gather by 16-bit indices from a table that they cannot reach the end of",
        why: "tokens beyond 65535 (32767 with a sign) wrap around: another row is taken, on every device",
        fix: "keep indices as int32",
        evidence: &[
            seen(Corroborated, "2024-05-16", thread!("apple/coremltools", 2222)),
            seen(Corroborated, "2025-12-16", thread!("apple/coremltools", 2626)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind() == "gather") {
                    let (Some((_, x)), Some((_, indices))) =
                        (function.argument(op, "x"), function.argument(op, "indices"))
                    else {
                        continue;
                    };
                    let most = match indices.dtype() {
                        "uint16" => 1 << 16,
                        "int16" => 1 << 15,
                        "uint8" => 1 << 8,
                        "int8" => 1 << 7,
                        _ => continue,
                    };
                    let shape = x.shape();
                    let axis = function.integers(op, "axis").and_then(|axis| axis.first().copied()).unwrap_or(0);
                    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
                    let rows = usize::try_from(axis).ok().and_then(|axis| shape.get(axis).copied().flatten());
                    if let Some(rows) = rows.filter(|&rows| rows > most) {
                        found.in_function(
                            function.name,
                            op.label(),
                            format!("{rows} rows, {} indices", indices.dtype()),
                        );
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-tiny-epsilon",
        severity: Info,
        on_ane: None,
        what: "an epsilon that float16 hardly holds",
        why: "an epsilon below 6e-8 is nothing in float16, and one below 6e-5 is a subnormal that hardware may flush: \
              what it guards against divides by zero",
        fix: "use an epsilon of 1e-4, or scale it with the stream as anebake's norms do",
        evidence: &[
            seen(Measured, "2026-11-29", thread!("apple/coremltools", 2585)),
            seen(Corroborated, "2025", thread!("pytorch/executorch", 8641)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| gives(op, &["fp16"])) {
                    let guards = ["epsilon", "y", "x"].into_iter().filter_map(|p| Some((p, function.constant(op, p)?)));
                    for (parameter, value) in guards.filter(|(p, _)| *p == "epsilon" || op.kind() == "add") {
                        let values = graph.floats(value, 2).filter(|values| values.len() == 1);
                        let tiny = values.map(|values| values[0].abs()).filter(|v| *v > 0.0 && *v < 6.2e-5);
                        if let Some(tiny) = tiny {
                            found.in_function(function.name, op.label(), format!("`{parameter}` is {tiny:e}"));
                        }
                    }
                }
            }
        }),
    },
];

/// Adds every op of this type that gives float16.
fn in_half(graph: &Graph<'_>, kind: &str, found: &mut Found) {
    for function in &graph.functions {
        for op in function.runtime_ops().filter(|op| op.kind() == kind && gives(op, &["fp16"])) {
            found.in_function(function.name, op.label(), "in float16");
        }
    }
}

/// Every constant, sorted by name.
fn constants<'a>(function: &Function<'a>) -> Vec<(&'a str, &'a spec::Value)> {
    let mut list: Vec<(&str, &spec::Value)> = Vec::new();
    for op in &function.ops {
        for name in op.spec.inputs.values().flat_map(|argument| &argument.arguments) {
            match &name.binding {
                Some(spec::BindingKind::Name(name)) => {
                    list.extend(function.value(name).and_then(|value| value.constant).map(|value| (&**name, value)));
                }
                Some(spec::BindingKind::Value(value)) => list.push((op.name(), value)),
                None => {}
            }
        }
    }
    list.sort_by_key(|(name, _)| *name);
    list.dedup_by_key(|(name, value)| (*name, std::ptr::from_ref(*value)));
    list
}

/// What an op gives the square of.
fn squared<'a>(graph: &Graph<'_>, function: &Function<'a>, op: &Op<'a>) -> Option<&'a str> {
    let (x, value) = function.argument(op, "x")?;
    let square = match op.kind() {
        "mul" => op.names("y").next() == Some(x),
        "square" | "reduce_sum_square" => true,
        "pow" => function.constant(op, "y").and_then(|y| graph.floats(y, 1)).is_some_and(|y| y == [2.0]),
        _ => false,
    };
    (square && value.runtime).then_some(x)
}

/// Whether a value was divided by something that is computed from its largest magnitude.
fn is_scaled(function: &Function<'_>, name: &str) -> bool {
    let Some(op) = function.giver(name) else { return false };
    let by = |parameter: &str| {
        op.names(parameter)
            .any(|name| function.comes_from(name, &["reduce_max", "reduce_l2_norm", "reduce_l1_norm"], 4))
    };
    match op.kind() {
        "real_div" => by("y"),
        "mul" => by("x") || by("y"),
        _ => false,
    }
}

/// Whether an op cuts the last axis elsewhere than at its start.
fn cuts_last_axis(function: &Function<'_>, op: &Op<'_>) -> bool {
    let rank = function.argument(op, "x").map(|(_, x)| x.shape().len()).unwrap_or_default();
    match op.kind() {
        "slice_by_size" | "slice_by_index" => function
            .integers(op, "begin")
            .is_some_and(|begin| begin.len() == rank && begin.last().is_some_and(|&b| b != 0)),
        "split" => {
            let axis = function.integers(op, "axis").and_then(|axis| axis.first().copied());
            axis.is_some_and(|axis| axis == -1 || axis == rank as i64 - 1)
        }
        _ => false,
    }
}
