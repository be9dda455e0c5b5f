//! The packages of an output folder as one language model: embedding, blocks, head.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use half::f16;
use memmap2::Mmap;

use super::step::{self, Kept, RopeTable, Step};
use super::{Array, Arrays, Model, Runner, State};
use crate::chain::{self, BlockInfo, ChainFile, FunctionInfo, KvCache};
use crate::error::{Fault, OrFault};

/// Logits for which of the tokens that are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The last one.
    Last,
    /// Every one.
    All,
}

/// Is given the number of each block and its output rows.
type Watch<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// A loaded chain.
pub struct Chain {
    file: ChainFile,
    embedding: Mmap,
    rope: Option<RopeTable>,
    blocks: Vec<Box<dyn Model>>,
    head: Box<dyn Model>,
}

/// One conversation: keys and values of every block, and how many tokens they hold.
pub struct Session {
    blocks: Vec<Kept>,
    head: State,
    position: usize,
}

impl Session {
    /// Tokens so far.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl Chain {
    /// Loads all packages of `out`.
    ///
    /// # Errors
    /// An input fault that names the file or package.
    pub fn open(out: &Path, runner: &dyn Runner) -> Result<Self> {
        let file = ChainFile::read(out)?;
        let embedding = map(&out.join(&file.embedding.path), &file.embedding.shape)?;
        let rope = RopeTable::of(&file, out, map)?;
        let open = |block: &BlockInfo| {
            let path = out.join(&block.path);
            let model = runner.open(&path)?;
            step::check(&file, model.as_ref()).or_fault(|| {
                Fault::input(format!("`{}` is not what `{}` says", path.display(), chain::FILE_NAME))
                    .with_hint("bake again: the folder holds parts of different bakes")
            })?;
            Ok(model)
        };
        let blocks = file.blocks.iter().map(open).collect::<Result<_>>()?;
        let head = runner.open(&out.join(&file.head.path))?;
        Ok(Self { file, embedding, rope, blocks, head })
    }

    /// How the chain is wired.
    pub fn file(&self) -> &ChainFile {
        &self.file
    }

    /// The blocks, in order.
    pub fn blocks(&self) -> &[Box<dyn Model>] {
        &self.blocks
    }

    /// A new conversation.
    ///
    /// # Errors
    /// The runner cannot make its states.
    pub fn begin(&self) -> Result<Session> {
        let blocks = self.blocks.iter().map(|block| Kept::new(&self.file, block.as_ref())).collect::<Result<_>>()?;
        Ok(Session { blocks, head: self.head.new_state()?, position: 0 })
    }

    /// Appends `tokens` to the conversation; gives the logits, `vocab` of them, after the last token or each of them.
    ///
    /// # Errors
    /// A token that the vocabulary lacks, more tokens than the context holds, or a failing package.
    pub fn feed(&self, session: &mut Session, tokens: &[u32], rows: Rows) -> Result<Vec<Vec<f32>>> {
        self.feed_and(session, tokens, rows, None)
    }

