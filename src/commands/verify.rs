//! `anebake verify --against coremltools`

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::Opened;
use crate::bake::output::write_package;
use crate::bake::part::Part;
use crate::bake::pipeline::Options;
use crate::bake::plan::Engine;
use crate::bake::verify::{Verdict, verify};
use crate::cli::{Global, Verify, Witness};
use crate::coremltools::Python;
use crate::error::{Fault, Status};
use crate::ui::Ui;

#[derive(Serialize)]
struct Report {
    passed: bool,
    recipe: String,
    model: String,
    parts: Vec<Verdict>,
}

pub(super) fn run(options: &Verify, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let Witness::Coremltools = options.against;
    let opened = Opened::new(&options.selection, Engine::Native, |layers| packages(options, layers), global, ui)?;
    let plans = [opened.plan_for(Engine::Native)?, opened.plan_for(Engine::Coremltools)?];
    let run_options = Options { jobs: None, force: false, frozen: false };
    let mut bakes = Vec::new();
    for plan in &plans {
        ui.note(format!("baking with the engine {}", plan.engine.as_str()));
        let progress = ui.bake_progress(plan.parts.len());
        bakes.push(opened.bake(plan).run(run_options, &progress, &|_| true)?);
    }
    let python = Python::start(&opened.environment)?;
    ui.note("comparing weights, and outputs through coremltools' own operators");
    let mut verdicts = Vec::new();
    for ((planned, native), witness) in plans[0].parts.iter().zip(&bakes[0]).zip(&bakes[1]) {
        let folder = opened.cache.temporary_folder()?;
        let paths = [folder.path().join("native.mlpackage"), folder.path().join("witness.mlpackage")];
        write_package(&opened.cache, &paths[0], &native.baked.files)?;
        write_package(&opened.cache, &paths[1], &witness.baked.files)?;
        let verdict = verify(python, planned, &native.baked, &paths[0], &paths[1])?;
        if !ui.is_json() {
            print(&verdict, ui)?;
        }
        verdicts.push(verdict);
    }
    let passed = verdicts.iter().all(Verdict::passed);
    if ui.is_json() {
        ui.json(&Report { passed, recipe: opened.recipe.name.clone(), model: opened.label.clone(), parts: verdicts })?;
    } else {
        let identical = verdicts.iter().filter(|verdict| verdict.same_weight_file).count();
        ui.data(format!(
            "{}: {identical} of {} packages have byte-identical weights",
            if passed { "pass" } else { "FAIL" },
            verdicts.len()
        ))?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
}

/// The chosen parts that an engine makes: the embedding is no package.
fn packages(options: &Verify, layers: usize) -> Result<Vec<Part>> {
    let mut parts = options.parts.of(layers)?;
    parts.retain(|part| part.is_package());
    if parts.is_empty() {
        return Err(Fault::usage("the embedding is the same whatever the engine; there is nothing to compare").into());
    }
    Ok(parts)
}

fn print(verdict: &Verdict, ui: &Ui) -> Result<()> {
    let weights = match (verdict.same_weight_file, verdict.weight_differences.is_empty()) {
        (true, _) => "weights identical",
        (false, true) => "weights equal but for what is listed",
        (false, false) => "weights DIFFER",
    };
    let outputs = match (verdict.outputs_compared, verdict.output_differences.len()) {
        (0, _) => "outputs not comparable".to_owned(),
        (count, 0) => format!("{count} outputs and states bit-equal"),
        (count, wrong) => format!("{wrong} of {count} outputs and states DIFFER"),
    };
    ui.data(format!("{}  {weights}, {outputs}", verdict.part))?;
    for line in verdict.exceptions.iter().chain(&verdict.weight_differences).chain(&verdict.output_differences) {
        ui.data(format!("  {line}"))?;
    }
    Ok(())
}
