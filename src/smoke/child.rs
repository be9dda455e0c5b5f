//! What a child does: the calls of Core ML that may kill it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::event::{Event, Log, Stage};
use super::numerics::Comparison;
use super::process::{end_with_parent, without_folders};
use super::request::{ArrayReader, Request, StoredCase, Task};
use crate::mlpackage::Package;
use crate::mlpackage::inventory::FunctionInfo;
use crate::runner::coreml::{CoreMlRunner, Failure, Function, Placement};
use crate::runner::generate::{Limits, generate};
use crate::runner::{Array, Chain, Sampler, State, memory};

/// Does what the request in `folder` asks and tells it there. A failure of Core ML is told too, and no error.
///
/// # Errors
/// The request cannot be read, or nothing can be told.
pub fn run(folder: &Path) -> Result<()> {
    end_with_parent();
    let request = Request::read(folder)?;
    let mut log = Log::new(folder)?;
    let done = perform(&request, folder, &mut log);
    if let Some(bytes) = memory::peak() {
        log.tell(&Event::Memory { bytes })?;
    }
    match done {
        Ok(()) => log.tell(&Event::Done),
        Err(error) => log.tell(&failed(&error)),
    }
}

fn perform(request: &Request, folder: &Path, log: &mut Log) -> Result<()> {
    let runner = CoreMlRunner::new(request.units, &request.cache)?;
    match &request.task {
        Task::Package { package, cases, repeat } => {
            let arrays = if cases.is_empty() { None } else { Some(ArrayReader::new(folder)?) };
            one_package(&runner, package, arrays.as_ref().map(|arrays| (arrays, &cases[..])), *repeat, log)
        }
        Task::Chain { out, prompt, tokens } => whole_chain(&runner, out, prompt, *tokens, log),
    }
}

fn failed(error: &anyhow::Error) -> Event {
    let failure = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
    let texts: Vec<String> = error.chain().map(ToString::to_string).collect();
    Event::Failed {
        text: without_folders(&texts.join(": ")),
        domain: failure.map(|failure| failure.domain.clone()),
        code: failure.and_then(|failure| failure.code),
    }
}

fn one_package(
    runner: &CoreMlRunner,
    package: &Path,
    cases: Option<(&ArrayReader, &[StoredCase])>,
    repeat: usize,
    log: &mut Log,
) -> Result<()> {
    let functions = Package::open(package)?.functions()?;
    log.tell(&Event::Begun { stage: Stage::Compile })?;
    let start = Instant::now();
    let compiled = runner.compile(package)?;
    log.tell(&Event::Compiled { seconds: start.elapsed().as_secs_f64(), cached: compiled.cached })?;

    let called = |function: &&FunctionInfo| {
        cases.is_some_and(|(_, cases)| cases.iter().any(|case| case.function == function.name))
    };
    let mut loaded: BTreeMap<&str, Function> = BTreeMap::new();
    for function in functions.iter().filter(called) {
        log.tell(&Event::Begun { stage: Stage::Load })?;
        let start = Instant::now();
        loaded.insert(&function.name, runner.load(&compiled, function)?);
        let seconds = start.elapsed().as_secs_f64();
        log.tell(&Event::Loaded { function: function.name.clone(), seconds })?;
    }
    // After loading, whose time the plan would shorten; before the first call, which may be the last.
    for function in functions.iter().filter(|function| cases.is_none() || called(function)) {
        log.tell(&Event::Begun { stage: Stage::Plan })?;
        let placement = Placement::new(&function.name, &runner.plan(&compiled, function)?);
        log.tell(&Event::Planned { placement })?;
    }
    match cases {
        Some((arrays, cases)) => calls(&loaded, arrays, cases, repeat, log),
        None => Ok(()),
    }
}

fn calls(
    loaded: &BTreeMap<&str, Function>,
    arrays: &ArrayReader,
    cases: &[StoredCase],
    repeat: usize,
    log: &mut Log,
) -> Result<()> {
    let mut state: Option<State> = None;
    for stored in cases {
        let function = loaded.get(&*stored.function);
        let function = function.with_context(|| format!("the package has no function `{}`", stored.function))?;
        let case = arrays.case(stored)?;
        if case.fresh || state.is_none() {
            log.tell(&Event::Begun { stage: Stage::State })?;
            state = Some(function.new_state()?);
            log.tell(&Event::Ready)?;
        }
        let state = state.as_mut().context("there are no states")?;
        log.tell(&Event::Begun { stage: Stage::Predict })?;
        let start = Instant::now();
        let outputs = function.predict(&case.inputs, state)?;
        let seconds = start.elapsed().as_secs_f64();
        let outputs = Comparison::of_all(&outputs, &case.expected)?;
        log.tell(&Event::Predicted { function: case.function, seconds, outputs })?;
    }
    for (name, function) in loaded.iter().filter(|_| repeat > 0) {
        let Some(stored) = cases.iter().rev().find(|case| case.function == *name) else { continue };
        let mut case = arrays.case(stored)?;
        // What a chain hands from block to block is on the device already.
        let hold = |(name, array): (String, Array)| {
            let held = function.hold(&name, array)?;
            Ok((name, held))
        };
        case.inputs = case.inputs.into_iter().map(hold).collect::<Result<_>>()?;
        let mut state = function.new_state()?;
        log.tell(&Event::Begun { stage: Stage::Repeat })?;
        let mut seconds = Vec::with_capacity(repeat);
        for _ in 0..repeat {
            let start = Instant::now();
            function.predict(&case.inputs, &mut state)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        log.tell(&Event::Repeated { function: (*name).to_owned(), seconds })?;
    }
    Ok(())
}

fn whole_chain(runner: &CoreMlRunner, out: &Path, prompt: &[u32], tokens: usize, log: &mut Log) -> Result<()> {
    log.tell(&Event::Begun { stage: Stage::Load })?;
    let start = Instant::now();
    let chain = Chain::open(out, runner)?;
    log.tell(&Event::Loaded { function: String::new(), seconds: start.elapsed().as_secs_f64() })?;
    log.tell(&Event::Begun { stage: Stage::Predict })?;
    let start = Instant::now();
    let limits = Limits { tokens, ends: &[] };
    let mut take = |token| {
        log.tell(&Event::Token { token, seconds: start.elapsed().as_secs_f64() })?;
        Ok(true)
    };
    generate(&chain, prompt, &limits, &mut Sampler::Greedy, &mut take, None)?;
    Ok(())
}
