//! Every rule finds what it is for, and passes over what is near to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anebake::lint::environment::Tools;
use anebake::lint::run;
use anebake::lint::{Report, Severity, rules};
use anebake::mlpackage::blob::{self, BlobDtype, Entry};
use anebake::mlpackage::{WEIGHTS, spec};
use anebake::recipe::Recipe;
use half::f16;
use prost::Message;
use serde_json::{Value, json};

use crate::interpreter::graph::{
    Bound, Graph, bytes, constant, floats, ints, list, named, op, open_type, stored, tensor_type, text, write,
};

/// Something to lint.
enum Subject {
    /// `fp16-v1` with these keys.
    Recipe(&'static [&'static str]),
    /// A program and its blob file.
    Package(spec::Model, Vec<u8>),
    /// A package whose blob file ends here, sparse.
    Large(spec::Model, Vec<u8>, u64),
    /// A folder, filled by a function.
    Output(fn(&Path)),
    Tools(Tools),
}

impl Subject {
    fn report(&self, ane: bool) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("a.mlpackage");
        match self {
            Self::Recipe(sets) => {
                let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
                run::recipe(&Recipe::load("fp16-v1", &sets).unwrap(), None, ane)
            }
            Self::Package(model, weights) => {
                write(&package, &model.encode_to_vec(), weights);
                run::package(&package, ane).unwrap()
            }
            Self::Large(model, weights, length) => {
                write(&package, &model.encode_to_vec(), weights);
                File::options().write(true).open(package.join(WEIGHTS)).unwrap().set_len(*length).unwrap();
                run::package(&package, ane).unwrap()
            }
            Self::Output(fill) => {
                fill(folder.path());
                run::output(folder.path(), ane).unwrap()
            }
            Self::Tools(tools) => run::recipe(&Recipe::load("fp16-v1", &[]).unwrap(), Some(tools), ane),
        }
    }
}

impl From<Graph> for Subject {
    fn from(graph: Graph) -> Self {
        Self::Package(graph.model(), graph.weights)
    }
}

impl From<spec::Model> for Subject {
    fn from(model: spec::Model) -> Self {
        Self::Package(model, Vec::new())
    }
}

fn half(shape: &[u64]) -> spec::ValueType {
    tensor_type("fp16", shape)
}

/// A float16 value in the program.
fn halves(shape: &[u64], values: &[f32]) -> spec::Value {
    bytes("fp16", shape, values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect())
}

/// A value of a shape whose elements nobody reads.
fn hollow(dtype: &str, shape: &[u64]) -> spec::Value {
    let mut value = bytes("uint8", &[0], vec![]);
    value.r#type = Some(tensor_type(dtype, shape));
    value
}

/// `y = kind(x, …)`, `x` of shape [1, 4, 8], `y` of another.
fn one(kind: &str, more: Vec<(&str, Bound)>, y: spec::ValueType) -> Graph {
    from(half(&[1, 4, 8]), kind, more, y)
}

fn from(x: spec::ValueType, kind: &str, more: Vec<(&str, Bound)>, y: spec::ValueType) -> Graph {
    Graph::of(x, vec![step(kind, "x", more, "y", y)])
}

/// `to = kind(from, …)`.
fn step(kind: &str, from: &'static str, more: Vec<(&str, Bound)>, to: &str, of: spec::ValueType) -> spec::Operation {
    let mut operation = op(kind, [("x", from.into())], &[(to, of)]);
    for (name, bound) in more {
        operation.inputs.extend(op(kind, [(name, bound)], &[]).inputs);
    }
    operation
}

/// Adds a state, read and written as it is.
fn with_state(mut graph: Graph, name: &'static str, of: spec::ValueType) -> Graph {
    let kind = spec::ValueType {
        tensor_type: None,
        state_type: Some(Box::new(spec::StateType { wrapped_type: Some(Box::new(of.clone())) })),
    };
    graph.inputs.push(named(name, kind));
    let read = format!("{name}_read");
    graph.operations.push(op("read_state", [("input", name.into())], &[(&read, of)]));
    graph
}

fn cache(shape: &[u64]) -> Graph {
    with_state(one("relu", vec![], half(&[1, 4, 8])), "cache", half(shape))
}

/// A blob file, and where each entry lies.
fn blob_file(values: &[(BlobDtype, u64, Vec<u8>)]) -> (Vec<u8>, Vec<u64>) {
    let mut file = blob::header(values.len() as u32).to_vec();
    let mut offsets = Vec::new();
    for (dtype, elements, data) in values {
        file.resize(file.len().next_multiple_of(64), 0);
        let entry = Entry::new(*dtype, *elements, file.len() as u64).unwrap();
        assert_eq!(entry.size, data.len() as u64);
        offsets.push(entry.offset);
        file.extend(entry.metadata());
        file.extend(data);
    }
    (file, offsets)
}

