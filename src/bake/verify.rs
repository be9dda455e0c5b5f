//! Compares a native bake with the witness: weights byte for byte, outputs bit for bit.
//!
//! The witness runs coremltools' default passes, which look at weight values: a gain of all ones vanishes, equal
//! consts are merged. Such a package is compared tensor by tensor, and the verdict says what coremltools did. Rows that
//! the quantizer guards (all zero, tiny, huge) are excepted where coremltools' own scale is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use half::f16;
use serde::Serialize;

use super::part::PlannedPart;
use super::pipeline::BakedPart;
use super::stamp::TensorReport;
use crate::coremltools::{Array, Oracle, Python};
use crate::mlpackage::Package;
use crate::mlpackage::blob::BlobDtype;
use crate::mlpackage::compare::{DifferenceKind, Uses, by_name, compare, same_value};
use crate::mlpackage::inventory::{BlobUse, Feature, FunctionInfo};
use crate::quant::{Guard, GuardedGroup};
use crate::runner::random::SplitMix64;

/// Decode steps after the prefill.
const DECODE_STEPS: usize = 3;

/// What hidden states are multiplied with, row by row in turn: a norm's eps counts in small rows alone.
const ROW_SCALES: [f32; 4] = [1.0, 1.0 / 256.0, 64.0, 1.0 / 16.0];

/// How a part's two packages compare.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// `block-00`, `head`.
    pub part: String,
    /// Whether `weight.bin` is byte-identical.
    pub same_weight_file: bool,
    /// What coremltools' passes or its quantizer did to values, where the files differ for that reason alone.
    pub exceptions: Vec<String>,
    /// Differences that nothing excuses.
    pub weight_differences: Vec<String>,
    /// Outputs and states that were compared; 0 where an exception makes the comparison meaningless.
    pub outputs_compared: usize,
    /// Outputs and states that differ, and in how many elements.
    pub output_differences: Vec<String>,
}

impl Verdict {
    /// Whether the native bake stands.
    pub fn passed(&self) -> bool {
        self.weight_differences.is_empty() && self.output_differences.is_empty()
    }
}

/// Compares the packages of one part.
///
/// # Errors
/// A package is malformed, or the oracle cannot run it.
pub fn verify(
    python: &Python,
    planned: &PlannedPart,
    baked: &BakedPart,
    native: &Path,
    witness: &Path,
) -> Result<Verdict> {
    let (left, right) = (Package::open(native)?, Package::open(witness)?);
    let mut verdict = Verdict {
        part: planned.part.name(),
        same_weight_file: false,
        exceptions: Vec::new(),
        weight_differences: Vec::new(),
        outputs_compared: 0,
        output_differences: Vec::new(),
    };
    let comparable = compare_weights(planned, baked, &left, &right, &mut verdict)?;
    if comparable {
        let (left_oracle, right_oracle) = (python.oracle(native)?, python.oracle(witness)?);
        compare_outputs(&left.functions()?, &left_oracle, &right_oracle, &mut verdict)?;
    }
    Ok(verdict)
}

