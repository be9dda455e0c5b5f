//! `anebake cache stats|verify|gc|path`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::cache::{Cache, Limits};
use crate::cli::{self, Global};
use crate::error::{Fault, Status};
use crate::ui::{Ui, bytes};

pub(super) fn run(command: &cli::Cache, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let cache = Cache::open(global.cache_dir.as_deref())?;
    match command {
        cli::Cache::Path => ui.data(cache.root().display())?,
        cli::Cache::Stats => stats(&cache, ui)?,
        cli::Cache::Verify => return verify(&cache, ui),
        cli::Cache::Gc(options) => gc(&cache, options, ui)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn stats(cache: &Cache, ui: &Ui) -> Result<()> {
    let stats = cache.stats()?;
    let limits = Limits::from_environment()?;
    if ui.is_json() {
        return ui.json(&json!({ "path": cache.root(), "stats": stats, "limits": limits }));
    }
    ui.data(format!("path         {}", cache.root().display()))?;
    ui.data(format!("entries      {}", stats.entries))?;
    ui.data(format!("blobs        {}, {}", stats.blobs, bytes(stats.bytes)))?;
    ui.data(format!("quarantined  {}, {}", stats.quarantined, bytes(stats.quarantined_bytes)))?;
    let oldest = stats.oldest_use_seconds.map_or_else(|| "none".to_owned(), age);
    ui.data(format!("oldest use   {oldest}"))?;
    ui.data(format!("limits       {}, {}", bytes(limits.max_bytes), age(limits.max_age.as_secs())))
}

fn verify(cache: &Cache, ui: &Ui) -> Result<ExitCode> {
    let verified = cache.verify(&|_| {})?;
    if ui.is_json() {
        ui.json(&verified)?;
    } else {
        for damaged in &verified.damaged {
            ui.data(format!("damaged  {damaged}"))?;
        }
        ui.data(format!(
            "{} blobs and {} entries checked, {}; {} damaged",
            verified.blobs,
            verified.entries,
            bytes(verified.bytes),
            verified.damaged.len()
        ))?;
    }
    let sound = verified.damaged.is_empty();
    if !sound {
        ui.note("damaged files are in quarantine; the next bake makes them anew");
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
}

fn gc(cache: &Cache, options: &cli::CacheGc, ui: &Ui) -> Result<()> {
    let mut limits = Limits::from_environment()?;
    if let Some(text) = &options.max_size {
        limits.max_bytes = parse_size(text).ok_or_else(|| {
            Fault::usage(format!("`--max-size {text}` is no size")).with_hint("write for instance `500MB` or `20GiB`")
        })?;
    }
    if let Some(text) = &options.max_age {
        limits.max_age = parse_age(text).ok_or_else(|| {
            Fault::usage(format!("`--max-age {text}` is no age")).with_hint("write for instance `12h` or `30d`")
        })?;
    }
    let freed = cache.gc(&limits)?;
    if ui.is_json() {
        return ui.json(&freed);
    }
    ui.data(format!("{} entries and {} blobs removed, {} freed", freed.entries, freed.blobs, bytes(freed.bytes)))
}
