//! The variants of the cache: what they compute is what `slice` computes, by candle-transformers' word, and their graphs
//! are what they are for.

use std::collections::BTreeMap;
use std::path::Path;

use anebake::chain::{ChainFile, FunctionInfo, KvCache};
use anebake::mil::Arithmetic;
use anebake::mlpackage::Package;
use anebake::mlpackage::spec::{BindingKind, Block, Operation, TensorElements, ValueKind};
use anebake::runner::{self, Array, Arrays, Model, ReferenceRunner, Rows, Runner, State};
use half::f16;

use super::chain::{CONTEXT, Chain, PREFILL, step};
use super::{FLOAT16, FLOAT32, Tolerance, distance, llama, llama3, reference, tokens};
use crate::support::{Bench, Random, TinyModel};

/// Recipe arguments of every variant, at the width of its tokens and four wide.
const VARIANTS: [&[&str]; 5] = [
    &["--recipe", "fp16-v1"],
    &["--recipe", "fp16-ane-v1"],
    &["--recipe", "fp16-io-v1"],
    &["--recipe", "fp16-v1", "--set", "package.kv=mask"],
    &["--recipe", "fp16-v1", "--set", "package.kv=io"],
];

/// A recipe that demands the ANE is refused in float32.
const FLOAT32_COMPUTE: [&str; 4] =
    ["--set", "package.compute_precision=float32", "--set", "smoke.require=[\"load\", \"numerics\"]"];

fn wide(rows: Vec<Vec<f32>>) -> Vec<Vec<f64>> {
    rows.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect()
}

/// Logits of every token by the reference runner: a full prefill, a padded one, decode steps, and a last prefill whose
/// padding lies beyond the context, where the variant can have it so; else decode steps to the end.
fn by_runner(out: &Path, arithmetic: Arithmetic) -> Vec<Vec<f64>> {
    let tokens = tokens();
    let chain = runner::Chain::open(out, &ReferenceRunner::new(arithmetic)).unwrap();
    let mut session = chain.begin().unwrap();
    let mut logits = Vec::new();
    let parts = [&tokens[..64], &tokens[64..84]].into_iter().chain(tokens[84..116].chunks(1)).chain([&tokens[116..]]);
    for part in parts {
        let mut calls = 0;
        let found = chain.feed_watched(&mut session, part, Rows::All, &mut |_, _| calls += 1).unwrap();
        let single = chain.file().kv == KvCache::Slice && part.len() == 12;
        assert_eq!(calls, chain.blocks().len() * if single { 12 } else { 1 });
        logits.extend(found);
    }
    assert_eq!((logits.len(), session.position()), (CONTEXT, CONTEXT));
    wide(logits)
}

/// The same through coremltools' operators.
fn by_oracle(out: &Path) -> Vec<Vec<f64>> {
    let tokens = tokens();
    let mut chain = Chain::load(out);
    let mut logits = chain.prefill(&tokens[..PREFILL]);
    logits.extend(chain.prefill(&tokens[PREFILL..PREFILL + 20]));
    logits.extend(tokens[PREFILL + 20..116].iter().map(|&token| chain.decode(token)));
    logits.extend(chain.prefill(&tokens[116..]));
    logits
}

/// What is left where nothing is rounded but what a package stores, and with `mask` and `io` what it is given.
const UNROUNDED: Tolerance = Tolerance { angle: 1e-5, error: 5e-3 };

