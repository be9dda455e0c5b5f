//! Random packages: whatever a package holds, opening it, taking stock of it and running it gives values or errors,
//! never a panic. `PROPTEST_CASES` sets how many: 250000 make a million in all. By hand with `ulimit -v 4000000`, which
//! makes a large allocation fail, and `TMPDIR` in memory.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anebake::mil::{Arithmetic, Program, op_types};
use anebake::mlpackage::{MANIFEST, MODEL, Package, WEIGHTS, spec};
use candle_core::{Device, Tensor};
use proptest::prelude::*;
use prost::Message;

use super::cases::corpus;
use super::graph::{
    self, Bound, Graph, bools, bytes, constant, floats, halves, ints, list, named, op, open_type, stored, tensor_type,
    text,
};
use crate::support::Random;

/// Elements that the caller hands in, at most.
const MOST_INPUT: usize = 1 << 16;

fn config(cases: u32) -> ProptestConfig {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() }
}

fn below(random: &mut Random, bound: usize) -> usize {
    (random.bits() % bound.max(1) as u64) as usize
}

fn one_of<T: Clone>(random: &mut Random, values: &[T]) -> T {
    values[below(random, values.len())].clone()
}

fn chance(random: &mut Random, one_in: usize) -> bool {
    below(random, one_in) == 0
}

/// Numbers that break things.
fn number(random: &mut Random) -> i32 {
    match below(random, 8) {
        0 => one_of(random, &[i32::MAX, i32::MIN, i32::MIN + 1, 1 << 30, 1 << 16, -(1 << 16), 255, 256, 65, 1 << 20]),
        1 => -(below(random, 6) as i32),
        _ => below(random, 6) as i32,
    }
}

fn real(random: &mut Random) -> f32 {
    match below(random, 6) {
        0 => one_of(random, &[0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 1e-40]),
        1 => number(random) as f32,
        _ => random.normal(),
    }
}

thread_local! {
    static PACKAGE: RefCell<Option<(tempfile::TempDir, PathBuf)>> = const { RefCell::new(None) };
}

/// A folder for packages, one for each thread.
fn with_package<R>(f: impl FnOnce(&Path) -> R) -> R {
    PACKAGE.with_borrow_mut(|slot| {
        let (_, path) = slot.get_or_insert_with(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("odd.mlpackage");
            (folder, path)
        });
        f(path)
    })
}

/// Opens a package, takes stock of it, lints it, and runs all of it; whether something ran to its end.
fn exercise(package: &Path, random: &mut Random) -> anyhow::Result<bool> {
    drop(anebake::lint::run::package(package, true));
    let opened = Package::open(package)?;
    let blobs = opened.blobs();
    let names: Vec<String> = opened.functions()?.into_iter().map(|function| function.name).collect();
    drop(blobs);
    let arithmetic = one_of(random, &Arithmetic::ALL);
    let program = Program::load(opened, arithmetic, None)?;
    let mut states = program.new_states()?;
    let mut ran = false;
    for name in names {
        let mut inputs = anebake::mil::Inputs::new();
        let mut given = 0;
        for (input, dtype, shape) in program.inputs(&name) {
            let shape = shape.unwrap_or_else(|| vec![2]);
            let count: usize = shape.iter().product();
            given += count;
            if given > MOST_INPUT {
                return Ok(false);
            }
            let tensor = if dtype.is_float() {
                Tensor::from_vec((0..count).map(|_| real(random)).collect::<Vec<f32>>(), shape, &Device::Cpu)?
            } else {
                Tensor::from_vec((0..count).map(|_| number(random).into()).collect::<Vec<i64>>(), shape, &Device::Cpu)?
            };
            inputs.insert(input, tensor);
        }
        for _ in 0..2 {
            ran |= program.run(&name, &inputs, &mut states, None).is_ok();
        }
    }
    Ok(ran)
}

/// Exercises a package; what it panicked with, if it did, as an error.
fn survives(package: &Path, seed: u64) -> Result<bool, TestCaseError> {
    let start = std::time::Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| exercise(package, &mut Random(seed)).unwrap_or(false)));
    // Even where a run by hand gets little of the machine.
    if start.elapsed().as_secs() > 120 {
        let kept = std::env::temp_dir().join(format!("slow-{seed}.mlmodel"));
        std::fs::copy(package.join(MODEL), &kept).unwrap();
        return Err(TestCaseError::fail(format!("{:?}: `{}`", start.elapsed(), kept.display())));
    }
    outcome.map_err(|_| {
        let kept = std::env::temp_dir().join(format!("panicked-{seed}.mlmodel"));
        std::fs::copy(package.join(MODEL), &kept).unwrap();
        TestCaseError::fail(format!("it panicked: `{}`", kept.display()))
    })
}

