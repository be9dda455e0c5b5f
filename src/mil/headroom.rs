//! How near the results of each op come to what float16 holds.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Collects, op by op, the largest magnitude before rounding. One is shared by all packages of a chain.
#[derive(Debug, Default)]
pub struct Headroom(Mutex<Collected>);

#[derive(Debug, Default)]
struct Collected {
    ops: BTreeMap<Place, OpHeadroom>,
    first_overflow: Option<OpHeadroom>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    package: String,
    function: String,
    step: usize,
}

/// What is known of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct OpHeadroom {
    /// Folder name of the package.
    pub package: String,
    /// Function.
    pub function: String,
    /// Number of the op in the function.
    pub step: usize,
    /// Type, for instance `mul`.
    pub op: String,
    /// Name of its output.
    pub output: String,
    /// Largest magnitude before rounding; infinite or NaN where its input was.
    pub largest: f32,
}

impl OpHeadroom {
    /// Whether float16 does not hold it: it rounds to infinity from 65520 on.
    pub fn overflows(&self) -> bool {
        self.largest.is_nan() || self.largest >= 65520.0
    }
}

impl Headroom {
    /// Notes a result.
    pub(super) fn note(&self, seen: OpHeadroom) {
        let mut collected = self.0.lock().expect("nothing panics while it holds this lock");
        if seen.overflows() && collected.first_overflow.is_none() {
            collected.first_overflow = Some(seen.clone());
        }
        let place = Place { package: seen.package.clone(), function: seen.function.clone(), step: seen.step };
        let known = collected.ops.entry(place).or_insert_with(|| seen.clone());
        if seen.largest.is_nan() || seen.largest > known.largest {
            known.largest = seen.largest;
        }
    }

    /// Every op that gave float16, the largest magnitude first.
    pub fn ops(&self) -> Vec<OpHeadroom> {
        let collected = self.0.lock().expect("nothing panics while it holds this lock");
        let mut ops: Vec<_> = collected.ops.values().cloned().collect();
        let rank = |op: &OpHeadroom| if op.largest.is_nan() { f32::INFINITY } else { op.largest };
        ops.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        ops
    }

    /// The first op, in order of execution, whose result float16 could not hold.
    pub fn first_overflow(&self) -> Option<OpHeadroom> {
        self.0.lock().expect("nothing panics while it holds this lock").first_overflow.clone()
    }
}
