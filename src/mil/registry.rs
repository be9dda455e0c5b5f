//! Ops by name.

use std::collections::HashMap;
use std::sync::OnceLock;

use anyhow::Result;
use candle_core::Tensor;

use super::call::Call;
use super::ops;

/// Computes the outputs of an op. Results are f32, i64 or u8 tensors; rounding is done by the caller.
pub(super) type Evaluate = fn(&Call<'_>) -> Result<Vec<Tensor>>;

/// What is known about an op type.
#[derive(Clone, Copy)]
pub(super) struct Op {
    /// Computes it.
    pub evaluate: Evaluate,
    /// Whether every output element is an element of an input, so that rounding would change nothing.
    pub moves: bool,
}

/// All ops that the interpreter has.
#[derive(Default)]
pub(super) struct Registry(HashMap<&'static str, Op>);

impl Registry {
    /// Adds an op that computes.
    pub(super) fn computes(&mut self, name: &'static str, evaluate: Evaluate) {
        self.insert(name, Op { evaluate, moves: false });
    }

    /// Adds an op that only moves elements.
    pub(super) fn moves(&mut self, name: &'static str, evaluate: Evaluate) {
        self.insert(name, Op { evaluate, moves: true });
    }

    fn insert(&mut self, name: &'static str, op: Op) {
        let before = self.0.insert(name, op);
        debug_assert!(before.is_none(), "{name} is registered twice");
    }

    /// Names of all ops.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }

    /// The op called `name`.
    pub(super) fn get(&self, name: &str) -> Option<(&'static str, Op)> {
        self.0.get_key_value(name).map(|(name, op)| (*name, *op))
    }
}

/// The one registry.
pub(super) fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let mut registry = Registry::default();
        ops::register(&mut registry);
        registry
    })
}
