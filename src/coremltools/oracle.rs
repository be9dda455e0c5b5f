//! Runs packages with numpy, through coremltools' own reader.

use super::array::Array;
use super::exception::attached;
use super::interpreter::Python;
use anyhow::{Context, Result};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::Path;

/// A loaded package: each op's result is rounded to the dtype that the program declares, sums and products are
/// accumulated in f32. Equal graphs of equal weights give equal bits.
#[derive(Debug)]
pub struct Oracle {
    oracle: Py<PyAny>,
}

/// The states of one function, by name.
#[derive(Debug)]
pub struct State {
    values: Py<PyDict>,
}

/// A numpy array as Python hands it over: dtype, shape, bytes.
type Parts = (String, Vec<usize>, Vec<u8>);

impl Python {
    /// Loads a package, its weights included.
    ///
    /// # Errors
    /// An environment fault where coremltools cannot read it.
    pub fn oracle(&self, package: &Path) -> Result<Oracle> {
        let oracle = attached("loading a package", |py| {
            Ok(py.import("anebake.oracle")?.call_method1("Oracle", (package,))?.unbind())
        })
        .with_context(|| format!("cannot load `{}`", package.display()))?;
        Ok(Oracle { oracle })
    }
}

impl Oracle {
    /// Names of the functions, sorted.
    ///
    /// # Errors
    /// An environment fault where Python fails.
    pub fn functions(&self) -> Result<Vec<String>> {
        attached("listing functions", |py| self.oracle.bind(py).call_method0("functions")?.extract())
    }

    /// States of `function`, zeros; functions of one package may share them.
    ///
    /// # Errors
    /// An environment fault where there is no such function.
    pub fn new_state(&self, function: &str) -> Result<State> {
        attached("making a state", |py| {
            let values = self.oracle.bind(py).call_method1("new_state", (function,))?;
            Ok(State { values: values.cast_into::<PyDict>()?.unbind() })
        })
    }

    /// Outputs of `function` by name, in the program's order; `state` is updated.
    ///
    /// # Errors
    /// An environment fault where names, dtypes or shapes of `inputs` are not the function's, or it is unknown.
    pub fn predict(
        &self,
        function: &str,
        inputs: &[(&str, &Array)],
        state: &mut State,
    ) -> Result<Vec<(String, Array)>> {
        let outputs: Vec<(String, Parts)> = attached("running a package", |py| {
            let arrays = py.import("anebake.arrays")?;
            let named = PyDict::new(py);
            for (name, array) in inputs {
                let bytes = PyArray1::from_slice(py, &array.bytes);
                let value = arrays.call_method1("from_bytes", (array.dtype.as_str(), array.shape.clone(), bytes))?;
                named.set_item(name, value)?;
            }
            let outputs = self.oracle.bind(py).call_method1("predict", (function, named, state.values.bind(py)))?;
            outputs
                .cast_into::<PyDict>()?
                .iter()
                .map(|(name, value)| Ok((name.extract()?, arrays.call_method1("to_bytes", (value,))?.extract()?)))
                .collect()
        })?;
        outputs
            .into_iter()
            .map(|(name, (dtype, shape, bytes))| Ok((name, Array::from_parts(&dtype, shape, bytes)?)))
            .collect()
    }
}

impl State {
    /// The value of the state `name`.
    ///
    /// # Errors
    /// An environment fault where there is no such state.
    pub fn get(&self, name: &str) -> Result<Array> {
        let (dtype, shape, bytes): Parts = attached("reading a state", |py| {
            let value = self.values.bind(py).as_any().get_item(name)?;
            py.import("anebake.arrays")?.call_method1("to_bytes", (value,))?.extract()
        })?;
        Array::from_parts(&dtype, shape, bytes)
    }
}