fn check(models: &[TinyModel]) {
    for model in models {
        let bench = Bench::new(model);
        let want = reference::logits(&bench.path("model"), &model.config, &tokens());
        let near = |got: &[Vec<f64>], tolerance: Tolerance, what: &str| {
            let distance = distance(got, &want);
            assert!(tolerance.holds(distance), "{what} of {}: {distance:?}", model.config);
        };
        for arguments in VARIANTS {
            let what = |how: &str| format!("{arguments:?} {how}");
            bench.convert(arguments);
            near(&by_runner(&bench.path("out"), Arithmetic::Fp16), FLOAT16.1, &what("in float16"));
            near(&by_runner(&bench.path("out"), Arithmetic::F32), UNROUNDED, &what("not rounded"));
            if arguments.iter().any(|argument| argument.contains("-ane-") || argument.contains("-io-")) {
                near(&by_oracle(&bench.path("out")), FLOAT16.1, &what("by coremltools"));
            }
            bench.convert(&[arguments, &FLOAT32_COMPUTE[..]].concat());
            near(&by_runner(&bench.path("out"), Arithmetic::Fp16), FLOAT32.1, &what("in float32"));
        }
    }
}

#[test]
fn qwen3_in_every_variant_gives_the_logits_of_candle() {
    let shaped = |seed, head_dim| TinyModel::shaped("qwen3", seed, [64, 4, 2, head_dim, 96]);
    check(&[TinyModel::new("qwen3", 41), shaped(42, 16), shaped(43, 80).untied(44)]);
}

#[test]
fn llama_in_every_variant_gives_the_logits_of_candle() {
    let wide = TinyModel::shaped("llama", 45, [240, 3, 1, 80, 96]);
    check(&[llama(46, llama3()), wide]);
}

#[test]
fn qwen2_in_every_variant_gives_the_logits_of_candle() {
    check(&[TinyModel::new("qwen2", 47), TinyModel::shaped("qwen2", 48, [128, 4, 4, 32, 96])]);
}

/// Every function's body.
fn bodies(package: &Path) -> BTreeMap<String, Block> {
    let package = Package::open(package).unwrap();
    let functions = &package.model().ml_program.as_ref().unwrap().functions;
    functions.iter().map(|(name, function)| (name.clone(), function.body().unwrap().clone())).collect()
}

