//! The fused attention op.

use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};

use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::result_elements;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("scaled_dot_product_attention", attention);
}

/// `softmax(query keyᵀ / sqrt(width) + mask) value` over the last two axes. A mask of bools lets pass where it is
/// true.
fn attention(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (query, key, value) = (call.float_tensor("query")?, call.float_tensor("key")?, call.float_tensor("value")?);
    let ranks = [query.rank(), key.rank(), value.rank()];
    ensure!(ranks.iter().all(|&rank| rank == ranks[0] && rank >= 3), "ranks {ranks:?}");
    let rank = ranks[0];
    let batches = [&query, &key, &value].map(|x| x.dims()[..rank - 2].to_vec());
    ensure!(batches.iter().all(|batch| *batch == batches[0]), "batches {batches:?}");
    let mut scores_shape = query.dims().to_vec();
    scores_shape[rank - 1] = key.dims()[rank - 2];
    result_elements(&scores_shape)?;
    let width = query.dims()[rank - 1];
    let scores = (query.broadcast_matmul(&key.t()?)? / (width as f64).sqrt())?;
    let scores = match call.optional_tensor("attn_mask")? {
        Some(mask) if mask.dtype() == DType::F32 => (&scores + mask.broadcast_as(scores.shape())?)?,
        Some(mask) => {
            let mask = mask.broadcast_as(scores.shape())?;
            mask.where_cond(&scores, &Tensor::full(f32::NEG_INFINITY, scores.shape(), scores.device())?)?
        }
        None => scores,
    };
    let probabilities = super::normalization::softmax_of(&scores, rank - 1)?;
    Ok(vec![probabilities.broadcast_matmul(&value)?])
}
