//! What a program says about itself: functions, op counts, and every value that lies in the blob file.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::blob::{BlobDtype, Entry};
use super::{MODEL_PATH_PREFIX, spec};

/// An input, output or state of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Name.
    pub name: String,
    /// Dtype as the interface spells it: fp16, fp32, fp64, int32, int8; `other` for what is no array.
    pub dtype: String,
    /// Static shape.
    pub shape: Vec<i64>,
}

/// A function of a package.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionInfo {
    /// Name; `main` for a package without named functions.
    pub name: String,
    /// Whether it is the one used when none is named.
    pub default: bool,
    /// Opset of its body.
    pub opset: String,
    /// Inputs.
    pub inputs: Vec<Feature>,
    /// States.
    pub states: Vec<Feature>,
    /// Outputs.
    pub outputs: Vec<Feature>,
    /// Number of ops by type, `const` excepted.
    pub ops: BTreeMap<String, usize>,
}

/// One value of a program that lies in the blob file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobUse {
    /// Function that uses it.
    pub function: String,
    /// Type of the op that holds it: `const` or one of the `constexpr_` ops.
    pub op: String,
    /// Name of the op's first output: what other ops call the value.
    pub output: String,
    /// Parameter or attribute of the op: `val`, `data`, `scale`, …
    pub slot: String,
    /// Shape that the program declares.
    pub shape: Vec<u64>,
    /// Where it lies.
    pub entry: Entry,
}

/// Interface and op counts of every function of a model.
///
/// # Errors
/// The model is no ML Program, or a function lacks a body.
pub fn functions(model: &spec::Model) -> Result<Vec<FunctionInfo>> {
    let program = program(model)?;
    let empty = spec::ModelDescription::default();
    let description = model.description.as_ref().unwrap_or(&empty);
    program
        .functions
        .iter()
        .map(|(name, function)| {
            let body = body(name, function)?;
            let named = description.functions.iter().find(|f| f.name == *name);
            let (inputs, states, outputs) = match named {
                Some(f) => (&f.input, &f.state, &f.output),
                None => (&description.input, &description.state, &description.output),
            };
            let default = match description.default_function_name.as_str() {
                "" => name == "main",
                default => default == name,
            };
            let mut ops = BTreeMap::new();
            count(body, &mut ops);
            Ok(FunctionInfo {
                name: name.clone(),
                default,
                opset: function.opset.clone(),
                inputs: inputs.iter().map(feature).collect(),
                states: states.iter().map(feature).collect(),
                outputs: outputs.iter().map(feature).collect(),
                ops,
            })
        })
        .collect()
}

/// Every use of the blob file, function by function in program order.
///
/// # Errors
/// The model is no ML Program; a value names another file; its offset, dtype or size does not fit `file`.
pub fn blobs(model: &spec::Model, file: &[u8]) -> Result<Vec<BlobUse>> {
    let mut uses = Vec::new();
    for (name, function) in &program(model)?.functions {
        walk(name, body(name, function)?, file, &mut uses)?;
    }
    Ok(uses)
}

fn program(model: &spec::Model) -> Result<&spec::Program> {
    model.ml_program.as_ref().context("the model is no ML Program")
}

fn body<'a>(name: &str, function: &'a spec::Function) -> Result<&'a spec::Block> {
    function.body().with_context(|| format!("function `{name}` has no body for its opset `{}`", function.opset))
}

fn count(block: &spec::Block, ops: &mut BTreeMap<String, usize>) {
    for op in &block.operations {
        if op.r#type != "const" {
            *ops.entry(op.r#type.clone()).or_default() += 1;
        }
        op.blocks.iter().for_each(|nested| count(nested, ops));
    }
}

fn feature(description: &spec::FeatureDescription) -> Feature {
    let kind = description.r#type.as_ref();
    let array = kind.and_then(|t| {
        t.multi_array_type.as_ref().or_else(|| t.state_type.as_ref().and_then(|state| state.array_type.as_ref()))
    });
    Feature {
        name: description.name.clone(),
        dtype: array.and_then(spec::ArrayFeatureType::dtype).unwrap_or("other").to_owned(),
        shape: array.map(|a| a.shape.clone()).unwrap_or_default(),
    }
}

fn walk(function: &str, block: &spec::Block, file: &[u8], uses: &mut Vec<BlobUse>) -> Result<()> {
    for op in &block.operations {
        let output = op.outputs.first().map_or("", |output| output.name.as_str());
        let arguments = op.inputs.iter().flat_map(|(slot, argument)| {
            argument.arguments.iter().filter_map(move |binding| match &binding.binding {
                Some(spec::BindingKind::Value(value)) => Some((slot, value)),
                _ => None,
            })
        });
        let start = uses.len();
        for (slot, value) in arguments.chain(op.attributes.iter()) {
            let Some(spec::ValueKind::BlobFile(blob)) = &value.value else { continue };
            let (entry, shape) =
                locate(value, blob, file).with_context(|| format!("function `{function}`, `{output}`, `{slot}`"))?;
            uses.push(BlobUse {
                function: function.to_owned(),
                op: op.r#type.clone(),
                output: output.to_owned(),
                slot: slot.clone(),
                shape,
                entry,
            });
        }
        uses[start..].sort_by_key(|u| u.entry.offset);
        for nested in &op.blocks {
            walk(function, nested, file, uses)?;
        }
    }
    Ok(())
}

fn locate(value: &spec::Value, blob: &spec::BlobFileValue, file: &[u8]) -> Result<(Entry, Vec<u64>)> {
    let tensor = value.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()).context("value is no tensor")?;
    let dtype = tensor
        .dtype()
        .and_then(BlobDtype::from_mil)
        .with_context(|| format!("tensor dtype {} cannot lie in a blob file", tensor.data_type))?;
    let shape = tensor.shape().context("shape is not static")?;
    Ok((entry(blob, dtype, &shape, file)?, shape))
}

/// Where a value of `shape` and `dtype` lies.
///
/// # Errors
/// It lies in another file than `file`, the package's own; its offset, dtype or size does not fit.
pub fn entry(blob: &spec::BlobFileValue, dtype: BlobDtype, shape: &[u64], file: &[u8]) -> Result<Entry> {
    let expected = format!("{MODEL_PATH_PREFIX}weights/weight.bin");
    if blob.file_name != expected {
        bail!("value lies in `{}`, not in `{expected}`", blob.file_name);
    }
    let elements = shape
        .iter()
        .try_fold(1u64, |product, &size| product.checked_mul(size))
        .with_context(|| format!("shape {shape:?} is absurd"))?;
    let entry = Entry::read(file, blob.offset).context("`weight.bin`")?;
    if entry.dtype != dtype {
        bail!("the program says {}, `weight.bin` says {}", dtype.as_str(), entry.dtype.as_str());
    }
    if dtype.bytes(elements) != Some(entry.size) {
        bail!("shape {shape:?} of {} does not take the {} bytes in `weight.bin`", dtype.as_str(), entry.size);
    }
    Ok(entry)
}