/// Type of each op between inputs and outputs whose result is no float16, or that casts.
fn strangers(body: &Block) -> Vec<&str> {
    let constant = |op: &&Operation| op.r#type == "const" || op.r#type.starts_with("constexpr_");
    let float16 = |op: &&Operation| {
        let dtype = |output: &anebake::mlpackage::spec::NamedValueType| {
            output.r#type.as_ref().and_then(|declared| declared.tensor_type.as_ref()?.dtype())
        };
        op.r#type != "cast" && op.outputs.iter().all(|output| dtype(output) == Some("fp16"))
    };
    body.operations.iter().filter(|op| !constant(op) && !float16(op)).map(|op| op.r#type.as_str()).collect()
}

/// Where a `slice_by_size` begins.
fn begin(body: &Block, op: &Operation) -> Vec<i32> {
    let Some(BindingKind::Name(name)) = &op.inputs["begin"].arguments[0].binding else { panic!("{op:?}") };
    let found = body.operations.iter().find(|op| op.outputs.iter().any(|output| output.name == *name)).unwrap();
    let Some(ValueKind::Immediate(value)) = &found.attributes["val"].value else { panic!("{found:?}") };
    match value.tensor.as_ref().unwrap().value.as_ref().unwrap() {
        TensorElements::Ints(ints) => ints.values.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn mask_and_io_compute_with_float16_alone_and_cut_no_last_axis_but_at_its_beginning() {
    for head_dim in [32, 80] {
        let bench = Bench::new(&TinyModel::shaped("qwen3", 49, [64, 4, 2, head_dim, 96]));
        for recipe in ["int8-ane-v1", "int8-io-v1", "fp16-ane-v1", "fp16-io-v1"] {
            for norm in ["max_scaled", "layer_norm_pair"] {
                bench.convert(&["--recipe", recipe, "--set", &format!("package.norm={norm}")]);
                for path in ["out/block-01.mlpackage", "out/head.mlpackage"] {
                    for info in Package::open(&bench.path(path)).unwrap().functions().unwrap() {
                        let features = [&info.inputs, &info.states, &info.outputs];
                        assert!(features.into_iter().flatten().all(|feature| feature.dtype == "fp16"), "{info:?}");
                    }
                    for (name, body) in bodies(&bench.path(path)) {
                        assert!(body.operations.len() > 10);
                        assert_eq!(strangers(&body), [""; 0], "{recipe}, {norm}, {path}, {name}");
                        for op in body.operations.iter().filter(|op| op.r#type == "slice_by_size") {
                            assert_eq!(begin(&body, op).last(), Some(&0), "{recipe}, {name}: {op:?}");
                        }
                    }
                }
            }
        }
        // The measure tells the variants apart.
        bench.convert(&["--recipe", "int8-v1"]);
        let mut found = strangers(&bodies(&bench.path("out/block-00.mlpackage"))["decode"]).join(" ");
        found.push(' ');
        assert_eq!(found, "concat add concat concat ");
        bench.convert(&[&["--recipe", "fp16-ane-v1"], &FLOAT32_COMPUTE[..]].concat());
        assert!(!strangers(&bodies(&bench.path("out/block-00.mlpackage"))["decode"]).is_empty());
    }
}

#[test]
fn the_last_axis_of_a_state_is_a_multiple_of_32_whatever_the_head() {
    for (head_dim, width) in [(16, 32), (32, 32), (80, 96)] {
        let bench = Bench::new(&TinyModel::shaped("qwen3", 50, [64, 4, 2, head_dim, 96]));
        bench.convert(&["--recipe", "fp16-ane-v1"]);
        for function in Package::open(&bench.path("out/block-00.mlpackage")).unwrap().functions().unwrap() {
            let shapes: Vec<_> = function.states.iter().map(|state| state.shape.clone()).collect();
            assert_eq!(shapes, [[1, 2, 128, width]; 2]);
        }
        bench.convert(&["--recipe", "fp16-io-v1"]);
        for function in Package::open(&bench.path("out/block-00.mlpackage")).unwrap().functions().unwrap() {
            assert!(function.states.is_empty());
        }
    }
}

/// One block with what is kept for it; hidden states are given as they are.
struct Lone {
    file: ChainFile,
    out: std::path::PathBuf,
    model: Box<dyn Model>,
    state: State,
    past: Vec<Array>,
}

impl Lone {
    fn open(out: &Path) -> Self {
        let file = ChainFile::read(out).unwrap();
        let model = ReferenceRunner::new(Arithmetic::Fp16).open(&out.join(&file.blocks[0].path)).unwrap();
        let shape = [1, file.model.kv_heads, file.context, file.model.head_dim];
        let past =
            file.interface.past.iter().map(|_| Array::float(&shape, vec![0.0; shape.iter().product()])).collect();
        let state = model.new_state().unwrap();
        Self { file, out: out.to_owned(), model, state, past }
    }

    /// Outputs of a call for `real` tokens; those that are kept are put where they belong.
    fn run(&mut self, function: &FunctionInfo, position: usize, real: usize, rows: Vec<f32>) -> Vec<f32> {
        let mut inputs: Arrays = step(&self.file, &self.out, function, position, real)
            .into_iter()
            .map(|(name, shape, values)| {
                let values: Vec<f32> = values.into_iter().map(f16::to_f32).collect();
                let whole = self.file.interface.position.as_ref() == Some(&name);
                let array =
                    if whole { Array::int(&shape, vec![values[0] as i32]) } else { Array::float(&shape, values) };
                (name, array)
            })
            .collect();
        let width = self.file.model.hidden;
        inputs.insert(self.file.interface.hidden.clone(), Array::float(&[1, function.rows, width], rows));
        for (name, array) in self.file.interface.past.iter().zip(&self.past) {
            inputs.insert(name.input.clone(), array.clone());
        }
        let outputs = self.model.predict(&function.name, &inputs, &mut self.state).unwrap();
        let head_dim = self.file.model.head_dim;
        for (name, array) in self.file.interface.past.iter().zip(&mut self.past) {
            let new = outputs[&name.output].floats().unwrap().chunks(function.rows * head_dim);
            for (new, kept) in new.zip(array.floats_mut().unwrap().chunks_mut(self.file.context * head_dim)) {
                kept[position * head_dim..][..real * head_dim].copy_from_slice(&new[..real * head_dim]);
            }
        }
        outputs[&self.file.interface.output].floats().unwrap()[..real * width].to_vec()
    }
}

#[test]
fn finite_padding_changes_no_bit_of_any_variant() {
    for (model, head_dim) in [("qwen3", 80), ("llama", 16), ("qwen2", 16)] {
        let bench = Bench::new(&TinyModel::shaped(model, 51, [64, 4, 2, head_dim, 96]));
        for arguments in VARIANTS {
            bench.convert(arguments);
            let run = |pad: &dyn Fn(&mut Random) -> f32| {
                let mut block = Lone::open(&bench.path("out"));
                let functions = block.file.functions.clone();
                let mut random = Random(52);
                let mut pads = Random(53);
                let mut outputs = Vec::new();
                // Padded prefills, decode steps over the places that padding had, and the last position.
                let mut calls = vec![(&functions[1], 0, 20), (&functions[1], 20, 30)];
                calls.extend((50..56).map(|position| (&functions[0], position, 1)));
                calls.extend([(&functions[1], 56, 64), (&functions[0], 120, 1), (&functions[0], CONTEXT - 1, 1)]);
                if block.file.kv != KvCache::Slice {
                    calls.push((&functions[1], CONTEXT - 3, 3));
                }
                for (function, position, real) in calls {
                    let mut rows: Vec<f32> = (0..real * 64).map(|_| f16::from_f32(random.normal()).to_f32()).collect();
                    rows.extend((real * 64..function.rows * 64).map(|_| f16::from_f32(pad(&mut pads)).to_f32()));
                    outputs.push(block.run(function, position, real, rows));
                }
                outputs
            };
            let zeros = run(&|_| 0.0);
            assert!(zeros.iter().flatten().all(|value| value.is_finite()));
            assert!(zeros == run(&|random| random.normal()), "{model}, {arguments:?}: noise");
            assert!(zeros == run(&|_| 6e4), "{model}, {arguments:?}: large values");
        }
    }
}

#[test]
fn a_conversation_begins_empty_whatever_was_said_before() {
    let bench = Bench::new(&TinyModel::new("qwen3", 54));
    let tokens = tokens();
    for arguments in VARIANTS {
        bench.convert(arguments);
        let chain = runner::Chain::open(&bench.path("out"), &ReferenceRunner::default()).unwrap();
        let run = |session: &mut runner::Session| chain.feed(session, &tokens[..9], Rows::All).unwrap();
        let mut first = chain.begin().unwrap();
        let fresh = run(&mut first);
        assert!(run(&mut first) != fresh, "{arguments:?}: nothing is carried over");
        assert!(run(&mut chain.begin().unwrap()) == fresh, "{arguments:?}");
    }
}

#[test]
fn a_block_alone_gives_what_it_gives_in_the_chain() {
    let bench = Bench::new(&TinyModel::new("llama", 55));
    let tokens = tokens();
    for arguments in VARIANTS {
        bench.convert(arguments);
        let chain = runner::Chain::open(&bench.path("out"), &ReferenceRunner::default()).unwrap();
        let mut stream = [Vec::new(), Vec::new()];
        let all = &tokens[..CONTEXT];
        chain
            .feed_watched(&mut chain.begin().unwrap(), all, Rows::Last, &mut |block, rows| stream[block].extend(rows))
            .unwrap();
        assert!(chain.block_alone(1, &stream[0]).unwrap() == stream[1], "{arguments:?}");
    }
}
