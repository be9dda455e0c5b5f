//! One block in float64, written from the architectures' papers: shares nothing with the graphs.

use super::Template;
use half::f16;
use serde_json::Value;
use std::collections::HashMap;

/// Keys or values: per position, per KV head, a vector.
type Cache = Vec<Vec<Vec<f64>>>;

pub struct Block {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f64,
    angles: Vec<f64>,
    tensors: HashMap<String, Vec<f64>>,
    pub keys: Cache,
    pub values: Cache,
}

impl Block {
    /// The block that `template` was filled with, with an empty cache.
    pub fn of(request: &Value, template: &Template) -> Self {
        let number = |key: &str| usize::try_from(request[key].as_u64().unwrap()).unwrap();
        let single = request["compute_precision"] == "float32";
        let read = |role: &str| -> Vec<f64> {
            let bytes = template.probe(role);
            if single {
                bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect()
            } else {
                bytes.chunks(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).into()).collect()
            }
        };
        Self {
            hidden: number("hidden"),
            heads: number("heads"),
            kv_heads: number("kv_heads"),
            head_dim: number("head_dim"),
            eps: request["rms_norm_eps"].as_f64().unwrap(),
            angles: angles(request, number("head_dim")),
            tensors: template.reply.tensors.iter().map(|t| (t.role.clone(), read(&t.role))).collect(),
            keys: Vec::new(),
            values: Vec::new(),
        }
    }

    /// One token: its row of the residual stream in, its row out; the cache grows by one position.
    pub fn token(&mut self, x: &[f64]) -> Vec<f64> {
        let position = self.keys.len() as f64;
        let h = self.norm(x, "input_layernorm.weight");
        let mut q = self.split(self.linear(&h, "self_attn.q_proj"), "self_attn.q_norm.weight");
        let mut k = self.split(self.linear(&h, "self_attn.k_proj"), "self_attn.k_norm.weight");
        let v = self.split(self.linear(&h, "self_attn.v_proj"), "none");
        q.iter_mut().chain(&mut k).for_each(|head| self.rotate(head, position));
        self.keys.push(k);
        self.values.push(v);

        let group = self.heads / self.kv_heads;
        let mut mixed = Vec::new();
        for (head, query) in q.iter().enumerate() {
            let scores: Vec<f64> = self.keys.iter().map(|key| dot(query, &key[head / group])).collect();
            let powers: Vec<f64> = scores.iter().map(|s| (s / (self.head_dim as f64).sqrt()).exp()).collect();
            let total: f64 = powers.iter().sum();
            for i in 0..self.head_dim {
                let parts = powers.iter().zip(&self.values).map(|(p, value)| p / total * value[head / group][i]);
                mixed.push(parts.sum());
            }
        }
        let x = add(x, &self.linear(&mixed, "self_attn.o_proj"));
        let h = self.norm(&x, "post_attention_layernorm.weight");
        let (gate, up) = (self.linear(&h, "mlp.gate_proj"), self.linear(&h, "mlp.up_proj"));
        let gated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        add(&x, &self.linear(&gated, "mlp.down_proj"))
    }

    fn norm(&self, x: &[f64], gain: &str) -> Vec<f64> {
        let root = (dot(x, x) / x.len() as f64 + self.eps).sqrt();
        x.iter().zip(&self.tensors[gain]).map(|(x, g)| x / root * g).collect()
    }

    fn linear(&self, x: &[f64], role: &str) -> Vec<f64> {
        let mut y: Vec<f64> = self.tensors[&format!("{role}.weight")].chunks(x.len()).map(|row| dot(row, x)).collect();
        if let Some(bias) = self.tensors.get(&format!("{role}.bias")) {
            y = add(&y, bias);
        }
        y
    }

    /// Into heads, each normed where the architecture has such a gain.
    fn split(&self, x: Vec<f64>, gain: &str) -> Vec<Vec<f64>> {
        let norm = |head: &[f64]| if self.tensors.contains_key(gain) { self.norm(head, gain) } else { head.to_vec() };
        x.chunks(self.head_dim).map(norm).collect()
    }

    fn rotate(&self, head: &mut [f64], position: f64) {
        let (low, high) = head.split_at_mut(self.head_dim / 2);
        for ((a, b), angle) in low.iter_mut().zip(high).zip(&self.angles) {
            let (sin, cos) = (position * angle).sin_cos();
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }

    pub fn hidden(&self) -> usize {
        self.hidden
    }
}

fn angles(request: &Value, head_dim: usize) -> Vec<f64> {
    let scaling = &request["rope_scaling"];
    let number = |key: &str| scaling[key].as_f64().unwrap();
    let theta = request["rope_theta"].as_f64().unwrap();
    let stretch = |i: usize, plain: f64| match scaling["type"].as_str().unwrap() {
        "none" => plain,
        "linear" => plain / number("factor"),
        "divisors" => plain / scaling["divisors"][i].as_f64().unwrap(),
        // Wavelengths against the original context, as Llama 3.1's model card code has it.
        "llama3" => {
            let (wave, original) = (std::f64::consts::TAU / plain, number("original_max_positions"));
            let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
            if wave < original / high {
                plain
            } else if wave > original / low {
                plain / number("factor")
            } else {
                let smooth = (original / wave - low) / (high - low);
                (1.0 - smooth) * plain / number("factor") + smooth * plain
            }
        }
        other => panic!("{other}"),
    };
    (0..head_dim / 2).map(|i| stretch(i, theta.powf(-2.0 * i as f64 / head_dim as f64))).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