    /// [`Self::feed`]; `watch` is given the number of each block and its output rows, `hidden` wide, one for each of
    /// the tokens of a call.
    ///
    /// # Errors
    /// See [`Self::feed`].
    pub fn feed_watched(
        &self,
        session: &mut Session,
        tokens: &[u32],
        rows: Rows,
        watch: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<Vec<f32>>> {
        self.feed_and(session, tokens, rows, Some(watch))
    }

    /// Unwatched, what a block gives goes into the next one as it is: a device need not show it.
    fn feed_and(
        &self,
        session: &mut Session,
        tokens: &[u32],
        rows: Rows,
        mut watch: Option<Watch<'_>>,
    ) -> Result<Vec<Vec<f32>>> {
        let context = self.file.context;
        if session.position + tokens.len() > context {
            return Err(Fault::usage(format!(
                "{} tokens after {} do not fit the context of {context}",
                tokens.len(),
                session.position
            ))
            .with_hint("bake with a larger `--set package.context=…`")
            .into());
        }
        let mut logits = Vec::new();
        let mut rest = tokens;
        while !rest.is_empty() {
            let function = self.function(session.position, rest.len());
            let (now, later) = rest.split_at(function.tokens.min(rest.len()));
            let mut hidden = self.embed(now, function.rows)?;
            let mut step = self.step(function, session.position, now.len())?;
            for (index, (block, kept)) in self.blocks.iter().zip(&mut session.blocks).enumerate() {
                hidden = step
                    .run(block.as_ref(), hidden, kept)
                    .with_context(|| format!("block {index}, position {}", session.position))?;
                if let Some(watch) = &mut watch {
                    watch(index, &hidden.floats()?[..now.len() * self.file.model.hidden]);
                }
            }
            session.position += now.len();
            rest = later;
            match rows {
                Rows::All => logits.extend(self.head(&mut session.head, function, hidden, 0..now.len())?),
                Rows::Last if rest.is_empty() => {
                    logits.extend(self.head(&mut session.head, function, hidden, now.len() - 1..now.len())?);
                }
                Rows::Last => {}
            }
        }
        Ok(logits)
    }

    /// Runs one block of the chain on `rows` given from outside, at the start of a conversation of its own; gives its
    /// output rows. Both are `hidden` wide.
    ///
    /// # Errors
    /// More rows than the context holds, or a failing package.
    pub fn block_alone(&self, index: usize, rows: &[f32]) -> Result<Vec<f32>> {
        let width = self.file.model.hidden;
        let block = self.blocks.get(index).with_context(|| format!("there is no block {index}"))?;
        let mut kept = Kept::new(&self.file, block.as_ref())?;
        let (mut done, mut output) = (0, Vec::with_capacity(rows.len()));
        let count = rows.len() / width;
        if count > self.file.context {
            bail!("{count} rows do not fit the context of {}", self.file.context);
        }
        while done < count {
            let function = self.function(done, count - done);
            let now = function.tokens.min(count - done);
            let hidden = padded(&rows[done * width..(done + now) * width], width, function.rows);
            let result = self.step(function, done, now)?.run(block.as_ref(), hidden, &mut kept)?;
            output.extend_from_slice(&result.floats()?[..now * width]);
            done += now;
        }
        Ok(output)
    }

    /// The function for the next call: of those that fit the context the one that needs the fewest calls for what is
    /// left, the smallest of equals.
    fn function(&self, position: usize, left: usize) -> &FunctionInfo {
        // Where the caller says what is stored, padding may pass the end.
        let fits = |f: &&FunctionInfo| self.file.kv != KvCache::Slice || position + f.rows <= self.file.context;
        let functions = self.file.functions.iter().filter(fits);
        let best = functions.min_by_key(|f| (left.div_ceil(f.tokens), f.rows));
        best.unwrap_or(&self.file.functions[0])
    }

    fn step<'a>(&'a self, function: &'a FunctionInfo, position: usize, real: usize) -> Result<Step<'a>> {
        let step = Step::new(&self.file, self.rope.as_ref(), function, position, real);
        match self.blocks.first() {
            Some(block) => step.held_by(block.as_ref()),
            None => Ok(step),
        }
    }

    fn embed(&self, tokens: &[u32], rows: usize) -> Result<Array> {
        let [vocab, width] = self.file.embedding.shape;
        let mut values = Vec::with_capacity(rows * width);
        for &token in tokens {
            let start = token as usize * width * 2;
            let Some(row) = self.embedding.get(start..start + width * 2) else {
                return Err(Fault::usage(format!("token {token} is none of the {vocab} of the vocabulary")).into());
            };
            values.extend(row.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()));
        }
        Ok(padded(&values, width, rows))
    }

    /// Logits of some rows of `hidden`. One row goes through the narrowest function.
    fn head(
        &self,
        state: &mut State,
        function: &FunctionInfo,
        hidden: Array,
        rows: std::ops::Range<usize>,
    ) -> Result<Vec<Vec<f32>>> {
        let width = self.file.model.hidden;
        let single = &self.file.functions[0];
        let (function, hidden, rows) = if rows.len() == 1 && function.rows > single.rows {
            let row = &hidden.floats()?[rows.start * width..rows.end * width];
            (single, padded(row, width, single.rows), 0..1)
        } else {
            (function, hidden, rows)
        };
        let inputs = Arrays::from([(self.file.interface.hidden.clone(), hidden)]);
        let outputs = self.head.predict(&function.name, &inputs, state).context("head")?;
        let mut logits = vec![Vec::with_capacity(self.file.model.vocab); rows.len()];
        for part in &self.file.head.outputs {
            let array = outputs.get(&part.name).with_context(|| format!("the head has no output `{}`", part.name))?;
            let values = array.floats()?;
            if values.len() != function.rows * part.count {
                bail!("output `{}` of the head has {} values", part.name, values.len());
            }
            for (row, logits) in rows.clone().zip(&mut logits) {
                logits.extend_from_slice(&values[row * part.count..(row + 1) * part.count]);
            }
        }
        Ok(logits)
    }
}

/// [1, rows, width] that begins with `values`; the last row is repeated: rows beyond the real ones must be finite.
fn padded(values: &[f32], width: usize, rows: usize) -> Array {
    let mut padded = Vec::with_capacity(rows * width);
    padded.extend_from_slice(values);
    while padded.len() < rows * width {
        padded.extend_from_within(padded.len() - width..);
    }
    Array::float(&[1, rows, width], padded)
}

/// A file of float16 of this shape.
///
/// # Errors
/// An input fault that names it: it cannot be opened, or has another size.
fn map(path: &Path, shape: &[usize]) -> Result<Mmap> {
    let open = || -> Result<Mmap> {
        let file = File::open(path)?;
        // SAFETY: the map is read only; files of an output are replaced by rename, never rewritten in place.
        Ok(unsafe { Mmap::map(&file) }?)
    };
    let mapped = open().or_fault(|| Fault::input(format!("cannot map `{}`", path.display())))?;
    let wanted = shape.iter().try_fold(2usize, |bytes, &size| bytes.checked_mul(size));
    if wanted != Some(mapped.len()) {
        return Err(Fault::input(format!(
            "`{}` has {} bytes, {shape:?} float16 take {}",
            path.display(),
            mapped.len(),
            wanted.map_or("too many".to_owned(), |bytes| bytes.to_string()),
        ))
        .into());
    }
    Ok(mapped)
}
