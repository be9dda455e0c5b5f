//! The part of Core ML's protobuf format that packages of ML Programs use, as prost messages.
//!
//! Field numbers are those of `Model.proto`, `FeatureTypes.proto` and `MIL.proto` in coremltools 9.0
//! (`coremltools.proto`). Fields that are not listed are skipped when decoding, so a decoded message must not be
//! encoded again in place of the original bytes.

use std::collections::BTreeMap;

use prost::Message;

/// `CoreML.Specification.Model`.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    /// Version of the format; 9 for the macOS 15 opset.
    #[prost(int32, tag = "1")]
    pub specification_version: i32,
    /// Interface.
    #[prost(message, optional, tag = "2")]
    pub description: Option<ModelDescription>,
    /// The program, where the model is an ML Program.
    #[prost(message, optional, tag = "502")]
    pub ml_program: Option<Program>,
}

/// `ModelDescription`: either functions, or the one interface of a model without named functions.
#[derive(Clone, PartialEq, Message)]
pub struct ModelDescription {
    /// Inputs of a single-function model.
    #[prost(message, repeated, tag = "1")]
    pub input: Vec<FeatureDescription>,
    /// Outputs of a single-function model.
    #[prost(message, repeated, tag = "10")]
    pub output: Vec<FeatureDescription>,
    /// States of a single-function model.
    #[prost(message, repeated, tag = "13")]
    pub state: Vec<FeatureDescription>,
    /// Interfaces of a multi-function model.
    #[prost(message, repeated, tag = "20")]
    pub functions: Vec<FunctionDescription>,
    /// The function used when none is named.
    #[prost(string, tag = "21")]
    pub default_function_name: String,
    /// Free text and user-defined pairs.
    #[prost(message, optional, tag = "100")]
    pub metadata: Option<Metadata>,
}

/// `FunctionDescription`.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionDescription {
    /// Name of the function.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Inputs.
    #[prost(message, repeated, tag = "2")]
    pub input: Vec<FeatureDescription>,
    /// Outputs.
    #[prost(message, repeated, tag = "3")]
    pub output: Vec<FeatureDescription>,
    /// States.
    #[prost(message, repeated, tag = "6")]
    pub state: Vec<FeatureDescription>,
}

/// `FeatureDescription`.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureDescription {
    /// Name of the input, output or state.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "3")]
    pub r#type: Option<FeatureType>,
}

/// `FeatureType`; only arrays and states are decoded.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureType {
    /// An array.
    #[prost(message, optional, tag = "5")]
    pub multi_array_type: Option<ArrayFeatureType>,
    /// A state that wraps an array.
    #[prost(message, optional, tag = "8")]
    pub state_type: Option<StateFeatureType>,
}

/// `ArrayFeatureType`.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayFeatureType {
    /// Default shape.
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
    /// `ArrayDataType`.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// The shapes that it may have, where they are listed.
    #[prost(message, optional, tag = "21")]
    pub enumerated_shapes: Option<EnumeratedShapes>,
    /// The range that each axis may have, where it has one.
    #[prost(message, optional, tag = "31")]
    pub shape_range: Option<ShapeRange>,
}

/// `ArrayFeatureType.EnumeratedShapes`; the shapes are not decoded.
#[derive(Clone, PartialEq, Message)]
pub struct EnumeratedShapes {}

/// `ArrayFeatureType.ShapeRange`; the ranges are not decoded.
#[derive(Clone, PartialEq, Message)]
pub struct ShapeRange {}

impl ArrayFeatureType {
    /// The field's spelling of the dtype, or `None` for a number that the format does not define.
    pub fn dtype(&self) -> Option<&'static str> {
        Some(match self.data_type {
            65_552 => "fp16",
            65_568 => "fp32",
            65_600 => "fp64",
            131_104 => "int32",
            131_080 => "int8",
            _ => return None,
        })
    }
}

/// `StateFeatureType`.
#[derive(Clone, PartialEq, Message)]
pub struct StateFeatureType {
    /// The array that the state holds.
    #[prost(message, optional, tag = "1")]
    pub array_type: Option<ArrayFeatureType>,
}

/// `Metadata`.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// User-defined pairs; coremltools stores its version here.
    #[prost(btree_map = "string, string", tag = "100")]
    pub user_defined: BTreeMap<String, String>,
}

/// `MILSpec.Program`.
#[derive(Clone, PartialEq, Message)]
pub struct Program {
    /// Functions by name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub functions: BTreeMap<String, Function>,
}

/// `MILSpec.Function`.
#[derive(Clone, PartialEq, Message)]
pub struct Function {
    /// Inputs and states.
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    /// The opset, which names the block to use.
    #[prost(string, tag = "2")]
    pub opset: String,
    /// Bodies by opset.
    #[prost(btree_map = "string, message", tag = "3")]
    pub block_specializations: BTreeMap<String, Block>,
}

impl Function {
    /// The body for the function's own opset.
    pub fn body(&self) -> Option<&Block> {
        self.block_specializations.get(&self.opset)
    }
}

/// `MILSpec.Block`.
#[derive(Clone, PartialEq, Message)]
pub struct Block {
    /// Names of the results.
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    /// Operations in order.
    #[prost(message, repeated, tag = "3")]
    pub operations: Vec<Operation>,
}

/// `MILSpec.Operation`.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    /// Op type, for instance `conv`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Arguments by parameter name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub inputs: BTreeMap<String, Argument>,
    /// Results.
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<NamedValueType>,
    /// Nested blocks of control flow.
    #[prost(message, repeated, tag = "4")]
    pub blocks: Vec<Block>,
    /// Attributes; a `const` op keeps its value in `val`.
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Value>,
}

