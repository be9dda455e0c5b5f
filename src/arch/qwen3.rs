//! `qwen3`: Qwen3 (dense). The Llama block with an RMSNorm over each head of q and k, before RoPE.

use super::{ModelConfig, ModelTensor, llama};

/// Switches of `config.json` that must be off: sliding windows, and biases that the block does not use.
pub(super) const OFF_IN_HUGGING_FACE: &[&str] = &["attention_bias", "use_sliding_window"];

/// As [`ModelConfig::block_tensors`].
pub(super) fn block_tensors(config: &ModelConfig) -> Vec<ModelTensor> {
    let norms = [
        ModelTensor::gain("self_attn.q_norm.weight", "q_norm_weight", config.head_dim),
        ModelTensor::gain("self_attn.k_norm.weight", "k_norm_weight", config.head_dim),
    ];
    let mut tensors = llama::block_tensors(config);
    let output = tensors.iter().position(|t| t.const_name == "o_proj_weight").unwrap_or(tensors.len());
    tensors.splice(output..output, norms);
    tensors
}
