//! Failures by their text: what an error message, a signal or a time limit has meant before.
//!
//! The texts are those of Core ML, the ANE compiler and coremltools; the explanations are ours. What one report says is
//! a place to look, not a law: [`Symptom::evidence`] tells how much there is.

use super::evidence::{page, thread};

/// A known failure.
#[derive(Debug, PartialEq, Eq)]
pub struct Symptom {
    /// Name, stable.
    pub id: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub fix: &'static str,
    /// Where it was seen: address, date, how sure it is.
    pub evidence: &'static str,
    /// Lower-case texts: those of one row must all be there, one row is enough.
    texts: &'static [&'static [&'static str]],
}

/// The first known failure whose text is in `text`: an error message, the name of a signal (`SIGTRAP`), or `timeout`.
/// Case does not matter.
pub fn symptom(text: &str) -> Option<&'static Symptom> {
    let text = text.to_lowercase();
    ALL.iter().find(|symptom| symptom.texts.iter().any(|row| row.iter().all(|part| text.contains(part))))
}

/// Every known failure; what is more particular comes first.
pub const ALL: &[Symptom] = &[
    Symptom {
        id: "mps-dequantize",
        means: "a palettized weight for the macOS 15 opset reached the ANE's loader in a form that it does not take; \
                per-channel scales make no difference",
        fix: "store the weights as int8 or float16, or fold the scale into the palette",
        evidence: concat!(thread!("apple/coremltools", 2688), " (2026-05-03 and 2026-09-23, corroborated)"),
        texts: &[&["mps.dequantize"]],
    },
    Symptom {
        id: "per-block-scale",
        means: "the ANE compiler takes one scale for an output channel or for a tensor; this weight has several along its \
                inputs, so its op goes to the CPU",
        fix: "bake with `weights.granularity = \"per_channel\"`",
        evidence: concat!(thread!("apple/coremltools", 2510), " (2025-05-09, corroborated, compiler's own text)"),
        texts: &[&["only support per-cout"]],
    },
    Symptom {
        id: "bnns-slice-update",
        means: "the CPU backend refuses the cache write: the dtypes of the state and of what is written into it differ \
                after lowering; seen with multi-token prefill on macOS 26",
        fix: "write the cache through a mask (`package.kv = \"mask\"`) or leave it to the caller (`package.kv = \"io\"`)",
        evidence: concat!(thread!("Anemll/Anemll", 39), " (2025-10-29, one report, open)"),
        texts: &[&["bnns op: slice update"]],
    },
    Symptom {
        id: "bnns-compile",
        means: "Core ML's CPU compiler crashed on a model that was compiled on another system",
        fix: "ship the `.mlpackage` and let each machine compile it",
        evidence: concat!(thread!("soniqo/speech-swift", 313), " (2026-06-16, corroborated)"),
        texts: &[&["bnns::graphcompile"]],
    },
    Symptom {
        id: "bind-buffers",
        means: "an input or output could not be bound at the first prediction; seen with int8 weights in a package made \
                for macOS 26",
        fix: "bake for `package.target = \"macOS15\"`",
        evidence: "https://github.com/sarthak-fleet/tinygpt/commit/bbbc623 (2026-06-10, one report)",
        texts: &[&["bindbuffers"], &["unable to bind buffer to network"]],
    },
    Symptom {
        id: "loaded-programs",
        means: "the process holds more ANE programs than it may, about 127; each function of each package that is loaded \
                for the ANE is one",
        fix: "load fewer packages or functions at once, or unload some",
        evidence: "https://github.com/sbryngelson/ane-guide chapter 14 (2026-08, hint from private interfaces)",
        texts: &[&["getanefmodel"]],
    },
    Symptom {
        id: "iosurface",
        means: "no more memory for the surfaces that carry inputs and outputs: a long run from Python keeps one more \
                output for each call",
        fix: "reuse output backings, or restart the process that predicts after a number of calls",
        evidence: concat!(thread!("totalslacker/switchcraft", 87), " (2026-05, corroborated)"),
        texts: &[&["iosurface", "alloc"]],
    },
    Symptom {
        id: "range-shapes",
        means: "the engine that drives the ANE refuses inputs whose shapes are ranges",
        fix: "give every function one static shape",
        evidence: concat!(
            thread!("apple/coremltools", 1029),
            " (2023-11-19), ",
            thread!("apple/coremltools", 2370),
            " (2024-10-29, corroborated)"
        ),
        texts: &[&["mle5engine", "range shape"]],
    },
    Symptom {
        id: "mixed-flexible-inputs",
        means: "a stateful model mixes inputs of a range of shapes with inputs of listed shapes or fixed ones",
        fix: "make all inputs static",
        evidence: concat!(thread!("apple/coremltools", 2548), " (2025-06-19, one report, open)"),
        texts: &[&["enumeratedwithrangeinputs"]],
    },
    Symptom {
        id: "flexible-state",
        means: "a state has no static shape",
        fix: "fix the shape of every state, for instance to the context length",
        evidence: concat!(thread!("apple/coremltools", 2537), " (2025-06-10, corroborated)"),
        texts: &[&["flexible shape model states"]],
    },
    Symptom {
        id: "data-dependent-shape",
        means: "a shape in the program depends on a value that is only known at run time, for instance the bound of a \
                slice or of a range",
        fix: "compute masks and positions outside the program and make every shape static",
        evidence: "https://github.com/onnxsim/onnxsim README (2026-09, one report)",
        texts: &[&["data-dependent shapes were disabled"]],
    },
    Symptom {
        id: "axis-limit",
        means: "an axis is longer than the ANE takes: 65536 for batch and channels, 16384 for depth, height and width on \
                most chips",
        fix: "split the tensor, for instance an output matrix into parts of at most 16384 rows",
        evidence: concat!(thread!("FluidInference/FluidAudio", 121), " (2025-09-25, corroborated)"),
        texts: &[&["not within supported range"]],
    },
    Symptom {
        id: "weight-file-size",
        means: "a weight file of more than 2 GiB: the ANE compiler refuses it",
        fix: "bake one package per block, or split the package",
        evidence: concat!(
            thread!("apple/coremltools", 2593),
            " (2025-09-10), ",
            thread!("apple/coremltools", 1807),
            " (2023-03-21, corroborated)"
        ),
        texts: &[&["weight file size", "exceeds"], &["error in declaring network"]],
    },
    Symptom {
        id: "newer-compiler",
        means: "the model was compiled by a newer system than this one",
        fix: "compile the `.mlpackage` on this system instead of shipping an `.mlmodelc`",
        evidence: concat!(thread!("Anemll/Anemll", 14), " (2025-04-16, corroborated)"),
        texts: &[&["compiler major version"]],
    },
    Symptom {
        id: "unknown-opset",
        means: "the package needs a newer system: its ops are of an opset that this one does not know (CoreML8 is that of \
                macOS 15 and iOS 18)",
        fix: "update to macOS 15 or iOS 18 at least",
        evidence: concat!(thread!("apple/coremltools", 2283), " (2024-07-21, corroborated)"),
        texts: &[&["unknown opset"]],
    },
    Symptom {
        id: "ane-no-memory",
        means: "the ANE had no memory for the program; seen on macOS 27 beta with programs of every size, and the process \
                may abort after it",
        fix: "load in a child process; unload other models; try again with CPU and GPU, or another system version",
        evidence: concat!(thread!("apple/coreai-torch", 67), " (2026-08-25, one report)"),
        texts: &[&["program load failed", "no memory"], &["no memory", "code=53"]],
    },
    Symptom {
        id: "short-query",
        means: "the ANE refused the first request of a program; seen where decode has a query width of 1 or 2, while 4, 8 \
                and 64 ran",
        fix: "bake with a wider query: recipe `int8-ane-v1`, or `package.query = 8` with `package.kv = \"mask\"`",
        evidence: "https://github.com/cadamcat/llms-on-apple-neural-engine findings/ane-short-decode-query (2026-09, one \
                   report, Core AI)",
        texts: &[&["0xe00002c2"]],
    },
    Symptom {
        id: "inference-error",
        means: "the ANE took the program and failed while running it; seen with several states in one package, and with \
                states whose last axis is no multiple of 32",
        fix: "keep one state, or move the cache out of the package (`package.kv = \"io\"`); pad the last axis of states \
              to a multiple of 32",
        evidence: concat!(
            page!("john-rocky/CoreML-LLM", "docs/LFM2_CONVERSION_FINDINGS.md"),
            " (2026-04-28, contradicted: two states ship elsewhere), ",
            thread!("apple/coremltools", 2631),
            " (2025-12-19, corroborated)"
        ),
        texts: &[&["status=0x1d"], &["aneprogramprocessrequestdirect"], &["program inference error"]],
    },
    Symptom {
        id: "infrequent-reshape",
        means: "the ANE compiler failed on a model that was loaded with infrequent reshaping; seen with a prefix cache on \
                iOS 26",
        fix: "load it without the hint `reshapeFrequency`; static shapes need none",
        evidence: concat!(page!("john-rocky/CoreML-LLM", "docs/REJECTED_APPROACHES.md"), " (2026-04, one report)"),
        texts: &[&["failed to compile anef"]],
    },
    Symptom {
        id: "core-ml-stub",
        means: "the model behind this object was never loaded; an earlier failure, often of the ANE compiler, was \
                swallowed",
        fix: "look for the first error: compile and load the package alone, with the units you want",
        evidence: concat!(page!("john-rocky/CoreML-LLM", "docs/DECODE_STATE_LAYOUTS.md"), " (2026-04-24, one report)"),
        texts: &[&["not loaded with the core ml framework"]],
    },
    Symptom {
        id: "ane-compile",
        means: "the ANE compiler refused the program and says no more (-14 is its general error). Seen with many states or \
                blocks in one package, range shapes, cache writes at positions known only at run time, caches that are \
                shifted by a concat, palettes for each row and block, activations quantized in the graph",
        fix: "bisect: `anebake lint` names what is suspect, `anebake probe` tries one piece after the other; then \
              `package.kv = \"mask\"` or `\"io\"`",
        evidence: concat!(
            thread!("FluidInference/mobius", 77),
            " (2026-07-16), ",
            thread!("finnvoor/CoreMLPipelines", 9),
            " (2025-08-19), ",
            thread!("apple/coremltools", 2247),
            " (2024-06-19, corroborated)"
        ),
        texts: &[&["aneccompile"], &["error code: -14"], &["error -14"], &["build the model execution plan"]],
    },
    Symptom {
        id: "python-palette-crash",
        means: "a palettized, stateful model made by coremltools 9.0 crashes after some hundred predictions from Python",
        fix: "use int8 or float16 weights, or palettize with coremltools 8.3",
        evidence: concat!(thread!("apple/coremltools", 2716), " (2026-05-24, one report, open)"),
        texts: &[&["_update_float16_multiarray_input_to_float32"], &["sigsegv", "_get_predictions"]],
    },
    Symptom {
        id: "gpu-quantized",
        means: "the GPU backend asserts on a program with quantized weights",
        fix: "load with CPU and ANE, or with the CPU alone; leave the GPU out",
        evidence: concat!(thread!("onnxsim/onnxsim", 1403), " (2026-09-13, one report)"),
        texts: &[&["mpsgraph", "mlir"], &["mpsgraph", "assert"]],
    },
    Symptom {
        id: "state-expected",
        means: "a stateful model was called without its state, or a calibrator does not know states",
        fix: "make a state and pass it to every prediction; quantize weights only",
        evidence: concat!(page!("john-rocky/CoreML-LLM", "docs/STAGE1_W4A8_FINAL.md"), " (2026-04-26, one report)"),
        texts: &[&["must be an mlstate"]],
    },
    Symptom {
        id: "blob-writer",
        means: "coremltools' native library is missing: 9.0 has none for Python 3.13",
        fix: "use Python 3.12 or earlier, or a coremltools built for your Python",
        evidence: concat!(thread!("apple/coremltools", 2617), " (2025-11-06, corroborated)"),
        texts: &[&["blobwriter not loaded"], &["libmilstoragepython"]],
    },
    Symptom {
        id: "numpy-scalars",
        means: "coremltools 9.0 turns one-element arrays into numbers in a way that numpy 2.4 forbids",
        fix: "install numpy below 2.4",
        evidence: concat!(thread!("apple/coremltools", 2633), " (2026-01-02, corroborated)"),
        texts: &[
            &["only 0-dimensional arrays can be converted"],
            &["only length-1 arrays can be converted"],
            &["'numpy.bool' object cannot be interpreted"],
        ],
    },
    Symptom {
        id: "raised-opset",
        means: "the program was written for an older opset and only its version was raised: ops lack parameters that the \
                newer opset demands",
        fix: "author the program for the opset of its target",
        evidence: "https://github.com/onnxsim/onnxsim README (2026-09, one report)",
        texts: &[&["required param", "validate_indices"]],
    },
    Symptom {
        id: "state-not-found",
        means: "coremltools lost a state: it was reshaped or transposed before it was written",
        fix: "write the state first, transform afterwards",
        evidence: concat!(thread!("apple/coremltools", 2275), " (2024-07-16, corroborated)"),
        texts: &[&["not found in core ml model inputs"]],
    },
    Symptom {
        id: "state-identity",
        means: "coremltools 9.0 passes a state to an op that takes tensors, where a state is also an output",
        fix: "return what was read from the state, not the state",
        evidence: concat!(thread!("apple/coremltools", 2639), " (2026-01-09, corroborated, fixed after 9.0)"),
        texts: &[&["but got state["]],
    },
    Symptom {
        id: "bad-access",
        means: "a crash in the ANE compiler; seen with cache writes whose bounds are known only at run time",
        fix: "write the cache through a mask: `package.kv = \"mask\"`",
        evidence: concat!(
            thread!("apple/coreai-torch", 6),
            " (2026-06-11), ",
            thread!("apple/coreai-models", 5),
            " (2026-06-10, corroborated, Core AI)"
        ),
        texts: &[&["exc_bad_access"], &["addoptonetwork"]],
    },
    Symptom {
        id: "sigtrap",
        means: "a trap inside the framework at a prediction; seen with two or more decoder blocks in one stateful \
                package, and with cache writes whose bounds are known only at run time",
        fix: "one block per package; `package.kv = \"mask\"` or `\"io\"`",
        evidence: concat!(
            "https://github.com/sarthak-fleet/tinygpt docs/learn/ane-research/m6-findings.md (2026-06-08, \
                          one report), ",
            thread!("apple/coreai-torch", 6),
            " (2026-06-11, Core AI)"
        ),
        texts: &[&["sigtrap"]],
    },
    Symptom {
        id: "sigsegv",
        means: "a crash inside the framework; seen with palettized weights of coremltools 9.0 after some hundred \
                predictions, and with models compiled on another system",
        fix: "use int8 or float16 weights; compile the `.mlpackage` on the machine that runs it",
        evidence: concat!(
            thread!("apple/coremltools", 2716),
            " (2026-05-24), ",
            thread!("soniqo/speech-swift", 313),
            " (2026-06-16)"
        ),
        texts: &[&["sigsegv"]],
    },
    Symptom {
        id: "sigkill",
        means: "the system killed the process. Where it happened at the first prediction, a failed ANE compile at load is \
                the known cause: the load looks fine, and its error is on stderr only. Otherwise memory ran out",
        fix: "read stderr of the load for `ANECCompile`; use smaller packages; watch memory",
        evidence: concat!(
            thread!("apple/coremltools", 2758),
            " (2026-07-14), ",
            thread!("Pummelchen/NVMAI", 7),
            " (2026-09-15, corroborated)"
        ),
        texts: &[&["sigkill"]],
    },
    Symptom {
        id: "sigabrt",
        means: "the framework gave up by an assertion; seen after a refused ANE request, after the ANE ran out of memory, \
                and in the GPU backend with quantized weights",
        fix: "read stderr for the text before it; load with CPU and ANE only",
        evidence: concat!(
            thread!("apple/coreai-torch", 67),
            " (2026-08-25), ",
            thread!("onnxsim/onnxsim", 1403),
            " (2026-09-13)"
        ),
        texts: &[&["sigabrt"]],
    },
    Symptom {
        id: "timeout",
        means: "nothing came back in time. ANE compiles of large programs have taken minutes to hours, and after compiles \
                that failed the next ones are slow",
        fix: "raise the time limit once; if it stays, use smaller packages and restart `ANECompilerService`",
        evidence: concat!(
            thread!("ggml-org/whisper.cpp", 1307),
            " (corroborated), https://github.com/sbryngelson/ane-guide \
                          chapter 19 (2026-08, hint from private interfaces)"
        ),
        texts: &[&["timeout"], &["timed out"], &["time limit"]],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts as they were reported, and the failure that each is.
    const REPORTED: &[(&str, &str)] = &[
        (
            "'mps.dequantize' op operand #2 must be tensor of quantized values, but got 'tensor<1xf16>'",
            "mps-dequantize",
        ),
        ("Unsupported op 12 (ios18.conv): ANE only support per-cout/per-tensor quantization", "per-block-scale"),
        ("BNNS Op: Slice update: update data type must match output data type", "bnns-slice-update"),
        ("EXC_BAD_ACCESS in bnns::GraphCompile", "bnns-compile"),
        ("Unable to bind buffer to network @ BindBuffers", "bind-buffers"),
        ("GetANEFModel: must re-compile", "loaded-programs"),
        ("E5RT: Failed to allocate memory IOSurface object. (3)", "iosurface"),
        (
            "MLE5Engine is not currently supported for models with range shape inputs that try to utilize the Neural \
             Engine",
            "range-shapes",
        ),
        ("EnumeratedWithRangeInputsException", "mixed-flexible-inputs"),
        ("Flexible shape model states are not supported!", "flexible-state"),
        ("Invalid blob shape: Data-dependent shapes were disabled", "data-dependent-shape"),
        ("Tensor dimensions N1D1C1H1W240000 are not within supported range, N[1-65536]D[1-16384]", "axis-limit"),
        ("ane: Weight file size (2525476480 bytes) exceeds the maximum (2147483648 bytes)", "weight-file-size"),
        ("Error in declaring network", "weight-file-size"),
        (
            "compiler major version for compiled model is 9.0.0 and is more recent than this framework major version \
             8.0.0",
            "newer-compiler",
        ),
        ("Unknown opset 'CoreML8'", "unknown-opset"),
        ("Program load failed — no memory (Code=53)", "ane-no-memory"),
        ("status=0xe00002c2 : statusType=0x9: Program Inference error", "short-query"),
        (
            "ANEProgramProcessRequestDirect() Failed with status=0x1d : statusType=0x9: Program Inference error",
            "inference-error",
        ),
        ("MILCompilerForANE: failed to compile ANEF", "infrequent-reshape"),
        ("model was not loaded with the Core ML Framework", "core-ml-stub"),
        ("ANECCompile() FAILED, error -14", "ane-compile"),
        ("Failed to build the model execution plan using a model architecture file … error code: -14.", "ane-compile"),
        ("SIGSEGV in _get_predictions", "python-palette-crash"),
        ("MPSGraph: MLIR pass manager failed", "gpu-quantized"),
        ("the state must be an MLState", "state-expected"),
        ("RuntimeError: BlobWriter not loaded", "blob-writer"),
        ("TypeError: 'numpy.bool' object cannot be interpreted as an integer", "numpy-scalars"),
        ("Required param 'validate_indices' is missing", "raised-opset"),
        ("MIL program input, 'k_cache', not found in Core ML model inputs", "state-not-found"),
        ("expects list, tensor, or scalar but got state[tensor[28,1,4,2048,128,fp16]]", "state-identity"),
        ("EXC_BAD_ACCESS addOpToNetwork", "bad-access"),
        ("SIGTRAP", "sigtrap"),
        ("SIGSEGV", "sigsegv"),
        ("SIGKILL", "sigkill"),
        ("SIGABRT", "sigabrt"),
        ("timeout", "timeout"),
    ];

    #[test]
    fn every_reported_text_is_known_and_every_failure_has_one() {
        for (text, id) in REPORTED {
            assert_eq!(symptom(text).map(|symptom| symptom.id), Some(*id), "{text}");
            assert_eq!(symptom(&text.to_uppercase()).map(|symptom| symptom.id), Some(*id), "{text}");
        }
        for known in ALL {
            assert!(REPORTED.iter().any(|(_, id)| *id == known.id), "{} is never found", known.id);
        }
    }

    #[test]
    fn other_texts_are_not_taken_for_known_failures() {
        for text in
            ["", "file not found", "input `x` has shape [2, 3]", "unknown dtype code 99", "-1", "error code: -5"]
        {
            assert_eq!(symptom(text), None, "{text}");
        }
    }

    #[test]
    fn ids_are_unique_and_all_cite_a_page_and_a_strength() {
        let mut ids: Vec<_> = ALL.iter().map(|symptom| symptom.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ALL.len());
        for symptom in ALL {
            assert!(symptom.evidence.contains("https://github.com/"), "{}", symptom.id);
            assert!(!symptom.means.is_empty() && !symptom.fix.is_empty());
            let lower = symptom.texts.iter().flat_map(|row| *row).all(|part| part.to_lowercase() == **part);
            assert!(lower && symptom.texts.iter().all(|row| !row.is_empty()), "{}", symptom.id);
        }
    }
}
