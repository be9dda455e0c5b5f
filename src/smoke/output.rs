//! An output folder: its packages one by one, then the chain.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::package::{self, scratch};
use super::process::Program;
use super::record::{Recorded, random_subject, record_chain};
use super::{ChainReport, Options, PackageReport, SmokeReport, Subject, chain};
use crate::bake::manifest::BakeManifest;
use crate::bake::part::{Part, choose_parts};
use crate::chain::{ChainFile, FILE_NAME};
use crate::error::Fault;
use crate::runner::coreml::CoreMlRunner;
use crate::tokenizer::Tokenizer;

/// What the chain is asked to continue.
const PROMPT: &str = "The first thing that a traveller sees of the island is its lighthouse, which";
/// What it is asked where there is no tokenizer: so many tokens of the vocabulary.
const PROMPT_TOKENS: usize = 12;

/// What of an output is judged.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Only these parts; see `choose_parts`.
    pub only: Option<String>,
    /// Tokens that follow the prompt, one by one.
    pub steps: usize,
    /// Whether the whole chain is run too.
    pub chain: bool,
}

/// Judges the packages of an output folder, telling of each when it is judged.
///
/// # Errors
/// There is no Core ML here (an environment fault), the folder holds no bake, or the reference runner fails. Packages that
/// fail are no error.
pub fn judge_output(
    out: &Path,
    scope: &Scope,
    options: &Options,
    tell: &mut dyn FnMut(&PackageReport),
) -> Result<SmokeReport> {
    let runner = CoreMlRunner::new(options.units, &options.cache)?;
    let manifest = BakeManifest::read(out)?;
    let mut report = SmokeReport::new(manifest.as_ref(), options);
    report.system = Some(runner.system().clone());
    drop(runner);
    let program = Program::this()?;
    let mut judge = |subject: &Subject| -> Result<()> {
        let judged = package::judge(subject, options, &program)?;
        tell(&judged);
        report.packages.push(judged);
        Ok(())
    };
    let mut judged_chain: Option<ChainReport> = None;
    if out.join(FILE_NAME).exists() {
        let file = ChainFile::read(out)?;
        let chosen = chosen(scope, file.blocks.len())?;
        let folder = scratch(options)?;
        let prompt = prompt(out, &file, scope.steps)?;
        let recorded: Recorded = record_chain(out, &prompt, scope.steps, folder.path())?;
        for index in (0..=file.blocks.len()).filter(|index| chosen.contains(index)) {
            judge(&recorded.subject(index)?)?;
        }
        if scope.chain && scope.only.is_none() {
            judged_chain = Some(chain::judge(out, &recorded, options, &program)?);
        }
    } else {
        for package in packages(out, manifest.as_ref(), scope)? {
            judge(&random_subject(&package, scope.steps)?)?;
        }
    }
    report.chain = judged_chain;
    report.finish();
    Ok(report)
}

/// Numbers of the chosen packages of a chain: blocks, then the head.
fn chosen(scope: &Scope, blocks: usize) -> Result<BTreeSet<usize>> {
    let parts = choose_parts(scope.only.as_deref(), blocks)?;
    Ok(parts
        .into_iter()
        .filter_map(|part| match part {
            Part::Block(index) => Some(index),
            Part::Head => Some(blocks),
            Part::Embedding => None,
        })
        .collect())
}

/// The packages of a folder that is no whole chain.
fn packages(out: &Path, manifest: Option<&BakeManifest>, scope: &Scope) -> Result<Vec<PathBuf>> {
    let Some(manifest) = manifest else {
        return Err(Fault::input(format!("`{}` is no finished bake: it has no manifest", out.display()))
            .with_hint("name the output folder of `anebake convert`")
            .into());
    };
    let blocks = manifest.blocks.iter().filter_map(|record| record.index).max().map_or(0, |last| last + 1);
    let chosen = chosen(scope, blocks)?;
    let number = |index: Option<usize>| index.unwrap_or(blocks);
    let records = manifest.packages().filter(|record| chosen.contains(&number(record.index)));
    let packages: Vec<PathBuf> = records.map(|record| out.join(&record.path)).collect();
    if packages.is_empty() {
        return Err(Fault::usage(format!("`{}` has none of these packages", out.display())).into());
    }
    Ok(packages)
}

/// A prompt that leaves room for `steps` tokens.
fn prompt(out: &Path, file: &ChainFile, steps: usize) -> Result<Vec<u32>> {
    let mut tokens = match &file.tokenizer {
        Some(files) => Tokenizer::from_file(&out.join(&files.path))?.encode(PROMPT, true)?,
        None => Vec::new(),
    };
    if tokens.is_empty() {
        let vocab = u32::try_from(file.model.vocab).unwrap_or(u32::MAX);
        tokens = (1..).map(|index: u32| index.wrapping_mul(7919) % vocab).take(PROMPT_TOKENS).collect();
    }
    let room = file.context.saturating_sub(steps);
    if room == 0 {
        return Err(Fault::usage(format!("{steps} steps do not fit the context of {}", file.context))
            .with_hint("use fewer `--steps`")
            .into());
    }
    tokens.truncate(room);
    Ok(tokens)
}
