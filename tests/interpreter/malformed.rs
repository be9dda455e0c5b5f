//! Packages that no tool should have written: an input fault that says what is wrong, never a panic, and no memory for
//! what cannot be right.

use std::path::PathBuf;

use anebake::error::{Status, status};
use anebake::mil::{Arithmetic, op_types};
use anebake::mlpackage::{MANIFEST, MODEL, WEIGHTS, spec};
use anebake::runner::{Array, Arrays, ReferenceRunner, Runner};

use super::graph::{
    Bound, Graph, bools, bytes, constant, floats, halves, ints, list, named, op, open_type, stored, tensor_type, text,
};

/// Parameters by name.
type Parameters = Vec<(&'static str, Bound)>;

fn float() -> spec::ValueType {
    tensor_type("fp32", &[2, 3])
}

/// A package in a folder of its own.
fn written(graph: &Graph) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("odd.mlpackage");
    graph.write(&package);
    (folder, package)
}

/// Loads a package and runs `main` on zeros of shape [2, 3] for `x`, or of what it declares.
fn attempt(package: &std::path::Path, x: &[usize]) -> anyhow::Result<Arrays> {
    // What is malformed may be a finding or an error, but no panic.
    drop(anebake::lint::run::package(package, true));
    let model = ReferenceRunner::new(Arithmetic::Fp16).open(package)?;
    let mut state = model.new_state()?;
    let zeros = Array::float(x, vec![0.0; x.iter().product()]);
    model.predict("main", &Arrays::from([("x".to_owned(), zeros)]), &mut state)
}

