//! `anebake cache stats|verify|gc|path`

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;

use crate::cache::{Cache, Limits};
use crate::cli::{self, Global};
use crate::error::{Fault, Status};
use crate::ui::{Ui, bytes};

pub(super) fn run(command: &cli::Cache, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let cache = Cache::open(global.cache_dir.as_deref())?;
    match command {
        cli::Cache::Path if ui.is_json() => ui.json(&json!({ "path": cache.root() }))?,
        cli::Cache::Path => ui.data(cache.root().display())?,
        cli::Cache::Stats => stats(&cache, ui)?,
        cli::Cache::Verify => return verify(&cache, ui),
        cli::Cache::Gc(options) => gc(&cache, options, ui)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn stats(cache: &Cache, ui: &Ui) -> Result<()> {
    let stats = cache.stats()?;
    let limits = limits()?;
    if ui.is_json() {
        return ui.json(&json!({
            "path": cache.root(),
            "stats": stats,
            "limits": { "bytes": limits.max_bytes, "age_seconds": limits.max_age.as_secs() },
        }));
    }
    ui.data(format!("path         {}", cache.root().display()))?;
    ui.data(format!("entries      {}", stats.entries))?;
    ui.data(format!("blobs        {}, {}", stats.blobs, bytes(stats.bytes)))?;
    ui.data(format!("quarantined  {}", stats.quarantined))?;
    let since = |at: u64| UNIX_EPOCH.elapsed().unwrap_or_default().as_secs().saturating_sub(at);
    let oldest = stats.oldest_use.map_or_else(|| "none".to_owned(), |at| format!("{} ago", age(since(at))));
    ui.data(format!("oldest use   {oldest}"))?;
    ui.data(format!("limits       {}, {}", bytes(limits.max_bytes), age(limits.max_age.as_secs())))
}

fn verify(cache: &Cache, ui: &Ui) -> Result<ExitCode> {
    let bar = ui.byte_progress("verifying");
    let mut checked = 0;
    let damaged = cache.verify(&mut |progress| {
        checked = progress.checked_bytes;
        bar.show(progress.checked_bytes, progress.total_bytes);
    })?;
    drop(bar);
    if ui.is_json() {
        ui.json(&json!({ "bytes": checked, "damaged": damaged }))?;
    } else {
        for file in &damaged {
            ui.data(format!("damaged  {}", file.path.display()))?;
        }
        ui.data(format!("{} checked; {} damaged files", bytes(checked), damaged.len()))?;
    }
    if !damaged.is_empty() {
        ui.note("damaged files are in quarantine; the next bake makes them anew");
        return Ok(ExitCode::from(Status::CheckFailed as u8));
    }
    Ok(ExitCode::SUCCESS)
}

fn gc(cache: &Cache, options: &cli::CacheGc, ui: &Ui) -> Result<()> {
    let mut limits = limits()?;
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
    if options.max_size.is_some() || options.max_age.is_some() {
        limits.grace = Duration::ZERO;
    }
    let freed = cache.gc(&limits)?;
    if ui.is_json() {
        return ui.json(&freed);
    }
    ui.data(format!("{} entries and {} blobs removed, {} freed", freed.entries, freed.blobs, bytes(freed.bytes)))
}

/// The limits of automatic and manual collection: the defaults, unless `ANEBAKE_CACHE_MAX_SIZE` or
/// `ANEBAKE_CACHE_MAX_AGE` say otherwise.
pub(super) fn limits() -> Result<Limits> {
    let mut limits = Limits::default();
    if let Ok(text) = std::env::var("ANEBAKE_CACHE_MAX_SIZE") {
        limits.max_bytes = parse_size(&text).ok_or_else(|| {
            Fault::usage(format!("`ANEBAKE_CACHE_MAX_SIZE={text}` is no size"))
                .with_hint("write for instance `500MB` or `20GiB`")
        })?;
    }
    if let Ok(text) = std::env::var("ANEBAKE_CACHE_MAX_AGE") {
        limits.max_age = parse_age(&text).ok_or_else(|| {
            Fault::usage(format!("`ANEBAKE_CACHE_MAX_AGE={text}` is no age"))
                .with_hint("write for instance `12h` or `30d`")
        })?;
    }
    Ok(limits)
}

/// `500MB`, `20GiB`, `1024`: decimal and binary units.
fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// `90s`, `15m`, `12h`, `30d`, `4w`.
fn parse_age(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let factor: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    number.checked_mul(factor).map(Duration::from_secs)
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

/// Seconds for people, in the largest unit that gives at least 1.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_take_units_and_refuse_what_is_none() {
        assert_eq!(parse_size("0"), Some(0));
        assert_eq!(parse_size("500MB"), Some(500_000_000));
        assert_eq!(parse_size("20 GiB"), Some(20 << 30));
        assert_eq!(parse_age("12h"), Some(Duration::from_secs(43_200)));
        for wrong in ["", "MB", "1.5GB", "-1", "1 parsec", "99999999999TB"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
        for wrong in ["", "30", "d", "1y"] {
            assert_eq!(parse_age(wrong), None, "{wrong}");
        }
    }
}
