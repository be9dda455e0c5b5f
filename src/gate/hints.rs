//! What to try where the gate fails: which weights cost most by being quantized, and an `[[override]]` that would pass.
//!
//! Measured, not guessed: weights are put back to float16, one kind at a time, and the chain is judged again. All
//! positions of a prompt are fed at once, which is quicker than the gate's own way and gives the same up to rounding.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use half::f16;
use serde::{Deserialize, Serialize};

use super::report::{Report, fixed, scientific};
use super::weights::float32;
use super::{Baseline, Options, steps_at_once};
use crate::arch::TensorKind;
use crate::checkpoint::Checkpoint;
use crate::recipe::OUTPUT_MATRIX;
use crate::runner::{Chain, Replacements};

/// Where more of the weights than this must stay float16, quantizing is hardly worth it.
const MUCH: f64 = 0.5;
/// What a quantized weight's name ends in.
const QUANTIZED: &str = "_quantized";

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hints {
    /// The chain as it is.
    pub as_baked: Measured,
    /// Each quantized kind of tensor put back to float16, the one that helps most first.
    pub kinds: Vec<KindReport>,
    /// What would pass; absent where nothing was found.
    pub suggestion: Option<Suggestion>,
    /// Whether time ran out before everything was tried.
    pub stopped_early: bool,
    /// What it took.
    pub seconds: f64,
}

/// How a chain came out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Whether it passes.
    pub passed: bool,
    /// Lowest cosine of a step.
    pub min_cosine: Option<f64>,
    /// Mean KL in nats.
    pub mean_kl: Option<f64>,
    /// Steps with a wrong token, ties apart.
    pub wrong: usize,
}

/// A kind of tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindReport {
    /// Its name below a block, for instance `mlp.down_proj`; or `lm_head`.
    pub kind: String,
    /// Its share of all quantizable weights.
    pub share: f64,
    /// The chain with all of this kind in float16.
    pub restored: Measured,
}

/// What would pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suggestion {
    /// Patterns of tensors to keep in float16, as an `[[override]]` takes them.
    pub tensors: Vec<String>,
    /// The same as TOML, to be appended to a recipe.
    pub toml: String,
    /// Their share of all quantizable weights.
    pub share: f64,
    /// How the chain then comes out.
    pub measured: Measured,
}

/// What hints are looked for with.
pub struct Search<'a> {
    /// The output folder.
    pub out: &'a Path,
    /// Opens the chain with other values for some weights.
    pub open: &'a dyn Fn(Replacements) -> Result<Chain>,
    /// Where the float values come from.
    pub checkpoint: Arc<Checkpoint>,
    /// Tokens of each prompt.
    pub tokens: &'a [Vec<u32>],
    /// What the chain is held against.
    pub baseline: &'a Baseline,
    /// What it must reach.
    pub options: &'a Options,
    /// No measurement begins after this time.
    pub budget: Duration,
}

/// A kind of tensor, in every block or at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    /// As recipes name it.
    name: String,
    /// Elements in one block, or in the output matrix.
    elements: usize,
    /// Blocks that have it; none where it is the output matrix.
    layers: usize,
}

impl Kind {
    fn is_head(&self) -> bool {
        self.layers == 0
    }

    /// Elements in the whole model.
    fn size(&self) -> usize {
        self.elements * self.layers.max(1)
    }

    /// A pattern that matches it in all blocks, or in some.
    fn pattern(&self, layers: Option<&BTreeSet<usize>>) -> String {
        let name = self.name.replace('.', r"\.");
        match layers {
            _ if self.is_head() => name,
            None => format!(r"layers\.\d+\.{name}"),
            Some(layers) => {
                let list: Vec<String> = layers.iter().map(ToString::to_string).collect();
                format!(r"layers\.({})\.{name}", list.join("|"))
            }
        }
    }
}

/// What is put back to float16: kinds in all blocks, or in some.
type Restored<'a> = Vec<(&'a Kind, Option<BTreeSet<usize>>)>;

