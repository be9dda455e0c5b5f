//! A package as the rules see it: ops with the values that they take and give, and which of them lie between a
//! function's inputs and its outputs.
//!
//! Nothing is checked: what is malformed is left out, so that a rule can speak of the rest.

use std::collections::{BTreeSet, HashMap, HashSet};

use anyhow::Result;

use crate::mlpackage::blob::{BlobDtype, Entry};
use crate::mlpackage::inventory::{self, BlobUse};
use crate::mlpackage::{Package, spec};

/// The program of a package.
#[derive(Debug)]
pub struct Graph<'a> {
    /// Version of the format.
    pub version: i32,
    /// The coremltools that wrote it, where it says so.
    pub coremltools: Option<&'a str>,
    /// Its functions, by name.
    pub functions: Vec<Function<'a>>,
    weights: &'a [u8],
}

/// A package with its program and its weights.
#[derive(Debug)]
pub struct PackageView<'a> {
    /// The package.
    pub package: &'a Package,
    /// Its program.
    pub graph: Graph<'a>,
    /// Values in its blob file.
    pub blobs: Vec<BlobUse>,
}

/// How the shape of an input is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// One shape.
    Static,
    /// A list of shapes.
    Enumerated,
    /// A range for each axis.
    Range,
}

/// An input or a state.
#[derive(Debug)]
pub struct Port<'a> {
    /// Name.
    pub name: &'a str,
    /// MIL's spelling of its dtype.
    pub dtype: &'a str,
    /// Its axes; none where the size is not known.
    pub shape: Vec<Option<u64>>,
    /// How its shape is given.
    pub shapes: Shapes,
}

/// A function.
#[derive(Debug)]
pub struct Function<'a> {
    /// Name.
    pub name: &'a str,
    /// Inputs that are no states.
    pub inputs: Vec<Port<'a>>,
    /// States.
    pub states: Vec<Port<'a>>,
    /// Names of its outputs.
    pub outputs: &'a [String],
    /// Every op but `const`, in order; those of nested blocks come before the op that holds them.
    pub ops: Vec<Op<'a>>,
    values: HashMap<&'a str, Value<'a>>,
    takers: HashMap<&'a str, Vec<(usize, &'a str)>>,
}

/// An op.
#[derive(Debug)]
pub struct Op<'a> {
    /// The op itself.
    pub spec: &'a spec::Operation,
    /// Whether it depends on an input or a state: the others are constants, known when the package is compiled.
    pub runtime: bool,
    /// Whether an output or what a state becomes depends on it.
    pub live: bool,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// Its type.
    pub kind: Option<&'a spec::TensorType>,
    /// Whether it depends on an input or a state.
    pub runtime: bool,
    /// Whether it is a state itself.
    pub state: bool,
    /// The op that gives it: its place in [`Function::ops`].
    pub by: Option<usize>,
    /// What a `const` holds.
    pub constant: Option<&'a spec::Value>,
}

impl<'a> PackageView<'a> {
    /// A package.
    ///
    /// # Errors
    /// It is no ML Program, or a value does not fit its blob file.
    pub fn new(package: &'a Package) -> Result<Self> {
        // What lacks a body is an error, not an empty function.
        package.functions()?;
        let graph = Graph::new(package.model(), package.weights());
        Ok(Self { package, graph, blobs: package.blobs()? })
    }

    /// Bytes of `weight.bin`.
    pub fn weight_bytes(&self) -> u64 {
        self.package.weights().len() as u64
    }
}

impl<'a> Graph<'a> {
    /// The program of a model whose blob file is `weights`.
    pub fn new(model: &'a spec::Model, weights: &'a [u8]) -> Self {
        let description = model.description.as_ref();
        let metadata = description.and_then(|d| d.metadata.as_ref());
        let coremltools = metadata.and_then(|m| m.user_defined.get("com.github.apple.coremltools.version"));
        let functions = model.ml_program.iter().flat_map(|program| &program.functions);
        let functions = functions
            .filter_map(|(name, function)| {
                let named = description.and_then(|d| d.functions.iter().find(|f| f.name == *name));
                let features = named.map_or_else(
                    || description.map(|d| &d.input[..]).unwrap_or_default(),
                    |function| &function.input[..],
                );
                Some(Function::new(name, function, function.body()?, features))
            })
            .collect();
        Self { version: model.specification_version, coremltools: coremltools.map(String::as_str), functions, weights }
    }