// Bytes.

/// Flips, splices, repetitions and truncation.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=below(random, 4) {
        if bytes.is_empty() {
            return;
        }
        let at = below(random, bytes.len());
        match below(random, 7) {
            0 => bytes[at] ^= 1 << below(random, 8),
            1 => bytes[at] = one_of(random, &[0, 1, 0x7f, 0x80, 0xff]),
            2 => bytes.truncate(at),
            3 => {
                bytes.insert(at, random.bits() as u8);
            }
            4 => {
                bytes.remove(at);
            }
            5 => {
                let (from, length) = (below(random, bytes.len()), below(random, 40));
                let part = bytes[from..(from + length).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let (from, length) = (below(random, bytes.len()), below(random, 40));
                let part = bytes[from..(from + length).min(bytes.len())].to_vec();
                let end = (at + part.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&part[..end - at]);
            }
        }
    }
}

/// Small valid packages: a CNN, compressed weights, a cell with states.
fn seeds() -> Vec<Graph> {
    let image = tensor_type("fp32", &[1, 2, 5, 5]);
    let weight: Vec<f32> = (0..36).map(|i| i as f32 / 18.0 - 1.0).collect();
    let cnn = Graph::of(
        image.clone(),
        vec![
            constant("w", floats(&[2, 2, 3, 3], weight)),
            op(
                "conv",
                [
                    ("x", "x".into()),
                    ("weight", "w".into()),
                    ("pad_type", text("same").into()),
                    ("strides", list(&[1, 1]).into()),
                ],
                &[("c", image.clone())],
            ),
            op("relu", [("x", "c".into())], &[("r", image)]),
            op(
                "max_pool",
                [("x", "r".into()), ("kernel_sizes", list(&[2, 2]).into()), ("pad_type", text("valid").into())],
                &[("p", tensor_type("fp32", &[1, 2, 4, 4]))],
            ),
            op(
                "reduce_mean",
                [("x", "p".into()), ("axes", list(&[2, 3]).into())],
                &[("m", tensor_type("fp32", &[1, 2]))],
            ),
            op(
                "softmax",
                [("x", "m".into()), ("axis", ints(&[], vec![-1]).into())],
                &[("y", tensor_type("fp32", &[1, 2]))],
            ),
        ],
    );
    let mut compressed = Graph::of(
        tensor_type("fp16", &[3, 4]),
        vec![
            constant("half", stored("fp16", &[6, 4], 64)),
            op(
                "constexpr_blockwise_shift_scale",
                [
                    ("data", bytes("int4", &[4, 6], vec![0x1f; 12]).into()),
                    ("scale", bytes("fp16", &[4, 2], vec![0x3c; 16]).into()),
                ],
                &[("w", tensor_type("fp16", &[4, 6]))],
            ),
            op(
                "constexpr_lut_to_dense",
                [
                    ("indices", bytes("uint2", &[6, 4], vec![0x1b; 6]).into()),
                    ("lut", bytes("fp16", &[2, 1, 4, 1], vec![0x3c; 16]).into()),
                ],
                &[("v", tensor_type("fp16", &[6, 4]))],
            ),
            op("linear", [("x", "x".into()), ("weight", "half".into())], &[("h", tensor_type("fp16", &[3, 6]))]),
            op("linear", [("x", "h".into()), ("weight", "w".into())], &[("z", tensor_type("fp16", &[3, 4]))]),
            op("linear", [("x", "z".into()), ("weight", "v".into())], &[("u", tensor_type("fp16", &[3, 6]))]),
            op(
                "topk",
                [("x", "u".into()), ("k", ints(&[], vec![2]).into())],
                &[("y", tensor_type("fp16", &[3, 2])), ("i", tensor_type("int32", &[3, 2]))],
            ),
        ],
    );
    compressed.weights = halves(24);
    let row = tensor_type("fp16", &[4, 3]);
    let state = spec::StateType { wrapped_type: Some(Box::new(row.clone())) };
    let update = |name: &'static str| {
        op(
            "slice_update",
            [
                ("x", name.into()),
                ("update", "x".into()),
                ("begin", "b".into()),
                ("end", "e".into()),
                ("end_mask", bools(&[2], vec![false, true]).into()),
            ],
            &[("n", row.clone())],
        )
    };
    let mut cell = Graph::of(
        tensor_type("fp16", &[1, 3]),
        vec![
            op("read_state", [("input", "s".into())], &[("old", row.clone())]),
            constant("b", list(&[1, 0])),
            op("add", [("x", "b".into()), ("y", list(&[1, 1]).into())], &[("e", tensor_type("int32", &[2]))]),
            update("old"),
            op("coreml_update_state", [("state", "s".into()), ("value", "n".into())], &[("now", row.clone())]),
            op(
                "scaled_dot_product_attention",
                [("query", "q".into()), ("key", "q".into()), ("value", "q".into())],
                &[("y", tensor_type("fp16", &[1, 4, 3]))],
            ),
        ],
    );
    let wide = op(
        "expand_dims",
        [("x", "now".into()), ("axes", list(&[0]).into())],
        &[("q", tensor_type("fp16", &[1, 4, 3]))],
    );
    cell.operations.insert(5, wide);
    cell.inputs.push(named("s", spec::ValueType { tensor_type: None, state_type: Some(Box::new(state)) }));
    vec![cnn, compressed, cell]
}

