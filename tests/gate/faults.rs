//! Planted faults: what the gate is for. Each test first sees the sound chain pass.

use std::path::{Path, PathBuf};

use anebake::checkpoint::Checkpoint;
use anebake::gate::{self, Baseline, Prompt, Weights};
use anebake::mil::Arithmetic;
use anebake::mlpackage::Package;
use anebake::mlpackage::inventory::FunctionInfo;
use anebake::mlpackage::spec::{Binding, BindingKind, Block, Model as Spec, Operation};
use anebake::runner::{Array, Arrays, Chain, Data, Model, ReferenceRunner, Runner, State};
use anebake::tokenizer::Tokenizer;
use prost::Message;
use serde_json::{Value, json};

use super::{Baked, OPTIONS, STEPS};
use crate::support::{Bench, TinyModel};

/// Replaces a file of a package; what was there may be shared with the cache.
fn replace(path: &Path, bytes: &[u8]) {
    let aside = path.with_extension("new");
    std::fs::write(&aside, bytes).unwrap();
    std::fs::rename(&aside, path).unwrap();
}

fn package(out: &Path, block: usize) -> PathBuf {
    out.join(format!("block-{block:02}.mlpackage"))
}

/// Changes the bytes of one value of a block's `weight.bin`. Returns its shape.
pub(super) fn edit_weights(out: &Path, block: usize, name: &str, slot: &str, edit: impl FnOnce(&mut [u8])) -> Vec<u64> {
    let opened = Package::open(&package(out, block)).unwrap();
    let uses = opened.blobs().unwrap();
    let wanted = [name.to_owned(), format!("{name}_quantized")];
    let used = uses.iter().find(|used| wanted.contains(&used.output) && used.slot == slot);
    let used = used.unwrap_or_else(|| panic!("no {slot} of {name}"));
    let mut bytes = opened.weights().to_vec();
    let start = usize::try_from(used.entry.data_offset()).unwrap();
    let end = start + usize::try_from(used.entry.size).unwrap();
    let before = bytes.clone();
    edit(&mut bytes[start..end]);
    assert!(bytes != before, "nothing was changed");
    replace(&package(out, block).join("Data/com.apple.CoreML/weights/weight.bin"), &bytes);
    used.shape.clone()
}

/// Changes the body of some functions of a block's program.
fn edit_program(out: &Path, block: usize, functions: &[&str], edit: impl Fn(&mut Block)) {
    let opened = Package::open(&package(out, block)).unwrap();
    let path = opened.model_path().to_owned();
    let mut spec = Spec::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
    for name in functions {
        let function = spec.ml_program.as_mut().unwrap().functions.get_mut(*name).unwrap();
        let body = function.block_specializations.get_mut(&function.opset).unwrap();
        let before = body.clone();
        edit(body);
        assert!(*body != before, "nothing was changed in {name}");
    }
    replace(&path, &spec.encode_to_vec());
}

/// The op whose result has this name.
fn op<'a>(body: &'a mut Block, name: &str) -> &'a mut Operation {
    let found = body.operations.iter_mut().find(|op| op.outputs.iter().any(|output| output.name == name));
    found.unwrap_or_else(|| panic!("no op gives {name}"))
}

fn bound_to(name: &str) -> Binding {
    Binding { binding: Some(BindingKind::Name(name.to_owned())) }
}

/// Two blocks of `llama`, whose q_proj is square, in float16, but for the tensors of a pattern, in int8: a whole tiny
/// model in int8 is too far from its source to pass.
fn int8(seed: u64, tensors: &str) -> Baked {
    let set = format!("override=[{{ tensors = '{tensors}', dtype = \"int8\" }}]");
    let baked = Baked::new(&TinyModel::new("llama", seed), &["--recipe", "fp16-v1", "--set", &set]);
    baked.passes();
    baked
}

