//! Where weights come from: a Hugging Face folder or a GGUF file, mapped, with every tensor under its Hugging Face
//! name.
//!
//! Owns formats, names and the checks that a checkpoint is whole and is what its config says. Opening reads headers
//! only; the values of a tensor are read when they are asked for, and their memory can be given back. Whether values
//! are finite is left to `quant`, which looks at each of them anyway.

mod file;
mod gguf;
mod gguf_header;
pub mod hub;
mod safetensors;
pub mod sample;
pub mod source;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anamnesis::GgufType;
use anyhow::{Context, Result, bail};

use crate::arch::{Architecture, ModelConfig, ModelTensor};
use crate::error::Fault;
use crate::quant::SourceDtype;
use file::MappedFile;
use gguf::RowOrder;
use tokenizer::TokenizerSource;

pub use file::SourceFile;

/// What [`Checkpoint::read`] and [`Checkpoint::stored_bytes`] can give, for messages.
const SUPPORTED_DTYPES: &str = "F32, F16, BF16, and in GGUF the quantized types of ggml";
/// How many complaints [`Checkpoint::check`] spells out.
const LISTED: usize = 8;

/// An open checkpoint. Shared between threads without locks.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    layout: Layout,
    sources: Vec<SourceFile>,
    files: Vec<MappedFile>,
    tensors: HashMap<String, Stored>,
    tokenizer: TokenizerSource,
}

/// How Hugging Face names lead to the names in the file.
#[derive(Clone, Copy, Debug)]
enum Layout {
    HuggingFace {
        /// What the file puts before the names of the base model: `model.`, or nothing.
        prefix: &'static str,
    },
    Gguf,
}

/// What a format's reader hands over.
struct Opened {
    config: ModelConfig,
    layout: Layout,
    files: Vec<MappedFile>,
    tensors: HashMap<String, Stored>,
    tokenizer: TokenizerSource,
}

/// Where a tensor lies and how.
#[derive(Clone, Debug)]
struct Stored {
    encoding: Encoding,
    /// Slowest dimension first.
    shape: Vec<usize>,
    file: usize,
    offset: u64,
    length: u64,
}

#[derive(Clone, Debug)]
enum Encoding {
    Plain(SourceDtype),
    GgmlPlain(SourceDtype),
    Ggml(GgufType),
    Unsupported(String),
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |dtype: &SourceDtype| match dtype {
            SourceDtype::F32 => "F32",
            SourceDtype::F16 => "F16",
            SourceDtype::Bf16 => "BF16",
        };
        match self {
            Self::Plain(dtype) => f.write_str(name(dtype)),
            Self::GgmlPlain(dtype) => write!(f, "ggml:{}", name(dtype)),
            Self::Ggml(ggml) => write!(f, "ggml:{ggml}"),
            Self::Unsupported(dtype) => f.write_str(dtype),
        }
    }
}

/// A tensor found in a checkpoint, of a dtype that can be read.
#[derive(Clone, Debug)]
pub struct TensorRef {
    /// Its name in the file.
    pub name: String,
    /// Its shape in Hugging Face order, `[out, in]` or `[n]`.
    pub shape: Vec<usize>,
    /// How it is stored: `F32`, `F16`, `BF16`, or `ggml:` and a type of ggml (`ggml:F16`, `ggml:Q4_1`). With the
    /// stored bytes and the model's config this decides the values; the bytes alone do not (row order of `llama` in
    /// GGUF).
    pub stored: String,
    /// Index into [`Checkpoint::files`].
    pub file: usize,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in the file, in bytes.
    pub length: u64,
    encoding: Encoding,
    order: RowOrder,
}

impl TensorRef {
    /// Some rows of a matrix, as a tensor of its own with the same name.
    ///
    /// # Errors
    /// It is no matrix, has no such rows, or its rows are not stored in order.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let &[all, columns] = &self.shape[..] else {
            bail!("tensor `{}` has shape {:?}, no rows", self.name, self.shape);
        };
        let stored_row = self.length.checked_div(all as u64).unwrap_or_default();
        let whole = rows.start < rows.end && rows.end <= all && stored_row * all as u64 == self.length;
        if !whole || !matches!(self.order, RowOrder::Kept) {
            bail!("rows {} to {} of tensor `{}`, {:?}, cannot be taken", rows.start, rows.end, self.name, self.shape);
        }
        Ok(Self {
            shape: vec![rows.len(), columns],
            offset: self.offset + rows.start as u64 * stored_row,
            length: rows.len() as u64 * stored_row,
            ..self.clone()
        })
    }
}

