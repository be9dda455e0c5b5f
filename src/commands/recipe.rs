//! `anebake recipe list|show|check`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::cli;
use crate::recipe::{self, Recipe};
use crate::ui::Ui;

pub(super) fn run(command: &cli::Recipe, ui: &Ui) -> Result<ExitCode> {
    match command {
        cli::Recipe::List => list(ui)?,
        cli::Recipe::Show(options) => show(options, ui)?,
        cli::Recipe::Check(options) => {
            let recipe = Recipe::load(&options.recipe, &[])?;
            if ui.is_json() {
                ui.json(&json!({ "name": recipe.name, "valid": true }))?;
            } else {
                ui.data(format!("{}: valid", options.recipe))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(ui: &Ui) -> Result<()> {
    let recipes = recipe::list()?;
    if ui.is_json() {
        return ui.json(&recipes);
    }
    let rows: Vec<Vec<String>> = recipes
        .iter()
        .map(|r| {
            vec![r.name.to_string(), if r.frozen { "" } else { "not frozen" }.to_owned(), r.description.to_string()]
        })
        .collect();
    ui.table(&["recipe", "", "what it does"], &rows, &[])
}

fn show(options: &cli::RecipeShow, ui: &Ui) -> Result<()> {
    let recipe = Recipe::load(&options.recipe, &options.sets)?;
    if ui.is_json() {
        return ui.json(&recipe.resolved());
    }
    let text = match (options.resolved, options.origin) {
        (false, _) => Recipe::own_text(&options.recipe)?,
        (true, false) => recipe.resolved_toml(),
        (true, true) => recipe.resolved_toml_with_origins(),
    };
    ui.data(text.trim_end())
}