/// A linear layer with int8 weights of [2, 8] in the blob file, and these two scales.
fn quantized(data: [i8; 16], scales: [f32; 2]) -> Graph {
    let data = data.iter().map(|&value| value as u8).collect();
    let (weights, offsets) = blob_file(&[(BlobDtype::Int8, 16, data)]);
    let compressed = op(
        "constexpr_blockwise_shift_scale",
        [("data", stored("int8", &[2, 8], offsets[0]).into()), ("scale", halves(&[2, 1], &scales).into())],
        &[("w", half(&[2, 8]))],
    );
    let product = step("linear", "x", vec![("weight", "w".into())], "y", half(&[1, 4, 2]));
    Graph { weights, ..Graph::of(half(&[1, 4, 8]), vec![compressed, product]) }
}

/// A compressed constant `w` of some kind, taken by `taker`.
fn compressed(kind: &str, parameters: Vec<(&str, Bound)>, w: &[u64], taker: spec::Operation) -> Graph {
    let mut constexpr = op(kind, [], &[("w", half(w))]);
    for (name, bound) in parameters {
        constexpr.inputs.extend(op(kind, [(name, bound)], &[]).inputs);
    }
    Graph::of(half(&[1, 4, 8]), vec![constexpr, taker])
}

fn linear() -> spec::Operation {
    step("linear", "x", vec![("weight", "w".into())], "y", half(&[1, 4, 8]))
}

/// A palette `lut` of this shape.
fn palette(lut: &[u64]) -> Graph {
    compressed(
        "constexpr_lut_to_dense",
        vec![("indices", hollow("uint4", &[8, 8]).into()), ("lut", hollow("fp16", lut).into())],
        &[8, 8],
        linear(),
    )
}

/// Scales of this shape over a convolution's weight.
fn scaled(scale: &[u64]) -> Graph {
    let product = step("conv", "x", vec![("weight", "w".into())], "y", half(&[1, 8, 1, 4]));
    let parameters = vec![("data", hollow("int8", &[8, 64, 1, 1]).into()), ("scale", hollow("fp16", scale).into())];
    let mut graph = compressed("constexpr_blockwise_shift_scale", parameters, &[8, 64, 1, 1], product);
    graph.inputs = vec![named("x", half(&[1, 64, 1, 4]))];
    graph
}

/// A table of [4, 8] whose rows are gathered.
fn table(name: &'static str, data: Vec<i8>) -> Graph {
    let (weights, offsets) = blob_file(&[(BlobDtype::Int8, 32, data.iter().map(|&v| v as u8).collect())]);
    let compressed = op(
        "constexpr_blockwise_shift_scale",
        [("data", stored("int8", &[4, 8], offsets[0]).into()), ("scale", halves(&[4, 1], &[0.1; 4]).into())],
        &[(name, half(&[4, 8]))],
    );
    let rows = op("gather", [("x", name.into()), ("indices", "x".into())], &[("y", half(&[1, 8]))]);
    Graph { weights, ..Graph::of(tensor_type("int32", &[1]), vec![compressed, rows]) }
}

/// A constant of 4096 float16 in the blob file for each function, at these places.
fn two_functions(first: u64, second: u64) -> Subject {
    let values = |seed: u8| (BlobDtype::Float16, 2048, vec![seed; 4096]);
    let (weights, offsets) = blob_file(&[values(1), values(1)]);
    let graph = |index: u64| {
        let value = constant("w", stored("fp16", &[2048], offsets[index as usize]));
        Graph::of(half(&[2048]), vec![value, step("mul", "x", vec![("y", "w".into())], "y", half(&[2048]))])
    };
    let mut model = graph(first).model();
    let mut functions = std::mem::take(&mut model.ml_program.as_mut().unwrap().functions);
    let other = graph(second).model().ml_program.unwrap().functions.remove("main").unwrap();
    functions.insert("other".to_owned(), other);
    model.ml_program = Some(spec::Program { functions });
    Subject::Package(model, weights)
}

/// A model that says how the shape of `x` is given.
fn shaped(graph: &Graph, kind: fn(&mut spec::ArrayFeatureType)) -> spec::Model {
    let mut array = spec::ArrayFeatureType { data_type: 65_552, ..Default::default() };
    kind(&mut array);
    let feature = spec::FeatureDescription {
        name: "x".to_owned(),
        r#type: Some(spec::FeatureType { multi_array_type: Some(array), state_type: None }),
    };
    let mut model = graph.model();
    model.description = Some(spec::ModelDescription { input: vec![feature], ..Default::default() });
    model
}

fn versioned(graph: Graph, version: i32) -> Subject {
    Subject::Package(spec::Model { specification_version: version, ..graph.model() }, graph.weights)
}

