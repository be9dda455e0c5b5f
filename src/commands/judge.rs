//! The gate at the end of a bake.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Opened, gate};
use crate::bake::output::record_gate;
use crate::gate::{Baseline, Options, Prompt, Report, Weights, run};
use crate::mil::Arithmetic;
use crate::runner::{Chain, ReferenceRunner};
use crate::tokenizer::Tokenizer;
use crate::ui::Ui;

/// What a manifest keeps of the gate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    arithmetic: String,
    report: Report,
}

/// What came of it, for scripts.
#[derive(Debug, Serialize)]
pub(super) struct Judgement {
    /// `pass`, `fail`, or `skipped: ` and why.
    outcome: String,
    /// Whether the chain passed; none where the gate was skipped.
    pub(super) passed: Option<bool>,
    /// Whether this was found out by an earlier bake of the same content.
    recorded: bool,
    /// Steps with the right token, ties included, of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<[usize; 2]>,
    /// The lowest cosine of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_cosine: Option<f64>,
}

impl Judgement {
    /// The gate was not run.
    pub(super) fn skipped(why: &str) -> Self {
        Self { outcome: format!("skipped: {why}"), passed: None, recorded: false, right: None, min_cosine: None }
    }

    fn new(report: &Report, recorded: bool) -> Self {
        Self {
            outcome: if report.passed { "pass" } else { "fail" }.to_owned(),
            passed: Some(report.passed),
            recorded,
            right: Some([report.equal + report.ties, report.steps]),
            min_cosine: report.worst.map(|worst| worst.cosine),
        }
    }
}

/// Judges what was just baked into `out` by the recipe's gate and keeps the result in its manifest; what is `recorded`
/// of the same content stands.
pub(super) fn judge(opened: &Opened, out: &Path, recorded: Option<Value>, ui: &Ui) -> Result<Judgement> {
    let known = recorded.and_then(|value| serde_json::from_value::<Record>(value).ok());
    let was_recorded = known.is_some();
    let record = match known {
        Some(record) => record,
        None => {
            let arithmetic = Arithmetic::default();
            ui.note(format!(
                "gate: {} by candle-transformers in float32 against the baked chain in {arithmetic} arithmetic",
                opened.label
            ));
            let (baseline, tokenizer) = match baseline(opened) {
                Ok(made) => made,
                Err(error) => {
                    ui.warn(format!("the gate was left out: {error:#}"));
                    return Ok(Judgement::skipped("there is no baseline"));
                }
            };
            let chain = Chain::open(out, &ReferenceRunner::new(arithmetic))?;
            let report = run(&chain, tokenizer.as_ref(), &baseline, &Options::from(&opened.recipe.gate))?;
            let record = Record { arithmetic: arithmetic.to_string(), report };
            record_gate(out, serde_json::to_value(&record)?)?;
            record
        }
    };
    let report = &record.report;
    if was_recorded {
        ui.note("gate: found out when this was baked first");
    }
    if !ui.is_json() && !ui.is_quiet() {
        gate::print(report, ui)?;
    }
    if !report.passed {
        ui.warn(format!(
            "the baked chain does not say what the model says; the packages are kept. `anebake gate {}` looks for \
             weights that should stay float16",
            out.display()
        ));
    }
    Ok(Judgement::new(report, was_recorded))
}

/// What the model should say, and the tokenizer that made its prompts tokens.
fn baseline(opened: &Opened) -> Result<(Baseline, Option<Tokenizer>)> {
    let asked = &opened.recipe.gate;
    let prompts: Vec<Prompt> = asked.prompts.iter().cloned().map(Prompt::Text).collect();
    let weights = Weights::load(&opened.checkpoint)?;
    let tokenizer = gate::tokenizer_of(&opened.checkpoint)?;
    Ok((Baseline::compute(&weights, &prompts, tokenizer.as_ref(), asked.steps)?, tokenizer))
}
