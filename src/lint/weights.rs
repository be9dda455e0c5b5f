//! Rules over weights: how they are compressed, and what their values are.
//!
//! Scales and small constants are read whole; of large ones a sample is, [`SAMPLE`] bytes spread over all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Severity::{Error, Info, Warn};
use super::evidence::Confidence::{Contradicted, Corroborated, Hint, Measured, Single, Vendor};
use super::evidence::{page, seen, thread};
use super::recipe::PER_BLOCK;
use super::view::{Function, Graph, Op, PackageView};
use super::{Check, Found, Rule};
use crate::mlpackage::blob::{ALIGNMENT, BlobDtype, Entry};
use crate::mlpackage::spec;

/// Bytes of a large constant that are read.
pub const SAMPLE: usize = 1 << 20;
/// Bytes that are read in one piece.
const PIECE: usize = 4096;
/// The largest blob file that the ANE compiler takes.
const MOST_BYTES: u64 = 1 << 31;
/// The most scales of a weight that are looked at.
const MOST_SCALES: usize = 1 << 26;

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "weights-per-block",
        severity: Warn,
        on_ane: Some(Error),
        what: "a weight has several scales along its inputs",
        why: "the ANE compiler takes one scale for an output channel or a tensor; the op goes to the CPU. One system ran \
              such weights on the ANE and gave wrong numbers without a word",
        fix: "quantize per channel, and keep what suffers in float16",
        evidence: PER_BLOCK,
        check: Check::Graph(|graph, found| {
            each_compressed(graph, |function, op| {
                if is_grouped(function, op) {
                    let (data, scale) = (shape_of(function, op, "data"), shape_of(function, op, "scale"));
                    found.in_function(function.name, op.label(), format!("scales {scale:?} for {data:?}"));
                }
            });
        }),
    },
    Rule {
        id: "weights-vanished",
        severity: Error,
        on_ane: None,
        what: "a scale of zero under weights that are not zero",
        why: "the whole channel becomes zero: its scale was below the smallest float16, and no tool said so",
        fix: "give such channels a scale of their own size, as anebake's native engine does, or leave the tensor in \
              float16",
        evidence: ZERO_SCALE,
        check: Check::Package(|view, found| {
            for weight in blockwise(view) {
                let zero = weight.zero_groups();
                let lost = weight.occupied(&view.graph, &zero);
                if lost > 0 {
                    found.add(format!("`{}`", weight.name), format!("{lost} of {} scales", weight.scales.len()));
                }
            }
        }),
    },
    Rule {
        id: "weights-zero-scale",
        severity: Warn,
        on_ane: None,
        what: "a scale of zero",
        why: "an all-zero channel that coremltools quantized: its integers come from 0/0, and what a device makes of a \
              zero scale is not said",
        fix: "write 1 as the scale of an all-zero channel",
        evidence: ZERO_SCALE,
        check: Check::Package(|view, found| {
            for weight in blockwise(view) {
                let zero = weight.zero_groups();
                if !zero.is_empty() && weight.occupied(&view.graph, &zero) == 0 {
                    found
                        .add(format!("`{}`", weight.name), format!("{} of {} scales", zero.len(), weight.scales.len()));
                }
            }
        }),
    },
    Rule {
        id: "weights-subnormal-scale",
        severity: Info,
        on_ane: None,
        what: "a scale that is a subnormal float16",
        why: "it is coarse, and hardware that flushes subnormals makes the channel zero",
        fix: "compare the outputs of this block on the device with those of the reference runner",
        evidence: &[seen(Measured, "2026-11-29", thread!("apple/coremltools", 2853))],
        check: Check::Package(|view, found| {
            for weight in blockwise(view).into_iter().filter(|weight| weight.half_scales) {
                let tiny = weight.scales.iter().filter(|scale| **scale != 0.0 && scale.abs() < 6.103_515_6e-5).count();
                if tiny > 0 {
                    found.add(format!("`{}`", weight.name), format!("{tiny} of {} scales", weight.scales.len()));
                }
            }
        }),
    },
    Rule {
        id: "weights-not-finite",
        severity: Error,
        on_ane: None,
        what: "NaN or infinity among the weights",
        why: "everything that it touches becomes NaN; the ANE was seen to turn NaN into infinity on the way, so that no \
              check for NaN sees it",
        fix: "look at the tensor in the checkpoint; a scale of infinity comes from weights above 32752 in float16",
        evidence: &[
            seen(Corroborated, "2026-06-10", thread!("FluidInference/FluidAudio", 679)),
            seen(Measured, "2026-11-29", thread!("apple/coremltools", 2853)),
        ],
        check: Check::Package(|view, found| {
            let mut known = BTreeSet::new();
            for used in view.blobs.iter().filter(|used| known.insert(used.entry.offset)) {
                let file = view.package.weights();
                let scale = used.op != "const";
                let bad = |v: &f32| v.is_nan() || v.is_infinite() && (scale || *v > 0.0);
                if any_float(&used.entry, file, bad) {
                    found.add(format!("`{}`", used.output), format!("`{}` holds some", used.slot));
                }
            }
        }),
    },
    Rule {
        id: "weights-quantized-table",
        severity: Warn,
        on_ane: None,
        what: "a table that is looked up by position is quantized",
        why: "cosines and sines of rotary embeddings need more than 256 steps: a quantizer with a global configuration \
              takes every constant of more than 2048 elements",
        fix: "quantize by op type (`op_type_configs` for `conv` and `linear`), not by a global configuration",
        evidence: GLOBAL,
        check: Check::Package(|view, found| {
            each_compressed(&view.graph, |function, op| {
                for (taker, parameter) in function.takers(op.name()) {
                    let sliced = taker.kind().starts_with("slice_by_") && parameter == "x";
                    let looked_up = taker.kind() == "gather" && parameter == "x";
                    if sliced || looked_up && is_rotary(&view.graph, function, op) {
                        found.in_function(function.name, op.label(), format!("taken by {}", taker.label()));
                        break;
                    }
                }
            });
        }),
    },
    Rule {
        id: "weights-quantized-gain",
        severity: Warn,
        on_ane: None,
        what: "a constant that is no weight of a product is quantized: a gain, a bias, a mask, a table",
        why: "it saves next to nothing and costs accuracy everywhere it is used: a quantizer with a global configuration \
              takes every constant of more than 2048 elements",
        fix: "quantize by op type (`op_type_configs` for `conv` and `linear`), not by a global configuration",
        evidence: GLOBAL,
        check: Check::Graph(|graph, found| {
            each_compressed(graph, |function, op| {
                let taker = users(function, op).into_iter().find(|(taker, parameter)| {
                    !is_compressed(taker)
                        && !is_weight(taker.kind(), parameter)
                        && !matches!(taker.kind(), "gather" | "slice_by_size" | "slice_by_index")
                });
                if let Some((taker, parameter)) = taker {
                    found.in_function(function.name, op.label(), format!("`{parameter}` of {}", taker.label()));
                }
            });
        }),
    },
    Rule {
        id: "weights-palette",
        severity: Warn,
        on_ane: None,
        what: "palettized weights in a program for macOS 15",
        why: "loading such a program for the ANE was seen to abort with `mps.dequantize`; others ran them, slower than \
              float16",
        fix: "use int8 per channel, or try this package alone in a child process (`anebake smoke`)",
        evidence: &[
            seen(Corroborated, "2026-05-03", thread!("apple/coremltools", 2688)),
            seen(Contradicted, "2026-09", "https://github.com/cadamcat/llms-on-apple-neural-engine"),
        ],
        check: Check::Graph(|graph, found| {
            if graph.version >= 9 {
                of_compression(graph, &["constexpr_lut_to_dense", "constexpr_lut_to_sparse"], found);
            }
        }),
    },
    Rule {
        id: "weights-palette-of-sixteen",
        severity: Warn,
        on_ane: None,
        what: "4-bit palettes by coremltools 9.0",
        why: "one report has wrong numbers on every device (cosine 0.03 on the CPU), another a crash after some hundred \
              predictions; coremltools 8.3 made sound ones of the same model",
        fix: "palettize with 8.3, or use int8; compare CPU and ANE with the source",
        evidence: &[
            seen(Single, "2026-05-24", thread!("apple/coremltools", 2716)),
            seen(Single, "2026-09-23", thread!("apple/coremltools", 2716)),
        ],
        check: Check::Graph(|graph, found| {
            // A package of several functions does not say who made it.
            if graph.coremltools.is_some_and(|version| !version.starts_with("9.0")) {
                return;
            }
            each_compressed(graph, |function, op| {
                if op.kind() == "constexpr_lut_to_dense" && palette_size(function, op) == Some(16) {
                    found.in_function(function.name, op.label(), "16 values");
                }
            });
        }),
    },
    Rule {
        id: "weights-grouped-palette",
        severity: Warn,
        on_ane: None,
        what: "a palette for each row and block of inputs",
        why: "the ANE compiler refused it with -14; another system took it and gave wrong numbers",
        fix: "one palette for a group of output channels",
        evidence: &[
            seen(Single, "2026-04-24", page!("john-rocky/CoreML-LLM", "docs/DECODE_STATE_LAYOUTS.md")),
            seen(Single, "2026-09-12", thread!("apple/coreai-torch", 93)),
        ],
        check: Check::Graph(|graph, found| {
            each_compressed(graph, |function, op| {
                let lut = shape_of(function, op, "lut");
                let axes = lut.len().saturating_sub(2);
                let varied = lut.iter().take(axes).filter(|&&size| size > 1).count();
                if op.kind() == "constexpr_lut_to_dense" && varied > 1 {
                    found.in_function(function.name, op.label(), format!("palettes {lut:?}"));
                }
            });
        }),
    },
    Rule {
        id: "weights-scaled-palette",
        severity: Info,
        on_ane: None,
        what: "a palette of integers with scales on top",
        why: "right on the ANE, and two to ten times slower there than float16, where plain integers were faster",
        fix: "store integers with a scale for each output channel, or a palette of float16 values",
        evidence: &[seen(Single, "2026-09", "https://github.com/cadamcat/llms-on-apple-neural-engine")],
        check: Check::Graph(|graph, found| {
            each_compressed(graph, |function, op| {
                let nested = |name: &str| {
                    op.names(name).any(|name| {
                        function.giver(name).is_some_and(|giver| {
                            let kinds = (op.kind(), giver.kind());
                            kinds == ("constexpr_lut_to_dense", "constexpr_blockwise_shift_scale")
                                || kinds == ("constexpr_blockwise_shift_scale", "constexpr_lut_to_dense")
                        })
                    })
                };
                if nested("lut") || nested("data") {
                    found.in_function(function.name, op.label(), "scaled palette");
                }
            });
        }),
    },
    Rule {
        id: "weights-joint-compression",
        severity: Warn,
        on_ane: None,
        what: "weights that are sparse and palettized or quantized",
        why: "fewer ops stayed on the ANE, accuracy fell to a cosine of 0.45, and the package grew",
        fix: "one kind of compression",
        evidence: &[seen(Single, "2026-04-26", page!("john-rocky/CoreML-LLM", "docs/REJECTED_APPROACHES.md"))],
        check: Check::Graph(|graph, found| {
            of_compression(graph, &["constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale"], found);
        }),
    },
    Rule {
        id: "weights-signed-affine",
        severity: Warn,
        on_ane: None,
        what: "signed int8 weights in the form for iOS 16",
        why: "right on the CPU; constant on the GPU and infinite on the ANE",
        fix: "convert for macOS 15, or use uint8 with a zero point",
        evidence: &[seen(Single, "2024-01-17", thread!("apple/coremltools", 2114))],
        check: Check::Graph(|graph, found| {
            each_compressed(graph, |function, op| {
                let data = function.constant(op, "quantized_data").and_then(dtype_of);
                if op.kind() == "constexpr_affine_dequantize" && data == Some("int8") {
                    found.in_function(function.name, op.label(), "int8");
                }
            });
        }),
    },
    Rule {
        id: "weights-unshared",
        severity: Warn,
        on_ane: None,
        what: "functions hold the same weights twice",
        why: "each copy takes disk and memory; functions of one package can share",
        fix: "join the functions with `save_multifunction`, which shares equal constants",
        evidence: &[
            seen(Corroborated, "2023", thread!("apple/coremltools", 1832)),
            seen(Corroborated, "2024", thread!("apple/coremltools", 2351)),
        ],
        check: Check::Package(unshared),
    },
    Rule {
        id: "weights-unused",
        severity: Warn,
        on_ane: None,
        what: "a blob file with much in it that no function names",
        why: "it is shipped, mapped and counted against size limits for nothing",
        fix: "convert again: an earlier save left it behind",
        evidence: &[seen(Vendor, "2026-11-29", "https://github.com/apple/coremltools/tree/main/mlmodel/src/MILBlob")],
        check: Check::Package(|view, found| {
            let entries: BTreeMap<u64, u64> =
                view.blobs.iter().map(|used| (used.entry.offset, used.entry.end())).collect();
            let named: u64 = entries.iter().map(|(offset, end)| (end - offset).next_multiple_of(ALIGNMENT)).sum();
            let unused = view.weight_bytes().saturating_sub(named + ALIGNMENT);
            if unused > 65_536 {
                found.add("`weight.bin`", format!("{unused} of {} bytes", view.weight_bytes()));
            }
        }),
    },
    Rule {
        id: "weights-slow-stride",
        severity: Info,
        on_ane: None,
        what: "a weight whose share of each of the 16 cores is close to a multiple of 1 MiB",
        why: "such weights were seen to stream from memory at a third of the speed",
        fix: "split the product along its inputs, if the device shows it",
        evidence: &[seen(Single, "2026-09-12", thread!("kasper0406/stablehlo-coreml", 110))],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| matches!(op.kind(), "conv" | "linear")) {
                    let Some((name, weight)) = function.argument(op, "weight") else { continue };
                    let sizes: Option<Vec<u64>> = weight.shape().into_iter().collect();
                    let Some([outputs, rest @ ..]) = sizes.as_deref() else { continue };
                    let share = rest.iter().fold(outputs.div_ceil(16).saturating_mul(2), |a, &b| a.saturating_mul(b));
                    let near = share.saturating_add(1 << 14) % (1 << 20);
                    if share >= 1 << 19 && near <= 1 << 15 {
                        found.in_function(function.name, format!("`{name}`"), format!("{share} bytes for each core"));
                    }
                }
            }
        }),
    },
    Rule {
        id: "weights-float32",
        severity: Info,
        on_ane: None,
        what: "weights in float32",
        why: "twice the size of float16, and nothing that the ANE computes with",
        fix: "convert with float16 precision",
        evidence: &[seen(
            Vendor,
            "2026-11-29",
            "https://apple.github.io/coremltools/docs-guides/source/typed-execution.html",
        )],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let mut known = BTreeSet::new();
                for op in function.runtime_ops() {
                    for parameter in ["weight", "x", "y"] {
                        let Some((name, value)) = function.argument(op, parameter) else { continue };
                        let product = is_weight(op.kind(), parameter) && !value.runtime && value.dtype() == "fp32";
                        if product && known.insert(name) {
                            found.in_function(
                                function.name,
                                format!("`{name}`"),
                                format!("{:?}", known_sizes(value.kind)),
                            );
                        }
                    }
                }
            }
        }),
    },
    Rule {
        id: "package-weight-file",
        severity: Warn,
        on_ane: Some(Error),
        what: "a blob file of more than 2 GiB",
        why: "the ANE compiler refuses it by its size",
        fix: "one package for each block, or a smaller dtype",
        evidence: &[
            seen(Corroborated, "2025-09-10", thread!("apple/coremltools", 2593)),
            seen(Corroborated, "2023-03-21", thread!("apple/coremltools", 1807)),
        ],
        check: Check::Package(|view, found| sized(view, MOST_BYTES, u64::MAX, found)),
    },
    Rule {
        id: "package-phone-size",
        severity: Warn,
        on_ane: None,
        what: "a blob file of more than 1 GiB",
        why: "on an iPhone the ANE takes about 1 GiB of a package; beyond it the GPU runs it or the app is killed",
        fix: "split the package, if phones are to run it",
        evidence: &[
            seen(Corroborated, "2026-04-24", page!("john-rocky/CoreML-LLM", "docs/DECODE_STATE_LAYOUTS.md")),
            seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/mlmodel-utilities.html"),
        ],
        check: Check::Package(|view, found| sized(view, 1 << 30, MOST_BYTES, found)),
    },
    Rule {
        id: "package-float16-size",
        severity: Info,
        on_ane: None,
        what: "more than 1 GB of float16 weights in one package",
        why: "one such package was spread over ANE, GPU and CPU, one of 3 GB ran on the GPU alone; int8 stayed",
        fix: "int8 weights, or one package for each block",
        evidence: &[
            seen(Single, "2026-09-13", "https://github.com/onnxsim/onnxsim"),
            seen(Hint, "2026-07-14", thread!("apple/coremltools", 2758)),
        ],
        check: Check::Package(|view, found| {
            let halves: BTreeMap<u64, u64> = view
                .blobs
                .iter()
                .filter(|used| used.entry.dtype == BlobDtype::Float16)
                .map(|used| (used.entry.offset, used.entry.size))
                .collect();
            let total: u64 = halves.values().sum();
            if total > 1_000_000_000 {
                found.add("`weight.bin`", format!("{total} bytes of float16"));
            }
        }),
    },
];

