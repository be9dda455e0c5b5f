//! What a host does around the packages: embedding, masks, positions, padding, logits put together; all as `chain.json`
//! says, through coremltools' own operators.

use std::path::Path;

use anebake::chain::ChainFile;
use anebake::coremltools::{Array, Environment, Oracle, Python, State};
use half::f16;

/// Length of the cache that the packages were baked with.
pub const CONTEXT: usize = 128;
/// Tokens of the function `prefill`.
pub const PREFILL: usize = 64;

/// A baked model with its states.
pub struct Chain {
    file: ChainFile,
    embedding: Vec<u8>,
    blocks: Vec<(Oracle, State)>,
    head: (Oracle, State),
    position: usize,
}

impl Chain {
    /// Loads everything that `out` holds.
    pub fn load(out: &Path) -> Self {
        let python = Python::start(&Environment::find(None).unwrap()).unwrap();
        let file = ChainFile::read(out).unwrap();
        assert_eq!(file.context, CONTEXT);
        let functions: Vec<_> = file.functions.iter().map(|f| (f.name.as_str(), f.tokens)).collect();
        assert_eq!(functions, [("decode", 1), ("prefill", PREFILL)]);
        let load = |path: &str| {
            let oracle = python.oracle(&out.join(path)).unwrap();
            let state = oracle.new_state("decode").unwrap();
            (oracle, state)
        };
        let embedding = std::fs::read(out.join(&file.embedding.path)).unwrap();
        assert_eq!(embedding.len(), file.embedding.shape.iter().product::<usize>() * 2);
        let blocks = file.blocks.iter().map(|block| load(&block.path)).collect();
        Self { embedding, blocks, head: load(&file.head.path), file, position: 0 }
    }

    /// Logits of at most 64 prompt tokens; the rest of the call is padded with the last row.
    pub fn prefill(&mut self, tokens: &[u32]) -> Vec<Vec<f64>> {
        assert!(tokens.len() <= PREFILL && self.position + PREFILL <= CONTEXT);
        let mut padded = tokens.to_vec();
        padded.resize(PREFILL, *tokens.last().unwrap());
        let mut logits = self.run("prefill", &padded);
        self.position += tokens.len();
        logits.truncate(tokens.len());
        logits
    }

    /// Logits of one token.
    pub fn decode(&mut self, token: u32) -> Vec<f64> {
        let mut logits = self.run("decode", &[token]);
        self.position += 1;
        logits.remove(0)
    }

    /// Logits of every token of a call.
    fn run(&mut self, function: &str, tokens: &[u32]) -> Vec<Vec<f64>> {
        let (count, hidden) = (tokens.len(), self.file.model.hidden);
        let row = |&token: &u32| &self.embedding[token as usize * hidden * 2..][..hidden * 2];
        let rows = tokens.iter().flat_map(row).copied().collect::<Vec<u8>>();
        let rows: Vec<f16> = rows.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
        let seen = |row: usize, column: usize| column <= self.position + row;
        let mask: Vec<f16> = (0..count)
            .flat_map(|row| (0..CONTEXT).map(move |column| (row, column)))
            .map(|(row, column)| if seen(row, column) { self.file.mask.visible } else { self.file.mask.hidden })
            .map(f16::from_f32)
            .collect();
        let causal_mask = Array::f16(&[1, 1, count, CONTEXT], &mask);
        let position_offset = Array::i32(&[1], &[i32::try_from(self.position).unwrap()]);
        let mut hidden_state = Array::f16(&[1, count, hidden], &rows);
        let names = &self.file.interface;
        for (oracle, state) in &mut self.blocks {
            let inputs = [
                (names.hidden.as_str(), &hidden_state),
                (&names.mask, &causal_mask),
                (names.position.as_ref().unwrap(), &position_offset),
            ];
            let (name, output) = oracle.predict(function, &inputs, state).unwrap().remove(0);
            assert_eq!(name, names.output);
            hidden_state = output;
        }
        let (oracle, state) = &mut self.head;
        let outputs = oracle.predict(function, &[(names.hidden.as_str(), &hidden_state)], state).unwrap();
        assert_eq!(outputs.len(), self.file.head.outputs.len());
        let mut logits = vec![Vec::new(); count];
        for part in &self.file.head.outputs {
            let (_, values) = outputs.iter().find(|(name, _)| *name == part.name).unwrap();
            assert_eq!(values.shape, [1, count, part.count]);
            for (row, values) in logits.iter_mut().zip(values.to_f32().chunks(part.count)) {
                assert_eq!(row.len(), part.first);
                row.extend(values.iter().map(|&value| f64::from(value)));
            }
        }
        logits
    }
}
