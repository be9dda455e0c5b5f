//! `anebake inspect PACKAGE`

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::bake::manifest::FILE_NAME;
use crate::chain::KvCache;
use crate::cli::Inspect;
use crate::error::Fault;
use crate::mlpackage::Package;
use crate::mlpackage::inventory::{BlobUse, Feature, FunctionInfo};
use crate::ui::{Ui, bytes};

#[derive(Serialize)]
struct Report {
    path: std::path::PathBuf,
    specification_version: i32,
    model_bytes: u64,
    weight_bytes: u64,
    tools: std::collections::BTreeMap<String, String>,
    /// Where a block has keys and values between calls, by its inputs.
    kv: Option<KvCache>,
    functions: Vec<FunctionInfo>,
    weights: Vec<Weight>,
}

/// A value in `weight.bin` and who uses it.
#[derive(Serialize)]
struct Weight {
    name: String,
    part: String,
    op: String,
    functions: Vec<String>,
    dtype: &'static str,
    shape: Vec<u64>,
    scheme: Option<String>,
    offset: u64,
    bytes: u64,
}

pub(super) fn run(options: &Inspect, ui: &Ui) -> Result<ExitCode> {
    if options.package.join(FILE_NAME).is_file() {
        let hint = format!("name a package in it, for instance `{}/block-00.mlpackage`", options.package.display());
        return Err(Fault::usage(format!(
            "`{}` is the output folder of a bake, not a package",
            options.package.display()
        ))
        .with_hint(hint)
        .into());
    }
    let package = Package::open(&options.package)?;
    let weights = weights(&package.blobs()?);
    let functions = package.functions()?;
    let kv = functions.iter().find_map(|f| KvCache::of_inputs(f.inputs.iter().map(|feature| feature.name.as_str())));
    let metadata = package.model().description.as_ref().and_then(|d| d.metadata.as_ref());
    let report = Report {
        path: package.path().to_owned(),
        specification_version: package.model().specification_version,
        model_bytes: package.model_size(),
        weight_bytes: package.weights().len() as u64,
        tools: metadata.map(|m| m.user_defined.clone()).unwrap_or_default(),
        kv,
        functions,
        weights,
    };
    if ui.is_json() {
        ui.json(&report)?;
    } else {
        print(&report, ui)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each value of the blob file, in file order.
fn weights(uses: &[BlobUse]) -> Vec<Weight> {
    let mut list: Vec<Weight> = Vec::new();
    for used in uses {
        if let Some(known) =
            list.iter_mut().find(|w| w.offset == used.entry.offset && w.name == used.output && w.part == used.slot)
        {
            known.functions.push(used.function.clone());
            continue;
        }
        list.push(Weight {
            name: used.output.clone(),
            part: used.slot.clone(),
            op: used.op.clone(),
            functions: vec![used.function.clone()],
            dtype: used.entry.dtype.as_str(),
            shape: used.shape.clone(),
            scheme: scheme(used, uses),
            offset: used.entry.offset,
            bytes: used.entry.size,
        });
    }
    list.sort_by(|a, b| (a.offset, &a.name, &a.part).cmp(&(b.offset, &b.name, &b.part)));
    list
}

/// How a value is compressed, where it is the data of a compressed weight.
fn scheme(used: &BlobUse, uses: &[BlobUse]) -> Option<String> {
    if used.op == "const" || used.slot != "data" {
        return (used.op != "const").then(|| used.op.trim_start_matches("constexpr_").to_owned());
    }
    let same = |other: &&BlobUse| other.function == used.function && other.output == used.output;
    let part = |slot: &str| uses.iter().filter(same).find(|other| other.slot == slot);
    let scale = match part("scale") {
        None => "per-tensor".to_owned(),
        Some(scale) if scale.entry.elements() == 1 => "per-tensor".to_owned(),
        Some(scale) if scale.shape.first() == used.shape.first() && scale.shape.iter().skip(1).all(|&d| d == 1) => {
            "per-channel".to_owned()
        }
        Some(scale) => {
            let per = used.entry.elements() / scale.entry.elements().max(1);
            format!("per-block {per}")
        }
    };
    let zero_point = if part("offset").is_some() { "asymmetric" } else { "symmetric" };
    Some(format!("{} {scale} linear {zero_point}", used.entry.dtype.as_str()))
}

fn print(report: &Report, ui: &Ui) -> Result<()> {
    ui.data(format!(
        "{}: specification version {}, model.mlmodel {}, weight.bin {}",
        report.path.display(),
        report.specification_version,
        bytes(report.model_bytes),
        bytes(report.weight_bytes)
    ))?;
    for (key, value) in &report.tools {
        ui.data(format!("  {key} = {value}"))?;
    }
    if let Some(kv) = report.kv {
        ui.data(format!("  keys and values: `{kv}`, {}", kv.means()))?;
    }
    for function in &report.functions {
        let default = if function.default { " (default)" } else { "" };
        let count: usize = function.ops.values().sum();
        ui.data(format!("\nfunction {}{default}, opset {}, {count} ops", function.name, function.opset))?;
        for (kind, list) in [("in", &function.inputs), ("state", &function.states), ("out", &function.outputs)] {
            for Feature { name, dtype, shape } in list {
                ui.data(format!("  {kind:5}  {name:16}  {dtype:5}  {shape:?}"))?;
            }
        }
        let ops: Vec<String> = function.ops.iter().map(|(op, count)| format!("{op} {count}")).collect();
        ui.data(format!("  ops    {}", ops.join(", ")))?;
    }
    ui.data("")?;
    let rows: Vec<Vec<String>> = report
        .weights
        .iter()
        .map(|weight| {
            vec![
                weight.name.clone(),
                weight.part.clone(),
                weight.dtype.to_owned(),
                format!("{:?}", weight.shape),
                weight.scheme.clone().unwrap_or_default(),
                weight.offset.to_string(),
                weight.bytes.to_string(),
                weight.functions.join(" "),
            ]
        })
        .collect();
    ui.table(&["weight", "part", "dtype", "shape", "scheme", "offset", "bytes", "functions"], &rows, &[5, 6])
}
