//! From a package to functions that can run: names become slots, consts become values, ops are looked up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use half::f16;

use super::call::Call;
use super::constant::{Constant, Stored};
use super::function::{Action, Declared, Function, Inputs, Outputs, Parameter, Slots, Source, States, Step};
use super::headroom::Headroom;
use super::ops::constexpr;
use super::registry::registry;
use super::value::{Dtype, Value, bool_tensor, float_tensor, int_tensor};
use super::{Arithmetic, elements};
use crate::error::{Fault, OrFault};
use crate::mlpackage::blob::{BlobDtype, Entry};
use crate::mlpackage::{Package, inventory, spec};

/// Gives other values for a weight of a package, from its name and shape: row-major, as many as it has.
pub type Replace<'a> = &'a dyn Fn(&str, &[usize]) -> Result<Option<Vec<f16>>>;

/// A package, ready to run.
#[derive(Debug)]
pub struct Program {
    package: Arc<Package>,
    functions: BTreeMap<String, Function>,
    arithmetic: Arithmetic,
}

impl Program {
    /// Resolves every function of `package`. Weights that `replace` gives values for are those instead.
    ///
    /// # Errors
    /// An input fault that names the package: it is no ML Program, malformed, or has an op that the interpreter lacks.
    pub fn load(package: Package, arithmetic: Arithmetic, replace: Option<Replace<'_>>) -> Result<Self> {
        let package = Arc::new(package);
        let path = package.path().to_owned();
        Self::resolve(package, arithmetic, replace)
            .or_fault(|| Fault::input(format!("cannot run the package `{}`", path.display())))
    }

    fn resolve(package: Arc<Package>, arithmetic: Arithmetic, replace: Option<Replace<'_>>) -> Result<Self> {
        let program = package.model().ml_program.as_ref().context("the model is no ML Program")?;
        let mut blobs = HashMap::new();
        let functions = program
            .functions
            .iter()
            .map(|(name, function)| {
                let resolver = Resolver {
                    package: &package,
                    arithmetic,
                    replace,
                    blobs: &mut blobs,
                    names: HashMap::new(),
                    last_use: HashMap::new(),
                    slots: 0,
                };
                let function = resolver.function(name, function).with_context(|| format!("function `{name}`"))?;
                Ok((name.clone(), function))
            })
            .collect::<Result<_>>()?;
        Ok(Self { package, functions, arithmetic })
    }

    /// States before the first call, zeros: those of all functions, which share them by name.
    ///
    /// # Errors
    /// A state has no static shape, or functions disagree about it.
    pub fn new_states(&self) -> Result<States> {
        let mut states = States::default();
        for function in self.functions.values() {
            function.states.iter().try_for_each(|state| states.add(state))?;
        }
        Ok(states)
    }

    /// Runs a function.
    ///
    /// # Errors
    /// There is no such function, an input does not fit, or an op fails: the message names it and the package.
    pub fn run(
        &self,
        function: &str,
        inputs: &Inputs,
        states: &mut States,
        headroom: Option<&Headroom>,
    ) -> Result<Outputs> {
        let found = self.functions.get(function).with_context(|| {
            let known: Vec<&str> = self.functions.keys().map(String::as_str).collect();
            format!("there is no function `{function}`, but {}", known.join(", "))
        });
        let package = || format!("package `{}`", self.package.path().display());
        found.and_then(|found| found.run(inputs, states, self.arithmetic, headroom)).with_context(package)
    }

    /// Name, dtype and static shape of each input of a function.
    pub fn inputs(&self, function: &str) -> Vec<(String, Dtype, Option<Vec<usize>>)> {
        let inputs = self.functions.get(function).map(|function| &function.inputs[..]).unwrap_or_default();
        inputs.iter().map(|input| (input.name.clone(), input.dtype, input.shape.clone())).collect()
    }
}

