//! `qwen2`: Qwen2 and 2.5. The Llama block with biases on q, k and v.

use super::{ModelConfig, ModelTensor, llama};

/// Switches of `config.json` that must be off.
pub(super) const OFF_IN_HUGGING_FACE: &[&str] = &["use_sliding_window"];

/// As [`ModelConfig::block_tensors`].
pub(super) fn block_tensors(config: &ModelConfig) -> Vec<ModelTensor> {
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    let biases = [
        ModelTensor::bias("self_attn.q_proj.bias", "q_proj_bias", queries),
        ModelTensor::bias("self_attn.k_proj.bias", "k_proj_bias", keys),
        ModelTensor::bias("self_attn.v_proj.bias", "v_proj_bias", keys),
    ];
    let mut tensors = Vec::new();
    let mut biases = biases.into_iter();
    for tensor in llama::block_tensors(config) {
        let biased = matches!(&*tensor.const_name, "q_proj_weight" | "k_proj_weight" | "v_proj_weight");
        tensors.push(tensor);
        if biased {
            tensors.extend(biases.next());
        }
    }
    tensors
}
