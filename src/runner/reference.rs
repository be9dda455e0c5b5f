//! The reference runner: any package, on any system, through the interpreter.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use half::f16;

use super::{Array, Arrays, Data, Model, Runner, State};
use crate::mil::{Arithmetic, Headroom, Program, States};
use crate::mlpackage::Package;
use crate::mlpackage::inventory::FunctionInfo;

/// Other values for weights: given the package folder, the name and the shape of a weight, its values, row-major, or
/// `None` to keep what the package holds.
pub type Replacements = Arc<dyn Fn(&Path, &str, &[usize]) -> Result<Option<Vec<f16>>> + Send + Sync>;

/// Interprets packages.
#[derive(Clone, Default)]
pub struct ReferenceRunner {
    arithmetic: Arithmetic,
    replacements: Option<Replacements>,
    headroom: Option<Arc<Headroom>>,
}

impl ReferenceRunner {
    /// A runner that computes with `arithmetic`.
    pub fn new(arithmetic: Arithmetic) -> Self {
        Self { arithmetic, ..Self::default() }
    }

    /// With other values for some weights.
    pub fn with_replacements(self, replacements: Replacements) -> Self {
        Self { replacements: Some(replacements), ..self }
    }

    /// With every result's magnitude noted in `headroom`.
    pub fn with_headroom(self, headroom: Arc<Headroom>) -> Self {
        Self { headroom: Some(headroom), ..self }
    }
}

impl Runner for ReferenceRunner {
    fn open(&self, package: &Path) -> Result<Box<dyn Model>> {
        let opened = Package::open(package)?;
        let functions = opened.functions()?;
        let program = match &self.replacements {
            Some(replacements) => {
                let replace = |name: &str, shape: &[usize]| replacements(package, name, shape);
                Program::load(opened, self.arithmetic, Some(&replace))?
            }
            None => Program::load(opened, self.arithmetic, None)?,
        };
        Ok(Box::new(ReferenceModel { program, functions, headroom: self.headroom.clone() }))
    }
}

struct ReferenceModel {
    program: Program,
    functions: Vec<FunctionInfo>,
    headroom: Option<Arc<Headroom>>,
}

impl Model for ReferenceModel {
    fn functions(&self) -> &[FunctionInfo] {
        &self.functions
    }

    fn new_state(&self) -> Result<State> {
        Ok(State::new(self.program.new_states()?))
    }

    fn predict(&self, function: &str, inputs: &Arrays, state: &mut State) -> Result<Arrays> {
        let states: &mut States = state.downcast_mut().context("the states are those of another runner")?;
        let inputs = inputs.iter().map(|(name, array)| Ok((name.clone(), tensor(array)?))).collect::<Result<_>>()?;
        let outputs = self.program.run(function, &inputs, states, self.headroom.as_deref())?;
        outputs
            .into_iter()
            .map(|(name, (tensor, dtype))| {
                let shape = tensor.dims().to_vec();
                let data = if dtype.is_float() {
                    Data::Float(tensor.flatten_all()?.to_vec1()?)
                } else {
                    let values = tensor.to_dtype(candle_core::DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
                    Data::Int(values.into_iter().map(|value| value as i32).collect())
                };
                Ok((name, Array { shape, data }))
            })
            .collect::<Result<BTreeMap<_, _>>>()
    }
}

fn tensor(array: &Array) -> Result<Tensor> {
    let count: usize = array.shape.iter().product();
    let held = match &array.data {
        Data::Int(values) => values.len(),
        Data::Float(_) | Data::Held(_) => array.floats()?.len(),
    };
    ensure!(held == count, "{held} values for shape {:?}", array.shape);
    Ok(match &array.data {
        Data::Float(_) | Data::Held(_) => Tensor::from_slice(array.floats()?, &array.shape[..], &Device::Cpu)?,
        Data::Int(values) => {
            let values: Vec<i64> = values.iter().map(|&value| value.into()).collect();
            Tensor::from_vec(values, &array.shape[..], &Device::Cpu)?
        }
    })
}
