//! The parts of a model, each baked and cached by itself, and how a matrix with many rows is split.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use serde_json::Value;

use crate::arch::ModelTensor;
use crate::cache::canonical_json;
use crate::chain;
use crate::checkpoint::TensorRef;
use crate::error::Fault;
use crate::quant::Scheme;

/// The most logits of one output: no axis may be longer where the Neural Engine is to take it.
pub const MAX_OUTPUT: usize = 16_384;

/// The fewest logits of the last of several outputs: fewer than 10 scales would lie inside the program.
const MIN_OUTPUT: usize = 16;

/// A part of a model, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A transformer block, by its number: a package.
    Block(usize),
    /// The final norm and the output matrix: a package.
    Head,
    /// The embedding table: a flat file.
    Embedding,
}

impl Part {
    /// Every part of a model with so many blocks.
    pub fn all(layers: usize) -> Vec<Self> {
        (0..layers).map(Self::Block).chain([Self::Head, Self::Embedding]).collect()
    }

    /// Name in the output folder.
    pub fn path(self) -> String {
        match self {
            Self::Block(index) => format!("block-{index:02}.mlpackage"),
            Self::Head => chain::HEAD.to_owned(),
            Self::Embedding => chain::EMBEDDING.to_owned(),
        }
    }

    /// Name for people and on the command line: `block-00`, `head`, `embedding`.
    pub fn name(self) -> String {
        let path = self.path();
        path.split_once('.').map_or(path.clone(), |(name, _)| name.to_owned())
    }

    /// What kind of part it is: the stage of its action.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Block(_) => "block",
            Self::Head => "head",
            Self::Embedding => "embedding",
        }
    }

    /// Whether it becomes a package, made by an engine.
    pub fn is_package(self) -> bool {
        self != Self::Embedding
    }
}

/// As in a sentence: `block 3`, `the head`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(index) => write!(f, "block {index}"),
            other => write!(f, "the {}", other.kind()),
        }
    }
}

/// One tensor of a part.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// What it is.
    pub tensor: ModelTensor,
    /// Where it is.
    pub source: TensorRef,
    /// Its rows in the checkpoint's matrix, where it is not the whole of it.
    pub rows: Option<Range<usize>>,
    /// How it is quantized; `None` leaves it a float.
    pub scheme: Option<Scheme>,
}

impl PlannedTensor {
    /// `(rows, cols)`: `[out, in]` for a projection, `[1, n]` for a vector.
    pub fn matrix(&self) -> (usize, usize) {
        match self.tensor.shape[..] {
            [rows, cols] => (rows, cols),
            ref shape => (1, shape.iter().product()),
        }
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.tensor.shape.iter().map(|&size| size as u64).product()
    }
}

/// What decides the form of a part: for packages, what coremltools is asked for.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The request.
    pub value: Value,
    pub(super) canonical: Vec<u8>,
}

impl From<Value> for Graph {
    fn from(value: Value) -> Self {
        let canonical = canonical_json(&value);
        Self { value, canonical }
    }
}

/// One part of a bake.
#[derive(Clone, Debug)]
pub struct PlannedPart {
    /// Which.
    pub part: Part,
    /// Everything that decides its form. Blocks of one graph share it.
    pub request: Arc<Graph>,
    /// Its tensors.
    pub tensors: Vec<PlannedTensor>,
}

/// How the rows of a matrix are split: ranges of at most [`MAX_OUTPUT`] rows, the last of several at least 16.
pub fn split_rows(rows: usize) -> Vec<Range<usize>> {
    let mut starts: Vec<usize> = (0..rows).step_by(MAX_OUTPUT).collect();
    if let [_, .., last] = &mut starts[..]
        && rows - *last < MIN_OUTPUT
    {
        *last -= MIN_OUTPUT;
    }
    let ends = starts.iter().skip(1).copied().chain([rows]);
    starts.iter().zip(ends).map(|(&start, end)| start..end).collect()
}