#[test]
fn the_seeds_of_the_fuzzers_run() {
    for graph in seeds() {
        with_package(|package| {
            graph.write(package);
            assert!(exercise(package, &mut Random(1)).unwrap());
        });
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn damaged_bytes_give_errors(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let graph = one_of(random, &seeds());
        let (mut model, mut weights) = (graph.model().encode_to_vec(), graph.weights.clone());
        if weights.is_empty() || !chance(random, 3) {
            damage(&mut model, random);
        }
        if chance(random, 2) {
            damage(&mut weights, random);
        }
        with_package(|package| {
            graph::write(package, &model, &weights);
            survives(package, seed)
        })?;
    }

    #[test]
    fn damaged_manifests_and_blob_files_give_errors(seed in any::<u64>()) {
        let random = &mut Random(seed);
        let graph = &seeds()[1];
        with_package(|package| {
            graph.write(package);
            let mut manifest = std::fs::read(package.join(MANIFEST)).unwrap();
            damage(&mut manifest, random);
            if chance(random, 2) {
                std::fs::write(package.join(MANIFEST), manifest).unwrap();
            }
            let mut weights = graph.weights.clone();
            // Metadata of the one entry.
            for _ in 0..=below(random, 3) {
                weights[64 + below(random, 32)] = random.bits() as u8;
            }
            std::fs::write(package.join(WEIGHTS), weights).unwrap();
            survives(package, seed)
        })?;
    }
}

// Ops with random parameters.

const TENSORS: &[&str] = &[
    "x",
    "y",
    "data",
    "indices",
    "updates",
    "update",
    "cond",
    "a",
    "b",
    "weight",
    "query",
    "key",
    "value",
    "attn_mask",
    "input",
    "ref_tensor",
    "quantized_data",
    "source_val",
    "nonzero_data",
    "mask",
    "lut",
    "scale",
    "offset",
    "zero_point",
    "bias",
    "mean",
    "variance",
    "gamma",
    "beta",
    "alpha",
    "constant_val",
];
const LISTS: &[&str] = &[
    "axes",
    "begin",
    "end",
    "size",
    "stride",
    "strides",
    "dilations",
    "pad",
    "kernel_sizes",
    "reps",
    "shape",
    "perm",
    "split_sizes",
    "output_shape",
];
const FLAGS: &[&str] = &["begin_mask", "end_mask", "squeeze_mask"];
const NUMBERS: &[&str] = &[
    "axis",
    "groups",
    "block_size",
    "upscale_factor",
    "downscale_factor",
    "num_splits",
    "start",
    "end",
    "step",
    "one_hot_vector_size",
    "on_value",
    "off_value",
    "lower",
    "upper",
    "k",
    "batch_dims",
    "size",
    "vector_axis",
    "epsilon",
    "alpha",
    "beta",
];
const SWITCHES: &[&str] = &[
    "keep_dims",
    "interleave",
    "exclusive",
    "reverse",
    "ascending",
    "sort",
    "return_indices",
    "transpose_x",
    "transpose_y",
    "ceil_mode",
    "exclude_padding_from_average",
];
const TEXTS: &[(&str, &[&str])] = &[
    ("mode", &["constant", "reflect", "replicate", "add", "update", "div", "max", "EXACT", "odd"]),
    ("pad_type", &["valid", "same", "same_lower", "custom", "odd"]),
    ("dtype", &["fp16", "fp32", "int32", "bool", "int8", "uint16", "string", "odd"]),
    ("output_dtype", &["int8", "uint8", "fp32", "odd"]),
    (
        "equation",
        &[
            "ab,bc->ac",
            "nchw,nwhu->nchu",
            "chw,whr->chr",
            "a,b->ab",
            "a,a->a",
            "ab,->",
            "->",
            ",",
            "aa,b->b",
            "ab,ab->",
        ],
    ),
];

fn shape(random: &mut Random, base: &[u64]) -> Vec<u64> {
    let mut shape = base.to_vec();
    match below(random, 6) {
        0 | 1 => {}
        2 if !shape.is_empty() => {
            let at = below(random, shape.len());
            shape[at] = below(random, 5) as u64;
        }
        3 if !shape.is_empty() => {
            shape.pop();
        }
        4 => shape.insert(below(random, shape.len() + 1), below(random, 4) as u64),
        _ => shape = (0..below(random, 6)).map(|_| below(random, 5) as u64).collect(),
    }
    shape
}

fn tensor(random: &mut Random, base: &[u64]) -> spec::Value {
    let shape = shape(random, base);
    let count: u64 = shape.iter().product();
    match below(random, 8) {
        0 | 1 => ints(&shape, (0..count).map(|_| number(random)).collect()),
        2 => bools(&shape, (0..count).map(|_| chance(random, 2)).collect()),
        3 => {
            let dtype = one_of(random, &["fp16", "int8", "uint8", "int4", "uint4", "uint1", "uint2", "uint3", "uint6"]);
            let size = anebake::mlpackage::blob::BlobDtype::from_mil(dtype).unwrap().bytes(count).unwrap();
            bytes(dtype, &shape, (0..size).map(|_| random.bits() as u8).collect())
        }
        _ => floats(&shape, (0..count).map(|_| real(random)).collect()),
    }
}

fn parameter(random: &mut Random, kind: &str, base: &[u64]) -> (&'static str, spec::Value) {
    let rank = base.len();
    match below(random, 12) {
        0..=4 => (one_of(random, TENSORS), tensor(random, base)),
        5..=7 => {
            let name = one_of(random, LISTS);
            let length = match (name, kind) {
                ("pad", "pad") => 2 * rank,
                ("pad", _) => 2 * rank.saturating_sub(2),
                ("strides" | "dilations" | "kernel_sizes", _) => rank.saturating_sub(2),
                _ => rank,
            };
            let length = if chance(random, 5) { below(random, 6) } else { length };
            (name, list(&(0..length).map(|_| number(random)).collect::<Vec<_>>()))
        }
        8 => {
            let length = if chance(random, 5) { below(random, 6) } else { rank };
            (one_of(random, FLAGS), bools(&[length as u64], (0..length).map(|_| chance(random, 2)).collect()))
        }
        9 if chance(random, 3) => (one_of(random, NUMBERS), floats(&[], vec![real(random)])),
        9 => (one_of(random, NUMBERS), ints(&[], vec![number(random)])),
        10 => (one_of(random, SWITCHES), bools(&[], vec![chance(random, 2)])),
        _ => {
            let (name, choices) = one_of(random, TEXTS);
            (name, text(one_of(random, choices)))
        }
    }
}

/// One op of a random type: what it most needs, then parameters at random, relevant or not.
fn random_op(random: &mut Random) -> Graph {
    let kind = one_of(random, &op_types());
    let base: Vec<u64> = (0..below(random, 6)).map(|_| 1 + below(random, 4) as u64).collect();
    let outputs: Vec<(&str, spec::ValueType)> = ["y", "z", "u"][..1 + below(random, 12) / 5]
        .iter()
        .map(|name| {
            let dtype = one_of(random, &["fp32", "fp16", "int32", "bool", "int8"]);
            let kind = if chance(random, 4) { tensor_type(dtype, &shape(random, &base)) } else { open_type(dtype) };
            (*name, kind)
        })
        .collect();
    let mut operation = op(kind, [], &outputs);
    let mut add = |name: &str, value: spec::Value| {
        operation.inputs.extend(op(kind, [(name, Bound::Value(value))], &[]).inputs);
    };
    for name in TENSORS {
        if !chance(random, 4) {
            add(name, tensor(random, &base));
        }
    }
    for _ in 0..40 {
        let (name, value) = parameter(random, kind, &base);
        add(name, value);
    }
    let values =
        (0..below(random, 4)).map(|_| spec::Binding { binding: Some(spec::BindingKind::Value(tensor(random, &base))) });
    operation.inputs.insert("values".to_owned(), spec::Argument { arguments: values.collect() });
    Graph { inputs: Vec::new(), operations: vec![operation], outputs: vec!["y".to_owned()], weights: Vec::new() }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn ops_with_random_parameters_give_errors(seed in any::<u64>()) {
        let graph = random_op(&mut Random(seed));
        with_package(|package| {
            graph.write(package);
            survives(package, seed)
        })?;
    }
}

/// Fuzzers that only ever see errors at the door try nothing.
#[test]
fn many_of_the_random_ops_and_changed_cases_run_to_their_end() {
    let random = &mut Random(3);
    let mut ran = [0, 0];
    for _ in 0..600 {
        let seed = random.bits();
        with_package(|package| {
            random_op(&mut Random(seed)).write(package);
            ran[0] += usize::from(survives(package, seed).unwrap());
            let (model, weights) = changed_case(&mut Random(seed));
            graph::write(package, &model.encode_to_vec(), &weights);
            ran[1] += usize::from(survives(package, seed).unwrap());
        });
    }
    assert!(ran[0] > 60 && ran[1] > 60, "of 600: {ran:?}");
}

// Valid cases, changed where it hurts.

fn change_type(kind: &mut spec::ValueType, random: &mut Random) {
    let Some(tensor) = kind.tensor_type.as_mut() else { return };
    if chance(random, 4) {
        tensor.data_type = one_of(random, &[1, 2, 10, 11, 21, 22, 23, 25, 31, 35, 36, 37, 38, 39, 99]);
        return;
    }
    match below(random, 4) {
        0 if !tensor.dimensions.is_empty() => {
            tensor.dimensions.remove(below(random, tensor.dimensions.len()));
        }
        1 => {
            let at = below(random, tensor.dimensions.len() + 1);
            let size = below(random, 3) as u64;
            tensor.dimensions.insert(at, spec::Dimension { constant: Some(spec::ConstantDimension { size }) });
        }
        2 if !tensor.dimensions.is_empty() => {
            let (a, b) = (below(random, tensor.dimensions.len()), below(random, tensor.dimensions.len()));
            tensor.dimensions.swap(a, b);
        }
        _ => {
            let count = tensor.dimensions.len();
            if let Some(dimension) = tensor.dimensions.get_mut(below(random, count)) {
                let size = number(random).unsigned_abs().into();
                dimension.constant = (!chance(random, 5)).then_some(spec::ConstantDimension { size });
            }
        }
    }
}

fn change_list<T: Clone>(values: &mut Vec<T>, random: &mut Random, new: impl Fn(&mut Random) -> T) {
    let count = values.len();
    match below(random, 6) {
        0 => values.push(new(random)),
        1 => {
            values.pop();
        }
        _ if count > 0 => {
            for _ in 0..=below(random, 2) {
                values[below(random, count)] = new(random);
            }
        }
        _ => {}
    }
}

fn change_value(value: &mut spec::Value, random: &mut Random) {
    use spec::TensorElements as E;
    let Some(kind) = value.r#type.as_mut() else { return };
    let tensor = match &mut value.value {
        Some(spec::ValueKind::Immediate(immediate)) => immediate.tensor.as_mut().and_then(|t| t.value.as_mut()),
        Some(spec::ValueKind::BlobFile(blob)) => {
            if chance(random, 2) {
                blob.offset = one_of(random, &[0, 64, 128, 192, 256, 320, 384, 1 << 40]);
            } else {
                change_type(kind, random);
            }
            return;
        }
        None => return,
    };
    let count = match tensor {
        Some(E::Floats(list)) => {
            change_list(&mut list.values, random, real);
            list.values.len()
        }
        Some(E::Ints(list)) => {
            change_list(&mut list.values, random, number);
            list.values.len()
        }
        Some(E::Bools(list)) => {
            change_list(&mut list.values, random, |random| chance(random, 2));
            list.values.len()
        }
        Some(E::Strings(list)) => {
            let (_, choices) = one_of(random, TEXTS);
            list.values = vec![one_of(random, choices).to_owned()];
            return;
        }
        Some(E::Bytes(list)) => {
            change_list(&mut list.values, random, |random| random.bits() as u8);
            list.values.len()
        }
        _ => return,
    };
    // A list of another length mostly declares it.
    if let Some(tensor) = kind.tensor_type.as_mut()
        && let [dimension] = &mut tensor.dimensions[..]
        && !chance(random, 8)
        && !matches!(value.value, Some(spec::ValueKind::BlobFile(_)))
    {
        dimension.constant = Some(spec::ConstantDimension { size: count as u64 });
    } else if chance(random, 4) {
        change_type(kind, random);
    }
}

/// Changes one thing about one op, or about an input.
fn change(model: &mut spec::Model, random: &mut Random) {
    let Some(function) = model.ml_program.as_mut().and_then(|program| program.functions.values_mut().next()) else {
        return;
    };
    if chance(random, 5) && !function.inputs.is_empty() {
        let at = below(random, function.inputs.len());
        if let Some(kind) = function.inputs[at].r#type.as_mut() {
            change_type(kind, random);
        }
        return;
    }
    let Some(body) = function.block_specializations.values_mut().next() else { return };
    let names: Vec<String> = body.operations.iter().flat_map(|op| &op.outputs).map(|o| o.name.clone()).collect();
    if body.operations.is_empty() {
        return;
    }
    let at = below(random, body.operations.len());
    let operation = &mut body.operations[at];
    match below(random, 9) {
        0..=3 => {
            if let Some(value) = operation.attributes.get_mut("val") {
                change_value(value, random);
            } else if let Some(argument) = operation.inputs.values_mut().next() {
                for binding in &mut argument.arguments {
                    if let Some(spec::BindingKind::Value(value)) = binding.binding.as_mut() {
                        change_value(value, random);
                    }
                }
            }
        }
        4 => operation.r#type = one_of(random, &op_types()).to_owned(),
        5 => {
            let count = operation.inputs.len();
            let key = operation.inputs.keys().nth(below(random, count)).cloned();
            if let Some(key) = key {
                let removed = operation.inputs.remove(&key);
                if let (Some(argument), true) = (removed, chance(random, 2)) {
                    operation.inputs.insert(one_of(random, TENSORS).to_owned(), argument);
                }
            }
        }
        6 => {
            let count = operation.inputs.len();
            if let Some(argument) = operation.inputs.values_mut().nth(below(random, count)) {
                let name = one_of(random, &names);
                let binding = spec::Binding { binding: Some(spec::BindingKind::Name(name)) };
                if chance(random, 3) {
                    argument.arguments.push(binding);
                } else {
                    argument.arguments = vec![binding];
                }
            }
        }
        7 => {
            if let Some(kind) = operation.outputs.first_mut().and_then(|output| output.r#type.as_mut()) {
                change_type(kind, random);
            }
        }
        _ => {
            let other = below(random, body.operations.len());
            body.operations.swap(at, other);
        }
    }
}