/// Values of a tensor, row-major, little-endian, in Hugging Face order; not aligned.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// Their dtype.
    pub dtype: SourceDtype,
    /// Their bytes.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens a Hugging Face folder (`config.json` and safetensors, single or sharded) or a `.gguf` file.
    ///
    /// Reads headers only. That the tensors are those of the config is told by [`Self::check`].
    ///
    /// # Errors
    /// Input faults that name the file and the tensor or key: missing or damaged files, an unsupported architecture,
    /// and whatever [`ModelConfig`] refuses.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = if path.is_dir() {
            safetensors::open(path)?
        } else if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            gguf::open(path)?
        } else if !path.exists() {
            bail!(Fault::input(format!("`{}` does not exist", path.display())));
        } else {
            let fault = Fault::input(format!("`{}` is neither a folder nor a `.gguf` file", path.display()));
            bail!(match (path.extension(), path.parent()) {
                (Some(extension), Some(folder)) if extension == "safetensors" => {
                    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                    fault.with_hint(format!("give the folder that holds it and `config.json`: {}", folder.display()))
                }
                _ => fault,
            });
        };
        let Opened { config, layout, files, tensors, tokenizer } = opened;
        let sources = files.iter().map(|file| file.source().clone()).collect();
        Ok(Self { path: path.to_owned(), config, layout, sources, files, tensors, tokenizer })
    }

    /// What the model's files say about it.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The files that hold the weights, as they were when opened.
    pub fn files(&self) -> &[SourceFile] {
        &self.sources
    }

    /// Finds a tensor of a block.
    ///
    /// # Errors
    /// An input fault that names file and tensor: missing, of another shape (both are given), or of a dtype that is
    /// not read.
    pub fn block_tensor(&self, block: usize, tensor: &ModelTensor) -> Result<TensorRef> {
        self.tensor_shaped(&format!("model.layers.{block}.{}", tensor.role), &tensor.shape)
    }

    /// [`Self::tensor`], of a given shape.
    ///
    /// # Errors
    /// As [`Self::block_tensor`].
    pub fn tensor_shaped(&self, hugging_face: &str, shape: &[usize]) -> Result<TensorRef> {
        let found = self.tensor(hugging_face)?;
        if found.shape != shape {
            bail!(Fault::input(format!(
                "tensor `{}` in `{}` has shape {:?}; the model's config asks for {:?}",
                found.name,
                self.sources[found.file].path.display(),
                found.shape,
                shape
            )));
        }
        Ok(found)
    }

    /// Finds any tensor by its Hugging Face name, for instance `model.embed_tokens.weight`; its shape is not checked.
    ///
    /// # Errors
    /// As [`Self::block_tensor`].
    pub fn tensor(&self, hugging_face: &str) -> Result<TensorRef> {
        let name = self.name_in_file(hugging_face);
        let Some(stored) = self.tensors.get(&name) else {
            bail!(Fault::input(format!("`{}` holds no tensor `{name}`", self.path.display())));
        };
        let path = self.sources[stored.file].path.display();
        if let Encoding::Unsupported(dtype) = &stored.encoding {
            bail!(Fault::input(format!(
                "tensor `{name}` in `{path}` is {dtype}, which is not read; supported are {SUPPORTED_DTYPES}"
            )));
        }
        let scale = name.strip_suffix(".weight").map(|stem| format!("{stem}.scale"));
        if let Some(scale) = scale.filter(|scale| self.tensors.contains_key(scale)) {
            bail!(Fault::input(format!(
                "tensor `{name}` in `{path}` is scaled by another tensor, `{scale}`, which is not supported"
            )));
        }
        Ok(TensorRef {
            order: self.row_order(hugging_face),
            name,
            shape: stored.shape.clone(),
            stored: stored.encoding.to_string(),
            file: stored.file,
            offset: stored.offset,
            length: stored.length,
            encoding: stored.encoding.clone(),
        })
    }

    fn name_in_file(&self, hugging_face: &str) -> String {
        let name = match self.layout {
            Layout::Gguf => gguf::name(hugging_face),
            Layout::HuggingFace { prefix } => hugging_face.strip_prefix("model.").map(|rest| format!("{prefix}{rest}")),
        };
        name.unwrap_or_else(|| hugging_face.to_owned())
    }

    fn row_order(&self, hugging_face: &str) -> RowOrder {
        let rotated = ["self_attn.q_proj.weight", "self_attn.k_proj.weight"];
        let interleaved = matches!(self.layout, Layout::Gguf)
            && self.config.architecture == Architecture::Llama
            && rotated.iter().any(|role| hugging_face.ends_with(role));
        if interleaved { RowOrder::Interleaved { head_dim: self.config.head_dim } } else { RowOrder::Kept }
    }

    /// The bytes of a tensor as they are stored, for digests.
    pub fn stored_bytes(&self, tensor: &TensorRef) -> &[u8] {
        let start = tensor.offset as usize;
        &self.files[tensor.file].bytes()[start..start + tensor.length as usize]
    }

    /// The values of a tensor: borrowed from the file where it holds them plainly, else made in `buffer`.
    ///
    /// What ggml quantized becomes float32, and the rows of q and k that llama.cpp reordered come back in the order
    /// of Hugging Face. `buffer` may be used again and again; its contents before do not matter.
    ///
    /// # Errors
    /// An input fault that names file and tensor, where the stored bytes cannot be dequantized.
    pub fn read<'a>(&'a self, tensor: &TensorRef, buffer: &'a mut Vec<u8>) -> Result<Values<'a>> {
        let stored = self.stored_bytes(tensor);
        let columns = tensor.shape.last().copied().unwrap_or(1);
        match (&tensor.encoding, tensor.order) {
            (Encoding::Plain(dtype) | Encoding::GgmlPlain(dtype), RowOrder::Kept) => {
                Ok(Values { dtype: *dtype, bytes: stored })
            }
            (Encoding::Plain(dtype) | Encoding::GgmlPlain(dtype), order) => {
                self.whole_heads(tensor)?;
                let size = if *dtype == SourceDtype::F32 { 4 } else { 2 };
                gguf::restore_rows(stored, columns * size, order, buffer);
                Ok(Values { dtype: *dtype, bytes: buffer })
            }
            (Encoding::Ggml(ggml), order) => {
                self.whole_heads(tensor)?;
                gguf::dequantize(stored, *ggml, columns, order, buffer).with_context(|| self.location(tensor))?;
                Ok(Values { dtype: SourceDtype::F32, bytes: buffer })
            }
            (Encoding::Unsupported(dtype), _) => {
                bail!(Fault::input(format!("{} is {dtype}, which is not read", self.location(tensor))))
            }
        }
    }

    /// A tensor from [`Self::tensor`] may have any shape; reordering needs whole heads and at least one column.
    fn whole_heads(&self, tensor: &TensorRef) -> Result<()> {
        if let RowOrder::Interleaved { head_dim } = tensor.order {
            let whole = matches!(tensor.shape[..], [rows, columns] if rows.is_multiple_of(head_dim) && columns > 0);
            if !whole {
                bail!(Fault::input(format!(
                    "{} has shape {:?}, not whole heads of {head_dim} rows",
                    self.location(tensor),
                    tensor.shape
                )));
            }
        }
        Ok(())
    }

    fn location(&self, tensor: &TensorRef) -> String {
        format!("tensor `{}` in `{}`", tensor.name, self.sources[tensor.file].path.display())
    }

    /// Gives back the memory that reading some of the tensor's stored bytes took; those beyond its end do not count.
    /// They can still be read.
    pub fn release(&self, tensor: &TensorRef, bytes: Range<u64>) {
        let (start, end) = (bytes.start.min(tensor.length), bytes.end.min(tensor.length));
        self.files[tensor.file].release((tensor.offset + start) as usize, end.saturating_sub(start) as usize);
    }

    /// Checks that no file was written, truncated or replaced since [`Self::open`]. Call it before each block: reading
    /// a mapped file that was truncated kills the process.
    ///
    /// # Errors
    /// An input fault that names the file.
    pub fn unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(MappedFile::unchanged)
    }

    /// Checks that every tensor of every block is there, with the right shape and a dtype that is read, and that the
    /// blocks hold nothing else: a tensor that the graph does not know would be ignored in silence.
    ///
    /// # Errors
    /// An input fault that lists what is wrong.
    pub fn check(&self) -> Result<()> {
        let block_tensors = self.config.block_tensors();
        let mut complaints = Vec::new();
        let mut known = HashSet::new();
        for block in 0..self.config.layers {
            for tensor in &block_tensors {
                known.insert(self.name_in_file(&format!("model.layers.{block}.{}", tensor.role)));
                if let Err(error) = self.block_tensor(block, tensor) {
                    complaints.push(error.to_string());
                }
            }
            // A config may claim a million blocks.
            if complaints.len() > self.tensors.len() + LISTED {
                break;
            }
        }
        let blocks = match self.layout {
            Layout::Gguf => "blk.".to_owned(),
            Layout::HuggingFace { prefix } => format!("{prefix}layers."),
        };
        let mut unknown: Vec<_> = self.tensors.keys().filter(|name| name.starts_with(&blocks)).collect();
        // Derived from the config, and left out by later versions of transformers.
        unknown.retain(|name| !known.contains(*name) && !name.ends_with(".rotary_emb.inv_freq"));
        unknown.sort_unstable();
        let layers = self.config.layers;
        let architecture = self.config.architecture;
        complaints.extend(
            unknown.iter().map(|name| format!("tensor `{name}` has no place in `{architecture}` with {layers} blocks")),
        );
        if complaints.is_empty() {
            return Ok(());
        }
        let more = complaints.len().saturating_sub(LISTED);
        complaints.truncate(LISTED);
        let mut message = format!("`{}` is not what its config says: {}", self.path.display(), complaints.join("; "));
        if more > 0 {
            message.push_str(&format!("; and {more} more"));
        }
        bail!(Fault::input(message))
    }
}
