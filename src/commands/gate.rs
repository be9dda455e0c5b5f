//! `anebake gate OUT`

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::recipe_table;
use crate::bake::manifest::BakeManifest;
use crate::bake::plan::model_label;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::source::ModelSource;
use crate::cli::{Gate, Global, RunnerName};
use crate::coremltools::Environment;
use crate::error::{Fault, OrFault, Status};
use crate::gate::blocks::{self, BlockReport};
use crate::gate::hints::{Hints, Search};
use crate::gate::perplexity::{self, PerplexityReport};
use crate::gate::{self, About, Baseline, Options, Prompt, Report, Weights};
use crate::recipe;
use crate::runner::Chain;
use crate::runner::ReferenceRunner;
use crate::tokenizer::Tokenizer;
use crate::ui::Ui;

/// How long to look for what to try.
const HINTS: Duration = Duration::from_secs(120);

#[derive(Serialize)]
struct Document {
    out: String,
    model: Option<String>,
    recipe: Option<String>,
    arithmetic: &'static str,
    baseline: Option<About>,
    gate: Report,
    blocks: Option<Vec<BlockReport>>,
    perplexity: Option<PerplexityReport>,
    hints: Option<Hints>,
    seconds: Seconds,
}

#[derive(Serialize)]
struct Seconds {
    baseline: f64,
    gate: f64,
}

pub(super) fn run(options: &Gate, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let out = &options.out;
    let chain = options.by.open(out, &ReferenceRunner::new(options.arithmetic), global)?;
    let manifest = BakeManifest::read(out)?;
    let asked: recipe::Gate = recipe_table(manifest.as_ref(), "gate")?;
    let criterion = criterion(options, &asked)?;
    let tokenizer = chain.file().tokenizer.as_ref().map(|files| Tokenizer::from_file(&out.join(&files.path)));
    let tokenizer = tokenizer.transpose()?;

    let start = Instant::now();
    let mut model = None;
    if options.baseline.is_none() || options.model.is_some() || options.blocks || options.perplexity.is_some() {
        model = Some(Model::open(options, manifest.as_ref(), global, ui)?);
    }
    let mut weights = None;
    let baseline = match (&options.baseline, &model) {
        (Some(path), _) => {
            let baseline = Baseline::load(path)?;
            let steps = options.steps.map_or(baseline.steps, usize::from);
            if steps > baseline.steps {
                return Err(
                    Fault::usage(format!("`--steps` is {steps}, the baseline has {} steps", baseline.steps)).into()
                );
            }
            baseline.with_steps(steps)
        }
        (None, Some(model)) => {
            let prompts = match &options.prompts {
                Some(path) => Prompt::read(path)?,
                None => asked.prompts.iter().cloned().map(Prompt::Text).collect(),
            };
            let steps = options.steps.map_or(asked.steps, usize::from);
            let source = tokenizer_of(&model.checkpoint)?;
            let tokens: Vec<Vec<u32>> =
                prompts.iter().map(|prompt| prompt.tokens(source.as_ref())).collect::<Result<_>>()?;
            gate::check_prompts(&chain, &prompts, &tokens, steps)?;
            ui.note(format!("baseline: {} by candle-transformers in float32", model.label));
            let loaded = weights.insert(Weights::load(&model.checkpoint)?);
            let mut baseline = Baseline::compute(loaded, &prompts, source.as_ref(), steps)?;
            baseline.about = Some(model.about());
            baseline
        }
        (None, None) => unreachable!("a model is opened where there is no baseline"),
    };
    if let Some(path) = &options.save_baseline {
        baseline.save(path)?;
        ui.note(format!("wrote the baseline to `{}`", path.display()));
    }
    if !options.blocks && options.perplexity.is_none() {
        // Four bytes for each parameter.
        drop(weights.take());
    }
    let baseline_seconds = start.elapsed().as_secs_f64();

    ui.note(format!(
        "judging {} prompts, {} steps each, in {} arithmetic",
        baseline.prompts.len(),
        baseline.steps,
        options.by.arithmetic(options.arithmetic)
    ));
    let start = Instant::now();
    let report = gate::run(&chain, tokenizer.as_ref(), &baseline, &criterion)?;
    let seconds = Seconds { baseline: rounded(baseline_seconds), gate: rounded(start.elapsed().as_secs_f64()) };
    let tokens: Vec<Vec<u32>> = report.prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    if !ui.is_json() {
        print(&report, ui)?;
    }

    let mut document = Document {
        out: out.display().to_string(),
        model: model.as_ref().map(|model| model.label.clone()),
        recipe: manifest.as_ref().and_then(|manifest| Some(manifest.recipe["name"].as_str()?.to_owned())),
        arithmetic: options.by.arithmetic(options.arithmetic),
        baseline: baseline.about.clone(),
        gate: report,
        blocks: None,
        perplexity: None,
        hints: None,
        seconds,
    };
    if let Some(model) = model.as_ref().filter(|_| options.blocks || options.perplexity.is_some()) {
        let weights = match weights {
            Some(weights) => weights,
            None => Weights::load(&model.checkpoint)?,
        };
        if options.blocks {
            let blocks = blocks::measure(&chain, &weights, &tokens, &baseline)?;
            if !ui.is_json() {
                ui.data("")?;
                let rows: Vec<Vec<String>> = blocks.iter().map(BlockReport::row).collect();
                ui.table(&BlockReport::HEADER, &rows, &BlockReport::NUMBERS)?;
            }
            document.blocks = Some(blocks);
        }
        if let Some(path) = &options.perplexity {
            let report = perplexity(path, tokenizer.as_ref(), &chain, &weights)?;
            if !ui.is_json() {
                ui.data(format!("\n{}", report.sentence(path)))?;
            }
            document.perplexity = Some(report);
        }
    }
    drop(chain);
    if !document.gate.passed && !options.no_hints && options.by.runner == RunnerName::Reference {
        match &model {
            Some(model) => {
                ui.note(format!("looking for what to try, {} s at most; `--no-hints` leaves it out", HINTS.as_secs()));
                let runner = ReferenceRunner::new(options.arithmetic);
                let open = |replacements| Chain::open(out, &runner.clone().with_replacements(replacements));
                let search = Search {
                    out,
                    open: &open,
                    checkpoint: Arc::clone(&model.checkpoint),
                    tokens: &tokens,
                    baseline: &baseline,
                    options: &criterion,
                    budget: HINTS,
                };
                let hints = search.find()?;
                if !ui.is_json() {
                    print_hints(&hints, ui)?;
                }
                document.hints = Some(hints);
            }
            None => ui.note("`--model` tells which weights to keep in float16"),
        }
    }
    let passed = document.gate.passed;
    if ui.is_json() {
        ui.json(&document)?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(Status::CheckFailed as u8) })
}