/// Resolves one function.
struct Resolver<'a> {
    package: &'a Arc<Package>,
    arithmetic: Arithmetic,
    replace: Option<Replace<'a>>,
    /// Constants by where they lie: functions share them.
    blobs: &'a mut HashMap<(u64, Vec<usize>), Arc<Constant>>,
    names: HashMap<String, Named>,
    /// Step that reads a slot last.
    last_use: HashMap<usize, usize>,
    slots: usize,
}

/// What a name stands for.
#[derive(Clone)]
enum Named {
    Value(Source),
    State(usize),
}

impl Resolver<'_> {
    fn function(mut self, name: &str, function: &spec::Function) -> Result<Function> {
        let body = function.body().with_context(|| format!("it has no body for its opset `{}`", function.opset))?;
        let (mut inputs, mut states) = (Vec::new(), Vec::new());
        for input in &function.inputs {
            let declared = input.r#type.as_ref().with_context(|| format!("input `{}` has no type", input.name))?;
            let wrapped = declared.state_type.as_ref().and_then(|state| state.wrapped_type.as_deref());
            let is_state = wrapped.is_some();
            let declared = declare(&input.name, wrapped.unwrap_or(declared), if is_state { 0 } else { self.slots })
                .with_context(|| format!("input `{}`", input.name))?;
            let named = if is_state {
                states.push(declared);
                Named::State(states.len() - 1)
            } else {
                self.slots += 1;
                let slot = declared.slot;
                inputs.push(declared);
                Named::Value(Source::Slot(slot))
            };
            self.define(&input.name, named)?;
        }
        let mut steps = Vec::new();
        for op in &body.operations {
            let label = op.outputs.first().map_or("", |output| output.name.as_str());
            let step =
                self.operation(op, steps.len()).with_context(|| format!("op `{label}` of type `{}`", op.r#type))?;
            steps.extend(step);
        }
        let mut outputs = Vec::new();
        for output in &body.outputs {
            match self.names.get(output).with_context(|| format!("output `{output}` is never computed"))? {
                Named::Value(source) => outputs.push((output.clone(), source.clone())),
                Named::State(_) => bail!("output `{output}` is a state"),
            }
        }
        for (_, source) in &outputs {
            if let Source::Slot(slot) = source {
                self.last_use.remove(slot);
            }
        }
        for (slot, step) in self.last_use {
            steps[step].frees.push(slot);
        }
        update_in_place(&mut steps, &outputs);
        let package = self.package.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Function { package, name: name.to_owned(), inputs, states, outputs, steps, slots: self.slots })
    }

    fn define(&mut self, name: &str, named: Named) -> Result<()> {
        ensure!(!name.is_empty(), "a value has no name");
        ensure!(self.names.insert(name.to_owned(), named).is_none(), "the name `{name}` is given twice");
        Ok(())
    }

    /// A step, or nothing where the op's result is a constant.
    fn operation(&mut self, op: &spec::Operation, step: usize) -> Result<Option<Step>> {
        if op.r#type == "const" {
            let value = op.attributes.get("val").context("it has no value")?;
            let output = op.outputs.first().context("it has no output")?;
            let value = self.constant(value, &output.name)?;
            self.define(&output.name, Named::Value(Source::Constant(value)))?;
            return Ok(None);
        }
        ensure!(op.blocks.is_empty(), "the interpreter has no control flow");
        if op.r#type.ends_with("_state") {
            return self.state_access(op, step).map(Some);
        }
        let parameters = self.parameters(op, step)?;
        if let Some(evaluate) = constexpr::find(&op.r#type) {
            let output = op.outputs.first().context("it has no output")?;
            let declared = output.r#type.as_ref().context("its output has no type")?;
            let declared = declare(&output.name, declared, 0)?;
            let shape = declared.shape.clone().context("its shape is not static")?;
            let constant = match self.replacement(&output.name, &shape)? {
                Some(constant) => constant,
                None => {
                    let slots = Slots::none();
                    let outputs = std::slice::from_ref(&declared);
                    let call = Call {
                        parameters: &parameters,
                        slots: &slots,
                        outputs,
                        arithmetic: self.arithmetic,
                        in_place: false,
                    };
                    evaluate(&call)?
                }
            };
            ensure!(constant.shape() == shape, "it gives shape {:?}, the program declares {shape:?}", constant.shape());
            let value = Value::Constant(Arc::new(constant));
            self.define(&output.name, Named::Value(Source::Constant(value)))?;
            return Ok(None);
        }
        let (kind, found) = registry().get(&op.r#type).context("the interpreter lacks this op")?;
        let outputs = self.outputs(op)?;
        Ok(Some(Step { kind, action: Action::Compute(found), parameters, outputs, frees: Vec::new(), in_place: false }))
    }

    fn state_access(&mut self, op: &spec::Operation, step: usize) -> Result<Step> {
        let (kind, parameter) = match op.r#type.as_str() {
            "read_state" => ("read_state", "input"),
            "write_state" => ("write_state", "input"),
            "coreml_update_state" => ("coreml_update_state", "state"),
            _ => bail!("the interpreter lacks this op"),
        };
        let argument = op.inputs.get(parameter).with_context(|| format!("parameter `{parameter}` is missing"))?;
        let name = match argument.arguments.first().and_then(|binding| binding.binding.as_ref()) {
            Some(spec::BindingKind::Name(name)) => name,
            _ => bail!("parameter `{parameter}` names no state"),
        };
        let Some(Named::State(state)) = self.names.get(name).cloned() else { bail!("`{name}` is no state") };
        let action = if kind == "read_state" { Action::Read { state } } else { Action::Write { state } };
        let parameters = self.parameters_but(op, step, parameter)?;
        let outputs = self.outputs(op)?;
        Ok(Step { kind, action, parameters, outputs, frees: Vec::new(), in_place: false })
    }

    fn outputs(&mut self, op: &spec::Operation) -> Result<Vec<Declared>> {
        let mut outputs = Vec::new();
        for output in &op.outputs {
            let declared = output.r#type.as_ref().with_context(|| format!("output `{}` has no type", output.name))?;
            outputs.push(declare(&output.name, declared, self.slots)?);
            self.define(&output.name, Named::Value(Source::Slot(self.slots)))?;
            self.slots += 1;
        }
        Ok(outputs)
    }

    fn parameters(&mut self, op: &spec::Operation, step: usize) -> Result<Vec<Parameter>> {
        self.parameters_but(op, step, "")
    }

    /// Inputs and attributes of an op, as parameters; `name` is an attribute of every op and none.
    fn parameters_but(&mut self, op: &spec::Operation, step: usize, left_out: &str) -> Result<Vec<Parameter>> {
        let mut parameters = Vec::new();
        for (name, argument) in op.inputs.iter().filter(|(name, _)| *name != left_out) {
            let mut sources = Vec::with_capacity(argument.arguments.len());
            for binding in &argument.arguments {
                let source = match &binding.binding {
                    Some(spec::BindingKind::Name(value)) => match self.names.get(value) {
                        Some(Named::Value(source)) => source.clone(),
                        Some(Named::State(_)) => bail!("parameter `{name}` is the state `{value}`"),
                        None => bail!("parameter `{name}` is `{value}`, which nothing before it computes"),
                    },
                    Some(spec::BindingKind::Value(value)) => Source::Constant(self.constant(value, "")?),
                    None => bail!("parameter `{name}` is bound to nothing"),
                };
                if let Source::Slot(slot) = source {
                    self.last_use.insert(slot, step);
                }
                sources.push(source);
            }
            parameters.push(Parameter { name: name.clone(), sources });
        }
        for (name, value) in op.attributes.iter().filter(|(name, _)| *name != "name") {
            let sources = vec![Source::Constant(self.constant(value, "")?)];
            parameters.push(Parameter { name: name.clone(), sources });
        }
        Ok(parameters)
    }

    fn replacement(&self, name: &str, shape: &[usize]) -> Result<Option<Constant>> {
        let Some(replace) = self.replace.filter(|_| !name.is_empty()) else { return Ok(None) };
        let values = replace(name, shape)?;
        values.map(|values| Constant::new(Dtype::F16, shape.to_vec(), Stored::Halves(values))).transpose()
    }

    fn constant(&mut self, value: &spec::Value, name: &str) -> Result<Value> {
        let declared = value.r#type.as_ref().context("it has no type")?;
        let Declared { dtype, shape, .. } = declare(name, declared, 0)?;
        let shape = shape.context("its shape is not static")?;
        match value.value.as_ref().context("it has no value")? {
            spec::ValueKind::Immediate(value) => immediate(value, dtype, declared, shape),
            spec::ValueKind::BlobFile(blob) => {
                if dtype.is_float()
                    && let Some(constant) = self.replacement(name, &shape)?
                {
                    return Ok(Value::Constant(Arc::new(constant)));
                }
                let key = (blob.offset, shape.clone());
                if let Some(known) = self.blobs.get(&key)
                    && known.dtype() == dtype
                {
                    return Ok(Value::Constant(Arc::clone(known)));
                }
                let constant = Arc::new(self.blob(blob, dtype, declared, shape)?);
                self.blobs.insert(key, Arc::clone(&constant));
                Ok(Value::Constant(constant))
            }
        }
    }

    fn blob(
        &self,
        blob: &spec::BlobFileValue,
        dtype: Dtype,
        declared: &spec::ValueType,
        shape: Vec<usize>,
    ) -> Result<Constant> {
        let says = declared.tensor_type.as_ref().and_then(spec::TensorType::dtype).unwrap_or("nothing");
        // A bool lies there as uint8.
        let stored = BlobDtype::from_mil(if says == "bool" { "uint8" } else { says });
        let stored = stored.with_context(|| format!("a value of {says} cannot lie in a blob file"))?;
        let sizes: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
        let entry = inventory::entry(blob, stored, &sizes, self.package.weights())?;
        // The file's own count of unused bits is not what the shape says where it is damaged.
        let entry = Entry { padding_bits: entry.size * 8 - elements(&shape)? as u64 * stored.bits(), ..entry };
        Constant::new(dtype, shape, Stored::Blob { package: Arc::clone(self.package), entry })
    }
}

