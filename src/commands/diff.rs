//! `anebake diff A B`

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::bake::manifest::{BakeManifest, FILE_NAME, FileRecord};
use crate::cache::{Change, difference};
use crate::cli::Diff;
use crate::error::{Fault, Status};
use crate::mlpackage::compare::{DifferenceKind, PackageDifference, compare};
use crate::mlpackage::{MANIFEST, Package};
use crate::ui::Ui;

#[derive(Serialize)]
struct Report {
    equal: bool,
    /// Differences of recipe, model, engine and tools.
    inputs: Vec<Change>,
    only_left: Vec<String>,
    only_right: Vec<String>,
    packages: Vec<PackageReport>,
    /// Files beside the packages that differ.
    files: Vec<String>,
}

#[derive(Serialize)]
struct PackageReport {
    name: String,
    #[serde(flatten)]
    difference: PackageDifference,
}

pub(super) fn run(options: &Diff, ui: &Ui) -> Result<ExitCode> {
    let (left, right) = (options.left.as_path(), options.right.as_path());
    let report = match (is_package(left), is_package(right)) {
        (true, true) => packages(left, right)?,
        (false, false) => bakes(left, right)?,
        _ => {
            return Err(Fault::usage(format!(
                "`{}` and `{}`: one is a package, the other is not",
                left.display(),
                right.display()
            ))
            .with_hint("compare two packages, or two output folders")
            .into());
        }
    };
    if ui.is_json() {
        ui.json(&report)?;
    } else {
        print(&report, ui)?;
    }
    Ok(if report.equal { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
}

fn is_package(path: &Path) -> bool {
    path.join(MANIFEST).is_file() && !path.join(FILE_NAME).is_file()
}

fn packages(left: &Path, right: &Path) -> Result<Report> {
    let difference = compare(&Package::open(left)?, &Package::open(right)?)?;
    let equal = difference.same_weight_file && difference.same_model_file;
    let name = left.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let packages = if equal { vec![] } else { vec![PackageReport { name, difference }] };
    Ok(Report { equal, inputs: vec![], only_left: vec![], only_right: vec![], packages, files: vec![] })
}

fn bakes(left: &Path, right: &Path) -> Result<Report> {
    let (a, b) = (manifest(left)?, manifest(right)?);
    let inputs = difference(&inputs(&a)?, &inputs(&b)?);
    let lacks = |m: &BakeManifest, path: &str| m.paths().all(|other| other != path);
    let only = |from: &BakeManifest, other: &BakeManifest| {
        from.paths().filter(|path| lacks(other, path)).map(str::to_owned).collect()
    };
    let mut packages = Vec::new();
    for record in a.packages() {
        let Some(other) = b.packages().find(|other| other.path == record.path) else { continue };
        if record.sha256 != other.sha256 {
            let difference =
                compare(&Package::open(&left.join(&record.path))?, &Package::open(&right.join(&other.path))?)?;
            packages.push(PackageReport { name: record.path.clone(), difference });
        }
    }
    let differs = |file: &&FileRecord| b.files.iter().any(|other| other.path == file.path && *other != **file);
    let files: Vec<String> = a.files.iter().filter(differs).map(|file| file.path.clone()).collect();
    let (only_left, only_right): (Vec<String>, Vec<String>) = (only(&a, &b), only(&b, &a));
    let equal = packages.is_empty() && files.is_empty() && only_left.is_empty() && only_right.is_empty();
    Ok(Report { equal, inputs, only_left, only_right, packages, files })
}

fn manifest(out: &Path) -> Result<BakeManifest> {
    BakeManifest::read(out)?.ok_or_else(|| {
        Fault::input(format!("`{}` is no finished bake: it has no `{FILE_NAME}`", out.display()))
            .with_hint("`anebake convert` writes one")
            .into()
    })
}

/// What went into a bake, for comparison.
fn inputs(manifest: &BakeManifest) -> Result<serde_json::Value> {
    Ok(serde_json::json!({
        "anebake": manifest.anebake,
        "engine": manifest.engine,
        "model": manifest.model,
        "recipe": manifest.recipe,
        "tools": manifest.tools,
    }))
}

fn print(report: &Report, ui: &Ui) -> Result<()> {
    for change in &report.inputs {
        ui.data(format!("input   {change}"))?;
    }
    for name in &report.only_left {
        ui.data(format!("{name}  only in A"))?;
    }
    for name in &report.only_right {
        ui.data(format!("{name}  only in B"))?;
    }
    for package in &report.packages {
        let difference = &package.difference;
        ui.data(format!("{}  differs", package.name))?;
        for op in &difference.ops {
            ui.data(format!("  op     {op}"))?;
        }
        for value in &difference.values {
            let text = match &value.kind {
                DifferenceKind::Bytes { differing, of } => format!("{differing} of {of} bytes differ"),
                DifferenceKind::Form { left, right } => format!("{left} -> {right}"),
                DifferenceKind::OnlyLeft { .. } => "only in A".to_owned(),
                DifferenceKind::OnlyRight => "only in B".to_owned(),
            };
            ui.data(format!("  weight {}.{}  {text}", value.name, value.part))?;
        }
        if difference.ops.is_empty() && difference.values.is_empty() {
            ui.data("  same ops and weights; names, metadata or small constants in `model.mlmodel` differ")?;
        }
    }
    for name in &report.files {
        ui.data(format!("{name}  differs"))?;
    }
    if report.equal {
        ui.data("equal")?;
    }
    Ok(())
}
