//! One call of the blocks: what they are given beside the residual stream, and what is kept for them between calls.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use half::f16;
use memmap2::Mmap;

use super::{Array, Arrays, Model, State};
use crate::chain::{ChainFile, FunctionInfo, KvCache};

/// Cosines and sines of every position, as a chain's file has them.
pub(super) struct RopeTable {
    bytes: Mmap,
    /// Positions.
    context: usize,
    /// Values of a row.
    width: usize,
}

impl RopeTable {
    /// The table of a chain, if it has one, whose file `map` opens; it is given the path and the elements.
    ///
    /// # Errors
    /// What `map` says.
    pub(super) fn of(
        file: &ChainFile,
        out: &Path,
        map: impl Fn(&Path, &[usize]) -> Result<Mmap>,
    ) -> Result<Option<Self>> {
        let Some(table) = &file.rope.table else { return Ok(None) };
        let bytes = map(&out.join(&table.path), &table.shape)?;
        let [_, context, width] = table.shape;
        Ok(Some(Self { bytes, context, width }))
    }

    /// [1, 1, rows, head_dim] from `position` on, cosines or sines; beyond the table its last row again.
    fn rows(&self, sines: bool, position: usize, rows: usize) -> Array {
        let mut values = Vec::with_capacity(rows * self.width);
        for row in position..position + rows {
            let row = row.min(self.context - 1) + if sines { self.context } else { 0 };
            let bytes = &self.bytes[row * self.width * 2..][..self.width * 2];
            values.extend(bytes.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()));
        }
        Array::float(&[1, 1, rows, self.width], values)
    }
}

/// What is kept for a block between calls.
pub(super) struct Kept {
    states: State,
    /// What the caller keeps, in the order of the interface.
    past: Vec<Array>,
}

impl Kept {
    /// As it is before the first call.
    ///
    /// # Errors
    /// The runner cannot make states.
    pub(super) fn new(file: &ChainFile, block: &dyn Model) -> Result<Self> {
        let shape = [1, file.model.kv_heads, file.context, file.model.head_dim];
        let empty = || Array::float(&shape, vec![0.0; shape.iter().product()]);
        Ok(Self { states: block.new_state()?, past: file.interface.past.iter().map(|_| empty()).collect() })
    }
}

/// Checks that a block has the functions and the inputs that its chain says, so that no size is another's word.
///
/// # Errors
/// It lacks one, or has it in another shape.
pub(super) fn check(file: &ChainFile, block: &dyn Model) -> Result<()> {
    let (names, model) = (&file.interface, &file.model);
    for FunctionInfo { name, rows, .. } in &file.functions {
        let found = block.functions().iter().find(|function| function.name == *name);
        let found = found.with_context(|| format!("it has no function `{name}`"))?;
        let own = if file.kv == KvCache::Io { *rows } else { 0 };
        let mut inputs = vec![
            (&names.hidden, vec![1, *rows, model.hidden]),
            (&names.mask, vec![1, 1, *rows, file.context.saturating_add(own)]),
        ];
        inputs.extend(names.position.iter().map(|name| (name, vec![1])));
        let rope = names.rope.iter().flat_map(|rope| [&rope.cos, &rope.sin]);
        inputs.extend(rope.map(|name| (name, vec![1, 1, *rows, model.head_dim])));
        inputs.extend(names.write.iter().map(|name| (name, vec![1, 1, file.context, *rows])));
        let shape = [1, model.kv_heads, file.context, model.head_dim];
        inputs.extend(names.past.iter().map(|past| (&past.input, shape.to_vec())));
        for (input, shape) in inputs {
            let feature = found.inputs.iter().find(|feature| feature.name == *input);
            let feature = feature.with_context(|| format!("function `{name}` has no input `{input}`"))?;
            let same =
                feature.shape.iter().map(|&size| usize::try_from(size).ok()).eq(shape.iter().map(|&size| Some(size)));
            ensure!(same, "input `{input}` of function `{name}` is {:?}, not {shape:?}", feature.shape);
        }
    }
    Ok(())
}

/// A call that all blocks see in turn.
pub(super) struct Step<'a> {
    file: &'a ChainFile,
    function: &'a FunctionInfo,
    position: usize,
    /// Rows of real tokens.
    real: usize,
    /// The inputs that are the same for every block.
    inputs: Arrays,
}

