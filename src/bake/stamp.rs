//! Writes `weight.bin` from a layout and a part's tensors, and flat files of values, without coremltools.

use std::ops::Range;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::layout::{Content, Layout};
use crate::error::Fault;
use crate::mlpackage::blob;
use crate::quant::{self, ComputeDtype, GuardedGroup, QuantError, Scheme, Scratch, Source};

/// Where a part's tensors come from.
pub trait WeightSource {
    /// The values of a tensor, as a matrix `[out, in]` or a vector `[1, n]`; `buffer` holds them where they are not
    /// stored plainly.
    ///
    /// # Errors
    /// The source cannot be read.
    fn values<'a>(&'a self, role: &str, buffer: &'a mut Vec<u8>) -> Result<Source<'a>>;

    /// How a tensor is quantized; `None` leaves it a float.
    fn scheme(&self, role: &str) -> Option<Scheme>;

    /// The tensor's full name, for messages.
    fn name(&self, role: &str) -> String;

    /// Tells that these of the values of `role`, by their number, are not needed any more.
    fn release(&self, _role: &str, _values: Range<u64>) {}
}

/// Values of a tensor after which their memory is given back.
const RELEASED: u64 = 4 << 20;

/// Follows how far a tensor was read, by how much was made of it.
struct Passed<'a> {
    source: &'a dyn WeightSource,
    role: &'a str,
    values: u64,
    released: u64,
}

impl<'a> Passed<'a> {
    fn new(source: &'a dyn WeightSource, role: &'a str) -> Self {
        Self { source, role, values: 0, released: 0 }
    }

    fn add(&mut self, values: u64) {
        self.values += values;
        if self.values - self.released >= RELEASED {
            self.source.release(self.role, self.released..self.values);
            self.released = self.values;
        }
    }
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        self.source.release(self.role, 0..u64::MAX);
    }
}

/// What stamping found out about one tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorReport {
    /// Its role, as `arch` names it.
    pub role: String,
    /// 10 log10(signal power / error power) of the stored values against the source, in dB, to two decimals;
    /// absent where nothing was lost.
    pub sqnr_db: Option<f64>,
    /// Rows or groups whose scale coremltools would have got wrong in silence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guarded: Vec<GuardedGroup>,
}

/// Reused memory of one worker.
#[derive(Default)]
pub struct Workspace {
    scratch: Scratch,
    values: Vec<u8>,
}