const ZERO_SCALE: &[super::Evidence] = &[
    seen(Corroborated, "2026-09-09", thread!("apple/coremltools", 2853)),
    seen(Corroborated, "2026-04-24", page!("john-rocky/CoreML-LLM", "docs/DECODE_STATE_LAYOUTS.md")),
    seen(Measured, "2026-11-29", thread!("apple/coremltools", 2851)),
];

const GLOBAL: &[super::Evidence] = &[
    seen(Vendor, "2026-11-29", "https://apple.github.io/coremltools/source/coremltools.optimize.coreml.config.html"),
    seen(Measured, "2026-11-29", "https://apple.github.io/coremltools/docs-guides/source/opt-quantization-api.html"),
];

/// Every op that decompresses a constant, once for all functions that share it.
fn each_compressed<'g, 'a>(graph: &'g Graph<'a>, mut see: impl FnMut(&'g Function<'a>, &'g Op<'a>)) {
    let mut known = BTreeSet::new();
    for function in &graph.functions {
        for op in function.ops.iter().filter(|op| is_compressed(op)) {
            let slots = ["data", "quantized_data", "indices", "nonzero_data"];
            let stored = slots.iter().find_map(|slot| graph.entry(function.constant(op, slot)?));
            if stored.is_none_or(|entry| known.insert((op.name(), entry.offset))) {
                see(function, op);
            }
        }
    }
}

