//! What a bake would do, without doing it: for `plan` and `explain`. Writes nothing but the cache's own notes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use serde_json::Value;

use super::part::{Part, PlannedPart};
use super::pipeline::{Bake, BakedPart, default_jobs};
use super::plan::{digest_memos, tensor_digests};
use crate::cache::{ActionKey, Change, Lookup, action_key, difference};
use crate::quant::{Granularity, WeightDtype};

/// What would become of one part.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// Which.
    pub part: Part,
    /// Its key.
    pub key: ActionKey,
    /// What the key is made of.
    pub document: Value,
    /// Its files, where it is cached.
    pub cached: Option<BakedPart>,
    /// Why it is not.
    pub reason: Option<Reason>,
    /// Bytes of its files; about, where it is not cached.
    pub bytes: u64,
}

/// Why a part is not in the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// No such part of this model was baked by this recipe and engine.
    New,
    /// It was, with other inputs.
    Changed(Vec<Change>),
    /// It was, with the same inputs, and is gone or damaged.
    Gone,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::New => f.write_str("never baked by this recipe"),
            Self::Gone => f.write_str("removed from the cache, or damaged"),
            Self::Changed(changes) => {
                let shown: Vec<String> = changes.iter().take(2).map(ToString::to_string).collect();
                write!(f, "{}", shown.join("; "))?;
                match changes.len() {
                    0..=2 => Ok(()),
                    more => write!(f, "; and {} more", more - 2),
                }
            }
        }
    }
}

/// Surveys every part of the plan, with `jobs` threads for what must be digested.
///
/// # Errors
/// The checkpoint or the cache cannot be read.
pub fn survey(bake: &Bake<'_>) -> Result<Vec<Surveyed>> {
    bake.checkpoint.check()?;
    let memos = digest_memos(bake.cache, bake.checkpoint)?;
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let one = |planned: &PlannedPart| -> Result<Surveyed> {
        let digests = tensor_digests(bake.checkpoint, &memos, &planned.tensors);
        let document = bake.plan.part_document(planned, &digests);
        let key = action_key(&document);
        let cached = match bake.cache.lookup::<BakedPart>(&key)? {
            Lookup::Hit { result } => Some(result),
            Lookup::Miss | Lookup::Damaged => None,
        };
        let reason = match (&cached, bake.cache.last_document(&bake.plan.subject(planned))?) {
            (Some(_), _) => None,
            (None, None) => Some(Reason::New),
            (None, Some(last)) => match difference(&last, &document) {
                changes if changes.is_empty() => Some(Reason::Gone),
                changes => Some(Reason::Changed(changes)),
            },
        };
        let bytes = cached.as_ref().map_or_else(|| estimate(bake, planned), BakedPart::size);
        Ok(Surveyed { part: planned.part, key, document, cached, reason, bytes })
    };
    std::thread::scope(|scope| {
        for _ in 0..default_jobs().get() {
            scope.spawn(|| {
                while let Some(planned) = bake.plan.parts.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let result = one(planned);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut list = results.into_iter().collect::<Result<Vec<_>>>()?;
    list.sort_by_key(|surveyed| surveyed.part);
    Ok(list)
}

/// Bytes of a part that is not made yet: its weights; tables and program come on top (under 1 % at full size).
fn estimate(bake: &Bake<'_>, planned: &PlannedPart) -> u64 {
    let float = if planned.part.is_package() { bake.plan.compute.size() as u64 } else { 2 };
    let sizes = planned.tensors.iter().map(|planned| {
        let (rows, cols) = planned.matrix();
        let elements = (rows * cols) as u64;
        let Some(scheme) = planned.scheme else { return elements * float };
        let bits = match scheme.dtype {
            WeightDtype::Int8 => 8,
            WeightDtype::Int4 => 4,
        };
        let scales = match scheme.granularity {
            Granularity::PerTensor => 1,
            Granularity::PerChannel => rows as u64,
            Granularity::PerBlock { block_size } => elements / block_size.max(1) as u64,
        };
        (elements * bits).div_ceil(8) + scales * float
    });
    sizes.sum()
}