/// Two blocks of `qwen3` in float16.
fn float16(seed: u64) -> Baked {
    let baked = Baked::new(&TinyModel::new("qwen3", seed), &["--recipe", "fp16-v1"]);
    baked.passes();
    baked
}

#[test]
fn one_scale_that_is_doubled_is_caught() {
    let baked = int8(41, "layers\\.1\\.mlp\\.down_proj");
    edit_weights(&baked.out(), 1, "down_proj_weight", "scale", |bytes| {
        let scale = half::f16::from_le_bytes([bytes[8], bytes[9]]);
        bytes[8..10].copy_from_slice(&(scale + scale).to_le_bytes());
    });
    baked.fails("a doubled scale");
}

#[test]
fn two_blocks_that_are_swapped_are_caught() {
    let baked = float16(42);
    let (first, second, aside) = (package(&baked.out(), 0), package(&baked.out(), 1), baked.out().join("aside"));
    for (from, to) in [(&first, &aside), (&second, &first), (&aside, &second)] {
        std::fs::rename(from, to).unwrap();
    }
    baked.fails("a swap of two blocks");
}

#[test]
fn a_weight_that_is_transposed_is_caught() {
    let baked = int8(43, "layers\\.0\\.self_attn\\.q_proj");
    let shape = edit_weights(&baked.out(), 0, "q_proj_weight", "data", |bytes| {
        let before = bytes.to_vec();
        for row in 0..64 {
            for column in 0..64 {
                bytes[row * 64 + column] = before[column * 64 + row];
            }
        }
    });
    assert_eq!(shape, [64, 64, 1, 1]);
    baked.fails("a transposed q_proj");
}

/// Every row of a table but the last becomes the one behind it.
fn shifted(bytes: &mut [u8]) {
    let row = bytes.len() / 128;
    bytes.copy_within(row.., 0);
}

#[test]
fn a_rope_table_that_is_off_by_one_position_is_caught() {
    let baked = float16(44);
    let shape = edit_weights(&baked.out(), 0, "rope_sin", "val", shifted);
    assert_eq!(shape, [128, 32]);
    baked.fails("sines of the next position");
}

#[test]
fn both_rope_tables_off_by_the_same_are_no_fault_since_attention_sees_only_distances() {
    let baked = float16(45);
    edit_weights(&baked.out(), 0, "rope_sin", "val", shifted);
    edit_weights(&baked.out(), 0, "rope_cos", "val", shifted);
    baked.passes();
}

/// A runner whose packages are given other inputs than the chain means.
struct Meddler {
    inner: ReferenceRunner,
    change: fn(&mut Arrays),
}

struct Meddled {
    inner: Box<dyn Model>,
    change: fn(&mut Arrays),
}

impl Runner for Meddler {
    fn open(&self, package: &Path) -> anyhow::Result<Box<dyn Model>> {
        Ok(Box::new(Meddled { inner: self.inner.open(package)?, change: self.change }))
    }
}

impl Model for Meddled {
    fn functions(&self) -> &[FunctionInfo] {
        self.inner.functions()
    }

    fn new_state(&self) -> anyhow::Result<State> {
        self.inner.new_state()
    }

    fn predict(&self, function: &str, inputs: &Arrays, state: &mut State) -> anyhow::Result<Arrays> {
        let mut inputs = inputs.clone();
        (self.change)(&mut inputs);
        self.inner.predict(function, &inputs, state)
    }
}

/// Opens one more column in every row of the mask, where there is one: the next token.
fn sees_the_next_token(inputs: &mut Arrays) {
    let Some(Array { shape, data: Data::Float(mask) }) = inputs.get_mut("causal_mask") else { return };
    for row in mask.chunks_mut(shape[3]) {
        if let Some(next) = row.iter().position(|value| *value != 0.0) {
            row[next] = 0.0;
        }
    }
}

