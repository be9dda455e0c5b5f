//! `anebake doctor`

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::cache::Cache;
use crate::checkpoint::sample;
use crate::cli::Global;
use crate::coremltools::{Environment, Python};
use crate::error::{self, Status};
use crate::ui::{Ui, bytes};

#[derive(Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    /// Whether a bake is impossible without it.
    required: bool,
    detail: String,
    fix: Option<String>,
}

pub(super) fn run(global: &Global, ui: &Ui) -> Result<ExitCode> {
    let mut checks = Vec::new();
    let mut add = |name, required, result: Result<String>| {
        let ok = result.is_ok();
        let (detail, fix) = match result {
            Ok(detail) => (detail, None),
            Err(error) => {
                let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
                let hints: Vec<&str> = error::hints(&error).collect();
                (causes.join(": "), (!hints.is_empty()).then(|| hints.join("; ")))
            }
        };
        checks.push(Check { name, ok, required, detail, fix });
    };
    let environment = Environment::find(global.python.as_deref());
    match &environment {
        Err(_) => add("python", true, environment.map(|_| String::new())),
        Ok(environment) => {
            add("python", true, Ok(environment.executable().display().to_string()));
            add("packages", true, environment.tool_versions().map(|tools| tools.to_string()));
            add("coremltools", true, Python::start(environment).and_then(|python| python.self_check()));
            add("sample model", false, sample::locate(environment.site_packages()).map(|p| p.display().to_string()));
        }
    }
    let cache = Cache::open(global.cache_dir.as_deref());
    let cache = cache.and_then(|cache| cache.temporary_folder().map(|_| cache));
    add(
        "cache",
        true,
        cache.map(|cache| {
            let free = rustix::fs::statvfs(cache.root()).map(|stat| bytes(stat.f_bavail * stat.f_frsize));
            format!("{}, {} free", cache.root().display(), free.unwrap_or_else(|_| "unknown".to_owned()))
        }),
    );
    add("Core ML", false, core_ml());
    let fine = checks.iter().all(|check| check.ok || !check.required);
    if ui.is_json() {
        ui.json(&checks)?;
    } else {
        for check in &checks {
            let mark = match (check.ok, check.required) {
                (true, _) => "ok",
                (false, true) => "FAIL",
                (false, false) => "none",
            };
            ui.data(format!("{mark:4}  {:12}  {}", check.name, check.detail))?;
            if let Some(fix) = &check.fix {
                ui.data(format!("      {:12}  fix: {fix}", ""))?;
            }
        }
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(Status::Environment as u8) })
}

/// Whether packages could be run here, once there is a command that runs them.
fn core_ml() -> Result<String> {
    if cfg!(target_os = "macos") {
        return Ok("this is macOS".to_owned());
    }
    anyhow::bail!("not on this system; packages are baked here and run on macOS or iOS")
}