    /// Where a value lies in the blob file, if it does.
    pub fn entry(&self, value: &spec::Value) -> Option<Entry> {
        let kind = value.r#type.as_ref()?.tensor_type.as_ref()?;
        let spec::ValueKind::BlobFile(blob) = value.value.as_ref()? else { return None };
        inventory::entry(blob, BlobDtype::from_mil(kind.dtype()?)?, &kind.shape()?, self.weights).ok()
    }

    /// The bytes of a blob.
    pub fn bytes(&self, entry: &Entry) -> &'a [u8] {
        entry.data(self.weights)
    }

    /// The elements of a float value as f32, its first `most` ones; none where it is no float or malformed.
    pub fn floats(&self, value: &spec::Value, most: usize) -> Option<Vec<f32>> {
        use spec::TensorElements as E;
        let kind = value.r#type.as_ref()?.tensor_type.as_ref()?;
        match value.value.as_ref()? {
            spec::ValueKind::Immediate(immediate) => match immediate.tensor.as_ref()?.value.as_ref()? {
                E::Floats(list) => Some(list.values.iter().copied().take(most).collect()),
                E::Doubles(list) => Some(list.values.iter().map(|&v| v as f32).take(most).collect()),
                E::Bytes(list) if kind.dtype() == Some("fp16") => Some(halves(&list.values, most)),
                _ => None,
            },
            spec::ValueKind::BlobFile(_) => floats_of(&self.entry(value)?, self.weights, most),
        }
    }
}

