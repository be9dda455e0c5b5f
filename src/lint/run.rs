//! Applies the rules to a recipe, a package or a folder of packages.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::environment::Tools;
use super::output::{self, Output};
use super::placement::Estimate;
use super::recipe::demands_ane;
use super::report::Program;
use super::view::PackageView;
use super::{Check, Found, Report, Rule, rules};
use crate::bake::manifest;
use crate::chain;
use crate::error::{Fault, OrFault};
use crate::mlpackage::{MANIFEST, Package, locate};
use crate::recipe::Recipe;

/// What can be linted.
#[derive(Debug)]
pub enum Subject {
    /// A recipe.
    Recipe(Box<Recipe>),
    /// A `.mlpackage` folder.
    Package(PathBuf),
    /// A folder of packages.
    Output(PathBuf),
}

impl Subject {
    /// What `text` names: a package or a folder of packages by its path, else a recipe, by name or file, with `sets` over
    /// it.
    ///
    /// # Errors
    /// A usage fault: it is none of these, or the recipe is wrong.
    pub fn find(text: &str, sets: &[String]) -> Result<Self> {
        let path = Path::new(text);
        let refuse = |what: &str, hint: &str| Fault::usage(format!("`{text}` {what}")).with_hint(hint);
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let subject = if path.is_dir() {
            // A file system may not tell `Manifest.json` from `manifest.json`.
            let entries = std::fs::read_dir(path).or_fault(|| Fault::input(format!("cannot list `{text}`")))?;
            let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            let has = |name: &str| names.iter().any(|known| known == name);
            if extension == "mlmodelc" {
                return Err(refuse("is a compiled model", "name the `.mlpackage` that it was compiled from").into());
            } else if has(MANIFEST) {
                Self::Package(path.to_owned())
            } else if has(manifest::FILE_NAME) || has(chain::FILE_NAME) || !output::package_names(path).is_empty() {
                Self::Output(path.to_owned())
            } else {
                return Err(refuse(
                    "holds no package",
                    "name a recipe, a `.mlpackage`, or the output folder of a bake",
                )
                .into());
            }
        } else if path.is_file() && extension != "toml" {
            return Err(refuse("is no recipe", "recipes are `.toml` files; packages are folders").into());
        } else if extension == "mlpackage" {
            return Err(Fault::input(format!("there is no package `{text}`")).into());
        } else {
            Self::Recipe(Box::new(Recipe::load(text, sets)?))
        };
        if !sets.is_empty() && !matches!(subject, Self::Recipe(_)) {
            return Err(refuse("is no recipe", "leave out `--set`").into());
        }
        Ok(subject)
    }
}

/// Lints a recipe, and the tools that would bake it. `ane` demands the ANE even where the recipe does not.
pub fn recipe(recipe: &Recipe, tools: Option<&Tools>, ane: bool) -> Report {
    let mut report = Report::new("recipe", recipe.name.clone(), ane || demands_ane(&recipe.resolved()));
    for rule in rules() {
        let mut found = Found::default();
        match (rule.check, tools) {
            (Check::Recipe(check), _) => check(recipe, &mut found),
            (Check::Environment(check), Some(tools)) => check(tools, &mut found),
            _ => {}
        }
        report.add(rule, &[], &found);
    }
    report
}

/// Lints a package. `ane` demands the ANE.
///
/// # Errors
/// It cannot be read.
pub fn package(path: &Path, ane: bool) -> Result<Report> {
    let mut report = Report::new("package", path.display().to_string(), ane);
    with_view(path, |view| {
        graph_rules(view, &[], &mut report);
        report.add_all(&package_rules(view), &[]);
    })?;
    Ok(report)
}

/// Lints a folder of packages. `ane` demands the ANE even where the recipe of the bake does not.
///
/// # Errors
/// Its manifest cannot be read. A package that cannot be read is a finding.
pub fn output(path: &Path, ane: bool) -> Result<Report> {
    let mut output = Output::open(path)?;
    let demanded = output.manifest.as_ref().is_some_and(|manifest| demands_ane(&manifest.recipe));
    let mut report = Report::new("output", path.display().to_string(), ane || demanded);
    judge_packages(&mut output, &mut report);
    let tools = output.manifest.as_ref().map(|manifest| Tools::recorded(&manifest.tools));
    for rule in rules() {
        let mut found = Found::default();
        match (rule.check, &tools) {
            (Check::Output(check), _) => check(&output, &mut found),
            (Check::Environment(check), Some(tools)) => check(tools, &mut found),
            _ => {}
        }
        report.add(rule, &[], &found);
    }
    Ok(report)
}