/// `MILSpec.Argument`.
#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    /// One binding, or several for a variadic parameter.
    #[prost(message, repeated, tag = "1")]
    pub arguments: Vec<Binding>,
}

/// `MILSpec.Argument.Binding`.
#[derive(Clone, PartialEq, Message)]
pub struct Binding {
    /// A name or a value.
    #[prost(oneof = "BindingKind", tags = "1, 2")]
    pub binding: Option<BindingKind>,
}

/// What an argument is bound to.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum BindingKind {
    /// The result of another op, or a function's input.
    #[prost(string, tag = "1")]
    Name(String),
    /// A value of its own.
    #[prost(message, tag = "2")]
    Value(Value),
}

/// `MILSpec.NamedValueType`.
#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
}

/// `MILSpec.ValueType`; lists, tuples and dictionaries are not decoded.
#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
    /// A state that wraps another type.
    #[prost(message, optional, boxed, tag = "5")]
    pub state_type: Option<Box<StateType>>,
}

/// `MILSpec.StateType`.
#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    /// The wrapped type.
    #[prost(message, optional, boxed, tag = "1")]
    pub wrapped_type: Option<Box<ValueType>>,
}

/// `MILSpec.TensorType`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// `DataType`.
    #[prost(int32, tag = "1")]
    pub data_type: i32,
    /// Rank.
    #[prost(int64, tag = "2")]
    pub rank: i64,
    /// Dimensions.
    #[prost(message, repeated, tag = "3")]
    pub dimensions: Vec<Dimension>,
}

impl TensorType {
    /// The static shape, or `None` where a dimension is unknown.
    pub fn shape(&self) -> Option<Vec<u64>> {
        self.dimensions.iter().map(|d| d.constant.as_ref().map(|c| c.size)).collect()
    }

    /// MIL's spelling of the dtype, or `None` for a number that the format does not define.
    pub fn dtype(&self) -> Option<&'static str> {
        Some(match self.data_type {
            1 => "bool",
            2 => "string",
            10 => "fp16",
            11 => "fp32",
            12 => "fp64",
            13 => "bf16",
            21 => "int8",
            22 => "int16",
            23 => "int32",
            24 => "int64",
            25 => "int4",
            31 => "uint8",
            32 => "uint16",
            33 => "uint32",
            34 => "uint64",
            35 => "uint4",
            36 => "uint2",
            37 => "uint1",
            38 => "uint6",
            39 => "uint3",
            40 => "fp8e4m3fn",
            41 => "fp8e5m2",
            _ => return None,
        })
    }
}

/// `MILSpec.Dimension`.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// A known size.
    #[prost(message, optional, tag = "1")]
    pub constant: Option<ConstantDimension>,
}

/// `MILSpec.Dimension.ConstantDimension`.
#[derive(Clone, PartialEq, Message)]
pub struct ConstantDimension {
    /// The size.
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// `MILSpec.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
    /// Where the value is.
    #[prost(oneof = "ValueKind", tags = "3, 5")]
    pub value: Option<ValueKind>,
}

/// Where a value is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ValueKind {
    /// In the program.
    #[prost(message, tag = "3")]
    Immediate(ImmediateValue),
    /// In a blob file.
    #[prost(message, tag = "5")]
    BlobFile(BlobFileValue),
}

/// `MILSpec.Value.BlobFileValue`.
#[derive(Clone, PartialEq, Message)]
pub struct BlobFileValue {
    /// Path as the program spells it: `@model_path/weights/weight.bin`.
    #[prost(string, tag = "1")]
    pub file_name: String,
    /// Byte offset of the blob's metadata (not of its data).
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// `MILSpec.Value.ImmediateValue`; only tensors are decoded.
#[derive(Clone, PartialEq, Message)]
pub struct ImmediateValue {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor: Option<TensorValue>,
}

/// `MILSpec.TensorValue`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorValue {
    /// The elements, by storage class.
    #[prost(oneof = "TensorElements", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub value: Option<TensorElements>,
}

/// Elements of an immediate tensor.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum TensorElements {
    /// fp32.
    #[prost(message, tag = "1")]
    Floats(RepeatedFloats),
    /// int32.
    #[prost(message, tag = "2")]
    Ints(RepeatedInts),
    /// bool.
    #[prost(message, tag = "3")]
    Bools(RepeatedBools),
    /// string.
    #[prost(message, tag = "4")]
    Strings(RepeatedStrings),
    /// int64.
    #[prost(message, tag = "5")]
    LongInts(RepeatedLongInts),
    /// fp64.
    #[prost(message, tag = "6")]
    Doubles(RepeatedDoubles),
    /// Everything narrower, fp16 included, little-endian.
    #[prost(message, tag = "7")]
    Bytes(RepeatedBytes),
}

/// `RepeatedFloats`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedFloats {
    /// Elements.
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

/// `RepeatedInts`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedInts {
    /// Elements.
    #[prost(int32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// `RepeatedBools`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedBools {
    /// Elements.
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}

/// `RepeatedStrings`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedStrings {
    /// Elements.
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

/// `RepeatedLongInts`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedLongInts {
    /// Elements.
    #[prost(int64, repeated, tag = "1")]
    pub values: Vec<i64>,
}

/// `RepeatedDoubles`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedDoubles {
    /// Elements.
    #[prost(double, repeated, tag = "1")]
    pub values: Vec<f64>,
}

/// `RepeatedBytes`.
#[derive(Clone, PartialEq, Message)]
pub struct RepeatedBytes {
    /// Elements, little-endian.
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
}