/// The first `most` elements of a blob of floats.
pub fn floats_of(entry: &Entry, file: &[u8], most: usize) -> Option<Vec<f32>> {
    let bytes = entry.data(file);
    match entry.dtype {
        BlobDtype::Float16 => Some(halves(bytes, most)),
        BlobDtype::Float32 => {
            Some(bytes.as_chunks::<4>().0.iter().take(most).map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        _ => None,
    }
}

fn halves(bytes: &[u8], most: usize) -> Vec<f32> {
    bytes.as_chunks::<2>().0.iter().take(most).map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect()
}

impl<'a> Function<'a> {
    fn new(
        name: &'a str,
        function: &'a spec::Function,
        body: &'a spec::Block,
        features: &'a [spec::FeatureDescription],
    ) -> Self {
        let (mut inputs, mut states, mut values) = (Vec::new(), Vec::new(), HashMap::new());
        for input in &function.inputs {
            let kind = input.r#type.as_ref();
            let wrapped = kind.and_then(|kind| kind.state_type.as_ref());
            let held = match wrapped {
                Some(state) => state.wrapped_type.as_deref(),
                None => kind,
            };
            let tensor = held.and_then(|kind| kind.tensor_type.as_ref());
            let feature = features.iter().find(|feature| feature.name == input.name);
            let port = Port {
                name: &input.name,
                dtype: tensor.and_then(spec::TensorType::dtype).unwrap_or("unknown"),
                shape: tensor.map(sizes).unwrap_or_default(),
                shapes: shapes(tensor, feature),
            };
            let state = wrapped.is_some();
            values.insert(&*input.name, Value { kind: tensor, runtime: true, state, by: None, constant: None });
            if state { states.push(port) } else { inputs.push(port) }
        }
        let mut function =
            Self { name, inputs, states, outputs: &body.outputs, ops: Vec::new(), values, takers: HashMap::new() };
        function.add(body);
        for (index, op) in function.ops.iter().enumerate() {
            for (parameter, name) in names_of(op.spec) {
                function.takers.entry(name).or_default().push((index, parameter));
            }
        }
        function.mark_live();
        function
    }

    fn add(&mut self, block: &'a spec::Block) {
        for op in &block.operations {
            op.blocks.iter().for_each(|nested| self.add(nested));
            if op.r#type == "const" {
                if let (Some(output), Some(value)) = (op.outputs.first(), op.attributes.get("val")) {
                    let constant = Some(value);
                    let kind = tensor_of(output);
                    self.values.insert(&output.name, Value { kind, runtime: false, state: false, by: None, constant });
                }
                continue;
            }
            // A name that nothing gives is one of a nested block: it changes from turn to turn.
            let runtime = names_of(op).any(|(_, name)| self.value(name).is_none_or(|value| value.runtime))
                || op
                    .blocks
                    .iter()
                    .flat_map(|block| &block.outputs)
                    .any(|name| self.value(name).is_none_or(|v| v.runtime));
            let by = Some(self.ops.len());
            for output in &op.outputs {
                let kind = tensor_of(output);
                self.values.insert(&output.name, Value { kind, runtime, state: false, by, constant: None });
            }
            self.ops.push(Op { spec: op, runtime, live: false });
        }
    }

    fn mark_live(&mut self) {
        let mut needed: HashSet<&str> = self.outputs.iter().map(String::as_str).collect();
        for op in self.ops.iter_mut().rev() {
            let writes = matches!(op.kind(), "write_state" | "coreml_update_state");
            op.live = writes || op.spec.outputs.iter().any(|output| needed.contains(&*output.name));
            if op.live {
                needed.extend(names_of(op.spec).map(|(_, name)| name));
                needed.extend(op.spec.blocks.iter().flat_map(|block| &block.outputs).map(String::as_str));
            }
        }
    }

    /// What a name stands for.
    pub fn value(&self, name: &str) -> Option<&Value<'a>> {
        self.values.get(name)
    }

    /// Ops that run: those that depend on an input or a state.
    pub fn runtime_ops(&self) -> impl Iterator<Item = &Op<'a>> {
        self.ops.iter().filter(|op| op.runtime)
    }

    /// Ops between the inputs and states, and the outputs and what the states become.
    pub fn between(&self) -> impl Iterator<Item = &Op<'a>> {
        self.runtime_ops().filter(|op| op.live)
    }

    /// What a parameter of an op is bound to by name.
    pub fn argument(&self, op: &Op<'a>, parameter: &str) -> Option<(&'a str, &Value<'a>)> {
        let name = op.names(parameter).next()?;
        Some((name, self.value(name)?))
    }

    /// The op that gives a name.
    pub fn giver(&self, name: &str) -> Option<&Op<'a>> {
        self.ops.get(self.value(name)?.by?)
    }

    /// What a parameter or attribute of an op holds, where that is constant.
    pub fn constant(&self, op: &Op<'a>, parameter: &str) -> Option<&'a spec::Value> {
        let Some(argument) = op.spec.inputs.get(parameter) else { return op.spec.attributes.get(parameter) };
        match argument.arguments.first()?.binding.as_ref()? {
            spec::BindingKind::Value(value) => Some(value),
            spec::BindingKind::Name(name) => self.value(name)?.constant,
        }
    }

    /// The integers that a parameter of an op holds, where they are constant and in the program.
    pub fn integers(&self, op: &Op<'a>, parameter: &str) -> Option<Vec<i64>> {
        use spec::TensorElements as E;
        let spec::ValueKind::Immediate(immediate) = self.constant(op, parameter)?.value.as_ref()? else { return None };
        match immediate.tensor.as_ref()?.value.as_ref()? {
            E::Ints(list) => Some(list.values.iter().map(|&v| v.into()).collect()),
            E::LongInts(list) => Some(list.values.clone()),
            _ => None,
        }
    }

    /// Every value that an op takes at run time, with the parameter.
    pub fn taken(&self, op: &Op<'a>) -> impl Iterator<Item = (&'a str, &'a str, &Value<'a>)> {
        let names: Vec<_> = names_of(op.spec).collect();
        names
            .into_iter()
            .filter_map(|(parameter, name)| Some((parameter, name, self.value(name)?)))
            .filter(|(.., value)| value.runtime)
    }

    /// Ops that take a name, each with the parameter.
    pub fn takers(&self, name: &str) -> impl Iterator<Item = (&Op<'a>, &'a str)> {
        let takers = self.takers.get(name).into_iter().flatten();
        takers.filter_map(|&(op, parameter)| Some((self.ops.get(op)?, parameter)))
    }

    /// Whether an op of one of these types gives `name` or something that it is computed from, within `steps` ops.
    pub fn comes_from(&self, name: &'a str, kinds: &[&str], steps: usize) -> bool {
        self.behind(name, steps).any(|name| self.giver(name).is_some_and(|op| kinds.contains(&op.kind())))
    }

    /// The states that `name` is computed from, within `steps` ops.
    pub fn states_behind(&self, name: &'a str, steps: usize) -> BTreeSet<&'a str> {
        self.behind(name, steps).filter(|name| self.value(name).is_some_and(|value| value.state)).collect()
    }

    /// `name` and the names that it is computed from, within `steps` ops.
    fn behind(&self, name: &'a str, steps: usize) -> impl Iterator<Item = &'a str> {
        let (mut seen, mut last) = (HashSet::from([name]), vec![name]);
        for _ in 0..steps {
            let givers = last.iter().filter_map(|name| self.giver(name));
            let next: BTreeSet<&str> = givers.flat_map(|op| names_of(op.spec).map(|(_, name)| name)).collect();
            last = next.into_iter().filter(|name| seen.insert(name)).collect();
        }
        seen.into_iter()
    }

    /// Number of attentions: each has one softmax over scores, written out or fused.
    pub fn attentions(&self) -> usize {
        self.runtime_ops().filter(|op| matches!(op.kind(), "softmax" | "scaled_dot_product_attention")).count()
    }

    /// Tokens of one call: the second axis of the input of rank 3.
    pub fn tokens(&self) -> Option<u64> {
        let hidden = self.inputs.iter().find(|input| input.shape.len() == 3 && is_float(input.dtype));
        hidden.and_then(|input| input.shape[1])
    }
}

impl<'a> Op<'a> {
    /// Its type.
    pub fn kind(&self) -> &'a str {
        &self.spec.r#type
    }

    /// Name of its first output.
    pub fn name(&self) -> &'a str {
        self.spec.outputs.first().map_or("", |output| &output.name)
    }

    /// What messages call it.
    pub fn label(&self) -> String {
        format!("{} `{}`", self.kind(), self.name())
    }

    /// Names that a parameter is bound to.
    pub fn names(&self, parameter: &str) -> impl Iterator<Item = &'a str> {
        let arguments = self.spec.inputs.get(parameter).into_iter().flat_map(|argument| &argument.arguments);
        arguments.filter_map(name_of)
    }

    /// Types of its results.
    pub fn results(&self) -> impl Iterator<Item = &'a spec::TensorType> {
        self.spec.outputs.iter().filter_map(tensor_of)
    }
}