/// Marks each `slice_update` that may change its input: `x` is what a state held, read for this op alone; the result is
/// all that is ever written to the state; neither leaves the function as an output.
fn update_in_place(steps: &mut [Step], outputs: &[(String, Source)]) {
    let slot_of = |step: &Step| step.outputs.first().map(|output| output.slot);
    let reads = |step: &Step, slot: usize| {
        let sources = step.parameters.iter().flat_map(|parameter| &parameter.sources);
        sources.filter(|source| matches!(source, Source::Slot(read) if *read == slot)).count()
    };
    for update in 0..steps.len() {
        if steps[update].kind != "slice_update" {
            continue;
        }
        let x = steps[update].parameters.iter().find(|parameter| parameter.name == "x");
        let Some([Source::Slot(old)]) = x.map(|x| &x.sources[..]) else { continue };
        let (old, Some(new)) = (*old, slot_of(&steps[update])) else { continue };
        let Some(read) = steps[..update].iter().position(|step| slot_of(step) == Some(old)) else { continue };
        let Action::Read { state } = steps[read].action else { continue };
        let writes: Vec<usize> =
            (0..steps.len()).filter(|&i| matches!(steps[i].action, Action::Write { state: s } if s == state)).collect();
        let [write] = writes[..] else { continue };
        let read_before =
            (0..write).any(|i| i != read && matches!(steps[i].action, Action::Read { state: s } if s == state));
        let leaves =
            outputs.iter().any(|(_, source)| matches!(source, Source::Slot(slot) if [old, new].contains(slot)));
        steps[update].in_place = write > update
            && reads(&steps[write], new) == 1
            && steps.iter().map(|step| reads(step, old)).sum::<usize>() == 1
            && !read_before
            && !leaves;
        steps[write].in_place = steps[update].in_place;
    }
}