impl<'a> Step<'a> {
    /// A call of `function` for `real` tokens from `position` on. All of them fit the context, and with `slice` all rows.
    pub(super) fn new(
        file: &'a ChainFile,
        rope: Option<&RopeTable>,
        function: &'a FunctionInfo,
        position: usize,
        real: usize,
    ) -> Self {
        let (names, rows) = (&file.interface, function.rows);
        let mut inputs = Arrays::from([(names.mask.clone(), mask(file, position, rows))]);
        if let Some(name) = &names.position {
            let position = i32::try_from(position).expect("contexts are below 2^31");
            inputs.insert(name.clone(), Array::int(&[1], vec![position]));
        }
        if let Some((names, table)) = names.rope.as_ref().zip(rope) {
            inputs.insert(names.cos.clone(), table.rows(false, position, rows));
            inputs.insert(names.sin.clone(), table.rows(true, position, rows));
        }
        if let Some(name) = &names.write {
            let mut values = vec![0.0; file.context * rows];
            (0..real).for_each(|row| values[(position + row) * rows + row] = 1.0);
            inputs.insert(name.clone(), Array::float(&[1, 1, file.context, rows], values));
        }
        Self { file, function, position, real, inputs }
    }

    /// With the inputs that all blocks share where their device reads them, so that they are brought there once.
    ///
    /// # Errors
    /// The device does not take one.
    pub(super) fn held_by(mut self, block: &dyn Model) -> Result<Self> {
        let hold = |(name, array): (String, Array)| {
            let held = block.hold(&name, array)?;
            Ok((name, held))
        };
        self.inputs = std::mem::take(&mut self.inputs).into_iter().map(hold).collect::<Result<_>>()?;
        Ok(self)
    }

    /// Runs a block on [1, rows, hidden]; gives its output, of the same shape.
    ///
    /// # Errors
    /// The package fails, or lacks an output.
    pub(super) fn run(&mut self, block: &dyn Model, hidden: Array, kept: &mut Kept) -> Result<Array> {
        let names = &self.file.interface;
        self.inputs.insert(names.hidden.clone(), hidden);
        // Lent to the call, not copied: all past of a block is much.
        for (past, held) in names.past.iter().zip(kept.past.drain(..)) {
            self.inputs.insert(past.input.clone(), held);
        }
        let outputs = block.predict(&self.function.name, &self.inputs, &mut kept.states);
        for past in &names.past {
            kept.past.extend(self.inputs.remove(&past.input));
        }
        let mut outputs = outputs?;
        for (past, held) in names.past.iter().zip(&mut kept.past) {
            let new = outputs.get(&past.output).with_context(|| format!("it has no output `{}`", past.output))?;
            self.store(new, held).with_context(|| format!("output `{}`", past.output))?;
        }
        outputs.remove(&names.output).with_context(|| format!("it has no output `{}`", names.output))
    }

    /// Puts the rows of real tokens, of [1, kv_heads, rows, head_dim], to their positions.
    fn store(&self, new: &Array, held: &mut Array) -> Result<()> {
        let (rows, width) = (self.function.rows, self.file.model.head_dim);
        let expected = [1, self.file.model.kv_heads, rows, width];
        ensure!(new.shape == expected, "its shape is {:?}, not {expected:?}", new.shape);
        let heads = new.floats()?.chunks(rows * width).zip(held.floats_mut()?.chunks_mut(self.file.context * width));
        for (new, held) in heads {
            held[self.position * width..][..self.real * width].copy_from_slice(&new[..self.real * width]);
        }
        Ok(())
    }
}

/// The additive mask: row `i` sees what lies at or before `position + i`. With `io`, the call's own rows have columns of
/// their own, behind those of the context.
fn mask(file: &ChainFile, position: usize, rows: usize) -> Array {
    let (context, own) = (file.context, if file.kv == KvCache::Io { rows } else { 0 });
    let mut values = vec![file.mask.hidden; rows * (context + own)];
    for (i, row) in values.chunks_mut(context + own).enumerate() {
        let (past, new) = row.split_at_mut(context);
        let seen = if own > 0 { position } else { position + i + 1 };
        past[..seen.min(context)].fill(file.mask.visible);
        new[..own.min(i + 1)].fill(file.mask.visible);
    }
    Array::float(&[1, 1, rows, context + own], values)
}