impl Search<'_> {
    /// Looks for what helps.
    ///
    /// # Errors
    /// The checkpoint cannot be read, or a package fails.
    pub fn find(&self) -> Result<Hints> {
        let start = Instant::now();
        let in_time = || start.elapsed() < self.budget;
        let (as_baked, _) = self.measure(&vec![])?;
        let all = self.kinds();
        let total: usize = all.iter().map(Kind::size).sum();
        let share = |restored: &Restored<'_>| {
            let elements = |(kind, layers): &(&Kind, Option<BTreeSet<usize>>)| {
                kind.elements * layers.as_ref().map_or(kind.layers.max(1), BTreeSet::len)
            };
            restored.iter().map(elements).sum::<usize>() as f64 / total as f64
        };
        let mut stopped_early = false;
        let mut kinds: Vec<(&Kind, Measured)> = Vec::new();
        for kind in &all {
            if !in_time() {
                stopped_early = true;
                break;
            }
            let (restored, hits) = self.measure(&vec![(kind, None)])?;
            if hits > 0 {
                kinds.push((kind, restored));
            }
        }
        let loss = |measured: &Measured| measured.mean_kl.unwrap_or(f64::INFINITY);
        kinds.sort_by(|a, b| loss(&a.1).total_cmp(&loss(&b.1)));

        let mut found: Option<(Restored<'_>, Measured)> = None;
        let alone = kinds.iter().filter(|(_, measured)| measured.passed);
        if let Some((kind, measured)) = alone.min_by_key(|(kind, _)| kind.size()) {
            found = Some((vec![(*kind, None)], *measured));
        } else {
            // The first kinds that pass together; more are taken to be no worse, and all are tried first.
            let (mut low, mut high) = (2, kinds.len());
            let mut count = high;
            while low <= high {
                if !in_time() {
                    stopped_early = true;
                    break;
                }
                let restored: Restored<'_> = kinds[..count].iter().map(|(kind, _)| (*kind, None)).collect();
                let (measured, _) = self.measure(&restored)?;
                if measured.passed {
                    found = Some((restored, measured));
                    high = count - 1;
                } else if found.is_none() {
                    break;
                } else {
                    low = count + 1;
                }
                count = low.midpoint(high);
            }
        }
        if let Some((restored, measured)) = found {
            found = Some(match self.fewer_kinds(restored, measured, &in_time, &mut stopped_early)? {
                (restored, measured) if restored.len() == 1 => {
                    self.fewer_layers(restored[0].0, measured, &in_time, &mut stopped_early)?
                }
                several => several,
            });
        }
        let suggestion = found.map(|(restored, measured)| {
            let tensors: Vec<String> = restored.iter().map(|(kind, layers)| kind.pattern(layers.as_ref())).collect();
            Suggestion { toml: toml(&tensors), tensors, share: share(&restored), measured }
        });
        let reports = kinds.iter().map(|(kind, restored)| KindReport {
            kind: kind.name.clone(),
            share: share(&vec![(*kind, None)]),
            restored: *restored,
        });
        let seconds = start.elapsed().as_secs_f64();
        Ok(Hints { as_baked, kinds: reports.collect(), suggestion, stopped_early, seconds })
    }

    /// What still passes when kinds that turn out not to be needed are left quantized, the largest first.
    fn fewer_kinds<'k>(
        &self,
        restored: Restored<'k>,
        measured: Measured,
        in_time: &dyn Fn() -> bool,
        stopped_early: &mut bool,
    ) -> Result<(Restored<'k>, Measured)> {
        let mut best = (restored, measured);
        let mut candidates: Vec<&Kind> = best.0.iter().map(|(kind, _)| *kind).collect();
        candidates.sort_by_key(|kind| std::cmp::Reverse(kind.size()));
        for candidate in candidates {
            if best.0.len() == 1 {
                break;
            }
            if !in_time() {
                *stopped_early = true;
                break;
            }
            let fewer: Restored<'k> = best.0.iter().filter(|(kind, _)| *kind != candidate).cloned().collect();
            let (measured, _) = self.measure(&fewer)?;
            if measured.passed {
                best = (fewer, measured);
            }
        }
        Ok(best)
    }

    /// The fewest blocks in which a kind, restored in all of them, still passes: those that help most alone.
    fn fewer_layers<'k>(
        &self,
        kind: &'k Kind,
        whole: Measured,
        in_time: &dyn Fn() -> bool,
        stopped_early: &mut bool,
    ) -> Result<(Restored<'k>, Measured)> {
        let mut best = (vec![(kind, None)], whole);
        let mut gains = Vec::new();
        for layer in 0..kind.layers {
            if !in_time() {
                *stopped_early = true;
                return Ok(best);
            }
            let (measured, _) = self.measure(&vec![(kind, Some(BTreeSet::from([layer])))])?;
            gains.push((layer, measured.mean_kl.unwrap_or(f64::INFINITY)));
        }
        gains.sort_by(|a, b| a.1.total_cmp(&b.1));
        // More blocks are taken to be no worse: the search halves the range. What it ends with was measured.
        let (mut low, mut high) = (1, kind.layers);
        while low < high {
            if !in_time() {
                *stopped_early = true;
                break;
            }
            let count = low.midpoint(high);
            let layers: BTreeSet<usize> = gains[..count].iter().map(|(layer, _)| *layer).collect();
            let restored = vec![(kind, Some(layers))];
            let (measured, _) = self.measure(&restored)?;
            if measured.passed {
                best = (restored, measured);
                high = count;
            } else {
                low = count + 1;
            }
        }
        Ok(best)
    }

    fn kinds(&self) -> Vec<Kind> {
        let config = self.checkpoint.config();
        let projections = config.block_tensors().into_iter().filter(|tensor| tensor.kind == TensorKind::Projection);
        let mut kinds: Vec<Kind> = projections
            .map(|tensor| Kind {
                name: tensor.role.trim_end_matches(".weight").to_owned(),
                elements: tensor.shape.iter().product(),
                layers: config.layers,
            })
            .collect();
        kinds.push(Kind { name: OUTPUT_MATRIX.to_owned(), elements: config.vocab * config.hidden, layers: 0 });
        kinds
    }

    /// Judges the chain with some weights in float16; also tells how many quantized weights that changed.
    fn measure(&self, restored: &Restored<'_>) -> Result<(Measured, usize)> {
        let hits = Arc::new(AtomicUsize::new(0));
        let chain = (self.open)(self.replacements(restored, &hits)?)?;
        let mut report = Report::new(self.baseline, self.options);
        for (index, tokens) in self.tokens.iter().enumerate() {
            let steps = steps_at_once(&chain, tokens, self.baseline, index)?;
            report.add(self.baseline, index, tokens, &steps, None)?;
        }
        report.finish(None)?;
        let measured = Measured {
            passed: report.passed,
            min_cosine: report.worst.map(|worst| worst.cosine),
            mean_kl: report.mean_kl,
            wrong: report.wrong,
        };
        Ok((measured, hits.load(Ordering::Relaxed)))
    }

    /// The values of what is restored; counts the weights in `hits`.
    fn replacements(&self, restored: &Restored<'_>, hits: &Arc<AtomicUsize>) -> Result<Replacements> {
        let (checkpoint, hits) = (Arc::clone(&self.checkpoint), Arc::clone(hits));
        let config = checkpoint.config();
        let file = crate::chain::ChainFile::read(self.out)?;
        let blocks: Vec<PathBuf> = file.blocks.iter().map(|block| self.out.join(&block.path)).collect();
        let head = self.out.join(&file.head.path);
        let outputs = file.head.outputs;
        // Block and const to the tensor's name and shape.
        let mut wanted = BTreeMap::new();
        for tensor in config.block_tensors() {
            let name = tensor.role.trim_end_matches(".weight");
            let Some((kind, layers)) = restored.iter().find(|(kind, _)| kind.name == name) else { continue };
            let layers = layers.clone().unwrap_or_else(|| (0..kind.layers).collect());
            for layer in layers {
                let name = format!("model.layers.{layer}.{}", tensor.role);
                wanted.insert((layer, tensor.const_name.to_string()), (name, tensor.shape.clone()));
            }
        }
        let restore_head = restored.iter().any(|(kind, _)| kind.is_head());
        let output_matrix = config.output_matrix();
        let (vocab, hidden) = (config.vocab, config.hidden);
        Ok(Arc::new(move |package: &Path, name: &str, shape: &[usize]| {
            let Some(stem) = name.strip_suffix(QUANTIZED) else { return Ok(None) };
            let elements: usize = shape.iter().product();
            let values = if package == head {
                let part = stem.strip_prefix("lm_head_").and_then(|rest| rest.strip_suffix("_weight"));
                let Some(part) = part.and_then(|part| part.parse::<usize>().ok()).filter(|_| restore_head) else {
                    return Ok(None);
                };
                let part = outputs.get(part).with_context(|| format!("the head has no output {part}"))?;
                let mut values = float32(&checkpoint, output_matrix, &[vocab, hidden])?;
                values.truncate((part.first + part.count) * hidden);
                values.split_off(part.first * hidden)
            } else {
                let block = blocks.iter().position(|path| path == package);
                let found = block.and_then(|block| wanted.get(&(block, stem.to_owned())));
                let Some((tensor, shape)) = found else { return Ok(None) };
                float32(&checkpoint, tensor, shape)?
            };
            ensure!(values.len() == elements, "weight `{name}` has {elements} values, the model's {}", values.len());
            hits.fetch_add(1, Ordering::Relaxed);
            Ok(Some(values.into_iter().map(f16::from_f32).collect()))
        }))
    }
}

