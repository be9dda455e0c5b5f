//! `anebake run`

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::chain::{ChainFile, TokenizerInfo};
use crate::cli::{Global, Run, RunnerName};
use crate::error::{Fault, OrFault};
use crate::mil::{Headroom, OpHeadroom};
use crate::runner::generate::{Call, Generated, Limits, Stop, generate};
use crate::runner::random::SplitMix64;
use crate::runner::{ReferenceRunner, Sampler, Sampling, memory};
use crate::tokenizer::chat::{Message, render};
use crate::tokenizer::{Stream, Tokenizer};
use crate::ui::{Ui, bytes};

/// The largest float16.
const LARGEST: f32 = 65504.0;
/// Half of what overflows: a sum of two such results is out of range.
const HALF: f32 = 32768.0;

#[derive(Serialize)]
struct Report<'a> {
    /// None where tokens were given.
    text: Option<&'a str>,
    ids: &'a [u32],
    prompt_ids: &'a [u32],
    stop: &'static str,
    stats: Stats,
    #[serde(skip_serializing_if = "Option::is_none")]
    headroom: Option<HeadroomReport>,
}

#[derive(Clone, Serialize)]
struct Stats {
    arithmetic: String,
    load_seconds: f64,
    prompt_tokens: usize,
    prefill_tokens_per_second: f64,
    first_token_seconds: f64,
    tokens: usize,
    decode_tokens_per_second: Option<f64>,
    seed: Option<u64>,
    peak_memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct HeadroomReport {
    ops: Vec<Op>,
    first_overflow: Option<Overflow>,
}

#[derive(Serialize)]
struct Op {
    package: String,
    function: String,
    step: usize,
    op: String,
    output: String,
    /// None where it is not finite.
    largest: Option<f32>,
}

#[derive(Serialize)]
struct Overflow {
    #[serde(flatten)]
    op: Op,
    /// Position of the token.
    position: Option<usize>,
}

pub(super) fn run(options: &Run, global: &Global, ui: &Ui) -> Result<ExitCode> {
    let start = Instant::now();
    let file = ChainFile::read(&options.out)?;
    let input = Input::new(options, &file)?;
    if options.headroom && options.by.runner == RunnerName::Coreml {
        return Err(Fault::usage("`--headroom` looks into each op; Core ML shows none of them")
            .with_hint("leave out `--runner coreml`")
            .into());
    }
    let headroom = options.headroom.then(|| Arc::new(Headroom::default()));
    let runner = ReferenceRunner::new(options.arithmetic);
    let runner = match &headroom {
        Some(headroom) => runner.with_headroom(Arc::clone(headroom)),
        None => runner,
    };
    let chain = options.by.open(&options.out, &runner, global)?;
    let load = start.elapsed();

    let seed = (options.temperature > 0.0).then(|| options.seed.unwrap_or_else(any_seed));
    let mut sampler = match seed {
        None => Sampler::Greedy,
        Some(seed) => Sampler::Random(Sampling {
            temperature: options.temperature,
            top_k: options.top_k.map(usize::from),
            top_p: options.top_p,
            random: SplitMix64(seed),
        }),
    };
    let ends = file.tokenizer.as_ref().map_or(&[][..], |tokenizer| &tokenizer.eos);
    let limits = Limits { tokens: options.max_tokens.into(), ends };
    let mut output =
        Output { stream: input.tokenizer.as_ref().map(Tokenizer::stream), ui, text: String::new(), any: false };
    let mut overflow = None;
    let mut watch = |call: Call<'_>| {
        if let Some(headroom) = headroom.as_ref().filter(|_| overflow.is_none())
            && let Some(op) = headroom.first_overflow()
        {
            overflow = Some((op, token_of(call, file.model.hidden)));
        }
    };
    let watch = headroom.is_some().then_some(&mut watch as &mut dyn FnMut(Call<'_>));
    let generated = generate(&chain, &input.tokens, &limits, &mut sampler, &mut |token| output.take(token), watch);
    let text = output.finish()?;
    let headroom = headroom.map(|headroom| HeadroomReport {
        ops: headroom.ops().into_iter().map(Op::from).collect(),
        first_overflow: overflow.map(|(op, position)| Overflow { op: op.into(), position }),
    });
    let top = options.headroom_top.into();
    let generated = match generated {
        Ok(generated) => generated,
        Err(error) => {
            // It may well tell why.
            headroom.iter().for_each(|headroom| headroom.show(top, ui));
            return Err(error);
        }
    };
    if generated.stop == Stop::Context {
        ui.note(format!("anebake: the context of {} tokens is full", file.context));
    }
    let stats = Stats {
        arithmetic: options.by.arithmetic(options.arithmetic).to_owned(),
        load_seconds: load.as_secs_f64(),
        prompt_tokens: input.tokens.len(),
        prefill_tokens_per_second: input.tokens.len() as f64 / generated.prefill.as_secs_f64(),
        first_token_seconds: (load + generated.prefill).as_secs_f64(),
        tokens: generated.tokens.len(),
        decode_tokens_per_second: rate(&generated),
        seed,
        peak_memory_bytes: memory::peak(),
    };
    if ui.is_json() {
        ui.json(&Report {
            text: input.tokenizer.is_some().then_some(&text),
            ids: &generated.tokens,
            prompt_ids: &input.tokens,
            stop: generated.stop.as_str(),
            stats,
            headroom: headroom.map(|headroom| headroom.cut(top)),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.stats {
        stats.show(generated.stop, ui);
    }
    headroom.iter().for_each(|headroom| headroom.show(top, ui));
    Ok(ExitCode::SUCCESS)
}

/// What is to be continued.
struct Input {
    tokens: Vec<u32>,
    /// None where tokens were given: then tokens are printed.
    tokenizer: Option<Tokenizer>,
}

impl Input {
    fn new(options: &Run, file: &ChainFile) -> Result<Self> {
        let prompt = match (&options.ids, &options.prompt, &options.prompt_file) {
            (Some(ids), ..) => return Ok(Self { tokens: ids.clone(), tokenizer: None }),
            (_, Some(prompt), _) if prompt == "-" => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).or_fault(|| Fault::input("cannot read stdin"))?;
                without_last_break(text)
            }
            (_, Some(prompt), _) => prompt.clone(),
            (_, _, Some(path)) => without_last_break(
                std::fs::read_to_string(path).or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))?,
            ),
            (None, None, None) => String::new(),
        };
        if prompt.is_empty() {
            return Err(Fault::usage("the prompt is empty").into());
        }
        let info = file.tokenizer.as_ref().ok_or_else(|| {
            Fault::input(format!("`{}` has no tokenizer", options.out.display()))
                .with_hint("give tokens: `--ids 1,2,3`")
        })?;
        let tokenizer = Tokenizer::from_file(&options.out.join(&info.path))?;
        let tokens = if options.chat {
            let template = info
                .chat_template
                .as_ref()
                .ok_or_else(|| Fault::input("the model has no chat template").with_hint("leave out `--chat`"))?;
            let turn = |role: &str, content: &String| Message { role: role.to_owned(), content: content.clone() };
            let mut messages: Vec<Message> = options.system.iter().map(|text| turn("system", text)).collect();
            messages.push(turn("user", &prompt));
            let text = render(template, &messages, &special_tokens(options, info, &tokenizer)?)?;
            // A template spells out what the model wants around a text.
            tokenizer.encode(&text, false)?
        } else {
            tokenizer.encode(&prompt, true)?
        };
        Ok(Self { tokens, tokenizer: Some(tokenizer) })
    }
}

fn without_last_break(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// `bos_token` and the like: as `tokenizer_config.json` has them, else as the chain's tokens are spelled.
fn special_tokens(options: &Run, info: &TokenizerInfo, tokenizer: &Tokenizer) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for (name, token) in [("bos_token", info.bos), ("eos_token", info.eos.first().copied())] {
        if let Some(text) = token.and_then(|token| tokenizer.spelling(token)) {
            found.insert(name.to_owned(), text);
        }
    }
    if let Some(name) = &info.config {
        let path = options.out.join(name);
        let bytes = std::fs::read(&path).or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))?;
        let config: serde_json::Map<String, Value> = serde_json::from_slice(&bytes)
            .or_fault(|| Fault::input(format!("`{}` is no JSON object", path.display())))?;
        for (key, value) in config.into_iter().filter(|(key, _)| key.ends_with("_token")) {
            if let Some(text) = value.as_str().or_else(|| value.get("content").and_then(Value::as_str)) {
                found.insert(key, text.to_owned());
            }
        }
    }
    Ok(found)
}

