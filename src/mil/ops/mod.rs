//! Ops, one file for each family.

mod activation;
mod attention;
pub(super) mod constexpr;
mod convolution;
mod elementwise;
mod gather;
mod lanes;
mod normalization;
mod pooling;
mod products;
mod reduction;
mod scatter;
mod select;
mod shape;
mod slice;
mod tensor;

use super::registry::Registry;

/// Registers every op.
pub(super) fn register(registry: &mut Registry) {
    activation::register(registry);
    attention::register(registry);
    convolution::register(registry);
    elementwise::register(registry);
    gather::register(registry);
    normalization::register(registry);
    pooling::register(registry);
    products::register(registry);
    reduction::register(registry);
    scatter::register(registry);
    select::register(registry);
    shape::register(registry);
    slice::register(registry);
    tensor::register(registry);
}
