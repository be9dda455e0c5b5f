//! One file for each subcommand: adjust options, call the library, show what it returned. No algorithms.

mod cache;
mod completions;
mod convert;
mod diff;
mod doctor;
mod explain;
mod gate;
mod inspect;
mod judge;
mod lint;
mod plan;
mod probe;
mod recipe;
mod run;
mod smoke;
mod verify;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use clap::Parser;
use serde::de::DeserializeOwned;

use crate::bake::manifest::BakeManifest;
use crate::bake::part::{Part, choose_parts};
use crate::bake::pipeline::{Bake, Outcome};
use crate::bake::plan::{Engine, Plan, model_label};
use crate::cache::{Cache, remove_own_temporaries};
use crate::checkpoint::Checkpoint;
use crate::cli::{self, Cli, Command, Global, Selection};
use crate::coremltools::Environment;
use crate::error::{self, Fault, OrFault, Status};
use crate::mil::Arithmetic;
use crate::recipe::Recipe;
use crate::runner::coreml::CoreMlRunner;
use crate::runner::{Chain, ReferenceRunner};
use crate::ui::Ui;

/// Whether a signal is about to end the process.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The program: reads the command line, runs the command, prints the error chain; gives the exit status.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return Ui::report_usage(&error),
    };
    let ui = match Ui::new(&cli.global) {
        Ok(ui) => ui,
        Err(error) => return Ui::report_without(&error),
    };
    match run(&cli, &ui) {
        Ok(code) => code,
        Err(error) => {
            ui.report(&error);
            ExitCode::from(error::status(&error) as u8)
        }
    }
}

/// Runs a command.
///
/// # Errors
/// Whatever stops it; [`crate::error::status`] tells the exit status.
fn run(cli: &Cli, ui: &Ui) -> Result<ExitCode> {
    catch_interrupts(matches!(cli.command, Command::Run(_) | Command::Smoke(_) | Command::SmokeChild(_)))?;
    let result = dispatch(cli, ui);
    if result.is_err() && INTERRUPTED.load(Ordering::SeqCst) {
        // The failure is that of a writer whose temporary folder is gone; the thread that removed it ends the process.
        loop {
            std::thread::park();
        }
    }
    result
}

fn dispatch(cli: &Cli, ui: &Ui) -> Result<ExitCode> {
    let global = &cli.global;
    match &cli.command {
        Command::Convert(options) => convert::run(options, global, ui),
        Command::Plan(options) => plan::run(options, global, ui),
        Command::Explain(options) => explain::run(options, global, ui),
        Command::Inspect(options) => inspect::run(options, ui),
        Command::Diff(options) => diff::run(options, ui),
        Command::Verify(options) => verify::run(options, global, ui),
        Command::Gate(options) => gate::run(options, global, ui),
        Command::Lint(options) => lint::run(options, global, ui),
        Command::Smoke(options) => smoke::run(options, global, ui),
        Command::SmokeChild(options) => smoke::child(options),
        Command::Run(options) => run::run(options, global, ui),
        Command::Probe(options) => probe::run(options, global, ui),
        Command::Doctor => doctor::run(global, ui),
        Command::Recipe(command) => recipe::run(command, ui),
        Command::Cache(command) => cache::run(command, global, ui),
        Command::Completions(options) => completions::run(options, ui),
    }
}

/// Ends the process on Ctrl-C or SIGTERM with status 130, after removing what it had half written. A thread of its own
/// does it, so that it works while Python or a long write is busy.
#[expect(clippy::exit, reason = "the one place where a signal ends the process")]
fn catch_interrupts(bakes_nothing: bool) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
        .or_fault(|| Fault::environment("cannot listen for Ctrl-C"))?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            remove_own_temporaries();
            crate::ui::interrupted(bakes_nothing);
            std::process::exit(Status::Interrupted as i32);
        }
    });
    Ok(())
}

/// The table `key` of the recipe that an output was baked by; the default where there is none.
///
/// # Errors
/// An input fault: this version of anebake does not read it.
fn recipe_table<T: DeserializeOwned + Default>(manifest: Option<&BakeManifest>, key: &str) -> Result<T> {
    match manifest.and_then(|manifest| manifest.recipe.get(key)) {
        Some(table) => serde_json::from_value(table.clone()).or_fault(|| {
            Fault::input(format!("the output's manifest has a `{key}` that this version of anebake does not read"))
        }),
        None => Ok(T::default()),
    }
}

