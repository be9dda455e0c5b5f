//! `anebake probe DIR`

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::{Global, Probe};
use crate::coremltools::Environment;
use crate::error::{Fault, Status};
use crate::probe::{self, Ladder, Rung};
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

    let progress = ui.step_progress("checking");
    let mut checked = Vec::with_capacity(chosen.len());
    for (done, rung) in chosen.iter().enumerate() {
        progress.show(done, chosen.len(), &rung.about.id);
        checked.push(probe::check(folder, rung)?);
    }
    drop(progress);
    let rows: Vec<Vec<String>> = chosen
        .iter()
        .zip(&checked)
        .map(|(r, c)| vec![r.about.id.clone(), format!("{:.6}", c.cosine), format!("{:.5}", c.error)])
        .collect();
    ui.table(&["rung", "cosine", "error"], &rows, &[])?;
    let agrees = checked.iter().all(|one| one.agrees());
    Ok(if agrees { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
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