/// Fills in the verdict on weights; returns whether outputs can be compared.
fn compare_weights(
    planned: &PlannedPart,
    baked: &BakedPart,
    left: &Package,
    right: &Package,
    verdict: &mut Verdict,
) -> Result<bool> {
    let difference = compare(left, right)?;
    verdict.same_weight_file = difference.same_weight_file;
    let (ours, theirs) = (by_name(left)?, by_name(right)?);
    let mut comparable = true;
    for value in &difference.values {
        let label = format!("`{}.{}`", value.name, value.part);
        let key = (value.name.clone(), value.part.clone());
        match (&value.kind, ours.get(&key), theirs.get(&key)) {
            (DifferenceKind::OnlyLeft { same_as: Some(other), .. }, ..) => {
                verdict.exceptions.push(format!("coremltools merged {label} into the equal `{other}`"));
            }
            (DifferenceKind::OnlyLeft { all_ones: true, .. }, ..) => {
                verdict.exceptions.push(format!("coremltools removed {label}, which is all ones"));
            }
            (DifferenceKind::OnlyLeft { .. }, Some(own), _) => {
                let near = |other: &&(String, String)| {
                    other.1 == value.part && ours.get(*other).is_some_and(|other| nearly_equal(left, own, other))
                };
                if let Some((other, part)) = theirs.keys().find(near) {
                    comparable = false;
                    verdict.exceptions.push(merged_wrongly(&label, &format!("{other}.{part}")));
                } else {
                    verdict.weight_differences.push(format!("coremltools lacks {label}"));
                }
            }
            (DifferenceKind::Bytes { differing, of }, Some(own), Some(their)) => {
                let report = report(planned, baked, &value.name);
                if let Some(report) = report.filter(|report| explained(report, (left, own), (right, their), &ours)) {
                    comparable &= report.guarded.iter().all(|group| group.reason != Guard::Large);
                    verdict.exceptions.push(format!("{label} differs only in {}", guarded_groups(&report.guarded)));
                } else if let Some(other) = merged_with(&key, &theirs, &ours, left) {
                    comparable = false;
                    verdict.exceptions.push(merged_wrongly(&label, &other));
                } else {
                    verdict.weight_differences.push(format!("{label}: {differing} of {of} bytes differ"));
                }
            }
            (DifferenceKind::Form { left, right }, ..) => {
                verdict.weight_differences.push(format!("{label}: native {left}, coremltools {right}"));
            }
            (DifferenceKind::OnlyRight, ..) => {
                verdict.weight_differences.push(format!("the native package lacks {label}"));
            }
            (DifferenceKind::Bytes { .. } | DifferenceKind::OnlyLeft { .. }, ..) => {
                verdict.weight_differences.push(format!("{label} is in no function"));
            }
        }
    }
    verdict.exceptions.extend(stored_once((left, &ours), (right, &theirs)));
    if !verdict.same_weight_file && verdict.exceptions.is_empty() && verdict.weight_differences.is_empty() {
        verdict
            .weight_differences
            .push("every value is equal, yet `weight.bin` has other bytes between them".to_owned());
    }
    Ok(comparable)
}

fn report<'a>(planned: &PlannedPart, baked: &'a BakedPart, output: &str) -> Option<&'a TensorReport> {
    let stem = output.strip_suffix("_quantized").unwrap_or(output);
    let role = &planned.tensors.iter().find(|planned| planned.tensor.const_name == stem)?.tensor.role;
    baked.tensors.iter().find(|report| report.role == *role && !report.guarded.is_empty())
}

/// For instance `scale group 3 (zero), 7 (underflow) and 5 more`.
fn guarded_groups(groups: &[GuardedGroup]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> =
        groups.iter().take(SHOWN).map(|group| format!("{} ({})", group.index, group.reason.as_str())).collect();
    let more = groups.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("scale group {}{more}", shown.join(", "))
}

fn merged_wrongly(label: &str, other: &str) -> String {
    format!("coremltools merged {label} into the nearly equal `{other}`: its own result is wrong there")
}

/// Whether two values differ in guarded groups alone.
fn explained(report: &TensorReport, ours: (&Package, &BlobUse), theirs: (&Package, &BlobUse), all: &Uses) -> bool {
    let Some(scale) = all.get(&(ours.1.output.clone(), "scale".to_owned())) else { return false };
    let groups = scale.entry.elements();
    let elements = ours.1.entry.elements();
    if groups == 0 || !elements.is_multiple_of(groups) {
        return false;
    }
    let group_len = elements / groups;
    let guarded: BTreeSet<u64> = report.guarded.iter().map(|group: &GuardedGroup| group.index as u64).collect();
    let (a, b) = (ours.1.entry.data(ours.0.weights()), theirs.1.entry.data(theirs.0.weights()));
    let bits = ours.1.entry.dtype.bits();
    (0..elements).all(|element| guarded.contains(&(element / group_len)) || same_element(a, b, element, bits))
}

fn same_element(a: &[u8], b: &[u8], element: u64, bits: u64) -> bool {
    if bits < 8 {
        let (byte, shift) = ((element * bits / 8) as usize, element * bits % 8);
        let mask = (1u16 << bits) as u8 - 1;
        return (a[byte] >> shift) & mask == (b[byte] >> shift) & mask;
    }
    let width = (bits / 8) as usize;
    let at = element as usize * width;
    a[at..at + width] == b[at..at + width]
}