/// A bake's inputs, opened.
pub(crate) struct Opened {
    pub recipe: Recipe,
    pub checkpoint: Checkpoint,
    pub environment: Environment,
    pub cache: Cache,
    pub label: String,
    pub plan: Plan,
}

impl Opened {
    /// Opens recipe, environment, checkpoint and cache, and plans the bake of the parts that `parts` chooses, given the
    /// number of blocks.
    pub fn new(
        selection: &Selection,
        engine: Engine,
        parts: impl FnOnce(usize) -> Result<Vec<Part>>,
        global: &Global,
        ui: &Ui,
    ) -> Result<Self> {
        let recipe = Recipe::load(&selection.recipe, &selection.sets)?;
        let environment = Environment::find(global.python.as_deref())?;
        Self::of(recipe, environment, selection.model.as_deref(), engine, parts, global, ui)
    }

    /// [`Self::new`] with what is open already; `model` overrides the recipe's own.
    pub fn of(
        recipe: Recipe,
        environment: Environment,
        model: Option<&str>,
        engine: Engine,
        parts: impl FnOnce(usize) -> Result<Vec<Part>>,
        global: &Global,
        ui: &Ui,
    ) -> Result<Self> {
        let source = match (model, &recipe.model.source) {
            (Some(text), _) => text.parse()?,
            (None, Some(source)) => source.clone(),
            (None, None) => {
                return Err(Fault::usage(format!("recipe `{}` names no model", recipe.name))
                    .with_hint("add `--model`, for instance `--model sample`")
                    .into());
            }
        };
        let path = source.locate(environment.site_packages(), &ui.download_progress())?;
        let checkpoint = Checkpoint::open(&path)?;
        let cache = Cache::open(global.cache_dir.as_deref())?;
        let label = model_label(&source);
        let parts = parts(checkpoint.config().layers)?;
        let plan = Plan::new(&recipe, &checkpoint, &label, &environment, engine, &parts).or_else(|error| {
            // The whole list of what is wrong with the checkpoint says more than the first tensor that a plan misses.
            checkpoint.check()?;
            Err(error)
        })?;
        Ok(Self { recipe, checkpoint, environment, cache, label, plan })
    }

    /// The same inputs for another engine.
    pub fn plan_for(&self, engine: Engine) -> Result<Plan> {
        let parts: Vec<Part> = self.plan.parts.iter().map(|planned| planned.part).collect();
        Plan::new(&self.recipe, &self.checkpoint, &self.label, &self.environment, engine, &parts)
    }

    /// What a run of `plan` needs.
    pub fn bake<'a>(&'a self, plan: &'a Plan) -> Bake<'a> {
        Bake { plan, checkpoint: &self.checkpoint, cache: &self.cache, environment: &self.environment }
    }
}

impl cli::Parts {
    /// The chosen ones of a model with so many blocks.
    fn of(&self, layers: usize) -> Result<Vec<Part>> {
        choose_parts(self.only.as_deref(), layers)
    }
}

impl cli::RunBy {
    /// The chain in `out`, opened by the chosen runner; `reference` is what the interpreter would be.
    fn open(self, out: &Path, reference: &ReferenceRunner, global: &Global) -> Result<Chain> {
        match self.runner {
            cli::RunnerName::Reference => Chain::open(out, reference),
            cli::RunnerName::Coreml => {
                let cache = Cache::open(global.cache_dir.as_deref())?;
                Chain::open(out, &CoreMlRunner::new(self.units, cache.root())?)
            }
        }
    }

    /// How results are computed: an arithmetic of the interpreter's, or Core ML's own.
    fn arithmetic(self, arithmetic: Arithmetic) -> &'static str {
        match self.runner {
            cli::RunnerName::Reference => arithmetic.as_str(),
            cli::RunnerName::Coreml => "coreml",
        }
    }
}

impl From<cli::Engine> for Engine {
    fn from(engine: cli::Engine) -> Self {
        match engine {
            cli::Engine::Native => Self::Native,
            cli::Engine::Coremltools => Self::Coremltools,
        }
    }
}

/// Bytes of all parts.
pub(crate) fn total_size(outcomes: &[Outcome]) -> u64 {
    outcomes.iter().map(|outcome| outcome.baked.size()).sum()
}
