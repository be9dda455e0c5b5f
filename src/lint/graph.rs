//! Rules over a program: placement, shapes, interface.

use super::Severity::{Error, Info, Warn};
use super::evidence::Confidence::{Contradicted, Corroborated, Hint, Single, Vendor};
use super::evidence::{page, seen, thread};
use super::placement::{Estimate, LONGEST_INNER, MOST_AXES, integer_ops, is_depthwise, too_long};
use super::recipe::{ALIGNMENT, AXIS, SHORT_QUERY};
use super::view::{Function, Graph, Op, Shapes, is_float};
use super::{Check, Found, Rule};

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "graph-off-ane",
        severity: Info,
        on_ane: Some(Warn),
        what: "an estimate, not a measurement: ops about which something is known that keeps them off the ANE",
        why: "each piece that goes elsewhere splits the program, and handing tensors over costs time; for the other ops \
              nothing is known, which is no promise",
        fix: "see the reason at each op; `anebake smoke` on a Mac shows where Core ML wants to run them",
        evidence: &[
            seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/typed-execution.html"),
            seen(
                Hint,
                "2026-11-29",
                "https://github.com/hollance/neural-engine/blob/master/docs/unsupported-layers.md",
            ),
            seen(Single, "2024-04-29", thread!("apple/coremltools", 2208)),
            seen(Single, "2026-08-25", thread!("apple/coreai-torch", 66)),
        ],
        check: Check::Graph(|graph, found| {
            for estimate in Estimate::of(graph) {
                for off in &estimate.off {
                    found.in_function(&estimate.function, format!("{} {}", off.names.len(), off.op), off.why.clone());
                }
            }
        }),
    },
    Rule {
        id: "graph-integer-ops",
        severity: Info,
        on_ane: Some(Warn),
        what: "integers or truth values move between inputs and outputs",
        why: "the ANE computes in float16; ops on integers split the program, and a slice at a position that is known \
              only at run time does too",
        fix: "`package.kv = \"mask\"` or `\"io\"`: tables and masks come in as float16, and no integer is left",
        evidence: &[
            seen(Corroborated, "2026-06-11", thread!("apple/coreai-torch", 6)),
            seen(Single, "2026-09", "https://github.com/onnxsim/onnxsim"),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for (op, what) in integer_ops(function) {
                    found.in_function(function.name, op.label(), what);
                }
            }
        }),
    },
    Rule {
        id: "graph-float32-compute",
        severity: Warn,
        on_ane: Some(Error),
        what: "ops compute in float32",
        why: "the ANE computes in float16: these ops go to the CPU or the GPU",
        fix: "convert with `compute_precision = float16` (in anebake `package.compute_precision`), and write literals as \
              float16: one float32 number makes a float32 op",
        evidence: FLOAT32,
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let all = function.runtime_ops().count();
                let wide: Vec<&str> =
                    function.runtime_ops().filter(|op| gives(op, &["fp32", "fp64"])).map(Op::kind).collect();
                if !wide.is_empty() {
                    found.in_function(function.name, format!("{} of {all} ops", wide.len()), tally(&wide));
                }
            }
        }),
    },
    Rule {
        id: "graph-float32-interface",
        severity: Warn,
        on_ane: None,
        what: "float32 at the edge of a program that computes in float16",
        why: "each call casts on the way in and out, on the CPU, and keeps buffers from being handed over as they are",
        fix: "declare inputs and outputs as float16 (target iOS 16 or later)",
        evidence: FLOAT32,
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                if !function.runtime_ops().any(|op| gives(op, &["fp16"])) {
                    continue;
                }
                for input in function.inputs.iter().filter(|input| input.dtype == "fp32") {
                    found.in_function(function.name, format!("input `{}`", input.name), "float32");
                }
                for name in function.outputs {
                    if function.value(name).is_some_and(|value| value.dtype() == "fp32") {
                        found.in_function(function.name, format!("output `{name}`"), "float32");
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-flexible-input",
        severity: Warn,
        on_ane: Some(Error),
        what: "an input without one static shape",
        why: "with ranges, the ANE runs the default shape at best, and some engines refuse the model; listed shapes were \
              seen at 2 % on the ANE",
        fix: "one function for each shape, all static",
        evidence: &[
            seen(Vendor, "2023", "https://developer.apple.com/forums/thread/724930"),
            seen(Corroborated, "2023-11-19", thread!("apple/coremltools", 1029)),
            seen(Corroborated, "2024-10-29", thread!("apple/coremltools", 2370)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for input in function.inputs.iter().filter(|input| input.shapes != Shapes::Static) {
                    let how = if input.shapes == Shapes::Range { "a range of shapes" } else { "a list of shapes" };
                    found.in_function(function.name, format!("input `{}`", input.name), how);
                }
            }
        }),
    },
    Rule {
        id: "graph-mixed-flexible-inputs",
        severity: Warn,
        on_ane: None,
        what: "a stateful function mixes inputs of fixed, listed and ranged shapes",
        why: "Core ML was seen to refuse such models with `EnumeratedWithRangeInputsException`",
        fix: "make all inputs static",
        evidence: &[seen(Single, "2025-06-19", thread!("apple/coremltools", 2548))],
        check: Check::Graph(|graph, found| {
            for function in graph.functions.iter().filter(|function| !function.states.is_empty()) {
                let first = function.inputs.first().map(|input| input.shapes);
                if let Some(other) = function.inputs.iter().find(|input| Some(input.shapes) != first) {
                    found.in_function(function.name, format!("input `{}`", other.name), "not as the first input");
                }
            }
        }),
    },
    Rule {
        id: "graph-norm-with-listed-shapes",
        severity: Warn,
        on_ane: None,
        what: "`layer_norm` in a function with listed shapes",
        why: "it was seen to leave the ANE then, at nine times the time",
        fix: "make the shapes static",
        evidence: &[seen(Single, "2023-07-10", thread!("apple/coremltools", 1909))],
        check: Check::Graph(|graph, found| {
            let listed = |f: &&Function<'_>| f.inputs.iter().any(|input| input.shapes == Shapes::Enumerated);
            for function in graph.functions.iter().filter(listed) {
                for op in function.runtime_ops().filter(|op| op.kind() == "layer_norm") {
                    found.in_function(function.name, op.label(), "with listed shapes");
                }
            }
        }),
    },
    Rule {
        id: "graph-shape-at-run-time",
        severity: Warn,
        on_ane: Some(Error),
        what: "a shape depends on a value that is known only at run time",
        why: "the ANE takes static shapes only, and plans were refused with `Data-dependent shapes were disabled`",
        fix: "compute masks and positions outside, and slice with constant sizes",
        evidence: &[
            seen(Single, "2026-09", "https://github.com/onnxsim/onnxsim"),
            seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/flexible-inputs.html"),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                if function.inputs.iter().any(|input| input.shapes != Shapes::Static) {
                    continue;
                }
                for op in function.runtime_ops().filter(|op| gives_open_shape(op)) {
                    found.in_function(function.name, op.label(), "its result has no static shape");
                }
            }
        }),
    },
    Rule {
        id: "graph-many-axes",
        severity: Warn,
        on_ane: Some(Error),
        what: "a value of more than five axes",
        why: "the ANE has five",
        fix: "fold axes together by `reshape` before",
        evidence: RANK,
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops() {
                    if let Some(rank) = op.results().map(|kind| kind.dimensions.len()).find(|&rank| rank > MOST_AXES) {
                        found.in_function(function.name, op.label(), format!("{rank} axes"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-long-axis",
        severity: Warn,
        on_ane: Some(Error),
        what: "an axis that is longer than the ANE takes",
        why: "16384 is the limit of the last two axes on most chips, 65536 of the others; compilers refuse such ops, and \
              they go elsewhere",
        fix: "split the tensor: an output matrix into parts of at most 16384 rows, a table out of the package",
        evidence: AXIS,
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops() {
                    if let Some(size) = op.results().find_map(|kind| too_long(&super::view::sizes(kind))) {
                        found.in_function(function.name, op.label(), format!("axis of {size}"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-undivided-head",
        severity: Warn,
        on_ane: None,
        what: "a projection to more than 16384 outputs",
        why: "vocabularies are wider than an axis of the ANE; heads are shipped in parts. One report has the parts slower",
        fix: "split the matrix into parts of at most 16384 rows, each with its own output",
        evidence: &[
            seen(Corroborated, "2025-09-25", thread!("FluidInference/FluidAudio", 121)),
            seen(Corroborated, "2025", page!("Anemll/Anemll", "docs/qwen3.md")),
            seen(Contradicted, "2026-04-28", page!("john-rocky/CoreML-LLM", "docs/REJECTED_APPROACHES.md")),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops() {
                    let wide = outputs_of(function, op).filter(|&outputs| outputs > LONGEST_INNER);
                    if let Some(outputs) = wide {
                        found.in_function(function.name, op.label(), format!("{outputs} outputs"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-short-query",
        severity: Info,
        on_ane: Some(Warn),
        what: "attention with fewer than four query rows",
        why: "an M5 refused the first ANE request of programs with a query width of 1 or 2 and aborted; 4, 8 and 64 ran",
        fix: "pad the query, in anebake by `package.query = 4` or more",
        evidence: SHORT_QUERY,
        check: Check::Graph(|graph, found| {
            for function in graph.functions.iter().filter(|function| function.attentions() > 0) {
                if let Some(tokens) = function.tokens().filter(|&tokens| tokens < 4) {
                    found.in_function(function.name, "query", format!("{tokens} rows"));
                }
            }
        }),
    },
    Rule {
        id: "graph-gather",
        severity: Info,
        on_ane: Some(Warn),
        what: "a gather by indices that are known only at run time",
        why: "gathers were seen off the ANE",
        fix: "look tables up outside and pass the rows in, or multiply by a one-hot mask",
        evidence: &[
            seen(Single, "2025", thread!("pytorch/executorch", 11615)),
            seen(
                Hint,
                "2026-11-29",
                "https://github.com/hollance/neural-engine/blob/master/docs/unsupported-layers.md",
            ),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind().starts_with("gather")) {
                    if function.argument(op, "indices").is_some_and(|(_, indices)| indices.runtime) {
                        found.in_function(function.name, op.label(), "indices known at run time");
                    }
                }
            }
        }),
    },
    Rule {
        id: "graph-control-flow",
        severity: Warn,
        on_ane: None,
        what: "a loop or a branch in the program",
        why: "loops were not seen on the ANE, nor on the GPU",
        fix: "unroll it, or call the model once for each turn",
        evidence: &[seen(Single, "2024-04-29", thread!("apple/coremltools", 2208))],
        check: Check::Graph(|graph, found| of_kind(graph, &["while_loop", "cond"], "control flow", found)),
    },
    Rule {
        id: "graph-depthwise-convolution",
        severity: Warn,
        on_ane: None,
        what: "a convolution with as many groups as channels",
        why: "it was seen off the ANE",
        fix: "write it as products and sums of shifted inputs, and measure",
        evidence: &[seen(Single, "2026-04-28", page!("john-rocky/CoreML-LLM", "docs/LFM2_CONVERSION_FINDINGS.md"))],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| is_depthwise(function, op)) {
                    found.in_function(function.name, op.label(), "depthwise");
                }
            }
        }),
    },
    Rule {
        id: "graph-transposed-convolutions",
        severity: Info,
        on_ane: None,
        what: "three or more convolutions, each between two transposes",
        why: "a change of layout around each projection cost more than the convolution gained",
        fix: "keep one layout, (batch, channels, 1, tokens), from the first op to the last",
        evidence: &[seen(Single, "2026-09", "https://github.com/onnxsim/onnxsim")],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let between = |op: &&Op<'_>| {
                    let before = function
                        .argument(op, "x")
                        .is_some_and(|(x, _)| function.giver(x).is_some_and(|giver| giver.kind() == "transpose"));
                    op.kind() == "conv"
                        && before
                        && function.takers(op.name()).any(|(taker, _)| taker.kind() == "transpose")
                };
                let count = function.runtime_ops().filter(between).count();
                if count >= 3 {
                    found.in_function(function.name, format!("{count} conv"), "transpose before and after");
                }
            }
        }),
    },
    Rule {
        id: "graph-few-ops",
        severity: Info,
        on_ane: None,
        what: "a very small program",
        why: "Core ML prefers the CPU for it, also where the ANE takes every op",
        fix: "judge placement on a whole block, not on a fragment",
        evidence: &[
            seen(Corroborated, "2026-09-12", thread!("kasper0406/stablehlo-coreml", 110)),
            seen(Corroborated, "2026-09-02", thread!("vx-lang/Vx", 436)),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let ops = function.runtime_ops().count();
                if ops < 10 {
                    found.in_function(function.name, "ops", format!("{ops}"));
                }
            }
        }),
    },
    Rule {
        id: "graph-old-target",
        severity: Info,
        on_ane: None,
        what: "a program for a system before macOS 15",
        why: "its compute plan says nothing about where ops would run, and it has neither states nor blockwise scales",
        fix: "convert for macOS 15 (iOS 18)",
        evidence: &[seen(Single, "2026-09", "https://github.com/onnxsim/onnxsim")],
        check: Check::Graph(|graph, found| {
            if graph.version < 9 {
                found.add("specification version", format!("{}", graph.version));
            }
        }),
    },
    Rule {
        id: "graph-new-target-int8",
        severity: Warn,
        on_ane: None,
        what: "integer weights in a program for macOS 26",
        why: "blocks with int8 weights for that target loaded, and failed to bind their buffers at the first prediction",
        fix: "convert for macOS 15; nothing of macOS 26 is needed",
        evidence: &[seen(Single, "2026-06-10", "https://github.com/sarthak-fleet/tinygpt/commit/bbbc623")],
        check: Check::Graph(|graph, found| {
            let quantized = graph.functions.iter().flat_map(|f| &f.ops).any(|op| op.kind().starts_with("constexpr_"));
            if graph.version >= 10 && quantized {
                found.add("specification version", format!("{}", graph.version));
            }
        }),
    },
    Rule {
        id: "graph-ragged-rows",
        severity: Info,
        on_ane: None,
        what: "many values whose last axis does not fill 64 bytes",
        why: "the ANE pads the last axis to 64 bytes: one of a single float16 takes 32 times its size",
        fix: "lay tensors out so that the last axis is a multiple of 32 float16 values",
        evidence: ALIGNMENT,
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let last = |op: &&Op<'_>| {
                    op.results().any(|kind| {
                        let shape = super::view::sizes(kind);
                        let large = shape.iter().map(|size| size.unwrap_or(1)).fold(1u64, u64::saturating_mul) >= 1024;
                        shape.len() > 1 && large && shape.last().copied().flatten().is_some_and(|size| size % 32 != 0)
                    })
                };
                let ragged = function.runtime_ops().filter(last).count();
                let all = function.runtime_ops().count();
                if ragged * 4 > all && ragged > 0 {
                    found.in_function(
                        function.name,
                        format!("{ragged} of {all} ops"),
                        "a last axis that is no multiple of 32",
                    );
                }
            }
        }),
    },
];

