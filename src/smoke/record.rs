//! What packages are asked on Core ML, and what they should answer: recorded while the reference runner runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::request::{ArrayReader, ArrayWriter, StoredCase};
use super::{Case, Subject};
use crate::gate::verdict::is_tie;
use crate::mlpackage::inventory::{Feature, FunctionInfo};
use crate::runner::random::SplitMix64;
use crate::runner::{Array, Arrays, Chain, Model, ReferenceRunner, Rows, Runner, State, greedy};

/// Where random inputs begin.
const SEED: u64 = 1;

/// Passes everything on to another runner and keeps the calls of each package, in a folder for each.
struct Recorder {
    inner: ReferenceRunner,
    folder: PathBuf,
    recordings: Mutex<Vec<Arc<Recording>>>,
}

/// The calls of one package.
struct Recording {
    package: PathBuf,
    folder: PathBuf,
    writer: Mutex<Option<ArrayWriter>>,
    calls: Mutex<Vec<StoredCase>>,
}

struct RecordedModel {
    inner: Box<dyn Model>,
    recording: Arc<Recording>,
    /// Whether the next call is the first with new states.
    fresh: AtomicBool,
}

impl Runner for Recorder {
    fn open(&self, package: &Path) -> Result<Box<dyn Model>> {
        let inner = self.inner.open(package)?;
        let mut recordings = self.recordings.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder.join(recordings.len().to_string());
        std::fs::create_dir(&folder)?;
        let recording = Arc::new(Recording {
            package: package.to_owned(),
            writer: Mutex::new(Some(ArrayWriter::new(&folder)?)),
            folder,
            calls: Mutex::default(),
        });
        recordings.push(Arc::clone(&recording));
        Ok(Box::new(RecordedModel { inner, recording, fresh: AtomicBool::new(true) }))
    }
}

impl Model for RecordedModel {
    fn functions(&self) -> &[FunctionInfo] {
        self.inner.functions()
    }

    fn new_state(&self) -> Result<State> {
        self.fresh.store(true, Ordering::Relaxed);
        self.inner.new_state()
    }

    fn predict(&self, function: &str, inputs: &Arrays, state: &mut State) -> Result<Arrays> {
        let outputs = self.inner.predict(function, inputs, state)?;
        let fresh = self.fresh.swap(false, Ordering::Relaxed);
        self.recording.add(function, inputs, &outputs, fresh)?;
        Ok(outputs)
    }
}

impl Recording {
    fn add(&self, function: &str, inputs: &Arrays, outputs: &Arrays, fresh: bool) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_mut().context("the recording has ended")?;
        let call = writer.call(function, inputs, outputs, fresh)?;
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        Ok(())
    }

    fn subject(&self) -> Result<Subject> {
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            writer.finish()?;
        }
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let cases = if calls.is_empty() {
            Vec::new()
        } else {
            let reader = ArrayReader::new(&self.folder)?;
            calls.iter().map(|call| reader.case(call)).collect::<Result<_>>()?
        };
        Ok(Subject { package: self.package.clone(), cases })
    }
}

/// A chain's calls, package by package: blocks in order, then the head.
pub(super) struct Recorded {
    recordings: Vec<Arc<Recording>>,
    /// What the reference says after the prompt, and whether it hardly knows: its two likeliest tokens are less than a
    /// float16 step apart.
    pub tokens: Vec<(u32, bool)>,
    /// What it was asked to continue.
    pub prompt: Vec<u32>,
}

impl Recorded {
    /// Of no package: for judging tokens.
    #[cfg(test)]
    pub(super) fn of_tokens(prompt: Vec<u32>, tokens: Vec<(u32, bool)>) -> Self {
        Self { recordings: Vec::new(), tokens, prompt }
    }

    /// The packages.
    pub(super) fn packages(&self) -> impl Iterator<Item = &Path> {
        self.recordings.iter().map(|recording| &*recording.package)
    }

    /// What the package of this number is asked.
    ///
    /// # Errors
    /// What was recorded cannot be read.
    pub(super) fn subject(&self, index: usize) -> Result<Subject> {
        self.recordings.get(index).with_context(|| format!("there is no package {index}"))?.subject()
    }
}

/// Runs the chain in `out` with the reference runner: the prompt, then `steps` tokens one by one. What it needs to remember
/// goes into `folder`.
///
/// # Errors
/// The chain cannot be run.
pub(super) fn record_chain(out: &Path, prompt: &[u32], steps: usize, folder: &Path) -> Result<Recorded> {
    let recorder =
        Recorder { inner: ReferenceRunner::default(), folder: folder.to_owned(), recordings: Mutex::default() };
    let chain = Chain::open(out, &recorder)?;
    let mut session = chain.begin()?;
    let mut next = prompt.to_vec();
    let mut tokens = Vec::new();
    for _ in 0..=steps {
        let logits = chain.feed(&mut session, &next, Rows::Last)?.pop().context("the chain gave no logits")?;
        let token = greedy(&logits)?;
        tokens.push((token, hardly_known(&logits, token)));
        next = vec![token];
    }
    drop(chain);
    let recordings = recorder.recordings.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Recorded { recordings, tokens, prompt: prompt.to_vec() })
}

fn hardly_known(logits: &[f32], token: u32) -> bool {
    let others = logits.iter().enumerate().filter(|(index, _)| *index != token as usize);
    let second = others.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
    is_tie(logits[token as usize], second)
}

/// A package alone: each function once with new states, then more calls of the narrowest one, with random inputs.
///
/// # Errors
/// The package cannot be run.
pub(super) fn random_subject(package: &Path, steps: usize) -> Result<Subject> {
    let model = ReferenceRunner::default().open(package)?;
    let mut functions: Vec<&FunctionInfo> = model.functions().iter().collect();
    functions.sort_by_key(|function| size(function));
    let mut random = SplitMix64(SEED);
    let mut cases = Vec::new();
    // The widest first, as a conversation begins.
    for (index, function) in functions.iter().enumerate().rev() {
        let mut state = model.new_state()?;
        for step in 0..if index == 0 { steps.max(1) } else { 1 } {
            let inputs = inputs(function, step, &mut random)?;
            let expected = model.predict(&function.name, &inputs, &mut state)?;
            cases.push(Case { function: function.name.clone(), inputs, expected, fresh: step == 0 });
        }
    }
    Ok(Subject { package: package.to_owned(), cases })
}

fn size(function: &FunctionInfo) -> i64 {
    function.inputs.iter().map(|input| input.shape.iter().product::<i64>()).sum()
}

/// Floats in [-1, 1), integers that count the calls: finite and valid whatever they mean.
fn inputs(function: &FunctionInfo, step: usize, random: &mut SplitMix64) -> Result<Arrays> {
    let array = |feature: &Feature, random: &mut SplitMix64| -> Result<Array> {
        let shape = feature.shape.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
        let shape = shape.with_context(|| format!("input `{}` has no static shape", feature.name))?;
        let count = shape.iter().product();
        ensure!(count > 0, "input `{}` is empty", feature.name);
        Ok(match &*feature.dtype {
            "int32" => Array::int(&shape, vec![i32::try_from(step)?; count]),
            _ => Array::float(&shape, (0..count).map(|_| uniform(random)).collect()),
        })
    };
    function.inputs.iter().map(|feature| Ok((feature.name.clone(), array(feature, random)?))).collect()
}

/// A multiple of 2^-10 in [-1, 1), so that float16 holds it.
fn uniform(random: &mut SplitMix64) -> f32 {
    (random.bits() >> 53) as f32 / 1024.0 - 1.0
}