fn is_compressed(op: &Op<'_>) -> bool {
    op.kind().starts_with("constexpr_") && op.kind() != "constexpr_cast"
}

/// Ops that take a constant, as it is or in another shape.
fn users<'f, 'a>(function: &'f Function<'a>, op: &Op<'a>) -> Vec<(&'f Op<'a>, &'a str)> {
    let (mut list, mut names) = (Vec::new(), vec![op.name()]);
    let turns = |op: &Op<'_>| {
        matches!(op.kind(), "transpose" | "reshape" | "expand_dims" | "squeeze" | "identity") && !op.runtime
    };
    for _ in 0..4 {
        let takers: Vec<_> = names.iter().flat_map(|name| function.takers(name)).collect();
        names = takers.iter().filter(|(op, _)| turns(op)).map(|(op, _)| op.name()).collect();
        list.extend(takers.into_iter().filter(|(op, _)| !turns(op)));
    }
    list
}

fn of_compression(graph: &Graph<'_>, kinds: &[&str], found: &mut Found) {
    each_compressed(graph, |function, op| {
        if kinds.contains(&op.kind()) {
            found.in_function(function.name, op.label(), op.kind().trim_start_matches("constexpr_"));
        }
    });
}

/// Whether a parameter of an op is the weight of a product.
fn is_weight(kind: &str, parameter: &str) -> bool {
    match kind {
        "conv" | "conv_transpose" | "linear" => parameter == "weight",
        "matmul" => matches!(parameter, "x" | "y"),
        "einsum" => parameter == "values",
        "lstm" | "gru" | "rnn" => parameter.starts_with("weight"),
        _ => false,
    }
}

