//! The calls that make packages.

use super::array::SourceArray;
use super::exception::attached;
use super::interpreter::Python;
use crate::error::{Fault, OrFault};
use anyhow::{Context, Result};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Name of the package that either engine leaves in its folder.
pub const PACKAGE: &str = "package.mlpackage";

/// Name of the folder of probe values beside a template.
pub const PROBES: &str = "probe";

/// What a template holds besides its files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateReply {
    /// Every tensor of the part, in the order of first use.
    pub tensors: Vec<TemplateTensor>,
    /// Names of the consts that lie in weight.bin and are no weights: RoPE tables. The same in every block.
    pub statics: Vec<String>,
}

/// One tensor of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateTensor {
    /// Its role, as `arch` names it.
    pub role: String,
    /// Name of the const; where there is a scheme, the graph has `<const>_quantized` with inputs `data` and `scale`.
    pub r#const: String,
    /// How it is quantized; none where it is stored in the compute dtype.
    pub scheme: Option<TemplateScheme>,
    /// Where its probe values lie.
    pub probe: TemplateProbe,
}

/// Where the probe values of a tensor lie: row-major and little-endian, float16 for float16 compute, else float32.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateProbe {
    /// Name of the file in [`PROBES`].
    pub file: String,
    /// Offset of the first value in bytes.
    pub offset: u64,
}

/// How a tensor of a template is quantized, linear-symmetric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateScheme {
    /// `int8` or `int4`.
    pub dtype: String,
    /// `per_channel` or `per_block`.
    pub granularity: String,
    /// Input channels of a block, for `per_block`.
    pub block_size: Option<usize>,
}

impl Python {
    /// Imports everything that a bake needs; says what was imported.
    ///
    /// # Errors
    /// An environment fault with Python's own words.
    pub fn self_check(&self) -> Result<String> {
        attached("importing coremltools", |py| {
            py.import("anebake.bake")?;
            py.import("coremltools.libmilstoragepython")?;
            let version: String = py.import("coremltools")?.getattr("__version__")?.extract()?;
            Ok(format!("coremltools {version} imports, its blob storage too"))
        })
    }

    /// Authors and converts one part filled with probe values, without any pass of coremltools. `folder` gets
    /// [`PACKAGE`], normalised, and [`PROBES`].
    ///
    /// # Errors
    /// A usage fault where a tensor or its scales would not lie in weight.bin (per_tensor, fewer than 10 elements) or a
    /// block size does not divide the columns; an environment fault where Python fails.
    pub fn template(&self, request: &Value, folder: &Path) -> Result<TemplateReply> {
        let reply: String = attached("making a template", |py| {
            py.import("anebake.bake")?.call_method1("template", (request.to_string(), folder))?.extract()
        })
        .map_err(|error| match error.downcast::<Fault>() {
            Ok(fault) if fault.status() == crate::error::Status::Usage => {
                fault.with_hint("pass `--engine coremltools`, which bakes every package by itself").into()
            }
            Ok(fault) => fault.into(),
            Err(error) => error,
        })?;
        serde_json::from_str(&reply).or_fault(|| Fault::environment("a template's reply is not what it should be"))
    }

    /// Bakes one part as a user of coremltools would: default passes, `linear_quantize_weights`,
    /// `save_multifunction`. `tensors` are the part's by role, in checkpoint shape; `folder` gets [`PACKAGE`],
    /// normalised. Takes seconds and several times the memory of the part.
    ///
    /// # Errors
    /// A usage fault where coremltools leaves a tensor unquantized that the request wants quantized; an environment
    /// fault where Python fails.
    pub fn convert(&self, request: &Value, tensors: &[(String, SourceArray<'_>)], folder: &Path) -> Result<()> {
        attached("baking a package with coremltools", |py| {
            let from_bytes = py.import("anebake.arrays")?.getattr("from_bytes")?;
            let arrays = PyDict::new(py);
            for (role, tensor) in tensors {
                let bytes = PyArray1::from_slice(py, tensor.bytes);
                arrays.set_item(role, from_bytes.call1((tensor.dtype_name(), tensor.shape.clone(), bytes))?)?;
            }
            py.import("anebake.bake")?.call_method1("convert", (request.to_string(), arrays, folder))?;
            Ok(())
        })
        .with_context(|| format!("cannot bake into `{}`", folder.display()))
    }

    /// The rungs of the ladder of probe packages, the lowest first, as JSON.
    ///
    /// # Errors
    /// An environment fault where Python fails.
    pub fn rungs(&self) -> Result<String> {
        attached("listing the ladder", |py| py.import("anebake.ladder")?.call_method0("listing")?.extract())
    }

    /// Bakes a rung into `folder`: `<id>.mlpackage`, normalised, and `<id>.npz`, the arrays of its calls. Gives the
    /// function of each call.
    ///
    /// # Errors
    /// An environment fault where Python fails.
    pub fn rung(&self, id: &str, folder: &Path) -> Result<Vec<String>> {
        let reply: String = attached("baking a probe package", |py| {
            py.import("anebake.ladder")?.call_method1("make", (id, folder))?.extract()
        })?;
        serde_json::from_str(&reply).or_fault(|| Fault::environment("a rung's reply is not what it should be"))
    }
}