/// Parses `0,3,8-11,head` against a number of layers; `None` means all parts.
///
/// # Errors
/// A usage fault for what is no part of the model.
pub fn choose_parts(only: Option<&str>, layers: usize) -> Result<Vec<Part>> {
    let Some(text) = only else { return Ok(Part::all(layers)) };
    let mut parts = std::collections::BTreeSet::new();
    for name in text.split(',') {
        let Some(found) = parse(name.trim(), layers) else {
            return Err(Fault::usage(format!("`--only {text}`: `{name}` is no block of a model with {layers} blocks"))
                .with_hint(format!("blocks are 0 to {}; write for instance `0,3,8-11`, or `head`", layers - 1))
                .into());
        };
        parts.extend(found);
    }
    Ok(parts.into_iter().collect())
}

/// One part by its name, as [`choose_parts`] takes it.
///
/// # Errors
/// A usage fault for what is no part of the model.
pub fn choose_part(name: &str, layers: usize) -> Result<Part> {
    match parse(name, layers).as_deref() {
        Some(&[part]) if !name.contains('-') => Ok(part),
        _ => Err(Fault::usage(format!("`{name}` is no block of a model with {layers} blocks"))
            .with_hint(format!("blocks are 0 to {}; beside them there are `head` and `embedding`", layers - 1))
            .into()),
    }
}

/// The parts that `3`, `8-11`, `head` or `embedding` means.
fn parse(name: &str, layers: usize) -> Option<Vec<Part>> {
    for part in [Part::Head, Part::Embedding] {
        if name == part.kind() {
            return Some(vec![part]);
        }
    }
    let (first, last) = name.split_once('-').unwrap_or((name, name));
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&number| number < layers);
    let (first, last) = number(first).zip(number(last))?;
    (first <= last).then(|| (first..=last).map(Part::Block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_takes_numbers_ranges_and_names_and_refuses_the_rest() {
        let blocks = |list: &[usize]| list.iter().copied().map(Part::Block).collect::<Vec<_>>();
        assert_eq!(choose_parts(None, 2).unwrap(), [&blocks(&[0, 1])[..], &[Part::Head, Part::Embedding]].concat());
        assert_eq!(choose_parts(Some("5,0-2,1"), 6).unwrap(), blocks(&[0, 1, 2, 5]));
        assert_eq!(choose_parts(Some("head,0"), 6).unwrap(), [Part::Block(0), Part::Head]);
        assert_eq!(choose_parts(Some("embedding"), 6).unwrap(), [Part::Embedding]);
        for wrong in ["6", "2-1", "", "a", "0-", "-1", "0,,1", "0-head", "Head"] {
            let error = choose_parts(Some(wrong), 6).unwrap_err();
            assert_eq!(crate::error::status(&error), crate::error::Status::Usage, "{wrong}");
        }
        assert_eq!(choose_part("5", 6).unwrap(), Part::Block(5));
        assert_eq!(choose_part("head", 6).unwrap(), Part::Head);
        for wrong in ["6", "0-0", "0-1", "", "heads"] {
            assert!(choose_part(wrong, 6).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_are_split_into_all_of_them_in_order_and_none_is_too_small_or_too_large() {
        for rows in [1, 9, 96, 16_383, 16_384, 16_385, 16_390, 16_399, 16_400, 49_152, 49_153, 128_256, 151_936] {
            let parts = split_rows(rows);
            assert_eq!(parts[0].start, 0);
            assert_eq!(parts.last().unwrap().end, rows);
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(parts.iter().all(|part| part.len() <= MAX_OUTPUT), "{parts:?}");
            assert!(parts.len() == 1 || parts.iter().all(|part| part.len() >= MIN_OUTPUT), "{parts:?}");
            assert_eq!(parts.len(), rows.div_ceil(MAX_OUTPUT));
        }
        assert_eq!(split_rows(16_385), [0..16_368, 16_368..16_385]);
        assert_eq!(split_rows(151_936).last(), Some(&(147_456..151_936)));
    }

    #[test]
    fn a_part_has_one_name_everywhere() {
        assert_eq!(Part::Block(3).path(), "block-03.mlpackage");
        assert_eq!([Part::Block(12), Part::Head, Part::Embedding].map(Part::name), ["block-12", "head", "embedding"]);
        assert_eq!([Part::Block(12), Part::Head].map(|part| part.to_string()), ["block 12", "the head"]);
    }
}
