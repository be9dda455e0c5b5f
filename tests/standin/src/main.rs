//! anebake, with stand-ins for the classes of Core ML.

mod answers;

use std::process::ExitCode;

use anebake::cli::Cli;
use anebake::ui::Ui;
use anebake::{commands, error};
use clap::Parser;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return Ui::report_usage(&error),
    };
    let ui = match Ui::new(&cli.global) {
        Ok(ui) => ui,
        Err(error) => return Ui::report_without(&error),
    };
    match commands::run(&cli, &ui) {
        Ok(code) => code,
        Err(error) => {
            ui.report(&error);
            ExitCode::from(error::status(&error) as u8)
        }
    }
}
