//! What several test modules need: tiny checkpoints of every architecture, and the program itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// A tiny model: 2 layers, hidden 64, vocabulary 96, every tensor and scale of at least 10 elements.
#[derive(Clone)]
pub struct TinyModel {
    /// `config.json`.
    pub config: Value,
    /// Tensors by name: shape and values.
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// How they are stored.
    pub dtype: Dtype,
}

impl TinyModel {
    /// A random model of an architecture (`qwen3`, `llama`, `qwen2`), the same for the same seed. Weights have the
    /// spread 1.5/√in that keeps attention sane.
    pub fn new(model_type: &str, seed: u64) -> Self {
        Self::with_layers(model_type, seed, 2)
    }

    /// [`TinyModel::new`] with another number of layers.
    pub fn with_layers(model_type: &str, seed: u64, layers: usize) -> Self {
        // qwen2 and llama in candle take head_dim = hidden / heads.
        let head_dim = if model_type == "qwen3" { 32 } else { 16 };
        Self::build(model_type, seed, layers, [64, 4, 2, head_dim, 96])
    }

    /// [`TinyModel::new`] with other sizes: hidden, heads, KV heads, head_dim, intermediate.
    pub fn shaped(model_type: &str, seed: u64, sizes: [usize; 5]) -> Self {
        Self::build(model_type, seed, 2, sizes)
    }

    fn build(model_type: &str, seed: u64, layers: usize, sizes: [usize; 5]) -> Self {
        let [hidden, heads, kv_heads, head_dim, intermediate] = sizes;
        let vocab = 96;
        let mut config = json!({
            "model_type": model_type, "architectures": ["Tiny"], "hidden_size": hidden,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "intermediate_size": intermediate, "vocab_size": vocab, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": true, "hidden_act": "silu",
            "attention_bias": false, "mlp_bias": false, "use_sliding_window": false, "sliding_window": null,
            "max_window_layers": layers, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
        });
        if model_type == "qwen2" {
            config.as_object_mut().unwrap().remove("attention_bias");
        }
        let mut random = Random(seed);
        let mut tensors = BTreeMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let count: usize = shape.iter().product();
            let values = match (shape, name.ends_with("norm.weight")) {
                (_, true) => (0..count).map(|_| 1.0 + 0.1 * random.normal()).collect(),
                ([_, cols], false) => {
                    let spread = 1.5 / (*cols as f32).sqrt();
                    (0..count).map(|_| spread * random.normal()).collect()
                }
                _ => (0..count).map(|_| 0.1 * random.normal()).collect(),
            };
            tensors.insert(name, (shape.to_vec(), values));
        };
        add("model.embed_tokens.weight".into(), &[vocab, hidden]);
        add("model.norm.weight".into(), &[hidden]);
        for layer in 0..layers {
            let mut block = |name: &str, shape: &[usize]| add(format!("model.layers.{layer}.{name}"), shape);
            block("input_layernorm.weight", &[hidden]);
            block("post_attention_layernorm.weight", &[hidden]);
            for (name, rows) in [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)] {
                block(&format!("self_attn.{name}_proj.weight"), &[rows, hidden]);
                if model_type == "qwen2" {
                    block(&format!("self_attn.{name}_proj.bias"), &[rows]);
                }
            }
            block("self_attn.o_proj.weight", &[hidden, heads * head_dim]);
            if model_type == "qwen3" {
                block("self_attn.q_norm.weight", &[head_dim]);
                block("self_attn.k_norm.weight", &[head_dim]);
            }
            block("mlp.gate_proj.weight", &[intermediate, hidden]);
            block("mlp.up_proj.weight", &[intermediate, hidden]);
            block("mlp.down_proj.weight", &[hidden, intermediate]);
        }
        Self { config, tensors, dtype: Dtype::BF16 }
    }

    /// With so many tokens.
    pub fn vocabulary(mut self, seed: u64, tokens: usize) -> Self {
        self.config["vocab_size"] = tokens.into();
        let (shape, values) = self.tensors.get_mut("model.embed_tokens.weight").unwrap();
        shape[0] = tokens;
        let spread = 1.5 / (shape[1] as f32).sqrt();
        let mut random = Random(seed);
        *values = (0..shape.iter().product()).map(|_| spread * random.normal()).collect();
        self
    }

    /// With an output matrix of its own, `lm_head.weight`.
    pub fn untied(mut self, seed: u64) -> Self {
        self.config["tie_word_embeddings"] = false.into();
        let shape = self.tensors["model.embed_tokens.weight"].0.clone();
        let spread = 1.5 / (shape[1] as f32).sqrt();
        let mut random = Random(seed);
        let values = (0..shape.iter().product()).map(|_| spread * random.normal()).collect();
        self.tensors.insert("lm_head.weight".to_owned(), (shape, values));
        self
    }

    /// The values of a tensor, to change them.
    pub fn values(&mut self, name: &str) -> &mut Vec<f32> {
        &mut self.tensors.get_mut(name).unwrap().1
    }

    /// Writes `config.json` and `model.safetensors` into `folder`.
    pub fn write(&self, folder: &Path) {
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        let stored: BTreeMap<&String, Vec<u8>> =
            self.tensors.iter().map(|(name, (_, values))| (name, encode(values, self.dtype))).collect();
        let views = self.tensors.iter().map(|(name, (shape, _))| {
            (name.clone(), TensorView::new(self.dtype, shape.clone(), &stored[name]).unwrap())
        });
        safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    }
}

fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let two = |f: fn(f32) -> [u8; 2]| values.iter().flat_map(|&v| f(v)).collect();
    match dtype {
        Dtype::BF16 => two(|v| bf16::from_f32(v).to_le_bytes()),
        Dtype::F16 => two(|v| half::f16::from_f32(v).to_le_bytes()),
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        other => panic!("tests write no {other:?}"),
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// About normal, variance 1.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.bits() >> 40) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0
    }
}

/// A folder with a checkpoint, a cache and an output, and the program to run on them.
pub struct Bench {
    /// Removed when dropped.
    pub folder: tempfile::TempDir,
}

impl Bench {
    /// With a checkpoint in `model/`.
    pub fn new(model: &TinyModel) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(bench.path("model")).unwrap();
        model.write(&bench.path("model"));
        bench
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program, in the folder, with its own cache; `CI` keeps progress plain.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anebake"));
        command
            .current_dir(self.folder.path())
            .env("ANEBAKE_CACHE_DIR", self.path("cache"))
            .env("ANEBAKE_PYTHON", concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/python"))
            .env("CI", "1");
        command
    }

    /// Runs the program.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    /// Runs `convert --model model --set package.context=128` with more arguments, and expects success.
    pub fn convert(&self, arguments: &[&str]) -> Output {
        let base = ["convert", "--model", "model", "--set", "package.context=128"];
        let output = self.run(&[&base, arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        output
    }

    /// The manifest of an output folder.
    pub fn manifest(&self, out: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(out).join("manifest.json")).unwrap()).unwrap()
    }
}

/// What a run printed on stderr.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a run printed on stdout.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every file below a folder, by its path inside; empty where there is no folder.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = walkdir::WalkDir::new(folder).into_iter().filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| (entry.path().strip_prefix(folder).unwrap().to_owned(), std::fs::read(entry.path()).unwrap()))
        .collect()
}
