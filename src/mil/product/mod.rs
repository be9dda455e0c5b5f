//! Products of weights, as they are stored, with float32 activations: `y = W x`.
//!
//! A weight is decoded a panel of rows at a time, or inside the dot product, so that no float32 copy of a whole matrix
//! is ever made. Sums are accumulated in float32; rows are shared out over the cores in fixed panels, so the result
//! does not depend on how many there are.

pub(super) mod dot;

use std::ops::Range;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::constant::{Constant, StoredRows};
use super::value::{Value, with_floats};

/// Up to so many columns of `x`, each is a dot product with every row.
const FEW_COLUMNS: usize = 4;
/// Rows that one task computes.
const TASK_ROWS: usize = 32;
/// Elements of a decoded panel, at most: 1 MiB.
const PANEL: usize = 1 << 18;
/// Below so many multiplications one core does it all.
const SMALL: usize = 1 << 15;

/// `W[rows] x`, row-major `[rows, n]`, where the elements of `weights` form a matrix of `columns` columns and `x` is
/// row-major `[columns, n]`.
///
/// # Errors
/// The matrix has no such rows.
pub(super) fn product(weights: &Value, rows: Range<usize>, columns: usize, x: &[f32], n: usize) -> Result<Vec<f32>> {
    ensure!(x.len() == columns * n, "{} activations for {columns} columns, {n} wide", x.len());
    let total: usize = weights.shape().iter().product();
    ensure!(rows.end.checked_mul(columns).is_some_and(|end| end <= total), "the weight has no rows {rows:?}");
    match weights {
        Value::Constant(constant) => stored(constant, rows, columns, x, n),
        _ => {
            let matrix = weights.tensor()?.flatten_all()?.narrow(0, rows.start * columns, rows.len() * columns)?;
            with_floats(&matrix, |matrix| dense(matrix, columns, x, n))?
        }
    }
}

fn stored(constant: &Constant, rows: Range<usize>, columns: usize, x: &[f32], n: usize) -> Result<Vec<f32>> {
    if columns == 0 || n == 0 {
        return Ok(vec![0.0; rows.len() * n]);
    }
    if n > FEW_COLUMNS {
        let panel_rows = (PANEL / columns).clamp(1, rows.len().max(1));
        let mut result = Vec::with_capacity(rows.len() * n);
        let mut panel = Vec::new();
        for start in rows.clone().step_by(panel_rows) {
            let count = panel_rows.min(rows.end - start);
            panel.resize(count * columns, 0.0);
            panel
                .par_chunks_mut(TASK_ROWS * columns)
                .enumerate()
                .try_for_each(|(task, panel)| decode_rows(constant, start + task * TASK_ROWS, columns, panel))?;
            result.extend(dense(&panel[..count * columns], columns, x, n)?);
        }
        return Ok(result);
    }
    let turned: Vec<f32> = if n == 1 { Vec::new() } else { transposed(x, n) };
    let vectors = if n == 1 { x } else { &turned };
    let mut result = vec![0.0; rows.len() * n];
    let compute = |(task, result): (usize, &mut [f32])| {
        dots(constant, rows.start + task * TASK_ROWS, columns, vectors, result, n)
    };
    if rows.len() * columns * n <= SMALL {
        result.chunks_mut(TASK_ROWS * n).enumerate().try_for_each(compute)?;
    } else {
        result.par_chunks_mut(TASK_ROWS * n).enumerate().try_for_each(compute)?;
    }
    Ok(result)
}

fn decode_rows(constant: &Constant, row: usize, columns: usize, out: &mut [f32]) -> Result<()> {
    match constant.rows(columns) {
        StoredRows::Halves(bytes) => dot::decode_halves(&bytes[row * columns * 2..][..out.len() * 2], out),
        StoredRows::Int8 { data, scales, round } => {
            for (i, out) in out.chunks_mut(columns).enumerate() {
                dot::decode_int8(&data[(row + i) * columns..][..columns], scales[row + i], round, out);
            }
        }
        StoredRows::Other => constant.decode(row * columns, out)?,
    }
    Ok(())
}

/// Rows from `row` on, each with each of the `vectors`.
fn dots(constant: &Constant, row: usize, columns: usize, vectors: &[f32], result: &mut [f32], n: usize) -> Result<()> {
    let each = |out: &mut [f32], dot: &dyn Fn(&[f32]) -> f32| {
        out.iter_mut().zip(vectors.chunks(columns)).for_each(|(out, x)| *out = dot(x));
    };
    match constant.rows(columns) {
        StoredRows::Halves(bytes) => {
            for (i, out) in result.chunks_mut(n).enumerate() {
                let row = &bytes[(row + i) * columns * 2..][..columns * 2];
                each(out, &|x| dot::halves(row, x));
            }
        }
        StoredRows::Int8 { data, scales, round } => {
            for (i, out) in result.chunks_mut(n).enumerate() {
                let (quantized, scale) = (&data[(row + i) * columns..][..columns], scales[row + i]);
                each(out, &|x| dot::int8(quantized, scale, round, x));
            }
        }
        StoredRows::Other => {
            let mut decoded = vec![0.0; columns];
            for (i, out) in result.chunks_mut(n).enumerate() {
                constant.decode((row + i) * columns, &mut decoded)?;
                each(out, &|x| dot::floats(&decoded, x));
            }
        }
    }
    Ok(())
}

/// The product of two float matrices.
fn dense(matrix: &[f32], columns: usize, x: &[f32], n: usize) -> Result<Vec<f32>> {
    let rows = matrix.len() / columns.max(1);
    if columns == 0 {
        return Ok(vec![0.0; rows * n]);
    }
    let matrix = Tensor::from_slice(matrix, (rows, columns), &Device::Cpu)?;
    let x = Tensor::from_slice(x, (columns, n), &Device::Cpu)?;
    Ok(matrix.matmul(&x)?.flatten_all()?.to_vec1()?)
}

/// Row-major `[rows, n]` to `[n, rows]`.
pub(super) fn transposed(x: &[f32], n: usize) -> Vec<f32> {
    let rows = x.len() / n.max(1);
    let mut turned = vec![0.0; x.len()];
    for (i, row) in x.chunks(n.max(1)).enumerate() {
        for (j, &value) in row.iter().enumerate() {
            turned[j * rows + i] = value;
        }
    }
    turned
}
