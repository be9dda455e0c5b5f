//! What a host does around the blocks: embedding, masks, positions, padding, the last norm and the output matrix.

use std::path::Path;

use anebake::coremltools::{Array, Environment, Oracle, Python, State};
use half::{bf16, f16};

use crate::support::TinyModel;

/// Length of the cache that the packages were baked with.
pub const CONTEXT: usize = 128;
/// Tokens of the function `prefill`.
pub const PREFILL: usize = 64;

/// A baked model with its states.
pub struct Chain<'a> {
    model: &'a TinyModel,
    blocks: Vec<(Oracle, State)>,
    hidden: usize,
    position: usize,
}

impl<'a> Chain<'a> {
    /// Loads every block that `model` has from `out`.
    pub fn load(model: &'a TinyModel, out: &Path) -> Self {
        let python = Python::start(&Environment::find(None).unwrap()).unwrap();
        let number = |key: &str| usize::try_from(model.config[key].as_u64().unwrap()).unwrap();
        let blocks = (0..number("num_hidden_layers")).map(|index| {
            let oracle = python.oracle(&out.join(format!("block-{index:02}.mlpackage"))).unwrap();
            let state = oracle.new_state("decode").unwrap();
            (oracle, state)
        });
        Self { model, blocks: blocks.collect(), hidden: number("hidden_size"), position: 0 }
    }

    /// Logits of at most 64 prompt tokens; the rest of the call is padded with the last row.
    pub fn prefill(&mut self, tokens: &[u32]) -> Vec<Vec<f64>> {
        assert!(tokens.len() <= PREFILL && self.position + PREFILL <= CONTEXT);
        let mut padded = tokens.to_vec();
        padded.resize(PREFILL, *tokens.last().unwrap());
        let rows = self.run("prefill", &padded);
        self.position += tokens.len();
        rows[..tokens.len() * self.hidden].chunks(self.hidden).map(|row| self.head(row)).collect()
    }

    /// Logits of one token.
    pub fn decode(&mut self, token: u32) -> Vec<f64> {
        let row = self.run("decode", &[token]);
        self.position += 1;
        self.head(&row)
    }

    fn run(&mut self, function: &str, tokens: &[u32]) -> Vec<f32> {
        let count = tokens.len();
        let table = self.stored("model.embed_tokens.weight");
        let rows = tokens.iter().flat_map(|&token| &table[token as usize * self.hidden..][..self.hidden]);
        let rows: Vec<f16> = rows.map(|&value| f16::from_f64(value)).collect();
        let mask: Vec<f16> = (0..count)
            .flat_map(|row| (0..CONTEXT).map(move |column| (row, column)))
            .map(|(row, column)| f16::from_f32(if column <= self.position + row { 0.0 } else { -1e4 }))
            .collect();
        let causal_mask = Array::f16(&[1, 1, count, CONTEXT], &mask);
        let position_offset = Array::i32(&[1], &[i32::try_from(self.position).unwrap()]);
        let mut hidden_state = Array::f16(&[1, count, self.hidden], &rows);
        for (oracle, state) in &mut self.blocks {
            let inputs =
                [("hidden_state", &hidden_state), ("causal_mask", &causal_mask), ("position_offset", &position_offset)];
            let (name, output) = oracle.predict(function, &inputs, state).unwrap().remove(0);
            assert_eq!(name, "hidden_out");
            hidden_state = output;
        }
        hidden_state.to_f32()
    }

    /// The final RMSNorm and the output matrix, in float64.
    fn head(&self, row: &[f32]) -> Vec<f64> {
        let eps = self.model.config["rms_norm_eps"].as_f64().unwrap();
        let row: Vec<f64> = row.iter().map(|&value| f64::from(value)).collect();
        let root = (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + eps).sqrt();
        let gain = self.stored("model.norm.weight");
        let normed: Vec<f64> = row.iter().zip(&gain).map(|(x, gain)| x / root * gain).collect();
        let tied = self.model.config["tie_word_embeddings"] == true;
        let head = self.stored(if tied { "model.embed_tokens.weight" } else { "lm_head.weight" });
        head.chunks(self.hidden).map(|weights| weights.iter().zip(&normed).map(|(w, x)| w * x).sum()).collect()
    }

    /// A tensor as the checkpoint stores it.
    fn stored(&self, name: &str) -> Vec<f64> {
        self.model.tensors[name].1.iter().map(|&value| bf16::from_f32(value).into()).collect()
    }
}
