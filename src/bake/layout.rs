//! Where every tensor of a part lies in `weight.bin`: learned from a template package, used to stamp others.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::mlpackage::blob::{BlobDtype, Entry};
use crate::mlpackage::inventory::BlobUse;

/// What an entry of `weight.bin` holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// The same bytes in every package of the template, at this offset of the template's static bytes.
    Static {
        /// Offset in the static bytes.
        offset: u64,
    },
    /// An unquantized tensor.
    Value {
        /// Its role, as `arch` names it.
        role: String,
    },
    /// The packed integers of a quantized tensor.
    Data {
        /// Its role, as `arch` names it.
        role: String,
    },
    /// The scales of the quantized tensor whose data came before.
    Scale {
        /// Its role, as `arch` names it.
        role: String,
    },
}

/// One entry, in file order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutEntry {
    /// Offset of the metadata.
    pub offset: u64,
    /// Dtype as MIL spells it.
    pub dtype: String,
    /// Number of elements.
    pub elements: u64,
    /// What it holds.
    pub content: Content,
}

impl LayoutEntry {
    /// The entry as the blob format describes it.
    ///
    /// # Errors
    /// The dtype is unknown: the layout was written by another version.
    pub fn entry(&self) -> Result<Entry> {
        BlobDtype::from_mil(&self.dtype)
            .and_then(|dtype| Entry::new(dtype, self.elements, self.offset))
            .with_context(|| format!("layout entry of dtype `{}`", self.dtype))
    }
}

/// The layout of `weight.bin`, every byte of it: a header, the entries, and zeros between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Size of the file in bytes.
    pub size: u64,
    /// Entries by offset.
    pub entries: Vec<LayoutEntry>,
}

/// A tensor that the template was made with.
#[derive(Clone, Copy, Debug)]
pub struct TemplateTensor<'a> {
    /// Its role, as `arch` names it.
    pub role: &'a str,
    /// Name of the const in the program.
    pub const_name: &'a str,
    /// Whether the program holds it quantized.
    pub quantized: bool,
}

/// Suffix that a quantized const's name carries in the program.
const QUANTIZED_SUFFIX: &str = "_quantized";

/// Learns the layout of a template package. Returns it with the static bytes.
///
/// # Errors
/// An entry of the file is used by nothing, by two tensors, or by a const that neither carries a tensor nor is listed
/// in `statics`; a tensor is missing from the file; scales come before their data.
pub fn learn(
    uses: &[BlobUse],
    file: &[u8],
    tensors: &[TemplateTensor<'_>],
    statics: &[String],
) -> Result<(Layout, Vec<u8>)> {
    let mut by_offset: BTreeMap<u64, (Entry, Content)> = BTreeMap::new();
    let mut static_bytes = Vec::new();
    for used in uses {
        let content = classify(used, tensors, statics)?;
        match by_offset.get(&used.entry.offset) {
            None => {
                let content = match content {
                    Content::Static { .. } => {
                        let offset = static_bytes.len() as u64;
                        static_bytes.extend_from_slice(used.entry.data(file));
                        Content::Static { offset }
                    }
                    other => other,
                };
                by_offset.insert(used.entry.offset, (used.entry, content));
            }
            Some((_, Content::Static { .. })) if matches!(content, Content::Static { .. }) => {}
            Some((_, known)) if *known == content => {}
            Some((_, known)) => bail!("one entry of `weight.bin` holds both {known:?} and {content:?}"),
        }
    }
    for tensor in tensors {
        let role = tensor.role.to_owned();
        let wanted: &[Content] = if tensor.quantized {
            &[Content::Data { role: role.clone() }, Content::Scale { role }]
        } else {
            &[Content::Value { role }]
        };
        let mut last = 0;
        for content in wanted {
            let places: Vec<u64> = by_offset.iter().filter(|(_, (_, c))| c == content).map(|(&o, _)| o).collect();
            match places[..] {
                [place] if place > last => last = place,
                [_] => bail!("scales of `{}` come before its data", tensor.role),
                [] => bail!(
                    "`weight.bin` has no {content:?}: values of fewer than 10 elements are stored in the program instead"
                ),
                _ => bail!("`weight.bin` has {content:?} {} times", places.len()),
            }
        }
    }
    let entries = by_offset
        .into_values()
        .map(|(entry, content)| LayoutEntry {
            offset: entry.offset,
            dtype: entry.dtype.as_str().to_owned(),
            elements: entry.elements(),
            content,
        })
        .collect();
    Ok((Layout { size: file.len() as u64, entries }, static_bytes))
}

fn classify(used: &BlobUse, tensors: &[TemplateTensor<'_>], statics: &[String]) -> Result<Content> {
    let stem = used.output.strip_suffix(QUANTIZED_SUFFIX);
    for tensor in tensors {
        let role = tensor.role.to_owned();
        match (tensor.quantized, used.op.as_str(), used.slot.as_str()) {
            (false, "const", "val") if used.output == tensor.const_name => return Ok(Content::Value { role }),
            (true, "constexpr_blockwise_shift_scale", "data") if stem == Some(tensor.const_name) => {
                return Ok(Content::Data { role });
            }
            (true, "constexpr_blockwise_shift_scale", "scale") if stem == Some(tensor.const_name) => {
                return Ok(Content::Scale { role });
            }
            _ => {}
        }
    }
    if used.op == "const" && statics.contains(&used.output) {
        return Ok(Content::Static { offset: 0 });
    }
    bail!("`{}` of op `{}` (`{}`) belongs to no tensor of the part", used.slot, used.output, used.op)
}