const FLOAT32: &[super::Evidence] = &[
    seen(Corroborated, "2025-09-06", thread!("apple/coremltools", 2585)),
    seen(Corroborated, "2026-09-03", thread!("vx-lang/Vx", 437)),
    seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/typed-execution.html"),
];

pub(super) const RANK: &[super::Evidence] = &[
    seen(Corroborated, "2026-06-07", thread!("FluidInference/mobius", 67)),
    seen(Vendor, "2026-11-29", "https://github.com/apple/coreai-models"),
];

/// Whether a result is of one of these dtypes.
pub(super) fn gives(op: &Op<'_>, dtypes: &[&str]) -> bool {
    op.results().any(|kind| kind.dtype().is_some_and(|dtype| dtypes.contains(&dtype)))
}

fn gives_open_shape(op: &Op<'_>) -> bool {
    op.results().any(|kind| kind.dimensions.iter().any(|d| d.constant.is_none()))
}

/// Adds every op of these types that runs.
pub(super) fn of_kind(graph: &Graph<'_>, kinds: &[&str], says: &str, found: &mut Found) {
    for function in &graph.functions {
        for op in function.runtime_ops().filter(|op| kinds.contains(&op.kind())) {
            found.in_function(function.name, op.label(), says);
        }
    }
}

/// Output channels of a product with a constant.
fn outputs_of(function: &Function<'_>, op: &Op<'_>) -> Option<u64> {
    let shape = op.results().next().map(super::view::sizes)?;
    let axis = match op.kind() {
        "conv" => 1,
        "linear" => shape.len().checked_sub(1)?,
        "matmul" => {
            // The scores of attention are a product of two values of run time, as long as the context.
            let weight = ["x", "y"].iter().any(|name| function.argument(op, name).is_some_and(|(_, v)| !v.runtime));
            shape.len().checked_sub(1).filter(|_| weight)?
        }
        _ => return None,
    };
    let float = op.results().next()?.dtype().is_some_and(is_float);
    shape.get(axis).copied().flatten().filter(|_| float)
}

/// Types and how many of each, the most frequent first.
fn tally(kinds: &[&str]) -> String {
    let mut counts: Vec<(usize, &str)> = Vec::new();
    for kind in kinds {
        match counts.iter_mut().find(|(_, known)| known == kind) {
            Some((count, _)) => *count += 1,
            None => counts.push((1, kind)),
        }
    }
    counts.sort_by_key(|&(count, kind)| (std::cmp::Reverse(count), kind));
    counts.iter().map(|(count, kind)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")
}