/// The compressed weight that an op multiplies with.
pub fn weight_of<'f, 'a>(function: &'f Function<'a>, op: &Op<'a>) -> Option<&'f Op<'a>> {
    let parameters = ["weight", "y", "x"].into_iter().filter(|parameter| is_weight(op.kind(), parameter));
    parameters.filter_map(|parameter| function.giver(op.names(parameter).next()?)).find(|giver| is_compressed(giver))
}

/// Whether a compressed weight has several scales along its inputs: they vary along two axes, or along the one that a
/// product sums over.
pub fn is_grouped(function: &Function<'_>, op: &Op<'_>) -> bool {
    if op.kind() != "constexpr_blockwise_shift_scale" {
        return false;
    }
    let scale = shape_of(function, op, "scale");
    let varied: Vec<usize> = (0..scale.len()).filter(|&axis| scale[axis] > 1).collect();
    match varied[..] {
        [] => false,
        [axis] => function.takers(op.name()).any(|(taker, parameter)| {
            let last = scale.len() - 1;
            let turned = function.constant(taker, &format!("transpose_{parameter}")).is_some_and(is_true);
            match (taker.kind(), parameter) {
                ("conv" | "linear", "weight") => axis != 0,
                ("matmul", "y") => axis != if turned { last.saturating_sub(1) } else { last },
                ("matmul", "x") => axis != if turned { last } else { last.saturating_sub(1) },
                _ => false,
            }
        }),
        _ => true,
    }
}

