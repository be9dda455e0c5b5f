//! What a host does around the packages: embedding, masks, positions, padding, keys and values, logits put together; all
//! as `chain.json` says, through coremltools' own operators.

use std::path::{Path, PathBuf};

use anebake::chain::{ChainFile, FunctionInfo, KvCache};
use anebake::coremltools::{Array, Environment, Oracle, Python, State};
use half::f16;

/// Length of the cache that the packages were baked with.
pub const CONTEXT: usize = 128;
/// Tokens of the function `prefill`.
pub const PREFILL: usize = 64;

/// Values of a flat file of float16.
pub fn halves(path: &Path) -> Vec<f16> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect()
}

/// An input of a block: name, shape, values. Integers are exact in float16 here.
pub type Input = (String, Vec<usize>, Vec<f16>);

/// What a block is given beside hidden states and what the caller keeps, in a call for `real` tokens from `position` on.
pub fn step(file: &ChainFile, out: &Path, function: &FunctionInfo, position: usize, real: usize) -> Vec<Input> {
    let (names, rows, context) = (&file.interface, function.rows, file.context);
    let mut inputs = Vec::new();
    let columns = if file.kv == KvCache::Io { context + rows } else { context };
    let seen = |row: usize, column: usize| match file.kv {
        KvCache::Slice | KvCache::Mask => column <= position + row,
        KvCache::Io => column < position || (context..=context + row).contains(&column),
    };
    let mask = (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, column)| if seen(row, column) { file.mask.visible } else { file.mask.hidden })
        .map(f16::from_f32);
    inputs.push((names.mask.clone(), vec![1, 1, rows, columns], mask.collect()));
    if let Some(name) = &names.position {
        inputs.push((name.clone(), vec![1], vec![f16::from_f32(position as f32)]));
    }
    if let Some(rope) = &names.rope {
        let table = file.rope.table.as_ref().unwrap();
        let [parts, positions, width] = table.shape;
        let values = halves(&out.join(&table.path));
        assert_eq!((parts, positions, values.len()), (2, context, 2 * context * width));
        for (name, table) in [&rope.cos, &rope.sin].into_iter().zip(values.chunks(context * width)) {
            // Beyond the table any finite values do.
            let mut cut = table[position * width..].to_vec();
            cut.resize(rows.max(context) * width, f16::from_f32(3.0));
            cut.truncate(rows * width);
            inputs.push((name.clone(), vec![1, 1, rows, width], cut));
        }
    }
    if let Some(name) = &names.write {
        let mut one_hot = vec![f16::ZERO; context * rows];
        (0..real).for_each(|row| one_hot[(position + row) * rows + row] = f16::ONE);
        inputs.push((name.clone(), vec![1, 1, context, rows], one_hot));
    }
    inputs
}

/// A block with what is kept for it.
struct Block {
    oracle: Oracle,
    state: State,
    past: Vec<Vec<f16>>,
}

/// A baked model with its states.
pub struct Chain {
    file: ChainFile,
    out: PathBuf,
    embedding: Vec<f16>,
    blocks: Vec<Block>,
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
        let embedding = halves(&out.join(&file.embedding.path));
        assert_eq!(embedding.len(), file.embedding.shape.iter().product::<usize>());
        let kept = file.model.kv_heads * CONTEXT * file.model.head_dim;
        let block = |path: &str| {
            let (oracle, state) = load(path);
            Block { oracle, state, past: vec![vec![f16::ZERO; kept]; file.interface.past.len()] }
        };
        let blocks = file.blocks.iter().map(|info| block(&info.path)).collect();
        Self { embedding, blocks, head: load(&file.head.path), file, out: out.to_owned(), position: 0 }
    }

    /// Logits of at most 64 prompt tokens; the rest of the call is padded with the last row.
    pub fn prefill(&mut self, tokens: &[u32]) -> Vec<Vec<f64>> {
        self.run(1, tokens)
    }

    /// Logits of one token.
    pub fn decode(&mut self, token: u32) -> Vec<f64> {
        self.run(0, &[token]).remove(0)
    }

    /// Logits of the tokens of a call.
    fn run(&mut self, function: usize, tokens: &[u32]) -> Vec<Vec<f64>> {
        let function = self.file.functions[function].clone();
        let (real, rows, hidden) = (tokens.len(), function.rows, self.file.model.hidden);
        assert!(real <= rows && self.position + real <= CONTEXT);
        let row = |&token: &u32| self.embedding[token as usize * hidden..][..hidden].to_vec();
        let mut stream: Vec<f16> = tokens.iter().flat_map(row).collect();
        (real..rows).for_each(|_| stream.extend(row(tokens.last().unwrap())));
        let names = &self.file.interface;
        let mut inputs: Vec<(String, Array)> = step(&self.file, &self.out, &function, self.position, real)
            .into_iter()
            .map(|(name, shape, values)| {
                let array = if names.position.as_ref() == Some(&name) {
                    Array::i32(&shape, &[values[0].to_f32() as i32])
                } else {
                    Array::f16(&shape, &values)
                };
                (name, array)
            })
            .collect();
        let common = inputs.len();
        let mut hidden_state = Array::f16(&[1, rows, hidden], &stream);
        let (heads, width) = (self.file.model.kv_heads, self.file.model.head_dim);
        for Block { oracle, state, past } in &mut self.blocks {
            inputs.push((names.hidden.clone(), hidden_state));
            for (name, values) in names.past.iter().zip(&*past) {
                inputs.push((name.input.clone(), Array::f16(&[1, heads, CONTEXT, width], values)));
            }
            let given: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (name.as_str(), array)).collect();
            let mut outputs = oracle.predict(&function.name, &given, state).unwrap();
            assert_eq!(outputs.len(), 1 + names.past.len());
            let mut take = |name: &str| {
                let place = outputs.iter().position(|(output, _)| output == name).unwrap();
                outputs.remove(place).1
            };
            hidden_state = take(&names.output);
            for (name, kept) in names.past.iter().zip(past) {
                let new = take(&name.output);
                assert_eq!(new.shape, [1, heads, rows, width]);
                let new: Vec<f16> = new.to_f32().into_iter().map(f16::from_f32).collect();
                for head in 0..heads {
                    kept[(head * CONTEXT + self.position) * width..][..real * width]
                        .copy_from_slice(&new[head * rows * width..][..real * width]);
                }
            }
            inputs.truncate(common);
        }
        self.position += real;
        let (oracle, state) = &mut self.head;
        let outputs = oracle.predict(&function.name, &[(names.hidden.as_str(), &hidden_state)], state).unwrap();
        assert_eq!(outputs.len(), self.file.head.outputs.len());
        let mut logits = vec![Vec::new(); rows];
        for part in &self.file.head.outputs {
            let (_, values) = outputs.iter().find(|(name, _)| *name == part.name).unwrap();
            assert_eq!(values.shape, [1, rows, part.count]);
            for (row, values) in logits.iter_mut().zip(values.to_f32().chunks(part.count)) {
                assert_eq!(row.len(), part.first);
                row.extend(values.iter().map(|&value| f64::from(value)));
            }
        }
        logits.truncate(real);
        logits
    }
}
