//! `anebake completions SHELL`

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::ui::Ui;

pub(super) fn run(options: &Completions, ui: &Ui) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "anebake", &mut script);
    ui.data(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