fn is_true(value: &spec::Value) -> bool {
    let Some(spec::ValueKind::Immediate(immediate)) = &value.value else { return false };
    let elements = immediate.tensor.as_ref().and_then(|tensor| tensor.value.as_ref());
    matches!(elements, Some(spec::TensorElements::Bools(list)) if list.values.first() == Some(&true))
}

fn dtype_of(value: &spec::Value) -> Option<&'static str> {
    value.r#type.as_ref()?.tensor_type.as_ref()?.dtype()
}

fn known_sizes(kind: Option<&spec::TensorType>) -> Vec<u64> {
    kind.and_then(spec::TensorType::shape).unwrap_or_default()
}

/// The shape of a parameter's constant, or of what gives it; empty where there is none.
fn shape_of(function: &Function<'_>, op: &Op<'_>, parameter: &str) -> Vec<u64> {
    let constant = function.constant(op, parameter).and_then(|value| value.r#type.as_ref());
    let kind = constant.and_then(|kind| kind.tensor_type.as_ref());
    known_sizes(kind.or_else(|| function.argument(op, parameter).and_then(|(_, value)| value.kind)))
}

/// Entries of a palette.
fn palette_size(function: &Function<'_>, op: &Op<'_>) -> Option<u64> {
    let lut = shape_of(function, op, "lut");
    // iOS 16: [entries]; iOS 18: […, entries, vector].
    if lut.len() == 1 { lut.first().copied() } else { lut.len().checked_sub(2).map(|axis| lut[axis]) }
}

/// A weight with scales.
struct Blockwise<'a> {
    name: &'a str,
    data: Option<Entry>,
    shape: Vec<u64>,
    scale_shape: Vec<u64>,
    scales: Vec<f32>,
    half_scales: bool,
    symmetric: bool,
}