#[test]
fn a_mask_that_sees_the_future_is_caught() {
    let baked = float16(46);
    let runner = |change| Meddler { inner: ReferenceRunner::new(Arithmetic::Fp16), change };
    assert!(baked.judge_with(&runner(|_| {})).passed);
    let report = baked.judge_with(&runner(sees_the_next_token));
    assert!(!report.passed, "a mask that sees the next token goes unnoticed: {}", report.summary());
}

/// A model whose residual stream has a channel of 400, as real ones do; its square overflows float16. The gains make the
/// other channels count as if it were not there.
fn with_a_large_channel(seed: u64) -> TinyModel {
    const LARGE: f32 = 400.0;
    // The root of the mean square over 64 channels, of which one is large.
    let root = LARGE / 8.0;
    let mut model = TinyModel::new("llama", seed).untied(seed + 1);
    model.dtype = safetensors::Dtype::F32;
    model.values("model.embed_tokens.weight").chunks_mut(64).for_each(|row| row[5] = LARGE);
    let norms = model.tensors.keys().filter(|name| name.ends_with("norm.weight")).cloned().collect::<Vec<_>>();
    for name in norms {
        let gains = model.values(&name);
        gains.iter_mut().for_each(|gain| *gain *= root);
        gains[5] = 0.0;
    }
    model
}

#[test]
fn a_norm_whose_squares_overflow_float16_is_caught() {
    let baked = Baked::new(&with_a_large_channel(47), &["--recipe", "fp16-v1"]);
    baked.passes();
    // x / max|x| becomes x / 1: the mean is that of the squares themselves.
    edit_program(&baked.out(), 1, &["decode", "prefill"], |body| {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            let divisor = op(body, &format!("{norm}_divisor"));
            assert_eq!(divisor.r#type, "maximum");
            let largest = divisor.inputs["x"].clone();
            divisor.r#type = "real_div".to_owned();
            divisor.inputs.insert("y".to_owned(), largest);
        }
    });
    let meant = baked.judge(Arithmetic::F32);
    assert!(meant.passed, "without float16 a naive norm is right: {:?}", meant.failures);
    baked.fails("a naive norm");
}

#[test]
fn a_cache_that_is_written_at_the_wrong_position_is_caught() {
    let baked = float16(49);
    // A decode step writes its row one place further on.
    edit_program(&baked.out(), 0, &["decode"], |body| {
        let place = body.operations.iter().position(|op| op.outputs[0].name == "position_end").unwrap();
        let mut behind = body.operations[place].clone();
        assert_eq!(behind.r#type, "add");
        behind.inputs.get_mut("x").unwrap().arguments = vec![bound_to("position_end")];
        behind.outputs[0].name = "position_behind".to_owned();
        body.operations.insert(place + 1, behind);
        for (name, from, to) in
            [("write_end", "position_end", "position_behind"), ("write_begin", "position_offset", "position_end")]
        {
            let place = body.operations.iter().position(|op| op.outputs[0].name == name).unwrap();
            let values = &mut body.operations[place].inputs.get_mut("values").unwrap().arguments;
            let bound = values.iter_mut().find(|binding| **binding == bound_to(from)).unwrap();
            *bound = bound_to(to);
        }
    });
    baked.fails("a cache written one place further on");
}

/// A `tokenizer.json` that knows small letters, space and full stop, with the first so many of its 17 merges.
pub(super) fn tokenizer(merges: usize) -> Value {
    let pairs = [
        "t h", "th e", "a n", "i n", "o n", "e r", "o f", "i s", "an d", "th at", "a t", "w a", "wa s", "in g", "o r",
        "s h", "sh e",
    ];
    let letters = ('a'..='z').map(String::from).chain([" ".to_owned(), ".".to_owned(), "at".to_owned()]);
    let mut vocabulary: Vec<String> = letters.collect();
    for pair in pairs {
        let joined = pair.replace(' ', "");
        if !vocabulary.contains(&joined) {
            vocabulary.push(joined);
        }
    }
    let vocabulary: serde_json::Map<String, Value> =
        vocabulary.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": pairs[..merges]},
    })
}

