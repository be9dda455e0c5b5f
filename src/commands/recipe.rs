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
            let status = if r.frozen { "frozen" } else { "not frozen" };
            vec![r.name.clone(), status.to_owned(), r.description.clone()]
        })
        .collect();
    ui.table(&["recipe", "status", "what it does"], &rows, &[])
}

fn show(options: &cli::RecipeShow, ui: &Ui) -> Result<()> {
    let recipe = Recipe::load(&options.recipe, &options.sets)?;
    if ui.is_json() {
        return ui.json(&recipe.resolved());
    }
    let resolved = options.resolved || !options.sets.is_empty();
    let text = match (resolved, options.origin) {
        (_, true) => recipe.resolved_toml_with_origins(),
        (true, false) => recipe.resolved_toml(),
        (false, false) => Recipe::own_text(&options.recipe)?,
    };
    ui.data(text.trim_end())
}
