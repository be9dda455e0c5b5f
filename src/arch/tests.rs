use std::collections::HashMap;

use serde_json::{Value, json};

use super::*;
use crate::error::{Status, status};

/// Qwen3-0.6B's own `config.json`, without what no block needs.
fn qwen3() -> Value {
    json!({
        "model_type": "qwen3", "hidden_act": "silu", "attention_bias": false, "head_dim": 128, "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936
    })
}

fn with(mut config: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        config.as_object_mut().unwrap().insert(key.clone(), value.clone());
    }
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key);
    config
}

fn refusal(config: &Value) -> String {
    let error = ModelConfig::from_hugging_face(config, true).unwrap_err();
    assert_eq!(status(&error), Status::Input);
    format!("{error:#}")
}

#[test]
fn a_config_is_read_as_it_stands() {
    let config = ModelConfig::from_hugging_face(&qwen3(), false).unwrap();
    let expected = ModelConfig {
        architecture: Architecture::Qwen3,
        layers: 28,
        hidden: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        intermediate: 3072,
        vocab: 151_936,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        rope_scaling: RopeScaling::None,
        max_positions: 40960,
        tied_embeddings: true,
    };
    assert_eq!(config, expected);
}

#[test]
fn documented_defaults_fill_in_head_dim_and_kv_heads() {
    let config = without(without(qwen3(), "head_dim"), "num_key_value_heads");
    let config = ModelConfig::from_hugging_face(&config, false).unwrap();
    assert_eq!((config.head_dim, config.kv_heads), (64, 16));
}

#[test]
fn the_checkpoint_decides_about_tying_only_where_the_config_is_silent() {
    let tied = |config: &Value, head| ModelConfig::from_hugging_face(config, head).unwrap().tied_embeddings;
    let silent = without(qwen3(), "tie_word_embeddings");
    assert!(tied(&silent, false));
    assert!(!tied(&silent, true));
    assert!(tied(&qwen3(), true));
    assert!(!tied(&with(qwen3(), json!({"tie_word_embeddings": false})), false));
}

#[test]
fn every_needed_key_is_named_when_it_is_missing() {
    let needed = [
        "model_type",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
    ];
    for key in needed {
        assert!(refusal(&without(qwen3(), key)).starts_with(&format!("`{key}` is missing")), "{key}");
        assert!(refusal(&with(qwen3(), json!({key: null}))).starts_with(&format!("`{key}` is missing")), "{key}");
        assert!(refusal(&with(qwen3(), json!({key: [1]}))).contains(&format!("`{key}` is [1]; it must be")), "{key}");
    }
}

#[test]
fn rope_is_read_from_either_generation_of_transformers() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192
    });
    let expected =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };
    let v4 = with(qwen3(), json!({"rope_scaling": scaling}));
    let v5 =
        with(without(qwen3(), "rope_theta"), json!({"rope_parameters": with(scaling, json!({"rope_theta": 1e6}))}));
    for config in [v4, v5] {
        let config = ModelConfig::from_hugging_face(&config, false).unwrap();
        assert_eq!((config.rope_theta, config.rope_scaling), (1e6, expected.clone()));
    }
    let linear = with(qwen3(), json!({"rope_scaling": {"type": "linear", "factor": 2.0}}));
    let linear = ModelConfig::from_hugging_face(&linear, false).unwrap();
    assert_eq!(linear.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    let plain = with(without(qwen3(), "rope_theta"), json!({"rope_parameters": {"rope_theta": 5e5}}));
    let plain = ModelConfig::from_hugging_face(&plain, false).unwrap();
    assert_eq!((plain.rope_theta, plain.rope_scaling), (5e5, RopeScaling::None));
}

