//! `llama`: Llama 2 and 3.x, SmolLM2. The plain pre-norm block with grouped-query attention and SwiGLU.

use super::{ModelConfig, ModelTensor};

/// Switches of `config.json` that must be off: each would add tensors that the block does not use.
pub(super) const OFF_IN_HUGGING_FACE: &[&str] = &["attention_bias", "mlp_bias"];

/// As [`ModelConfig::block_tensors`].
pub(super) fn block_tensors(config: &ModelConfig) -> Vec<ModelTensor> {
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    let (hidden, intermediate) = (config.hidden, config.intermediate);
    vec![
        ModelTensor::gain("input_layernorm.weight", "input_layernorm_weight", hidden),
        ModelTensor::projection("self_attn.q_proj.weight", "q_proj_weight", queries, hidden),
        ModelTensor::projection("self_attn.k_proj.weight", "k_proj_weight", keys, hidden),
        ModelTensor::projection("self_attn.v_proj.weight", "v_proj_weight", keys, hidden),
        ModelTensor::projection("self_attn.o_proj.weight", "o_proj_weight", hidden, queries),
        ModelTensor::gain("post_attention_layernorm.weight", "post_attention_layernorm_weight", hidden),
        ModelTensor::projection("mlp.gate_proj.weight", "gate_proj_weight", intermediate, hidden),
        ModelTensor::projection("mlp.up_proj.weight", "up_proj_weight", intermediate, hidden),
        ModelTensor::projection("mlp.down_proj.weight", "down_proj_weight", hidden, intermediate),
    ]
}
