//! A Hugging Face folder: `config.json`, and `model.safetensors` or the shards of `model.safetensors.index.json`.
//!
//! The header is read here rather than by the `safetensors` crate, whose errors do not name the tensor at fault and
//! which keeps the last of two tensors of one name. Format:
//! <https://huggingface.co/docs/safetensors/index#format>.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::fmt;
use std::path::{Component, Path};

use anyhow::{Context, Result, bail};
use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::file::{MappedFile, read_json};
use super::tokenizer::TokenizerSource;
use super::{Encoding, Layout, Opened, Stored};
use crate::arch::ModelConfig;
use crate::error::{Fault, OrFault};
use crate::quant::SourceDtype;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// As the `safetensors` crate has it.
const MAX_HEADER: u64 = 100_000_000;

/// Opens a folder: its config, its files, and where each tensor lies.
pub(super) fn open(folder: &Path) -> Result<Opened> {
    let config_path = folder.join("config.json");
    if !config_path.exists() {
        bail!(no_model(folder, "config.json"));
    }
    let config: serde_json::Value = read_json(&config_path)?;
    let (files, tensors) = if folder.join(SINGLE).exists() {
        open_files(folder, [SINGLE])?
    } else if folder.join(INDEX).exists() {
        open_shards(folder)?
    } else {
        bail!(no_model(folder, SINGLE));
    };
    let config = ModelConfig::from_hugging_face(&config, tensors.contains_key("lm_head.weight"))
        .with_context(|| format!("cannot use `{}`", config_path.display()))?;
    // A model saved without its head lacks the prefix, and transformers reads both.
    let bare = tensors.contains_key("embed_tokens.weight") && !tensors.contains_key("model.embed_tokens.weight");
    let layout = Layout::HuggingFace { prefix: if bare { "" } else { "model." } };
    Ok(Opened { config, layout, files, tensors, tokenizer: TokenizerSource::Folder })
}

fn no_model(folder: &Path, missing: &str) -> Fault {
    let fault = Fault::input(format!("`{}` holds no `{missing}`", folder.display()));
    let names = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<_> = names.filter(|path| path.is_file()).collect();
    names.sort();
    let with_extension = |extension: &str| names.iter().find(|path| path.extension().is_some_and(|e| e == extension));
    if let Some(gguf) = with_extension("gguf") {
        fault.with_hint(format!("--model {}", gguf.display()))
    } else if folder.join("adapter_config.json").exists() {
        fault.with_hint("this is an adapter: merge it into its base model and give the merged folder")
    } else if with_extension("safetensors").is_some() {
        fault.with_hint(format!("download `config.json` and `{INDEX}` of the model as well"))
    } else if with_extension("bin").or_else(|| with_extension("pth")).is_some() {
        fault.with_hint(
            "PyTorch pickles are not read: save the model with `save_pretrained(…)`, which writes safetensors",
        )
    } else {
        fault.with_hint("give a Hugging Face folder with `config.json` and `model.safetensors`, or a `.gguf` file")
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn open_shards(folder: &Path) -> Result<(Vec<MappedFile>, HashMap<String, Stored>)> {
    let path = folder.join(INDEX);
    let index: Index = read_json(&path)?;
    let listed = || format!("cannot use `{}`", path.display());
    let mut shards: Vec<&str> = Vec::new();
    for (tensor, shard) in &index.weight_map {
        let mut parts = Path::new(shard).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            let fault =
                Fault::input(format!("tensor `{tensor}` is said to lie in `{shard}`, which is not a file name"));
            return Err(fault).with_context(listed);
        }
        if !shards.contains(&shard.as_str()) {
            if !folder.join(shard).exists() {
                let fault = Fault::input(format!("tensor `{tensor}` is said to lie in `{shard}`, which is missing"))
                    .with_hint(format!("download `{shard}` into `{}`", folder.display()));
                return Err(fault).with_context(listed);
            }
            shards.push(shard);
        }
    }
    shards.sort_unstable();
    let (files, tensors) = open_files(folder, shards.iter().copied())?;
    for (tensor, shard) in &index.weight_map {
        if tensors.get(tensor).is_none_or(|stored| shards[stored.file] != shard) {
            let fault = Fault::input(format!("tensor `{tensor}` is said to lie in `{shard}`, which does not hold it"));
            return Err(fault).with_context(listed);
        }
    }
    Ok((files, tensors))
}

fn open_files<'a>(
    folder: &Path,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(Vec<MappedFile>, HashMap<String, Stored>)> {
    let mut files: Vec<MappedFile> = Vec::new();
    let mut tensors = HashMap::new();
    for (index, name) in names.into_iter().enumerate() {
        let path = folder.join(name);
        let file = MappedFile::open(&path)?;
        let header = read_header(file.bytes(), index).with_context(|| format!("cannot read `{}`", path.display()))?;
        for (tensor, stored) in header {
            match tensors.entry(tensor) {
                Entry::Vacant(slot) => {
                    slot.insert(stored);
                }
                Entry::Occupied(slot) => bail!(Fault::input(format!(
                    "tensor `{}` is both in `{}` and in `{}`",
                    slot.key(),
                    files[slot.get().file].source().path.display(),
                    path.display()
                ))),
            }
        }
        files.push(file);
    }
    Ok((files, tensors))
}

/// The tensors of one file, in the order in which they lie in it. `file` is the file's index.
fn read_header(bytes: &[u8], file: usize) -> Result<Vec<(String, Stored)>> {
    let again = "the file is damaged or not a safetensors file: download it again";
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        bail!(Fault::input(format!("{} bytes are too few for a header", bytes.len())).with_hint(again));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        bail!(Fault::input(format!("a header of {length} bytes is beyond the limit of {MAX_HEADER}")).with_hint(again));
    }
    let Some(json) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
        bail!(Fault::input(format!("the header has {length} bytes, but only {} follow", rest.len())).with_hint(again));
    };
    let Header(entries) = serde_json::from_slice(json).or_fault(|| Fault::input("invalid header").with_hint(again))?;
    let data = 8 + length;
    let available = bytes.len() as u64 - data;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, HeaderEntry { dtype, shape, data_offsets: (start, end) }) in entries {
        if end < start {
            bail!(Fault::input(format!("tensor `{name}` has the offsets {start} to {end}")).with_hint(again));
        }
        if end > available {
            bail!(
                Fault::input(format!(
                    "tensor `{name}` ends at byte {end} of the data, but there are {available}: the file is cut short"
                ))
                .with_hint("download the file again")
            );
        }
        let encoding = encoding(&dtype);
        if let Some(needed) = byte_length(&dtype, &shape).filter(|&needed| needed != u128::from(end - start)) {
            bail!(
                Fault::input(format!(
                    "tensor `{name}` has {} bytes, but {dtype} of shape {shape:?} needs {needed}",
                    end - start
                ))
                .with_hint(again)
            );
        }
        tensors.push((name, Stored { encoding, shape, file, offset: data + start, length: end - start }));
    }
    tensors.sort_by_key(|(_, stored)| (stored.offset, stored.length));
    refuse_gaps(&tensors, data, bytes.len() as u64).map_err(|fault| fault.with_hint(again))?;
    Ok(tensors)
}

