//! Products of weights, as they are stored, with float32 activations: `y = W x`.
//!
//! A weight is decoded a panel of rows at a time, or inside the dot product, so that no float32 copy of a whole matrix
//! is ever made. Sums are accumulated in float32; rows are shared out over the cores in fixed panels, so the result
//! does not depend on how many there are.

pub(super) mod dot;

use std::ops::Range;

use anyhow::{Result, ensure};
use rayon::prelude::*;

use super::constant::{Constant, StoredRows};
use super::value::{Value, with_floats};

/// Up to so many columns of `x`, each is a dot product with every row.
const FEW_COLUMNS: usize = 4;
/// Rows that one task computes.
const TASK_ROWS: usize = 32;
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
    if columns == 0 || n == 0 {
        return Ok(vec![0.0; rows.len() * n]);
    }
    match weights {
        Value::Constant(constant) => stored(constant, rows, columns, x, n),
        _ => {
            let matrix = weights.tensor()?.flatten_all()?.narrow(0, rows.start * columns, rows.len() * columns)?;
            with_floats(&matrix, |matrix| dense(matrix, columns, x, n))
        }
    }
}

fn stored(constant: &Constant, rows: Range<usize>, columns: usize, x: &[f32], n: usize) -> Result<Vec<f32>> {
    if n > FEW_COLUMNS {
        let mut result = vec![0.0; rows.len() * n];
        result.par_chunks_mut(TASK_ROWS * n).enumerate().try_for_each_init(Vec::new, |panel, (task, result)| {
            panel.resize(result.len() / n * columns, 0.0);
            decode_rows(constant, rows.start + task * TASK_ROWS, columns, panel)?;
            multiply(panel, Right { values: x, columns: n, turned: false }, result);
            Ok::<_, anyhow::Error>(())
        })?;
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
    let four = <[&[f32]; 4]>::try_from(vectors.chunks(columns).collect::<Vec<_>>());
    match constant.rows(columns) {
        StoredRows::Halves(bytes) => {
            let of = |i: usize| &bytes[(row + i) * columns * 2..][..columns * 2];
            match four {
                Ok(four) => in_pairs(result, |pair| dot::halves_by_four(pair.map(of), four)),
                Err(_) => {
                    let rows = result.chunks_mut(n).enumerate();
                    rows.for_each(|(i, out)| each(out, &|x| dot::halves(of(i), x)));
                }
            }
        }
        StoredRows::Int8 { data, scales, round } => {
            let of = |i: usize| &data[(row + i) * columns..][..columns];
            let scale = |i: usize| scales[row + i];
            match four {
                Ok(four) => {
                    in_pairs(result, |pair| dot::int8_by_four(pair.map(of), pair.map(scale), round, four));
                }
                Err(_) => {
                    let rows = result.chunks_mut(n).enumerate();
                    rows.for_each(|(i, out)| each(out, &|x| dot::int8(of(i), scale(i), round, x)));
                }
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

/// Rows of four sums each, made two at a time: `sums` is given the numbers of both. The last of an odd number is its own
/// partner.
fn in_pairs(result: &mut [f32], sums: impl Fn([usize; 2]) -> [[f32; 4]; 2]) {
    for (i, out) in result.chunks_mut(8).enumerate() {
        let pair = [2 * i, 2 * i + out.len() / 4 - 1];
        out.copy_from_slice(&sums(pair).as_flattened()[..out.len()]);
    }
}

/// The product of two float matrices.
fn dense(matrix: &[f32], columns: usize, x: &[f32], n: usize) -> Vec<f32> {
    let mut result = vec![0.0; matrix.len() / columns * n];
    let right = Right { values: x, columns: n, turned: false };
    let tasks = result.par_chunks_mut(TASK_ROWS * n).zip(matrix.par_chunks(TASK_ROWS * columns));
    tasks.for_each(|(result, matrix)| multiply(matrix, right, result));
    result
}

/// Products of as many pairs of matrices: `x` row-major `[batch, rows, inner]`, `y` row-major `[batch, inner,
/// columns]`, or with `turned` `[batch, columns, inner]`. No size is 0.
pub(in crate::mil) fn batched(x: &[f32], y: &[f32], [rows, inner, columns]: [usize; 3], turned: bool) -> Vec<f32> {
    let mut result = vec![0.0; x.len() / inner * columns];
    let tasks = rows.div_ceil(TASK_ROWS);
    let pairs =
        result.par_chunks_mut(rows * columns).zip(x.par_chunks(rows * inner)).zip(y.par_chunks(inner * columns));
    pairs.for_each(|((result, x), y)| {
        let right = Right { values: y, columns, turned };
        if tasks == 1 {
            return multiply(x, right, result);
        }
        let parts = result.par_chunks_mut(TASK_ROWS * columns).zip(x.par_chunks(TASK_ROWS * inner));
        parts.for_each(|(result, x)| multiply(x, right, result));
    });
    result
}

/// The right side of a product: `[inner, columns]`, row-major, or column-major where it is `turned`.
#[derive(Clone, Copy)]
struct Right<'a> {
    values: &'a [f32],
    columns: usize,
    turned: bool,
}

/// `left` `[rows, inner]` times `right` into `result` `[rows, columns]`, row-major, on this core alone.
fn multiply(left: &[f32], right: Right<'_>, result: &mut [f32]) {
    let columns = right.columns;
    let (rows, inner) = (result.len() / columns, right.values.len() / columns);
    assert!(left.len() == rows * inner && right.values.len() == inner * columns && result.len() == rows * columns);
    let (inner_stride, columns_stride) = (inner as isize, columns as isize);
    let (right_cs, right_rs) = if right.turned { (inner_stride, 1) } else { (1, columns_stride) };
    // SAFETY: by the assertion above every element that the strides reach lies inside its slice.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            result.as_mut_ptr(),
            1,
            columns_stride,
            false,
            left.as_ptr(),
            1,
            inner_stride,
            right.values.as_ptr(),
            right_cs,
            right_rs,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
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
