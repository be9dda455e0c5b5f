//! A `.gguf` file: its tensors under their Hugging Face names, dequantized, with llama.cpp's row order undone.

use std::path::Path;

use anamnesis::{F32Out, GgufType, dequantize_gguf_blocks};
use anyhow::{Context, Result, bail};

use super::file::MappedFile;
use super::gguf_header::{self, FrontMatter};
use super::tokenizer::TokenizerSource;
use super::{Encoding, Layout, Opened, Stored};
use crate::arch::{GgufTensors, GgufValue, ModelConfig};
use crate::error::{Fault, OrFault};
use crate::quant::SourceDtype;

/// Opens a file: its config, and where each tensor lies.
pub(super) fn open(path: &Path) -> Result<Opened> {
    let file = MappedFile::open(path)?;
    let (config, FrontMatter { tensors, tokenizer, .. }) =
        describe(file.bytes()).with_context(|| format!("cannot read `{}`", path.display()))?;
    let tokenizer = TokenizerSource::Gguf(tokenizer);
    Ok(Opened { config, layout: Layout::Gguf, files: vec![file], tensors, tokenizer })
}

/// Reads the front matter from the bytes of a whole file.
pub(super) fn describe(bytes: &[u8]) -> Result<(ModelConfig, FrontMatter)> {
    let front = gguf_header::read(bytes)?;
    let FrontMatter { metadata, tensors, .. } = &front;
    if let Some(GgufValue::Integer(parts @ 2..)) = metadata.get("split.count") {
        bail!(
            Fault::input(format!("the model is split over {parts} files; split GGUF is not read"))
                .with_hint("llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf")
        );
    }
    let facts = GgufTensors {
        embedding_rows: tensors.get("token_embd.weight").and_then(|stored| stored.shape.first().copied()),
        has_output: tensors.contains_key("output.weight"),
        rope_divisors: tensors.get("rope_freqs.weight").map(|stored| rope_divisors(bytes, stored)).transpose()?,
    };
    let config = ModelConfig::from_gguf(|key| metadata.get(key), facts)?;
    Ok((config, front))
}

fn rope_divisors(bytes: &[u8], stored: &Stored) -> Result<Vec<f32>> {
    if !matches!(stored.encoding, Encoding::GgmlPlain(SourceDtype::F32)) {
        bail!(Fault::input(format!("tensor `rope_freqs.weight` is {}; it must be ggml:F32", stored.encoding)));
    }
    let start = stored.offset as usize;
    let values = bytes[start..start + stored.length as usize].as_chunks::<4>().0;
    Ok(values.iter().map(|value| f32::from_le_bytes(*value)).collect())
}

/// The name that llama.cpp's converter gives to a tensor, by its Hugging Face name.
pub(super) fn name(hugging_face: &str) -> Option<String> {
    match hugging_face {
        "model.embed_tokens.weight" => return Some("token_embd.weight".to_owned()),
        "model.norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (block, role) = hugging_face.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, parameter) = role.rsplit_once('.')?;
    let module = match module {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{block}.{module}.{parameter}"))
}

/// Where the rows of a stored matrix belong.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowOrder {
    /// Where they are.
    Kept,
    /// The rows of each head alternate between its two halves, for interleaved RoPE: llama.cpp's converter does
    /// `reshape(heads, 2, head_dim / 2, in).swapaxes(1, 2)` to q and k of `llama` (`LlamaModel.permute` in its
    /// `convert_hf_to_gguf.py`).
    Interleaved {
        /// Rows of one head.
        head_dim: usize,
    },
}

impl RowOrder {
    /// The Hugging Face row that the stored row `row` is.
    fn restored(self, row: usize) -> usize {
        match self {
            Self::Kept => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + within % 2 * (head_dim / 2) + within / 2
            }
        }
    }
}

/// Copies rows of `row_bytes` into their Hugging Face order.
pub(super) fn restore_rows(stored: &[u8], row_bytes: usize, order: RowOrder, buffer: &mut Vec<u8>) {
    buffer.resize(stored.len(), 0);
    for (row, bytes) in stored.chunks_exact(row_bytes).enumerate() {
        let start = order.restored(row) * row_bytes;
        buffer[start..start + row_bytes].copy_from_slice(bytes);
    }
}

/// Dequantizes rows of `columns` elements to little-endian float32, in their Hugging Face order.
///
/// # Errors
/// An input fault where the library refuses the type or the length.
pub(super) fn dequantize(
    stored: &[u8],
    ggml: GgufType,
    columns: usize,
    order: RowOrder,
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let stored_row =
        ggml.byte_size_for_n_elements(columns as u64).or_fault(|| Fault::input("bad row length"))? as usize;
    let row_bytes = columns * 4;
    let rows = stored.len().checked_div(stored_row).unwrap_or(0);
    buffer.resize(rows * row_bytes, 0);
    for (row, bytes) in stored.chunks_exact(stored_row.max(1)).enumerate() {
        let start = order.restored(row) * row_bytes;
        let mut out = &mut buffer[start..start + row_bytes];
        dequantize_gguf_blocks::<F32Out, _>(bytes, ggml, columns, |block| {
            let (now, later) = std::mem::take(&mut out).split_at_mut(block.len());
            now.copy_from_slice(block);
            out = later;
            Ok(())
        })
        .or_fault(|| Fault::input(format!("cannot dequantize ggml:{ggml}")))?;
    }
    Ok(())
}
