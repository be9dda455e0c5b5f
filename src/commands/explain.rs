//! `anebake explain BLOCK`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::{Opened, default_jobs};
use crate::bake::survey::{Reason, survey};
use crate::cli::{Explain, Global};
use crate::error::Fault;
use crate::ui::{Ui, bytes};

pub(super) fn run(options: &Explain, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let only_block = |layers: usize| {
        if options.block < layers {
            return Ok(vec![options.block]);
        }
        Err(Fault::usage(format!("`{}` is no block of a model with {layers} blocks", options.block))
            .with_hint(format!("blocks are 0 to {}", layers - 1))
            .into())
    };
    let opened = Opened::new(&options.selection, options.baker.engine.into(), only_block, global, ui)?;
    for block in survey(&opened.bake(&opened.plan), default_jobs())? {
        let changes = match &block.reason {
            Some(Reason::Changed(changes)) => changes.as_slice(),
            _ => &[],
        };
        if ui.is_json() {
            ui.json(&json!({
                "block": block.index,
                "key": block.key.to_string(),
                "cached": block.cached.is_some(),
                "package": block.cached.as_ref().map(|baked| baked.package.to_string()),
                "reason": block.reason.as_ref().map(ToString::to_string),
                "changes": changes,
                "document": block.document,
            }))?;
            continue;
        }
        ui.data(format!("block {} of {} by {}", block.index, opened.label, opened.recipe.name))?;
        ui.data(format!("key      {}", block.key))?;
        match (&block.cached, &block.reason) {
            (Some(baked), _) => ui.data(format!("cached   package {}, {}", baked.package, bytes(block.bytes)))?,
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