/// Where tokens go as they come.
struct Output<'a> {
    /// None where tokens are printed.
    stream: Option<Stream<'a>>,
    ui: &'a Ui,
    text: String,
    any: bool,
}

impl Output<'_> {
    fn take(&mut self, token: u32) -> Result<bool> {
        let new = match &mut self.stream {
            Some(stream) => stream.step(token)?.unwrap_or_default(),
            None => format!("{}{token}", if self.any { "," } else { "" }),
        };
        self.any = true;
        self.write(&new)
    }

    fn write(&mut self, new: &str) -> Result<bool> {
        self.text.push_str(new);
        if self.ui.is_json() || new.is_empty() { Ok(true) } else { self.ui.stream(new) }
    }

    /// Ends the line; gives all of the text.
    fn finish(mut self) -> Result<String> {
        if let Some(rest) = self.stream.take().map(Stream::finish).transpose()?.flatten() {
            self.write(&rest)?;
        }
        if self.any && !self.ui.is_json() {
            self.ui.stream("\n")?;
        }
        Ok(self.text)
    }
}

/// The token in which a call first gave a result that is not finite; of a single one, that one.
fn token_of(call: Call<'_>, width: usize) -> Option<usize> {
    let mut rows = call.rows.chunks(width.max(1));
    let broken = rows.position(|row| row.iter().any(|value| !value.is_finite()));
    broken.or((call.rows.len() <= width).then_some(0)).map(|row| call.position + row)
}

