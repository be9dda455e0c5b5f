//! `anebake explain BLOCK`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::Opened;
use crate::bake::part::{Part, choose_part};
use crate::bake::survey::{Reason, survey};
use crate::cli::{Explain, Global};
use crate::ui::{Ui, bytes};

pub(super) fn run(options: &Explain, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let only_part = |layers: usize| Ok(vec![choose_part(&options.part, layers)?]);
    let opened = Opened::new(&options.selection, options.baker.engine.into(), only_part, global, ui)?;
    for surveyed in survey(&opened.bake(&opened.plan))? {
        let changes = match &surveyed.reason {
            Some(Reason::Changed(changes)) => changes.as_slice(),
            _ => &[],
        };
        if ui.is_json() {
            ui.json(&json!({
                "part": surveyed.part.name(),
                "key": surveyed.key.to_string(),
                "cached": surveyed.cached.is_some(),
                "package": surveyed.cached.as_ref().map(|baked| baked.package.to_string()),
                "reason": surveyed.reason.as_ref().map(ToString::to_string),
                "changes": changes,
                "document": surveyed.document,
            }))?;
            continue;
        }
        ui.data(format!("{} of {} by {}", surveyed.part, opened.label, opened.recipe.name))?;
        ui.data(format!("key      {}", surveyed.key))?;
        match (&surveyed.cached, &surveyed.reason) {
            (Some(baked), _) => {
                ui.data(format!("cached   {} {}, {}", kind(surveyed.part), baked.package, bytes(surveyed.bytes)))?
            }
            (None, Some(Reason::Changed(changes))) => {
                ui.data("to bake  since it was last baked by this recipe, this changed:")?;
                for change in changes {
                    ui.data(format!("  {change}"))?;
                }
            }
            (None, reason) => {
                let text = reason.as_ref().map(ToString::to_string).unwrap_or_default();
                ui.data(format!("to bake  {text}"))?;
            }
        }
        ui.note("`--json` shows the whole document that the key is made of");
    }
    Ok(ExitCode::SUCCESS)
}

fn kind(part: Part) -> &'static str {
    if part.is_package() { "package" } else { "files" }
}