/// Leaves the shapes of results open, so that a changed one does not end the run.
fn open_shapes(model: &mut spec::Model) {
    let functions = model.ml_program.iter_mut().flat_map(|program| program.functions.values_mut());
    let blocks = functions.flat_map(|function| function.block_specializations.values_mut());
    for operation in blocks.flat_map(|block| &mut block.operations) {
        if operation.r#type == "const" || operation.r#type.starts_with("constexpr_") {
            continue;
        }
        for output in &mut operation.outputs {
            if let Some(tensor) = output.r#type.as_mut().and_then(|kind| kind.tensor_type.as_mut()) {
                tensor.dimensions = vec![spec::Dimension { constant: None }];
            }
        }
    }
}

/// An op case with some things changed.
fn changed_case(random: &mut Random) -> (spec::Model, Vec<u8>) {
    let (mut model, weights) = one_of(random, corpus().models());
    for _ in 0..=below(random, 3) {
        change(&mut model, random);
    }
    if chance(random, 2) {
        open_shapes(&mut model);
    }
    (model, weights)
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn changed_op_cases_give_errors(seed in any::<u64>()) {
        let (model, weights) = changed_case(&mut Random(seed));
        with_package(|package| {
            graph::write(package, &model.encode_to_vec(), &weights);
            survives(package, seed)
        })?;
    }
}
