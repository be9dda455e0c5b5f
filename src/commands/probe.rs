//! `anebake probe DIR`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Cache;
use crate::cli::{Global, Probe};
use crate::coremltools::Environment;
use crate::error::{Fault, OrFault, Status};
use crate::probe::{self, Answer, Ladder, Results, Rung};
use crate::recipe;
use crate::runner::coreml::{CoreMlRunner, unavailable};
use crate::smoke::Options;
use crate::ui::{StepProgress, Ui};

struct Baking<'a>(StepProgress<'a>);

impl probe::Progress for Baking<'_> {
    fn rung(&self, done: usize, total: usize, id: &str) {
        self.0.show(done, total, id);
    }
}

pub(super) fn run(options: &Probe, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let folder = &options.dir;
    let ladder = probe::bake(folder, Environment::find(global.python.as_deref()), &Baking(ui.step_progress("baking")))?;
    let chosen = choose(&ladder, &options.only)?;

    let cache = Cache::open(global.cache_dir.as_deref())?;
    let smoke = Options {
        units: options.units,
        time_limit: Duration::from_secs(options.time_limit.get().into()),
        ..Options::new(&recipe::Smoke::default(), cache.root().to_owned())
    };
    let why_not = unavailable();
    let system = match &why_not {
        None => Some(CoreMlRunner::new(options.units, cache.root())?.system().clone()),
        Some(_) => None,
    };
    let progress = ui.step_progress(if why_not.is_none() { "checking and running" } else { "checking" });
    let mut rungs = Vec::with_capacity(chosen.len());
    for (done, rung) in chosen.iter().enumerate() {
        progress.show(done, chosen.len(), &rung.about.id);
        let (checked, report) = probe::run(folder, rung, &smoke)?;
        rungs.push((*rung, checked, report));
    }
    drop(progress);

    let results = Results::new(&ladder.made_by, system, rungs)?;
    if let Some(path) = &options.results {
        let text = serde_json::to_string_pretty(&results)? + "\n";
        std::fs::write(path, text)
            .or_fault(|| Fault::input(format!("cannot write the results to `{}`", path.display())))?;
    }
    if ui.is_json() {
        ui.json(&results)?;
    } else {
        print(&results, why_not.as_deref(), options, ui)?;
    }
    Ok(if results.agrees() { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
}

/// The rungs that are asked for, in the ladder's order.
fn choose<'a>(ladder: &'a Ladder, only: &[String]) -> Result<Vec<&'a Rung>> {
    if let Some(unknown) = only.iter().find(|id| !ladder.rungs.iter().any(|rung| rung.about.id == **id)) {
        let known: Vec<&str> = ladder.rungs.iter().map(|rung| &*rung.about.id).collect();
        return Err(Fault::usage(format!("the ladder has no `{unknown}`"))
            .with_hint(format!("it has {}", known.join(", ")))
            .into());
    }
    Ok(ladder.rungs.iter().filter(|rung| only.is_empty() || only.contains(&rung.about.id)).collect())
}

fn print(results: &Results, why_not: Option<&str>, options: &Probe, ui: &Ui) -> Result<()> {
    let rows: Vec<Vec<String>> = results
        .rungs
        .iter()
        .map(|rung| {
            let measured = &rung.core_ml.measured;
            let (on_ane, ops) = measured
                .placement
                .iter()
                .fold((0, 0), |(on_ane, ops), one| (on_ane + one.preferred_on_ane, ops + one.ops));
            let steady = measured.times.functions.iter().filter_map(|function| function.steady).reduce(f64::max);
            vec![
                rung.about.id.clone(),
                rung.about.asks.clone(),
                if rung.agrees { "agrees".to_owned() } else { format!("cosine {:.5}", rung.reference.cosine) },
                rung.answer.as_str().to_owned(),
                if ops == 0 { "-".to_owned() } else { format!("{on_ane}/{ops}") },
                steady.map_or_else(|| "-".to_owned(), |seconds| format!("{:.2}", seconds * 1e3)),
            ]
        })
        .collect();
    ui.table(&["package", "asks", "reference", "Core ML", "planned for the ANE", "ms"], &rows, &[4, 5])?;
    for rung in &results.rungs {
        if rung.answer < Answer::Mixed {
            for failure in &rung.core_ml.failures {
                ui.data(format!("{}: {failure}", rung.about.id))?;
            }
            if let Some(hint) = rung.core_ml.measured.trouble.as_ref().and_then(|trouble| trouble.hint.as_ref()) {
                ui.data(format!("  {}: {} Seen: {}", hint.means, hint.fix, hint.evidence))?;
            }
        }
    }
    let folder = options.dir.display();
    match (why_not, &results.recommendation) {
        (Some(why), _) => {
            ui.data(format!("Core ML: skipped: {why}"))?;
            ui.note(format!(
                "`{folder}` is whole: carry it to a Mac and run `anebake probe {folder} --results results.json` there"
            ));
        }
        (None, None) => ui.data("no whole block gave the right numbers here: no recipe is recommended")?,
        (None, Some(found)) => {
            ui.data(format!("recommended: {found}"))?;
            if !found.all_on_ane {
                ui.data("some of its ops are planned for other devices: see the table")?;
            }
            ui.data("planned is not run: Core ML does not tell where an op ran")?;
        }
    }
    Ok(())
}