/// Every weight with scales, each once for all functions that share it.
fn blockwise<'a>(view: &PackageView<'a>) -> Vec<Blockwise<'a>> {
    let mut list = Vec::new();
    each_compressed(&view.graph, |function, op| {
        let (data, scale) = match op.kind() {
            "constexpr_blockwise_shift_scale" => ("data", "scale"),
            "constexpr_affine_dequantize" => ("quantized_data", "scale"),
            _ => return,
        };
        let Some(scale) = function.constant(op, scale) else { return };
        let entry = function.constant(op, data).and_then(|value| view.graph.entry(value));
        let Some(scales) = view.graph.floats(scale, MOST_SCALES) else { return };
        let zero_point = function.constant(op, "offset").or_else(|| function.constant(op, "zero_point"));
        list.push(Blockwise {
            name: op.name(),
            data: entry,
            shape: shape_of(function, op, data),
            scale_shape: known_sizes(scale.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref())),
            scales,
            half_scales: dtype_of(scale) == Some("fp16"),
            symmetric: zero_point.is_none(),
        });
    });
    list
}

impl Blockwise<'_> {
    /// Scales that are zero.
    fn zero_groups(&self) -> BTreeSet<usize> {
        (0..self.scales.len()).filter(|&index| self.scales[index] == 0.0).collect()
    }

    /// How many of these groups have an integer that is not zero.
    fn occupied(&self, graph: &Graph<'_>, groups: &BTreeSet<usize>) -> usize {
        let fits = self.shape.len() == self.scale_shape.len()
            && self.shape.iter().zip(&self.scale_shape).all(|(size, scales)| *scales > 0 && size % scales == 0);
        let Some(entry) = self.data.filter(|_| self.symmetric && fits && !groups.is_empty()) else { return 0 };
        let bytes = graph.bytes(&entry);
        let bits = entry.dtype.bits();
        let mut occupied = BTreeSet::new();
        for element in 0..entry.elements() {
            let zero = match bits {
                8 => bytes[element as usize] == 0,
                4 => bytes[(element / 2) as usize] >> (element % 2 * 4) & 15 == 0,
                _ => return 0,
            };
            if zero {
                continue;
            }
            let (mut rest, mut index, mut stride) = (element, 0, 1);
            for (size, scales) in self.shape.iter().zip(&self.scale_shape).rev() {
                index += rest % size / (size / scales) * stride;
                rest /= size;
                stride *= scales;
            }
            if groups.contains(&(index as usize)) {
                occupied.insert(index);
                if occupied.len() == groups.len() {
                    break;
                }
            }
        }
        occupied.len()
    }
}