/// What a type declares.
fn declare(name: &str, declared: &spec::ValueType, slot: usize) -> Result<Declared> {
    let tensor = declared.tensor_type.as_ref().context("it is neither a tensor nor a scalar")?;
    let spelled = tensor.dtype().with_context(|| format!("its dtype {} is not defined", tensor.data_type))?;
    let dtype = Dtype::from_mil(spelled).with_context(|| format!("the interpreter has no {spelled}"))?;
    let shape = match tensor.shape() {
        Some(shape) => {
            let shape: Vec<usize> = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>()?;
            elements(&shape)?;
            Some(shape)
        }
        None => None,
    };
    Ok(Declared { name: name.to_owned(), dtype, shape, slot })
}

fn immediate(
    value: &spec::ImmediateValue,
    dtype: Dtype,
    declared: &spec::ValueType,
    shape: Vec<usize>,
) -> Result<Value> {
    use spec::TensorElements as E;
    let stored = value.tensor.as_ref().and_then(|tensor| tensor.value.as_ref()).context("it has no elements")?;
    let count = elements(&shape)?;
    if let E::Strings(texts) = stored {
        ensure!(dtype == Dtype::Text, "strings where {dtype:?} was declared");
        return match &texts.values[..] {
            [text] => Ok(Value::Text(text.as_str().into())),
            _ => bail!("the interpreter has no lists of strings"),
        };
    }
    let tensor = match (stored, dtype) {
        (E::Floats(list), Dtype::F32) => floats_of(list.values.clone(), count, &shape)?,
        (E::Doubles(list), Dtype::F32) => floats_of(list.values.iter().map(|&v| v as f32).collect(), count, &shape)?,
        (E::Ints(list), Dtype::Int { .. }) => ints_of(list.values.iter().map(|&v| v.into()).collect(), count, &shape)?,
        (E::LongInts(list), Dtype::Int { .. }) => ints_of(list.values.clone(), count, &shape)?,
        (E::Bools(list), Dtype::Bool) => {
            ensure!(list.values.len() == count, "{} elements for shape {shape:?}", list.values.len());
            bool_tensor(list.values.iter().map(|&v| u8::from(v)).collect(), &shape)?
        }
        (E::Bytes(list), _) => {
            let spelled = declared.tensor_type.as_ref().and_then(spec::TensorType::dtype).unwrap_or_default();
            return bytes(&list.values, spelled, dtype, shape);
        }
        _ => bail!("its elements are not of the declared dtype"),
    };
    Ok(Value::Constant(Arc::new(Constant::new(dtype, shape, Stored::Tensor(tensor))?)))
}

