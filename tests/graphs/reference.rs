//! The same checkpoint in candle-transformers, float32: shares no code with the graphs.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen2, qwen3};
use serde_json::{Value, json};

/// From a token and its position to logits.
type Forward = Box<dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor>>;

/// Logits at every position of `tokens`, one decode step each.
///
/// `config` is what the checkpoint's `config.json` means. candle has no `linear` scaling for llama, but its `llama3`
/// divides every frequency by `factor` where all wavelengths (2π and longer) lie above the original context, here 1.
pub fn logits(folder: &Path, config: &Value, tokens: &[u32]) -> Vec<Vec<f32>> {
    let device = Device::Cpu;
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &device).unwrap();
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &device);
    let mut config = config.clone();
    if config["sliding_window"].is_null() {
        config["sliding_window"] = config["max_position_embeddings"].clone();
    }
    if config["rope_scaling"]["rope_type"] == "linear" {
        config["rope_scaling"] = json!({"rope_type": "llama3", "factor": config["rope_scaling"]["factor"],
            "low_freq_factor": 1.0, "high_freq_factor": 2.0, "original_max_position_embeddings": 1});
    }
    let model_type = config["model_type"].as_str().unwrap().to_owned();
    let mut forward: Forward = match model_type.as_str() {
        "qwen3" => {
            let config: qwen3::Config = serde_json::from_value(config).unwrap();
            let mut model = qwen3::ModelForCausalLM::new(&config, weights).unwrap();
            Box::new(move |input, position| model.forward(input, position))
        }
        "qwen2" => {
            let config: qwen2::Config = serde_json::from_value(config).unwrap();
            let mut model = qwen2::ModelForCausalLM::new(&config, weights).unwrap();
            Box::new(move |input, position| model.forward(input, position))
        }
        "llama" => {
            let config = serde_json::from_value::<llama::LlamaConfig>(config).unwrap().into_config(false);
            let model = llama::Llama::load(weights, &config).unwrap();
            let mut cache = llama::Cache::new(true, DType::F32, &config, &device).unwrap();
            Box::new(move |input, position| model.forward(input, position, &mut cache))
        }
        other => panic!("no reference for {other}"),
    };
    tokens
        .iter()
        .enumerate()
        .map(|(position, &token)| {
            let input = Tensor::new(&[[token]], &device).unwrap();
            forward(&input, position).unwrap().flatten_all().unwrap().to_vec1().unwrap()
        })
        .collect()
}