/// The format wants the data covered without holes; a hole is the trace of a damaged header.
fn refuse_gaps(tensors: &[(String, Stored)], data: u64, file_size: u64) -> Result<(), Fault> {
    let mut end = data;
    let mut before = "the header".to_owned();
    for (name, stored) in tensors {
        if stored.offset < end {
            return Err(Fault::input(format!("tensor `{name}` overlaps {before}")));
        }
        if stored.offset > end {
            let gap = stored.offset - end;
            return Err(Fault::input(format!("{gap} bytes between {before} and tensor `{name}` belong to no tensor")));
        }
        end = stored.offset + stored.length;
        before = format!("tensor `{name}`");
    }
    if end != file_size {
        return Err(Fault::input(format!("the {} bytes after {before} belong to no tensor", file_size - end)));
    }
    Ok(())
}

fn encoding(dtype: &str) -> Encoding {
    match dtype {
        "F32" => Encoding::Plain(SourceDtype::F32),
        "F16" => Encoding::Plain(SourceDtype::F16),
        "BF16" => Encoding::Plain(SourceDtype::Bf16),
        other => Encoding::Unsupported(other.to_owned()),
    }
}

/// Bytes that a tensor takes, or `None` for a dtype that the format has gained since.
fn byte_length(dtype: &str, shape: &[usize]) -> Option<u128> {
    let dtype: Dtype = serde_json::from_value(dtype.into()).ok()?;
    let elements = shape.iter().try_fold(1_u128, |product, &size| product.checked_mul(size as u128));
    // A shape beyond 2^128 elements matches no file's length.
    Some(
        elements
            .and_then(|elements| elements.checked_mul(dtype.bitsize() as u128))
            .map_or(u128::MAX, |n| n.div_ceil(8)),
    )
}

struct Header(Vec<(String, HeaderEntry)>);

#[derive(Deserialize)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one entry per tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor `{name}` is there twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value();
                    let entry = entry.map_err(|error| A::Error::custom(format!("tensor `{name}`: {error}")))?;
                    entries.push((name, entry));
                }
                Ok(Header(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
