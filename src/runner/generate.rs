//! A prompt continued, token by token.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Chain, Rows, Sampler};
use crate::error::{Fault, OrFault};

/// When a continuation ends.
#[derive(Clone, Debug)]
pub struct Limits<'a> {
    /// After so many tokens.
    pub tokens: usize,
    /// Before one of these.
    pub ends: &'a [u32],
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model ended its text.
    End,
    /// As many tokens as were wanted.
    Length,
    /// The context is full.
    Context,
    /// Nobody wants more.
    Unwanted,
}

impl Stop {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Length => "length",
            Self::Context => "context",
            Self::Unwanted => "unwanted",
        }
    }
}

/// A finished continuation.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Its tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: Stop,
    /// Time until the logits of the first token.
    pub prefill: Duration,
    /// Time of all that followed.
    pub decode: Duration,
    /// Tokens that were fed one by one after the prompt.
    pub decoded: usize,
}

/// Output rows of a block, or none for the head, of one call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Position of its first token.
    pub position: usize,
    /// The rows of its tokens, `hidden` wide.
    pub rows: &'a [f32],
}

/// Continues `prompt`. `take` is given each token and says whether more are wanted; `watch`, if any, follows
/// every call.
///
/// # Errors
/// The prompt is empty or longer than the context, a package fails, logits are not finite, or what `take` says.
pub fn generate(
    chain: &Chain,
    prompt: &[u32],
    limits: &Limits<'_>,
    sampler: &mut Sampler,
    take: &mut dyn FnMut(u32) -> Result<bool>,
    mut watch: Option<&mut dyn FnMut(Call<'_>)>,
) -> Result<Generated> {
    let context = chain.file().context;
    if prompt.is_empty() {
        return Err(Fault::usage("the prompt is empty").into());
    }
    if prompt.len() > context {
        return Err(Fault::usage(format!("the prompt has {} tokens, the context holds {context}", prompt.len()))
            .with_hint("shorten it, or bake with a larger `--set package.context=…`")
            .into());
    }
    let width = chain.file().model.hidden;
    let mut session = chain.begin()?;
    let mut next = |session: &mut super::Session, tokens: &[u32]| -> Result<u32> {
        let mut position = session.position();
        let last = chain.blocks().len().saturating_sub(1);
        let logits = match &mut watch {
            None => chain.feed(session, tokens, Rows::Last)?,
            Some(watch) => {
                let logits = chain.feed_watched(session, tokens, Rows::Last, &mut |block, rows| {
                    watch(Call { position, rows });
                    if block == last {
                        position += rows.len() / width;
                    }
                })?;
                watch(Call { position: session.position() - 1, rows: &[] });
                logits
            }
        };
        let logits = logits.last().context("the chain gave no logits")?;
        sampler.next(logits).or_fault(|| {
            Fault::input(format!("no token can be chosen at position {}", session.position())).with_hint(
                "`--headroom` shows where float16 overflows; `--arithmetic f32` runs the same packages without it",
            )
        })
    };
    let start = Instant::now();
    let mut token = next(&mut session, prompt)?;
    let prefill = start.elapsed();
    let mut generated = Generated { tokens: Vec::new(), stop: Stop::End, prefill, decode: Duration::ZERO, decoded: 0 };
    let start = Instant::now();
    generated.stop = loop {
        if limits.ends.contains(&token) {
            break Stop::End;
        }
        generated.tokens.push(token);
        if !take(token)? {
            break Stop::Unwanted;
        }
        if generated.tokens.len() >= limits.tokens {
            break Stop::Length;
        }
        if session.position() == context {
            break Stop::Context;
        }
        token = next(&mut session, &[token])?;
        generated.decoded += 1;
    };
    generated.decode = start.elapsed();
    Ok(generated)
}
