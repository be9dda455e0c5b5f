//! Ops, one file for each family.

pub(super) mod constexpr;
mod convolution;
mod elementwise;
mod gather;
mod normalization;
mod products;
mod reduction;
mod shape;
mod slice;

use super::registry::Registry;

/// Registers every op.
pub(super) fn register(registry: &mut Registry) {
    convolution::register(registry);
    elementwise::register(registry);
    gather::register(registry);
    normalization::register(registry);
    products::register(registry);
    reduction::register(registry);
    shape::register(registry);
    slice::register(registry);
}
