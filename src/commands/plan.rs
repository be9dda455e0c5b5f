//! `anebake plan`

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::Opened;
use crate::bake::survey::{Surveyed, survey};
use crate::cache::Lookup;
use crate::chain::KvCache;
use crate::cli::{Global, Plan};
use crate::ui::{Ui, bytes};

#[derive(Serialize)]
struct Report {
    recipe: String,
    model: String,
    /// `package.kv` and `package.query`.
    kv: KvCache,
    query: usize,
    parts: Vec<Part>,
    cached: usize,
    to_bake: usize,
    bytes: u64,
    cache_bytes_needed: u64,
    cache_bytes_free: Option<u64>,
    out_bytes_free: Option<u64>,
    python_needed: bool,
}

#[derive(Serialize)]
struct Part {
    /// `block-00`, `head`, `embedding`.
    name: String,
    cached: bool,
    reason: Option<String>,
    bytes: u64,
    key: String,
}

pub(super) fn run(options: &Plan, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let opened =
        Opened::new(&options.selection, options.baker.engine.into(), |layers| options.parts.of(layers), global, ui)?;
    let parts = survey(&opened.bake(&opened.plan))?;
    let missing: Vec<&Surveyed> = parts.iter().filter(|part| part.cached.is_none()).collect();
    let needed: u64 = missing.iter().map(|part| part.bytes).sum();
    let templates = missing.iter().filter_map(|surveyed| {
        let planned = opened.plan.parts.iter().find(|planned| planned.part == surveyed.part)?;
        planned.part.is_package().then(|| opened.plan.template_action(planned).1)
    });
    let mut python_needed = false;
    for key in templates.collect::<std::collections::HashSet<_>>() {
        python_needed |= !matches!(opened.cache.lookup::<serde::de::IgnoredAny>(&key)?, Lookup::Hit { .. });
    }
    let report = Report {
        recipe: opened.recipe.name.clone(),
        model: opened.label.clone(),
        kv: opened.recipe.package.kv,
        query: opened.recipe.package.query,
        cached: parts.len() - missing.len(),
        to_bake: missing.len(),
        bytes: parts.iter().map(|part| part.bytes).sum(),
        cache_bytes_needed: needed,
        cache_bytes_free: free_space(opened.cache.root()),
        out_bytes_free: free_space(&options.out),
        python_needed: python_needed
            || (opened.plan.engine.needs_python() && missing.iter().any(|surveyed| surveyed.part.is_package())),
        parts: parts
            .iter()
            .map(|surveyed| Part {
                name: surveyed.part.name(),
                cached: surveyed.cached.is_some(),
                reason: surveyed.reason.as_ref().map(ToString::to_string),
                bytes: surveyed.bytes,
                key: surveyed.key.to_string(),
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
        .parts
        .iter()
        .map(|part| {
            vec![
                part.name.clone(),
                if part.cached { "cached" } else { "bake" }.to_owned(),
                bytes(part.bytes),
                part.reason.clone().unwrap_or_default(),
            ]
        })
        .collect();
    ui.table(&["part", "action", "size", "reason"], &rows, &[2])?;
    let python = if report.python_needed { "coremltools makes the template" } else { "Python is not needed" };
    ui.data(format!(
        "\n{} by {} (kv {}, query {}): {} cached, {} to bake, {} in all; {python}",
        report.model,
        report.recipe,
        report.kv,
        report.query,
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