/// Whether a quantized table holds the cosines or sines of positions: in its first row every angle is zero, in its
/// second they fall from 1.
fn is_rotary(graph: &Graph<'_>, function: &Function<'_>, op: &Op<'_>) -> bool {
    let name = op.name().to_lowercase();
    if ["rope", "rotary", "cos", "sin"].iter().any(|word| name.contains(word)) {
        return true;
    }
    let shape = shape_of(function, op, "data");
    let [rows, columns] = shape[..] else { return false };
    let entry = function.constant(op, "data").and_then(|value| graph.entry(value));
    let Some(entry) = entry.filter(|entry| rows >= 2 && columns >= 2 && entry.dtype == BlobDtype::Int8) else {
        return false;
    };
    let bytes = graph.bytes(&entry);
    let (Ok(columns), half) = (usize::try_from(columns), (columns / 2) as usize) else { return false };
    let (Some(first), Some(second)) = (bytes.get(..columns), bytes.get(columns..columns + half)) else { return false };
    let second: Vec<i8> = second.iter().map(|&byte| byte as i8).collect();
    let cosines = first[0] as i8 > 0 && first.iter().all(|byte| *byte == first[0]) && second.is_sorted();
    let sines = first.iter().all(|byte| *byte == 0) && second.iter().rev().is_sorted() && second[0] > 0;
    cosines || sines
}

