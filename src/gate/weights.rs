//! A checkpoint's tensors in float32, for implementations of the model that share nothing with the graphs.

use std::collections::HashMap;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use half::{bf16, f16};

use crate::arch::{EMBEDDING, FINAL_NORM, ModelConfig};
use crate::checkpoint::{Checkpoint, TensorRef};
use crate::error::Fault;
use crate::quant::SourceDtype;

/// Every tensor of a model in float32, by Hugging Face name; each is held once, however many models are built of it.
pub struct Weights {
    config: ModelConfig,
    tensors: HashMap<String, Tensor>,
}

impl Weights {
    /// Reads all tensors: 4 bytes of memory for each parameter.
    ///
    /// # Errors
    /// An input fault that names the tensor: it is missing, of another shape, or holds what is not finite. An
    /// environment fault where the memory that is available does not hold them.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self> {
        checkpoint.check()?;
        checkpoint.unchanged()?;
        let config = checkpoint.config().clone();
        enough(4 * parameters(&config), available_memory())?;
        let mut tensors = HashMap::new();
        let mut add = |name: String, shape: &[usize]| -> Result<()> {
            let values = float32(checkpoint, &name, shape)?;
            tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
            Ok(())
        };
        add(EMBEDDING.to_owned(), &[config.vocab, config.hidden])?;
        add(FINAL_NORM.to_owned(), &[config.hidden])?;
        if !config.tied_embeddings {
            add(config.output_matrix().to_owned(), &[config.vocab, config.hidden])?;
        }
        let roles = config.block_tensors();
        for block in 0..config.layers {
            for tensor in &roles {
                add(format!("model.layers.{block}.{}", tensor.role), &tensor.shape)?;
            }
        }
        Ok(Self { config, tensors })
    }

    /// What the model's files say about it.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// A tensor by its Hugging Face name.
    pub(super) fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).with_context(|| format!("there is no tensor `{name}`"))
    }

    /// The output matrix, [vocab, hidden].
    pub(super) fn lm_head(&self) -> Result<&Tensor> {
        self.get(self.config.output_matrix())
    }

    /// The same tensors as candle's models take them.
    pub(super) fn builder(&self) -> VarBuilder<'static> {
        VarBuilder::from_tensors(self.tensors.clone(), DType::F32, &Device::Cpu)
    }
}

/// Parameters of a model.
fn parameters(config: &ModelConfig) -> u64 {
    let block: usize = config.block_tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    let tables = if config.tied_embeddings { 1 } else { 2 };
    (config.layers * block + config.hidden + tables * config.vocab * config.hidden) as u64
}

/// Bytes that new memory can take without swapping, where the system tells.
fn available_memory() -> Option<u64> {
    available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn enough(bytes: u64, available: Option<u64>) -> Result<()> {
    let Some(available) = available.filter(|&available| bytes > available) else { return Ok(()) };
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(Fault::environment(format!(
        "the model's weights in float32 take {:.1} GB of memory, {:.1} GB are available",
        gigabytes(bytes),
        gigabytes(available)
    ))
    .with_hint(
        "make the baseline on a larger machine: `anebake gate --save-baseline FILE.npz`, then `--baseline FILE.npz`",
    )
    .into())
}

/// The values of a tensor; the memory that reading them took is given back.
pub(super) fn float32(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let tensor = checkpoint.tensor(name)?;
    let wrong = |what: String| Fault::input(format!("tensor `{}`: {what}", tensor.name));
    if tensor.shape != shape {
        return Err(wrong(format!("shape {:?} where the model's config asks for {shape:?}", tensor.shape)).into());
    }
    let values = read(checkpoint, &tensor)?;
    checkpoint.release(&tensor, 0..tensor.length);
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Err(wrong(format!("element {at} is {}", values[at])).into());
    }
    Ok(values)
}

fn read(checkpoint: &Checkpoint, tensor: &TensorRef) -> Result<Vec<f32>> {
    let mut buffer = Vec::new();
    let values = checkpoint.read(tensor, &mut buffer)?;
    let (fours, twos) = (values.bytes.as_chunks::<4>().0, values.bytes.as_chunks::<2>().0);
    Ok(match values.dtype {
        SourceDtype::F32 => fours.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        SourceDtype::F16 => twos.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        SourceDtype::Bf16 => twos.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_memory_does_not_hold_are_refused() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:    2000000 kB\n";
        let available = available(meminfo);
        assert_eq!(available, Some(2_048_000_000));
        assert!(enough(2_048_000_000, available).is_ok());
        let error = enough(32_000_000_000, available).unwrap_err().to_string();
        assert_eq!(error, "the model's weights in float32 take 32.0 GB of memory, 2.0 GB are available");
        assert!(enough(u64::MAX, None).is_ok(), "a system that does not tell");
    }
}
