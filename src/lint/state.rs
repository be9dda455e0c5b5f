//! Rules over a program: states and the key/value cache.

use std::collections::BTreeMap;

use super::Severity::{Error, Info, Warn};
use super::evidence::Confidence::{Contradicted, Corroborated, Single};
use super::evidence::{page, seen, thread};
use super::graph::RANK;
use super::placement::MOST_AXES;
use super::recipe::{ALIGNMENT, WIDE_PREFILL};
use super::view::{Graph, Port, Shapes};
use super::{Check, Rule};

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "state-flexible",
        severity: Error,
        on_ane: None,
        what: "a state without a static shape",
        why: "Core ML refuses the model: `Flexible shape model states are not supported!`",
        fix: "give the state one shape, for instance as many positions as the context",
        evidence: &[seen(Corroborated, "2025-06-10", thread!("apple/coremltools", 2537))],
        check: Check::Graph(|graph, found| {
            for (name, state) in states(graph) {
                if state.shapes != Shapes::Static {
                    found.add(format!("state `{name}`"), "its shape is not static");
                }
            }
        }),
    },
    Rule {
        id: "state-many",
        severity: Warn,
        on_ane: None,
        what: "three states or more in one package",
        why: "such a package compiled, showed every op on the ANE, and failed at the first prediction with \
              `status=0x1d`; on the CPU its cache writes were wrong without a word",
        fix: "one or two states (keys and values side by side), or the cache outside: `package.kv = \"io\"`",
        evidence: &[
            seen(Single, "2026-04-28", page!("john-rocky/CoreML-LLM", "docs/MLSTATE_PATTERN.md")),
            seen(Single, "2026-07-16", thread!("FluidInference/mobius", 77)),
        ],
        check: Check::Graph(|graph, found| {
            let names: Vec<&str> = states(graph).into_keys().collect();
            if names.len() >= 3 {
                let shown = names.iter().take(6).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                found.add(format!("{} states", names.len()), shown);
            }
        }),
    },
    Rule {
        id: "state-several-blocks",
        severity: Warn,
        on_ane: None,
        what: "several decoder blocks in one stateful package",
        why: "packages of one block ran where those of two trapped at the first prediction, and of 28 did not compile",
        fix: "one package for each block",
        evidence: &[
            seen(Single, "2026-06-08", page!("sarthak-fleet/tinygpt", "docs/learn/ane-research/m6-findings.md")),
            seen(Contradicted, "2026-04-28", page!("john-rocky/CoreML-LLM", "docs/MLSTATE_PATTERN.md")),
        ],
        check: Check::Graph(|graph, found| {
            for function in graph.functions.iter().filter(|function| !function.states.is_empty()) {
                let attentions = function.attentions();
                if attentions >= 2 {
                    found.in_function(function.name, format!("{attentions} attentions"), "with states");
                }
            }
        }),
    },
    Rule {
        id: "state-alignment",
        severity: Warn,
        on_ane: Some(Error),
        what: "a state whose last axis is no multiple of 32",
        why: "rows that do not fill 64 bytes failed on the ANE, where the CPU and the GPU ran them",
        fix: "pad the last axis to a multiple of 32",
        evidence: ALIGNMENT,
        check: Check::Graph(|graph, found| {
            for (name, state) in states(graph) {
                if let Some(size) = state.shape.last().copied().flatten().filter(|size| size % 32 != 0) {
                    found.add(format!("state `{name}`"), format!("last axis of {size}"));
                }
            }
        }),
    },
    Rule {
        id: "state-axes",
        severity: Warn,
        on_ane: Some(Error),
        what: "a state of five axes or more",
        why: "the ANE rejects writes into a cache of rank 5",
        fix: "one state of four axes for each block, (1, heads, positions, width)",
        evidence: RANK,
        check: Check::Graph(|graph, found| {
            for (name, state) in states(graph) {
                if state.shape.len() >= MOST_AXES {
                    found.add(format!("state `{name}`"), format!("{} axes", state.shape.len()));
                }
            }
        }),
    },
    Rule {
        id: "state-write-at-run-time",
        severity: Info,
        on_ane: Some(Warn),
        what: "the cache is written by a slice at a position that is known only at run time",
        why: "ANE compilers crashed on such writes or rejected them on M5 and macOS 26, while apps ship them on iPhones",
        fix: "`package.kv = \"mask\"` (a float16 mask in its place) or `\"io\"` (the caller keeps the cache)",
        evidence: &[
            seen(Corroborated, "2026-06-11", thread!("apple/coreai-torch", 6)),
            seen(Corroborated, "2026-06-10", thread!("apple/coreai-models", 5)),
            seen(Contradicted, "2026-07-16", thread!("FluidInference/mobius", 77)),
            seen(Contradicted, "2026-04-28", page!("john-rocky/CoreML-LLM", "docs/MLSTATE_PATTERN.md")),
        ],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind() == "slice_update") {
                    let moving = |name: &str| function.argument(op, name).is_some_and(|(_, value)| value.runtime);
                    if moving("begin") || moving("end") {
                        found.in_function(function.name, op.label(), "its bounds are known at run time");
                    }
                }
            }
        }),
    },
    Rule {
        id: "state-shifted",
        severity: Warn,
        on_ane: None,
        what: "the cache is shifted: its tail and the new row are concatenated and written back",
        why: "the ANE compiler refused such a graph with -14, and no state could be made",
        fix: "write the row where it belongs, by mask or slice, and rotate positions outside",
        evidence: &[seen(Single, "2026-04-24", page!("john-rocky/CoreML-LLM", "docs/DECODE_STATE_LAYOUTS.md"))],
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                let writes = |kind: &str| matches!(kind, "write_state" | "coreml_update_state");
                for op in function.runtime_ops().filter(|op| writes(op.kind())) {
                    let state = op.names("input").chain(op.names("state")).next().unwrap_or_default();
                    let value = op.names("data").chain(op.names("value")).next();
                    let Some(concat) = value.and_then(|v| function.giver(v)).filter(|op| op.kind() == "concat") else {
                        continue;
                    };
                    let cut = concat.names("values").any(|name| {
                        function.giver(name).is_some_and(|op| op.kind().starts_with("slice_by_"))
                            && function.states_behind(name, 3).contains(state)
                    });
                    if cut {
                        found.in_function(function.name, format!("state `{state}`"), concat.label());
                    }
                }
            }
        }),
    },
    Rule {
        id: "state-wide-write",
        severity: Warn,
        on_ane: None,
        what: "128 rows or more of the cache are written by one slice",
        why: "such writes failed on the ANE where 16 and 32 rows ran",
        fix: "take fewer tokens a call, or write through a mask",
        evidence: WIDE_PREFILL,
        check: Check::Graph(|graph, found| {
            for function in &graph.functions {
                for op in function.runtime_ops().filter(|op| op.kind() == "slice_update") {
                    let Some((_, update)) = function.argument(op, "update") else { continue };
                    let shape = update.shape();
                    let rows = shape.len().checked_sub(2).and_then(|axis| shape[axis]);
                    if let Some(rows) = rows.filter(|&rows| rows >= 128) {
                        found.in_function(function.name, op.label(), format!("{rows} rows"));
                    }
                }
            }
        }),
    },
];

/// The states of all functions by name; functions share those of one name.
fn states<'g, 'a>(graph: &'g Graph<'a>) -> BTreeMap<&'a str, &'g Port<'a>> {
    graph.functions.iter().flat_map(|function| &function.states).map(|state| (state.name, state)).collect()
}
