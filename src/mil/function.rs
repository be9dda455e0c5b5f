//! A function ready to run, and the loop that runs it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;

use super::call::Call;
use super::headroom::{Headroom, OpHeadroom};
use super::registry::Op;
use super::value::{Dtype, Value, float_tensor, int_tensor, ints, round_to_f16, with_floats};
use super::{Arithmetic, MOST_ALIVE};

/// Inputs by name: f32 or i64 tensors.
pub type Inputs = BTreeMap<String, Tensor>;
/// Outputs by name, in the same form, with their declared dtypes.
pub type Outputs = BTreeMap<String, (Tensor, Dtype)>;

/// The states of a package. They are updated in place, so they are not to be shared: there is no `Clone`.
#[derive(Debug, Default)]
pub struct States(BTreeMap<String, Tensor>);

impl States {
    /// Adds the zeros of a function's state.
    ///
    /// # Errors
    /// Functions disagree about its shape.
    pub(super) fn add(&mut self, state: &Declared) -> Result<()> {
        let shape = state.shape.as_ref().with_context(|| format!("state `{}` has no static shape", state.name))?;
        let zeros = Tensor::zeros(&shape[..], state.dtype.storage(), &candle_core::Device::Cpu)?;
        if let Some(other) = self.0.insert(state.name.clone(), zeros) {
            ensure!(other.dims() == shape, "functions disagree about the shape of state `{}`", state.name);
        }
        Ok(())
    }
}

/// A function, resolved.
#[derive(Debug)]
pub(super) struct Function {
    pub package: String,
    pub name: String,
    pub inputs: Vec<Declared>,
    pub states: Vec<Declared>,
    pub outputs: Vec<(String, Source)>,
    pub steps: Vec<Step>,
    /// Number of slots.
    pub slots: usize,
}

/// What the program declares for a value.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub name: String,
    pub dtype: Dtype,
    /// `None` where a size is not static.
    pub shape: Option<Vec<usize>>,
    pub slot: usize,
}

/// One op of a function.
pub(super) struct Step {
    pub kind: &'static str,
    pub action: Action,
    pub parameters: Vec<Parameter>,
    pub outputs: Vec<Declared>,
    /// Slots that no later op reads.
    pub frees: Vec<usize>,
    /// Whether a `slice_update` may change its input: it is a state that nothing else reads before it is replaced by
    /// the result. Whether the write of a state may keep the memory that it is given: such a result.
    pub in_place: bool,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.kind, self.outputs)
    }
}

/// What an op does.
#[derive(Clone, Copy)]
pub(super) enum Action {
    /// Computes outputs from inputs.
    Compute(Op),
    /// Gives the value of a state.
    Read { state: usize },
    /// Replaces the value of a state; gives it, where it has an output.
    Write { state: usize },
}

/// A parameter of an op.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub name: String,
    /// One value, or several for a variadic parameter.
    pub sources: Vec<Source>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A constant.
    Constant(Value),
    /// The result of an op, or an input.
    Slot(usize),
}

/// Values of a running function.
#[derive(Debug)]
pub(super) struct Slots(Vec<Option<Value>>);

impl Slots {
    /// Slots without values, for what is computed from constants alone.
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// The number of elements that a slot holds.
    fn count(&self, slot: usize) -> usize {
        self.0[slot].as_ref().map_or(0, |value| value.shape().iter().product())
    }

    /// The value of a source.
    pub(super) fn value<'a>(&'a self, source: &'a Source) -> Result<&'a Value> {
        match source {
            Source::Constant(value) => Ok(value),
            Source::Slot(slot) => {
                self.0.get(*slot).and_then(Option::as_ref).context("a value is used before it is computed")
            }
        }
    }
}

impl Declared {
    /// Checks a computed value and gives it the form of the declared dtype.
    fn conform(&self, tensor: Tensor, arithmetic: Arithmetic, moves: bool) -> Result<Tensor> {
        if let Some(shape) = &self.shape {
            ensure!(tensor.dims() == shape, "it gave shape {:?}, the program declares {shape:?}", tensor.dims());
        }
        let tensor =
            if tensor.dtype() == self.dtype.storage() { tensor } else { tensor.to_dtype(self.dtype.storage())? };
        match self.dtype {
            Dtype::F16 if arithmetic == Arithmetic::Fp16 && !moves => {
                let mut values = with_floats(&tensor, <[f32]>::to_vec)?;
                round_to_f16(&mut values);
                float_tensor(values, tensor.dims())
            }
            Dtype::Int { bits, .. } if bits < 64 && !moves => {
                let values = ints(&tensor)?.into_iter().map(|value| self.dtype.wrap(value)).collect();
                int_tensor(values, tensor.dims())
            }
            _ => Ok(tensor),
        }
    }
}

