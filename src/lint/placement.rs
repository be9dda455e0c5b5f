//! A static estimate of what the ANE cannot take.
//!
//! An op is *kept off* where something about it is known to have kept an op of its kind off the ANE: its dtype, rank,
//! sizes, type, shapes known only at run time, integers, several scales for an output channel. For the others nothing is
//! known: that is no promise. What a device makes of them is shown by its compute plan, and where they ran by its logs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::view::{Function, Graph, Op, Value, is_integer};
use crate::mlpackage::spec;

/// The most axes of a value.
pub const MOST_AXES: usize = 5;
/// The longest of the last two axes.
pub const LONGEST_INNER: u64 = 16_384;
/// The longest of the other axes.
pub const LONGEST_OUTER: u64 = 65_536;

/// Types of ops that were reported off the ANE whatever they take.
const OFF: &[&str] = &[
    "gather",
    "gather_nd",
    "gather_along_axis",
    "lstm",
    "gru",
    "rnn",
    "while_loop",
    "cond",
    "topk",
    "argsort",
    "non_zero",
    "non_maximum_suppression",
    "make_list",
    "list_read",
    "list_write",
    "list_gather",
    "list_scatter",
    "list_length",
];

/// What a function looks like to the ANE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// Function.
    pub function: String,
    /// Ops that run; constants and decompressed weights are none.
    pub ops: usize,
    /// Those for which nothing is known that keeps them off the ANE.
    pub free: usize,
    /// Those between inputs and outputs that give or take integers or truth values.
    pub integer: usize,
    /// The others, by reason and type.
    pub off: Vec<Off>,
}

/// Ops of one type that are kept off for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Off {
    /// Type of the ops.
    pub op: String,
    /// The first reason that holds for them.
    pub why: String,
    /// Names of their outputs.
    pub names: Vec<String>,
}

impl Estimate {
    /// Of a function.
    pub fn new(function: &Function<'_>) -> Self {
        let (mut ops, mut free) = (0, 0);
        let mut off: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
        for op in function.runtime_ops() {
            ops += 1;
            match kept_off(function, op) {
                Some(why) => off.entry((why, op.kind())).or_default().push(op.name().to_owned()),
                None => free += 1,
            }
        }
        let off = off.into_iter().map(|((why, op), names)| Off { op: op.to_owned(), why, names }).collect();
        Self { function: function.name.to_owned(), ops, free, integer: integer_ops(function).count(), off }
    }

    /// Of every function.
    pub fn of(graph: &Graph<'_>) -> Vec<Self> {
        graph.functions.iter().map(Self::new).collect()
    }

    /// In words.
    pub fn sentence(&self) -> String {
        format!("estimate: {} of {} ops have nothing that is known to keep them off the ANE", self.free, self.ops)
    }
}

/// Ops between inputs and outputs that give or take integers or truth values at run time, with what they do.
pub fn integer_ops<'f, 'a>(function: &'f Function<'a>) -> impl Iterator<Item = (&'f Op<'a>, String)> {
    function.between().filter_map(|op| Some((op, integer(function, op)?)))
}

/// What an op has to do with integers at run time.
fn integer(function: &Function<'_>, op: &Op<'_>) -> Option<String> {
    if let Some(dtype) = op.results().filter_map(spec::TensorType::dtype).find(|dtype| is_integer(dtype)) {
        return Some(format!("gives {dtype}"));
    }
    let mut taken = function.taken(op);
    let (parameter, _, value) = taken.find(|(.., value)| is_integer(value.dtype()))?;
    Some(format!("takes `{parameter}` as {} at run time", value.dtype()))
}

/// The first thing about an op that is known to keep it off the ANE.
pub fn kept_off(function: &Function<'_>, op: &Op<'_>) -> Option<String> {
    let results = || op.results();
    let taken = || function.taken(op).map(|(.., value)| value);
    let wide = |dtype: &&str| matches!(*dtype, "fp32" | "fp64");
    if let Some(dtype) = results().filter_map(spec::TensorType::dtype).find(wide) {
        return Some(format!("gives {dtype}"));
    }
    if let Some(dtype) = taken().map(Value::dtype).find(wide) {
        return Some(format!("takes {dtype}"));
    }
    if let Some(what) = integer(function, op) {
        return Some(what);
    }
    if OFF.contains(&op.kind()) {
        return Some("type of op".to_owned());
    }
    let shapes: Vec<Vec<Option<u64>>> = results().map(super::view::sizes).chain(taken().map(Value::shape)).collect();
    if shapes.iter().flatten().any(Option::is_none) {
        return Some("shape known at run time".to_owned());
    }
    if let Some(rank) = shapes.iter().map(Vec::len).find(|&rank| rank > MOST_AXES) {
        return Some(format!("rank {rank}"));
    }
    if let Some(size) = shapes.iter().find_map(|shape| too_long(shape)) {
        return Some(format!("axis of {size}"));
    }
    if let Some(what) = convolution(function, op) {
        return Some(what.to_owned());
    }
    let scaled =
        super::weights::weight_of(function, op).is_some_and(|weight| super::weights::is_grouped(function, weight));
    scaled.then(|| "weight with several scales along its inputs".to_owned())
}

/// The first axis that is longer than the ANE takes.
pub fn too_long(shape: &[Option<u64>]) -> Option<u64> {
    let inner = shape.len().saturating_sub(2);
    shape
        .iter()
        .enumerate()
        .find_map(|(axis, size)| size.filter(|&size| size > if axis < inner { LONGEST_OUTER } else { LONGEST_INNER }))
}

/// Dilated and depthwise convolutions.
fn convolution(function: &Function<'_>, op: &Op<'_>) -> Option<&'static str> {
    if op.kind() != "conv" {
        return None;
    }
    if function.integers(op, "dilations").is_some_and(|dilations| dilations.iter().any(|&d| d > 1)) {
        return Some("dilated");
    }
    is_depthwise(function, op).then_some("depthwise")
}

/// Whether a convolution has as many groups as channels, and more than one.
pub fn is_depthwise(function: &Function<'_>, op: &Op<'_>) -> bool {
    let groups = function.integers(op, "groups").and_then(|groups| groups.first().copied()).unwrap_or(1);
    let channels = function.argument(op, "x").and_then(|(_, x)| x.shape().get(1).copied().flatten());
    op.kind() == "conv" && groups > 1 && channels == u64::try_from(groups).ok()
}