#[test]
fn what_the_blocks_lack_is_refused_by_its_key() {
    let llama = || with(qwen3(), json!({"model_type": "llama"}));
    let qwen2 = || with(qwen3(), json!({"model_type": "qwen2"}));
    let cases = [
        (
            with(qwen3(), json!({"model_type": "gemma3"})),
            "architecture `gemma3` is not supported; supported are `qwen3`, `llama`, `qwen2`",
        ),
        (with(qwen3(), json!({"hidden_act": "gelu"})), "`hidden_act` is `gelu`; only `silu`"),
        (with(qwen3(), json!({"attention_bias": true})), "`attention_bias` is true"),
        (with(llama(), json!({"attention_bias": true})), "`attention_bias` is true"),
        (with(llama(), json!({"mlp_bias": true})), "`mlp_bias` is true"),
        (with(qwen3(), json!({"use_sliding_window": true})), "`use_sliding_window` is true"),
        (with(qwen2(), json!({"use_sliding_window": true})), "`use_sliding_window` is true"),
        (with(qwen3(), json!({"layer_types": ["full_attention", "sliding_attention"]})), "\"sliding_attention\""),
        (with(qwen3(), json!({"partial_rotary_factor": 0.5})), "`partial_rotary_factor` is 0.5"),
        (
            with(qwen3(), json!({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}})),
            "`rope_parameters.partial_rotary_factor` is 0.5",
        ),
        (with(qwen3(), json!({"quantization_config": {"bits": 4}})), "`quantization_config` is present"),
        (with(qwen3(), json!({"head_dim": 127})), "head dimension is 127"),
        (with(qwen3(), json!({"num_key_value_heads": 5})), "16 attention heads cannot share 5"),
        (with(qwen3(), json!({"num_key_value_heads": 0})), "number of key/value heads is 0"),
        (with(qwen3(), json!({"hidden_size": 0})), "hidden size is 0"),
        (with(qwen3(), json!({"intermediate_size": 1_000_001})), "intermediate size is 1000001"),
        (
            with(without(qwen3(), "head_dim"), json!({"hidden_size": 1000})),
            "`head_dim` is missing, and `hidden_size` 1000",
        ),
        (with(without(qwen3(), "head_dim"), json!({"num_attention_heads": 0})), "`head_dim` is missing"),
        (with(qwen3(), json!({"rms_norm_eps": 0})), "RMSNorm epsilon is 0"),
        (with(qwen3(), json!({"rope_theta": -1})), "RoPE base is -1"),
        (
            with(qwen3(), json!({"rope_parameters": {"rope_theta": 2.0}})),
            "`rope_parameters.rope_theta` is 2, but `rope_theta` is 1000000",
        ),
        (
            with(qwen3(), json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})),
            "RoPE scaling `yarn` is not supported; supported are",
        ),
        (with(qwen3(), json!({"rope_scaling": {"factor": 4.0}})), "`rope_scaling.rope_type` is missing"),
        (with(qwen3(), json!({"rope_scaling": {"type": "linear"}})), "`rope_scaling.factor` is missing"),
        (with(qwen3(), json!({"rope_scaling": {"type": "linear", "factor": 0}})), "factor is 0"),
    ];
    for (config, expected) in cases {
        let message = refusal(&config);
        assert!(message.contains(expected), "{message}\nlacks: {expected}");
    }
    assert!(ModelConfig::from_hugging_face(&with(qwen2(), json!({"attention_bias": true})), false).is_ok());
}

#[test]
fn blocks_have_the_tensors_and_shapes_of_their_architecture() {
    let shapes = |model_type: &str| -> Vec<(String, TensorKind, Vec<usize>)> {
        let config = with(qwen3(), json!({"model_type": model_type}));
        let tensors = ModelConfig::from_hugging_face(&config, false).unwrap().block_tensors();
        for tensor in &tensors {
            let parts: Vec<_> = tensor.role.split('.').collect();
            assert_eq!(tensor.const_name, parts[parts.len() - 2..].join("_"));
        }
        tensors.into_iter().map(|tensor| (tensor.role.into_owned(), tensor.kind, tensor.shape)).collect()
    };
    let tensor = |role: &str, kind, shape: &[usize]| (role.to_owned(), kind, shape.to_vec());
    use TensorKind::{Bias, Gain, Projection};
    let expected = [
        tensor("input_layernorm.weight", Gain, &[1024]),
        tensor("self_attn.q_proj.weight", Projection, &[2048, 1024]),
        tensor("self_attn.k_proj.weight", Projection, &[1024, 1024]),
        tensor("self_attn.v_proj.weight", Projection, &[1024, 1024]),
        tensor("self_attn.q_norm.weight", Gain, &[128]),
        tensor("self_attn.k_norm.weight", Gain, &[128]),
        tensor("self_attn.o_proj.weight", Projection, &[1024, 2048]),
        tensor("post_attention_layernorm.weight", Gain, &[1024]),
        tensor("mlp.gate_proj.weight", Projection, &[3072, 1024]),
        tensor("mlp.up_proj.weight", Projection, &[3072, 1024]),
        tensor("mlp.down_proj.weight", Projection, &[1024, 3072]),
    ];
    assert_eq!(shapes("qwen3"), expected);
    let plain: Vec<_> = expected.iter().filter(|(role, ..)| !role.contains("_norm.")).cloned().collect();
    assert_eq!(shapes("llama"), plain);
    let biases: Vec<_> = shapes("qwen2").into_iter().filter(|tensor| !plain.contains(tensor)).collect();
    let expected = [
        tensor("self_attn.q_proj.bias", Bias, &[2048]),
        tensor("self_attn.k_proj.bias", Bias, &[1024]),
        tensor("self_attn.v_proj.bias", Bias, &[1024]),
    ];
    assert_eq!(biases, expected);
}