impl<'a> Value<'a> {
    /// MIL's spelling of its dtype.
    pub fn dtype(&self) -> &'a str {
        self.kind.and_then(spec::TensorType::dtype).unwrap_or("unknown")
    }

    /// Its axes; empty where it is no tensor.
    pub fn shape(&self) -> Vec<Option<u64>> {
        self.kind.map(sizes).unwrap_or_default()
    }
}

/// Whether a dtype is a whole number or a truth value.
pub fn is_integer(dtype: &str) -> bool {
    dtype.starts_with("int") || dtype.starts_with("uint") || dtype == "bool"
}

/// Whether a dtype is a float.
pub fn is_float(dtype: &str) -> bool {
    dtype.starts_with("fp") || dtype == "bf16"
}

/// The axes of a type; none where the size is not known.
pub fn sizes(kind: &spec::TensorType) -> Vec<Option<u64>> {
    kind.dimensions.iter().map(|d| d.constant.as_ref().map(|c| c.size)).collect()
}

fn tensor_of(output: &spec::NamedValueType) -> Option<&spec::TensorType> {
    output.r#type.as_ref()?.tensor_type.as_ref()
}

fn name_of(binding: &spec::Binding) -> Option<&str> {
    match binding.binding.as_ref()? {
        spec::BindingKind::Name(name) => Some(name),
        spec::BindingKind::Value(_) => None,
    }
}

/// Parameter and name of every argument that is bound by name.
fn names_of(op: &spec::Operation) -> impl Iterator<Item = (&str, &str)> {
    op.inputs.iter().flat_map(|(parameter, argument)| {
        argument.arguments.iter().filter_map(name_of).map(move |name| (&**parameter, name))
    })
}

fn shapes(kind: Option<&spec::TensorType>, feature: Option<&spec::FeatureDescription>) -> Shapes {
    let array = feature.and_then(|f| f.r#type.as_ref()).and_then(|t| t.multi_array_type.as_ref());
    match array {
        Some(array) if array.enumerated_shapes.is_some() => Shapes::Enumerated,
        Some(array) if array.shape_range.is_some() => Shapes::Range,
        _ if kind.is_some_and(|kind| sizes(kind).contains(&None)) => Shapes::Range,
        _ => Shapes::Static,
    }
}