/// Pieces of a blob's bytes: all of it, or a sample.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = if bytes.len() <= SAMPLE { 1 } else { SAMPLE / PIECE };
    let length = if count == 1 { bytes.len() } else { PIECE };
    let step = (bytes.len() - length) / count.saturating_sub(1).max(1) / PIECE * PIECE;
    (0..count).filter_map(move |index| bytes.get(index * step..index * step + length))
}

fn any_float(entry: &Entry, file: &[u8], bad: impl Fn(&f32) -> bool) -> bool {
    if !matches!(entry.dtype, BlobDtype::Float16 | BlobDtype::Float32) {
        return false;
    }
    pieces(entry.data(file)).any(|piece| match entry.dtype {
        BlobDtype::Float16 => piece.as_chunks::<2>().0.iter().any(|b| bad(&half::f16::from_le_bytes(*b).to_f32())),
        _ => piece.as_chunks::<4>().0.iter().any(|b| bad(&f32::from_le_bytes(*b))),
    })
}

/// Equal values at several places of the blob file, used by different functions.
fn unshared(view: &PackageView<'_>, found: &mut Found) {
    let mut users: BTreeMap<u64, (&Entry, &str, BTreeSet<&str>)> = BTreeMap::new();
    for used in view.blobs.iter().filter(|used| used.entry.size >= PIECE as u64) {
        let of = users.entry(used.entry.offset).or_insert((&used.entry, &used.output, BTreeSet::new()));
        of.2.insert(&used.function);
    }
    let mut sizes: BTreeMap<(BlobDtype, u64), BTreeSet<&BTreeSet<&str>>> = BTreeMap::new();
    for (entry, _, functions) in users.values() {
        sizes.entry((entry.dtype, entry.size)).or_default().insert(functions);
    }
    // Bytes need comparing only where functions that share nothing have as many of them.
    let apart =
        |sets: &BTreeSet<&BTreeSet<&str>>| sets.iter().any(|one| sets.iter().any(|other| one.is_disjoint(other)));
    let sizes: BTreeSet<(BlobDtype, u64)> =
        sizes.into_iter().filter(|(_, sets)| apart(sets)).map(|(key, _)| key).collect();
    let mut known: BTreeMap<(BlobDtype, u64, u64), Vec<&BTreeSet<&str>>> = BTreeMap::new();
    let file = view.package.weights();
    for (entry, name, functions) in users.values() {
        if !sizes.contains(&(entry.dtype, entry.size)) {
            continue;
        }
        let mut hasher = DefaultHasher::new();
        pieces(entry.data(file)).for_each(|piece| piece.hash(&mut hasher));
        let equal = known.entry((entry.dtype, entry.size, hasher.finish())).or_default();
        if equal.iter().any(|others| others.is_disjoint(functions)) {
            found.add(format!("`{name}`"), format!("{} bytes, once more", entry.size));
        }
        equal.push(functions);
    }
}

fn sized(view: &PackageView<'_>, over: u64, most: u64, found: &mut Found) {
    let bytes = view.weight_bytes();
    if bytes > over && bytes <= most {
        found.add("`weight.bin`", format!("{bytes} bytes"));
    }
}
