//! `anebake convert`

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use super::judge::{Judgement, judge};
use super::lint::{Linted, known_rules, lint_packages, lint_recipe};
use super::{Opened, smoke, total_size};
use crate::bake::ends;
use crate::bake::manifest::{BakeManifest, ReadAhead};
use crate::bake::output::{Contents, Item, Publication, publish};
use crate::bake::part::Part;
use crate::bake::pipeline::{Options, Outcome};
use crate::cache::BlobRef;
use crate::cli::{Convert, Global};
use crate::coremltools::{self, Environment};
use crate::error::{Fault, Status};
use crate::recipe::Recipe;
use crate::ui::{Ui, bytes};

/// How often a bake is repeated for parts whose cached files turn out to be damaged while they are published.
const REPAIRS: usize = 3;

#[derive(Serialize)]
struct Summary<'a> {
    out: &'a std::path::Path,
    recipe: &'a str,
    model: &'a str,
    /// Blocks among the parts; the others are head and embedding.
    blocks: usize,
    parts: usize,
    baked: usize,
    cached: usize,
    repaired: usize,
    packages_written: usize,
    files_written: usize,
    packages_removed: usize,
    bytes: u64,
    seconds: f64,
    python_started: bool,
    lint: &'a Linted,
    gate: &'a Judgement,
    smoke: &'a smoke::Outcome,
}

pub(super) fn run(options: &Convert, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let start = Instant::now();
    known_rules(&options.allow)?;
    let mut ahead = Some(ReadAhead::start(&options.out));
    let recipe = Recipe::load(&options.selection.recipe, &options.selection.sets)?;
    let environment = Environment::find(global.python.as_deref());
    let mut linted = lint_recipe(&recipe, environment.as_ref().ok(), &options.allow)?;
    let (model, engine) = (options.selection.model.as_deref(), options.baker.engine.into());
    let opened = Opened::of(recipe, environment?, model, engine, |layers| options.parts.of(layers), global, ui)?;
    let run_options = Options { jobs: options.jobs, force: options.force, frozen: options.frozen };
    let bake = opened.bake(&opened.plan);
    let progress = ui.bake_progress(opened.plan.parts.len());
    let mut outcomes = bake.run(run_options, &progress, &|_| true)?;
    drop(progress);
    let mut repaired = 0;
    let (published, ends) = loop {
        let ends = ends::files(&bake)?;
        let seconds = start.elapsed().as_secs_f64();
        let Opened { plan, recipe, checkpoint, label, .. } = &opened;
        let manifest = BakeManifest::new(plan, recipe, checkpoint, label, &outcomes, &ends.files, seconds)?;
        let mut items: Vec<Item<'_>> = outcomes.iter().map(Item::of).collect::<Result<_>>()?;
        let file = |(path, blob): &(String, BlobRef)| Item { path: path.clone(), contents: Contents::File(*blob) };
        items.extend(ends.files.iter().map(file));
        match publish(&opened.cache, &options.out, manifest, &items, options.parts.only.is_some(), ahead.take())? {
            Publication::Done(published) => break (published, ends),
            Publication::Damaged(damaged) => {
                repaired += damaged.len();
                if repaired > REPAIRS * items.len() {
                    return Err(Fault::input("files of the cache are damaged again and again")
                        .with_hint("check the disk, or use another `--cache-dir`")
                        .into());
                }
                let names: Vec<&str> = damaged.iter().map(String::as_str).collect();
                ui.warn(format!("cached files of {} were damaged; baking them again", names.join(", ")));
                let again = |part: Part| damaged.contains(&part.path());
                let progress = ui.bake_progress(damaged.len());
                for mended in bake.run(run_options, &progress, &again)? {
                    if let Some(outcome) = outcomes.iter_mut().find(|outcome| outcome.part == mended.part) {
                        *outcome = mended;
                    }
                }
            }
        }
    };
    if let Some(why) = &ends.no_tokenizer {
        ui.note(format!("anebake: warning: {why}; the output takes and gives numbers, no text"));
    }
    if opened.cache.damage_seen() > 0 {
        ui.warn(format!("{} damaged files of the cache were found; they are made anew", opened.cache.damage_seen()));
    }
    if let Err(error) = opened.cache.collect_if_due(&super::cache::limits()?) {
        ui.warn(format!("the cache could not be collected: {error:#}"));
    }
    let guarded: usize =
        outcomes.iter().flat_map(|outcome| &outcome.baked.tensors).map(|report| report.guarded.len()).sum();
    if guarded > 0 {
        ui.warn(format!(
            "{guarded} rows or groups are all zero, tiny or huge; their scales differ from what coremltools would \
             write (`manifest.json` lists them under `guarded`)"
        ));
    }
    let seconds = start.elapsed().as_secs_f64();
    if !ui.is_json() {
        report(options, &opened, &outcomes, seconds, ui);
    }
    lint_packages(&opened, &outcomes, &options.out, published.lint, &options.allow, &mut linted)?;
    linted.warn(&options.out, ui);
    let judgement = if linted.errors > 0 {
        Judgement::skipped("lint found errors")
    } else if options.no_gate {
        Judgement::skipped("--no-gate")
    } else if opened.plan.chain.is_none() {
        Judgement::skipped("only some parts were baked")
    } else if let Some(why) = &ends.no_tokenizer {
        Judgement::skipped(why)
    } else {
        judge(&opened, &options.out, published.gate.clone(), ui)?
    };
    let Opened { recipe, cache, .. } = &opened;
    let smoke =
        smoke::at_end_of_bake(&options.out, &recipe.smoke, cache, published.smoke.as_ref(), options.no_smoke, ui)?;
    if ui.is_json() {
        let cached = outcomes.iter().filter(|outcome| outcome.cached).count();
        ui.json(&Summary {
            out: &options.out,
            recipe: &opened.recipe.name,
            model: &opened.label,
            blocks: blocks(&outcomes),
            parts: outcomes.len(),
            baked: outcomes.len() - cached,
            cached,
            repaired,
            packages_written: published.packages_written,
            files_written: published.files_written,
            packages_removed: published.packages_removed,
            bytes: total_size(&outcomes),
            seconds,
            python_started: coremltools::started(),
            lint: &linted,
            gate: &judgement,
            smoke: &smoke,
        })?;
    }
    let failed = judgement.passed == Some(false) && opened.recipe.gate.enforce;
    let failed = failed || linted.errors > 0 || smoke.passed == Some(false);
    Ok(if failed { ExitCode::from(Status::CheckFailed as u8) } else { ExitCode::SUCCESS })
}

fn blocks(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome.part, Part::Block(_))).count()
}

/// What was baked, in words.
fn report(options: &Convert, opened: &Opened, outcomes: &[Outcome], seconds: f64, ui: &Ui) {
    let cached = outcomes.iter().filter(|outcome| outcome.cached).count();
    let blocks = blocks(outcomes);
    let others = outcomes.iter().filter(|outcome| !matches!(outcome.part, Part::Block(_)));
    let mut what = Vec::from([if blocks == 1 { "1 block".to_owned() } else { format!("{blocks} blocks") }]);
    what.extend(others.map(|outcome| outcome.part.name()));
    let left_out = match opened.plan.chain {
        Some(_) => "",
        None => "; without the ends of the chain: `--only` writes no `chain.json`",
    };
    ui.note(format!(
        "{} of {} by {}: {} baked, {cached} cached, {} in `{}`, {seconds:.2} s{left_out}",
        what.join(", "),
        opened.label,
        opened.recipe.name,
        outcomes.len() - cached,
        bytes(total_size(outcomes)),
        options.out.display(),
    ));
}
