//! Packages written by hand: one function, a line for each op.

use std::collections::BTreeMap;
use std::path::Path;

use anebake::mlpackage::blob::{self, BlobDtype, Entry};
use anebake::mlpackage::{MANIFEST, MODEL, WEIGHTS, spec};
use prost::Message;

/// A package to be written.
#[derive(Clone, Default)]
pub struct Graph {
    pub inputs: Vec<spec::NamedValueType>,
    pub operations: Vec<spec::Operation>,
    pub outputs: Vec<String>,
    /// `weight.bin`; none is written where it is empty.
    pub weights: Vec<u8>,
}

/// What a parameter is bound to.
#[derive(Clone)]
pub enum Bound {
    Name(&'static str),
    Value(spec::Value),
}

impl From<&'static str> for Bound {
    fn from(name: &'static str) -> Self {
        Self::Name(name)
    }
}

impl From<spec::Value> for Bound {
    fn from(value: spec::Value) -> Self {
        Self::Value(value)
    }
}

/// MIL's number for a dtype's spelling.
pub fn code(dtype: &str) -> i32 {
    let known = |code: &i32| spec::TensorType { data_type: *code, ..Default::default() }.dtype() == Some(dtype);
    (0..64).find(known).unwrap()
}

/// A static type.
pub fn tensor_type(dtype: &str, shape: &[u64]) -> spec::ValueType {
    let size = |&size: &u64| spec::Dimension { constant: Some(spec::ConstantDimension { size }) };
    let dimensions = shape.iter().map(size).collect();
    let tensor = spec::TensorType { data_type: code(dtype), rank: shape.len() as i64, dimensions };
    spec::ValueType { tensor_type: Some(tensor), state_type: None }
}

/// A type whose shape is not known.
pub fn open_type(dtype: &str) -> spec::ValueType {
    let tensor =
        spec::TensorType { data_type: code(dtype), rank: 1, dimensions: vec![spec::Dimension { constant: None }] };
    spec::ValueType { tensor_type: Some(tensor), state_type: None }
}

pub fn named(name: &str, kind: spec::ValueType) -> spec::NamedValueType {
    spec::NamedValueType { name: name.to_owned(), r#type: Some(kind) }
}

fn immediate(kind: spec::ValueType, elements: spec::TensorElements) -> spec::Value {
    let tensor = Some(spec::TensorValue { value: Some(elements) });
    spec::Value { r#type: Some(kind), value: Some(spec::ValueKind::Immediate(spec::ImmediateValue { tensor })) }
}

pub fn floats(shape: &[u64], values: Vec<f32>) -> spec::Value {
    immediate(tensor_type("fp32", shape), spec::TensorElements::Floats(spec::RepeatedFloats { values }))
}

pub fn ints(shape: &[u64], values: Vec<i32>) -> spec::Value {
    immediate(tensor_type("int32", shape), spec::TensorElements::Ints(spec::RepeatedInts { values }))
}

/// A list of integers.
pub fn list(values: &[i32]) -> spec::Value {
    ints(&[values.len() as u64], values.to_vec())
}

pub fn bools(shape: &[u64], values: Vec<bool>) -> spec::Value {
    immediate(tensor_type("bool", shape), spec::TensorElements::Bools(spec::RepeatedBools { values }))
}

/// Narrow elements as little-endian or packed bytes.
pub fn bytes(dtype: &str, shape: &[u64], values: Vec<u8>) -> spec::Value {
    immediate(tensor_type(dtype, shape), spec::TensorElements::Bytes(spec::RepeatedBytes { values }))
}

pub fn text(value: &str) -> spec::Value {
    let strings = spec::RepeatedStrings { values: vec![value.to_owned()] };
    immediate(tensor_type("string", &[]), spec::TensorElements::Strings(strings))
}

/// A value in the blob file.
pub fn stored(dtype: &str, shape: &[u64], offset: u64) -> spec::Value {
    let file_name = "@model_path/weights/weight.bin".to_owned();
    let blob = spec::BlobFileValue { file_name, offset };
    spec::Value { r#type: Some(tensor_type(dtype, shape)), value: Some(spec::ValueKind::BlobFile(blob)) }
}

/// One op.
pub fn op<const N: usize>(
    kind: &str,
    parameters: [(&str, Bound); N],
    outputs: &[(&str, spec::ValueType)],
) -> spec::Operation {
    let binding = |bound: Bound| spec::Binding {
        binding: Some(match bound {
            Bound::Name(name) => spec::BindingKind::Name(name.to_owned()),
            Bound::Value(value) => spec::BindingKind::Value(value),
        }),
    };
    let mut inputs = BTreeMap::<String, spec::Argument>::new();
    for (name, bound) in parameters {
        inputs.entry(name.to_owned()).or_default().arguments.push(binding(bound));
    }
    spec::Operation {
        r#type: kind.to_owned(),
        inputs,
        outputs: outputs.iter().map(|(name, kind)| named(name, kind.clone())).collect(),
        ..Default::default()
    }
}

/// A const.
pub fn constant(name: &str, value: spec::Value) -> spec::Operation {
    let kind = value.r#type.clone().unwrap();
    let mut operation = op("const", [], &[(name, kind)]);
    operation.attributes.insert("val".to_owned(), value);
    operation
}

/// A blob file of one float16 entry with so many elements, at offset 64.
pub fn halves(count: u64) -> Vec<u8> {
    let entry = Entry::new(BlobDtype::Float16, count, 64).unwrap();
    let mut file = blob::header(1).to_vec();
    file.extend(entry.metadata());
    file.extend((0..count).flat_map(|i| half::f16::from_f32(i as f32 / 8.0).to_le_bytes()));
    file
}

impl Graph {
    /// One input `x`, one op, one output `y`.
    pub fn of(x: spec::ValueType, operations: Vec<spec::Operation>) -> Self {
        Self { inputs: vec![named("x", x)], operations, outputs: vec!["y".to_owned()], weights: Vec::new() }
    }

    /// The model.
    pub fn model(&self) -> spec::Model {
        let opset = "CoreML8".to_owned();
        let body = spec::Block { outputs: self.outputs.clone(), operations: self.operations.clone() };
        let function = spec::Function {
            inputs: self.inputs.clone(),
            opset: opset.clone(),
            block_specializations: BTreeMap::from([(opset, body)]),
        };
        let program = spec::Program { functions: BTreeMap::from([("main".to_owned(), function)]) };
        spec::Model { specification_version: 9, description: None, ml_program: Some(program) }
    }

    /// Writes it as a package.
    pub fn write(&self, package: &Path) {
        write(package, &self.model().encode_to_vec(), &self.weights);
    }
}

/// Writes a package of a model's bytes.
pub fn write(package: &Path, model: &[u8], weights: &[u8]) {
    let item = r#"{"itemInfoEntries": {"1": {"path": "com.apple.CoreML/model.mlmodel"}}, "rootModelIdentifier": "1"}"#;
    let path = package.join(WEIGHTS);
    if !package.exists() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    std::fs::write(package.join(MANIFEST), item).unwrap();
    std::fs::write(package.join(MODEL), model).unwrap();
    if weights.is_empty() {
        std::fs::remove_file(path).ok();
    } else {
        std::fs::write(path, weights).unwrap();
    }
}
