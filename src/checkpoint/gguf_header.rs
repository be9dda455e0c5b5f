//! The front matter of a GGUF file: metadata and the table of tensors.
//!
//! Reads in place and steps over what no model description needs (the tokenizer's arrays are most of the front
//! matter); where the tokenizer's values lie is remembered, and they are read when asked for. Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anamnesis::GgufType;
use anyhow::{Context, Result, bail};

use super::{Encoding, Stored};
use crate::arch::GgufValue;
use crate::error::Fault;
use crate::quant::SourceDtype;

const DEFAULT_ALIGNMENT: u64 = 32;
/// `GGML_MAX_DIMS`.
const MAX_DIMENSIONS: u32 = 4;
/// Integer arrays up to this length are kept: per-block values, not tokenizer data.
const MAX_KEPT: u64 = 4096;

/// What stands before the tensor data.
#[derive(Debug)]
pub(super) struct FrontMatter {
    pub(super) metadata: HashMap<String, GgufValue>,
    pub(super) tensors: HashMap<String, Stored>,
    pub(super) tokenizer: TokenizerValues,
}

/// Where the values of the keys `tokenizer.*` lie in the file, value types before them.
pub(super) type TokenizerValues = BTreeMap<String, Range<usize>>;

/// Reads the front matter from the bytes of a whole file.
///
/// # Errors
/// Input faults: not GGUF, a version or byte order that is not read, cut short, or ranges outside the file.
pub(super) fn read(bytes: &[u8]) -> Result<FrontMatter> {
    let mut cursor = Cursor { bytes, position: 0 };
    read_version(&mut cursor)?;
    let tensor_count = cursor.u64()?;
    let metadata_count = cursor.u64()?;
    let mut metadata = HashMap::new();
    let mut tokenizer = TokenizerValues::new();
    for _ in 0..metadata_count {
        let key = cursor.string().context("metadata key")?;
        let start = cursor.position;
        let kind = cursor.u32()?;
        let value = cursor.value(kind).with_context(|| format!("metadata `{key}`"))?;
        if key.starts_with("tokenizer.") {
            tokenizer.insert(key.clone(), start..cursor.position);
        }
        if metadata.insert(key.clone(), value).is_some() {
            bail!(Fault::input(format!("metadata `{key}` is there twice")));
        }
    }
    let mut table = Vec::new();
    for _ in 0..tensor_count {
        let name = cursor.string().context("tensor name")?;
        let tensor = read_tensor(&mut cursor).with_context(|| format!("tensor `{name}`"))?;
        table.push((name, tensor));
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(GgufValue::Integer(value)) if *value > 0 && *value <= 1 << 20 && value.count_ones() == 1 => *value as u64,
        Some(other) => bail!(Fault::input(format!("`general.alignment` is {other:?}; it must be a power of two"))),
    };
    let data = (cursor.position as u64).next_multiple_of(alignment);
    let tensors = place(table, data, alignment, bytes.len() as u64)?;
    Ok(FrontMatter { metadata, tensors, tokenizer })
}

