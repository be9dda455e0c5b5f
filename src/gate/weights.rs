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
    /// An input fault that names the tensor: it is missing, of another shape, or holds what is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self> {
        checkpoint.check()?;
        checkpoint.unchanged()?;
        let config = checkpoint.config().clone();
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

/// The values of a tensor; the memory that reading them took is given back.
pub(super) fn float32(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let tensor = checkpoint.tensor(name)?;
    let wrong = |what: String| Fault::input(format!("tensor `{}`: {what}", tensor.name));
    if tensor.shape != shape {
        return Err(wrong(format!("shape {:?} where the model's config asks for {shape:?}", tensor.shape)).into());
    }
    let values = read(checkpoint, &tensor)?;
    checkpoint.release(&tensor);
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
