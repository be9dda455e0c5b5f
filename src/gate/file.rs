//! Baselines as portable `.npz` files.
//!
//! Keys: `logits` [prompts, steps, vocab], `ids` [prompts, steps], `prompts` (texts) and `steps`. What this program
//! writes also holds `prompt_ids`, each prompt's tokens filled up with -1, and `about`, a JSON text that says where the
//! baseline comes from; a file without these two is read as well.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::baseline::Baseline;
use super::npz::{self, NpyArray, NpyValues, NpzFile};
use super::prompts::Prompt;
use crate::error::{Fault, OrFault};

/// The keys that every file has.
const KEYS: [&str; 4] = ["logits", "ids", "prompts", "steps"];

impl Baseline {
    /// Writes it to a file.
    ///
    /// # Errors
    /// An input fault that names the file: it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let rows = self.prompts.len();
        let texts = self.prompts.iter().map(|prompt| match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(_) => String::new(),
        });
        let array = |shape: &[usize], values| NpyArray { shape: shape.to_vec(), values };
        let ints = |values: &[u32]| NpyValues::Int(values.iter().map(|value| i64::from(*value)).collect());
        let mut arrays = vec![
            ("logits", array(&[rows, self.steps, self.vocab], NpyValues::Float(self.logits.clone()))),
            ("ids", array(&[rows, self.steps], ints(&self.ids))),
            ("prompts", array(&[rows], NpyValues::Text(texts.collect()))),
            ("steps", array(&[], NpyValues::Int(vec![i64::try_from(self.steps)?]))),
        ];
        if let Some(tokens) = &self.tokens {
            let width = tokens.iter().map(Vec::len).max().unwrap_or(0);
            let padded = |tokens: &Vec<u32>| {
                let tokens = tokens.iter().map(|token| i64::from(*token));
                tokens.chain(std::iter::repeat(-1)).take(width).collect::<Vec<_>>()
            };
            arrays
                .push(("prompt_ids", array(&[rows, width], NpyValues::Int(tokens.iter().flat_map(padded).collect()))));
        }
        if let Some(about) = &self.about {
            arrays.push(("about", array(&[], NpyValues::Text(vec![serde_json::to_string(about)?]))));
        }
        let list: Vec<(&str, &NpyArray)> = arrays.iter().map(|(name, array)| (*name, array)).collect();
        npz::write(path, &list)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// An input fault that names file and array: a key is missing, is damaged, or does not fit the others.
    pub fn load(path: &Path) -> Result<Self> {
        let mut file = NpzFile::open(path)?;
        let mut required = |name: &str| {
            file.read(name)?.ok_or_else(|| {
                let keys = KEYS.map(|key| format!("`{key}`")).join(", ");
                anyhow::Error::from(
                    Fault::input(format!("`{}` has no array `{name}`", path.display()))
                        .with_hint(format!("a baseline has the keys {keys}")),
                )
            })
        };
        let arrays = [required("logits")?, required("ids")?, required("prompts")?, required("steps")?];
        let (tokens, about) = (file.read("prompt_ids")?, file.read("about")?);
        assemble(arrays, tokens, about).or_fault(|| Fault::input(format!("`{}` is no baseline", path.display())))
    }
}

fn assemble(arrays: [NpyArray; 4], tokens: Option<NpyArray>, about: Option<NpyArray>) -> Result<Baseline> {
    let [logits, ids, prompts, steps] = arrays;
    let (NpyValues::Float(values), [rows, count, vocab]) = (logits.values, &logits.shape[..]) else {
        bail!("array `logits` has shape {:?}; it must be floats, [prompts, steps, vocab]", logits.shape);
    };
    let (rows, count, vocab) = (*rows, *count, *vocab);
    ensure!(rows > 0 && count > 0 && vocab > 0, "array `logits` is empty: {:?}", logits.shape);
    let NpyValues::Int(ids) = ids.values else { bail!("array `ids` holds no integers") };
    ensure!(ids.len() == rows * count, "array `ids` has {} values, not [{rows}, {count}]", ids.len());
    let NpyValues::Text(texts) = prompts.values else { bail!("array `prompts` holds no texts") };
    ensure!(texts.len() == rows, "array `prompts` has {} texts, `logits` {rows} rows", texts.len());
    let steps = match steps.values {
        NpyValues::Int(steps) => steps,
        _ => bail!("array `steps` holds no integer"),
    };
    ensure!(steps == [count as i64], "array `steps` is {steps:?}, `logits` has {count} steps");
    let mut greedy = Vec::with_capacity(ids.len());
    for (index, (id, row)) in ids.iter().zip(values.chunks(vocab)).enumerate() {
        let at = format!("prompt {}, step {}", index / count, index % count);
        if let Some(token) = row.iter().position(|value| !value.is_finite()) {
            bail!("array `logits`, {at}: the logit of token {token} is {}", row[token]);
        }
        let id = usize::try_from(*id).ok().filter(|id| *id < vocab);
        let id = id.with_context(|| format!("array `ids`, {at}: no token of a vocabulary of {vocab}"))?;
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        ensure!(
            row[id] == largest,
            "array `ids`, {at}: token {id} has the logit {}, the largest is {largest}; a baseline is greedy",
            row[id]
        );
        greedy.push(u32::try_from(id)?);
    }
    let tokens = tokens.map(|tokens| prompt_tokens(tokens, rows, vocab)).transpose()?;
    let prompts = texts.into_iter().enumerate().map(|(index, text)| match &tokens {
        Some(tokens) if text.is_empty() => Prompt::Tokens(tokens[index].clone()),
        _ => Prompt::Text(text),
    });
    let prompts = prompts.collect();
    let about = about.map(|about| match &about.values {
        NpyValues::Text(texts) if texts.len() == 1 => Ok(serde_json::from_str(&texts[0])?),
        _ => bail!("it holds no text"),
    });
    let about = about.transpose().context("array `about`")?;
    Ok(Baseline { prompts, tokens, steps: count, vocab, ids: greedy, logits: values, about })
}

fn prompt_tokens(array: NpyArray, rows: usize, vocab: usize) -> Result<Vec<Vec<u32>>> {
    let (NpyValues::Int(values), [count, width]) = (array.values, &array.shape[..]) else {
        bail!("array `prompt_ids` has shape {:?}; it must be integers, [prompts, tokens]", array.shape);
    };
    ensure!(*count == rows && *width > 0, "array `prompt_ids` has shape {:?}; there are {rows} prompts", array.shape);
    let row = |(index, row): (usize, &[i64])| {
        let length = row.iter().position(|token| *token == -1).unwrap_or(row.len());
        let (tokens, filling) = row.split_at(length);
        let token = |token: &i64| u32::try_from(*token).ok().filter(|token| (*token as usize) < vocab);
        let tokens: Option<Vec<u32>> = tokens.iter().map(token).collect();
        match tokens {
            Some(tokens) if !tokens.is_empty() && filling.iter().all(|token| *token == -1) => Ok(tokens),
            _ => bail!("array `prompt_ids`, prompt {index}: {row:?} are no tokens of a vocabulary of {vocab}"),
        }
    };
    values.chunks(*width).enumerate().map(row).collect()
}