/// A value of the tokenizer.
pub(super) enum TokenizerValue<'a> {
    Scalar(GgufValue),
    Text(&'a str),
    Texts(Vec<&'a str>),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    /// An array of other elements.
    Other,
}

/// Reads the value, type first, that `bytes` are.
///
/// # Errors
/// Input faults: as [`read`].
pub(super) fn tokenizer_value(bytes: &[u8]) -> Result<TokenizerValue<'_>> {
    let mut cursor = Cursor { bytes, position: 0 };
    match cursor.u32()? {
        8 => Ok(TokenizerValue::Text(cursor.text()?)),
        9 => {
            let kind = cursor.u32()?;
            let length = cursor.u64()?;
            match kind {
                8 => Ok(TokenizerValue::Texts((0..length).map(|_| cursor.text()).collect::<Result<_>>()?)),
                6 => {
                    let floats = (0..length).map(|_| Ok(f32::from_le_bytes(cursor.array()?)));
                    Ok(TokenizerValue::Floats(floats.collect::<Result<_>>()?))
                }
                0..=5 | 10 | 11 => {
                    let integers = (0..length).map(|_| match cursor.scalar(kind)? {
                        GgufValue::Integer(value) => Ok(i64::try_from(value).unwrap_or(i64::MAX)),
                        _ => Ok(0),
                    });
                    Ok(TokenizerValue::Integers(integers.collect::<Result<_>>()?))
                }
                _ => Ok(TokenizerValue::Other),
            }
        }
        kind => Ok(TokenizerValue::Scalar(cursor.scalar(kind)?)),
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<()> {
    let magic = cursor.take(4)?;
    if magic != b"GGUF" {
        bail!(Fault::input(format!("not a GGUF file: it starts with `{}`", magic.escape_ascii())));
    }
    match cursor.u32()? {
        2 | 3 => Ok(()),
        1 => bail!(
            Fault::input("GGUF version 1 is not read; versions 2 and 3 are")
                .with_hint("convert the model again with a current llama.cpp")
        ),
        version if matches!(version.swap_bytes(), 1..=3) => bail!(
            Fault::input("the file is big-endian; only little-endian GGUF is read")
                .with_hint("gguf-convert-endian FILE little")
        ),
        version => bail!(Fault::input(format!("GGUF version {version} is not read; versions 2 and 3 are"))),
    }
}

/// Reads one entry of the table; `offset` is still relative to the data.
fn read_tensor(cursor: &mut Cursor<'_>) -> Result<Stored> {
    let dimensions = cursor.u32()?;
    if dimensions > MAX_DIMENSIONS {
        bail!(Fault::input(format!("{dimensions} dimensions are beyond the limit of {MAX_DIMENSIONS}")));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let size = cursor.u64()?;
        shape.push(usize::try_from(size).ok().ok_or_else(|| Fault::input(format!("a dimension is {size}")))?);
    }
    let code = cursor.u32()?;
    let offset = cursor.u64()?;
    let ggml = ggml_type(code).ok_or_else(|| Fault::input(format!("ggml type {code} is not known")))?;
    let elements = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    let elements = elements.ok_or_else(|| Fault::input(format!("shape {shape:?} is too large")))?;
    if let Some(&row) = shape.first().filter(|&&row| !row.is_multiple_of(ggml.block_size())) {
        bail!(Fault::input(format!("rows of {row} are not a multiple of {ggml}'s block size {}", ggml.block_size())));
    }
    let length = ggml.byte_size_for_n_elements(elements as u64);
    let length = length.map_err(|error| Fault::input(format!("{ggml} of shape {shape:?}")).with_source(error))?;
    // GGUF lists the fastest dimension first.
    shape.reverse();
    let encoding = match ggml {
        GgufType::F32 => Encoding::GgmlPlain(SourceDtype::F32),
        GgufType::F16 => Encoding::GgmlPlain(SourceDtype::F16),
        GgufType::BF16 => Encoding::GgmlPlain(SourceDtype::Bf16),
        ggml if ggml.is_quantized() => Encoding::Ggml(ggml),
        other => Encoding::Unsupported(format!("ggml:{other}")),
    };
    Ok(Stored { encoding, shape, file: 0, offset, length })
}

/// Turns relative offsets into offsets in the file, and refuses ranges that are misaligned, outside or shared.
fn place(table: Vec<(String, Stored)>, data: u64, alignment: u64, size: u64) -> Result<HashMap<String, Stored>> {
    let mut tensors = HashMap::with_capacity(table.len());
    let mut ranges = Vec::with_capacity(table.len());
    for (name, mut stored) in table {
        let relative = stored.offset;
        if !relative.is_multiple_of(alignment) {
            bail!(Fault::input(format!("tensor `{name}` lies at {relative}, not a multiple of {alignment}")));
        }
        let start = data.checked_add(relative);
        let Some((start, end)) = start.and_then(|start| Some((start, start.checked_add(stored.length)?))) else {
            bail!(Fault::input(format!("tensor `{name}` lies at {relative}, beyond any file")));
        };
        if end > size {
            bail!(
                Fault::input(format!(
                    "tensor `{name}` ends at byte {end}, but the file has {size}: the file is cut short"
                ))
                .with_hint("download the file again")
            );
        }
        stored.offset = start;
        ranges.push((start, end, name.clone()));
        if tensors.insert(name.clone(), stored).is_some() {
            bail!(Fault::input(format!("tensor `{name}` is there twice")));
        }
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [(_, end, before), (start, _, name)] = pair
            && start < end
        {
            bail!(Fault::input(format!("tensor `{name}` overlaps tensor `{before}`")));
        }
    }
    Ok(tensors)
}

/// `enum ggml_type` of `ggml.h`.
fn ggml_type(code: u32) -> Option<GgufType> {
    Some(match code {
        0 => GgufType::F32,
        1 => GgufType::F16,
        2 => GgufType::Q4_0,
        3 => GgufType::Q4_1,
        6 => GgufType::Q5_0,
        7 => GgufType::Q5_1,
        8 => GgufType::Q8_0,
        9 => GgufType::Q8_1,
        10 => GgufType::Q2_K,
        11 => GgufType::Q3_K,
        12 => GgufType::Q4_K,
        13 => GgufType::Q5_K,
        14 => GgufType::Q6_K,
        15 => GgufType::Q8_K,
        16 => GgufType::IQ2_XXS,
        17 => GgufType::IQ2_XS,
        18 => GgufType::IQ3_XXS,
        19 => GgufType::IQ1_S,
        20 => GgufType::IQ4_NL,
        21 => GgufType::IQ3_S,
        22 => GgufType::IQ2_S,
        23 => GgufType::IQ4_XS,
        24 => GgufType::I8,
        25 => GgufType::I16,
        26 => GgufType::I32,
        27 => GgufType::I64,
        28 => GgufType::F64,
        29 => GgufType::IQ1_M,
        30 => GgufType::BF16,
        34 => GgufType::TQ1_0,
        35 => GgufType::TQ2_0,
        39 => GgufType::MXFP4,
        40 => GgufType::NVFP4,
        41 => GgufType::Q1_0,
        42 => GgufType::Q2_0,
        _ => return None,
    })
}

struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.position..];
        let taken = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| {
            Fault::input(format!(
                "{length} bytes are said to follow byte {}, but the file has {}: it is cut short or damaged",
                self.position,
                self.bytes.len()
            ))
            .with_hint("download the file again")
        })?;
        self.position += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N as u64)?;
        Ok(taken.try_into().expect("`take` gives the length asked for"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'a str> {
        let length = self.u64()?;
        let text = std::str::from_utf8(self.take(length)?);
        Ok(text.map_err(|error| Fault::input("a string is not UTF-8").with_source(error))?)
    }

    fn string(&mut self) -> Result<String> {
        Ok(self.text()?.to_owned())
    }

    fn value(&mut self, kind: u32) -> Result<GgufValue> {
        match kind {
            8 => Ok(GgufValue::Text(self.string()?)),
            9 => self.list(),
            kind => self.scalar(kind),
        }
    }

    fn scalar(&mut self, kind: u32) -> Result<GgufValue> {
        Ok(match kind {
            0 => GgufValue::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => GgufValue::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => GgufValue::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => GgufValue::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => GgufValue::Integer(self.u32()?.into()),
            5 => GgufValue::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => GgufValue::Float(widen(f32::from_le_bytes(self.array()?))),
            7 => GgufValue::Bool(self.array::<1>()? != [0]),
            10 => GgufValue::Integer(self.u64()?.into()),
            11 => GgufValue::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => GgufValue::Float(f64::from_le_bytes(self.array()?)),
            kind => bail!(Fault::input(format!("value type {kind} is not known"))),
        })
    }

    fn list(&mut self) -> Result<GgufValue> {
        let kind = self.u32()?;
        let length = self.u64()?;
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => {
                for _ in 0..length {
                    let length = self.u64()?;
                    self.take(length)?;
                }
                return Ok(GgufValue::Array { length });
            }
            kind => bail!(Fault::input(format!("arrays of value type {kind} are not read"))),
        };
        if matches!(kind, 0..=5 | 10 | 11) && length <= MAX_KEPT {
            let mut values = Vec::new();
            for _ in 0..length {
                if let GgufValue::Integer(value) = self.scalar(kind)? {
                    values.push(value);
                }
            }
            return Ok(GgufValue::Integers(values));
        }
        self.take(length.saturating_mul(width))?;
        Ok(GgufValue::Array { length })
    }
}

/// Widens through the shortest decimal that reads back as the same float32.
fn widen(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