fn criterion(options: &Gate, asked: &recipe::Gate) -> Result<Options> {
    let min_cosine = options.min_cosine.unwrap_or(asked.min_cosine);
    if !(0.0..=1.0).contains(&min_cosine) {
        return Err(Fault::usage(format!("`--min-cosine` is {min_cosine}, not in 0..=1")).into());
    }
    Ok(Options { min_cosine, strict: options.strict, ..Options::from(asked) })
}

/// The model that was baked.
struct Model {
    label: String,
    checkpoint: Arc<Checkpoint>,
}

impl Model {
    /// Opens what `--model` or the manifest names, and checks that it is what the manifest describes.
    fn open(options: &Gate, manifest: Option<&BakeManifest>, global: &Global, ui: &Ui) -> Result<Self> {
        let hint = "name the model that was baked, for instance `--model ./checkpoint`";
        let text = match (&options.model, manifest) {
            (Some(text), _) => text.clone(),
            (None, Some(manifest)) => manifest.model.source.clone(),
            (None, None) => {
                return Err(Fault::usage(format!("`{}` has no manifest that names its model", options.out.display()))
                    .with_hint(hint)
                    .into());
            }
        };
        let source: ModelSource = text.parse()?;
        let site_packages = match source {
            ModelSource::Sample => Environment::find(global.python.as_deref())?.site_packages().to_owned(),
            _ => Path::new("").to_owned(),
        };
        let located = source.locate(&site_packages, &ui.download_progress());
        let path = match options.model {
            Some(_) => located?,
            // A manifest holds names of folders and files, not where they are.
            None => located.or_fault(|| {
                Fault::usage(format!("the model `{text}` that the manifest names is not here")).with_hint(hint)
            })?,
        };
        let checkpoint = Checkpoint::open(&path)?;
        let label = model_label(&source);
        if let Some(manifest) = manifest {
            let sizes = |files: &mut dyn Iterator<Item = u64>| {
                let mut sizes: Vec<u64> = files.collect();
                sizes.sort_unstable();
                sizes
            };
            let same_files = sizes(&mut manifest.model.files.iter().map(|file| file.size))
                == sizes(&mut checkpoint.files().iter().map(|file| file.size));
            if manifest.model.config != serde_json::to_value(checkpoint.config())? || !same_files {
                return Err(Fault::usage(format!(
                    "`{label}` is not the model that was baked, `{}`: its {} differ",
                    manifest.model.source,
                    if same_files { "settings" } else { "files" }
                ))
                .with_hint(hint)
                .into());
            }
        }
        Ok(Self { label, checkpoint: Arc::new(checkpoint) })
    }

    fn about(&self) -> About {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        About {
            made_by: format!("anebake {}, candle-transformers in float32", env!("CARGO_PKG_VERSION")),
            model: self.label.clone(),
            architecture: self.checkpoint.config().architecture.to_string(),
            files: self.checkpoint.files().iter().map(|file| (name(&file.path), file.size)).collect(),
        }
    }
}

/// The tokenizer that a checkpoint carries.
pub(super) fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>> {
    checkpoint.tokenizer()?.map(|files| Tokenizer::from_bytes(&files.tokenizer)).transpose()
}

fn perplexity(
    path: &Path,
    tokenizer: Option<&Tokenizer>,
    chain: &Chain,
    weights: &Weights,
) -> Result<PerplexityReport> {
    let text = std::fs::read_to_string(path)
        .or_fault(|| Fault::usage(format!("cannot read the text in `{}`", path.display())))?;
    let tokenizer = tokenizer.ok_or_else(|| {
        Fault::usage(format!("`{}` cannot be tokenized: the output has no tokenizer", path.display()))
    })?;
    perplexity::measure(chain, weights, &tokenizer.encode(&text, true)?)
        .or_fault(|| Fault::usage(format!("cannot compare perplexity on `{}`", path.display())))
}

pub(super) fn print(report: &Report, ui: &Ui) -> Result<()> {
    ui.table(&Report::HEADER, &report.rows(), &Report::NUMBERS)?;
    for line in report.tie_lines() {
        ui.data(line)?;
    }
    ui.data(report.summary())?;
    report.failures.iter().try_for_each(|failure| ui.data(format!("  {failure}")))
}

fn print_hints(hints: &Hints, ui: &Ui) -> Result<()> {
    ui.data("")?;
    ui.table(&Hints::HEADER, &hints.rows(), &Hints::NUMBERS)?;
    ui.data(hints.conclusion())?;
    if let Some(suggestion) = &hints.suggestion {
        ui.data(format!("\n{}", suggestion.toml.trim_end()))?;
    }
    Ok(())
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
