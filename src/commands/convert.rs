//! `anebake convert`

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use super::{Opened, default_jobs, total_size};
use crate::bake::manifest::BakeManifest;
use crate::bake::output::{Publication, Published, publish};
use crate::bake::pipeline::{Options, Outcome};
use crate::cli::{Convert, Global};
use crate::coremltools;
use crate::error::Fault;
use crate::ui::{Ui, bytes};

/// How often a bake is repeated for blocks whose cached files turn out to be damaged while they are published.
const REPAIRS: usize = 3;

#[derive(Serialize)]
struct Summary<'a> {
    out: &'a std::path::Path,
    recipe: &'a str,
    model: &'a str,
    blocks: usize,
    baked: usize,
    cached: usize,
    repaired: usize,
    packages_written: usize,
    packages_removed: usize,
    bytes: u64,
    seconds: f64,
    python_started: bool,
}

pub(super) fn run(options: &Convert, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let start = Instant::now();
    let opened =
        Opened::new(&options.selection, options.baker.engine.into(), |layers| options.blocks.of(layers), global, ui)?;
    let run_options =
        Options { jobs: options.jobs.unwrap_or_else(default_jobs), force: options.force, frozen: options.frozen };
    let bake = opened.bake(&opened.plan);
    let progress = ui.bake_progress(opened.plan.blocks.len());
    let mut outcomes: BTreeMap<usize, Outcome> =
        bake.run(run_options, &progress, &|_| true)?.into_iter().map(|outcome| (outcome.index, outcome)).collect();
    drop(progress);
    let mut repaired = 0;
    let published = loop {
        let list: Vec<Outcome> = outcomes.values().cloned().collect();
        let seconds = start.elapsed().as_secs_f64();
        let manifest =
            BakeManifest::new(&opened.plan, &opened.recipe, &opened.checkpoint, &opened.label, &list, seconds)?;
        let blocks: Vec<_> = list.iter().map(|outcome| (outcome.index, &outcome.block)).collect();
        match publish(&opened.cache, &options.out, manifest, &blocks, options.blocks.only.is_some())? {
            Publication::Done(published) => break published,
            Publication::Damaged(damaged) => {
                repaired += damaged.len();
                if repaired > REPAIRS * outcomes.len() {
                    return Err(Fault::input("files of the cache are damaged again and again")
                        .with_hint("check the disk, or use another `--cache-dir`")
                        .into());
                }
                ui.warn(format!("cached files of {} were damaged; baking them again", block_list(&damaged)));
                let progress = ui.bake_progress(damaged.len());
                for outcome in bake.run(run_options, &progress, &|index| damaged.contains(&index))? {
                    outcomes.insert(outcome.index, outcome);
                }
            }
        }
    };
    let outcomes: Vec<Outcome> = outcomes.into_values().collect();
    if opened.cache.damage_seen() > 0 {
        ui.warn(format!("{} damaged files of the cache were found; they are made anew", opened.cache.damage_seen()));
    }
    if let Err(error) = opened.cache.collect_if_due(&super::cache::limits()?) {
        ui.warn(format!("the cache could not be collected: {error:#}"));
    }
    report(options, &opened, &outcomes, published, repaired, start.elapsed().as_secs_f64(), ui)?;
    Ok(ExitCode::SUCCESS)
}

fn report(
    options: &Convert,
    opened: &Opened,
    outcomes: &[Outcome],
    published: Published,
    repaired: usize,
    seconds: f64,
    ui: &Ui,
) -> Result<()> {
    let cached = outcomes.iter().filter(|outcome| outcome.cached).count();
    let guarded: usize =
        outcomes.iter().flat_map(|outcome| &outcome.block.tensors).map(|report| report.guarded.len()).sum();
    if guarded > 0 {
        ui.warn(format!(
            "{guarded} rows or groups are all zero, tiny or huge; their scales differ from what coremltools would \
             write (`manifest.json` lists them under `guarded`)"
        ));
    }
    if ui.is_json() {
        return ui.json(&Summary {
            out: &options.out,
            recipe: &opened.recipe.name,
            model: &opened.label,
            blocks: outcomes.len(),
            baked: outcomes.len() - cached,
            cached,
            repaired,
            packages_written: published.written,
            packages_removed: published.removed,
            bytes: total_size(outcomes),
            seconds,
            python_started: coremltools::started(),
        });
    }
    ui.note(format!(
        "{} blocks of {} by {}: {} baked, {cached} cached, {} in `{}`, {seconds:.2} s",
        outcomes.len(),
        opened.label,
        opened.recipe.name,
        outcomes.len() - cached,
        bytes(total_size(outcomes)),
        options.out.display(),
    ));
    Ok(())
}

fn block_list(blocks: &BTreeSet<usize>) -> String {
    let names: Vec<String> = blocks.iter().map(|index| format!("block {index}")).collect();
    names.join(", ")
}