fn gguf() -> HashMap<String, GgufValue> {
    let integer = |value| GgufValue::Integer(value);
    [
        ("general.architecture", GgufValue::Text("llama".to_owned())),
        ("llama.block_count", integer(30)),
        ("llama.context_length", integer(8192)),
        ("llama.embedding_length", integer(576)),
        ("llama.feed_forward_length", integer(1536)),
        ("llama.attention.head_count", integer(9)),
        ("llama.attention.head_count_kv", integer(3)),
        ("llama.attention.layer_norm_rms_epsilon", GgufValue::Float(1e-5)),
        ("llama.rope.freq_base", GgufValue::Float(1e5)),
        ("llama.rope.dimension_count", integer(64)),
        ("llama.vocab_size", integer(49152)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn read_gguf(metadata: &HashMap<String, GgufValue>, tensors: GgufTensors) -> Result<ModelConfig> {
    ModelConfig::from_gguf(|key| metadata.get(key), tensors)
}

#[test]
fn gguf_metadata_is_read_as_it_stands() {
    let config = read_gguf(&gguf(), GgufTensors::default()).unwrap();
    let expected = ModelConfig {
        architecture: Architecture::Llama,
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        intermediate: 1536,
        vocab: 49152,
        rms_norm_eps: 1e-5,
        rope_theta: 1e5,
        rope_scaling: RopeScaling::None,
        max_positions: 8192,
        tied_embeddings: true,
    };
    assert_eq!(config, expected);

    let tensors = GgufTensors { embedding_rows: Some(50_000), has_output: true, rope_divisors: Some(vec![2.0; 32]) };
    let config = read_gguf(&gguf(), tensors).unwrap();
    assert_eq!((config.vocab, config.tied_embeddings), (50_000, false));
    assert_eq!(config.rope_scaling, RopeScaling::Divisors { divisors: vec![2.0; 32] });
}

#[test]
fn every_needed_gguf_key_is_named_when_it_is_missing() {
    let optional = ["llama.attention.head_count_kv", "llama.rope.dimension_count"];
    for key in gguf().keys().filter(|key| !optional.contains(&key.as_str())) {
        let mut metadata = gguf();
        metadata.remove(key);
        let error = read_gguf(&metadata, GgufTensors::default()).unwrap_err();
        assert_eq!(error.to_string(), format!("`{key}` is missing"));
        assert_eq!(status(&error), Status::Input);
    }
}

#[test]
fn gguf_features_that_the_blocks_lack_are_refused_by_their_key() {
    let cases = [
        ("general.architecture", GgufValue::Text("gemma3".to_owned()), "architecture `gemma3` is not supported"),
        ("llama.attention.key_length", GgufValue::Integer(32), "`llama.rope.dimension_count` is 64, but the head"),
        ("llama.rope.dimension_count", GgufValue::Integer(32), "`llama.rope.dimension_count` is 32, but the head"),
        ("llama.attention.value_length", GgufValue::Integer(32), "`llama.attention.value_length` is 32"),
        ("llama.attention.head_count_kv", GgufValue::Integers(vec![3, 1]), "differs from block to block: [3, 1]"),
        ("llama.attention.head_count_kv", GgufValue::Integer(-3), "is -3; it must be 0 or more"),
        ("llama.expert_count", GgufValue::Integer(8), "`llama.expert_count` is 8"),
        ("llama.attention.scale", GgufValue::Float(0.5), "`llama.attention.scale` is 0.5"),
        ("llama.attention.causal", GgufValue::Bool(false), "`llama.attention.causal` is false"),
        ("llama.attention.sliding_window", GgufValue::Integer(4096), "`llama.attention.sliding_window` is 4096"),
        ("llama.rope.scaling.type", GgufValue::Text("yarn".to_owned()), "RoPE scaling `yarn` is not supported"),
    ];
    for (key, value, expected) in cases {
        let mut metadata = gguf();
        metadata.insert(key.to_owned(), value);
        let error = read_gguf(&metadata, GgufTensors::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nlacks: {expected}");
    }
    let short = GgufTensors { rope_divisors: Some(vec![1.0; 31]), ..GgufTensors::default() };
    let error = read_gguf(&gguf(), short).unwrap_err().to_string();
    assert_eq!(error, "`rope_freqs.weight` has 31 values; a head dimension of 64 needs 32");
}

#[test]
fn a_gguf_factor_without_a_type_scales_linearly_as_in_llama_cpp() {
    for (factor, expected) in
        [(4.0, RopeScaling::Linear { factor: 4.0 }), (1.0, RopeScaling::None), (0.0, RopeScaling::None)]
    {
        let mut metadata = gguf();
        metadata.insert("llama.rope.scaling.factor".to_owned(), GgufValue::Float(factor));
        assert_eq!(read_gguf(&metadata, GgufTensors::default()).unwrap().rope_scaling, expected);
    }
}