impl Function {
    /// Runs the function. States that the function writes are replaced.
    pub(super) fn run(
        &self,
        inputs: &Inputs,
        states: &mut States,
        arithmetic: Arithmetic,
        headroom: Option<&Headroom>,
    ) -> Result<Outputs> {
        let mut slots = Slots(vec![None; self.slots]);
        if let Some(unknown) = inputs.keys().find(|name| !self.inputs.iter().any(|input| input.name == **name)) {
            bail!("there is no input `{unknown}`");
        }
        for input in &self.inputs {
            let given = inputs.get(&input.name).with_context(|| format!("input `{}` is missing", input.name))?;
            if let Some(shape) = &input.shape {
                ensure!(given.dims() == shape, "input `{}` is {:?}, not {shape:?}", input.name, given.dims());
            }
            ensure!(
                (given.dtype() == candle_core::DType::F32) == input.dtype.is_float(),
                "input `{}` is {:?}",
                input.name,
                given.dtype()
            );
            let given = input.conform(given.clone(), arithmetic, false)?;
            slots.0[input.slot] = Some(Value::Tensor(given, input.dtype));
        }
        let mut alive = 0;
        for (index, step) in self.steps.iter().enumerate() {
            let place = || format!("function `{}`, op `{}` of type `{}`", self.name, step.label(), step.kind);
            self.step(index, step, &mut slots, states, arithmetic, headroom).with_context(place)?;
            alive += step.outputs.iter().map(|output| slots.count(output.slot)).sum::<usize>();
            ensure!(alive <= MOST_ALIVE, "{}: it and the values before it are too large together", place());
            for &slot in &step.frees {
                alive -= slots.count(slot).min(alive);
                slots.0[slot] = None;
            }
        }
        self.outputs
            .iter()
            .map(|(name, source)| {
                let value = slots.value(source)?;
                Ok((name.clone(), (value.tensor()?, value.dtype())))
            })
            .collect()
    }

    fn step(
        &self,
        index: usize,
        step: &Step,
        slots: &mut Slots,
        states: &mut States,
        arithmetic: Arithmetic,
        headroom: Option<&Headroom>,
    ) -> Result<()> {
        match step.action {
            Action::Compute(op) => {
                let call = Call {
                    parameters: &step.parameters,
                    slots,
                    outputs: &step.outputs,
                    arithmetic,
                    in_place: step.in_place,
                };
                let results = (op.evaluate)(&call)?;
                ensure!(
                    results.len() == step.outputs.len(),
                    "it gives {} values, the program declares {}",
                    results.len(),
                    step.outputs.len()
                );
                for (declared, result) in step.outputs.iter().zip(results) {
                    if let Some(headroom) = headroom.filter(|_| declared.dtype == Dtype::F16 && !op.moves) {
                        headroom.note(self.seen(index, step, declared, &result)?);
                    }
                    let result = declared.conform(result, arithmetic, op.moves)?;
                    slots.0[declared.slot] = Some(Value::Tensor(result, declared.dtype));
                }
            }
            Action::Read { state } => {
                let declared = &self.states[state];
                let value =
                    states.0.get(&declared.name).with_context(|| format!("there is no state `{}`", declared.name))?;
                self.set(step, slots, Value::Tensor(value.clone(), declared.dtype));
            }
            Action::Write { state } => {
                let declared = &self.states[state];
                let value = step.parameters.iter().find(|p| ["value", "data"].contains(&&*p.name));
                let source = value.and_then(|value| value.sources.first()).context("it writes no value")?;
                let value = declared.conform(slots.value(source)?.tensor()?, arithmetic, true)?;
                // A later call may change the state in place: no constant, input or other state may be that memory.
                let value = if step.in_place { value } else { value.copy()? };
                states.0.insert(declared.name.clone(), value.clone());
                self.set(step, slots, Value::Tensor(value, declared.dtype));
            }
        }
        Ok(())
    }

    fn set(&self, step: &Step, slots: &mut Slots, value: Value) {
        if let Some(output) = step.outputs.first() {
            slots.0[output.slot] = Some(value);
        }
    }

    fn seen(&self, index: usize, step: &Step, declared: &Declared, result: &Tensor) -> Result<OpHeadroom> {
        let largest = with_floats(result, |values| {
            let poisoned = values.iter().any(|value| value.is_nan());
            if poisoned { f32::NAN } else { values.iter().fold(0.0f32, |largest, value| largest.max(value.abs())) }
        })?;
        Ok(OpHeadroom {
            package: self.package.clone(),
            function: self.name.clone(),
            step: index,
            op: step.kind.to_owned(),
            output: declared.name.clone(),
            largest,
        })
    }
}

impl Step {
    /// What messages call it: its first output.
    pub(super) fn label(&self) -> &str {
        self.outputs.first().map_or("", |output| output.name.as_str())
    }
}