/// Another value of coremltools' package that lies in the very entry of `key`, where the native package has two
/// values that coremltools takes for equal.
fn merged_with(key: &(String, String), theirs: &Uses, ours: &Uses, left: &Package) -> Option<String> {
    let (used, own) = (theirs.get(key)?, ours.get(key)?);
    let other = theirs.iter().find(|(other, shared)| {
        *other != key
            && shared.entry.offset == used.entry.offset
            && ours.get(*other).is_some_and(|other| nearly_equal(left, own, other))
    });
    other.map(|((name, part), _)| format!("{name}.{part}"))
}

/// Equal values that lie in one entry of coremltools' package and in two of the native one.
fn stored_once(ours: (&Package, &Uses), theirs: (&Package, &Uses)) -> Vec<String> {
    let mut first = BTreeMap::new();
    let mut list = Vec::new();
    for (key, used) in theirs.1 {
        let other = *first.entry(used.entry.offset).or_insert(key);
        let (Some(a), Some(b)) = (ours.1.get(key), ours.1.get(other)) else { continue };
        if a.entry.offset != b.entry.offset && same_value((ours.0, a), (ours.0, b)) {
            let ((name, part), (other, other_part)) = (key, other);
            list.push(format!("coremltools stored `{name}.{part}` once with the equal `{other}.{other_part}`"));
        }
    }
    list
}

/// Whether coremltools' const deduplication takes two values for one: `numpy.allclose` with `rtol=0` and an `atol` of
/// 6e-8 for float16, 1e-12 for float32. Codes of weights that were merged as floats may be one step apart.
fn nearly_equal(package: &Package, left: &BlobUse, right: &BlobUse) -> bool {
    if (left.entry.dtype, &left.shape) != (right.entry.dtype, &right.shape) {
        return false;
    }
    let (a, b) = (left.entry.data(package.weights()), right.entry.data(package.weights()));
    match left.entry.dtype {
        BlobDtype::Float16 => {
            let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
            let mut pairs = a.as_chunks().0.iter().zip(b.as_chunks().0);
            pairs.all(|(a, b)| (value(a) - value(b)).abs() <= 6e-8)
        }
        BlobDtype::Float32 => {
            let mut pairs = a.as_chunks().0.iter().zip(b.as_chunks().0);
            pairs.all(|(a, b)| (f32::from_le_bytes(*a) - f32::from_le_bytes(*b)).abs() <= 1e-12)
        }
        BlobDtype::Int8 => a.iter().zip(b).all(|(a, b)| a.cast_signed().abs_diff(b.cast_signed()) <= 1),
        _ => false,
    }
}

/// Prefill at position 0, some decode steps, prefill and a decode step up to the last position, with states carried
/// over. A part without a cache has no last position.
fn compare_outputs(functions: &[FunctionInfo], left: &Oracle, right: &Oracle, verdict: &mut Verdict) -> Result<()> {
    let function = |name: &str| functions.iter().find(|function| function.name == name);
    let (decode, prefill) = (function("decode"), function("prefill"));
    let (decode, prefill) = decode.zip(prefill).context("the package has no functions `decode` and `prefill`")?;
    let tokens = sizes(feature(prefill, "hidden_state").context("the function has no input `hidden_state`")?)[1];
    let mut states = (left.new_state("decode")?, right.new_state("decode")?);
    let mut random = SplitMix64(0x9e37_79b9_7f4a_7c15);
    let mut calls = vec![(prefill, 0)];
    calls.extend((0..DECODE_STEPS).map(|step| (decode, tokens + step)));
    if let Some(context) = context(decode) {
        calls.extend([(prefill, context.saturating_sub(tokens)), (decode, context.saturating_sub(1))]);
        calls.retain(|&(_, position)| position < context);
    }
    for (function, position) in calls {
        let inputs = inputs(function, position, &mut random)?;
        let named: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (name.as_str(), array)).collect();
        let a: BTreeMap<_, _> = left.predict(&function.name, &named, &mut states.0)?.into_iter().collect();
        let b: BTreeMap<_, _> = right.predict(&function.name, &named, &mut states.1)?.into_iter().collect();
        for (name, value) in &a {
            compare_arrays(&format!("{} at {position}: `{name}`", function.name), value, b.get(name), verdict);
        }
        for state in &function.states {
            let (a, b) = (states.0.get(&state.name)?, states.1.get(&state.name)?);
            compare_arrays(&format!("{} at {position}: `{}`", function.name, state.name), &a, Some(&b), verdict);
        }
    }
    Ok(())
}