/// Overrides that keep tensors in float16.
fn toml(tensors: &[String]) -> String {
    let entries = tensors.iter().map(|tensors| format!("[[override]]\ntensors = '{tensors}'\ndtype = \"float16\"\n"));
    entries.collect::<Vec<_>>().join("\n")
}

impl Hints {
    /// Headings of [`Self::rows`].
    pub const HEADER: [&'static str; 5] = ["in float16", "share of weights", "min cosine", "mean KL", "wrong"];

    /// Columns of [`Self::rows`] that hold numbers.
    pub const NUMBERS: [usize; 4] = [1, 2, 3, 4];

    /// A row for the chain as it is, and one for each kind.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, share: f64, measured: &Measured| {
            vec![
                name.to_owned(),
                format!("{:.1} %", 100.0 * share),
                fixed(measured.min_cosine),
                scientific(measured.mean_kl),
                measured.wrong.to_string(),
            ]
        };
        let kinds = self.kinds.iter().map(|kind| row(&kind.kind, kind.share, &kind.restored));
        std::iter::once(row("(as baked)", 0.0, &self.as_baked)).chain(kinds).collect()
    }

    /// What it comes to, in words.
    pub fn conclusion(&self) -> String {
        let time = if self.stopped_early { "; time ran out before everything was tried" } else { "" };
        if self.kinds.is_empty() && !self.stopped_early {
            return "no weight of this chain is quantized: what fails is not a matter of rounding weights".to_owned();
        }
        match &self.suggestion {
            Some(suggestion) if suggestion.share > MUCH => format!(
                "these prompts pass only with {:.1} % of the weights in float16{time}: finer scales may do more, for \
                 instance `weights.granularity = \"per_block\"`; still, this would pass:",
                100.0 * suggestion.share
            ),
            Some(suggestion) => format!(
                "with {:.1} % of the weights in float16 these prompts would pass{time}; judge on others too, with \
                 `--prompts`, before relying on it:",
                100.0 * suggestion.share
            ),
            None if self.stopped_early => format!("no override was found{time}"),
            None => "even with every kind in float16 it fails: look elsewhere, for instance with `--blocks`".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Recipe, WeightDtype};

    #[test]
    fn patterns_are_overrides_that_a_recipe_takes_for_just_those_tensors() {
        let down = Kind { name: "mlp.down_proj".to_owned(), elements: 1, layers: 30 };
        let value = Kind { name: "self_attn.v_proj".to_owned(), elements: 1, layers: 30 };
        let head = Kind { name: "lm_head".to_owned(), elements: 1, layers: 0 };
        assert_eq!(head.pattern(None), "lm_head");
        let tensors = [down.pattern(Some(&BTreeSet::from([29, 2, 11]))), value.pattern(None)];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.toml");
        std::fs::write(&path, format!("schema = 1\nextends = 'int8-rtn-v1'\n\n{}", toml(&tensors))).unwrap();
        let recipe = Recipe::load(&path.display().to_string(), &[]).unwrap();
        let dtype = |block, role| recipe.weights_for(block, role).dtype();
        for (block, role, want) in [
            (2, "mlp.down_proj", WeightDtype::Float16),
            (29, "mlp.down_proj", WeightDtype::Float16),
            (9, "mlp.down_proj", WeightDtype::Int8),
            (1, "mlp.down_proj", WeightDtype::Int8),
            (2, "mlp.up_proj", WeightDtype::Int8),
            (0, "self_attn.v_proj", WeightDtype::Float16),
            (17, "self_attn.v_proj", WeightDtype::Float16),
            (17, "self_attn.q_proj", WeightDtype::Int8),
        ] {
            assert_eq!(dtype(block, role), want, "{block} {role}");
        }
    }
}