/// Hands the whole of `weight.bin` to `sink`, piece by piece.
///
/// # Errors
/// A tensor cannot be read or does not fit the layout; its values cannot be quantized (the tensor is named); the sink
/// fails.
pub fn stamp(
    layout: &Layout,
    statics: &[u8],
    compute: ComputeDtype,
    source: &dyn WeightSource,
    workspace: &mut Workspace,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Vec<TensorReport>> {
    let mut reports = Vec::new();
    let mut scales: Option<(&str, Vec<u8>)> = None;
    let count = u32::try_from(layout.entries.len()).context("layout has too many entries")?;
    sink(&blob::header(count))?;
    let mut position = blob::ALIGNMENT;
    for layout_entry in &layout.entries {
        let entry = layout_entry.entry()?;
        let gap = entry.offset.checked_sub(position).filter(|&gap| gap < blob::ALIGNMENT);
        let Some(gap) = gap else { bail!("layout leaves a hole before offset {}", entry.offset) };
        sink(&[0; blob::ALIGNMENT as usize][..gap as usize])?;
        sink(&entry.metadata())?;
        let mut written = 0;
        let mut content = |bytes: &[u8]| -> Result<()> {
            written += bytes.len() as u64;
            sink(bytes)
        };
        match &layout_entry.content {
            Content::Static { offset } => {
                let bytes = usize::try_from(*offset)
                    .ok()
                    .and_then(|start| statics.get(start..start.checked_add(entry.size as usize)?))
                    .context("layout names static bytes that the template lacks")?;
                content(bytes)?;
            }
            Content::Value { role } => reports.push(convert(role, compute, source, workspace, &mut content, OVERFLOW)?),
            Content::Data { role } => {
                let scheme = source.scheme(role).with_context(|| format!("no scheme for `{role}`"))?;
                let values = source.values(role, &mut workspace.values)?;
                let mut passed = Passed::new(source, role);
                let done = quant::quantize(&values, &scheme, &mut workspace.scratch, &mut |bytes| {
                    content(bytes)?;
                    passed.add((bytes.len() / scheme.dtype.packed_len(2)) as u64 * 2);
                    Ok(())
                })
                .map_err(|error| tensor_error(error, &source.name(role), OVERFLOW))?;
                reports.push(TensorReport {
                    role: role.clone(),
                    sqnr_db: decibels(done.report.sqnr_db),
                    guarded: done.report.guarded,
                });
                scales = Some((role, done.scales));
            }
            Content::Scale { role } => match scales.take() {
                Some((owner, bytes)) if owner == role => content(&bytes)?,
                _ => bail!("layout has the scales of `{role}` without its data right before"),
            },
        }
        if written != entry.size {
            bail!("entry at offset {} takes {} bytes, the tensor gives {written}", entry.offset, entry.size);
        }
        position = entry.end();
    }
    if position != layout.size {
        bail!("layout ends at {position}, the template at {}", layout.size);
    }
    Ok(reports)
}

/// Hands the values of tensors to `sink`, one after the other, little-endian, in the compute dtype.
///
/// # Errors
/// As [`stamp`].
pub fn flat<'a>(
    roles: impl IntoIterator<Item = &'a str>,
    compute: ComputeDtype,
    source: &dyn WeightSource,
    workspace: &mut Workspace,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Vec<TensorReport>> {
    roles.into_iter().map(|role| convert(role, compute, source, workspace, sink, OVERFLOW_IN_FLAT)).collect()
}

/// An unquantized tensor.
fn convert(
    role: &str,
    compute: ComputeDtype,
    source: &dyn WeightSource,
    workspace: &mut Workspace,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    overflow: &str,
) -> Result<TensorReport> {
    let values = source.values(role, &mut workspace.values)?;
    let mut passed = Passed::new(source, role);
    let report = quant::convert(&values, compute, &mut workspace.scratch, &mut |bytes| {
        sink(bytes)?;
        passed.add((bytes.len() / compute.size()) as u64);
        Ok(())
    })
    .map_err(|error| tensor_error(error, &source.name(role), overflow))?;
    Ok(TensorReport { role: role.to_owned(), sqnr_db: decibels(report.sqnr_db), guarded: vec![] })
}

fn decibels(value: f64) -> Option<f64> {
    value.is_finite().then(|| (value * 100.0).round() / 100.0)
}

/// What to do about values beyond float16 in a package.
const OVERFLOW: &str =
    "values above 65504 need `--set package.compute_precision=float32` (which never runs on the Neural Engine)";

/// What to do about values beyond float16 in a flat file.
const OVERFLOW_IN_FLAT: &str =
    "packages take float16 rows, so no recipe can keep such values: bake the blocks alone with `--only`";

/// Names the tensor and says what to do about values that cannot be stored; `overflow` about those beyond float16.
fn tensor_error(error: anyhow::Error, name: &str, overflow: &str) -> anyhow::Error {
    let hint = match error.downcast_ref::<QuantError>() {
        Some(QuantError::NonFinite { .. }) => "the checkpoint is damaged: fetch or save it again",
        Some(QuantError::Overflows16 { .. }) => overflow,
        Some(QuantError::BlockSize { .. }) => {
            "choose a `weights.block_size` that divides the columns of every projection"
        }
        Some(QuantError::Length { .. } | QuantError::Empty { .. }) => {
            "the checkpoint is damaged: fetch or save it again"
        }
        None => return error,
    };
    let status = match error.downcast_ref::<QuantError>() {
        Some(QuantError::BlockSize { .. }) => Fault::usage(format!("cannot quantize tensor `{name}`")),
        _ => Fault::input(format!("cannot use tensor `{name}`")),
    };
    status.with_hint(hint).with_source(error).into()
}

#[cfg(test)]
mod tests {
    use super::super::layout::LayoutEntry;
    use super::*;
    use crate::quant::SourceDtype;

    struct Ones(Vec<u8>);

    impl WeightSource for Ones {
        fn values<'a>(&'a self, _: &str, _: &'a mut Vec<u8>) -> Result<Source<'a>> {
            Ok(Source { dtype: SourceDtype::F32, bytes: &self.0, rows: 1, cols: self.0.len() / 4 })
        }
        fn scheme(&self, _: &str) -> Option<Scheme> {
            None
        }
        fn name(&self, role: &str) -> String {
            format!("model.layers.7.{role}")
        }
    }

    fn gain_layout(elements: u64) -> Layout {
        let content = Content::Value { role: "input_layernorm.weight".to_owned() };
        let entry = LayoutEntry { offset: 64, dtype: "fp16".to_owned(), elements, content };
        Layout { size: 128 + 2 * elements, entries: vec![entry] }
    }

    fn values(list: &[f32]) -> Ones {
        Ones(list.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    fn refusal(source: &Ones) -> anyhow::Error {
        let mut workspace = Workspace::default();
        stamp(&gain_layout(2), &[], ComputeDtype::F16, source, &mut workspace, &mut |_| Ok(())).unwrap_err()
    }

    #[test]
    fn a_value_that_fp16_cannot_hold_is_refused_with_the_tensor_and_a_hint() {
        let error = refusal(&values(&[1.0, 70_000.0]));
        assert!(error.to_string().contains("`model.layers.7.input_layernorm.weight`"), "{error:#}");
        assert_eq!(crate::error::status(&error), crate::error::Status::Input);
        assert!(crate::error::hints(&error).next().unwrap().contains("float32"));
    }

    #[test]
    fn a_tensor_of_another_length_than_the_layout_is_refused() {
        let error = refusal(&values(&[1.0, 2.0, 3.0]));
        assert!(error.to_string().contains("takes 4 bytes, the tensor gives 6"), "{error:#}");
    }
}