/// Lints the packages that the manifest of a folder lists, and nothing else of it. `ane` demands the ANE.
///
/// # Errors
/// The manifest or a package cannot be read.
pub fn packages(path: &Path, ane: bool) -> Result<Report> {
    let mut output = Output::open(path)?;
    if let Some(manifest) = &output.manifest {
        output.packages = manifest.packages().map(|record| record.path.clone()).collect();
    }
    let mut report = Report::new("output", path.display().to_string(), ane);
    judge_packages(&mut output, &mut report);
    match output.unreadable.pop() {
        Some((name, why)) => Err(Fault::input(format!("cannot lint `{name}`: {why}")).into()),
        None => Ok(report),
    }
}

/// Applies the rules of programs and packages; equal programs are judged once.
fn judge_packages(output: &mut Output, report: &mut Report) {
    let mut programs: Vec<Vec<String>> = Vec::new();
    let mut known: HashMap<[u8; 32], usize> = HashMap::new();
    for name in output.packages.clone() {
        match program_digest(&output.path.join(&name)) {
            Ok(digest) => {
                let index = *known.entry(digest).or_insert(programs.len());
                match programs.get_mut(index) {
                    Some(names) => names.push(name),
                    None => programs.push(vec![name]),
                }
            }
            Err(error) => output.unreadable.push((name, format!("{error:#}"))),
        }
    }
    for names in &programs {
        let read = |name: &String, judge: &mut dyn FnMut(&PackageView<'_>)| {
            with_view(&output.path.join(name), |view| {
                judge(view);
                (view.graph.functions.len(), package_rules(view))
            })
        };
        // The first that can be read shows the program that all have.
        let mut judged: Vec<Result<_>> = Vec::with_capacity(names.len());
        while judged.last().is_none_or(Result::is_err) && judged.len() < names.len() {
            judged.push(read(&names[judged.len()], &mut |view| graph_rules(view, names, report)));
        }
        judged.par_extend(names[judged.len()..].par_iter().map(|name| read(name, &mut |_| {})));
        for (name, judged) in names.iter().zip(judged) {
            match judged {
                Ok((functions, found)) => {
                    output.programs += functions;
                    report.add_all(&found, std::slice::from_ref(name));
                }
                Err(error) => output.unreadable.push((name.clone(), format!("{error:#}"))),
            }
        }
    }
}

/// Opens a package, looks at it, and lets go of its weights.
fn with_view<T>(path: &Path, look: impl FnOnce(&PackageView<'_>) -> T) -> Result<T> {
    let package = Package::open(path)?;
    let seen = look(&PackageView::new(&package)?);
    package.release_weights(usize::MAX);
    Ok(seen)
}

/// Tells equal programs.
fn program_digest(path: &Path) -> Result<[u8; 32]> {
    let model = locate(path).or_fault(|| Fault::input(format!("cannot open the package `{}`", path.display())))?;
    let bytes = std::fs::read(&model).with_context(|| format!("cannot read `{}`", model.display()))?;
    Ok(Sha256::digest(&bytes).into())
}

fn graph_rules(view: &PackageView<'_>, names: &[String], report: &mut Report) {
    for rule in rules() {
        if let Check::Graph(check) = rule.check {
            let mut found = Found::default();
            check(&view.graph, &mut found);
            report.add(rule, names, &found);
        }
    }
    report.programs.push(Program { packages: names.to_vec(), functions: Estimate::of(&view.graph) });
}

fn package_rules(view: &PackageView<'_>) -> Vec<(&'static Rule, Found)> {
    let found = rules().filter_map(|rule| {
        let Check::Package(check) = rule.check else { return None };
        let mut found = Found::default();
        check(view, &mut found);
        Some((rule, found))
    });
    found.collect()
}