#[test]
fn truncated_merges_of_a_tokenizer_are_caught() {
    let read = |merges| Tokenizer::from_bytes(tokenizer(merges).to_string().as_bytes()).unwrap();
    let bench = Bench::new(&TinyModel::new("qwen3", 50));
    bench.convert(&["--recipe", "fp16-v1"]);
    let weights = Weights::load(&Checkpoint::open(&bench.path("model")).unwrap()).unwrap();
    let prompts = ["the band was on that.", "she is in there and shining"].map(|text| Prompt::Text(text.to_owned()));
    let baseline = Baseline::compute(&weights, &prompts, Some(&read(17)), STEPS).unwrap();
    let chain = Chain::open(&bench.path("out"), &ReferenceRunner::new(Arithmetic::Fp16)).unwrap();
    let judge = |merges| gate::run(&chain, Some(&read(merges)), &baseline, &OPTIONS).unwrap();
    assert!(judge(17).passed);
    let report = judge(8);
    assert_eq!(report.wrong, 0, "the packages are sound");
    assert_eq!(report.failures.len(), 2);
    for (failure, prompt) in report.failures.iter().zip(&prompts) {
        let start = format!("{prompt}: the chain's tokenizer makes other tokens of it");
        assert!(failure.starts_with(&start), "{failure}");
    }
}

#[test]
fn the_canary_is_looked_at_and_named() {
    let vocabulary: serde_json::Map<String, Value> = ["The capital of France is", " Paris", " London", "x"]
        .iter()
        .enumerate()
        .map(|(id, token)| ((*token).to_owned(), json!(id)))
        .collect();
    let mut document = tokenizer(0);
    document["model"] = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "x"});
    let tokenizer = Tokenizer::from_bytes(document.to_string().as_bytes()).unwrap();
    let bench = Bench::new(&TinyModel::new("qwen3", 51));
    bench.convert(&["--recipe", "fp16-v1"]);
    let chain = Chain::open(&bench.path("out"), &ReferenceRunner::new(Arithmetic::Fp16)).unwrap();
    let logits = chain.feed(&mut chain.begin().unwrap(), &[0], anebake::runner::Rows::Last).unwrap().remove(0);
    let judge = |likely: &[usize]| {
        // The chain's own logits, with some tokens made the likeliest.
        let mut logits = logits.clone();
        let largest = logits.iter().copied().fold(0.0, f32::max);
        likely.iter().enumerate().for_each(|(rank, token)| logits[*token] = largest + 9.0 - 4.0 * rank as f32);
        let baseline = Baseline {
            prompts: vec![Prompt::Text("The capital of France is".to_owned())],
            tokens: Some(vec![vec![0]]),
            steps: 1,
            vocab: 96,
            ids: vec![u32::try_from(likely[0]).unwrap()],
            logits,
            about: None,
        };
        let lenient = gate::Options { min_cosine: 0.0, min_top1: 0.0, strict: false };
        gate::run(&chain, Some(&tokenizer), &baseline, &lenient).unwrap()
    };
    let report = judge(&[1, 2]);
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    assert!(report.failures[0].starts_with("`The capital of France is` goes on with `"), "{}", report.failures[0]);
    assert!(report.failures[0].ends_with("`, not with ` Paris`"), "{}", report.failures[0]);
    // A baseline that says something else makes no canary.
    assert_eq!(judge(&[2, 1]).canary, None);
}

#[test]
fn what_is_not_finite_is_named() {
    let baked = float16(52);
    edit_weights(&baked.out(), 1, "up_proj_weight", "val", |bytes| {
        bytes[..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    });
    let report = baked.judge(Arithmetic::Fp16);
    assert!(!report.passed);
    assert!(report.failures[0].ends_with("step 0: the chain's logits are not finite"), "{:?}", report.failures[0]);
    assert_eq!(report.worst, None);
    // JSON has no NaN: it must read back all the same.
    let read: gate::Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(read.failures, report.failures);
}