fn chain_of(count: usize) -> Graph {
    const NAMES: [&str; 13] = ["x", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let steps = (0..count).map(|i| step("relu", NAMES[i], vec![], NAMES[i + 1], half(&[1, 4, 8])));
    Graph { outputs: vec![NAMES[count].to_owned()], ..Graph::of(half(&[1, 4, 8]), steps.collect()) }
}

/// `count` convolutions, each between two transposes.
fn transposed(count: usize) -> Graph {
    let mut operations = Vec::new();
    for _ in 0..count {
        let turned = half(&[1, 8, 1, 4]);
        operations.push(step("transpose", "x", vec![], "before", turned.clone()));
        operations.push(step("conv", "before", vec![], "product", turned.clone()));
        operations.push(step("transpose", "product", vec![], "y", half(&[1, 4, 1, 8])));
    }
    Graph::of(half(&[1, 4, 1, 8]), operations)
}

/// A norm: squares of `x`, or of `x` divided by its largest magnitude.
fn norm(scaled: bool) -> Graph {
    let (all, row) = (half(&[1, 4, 8]), half(&[1, 4, 1]));
    let from = if scaled { "small" } else { "x" };
    Graph::of(
        all.clone(),
        vec![
            step("abs", "x", vec![], "size", all.clone()),
            step("reduce_max", "size", vec![], "largest", row.clone()),
            step("real_div", "x", vec![("y", "largest".into())], "small", all.clone()),
            step("mul", from, vec![("y", from.into())], "squares", all),
            step("reduce_mean", "squares", vec![], "y", row),
        ],
    )
}

/// The logarithm of `kind(x)`.
fn logged(kind: &str) -> Graph {
    let all = half(&[1, 4, 8]);
    Graph::of(all.clone(), vec![step(kind, "x", vec![], "a", all.clone()), step("log", "a", vec![], "y", all)])
}

/// A gather from a table of so many rows by 16-bit indices.
fn short_indices(rows: u64) -> Graph {
    let parameters = [("x", "t".into()), ("indices", "x".into()), ("axis", ints(&[], vec![0]).into())];
    let gather = op("gather", parameters, &[("y", half(&[1, 1]))]);
    Graph::of(tensor_type("uint16", &[1]), vec![constant("t", hollow("fp16", &[rows, 1])), gather])
}

/// A cache write whose begin is `begin`.
fn cache_write(begin: Bound, rows: u64) -> Graph {
    let mut graph = cache(&[1, 1, 512, 32]);
    graph.inputs.push(named("at", tensor_type("int32", &[4])));
    graph.inputs.push(named("rows", half(&[1, 1, rows, 32])));
    let parameters = [("x", "cache_read".into()), ("update", "rows".into()), ("begin", begin)];
    graph.operations.push(op("slice_update", parameters, &[("cache_new", half(&[1, 1, 512, 32]))]));
    graph.operations.push(op("write_state", [("input", "cache".into()), ("data", "cache_new".into())], &[]));
    graph
}

/// A cache to which `from` is appended.
fn shifted(from: &'static str) -> Graph {
    let mut graph = cache(&[1, 1, 8, 32]);
    let tail = half(&[1, 1, 7, 32]);
    graph.operations.push(step("slice_by_index", "cache_read", vec![], "tail", tail.clone()));
    graph.inputs.push(named("past", tail));
    graph.inputs.push(named("row", half(&[1, 1, 1, 32])));
    let mut concat = op("concat", [("values", from.into())], &[("all", half(&[1, 1, 8, 32]))]);
    let row = op("concat", [("values", "row".into())], &[]).inputs.remove("values").unwrap();
    concat.inputs.get_mut("values").unwrap().arguments.extend(row.arguments);
    graph.operations.push(concat);
    graph.operations.push(op("write_state", [("input", "cache".into()), ("data", "all".into())], &[]));
    graph
}

// Folders.

fn put_package(folder: &Path, name: &str, functions: usize) -> PathBuf {
    let mut model = one("relu", vec![], half(&[1, 4, 8])).model();
    let program = model.ml_program.as_mut().unwrap();
    let body = program.functions["main"].clone();
    program.functions = (0..functions).map(|index| (format!("f{index}"), body.clone())).collect();
    let package = folder.join(name);
    write(&package, &model.encode_to_vec(), &[]);
    package
}

/// A manifest that lists `a.mlpackage` as it is.
fn put_manifest(folder: &Path, gate: Value) {
    let package = folder.join("a.mlpackage");
    let size = package.join(anebake::mlpackage::MODEL).metadata().unwrap().len();
    let digest = "0".repeat(64);
    let file = json!({ "path": anebake::mlpackage::MODEL, "size": size, "sha256": digest });
    let manifest = json!({
        "schema": 1, "anebake": "0", "engine": "native", "recipe": {}, "tools": {}, "blocks": [],
        "model": { "source": "m", "config": {}, "files": [] },
        "head": {
            "path": "a.mlpackage", "sha256": digest, "size": size, "key": "k", "files": [file], "tensors": [],
        },
        "gate": gate, "timings": { "seconds": 0.0, "parts": [] },
    });
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
}

fn sound(folder: &Path) {
    put_package(folder, "a.mlpackage", 1);
    put_manifest(folder, json!({ "report": { "passed": true } }));
    std::fs::write(folder.join("chain.json"), "{}").unwrap();
}

fn tools(coremltools: &str, numpy: &str, python: &str, macos: &str) -> Subject {
    let of = |text: &str| Some(text.to_owned());
    Subject::Tools(Tools { coremltools: of(coremltools), numpy: of(numpy), python: of(python), macos: of(macos) })
}

/// Every rule, with what trips it and what does not.
fn cases() -> Vec<(&'static str, Subject, Subject)> {
    const INT8: &str = "weights.dtype=int8";
    let plain = || Subject::from(one("relu", vec![], half(&[1, 4, 8])));
    let recipe = Subject::Recipe;
    let softmax = |x: &[u64]| from(half(x), "softmax", vec![], half(x));
    let attention = |count: usize| {
        let mut graph = cache(&[1, 1, 64, 32]);
        for name in ["first", "second"].into_iter().take(count) {
            graph.operations.push(step("softmax", "x", vec![], name, half(&[1, 4, 8])));
        }
        graph
    };
    let convolution = |groups: i32| {
        from(half(&[1, 8, 1, 4]), "conv", vec![("groups", ints(&[], vec![groups]).into())], half(&[1, 8, 1, 4]))
    };
    let states = |count: usize| {
        let plain = one("relu", vec![], half(&[1, 4, 8]));
        ["k", "v", "conv"]
            .into_iter()
            .take(count)
            .fold(plain, |graph, name| with_state(graph, name, half(&[1, 1, 8, 32])))
    };
    let dead_integer = {
        let mut graph = one("relu", vec![], half(&[1, 4, 8]));
        graph.operations.push(step("cast", "x", vec![], "nobody", tensor_type("int32", &[1, 4, 8])));
        graph
    };
    let indices = |bound: Bound| {
        let gather = op("gather", [("x", "x".into()), ("indices", bound)], &[("y", half(&[1, 8]))]);
        Graph::of(half(&[4, 8]), vec![gather])
    };
    let looked_up = {
        let mut graph = indices("at".into());
        graph.inputs.push(named("at", tensor_type("int32", &[1])));
        graph
    };
    let added = |value: f32| one("add", vec![("y", halves(&[], &[value]).into())], half(&[1, 4, 8]));
    let sliced = |begin: &[i32]| one("slice_by_size", vec![("begin", list(begin).into())], half(&[1, 4, 4]));
    let gained = |kind: &str, parameter: &str| {
        compressed(
            "constexpr_blockwise_shift_scale",
            vec![("data", hollow("int8", &[8, 8]).into()), ("scale", hollow("fp16", &[8, 1]).into())],
            &[8, 8],
            step(kind, "x", vec![(parameter, "w".into())], "y", half(&[1, 4, 8])),
        )
    };
    // A weight that is transposed on its way to a product is one still.
    let turned = {
        let mut graph = gained("matmul", "y");
        graph.operations.insert(1, op("transpose", [("x", "w".into())], &[("t", half(&[8, 8]))]));
        graph.operations[2].inputs.extend(op("", [("y", "t".into())], &[]).inputs);
        graph
    };
    let nested = |kind: &str| {
        let mut graph = gained("linear", "weight");
        let inner = op(kind, [], &[("inner", half(&[8, 8]))]);
        graph.operations[0].inputs.extend(op("", [("data", "inner".into())], &[]).inputs);
        graph.operations.insert(0, inner);
        graph
    };
    let affine = |dtype: &str| {
        let parameters =
            vec![("quantized_data", hollow(dtype, &[8, 8]).into()), ("scale", hollow("fp16", &[8]).into())];
        compressed("constexpr_affine_dequantize", parameters, &[8, 8], linear())
    };
    let with_constant = |values: &[f32]| {
        let data = values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
        let (weights, offsets) = blob_file(&[(BlobDtype::Float16, values.len() as u64, data)]);
        let value = constant("w", stored("fp16", &[values.len() as u64], offsets[0]));
        let sum = step("add", "x", vec![("y", "w".into())], "y", half(&[8]));
        Graph { weights, ..Graph::of(half(&[8]), vec![value, sum]) }
    };
    let wide_weight = |dtype: &str, shape: &[u64]| {
        let product = step("linear", "x", vec![("weight", "w".into())], "y", half(&[1, 4, 8]));
        Graph::of(half(&[1, 4, 8]), vec![constant("w", hollow(dtype, shape)), product])
    };
    let sized = |length: u64| Subject::Large(one("relu", vec![], half(&[1, 4, 8])).model(), vec![0; 64], length);
    let many_halves = |count: u64| {
        let entry = Entry::new(BlobDtype::Float16, count, 64).unwrap();
        let mut file = blob::header(1).to_vec();
        file.extend(entry.metadata());
        let value = constant("w", stored("fp16", &[count], 64));
        let graph = Graph::of(half(&[8]), vec![value, step("add", "x", vec![("y", "w".into())], "y", half(&[8]))]);
        Subject::Large(graph.model(), file, entry.end())
    };
    let with_rubbish = |extra: usize| {
        let mut graph = with_constant(&[1.0; 8]);
        graph.weights.resize(graph.weights.len() + extra, 1);
        graph
    };
    let mixed = |second: spec::ValueType| {
        let mut graph = cache(&[1, 1, 8, 32]);
        graph.inputs.push(named("z", second));
        graph
    };
    let norms = one("layer_norm", vec![], half(&[1, 4, 8]));
    let listed = |array: &mut spec::ArrayFeatureType| array.enumerated_shapes = Some(spec::EnumeratedShapes {});
    let values: Vec<i8> = (0..32).map(|i| (i * 37 % 101) as i8 - 50).collect();
    let cosines: Vec<i8> = [vec![127; 8], vec![69, 90, 110, 120, 69, 90, 110, 120], vec![5; 16]].concat();
    let mut ramp = [0i8; 16];
    ramp[9] = 3;
    vec![
        ("recipe-float32-compute", recipe(&["package.compute_precision=float32"]), recipe(&[])),
        (
            "recipe-per-block",
            recipe(&[INT8, "weights.granularity=per_block", "weights.block_size=32"]),
            recipe(&[INT8]),
        ),
        ("recipe-quantized-placement", recipe(&[INT8]), recipe(&[])),
        ("recipe-unenforced-gate", recipe(&[INT8, "gate.enforce=false"]), recipe(&["gate.enforce=false"])),
        ("recipe-short-gate", recipe(&[INT8, "gate.steps=4"]), recipe(&[INT8, "gate.steps=5"])),
        ("recipe-loose-gate", recipe(&["gate.min_cosine=0.9"]), recipe(&["gate.min_cosine=0.99"])),
        ("recipe-cache-in-graph", recipe(&[]), recipe(&["package.kv=mask"])),
        (
            "recipe-short-query",
            recipe(&["package.kv=mask", "package.query=3"]),
            recipe(&["package.kv=mask", "package.query=4"]),
        ),
        ("recipe-wide-prefill", recipe(&["package.functions.prefill=128"]), recipe(&[])),
        ("recipe-long-context", recipe(&["package.context=16416"]), recipe(&["package.context=16384"])),
        ("recipe-odd-context", recipe(&["package.context=500"]), recipe(&["package.context=480"])),
        ("recipe-norm-pair", recipe(&["package.norm=layer_norm_pair"]), recipe(&[])),
        ("recipe-four-bits", recipe(&["weights.dtype=int4"]), recipe(&[INT8])),
        ("recipe-no-gain-on-m1", recipe(&[INT8]), recipe(&["weights.dtype=int4"])),
        ("graph-off-ane", one("topk", vec![], half(&[1, 4, 8])).into(), plain()),
        ("graph-integer-ops", one("cast", vec![], tensor_type("int32", &[1, 4, 8])).into(), dead_integer.into()),
        ("graph-float32-compute", one("relu", vec![], tensor_type("fp32", &[1, 4, 8])).into(), plain()),
        (
            "graph-float32-interface",
            from(tensor_type("fp32", &[1]), "cast", vec![], half(&[1])).into(),
            from(tensor_type("fp32", &[1]), "relu", vec![], tensor_type("fp32", &[1])).into(),
        ),
        ("graph-flexible-input", from(open_type("fp16"), "relu", vec![], half(&[1])).into(), plain()),
        ("graph-mixed-flexible-inputs", mixed(open_type("fp16")).into(), mixed(half(&[1, 4, 8])).into()),
        (
            "graph-norm-with-listed-shapes",
            shaped(&norms, listed).into(),
            shaped(&norms, |array| array.shape_range = Some(spec::ShapeRange {})).into(),
        ),
        ("graph-shape-at-run-time", one("relu", vec![], open_type("fp16")).into(), plain()),
        (
            "graph-many-axes",
            one("reshape", vec![], half(&[1, 1, 1, 1, 4, 8])).into(),
            one("reshape", vec![], half(&[1, 1, 1, 4, 8])).into(),
        ),
        (
            "graph-long-axis",
            one("reshape", vec![], half(&[1, 1, 1, 16385])).into(),
            one("reshape", vec![], half(&[1, 16385, 1, 1])).into(),
        ),
        (
            "graph-undivided-head",
            one("conv", vec![], half(&[1, 16385, 1, 1])).into(),
            one("conv", vec![], half(&[1, 16384, 1, 1])).into(),
        ),
        ("graph-short-query", softmax(&[1, 3, 8]).into(), softmax(&[1, 4, 8]).into()),
        ("graph-gather", looked_up.into(), indices(list(&[1]).into()).into()),
        ("graph-control-flow", one("cond", vec![], half(&[1, 4, 8])).into(), plain()),
        ("graph-depthwise-convolution", convolution(8).into(), convolution(1).into()),
        ("graph-transposed-convolutions", transposed(3).into(), transposed(2).into()),
        ("graph-few-ops", chain_of(9).into(), chain_of(10).into()),
        ("graph-old-target", versioned(chain_of(1), 8), versioned(chain_of(1), 9)),
        ("graph-new-target-int8", versioned(scaled(&[8, 1, 1, 1]), 10), versioned(chain_of(1), 10)),
        (
            "graph-ragged-rows",
            one("reshape", vec![], half(&[1, 64, 16, 1])).into(),
            one("reshape", vec![], half(&[1, 16, 2, 32])).into(),
        ),
        ("graph-infinite-mask", added(f32::NEG_INFINITY).into(), added(-65504.0).into()),
        (
            "graph-fused-attention",
            one("scaled_dot_product_attention", vec![], half(&[1, 4, 8])).into(),
            one("scaled_dot_product_attention", vec![], tensor_type("fp32", &[1, 4, 8])).into(),
        ),
        ("graph-unscaled-norm", norm(false).into(), norm(true).into()),
        ("graph-log-sum-exp", one("reduce_log_sum_exp", vec![], half(&[1, 4, 1])).into(), plain()),
        (
            "graph-softplus",
            one("softplus", vec![], half(&[1, 4, 8])).into(),
            one("softplus", vec![], tensor_type("fp32", &[1, 4, 8])).into(),
        ),
        ("graph-log-of-softmax", logged("softmax").into(), logged("relu").into()),
        ("graph-last-axis-slice", sliced(&[0, 0, 4]).into(), sliced(&[0, 2, 0]).into()),
        ("graph-quantized-activations", one("quantize", vec![], tensor_type("int8", &[1, 4, 8])).into(), plain()),
        (
            "graph-argmax",
            from(half(&[1, 1024]), "reduce_argmax", vec![], tensor_type("int32", &[1])).into(),
            from(half(&[1, 1023]), "reduce_argmax", vec![], tensor_type("int32", &[1])).into(),
        ),
        ("graph-small-probabilities", softmax(&[1, 1, 4096]).into(), softmax(&[1, 1, 4095]).into()),
        ("graph-index-width", short_indices(65_537).into(), short_indices(65_536).into()),
        ("graph-tiny-epsilon", added(1e-6).into(), added(1e-4).into()),
        ("state-flexible", with_state(chain_of(1), "cache", open_type("fp16")).into(), cache(&[1, 1, 8, 32]).into()),
        ("state-many", states(3).into(), states(2).into()),
        ("state-several-blocks", attention(2).into(), attention(1).into()),
        ("state-alignment", cache(&[1, 1, 8, 48]).into(), cache(&[1, 1, 8, 64]).into()),
        ("state-axes", cache(&[1, 1, 1, 8, 32]).into(), cache(&[1, 1, 8, 32]).into()),
        (
            "state-write-at-run-time",
            cache_write("at".into(), 1).into(),
            cache_write(list(&[0, 0, 3, 0]).into(), 1).into(),
        ),
        ("state-shifted", shifted("tail").into(), shifted("past").into()),
        ("state-wide-write", cache_write("at".into(), 128).into(), cache_write("at".into(), 64).into()),
        ("weights-per-block", scaled(&[8, 2, 1, 1]).into(), scaled(&[8, 1, 1, 1]).into()),
        ("weights-vanished", quantized(ramp, [1.0, 0.0]).into(), quantized(ramp, [0.0, 1.0]).into()),
        ("weights-zero-scale", quantized(ramp, [0.0, 1.0]).into(), quantized(ramp, [1.0, 1.0]).into()),
        ("weights-subnormal-scale", quantized(ramp, [1e-6, 1.0]).into(), quantized(ramp, [1e-4, 1.0]).into()),
        (
            "weights-not-finite",
            with_constant(&[1.0, f32::NAN, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).into(),
            with_constant(&[1.0, f32::NEG_INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).into(),
        ),
        ("weights-quantized-table", table("table", cosines).into(), table("embedding", values).into()),
        ("weights-quantized-gain", gained("mul", "y").into(), turned.into()),
        ("weights-palette", versioned(palette(&[1, 1, 64, 1]), 9), versioned(palette(&[64]), 8)),
        ("weights-palette-of-sixteen", palette(&[1, 1, 16, 1]).into(), palette(&[1, 1, 64, 1]).into()),
        ("weights-grouped-palette", palette(&[8, 2, 16, 1]).into(), palette(&[8, 1, 16, 1]).into()),
        ("weights-scaled-palette", nested("constexpr_lut_to_dense").into(), nested("constexpr_sparse_to_dense").into()),
        (
            "weights-joint-compression",
            compressed("constexpr_lut_to_sparse", vec![], &[8, 8], linear()).into(),
            compressed("constexpr_sparse_to_dense", vec![], &[8, 8], linear()).into(),
        ),
        ("weights-signed-affine", affine("int8").into(), affine("uint8").into()),
        ("weights-unshared", two_functions(0, 1), two_functions(1, 1)),
        ("weights-unused", with_rubbish(70_000).into(), with_rubbish(100).into()),
        ("weights-slow-stride", wide_weight("fp16", &[4096, 4096]).into(), wide_weight("fp16", &[4096, 3072]).into()),
        ("weights-float32", wide_weight("fp32", &[8, 8]).into(), wide_weight("fp16", &[8, 8]).into()),
        ("package-weight-file", sized((1 << 31) + 1), sized(1 << 31)),
        ("package-phone-size", sized((1 << 30) + 1), sized(1 << 30)),
        ("package-float16-size", many_halves(500_000_001), many_halves(500_000)),
        (
            "output-unreadable",
            Subject::Output(|folder| {
                sound(folder);
                std::fs::write(folder.join("a.mlpackage/Manifest.json"), "{}").unwrap();
            }),
            Subject::Output(sound),
        ),
        (
            "output-not-as-baked",
            Subject::Output(|folder| {
                sound(folder);
                let model = folder.join("a.mlpackage").join(anebake::mlpackage::MODEL);
                File::options().append(true).open(model).unwrap().write_all(&[0x52, 0]).unwrap();
            }),
            Subject::Output(sound),
        ),
        (
            "output-stray-package",
            Subject::Output(|folder| {
                sound(folder);
                put_package(folder, "b.mlpackage", 1);
            }),
            Subject::Output(sound),
        ),
        (
            "output-without-manifest",
            Subject::Output(|folder| drop(put_package(folder, "a.mlpackage", 1))),
            Subject::Output(sound),
        ),
        (
            "output-without-chain",
            Subject::Output(|folder| drop(put_package(folder, "a.mlpackage", 1))),
            Subject::Output(sound),
        ),
        (
            "output-unproven",
            Subject::Output(|folder| {
                sound(folder);
                put_manifest(folder, json!({ "report": { "passed": false } }));
            }),
            Subject::Output(sound),
        ),
        (
            "output-many-programs",
            Subject::Output(|folder| drop(put_package(folder, "a.mlpackage", 120))),
            Subject::Output(|folder| drop(put_package(folder, "a.mlpackage", 119))),
        ),
        (
            "output-many-calls",
            Subject::Output(|folder| {
                for index in 0..16 {
                    put_package(folder, &format!("{index}.mlpackage"), 1);
                }
            }),
            Subject::Output(sound),
        ),
        ("environment-coremltools", tools("9.1", "2.3.5", "3.11", "15.6"), tools("9.0", "2.3.5", "3.11", "15.6")),
        ("environment-numpy", tools("9.0", "2.4.0", "3.11", "15.6"), tools("9.0", "2.3.9", "3.11", "15.6")),
        ("environment-python", tools("9.0", "2.3.5", "3.13", "15.6"), tools("9.0", "2.3.5", "3.12", "15.6")),
        ("environment-macos", tools("9.0", "2.3.5", "3.11", "14.7.1"), tools("9.0", "2.3.5", "3.11", "15.0")),
        ("environment-compiler-service", tools("9.0", "2.3.5", "3.11", "27.0"), tools("9.0", "2.3.5", "3.11", "26.4")),
    ]
}

#[test]
fn every_rule_finds_what_it_is_for_and_passes_over_what_is_near() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (id, trips, passes) in cases() {
        seen.insert(id);
        let (found, not) = (trips.report(false), passes.report(false));
        match found.finding(id) {
            None => wrong.push(format!("{id} is not found: {:?}", ids(&found))),
            Some(finding) => {
                let said = |text: &str| !text.is_empty() && text == text.trim();
                let places = &finding.places;
                assert!(places.iter().all(|place| said(&place.at) && said(&place.says)), "{id}: {places:?}");
            }
        }
        if let Some(finding) = not.finding(id) {
            wrong.push(format!("{id} is found where nothing is: {:?}", finding.places));
        }
        // What the ANE is asked of may be worse, never better.
        let severity = |ane| trips.report(ane).finding(id).map(|finding| finding.severity);
        assert!(severity(true) >= severity(false), "{id}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all: BTreeSet<&str> = rules().map(|rule| rule.id).collect();
    assert_eq!(all.difference(&seen).collect::<Vec<_>>(), Vec::<&&str>::new(), "rules without a case");
    assert_eq!(seen.difference(&all).collect::<Vec<_>>(), Vec::<&&str>::new(), "cases without a rule");
}

fn ids(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|finding| finding.id).collect()
}

#[test]
fn rules_are_named_explained_and_cited() {
    assert!(rules().count() >= 40);
    let mut known = BTreeSet::new();
    for rule in rules() {
        let id = rule.id;
        assert!(known.insert(id), "{id} twice");
        assert!(id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{id}");
        for text in [rule.what, rule.why, rule.fix] {
            assert!(text.len() >= 9 && !text.ends_with('.') && !text.contains("  "), "{id}: {text}");
        }
        assert!(!rule.evidence.is_empty(), "{id}");
        for evidence in rule.evidence {
            let link = evidence.link;
            assert!(link.starts_with("https://") || link.starts_with("README.md#"), "{id}: {link}");
            assert!(evidence.date.starts_with("20") && matches!(evidence.date.len(), 4 | 7 | 10), "{id}: {link}");
        }
        assert!(rule.severity(true) >= rule.severity(false), "{id}");
    }
}

/// One report is a reason to look, and what is contradicted is none to refuse anything.
#[test]
fn only_what_is_sure_is_an_error() {
    use anebake::lint::Confidence::Contradicted;
    for rule in rules().filter(|rule| rule.severity(true) == Severity::Error) {
        let firm = rule.evidence.iter().any(|evidence| evidence.confidence.is_firm());
        let contradicted = rule.evidence.iter().any(|evidence| evidence.confidence == Contradicted);
        assert!(firm && !contradicted, "{}", rule.id);
    }
}

#[test]
fn the_estimate_counts_ops_and_says_why_of_the_others() {
    let (all, row) = (half(&[1, 4, 8]), tensor_type("int32", &[1, 4]));
    let graph = Graph::of(
        all.clone(),
        vec![
            constant("c", halves(&[], &[1.0])),
            step("relu", "x", vec![], "a", all.clone()),
            step("cast", "a", vec![("dtype", text("fp32").into())], "b", tensor_type("fp32", &[1, 4, 8])),
            step("cast", "b", vec![("dtype", text("fp16").into())], "d", all.clone()),
            step("reduce_argmax", "d", vec![], "e", row),
            step("add", "d", vec![("y", "c".into())], "y", all),
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("a.mlpackage");
    graph.write(&package);
    let report = run::package(&package, false).unwrap();
    let [program] = &report.programs[..] else { panic!("{:?}", report.programs) };
    let [estimate] = &program.functions[..] else { panic!("{program:?}") };
    assert_eq!((estimate.ops, estimate.free, estimate.integer), (5, 2, 0), "the index reaches no output");
    let off: BTreeMap<&str, &str> = estimate.off.iter().map(|off| (&*off.names[0], &*off.why)).collect();
    assert_eq!(off, BTreeMap::from([("b", "gives fp32"), ("d", "takes fp32"), ("e", "gives int32")]));
    assert!(estimate.sentence().starts_with("estimate: 2 of 5 ops have nothing that is known"));
}

#[test]
fn equal_programs_are_judged_once_and_name_their_packages() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.mlpackage", "b.mlpackage", "c.mlpackage"] {
        put_package(folder.path(), name, if name == "c.mlpackage" { 2 } else { 1 });
    }
    let report = run::output(folder.path(), false).unwrap();
    let packages: Vec<Vec<String>> = report.programs.iter().map(|program| program.packages.clone()).collect();
    assert_eq!(packages, [vec!["a.mlpackage", "b.mlpackage"], vec!["c.mlpackage"]]);
    let places = &report.finding("graph-few-ops").unwrap().places;
    let lines: Vec<String> = places.iter().map(anebake::lint::Place::line).collect();
    assert_eq!(lines, ["a.mlpackage and 1 more: f0: ops: 1", "c.mlpackage: f0: ops: 1", "c.mlpackage: f1: ops: 1"]);
}

#[test]
fn ranges_and_lists_of_shapes_are_read_from_the_description() {
    let graph = one("relu", vec![], half(&[1, 4, 8]));
    let range = Subject::from(shaped(&graph, |array| array.shape_range = Some(spec::ShapeRange {})));
    let listed = Subject::from(shaped(&graph, |array| array.enumerated_shapes = Some(spec::EnumeratedShapes {})));
    for (subject, says) in [(range, "a range of shapes"), (listed, "a list of shapes")] {
        assert_eq!(subject.report(false).finding("graph-flexible-input").unwrap().places[0].says, says);
    }
}

#[test]
fn four_bit_weights_under_a_zero_scale_are_read_nibble_by_nibble() {
    // Four-bit integers, two in a byte: only the second row is not zero.
    let (weights, offsets) = blob_file(&[(BlobDtype::Int4, 16, vec![0, 0, 0, 0, 0, 0x30, 0, 0])]);
    let compressed = op(
        "constexpr_blockwise_shift_scale",
        [("data", stored("int4", &[2, 8], offsets[0]).into()), ("scale", floats(&[2, 1], vec![0.0, 0.0]).into())],
        &[("w", half(&[2, 8]))],
    );
    let graph = Graph { weights, ..Graph::of(half(&[1, 4, 8]), vec![compressed, linear()]) };
    let report = Subject::from(graph).report(false);
    assert_eq!(report.finding("weights-vanished").unwrap().places[0].says, "1 of 2 scales");
}