impl From<OpHeadroom> for Op {
    fn from(seen: OpHeadroom) -> Self {
        let OpHeadroom { package, function, step, op, output, largest } = seen;
        Self { package, function, step, op, output, largest: largest.is_finite().then_some(largest) }
    }
}

impl HeadroomReport {
    fn cut(mut self, top: usize) -> Self {
        self.ops.truncate(top);
        self
    }

    fn show(&self, top: usize, ui: &Ui) {
        let share = |op: &Op, of: f32| match op.largest {
            Some(largest) => format!("{:.1} %", 100.0 * largest / of),
            None => "over".to_owned(),
        };
        let row = |op: &Op| {
            let largest = op.largest.map_or("not finite".to_owned(), |largest| format!("{largest:.2}"));
            let (package, function) = (op.package.clone(), op.function.clone());
            vec![largest, share(op, LARGEST), share(op, HALF), package, function, op.op.clone(), op.output.clone()]
        };
        let rows: Vec<Vec<String>> = self.ops.iter().take(top).map(row).collect();
        let header = ["LARGEST", "OF 65504", "OF 32768", "PACKAGE", "FUNCTION", "OP", "OUTPUT"];
        ui.aside(&header, &rows, &[0, 1, 2]);
        let verdict = match &self.first_overflow {
            None => vec!["no result overflows float16".to_owned()],
            Some(Overflow { op, position }) => vec![format!(
                "first overflow: {} `{}` in `{}` of {}{}",
                op.op,
                op.output,
                op.function,
                op.package,
                position.map_or(String::new(), |position| format!(", token at position {position}")),
            )],
        };
        ui.aside(&[], &[verdict], &[]);
    }
}

impl Stats {
    fn show(&self, stop: Stop, ui: &Ui) {
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let mut rows = vec![
            row("prompt", format!("{} tokens, {:.1} tokens/s", self.prompt_tokens, self.prefill_tokens_per_second)),
            row("first token", format!("{:.2} s, {:.2} s of it loading", self.first_token_seconds, self.load_seconds)),
            row(
                "continuation",
                match self.decode_tokens_per_second {
                    Some(rate) => format!("{} tokens, {rate:.1} tokens/s; ended by {}", self.tokens, stop.as_str()),
                    None => format!("{} tokens; ended by {}", self.tokens, stop.as_str()),
                },
            ),
            row("arithmetic", self.arithmetic.clone()),
        ];
        rows.extend(self.seed.map(|seed| row("seed", seed.to_string())));
        rows.extend(self.peak_memory_bytes.map(|peak| row("peak memory", bytes(peak))));
        ui.aside(&[], &rows, &[]);
    }
}

fn rate(generated: &Generated) -> Option<f64> {
    (generated.decoded > 0).then(|| generated.decoded as f64 / generated.decode.as_secs_f64())
}

/// A seed that differs from run to run: what the standard library seeds its maps with.
fn any_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}