fn feature<'a>(function: &'a FunctionInfo, name: &str) -> Option<&'a Feature> {
    function.inputs.iter().find(|feature| feature.name == name)
}

fn sizes(feature: &Feature) -> Vec<usize> {
    feature.shape.iter().map(|&size| size as usize).collect()
}

/// Positions of the cache; none for a part without one.
fn context(function: &FunctionInfo) -> Option<usize> {
    match feature(function, "k_past") {
        Some(past) => sizes(past).get(2).copied(),
        None => feature(function, "causal_mask").and_then(|mask| sizes(mask).pop()),
    }
}

/// Inputs for a function's rows at `position`: normal hidden states times [`ROW_SCALES`], a causal mask, and what else a
/// part has. Cosines and sines need not be those of any angle.
fn inputs(function: &FunctionInfo, position: usize, random: &mut SplitMix64) -> Result<Vec<(String, Array)>> {
    let kept_outside = feature(function, "k_past").is_some();
    let mut values = Vec::with_capacity(function.inputs.len());
    for feature in &function.inputs {
        let array = match (&*feature.name, &sizes(feature)[..]) {
            ("hidden_state", shape @ &[_, tokens, width]) => {
                let scale = |row: usize| ROW_SCALES[(position + row) % ROW_SCALES.len()];
                let count = tokens * width;
                let rows: Vec<f16> =
                    (0..count).map(|index| f16::from_f32(scale(index / width) * normal(random))).collect();
                Array::f16(shape, &rows)
            }
            ("causal_mask", shape @ &[_, _, rows, columns]) => {
                // With the cache as an input, the last columns are the rows themselves.
                let own = if kept_outside { columns - rows } else { columns };
                let visible = |row: usize, column: usize| match column.checked_sub(own) {
                    Some(column) => column <= row,
                    None => column < position + if kept_outside { 0 } else { row + 1 },
                };
                let row = |row| (0..columns).map(move |column| if visible(row, column) { 0.0 } else { -1e4 });
                Array::f16(shape, &(0..rows).flat_map(row).map(f16::from_f32).collect::<Vec<_>>())
            }
            ("position_offset", &[1]) => Array::i32(&[1], &[i32::try_from(position).context("position beyond int32")?]),
            ("rope_cos" | "rope_sin", shape @ &[_, _, rows, width]) => {
                let values = std::iter::repeat_with(|| f16::from_f32(normal(random).clamp(-1.0, 1.0)));
                Array::f16(shape, &values.take(rows * width).collect::<Vec<_>>())
            }
            ("write_mask", shape @ &[_, _, context, rows]) => {
                let one = |place: usize| f16::from(u8::from(place / rows == position + place % rows));
                Array::f16(shape, &(0..context * rows).map(one).collect::<Vec<_>>())
            }
            ("k_past" | "v_past", shape @ &[_, heads, context, width]) => {
                let stored = |place: usize| place / width % context < position;
                let mut value = |place| if stored(place) { f16::from_f32(normal(random)) } else { f16::ZERO };
                Array::f16(shape, &(0..heads * context * width).map(&mut value).collect::<Vec<_>>())
            }
            (name, shape) => bail!("input `{name}` of shape {shape:?} is none that a part has"),
        };
        values.push((feature.name.clone(), array));
    }
    Ok(values)
}

fn compare_arrays(label: &str, a: &Array, b: Option<&Array>, verdict: &mut Verdict) {
    verdict.outputs_compared += 1;
    let Some(b) = b else {
        verdict.output_differences.push(format!("{label} is missing from coremltools' package"));
        return;
    };
    if a == b {
        return;
    }
    let (x, y) = (a.to_f32(), b.to_f32());
    let guarded = !verdict.exceptions.is_empty();
    let differs = |(p, q): (&f32, &f32)| p.to_bits() != q.to_bits() && !(guarded && p == q);
    let count = x.iter().zip(&y).filter(|&pair| differs(pair)).count() + x.len().abs_diff(y.len());
    if count > 0 {
        verdict.output_differences.push(format!("{label}: {count} of {} elements differ", x.len()));
    }
}

/// About normal, variance 1: the sum of twelve uniform numbers, less six.
fn normal(random: &mut SplitMix64) -> f32 {
    (0..12).map(|_| (random.bits() >> 40) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0
}