/// Expects an error that says all of `parts`.
fn refuses_package(package: &std::path::Path, x: &[usize], parts: &[&str]) {
    let error = attempt(package, x).unwrap_err();
    let message = format!("{error:#}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    assert_eq!(status(&error), Status::Input, "{message}");
}

fn refuses(graph: &Graph, parts: &[&str]) {
    refuses_package(&written(graph).1, &[2, 3], parts);
}

/// `y = kind(x, …)` of declared shape [2, 3].
fn single<const N: usize>(kind: &str, parameters: [(&str, Bound); N]) -> Graph {
    Graph::of(float(), vec![op(kind, parameters, &[("y", float())])])
}

#[test]
fn a_valid_package_runs() {
    let (_folder, package) = written(&single("add", [("x", "x".into()), ("y", floats(&[], vec![1.5]).into())]));
    assert_eq!(attempt(&package, &[2, 3]).unwrap()["y"], Array::float(&[2, 3], vec![1.5; 6]));
}

#[test]
fn missing_and_broken_files_are_named() {
    let graph = single("relu", [("x", "x".into())]);
    let (_folder, package) = written(&graph);
    let broken = |file: &str, text: &[u8], parts: &[&str]| {
        let before = std::fs::read(package.join(file)).unwrap();
        std::fs::write(package.join(file), text).unwrap();
        refuses_package(&package, &[2, 3], parts);
        std::fs::write(package.join(file), before).unwrap();
    };
    broken(MODEL, b"no protobuf at all", &["model.mlmodel", "is no Core ML model"]);
    broken(MODEL, b"", &["the model is no ML Program"]);
    broken(MANIFEST, b"{", &["is no package manifest"]);
    broken(MANIFEST, b"{}", &["is no package manifest"]);
    broken(
        MANIFEST,
        br#"{"itemInfoEntries": {}, "rootModelIdentifier": "1"}"#,
        &["odd.mlpackage", "lists no item `1`"],
    );
    for path in ["../../odd.mlpackage/Data/com.apple.CoreML/model.mlmodel", "/dev/zero", ""] {
        let manifest = format!(r#"{{"itemInfoEntries": {{"1": {{"path": "{path}"}}}}, "rootModelIdentifier": "1"}}"#);
        broken(MANIFEST, manifest.as_bytes(), &["odd.mlpackage", "is no path inside the package"]);
    }
    let away = r#"{"itemInfoEntries": {"1": {"path": "away.mlmodel"}}, "rootModelIdentifier": "1"}"#;
    broken(MANIFEST, away.as_bytes(), &["away.mlmodel"]);
    for file in [MANIFEST, MODEL] {
        let before = std::fs::read(package.join(file)).unwrap();
        std::fs::remove_file(package.join(file)).unwrap();
        refuses_package(&package, &[2, 3], &["odd.mlpackage", file.rsplit('/').next().unwrap()]);
        std::fs::write(package.join(file), before).unwrap();
    }
    refuses_package(&package.with_file_name("absent.mlpackage"), &[2, 3], &["absent.mlpackage"]);
}

#[test]
fn a_deeply_nested_protobuf_is_refused() {
    // Blocks inside operations inside blocks, 5000 times.
    let mut nested = Vec::new();
    for _ in 0..5000 {
        for tag in [0x1a, 0x22] {
            let mut outer = vec![tag];
            prost::encoding::encode_varint(nested.len() as u64, &mut outer);
            outer.extend(&nested);
            nested = outer;
        }
    }
    let (_folder, package) = written(&single("relu", [("x", "x".into())]));
    let mut bytes = prost::Message::encode_to_vec(&spec::Model::default());
    for tag in [0x1au8, 0x12, 0x1a, 0x12, 0x12] {
        let mut outer = vec![tag];
        prost::encoding::encode_varint(nested.len() as u64, &mut outer);
        outer.extend(&nested);
        nested = outer;
    }
    // Field 502, `mlProgram`.
    bytes.extend([0xb2, 0x1f]);
    prost::encoding::encode_varint(nested.len() as u64, &mut bytes);
    bytes.extend(nested);
    std::fs::write(package.join(MODEL), bytes).unwrap();
    refuses_package(&package, &[2, 3], &["is no Core ML model"]);
}

#[test]
fn values_that_do_not_fit_the_blob_file_are_refused() {
    let with = |value: spec::Value| {
        let mut graph = single("add", [("x", "x".into()), ("y", "w".into())]);
        graph.operations.insert(0, constant("w", value));
        graph.weights = halves(12);
        graph
    };
    refuses(&with(stored("fp16", &[2, 6], 64 << 30)), &["`w`", "outside the file"]);
    refuses(&with(stored("fp16", &[2, 6], 65)), &["not a multiple"]);
    refuses(&with(stored("fp16", &[2, 6], 0)), &["no blob at offset 0"]);
    refuses(&with(stored("fp16", &[2, 6], u64::MAX - 63)), &["outside the file"]);
    refuses(&with(stored("int8", &[2, 6], 64)), &["the program says int8, `weight.bin` says fp16"]);
    refuses(&with(stored("fp16", &[2, 7], 64)), &["does not take the 24 bytes"]);
    refuses(&with(stored("fp16", &[1 << 40], 64)), &["`w`", "too large"]);
    refuses(&with(stored("fp16", &[1 << 40, 0], 64)), &["`w`", "too large"]);
    refuses(&with(stored("bf16", &[2, 6], 64)), &["has no bf16"]);
    let mut other_file = with(stored("fp16", &[2, 6], 64));
    if let Some(spec::ValueKind::BlobFile(blob)) =
        &mut other_file.operations[0].attributes.get_mut("val").unwrap().value
    {
        blob.file_name = "/etc/passwd".to_owned();
    }
    refuses(&other_file, &["`/etc/passwd`"]);
    let mut truncated = with(stored("fp16", &[2, 6], 64));
    truncated.weights.pop();
    refuses(&truncated, &["`w`", "beyond the file"]);
    let mut without = with(stored("fp16", &[2, 6], 64));
    without.weights.clear();
    refuses(&without, &["outside the file of 0 bytes"]);
    let (_folder, package) = written(&with(stored("fp16", &[2, 6], 64)));
    std::fs::File::options().write(true).open(package.join(WEIGHTS)).unwrap().set_len(0).unwrap();
    refuses_package(&package, &[2, 3], &["outside the file of 0 bytes"]);
}

#[test]
fn names_must_be_given_once_and_before_they_are_used() {
    refuses(&single("relu", [("x", "nowhere".into())]), &["`y` of type `relu`", "`nowhere`, which nothing before it"]);
    refuses(&single("relu", [("x", "y".into())]), &["parameter `x` is `y`, which nothing before it computes"]);
    let relu = |x, y| op("relu", [("x", Bound::Name(x))], &[(y, float())]);
    refuses(&Graph::of(float(), vec![relu("z", "y"), relu("y", "z")]), &["`z`, which nothing before it computes"]);
    refuses(&Graph::of(float(), vec![relu("x", "y"), relu("x", "y")]), &["the name `y` is given twice"]);
    refuses(&Graph::of(float(), vec![relu("x", "x")]), &["the name `x` is given twice"]);
    refuses(&Graph::of(float(), vec![relu("x", "")]), &["a value has no name"]);
    refuses(&Graph::of(float(), vec![relu("x", "z")]), &["output `y` is never computed"]);
    let mut twice = single("relu", [("x", "x".into())]);
    twice.inputs.push(named("x", float()));
    refuses(&twice, &["the name `x` is given twice"]);
    let state = spec::StateType { wrapped_type: Some(Box::new(float())) };
    let mut stateful = single("relu", [("x", "s".into())]);
    stateful.inputs.push(named("s", spec::ValueType { tensor_type: None, state_type: Some(Box::new(state)) }));
    refuses(&stateful, &["parameter `x` is the state `s`"]);
    stateful.operations.clear();
    stateful.outputs = vec!["s".to_owned()];
    refuses(&stateful, &["output `s` is a state"]);
    refuses(&single("read_state", [("input", "x".into())]), &["`x` is no state"]);
}

#[test]
fn an_op_that_the_interpreter_lacks_is_named_with_its_package() {
    for kind in ["lstm", "while_loop", "swap_state", "constexpr_lut_to_sparse", ""] {
        let graph = single(kind, [("x", "x".into())]);
        refuses(&graph, &["odd.mlpackage", &format!("`y` of type `{kind}`"), "the interpreter lacks this op"]);
    }
    let mut nested = single("relu", [("x", "x".into())]);
    nested.operations[0].blocks.push(spec::Block::default());
    refuses(&nested, &["no control flow"]);
}

#[test]
fn functions_inputs_and_types_must_be_there() {
    let graph = single("relu", [("x", "x".into())]);
    let (folder, package) = written(&graph);
    let mut model = graph.model();
    let program = model.ml_program.as_mut().unwrap();
    program.functions.get_mut("main").unwrap().opset = "other".to_owned();
    super::graph::write(&package, &prost::Message::encode_to_vec(&model), &[]);
    refuses_package(&package, &[2, 3], &["has no body for its opset `other`"]);
    graph.write(&package);
    refuses_package(&package, &[3, 2], &["input `x` is [3, 2], not [2, 3]"]);
    let model = ReferenceRunner::new(Arithmetic::F32).open(&package).unwrap();
    let mut state = model.new_state().unwrap();
    let x = || Array::float(&[2, 3], vec![0.0; 6]);
    for (function, inputs, part) in [
        ("other", vec![("x", x())], "no function `other`, but main"),
        ("main", vec![], "input `x` is missing"),
        ("main", vec![("x", x()), ("z", x())], "no input `z`"),
        ("main", vec![("x", Array::int(&[2, 3], vec![0; 6]))], "input `x` is I64"),
    ] {
        let inputs = inputs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let message = format!("{:#}", model.predict(function, &inputs, &mut state).unwrap_err());
        assert!(message.contains(part), "{message}");
    }
    drop(folder);
    let mut untyped = graph.clone();
    untyped.inputs[0].r#type = None;
    refuses(&untyped, &["input `x` has no type"]);
    let mut untyped = graph.clone();
    untyped.operations[0].outputs[0].r#type = None;
    refuses(&untyped, &["output `y` has no type"]);
    let mut unbound = graph.clone();
    unbound.operations[0].inputs.get_mut("x").unwrap().arguments[0].binding = None;
    refuses(&unbound, &["parameter `x` is bound to nothing"]);
    let mut several = graph;
    let argument = several.operations[0].inputs.get_mut("x").unwrap();
    argument.arguments.push(argument.arguments[0].clone());
    refuses(&several, &["parameter `x` is given 2 values"]);
}

#[test]
fn absurd_shapes_are_refused_before_anything_is_allocated() {
    let huge = 1 << 40;
    let mut graph = single("relu", [("x", "x".into())]);
    graph.inputs[0] = named("x", tensor_type("fp32", &[huge]));
    refuses(&graph, &["input `x`", "too large"]);
    let mut graph = single("relu", [("x", "x".into())]);
    graph.operations[0].outputs[0] = named("y", tensor_type("fp32", &[1 << 33, 1 << 33]));
    refuses(&graph, &["too large"]);
    let open = |kind: &str, parameters: Parameters| {
        let mut graph = single(kind, [("x", "x".into())]);
        graph.operations[0].outputs[0] = named("y", open_type("fp32"));
        for (name, bound) in parameters {
            let added = op(kind, [(name, bound)], &[]);
            graph.operations[0].inputs.extend(added.inputs);
        }
        graph
    };
    let big = i32::MAX;
    let cases: Vec<(&str, Parameters, &str)> = vec![
        ("tile", vec![("reps", list(&[big, big]).into())], "too large"),
        ("tile", vec![("reps", list(&[-1, 1]).into())], "parameter `reps`"),
        ("pad", vec![("pad", list(&[big, big]).into())], "too large"),
        ("pad", vec![("pad", list(&[-2, -2]).into())], "pad -2, -2"),
        ("fill", vec![("shape", list(&[big, big]).into())], "too large"),
        ("fill", vec![("shape", list(&[-4]).into())], "parameter `shape`"),
        ("reshape", vec![("shape", list(&[-7, 3]).into())], "shape [-7, 3]"),
        ("reshape", vec![("shape", list(&[big, big, -1]).into())], "too large"),
        (
            "range_1d",
            vec![
                ("start", ints(&[], vec![0]).into()),
                ("end", ints(&[], vec![big]).into()),
                ("step", ints(&[], vec![1]).into()),
            ],
            "too large",
        ),
        (
            "range_1d",
            vec![
                ("start", floats(&[], vec![0.0]).into()),
                ("end", floats(&[], vec![1.0]).into()),
                ("step", floats(&[], vec![0.0]).into()),
            ],
            "in steps of 0",
        ),
        (
            "one_hot",
            vec![("indices", list(&[0, 1]).into()), ("one_hot_vector_size", ints(&[], vec![big]).into())],
            "too large",
        ),
        (
            "one_hot",
            vec![("indices", list(&[0, 1]).into()), ("one_hot_vector_size", ints(&[], vec![-1]).into())],
            "parameter `one_hot_vector_size` is -1",
        ),
        ("split", vec![("axis", ints(&[], vec![0]).into()), ("num_splits", ints(&[], vec![big]).into())], "parts"),
        ("topk", vec![("k", ints(&[], vec![big]).into())], "k is"),
        ("slice_by_size", vec![("begin", list(&[0, 0]).into()), ("size", list(&[big, 1]).into())], "elements from"),
    ];
    for (kind, parameters, part) in cases {
        refuses(&open(kind, parameters), &[&format!("type `{kind}`"), part]);
    }
    // Two vectors that would be broadcast to 2^40 elements.
    let wide = |shape: &[u64]| tensor_type("fp32", shape);
    let column =
        op("reshape", [("x", "x".into()), ("shape", list(&[1 << 20, 1]).into())], &[("c", wide(&[1 << 20, 1]))]);
    let sum = op("add", [("x", "c".into()), ("y", "x".into())], &[("y", open_type("fp32"))]);
    let graph = Graph::of(wide(&[1 << 20]), vec![column, sum]);
    refuses_package(&written(&graph).1, &[1 << 20], &["too large"]);
}

#[test]
fn absurd_windows_are_refused() {
    let image = tensor_type("fp32", &[1, 1, 2, 3]);
    let big = i32::MAX;
    let windowed = |kind: &str, pad: [i32; 4], more: Parameters| {
        let mut operation = op(
            kind,
            [
                ("x", "x".into()),
                ("pad_type", text("custom").into()),
                ("pad", list(&pad).into()),
                ("weight", floats(&[1, 1, 1, 1], vec![1.0]).into()),
                ("kernel_sizes", list(&[1, 1]).into()),
            ],
            &[("y", open_type("fp32"))],
        );
        for (name, bound) in more {
            operation.inputs.extend(op(kind, [(name, bound)], &[]).inputs);
        }
        Graph::of(image.clone(), vec![operation])
    };
    let refused = |graph: &Graph, part: &str| refuses_package(&written(graph).1, &[1, 1, 2, 3], &[part]);
    for kind in ["conv", "max_pool", "avg_pool", "l2_pool"] {
        refused(&windowed(kind, [big, big, big, big], vec![]), "too");
        refused(&windowed(kind, [big, big, 0, 0], vec![]), "too");
        refused(&windowed(kind, [-1, 0, 0, 0], vec![]), "parameter `pad`");
        refused(&windowed(kind, [0; 4], vec![("strides", list(&[0, 1]).into())]), "stride 0");
        refused(&windowed(kind, [0; 4], vec![("strides", list(&[1]).into())]), "parameter `strides` has 1 values");
    }
    for kind in ["max_pool", "avg_pool", "l2_pool"] {
        let kernel = list(&[big, big]);
        refused(&windowed(kind, [big, big, big, big], vec![("kernel_sizes", kernel.into())]), "too many");
    }
    refused(&windowed("conv", [0; 4], vec![("groups", ints(&[], vec![0]).into())]), "groups");
    refused(&windowed("conv", [0; 4], vec![("dilations", list(&[0, 1]).into())]), "dilation 0");
    refused(
        &windowed("conv", [0; 4], vec![("weight", floats(&[1, 2, 1, 1], vec![1.0; 2]).into())]),
        "weight [1, 2, 1, 1]",
    );
}

#[test]
fn immediates_must_hold_what_they_declare() {
    let with = |value: spec::Value| single("add", [("x", "x".into()), ("y", value.into())]);
    refuses(&with(floats(&[4], vec![0.0; 3])), &["3 elements for shape [4]"]);
    refuses(&with(ints(&[4], vec![0; 3])), &["3 elements for shape [4]"]);
    refuses(&with(bools(&[4], vec![true; 3])), &["3 elements for shape [4]"]);
    refuses(&with(bytes("fp16", &[4], vec![0; 7])), &["7 bytes for shape [4]"]);
    refuses(&with(bytes("int4", &[4], vec![0; 4])), &["4 bytes for shape [4]"]);
    refuses(&with(floats(&[1 << 40], vec![0.0; 3])), &["too large"]);
    let mut other = floats(&[3], vec![0.0; 3]);
    other.r#type = Some(tensor_type("int32", &[3]));
    refuses(&with(other), &["not of the declared dtype"]);
    let mut unknown = floats(&[3], vec![0.0; 3]);
    unknown.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap().data_type = 99;
    refuses(&with(unknown), &["its dtype 99 is not defined"]);
    refuses(&with(text("a")), &["the string `a`"]);
    refuses(&with(spec::Value::default()), &["it has no type"]);
}

/// Without parameters every op is an error; so it is with a string for each, and with a value of rank 0 and of a dtype
/// that it does not take.
#[test]
fn every_op_refuses_missing_and_foreign_parameters() {
    let names: &[&str] = &[
        "x",
        "y",
        "values",
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
        "input",
        "ref_tensor",
        "shape",
        "end",
        "start",
        "step",
        "quantized_data",
        "source_val",
        "nonzero_data",
        "mask",
        "lut",
        "scale",
        "begin",
        "size",
        "axis",
        "axes",
        "reps",
        "pad",
        "kernel_sizes",
        "mean",
        "variance",
        "dtype",
        "alpha",
        "beta",
        "perm",
        "one_hot_vector_size",
        "equation",
        "output_dtype",
        "zero_point",
    ];
    for kind in op_types() {
        let outputs = [("y", open_type("fp32"))];
        refuses(&Graph::of(float(), vec![op(kind, [], &outputs)]), &["odd.mlpackage", kind]);
        let mut foreign = op(kind, [], &outputs);
        for name in names {
            foreign.inputs.extend(op(kind, [(name, text("nonsense").into())], &[]).inputs);
        }
        refuses(&Graph::of(float(), vec![foreign]), &["odd.mlpackage", kind]);
    }
}

/// A random op once found this one.
#[test]
fn integers_where_a_norm_takes_floats_are_refused() {
    let whole = || ints(&[3], vec![1, 2, 3]);
    for (mean, variance) in [(whole(), floats(&[3], vec![1.0; 3])), (floats(&[3], vec![1.0; 3]), whole())] {
        let graph = single("batch_norm", [("x", "x".into()), ("mean", mean.into()), ("variance", variance.into())]);
        refuses(&graph, &["is no float"]);
    }
}

#[test]
fn the_number_of_outputs_must_be_the_op_s() {
    let mut graph = single("relu", [("x", "x".into())]);
    graph.operations[0].outputs.push(named("z", float()));
    refuses(&graph, &["it gives 1 values, the program declares 2"]);
    graph.operations[0].outputs.clear();
    graph.outputs = vec!["x".to_owned()];
    refuses(&graph, &["it gives 1 values, the program declares 0"]);
    refuses(
        &Graph::of(float(), vec![op("relu", [("x", "x".into())], &[("y", tensor_type("fp32", &[3, 2]))])]),
        &["it gave shape [2, 3], the program declares [3, 2]"],
    );
}