/// Elements narrower than 32 bits lie in the program as little-endian bytes, those of less than a byte packed.
fn bytes(stored: &[u8], spelled: &str, dtype: Dtype, shape: Vec<usize>) -> Result<Value> {
    let packed = BlobDtype::from_mil(spelled).with_context(|| format!("bytes of {spelled}"))?;
    let count = elements(&shape)?;
    ensure!(
        packed.bytes(count as u64) == Some(stored.len() as u64),
        "{} bytes for shape {shape:?} of {spelled}",
        stored.len()
    );
    let mut values = vec![0.0; count];
    super::constant::decode(packed, stored, 0, &mut values)?;
    let tensor = if dtype.is_float() {
        float_tensor(values, &shape)?
    } else {
        int_tensor(values.iter().map(|&v| v as i64).collect(), &shape)?
    };
    Ok(Value::Constant(Arc::new(Constant::new(dtype, shape, Stored::Tensor(tensor))?)))
}

fn floats_of(values: Vec<f32>, count: usize, shape: &[usize]) -> Result<Tensor> {
    ensure!(values.len() == count, "{} elements for shape {shape:?}", values.len());
    float_tensor(values, shape)
}

fn ints_of(values: Vec<i64>, count: usize, shape: &[usize]) -> Result<Tensor> {
    ensure!(values.len() == count, "{} elements for shape {shape:?}", values.len());
    int_tensor(values, shape)
}
