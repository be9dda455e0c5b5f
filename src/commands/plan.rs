//! `anebake plan`

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::{Opened, default_jobs};
use crate::bake::survey::{Surveyed, survey};
use crate::cache::Lookup;
use crate::cli::{Global, Plan};
use crate::ui::{Ui, bytes};

#[derive(Serialize)]
struct Report {
    recipe: String,
    model: String,
    blocks: Vec<Block>,
    cached: usize,
    to_bake: usize,
    bytes: u64,
    cache_bytes_needed: u64,
    cache_bytes_free: Option<u64>,
    out_bytes_free: Option<u64>,
    python_needed: bool,
}

#[derive(Serialize)]
struct Block {
    index: usize,
    cached: bool,
    reason: Option<String>,
    bytes: u64,
    key: String,
}

pub(super) fn run(options: &Plan, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let opened =
        Opened::new(&options.selection, options.baker.engine.into(), |layers| options.blocks.of(layers), global, ui)?;
    let blocks = survey(&opened.bake(&opened.plan), default_jobs())?;
    let missing: Vec<&Surveyed> = blocks.iter().filter(|block| block.cached.is_none()).collect();
    let needed: u64 = missing.iter().map(|block| block.bytes).sum();
    let templates = missing.iter().filter_map(|surveyed| {
        let block = opened.plan.blocks.iter().find(|block| block.index == surveyed.index)?;
        Some(opened.plan.template_action(block).1)
    });
    let mut python_needed = false;
    for key in templates.collect::<std::collections::HashSet<_>>() {
        python_needed |= !matches!(opened.cache.lookup::<serde::de::IgnoredAny>(&key)?, Lookup::Hit { .. });
    }
    let report = Report {
        recipe: opened.recipe.name.clone(),
        model: opened.label.clone(),
        cached: blocks.len() - missing.len(),
        to_bake: missing.len(),
        bytes: blocks.iter().map(|block| block.bytes).sum(),
        cache_bytes_needed: needed,
        cache_bytes_free: free_space(opened.cache.root()),
        out_bytes_free: free_space(&options.out),
        python_needed: python_needed || (opened.plan.engine.needs_python() && !missing.is_empty()),
        blocks: blocks
            .iter()
            .map(|block| Block {
                index: block.index,
                cached: block.cached.is_some(),
                reason: block.reason.as_ref().map(ToString::to_string),
                bytes: block.bytes,
                key: block.key.to_string(),
            })
            .collect(),
    };
    if ui.is_json() {
        ui.json(&report)?;
    } else {
        print(&report, ui)?;
    }
    if report.cache_bytes_free.is_some_and(|free| free < needed) {
        ui.warn(format!(
            "the cache needs {} and its disk has {} free: run `anebake cache gc` or choose another `--cache-dir`",
            bytes(needed),
            bytes(report.cache_bytes_free.unwrap_or_default())
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, ui: &Ui) -> Result<()> {
    let rows: Vec<Vec<String>> = report
        .blocks
        .iter()
        .map(|block| {
            vec![
                format!("block-{:02}", block.index),
                if block.cached { "cached" } else { "bake" }.to_owned(),
                bytes(block.bytes),
                block.reason.clone().unwrap_or_default(),
            ]
        })
        .collect();
    ui.table(&["block", "action", "size", "reason"], &rows, &[2])?;
    let python = if report.python_needed { "coremltools makes the template" } else { "Python is not needed" };
    ui.data(format!(
        "\n{} by {}: {} cached, {} to bake, {} in all; {python}",
        report.model,
        report.recipe,
        report.cached,
        report.to_bake,
        bytes(report.bytes)
    ))?;
    let free = |space: Option<u64>| space.map_or_else(|| "unknown".to_owned(), bytes);
    ui.data(format!(
        "disk: {} more in the cache ({} free); the output shares its files with the cache where the file system can, \
         else it takes {} ({} free)",
        bytes(report.cache_bytes_needed),
        free(report.cache_bytes_free),
        bytes(report.bytes),
        free(report.out_bytes_free)
    ))
}

/// Bytes free where `path` is, or would be made.
fn free_space(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or_else(|| Path::new("."));
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail * stat.f_frsize)
}
