//! Products of matrices.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};

use crate::mil::call::Call;
use crate::mil::product::{batched, dot, product, transposed};
use crate::mil::registry::Registry;
use crate::mil::result_elements;
use crate::mil::value::{float_tensor, with_floats};

/// Up to so many rows a product is computed row by row.
const FEW_ROWS: usize = 4;

pub(super) fn register(registry: &mut Registry) {
    registry.computes("einsum", einsum);
    registry.computes("linear", linear);
    registry.computes("matmul", matmul);
}

/// `x weightᵀ + bias` over the last axis: weight is `[out, in]`.
fn linear(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, weight) = (call.tensor("x")?, call.value("weight")?);
    ensure!(weight.shape().len() == 2 && x.rank() >= 1, "weight {:?} on {:?}", weight.shape(), x.dims());
    let (out, columns) = (weight.shape()[0], weight.shape()[1]);
    ensure!(x.dims().last() == Some(&columns), "weight {:?} on {:?}", weight.shape(), x.dims());
    ensure!(call.dtype("x")?.is_float() == weight.dtype().is_float(), "weight and `x` are of different kinds");
    if x.dtype() != DType::F32 {
        let result = of_ints(&x, &weight.tensor()?.t()?)?;
        return Ok(vec![match call.optional_tensor("bias")? {
            Some(bias) => sum_with_bias(&result, &bias, out)?,
            None => result,
        }]);
    }
    let n = x.elem_count() / columns.max(1);
    let mut shape = x.dims().to_vec();
    *shape.last_mut().expect("its rank is at least 1") = out;
    result_elements(&shape)?;
    let turned = with_floats(&x, |x| transposed(x, columns))?;
    let rows = product(weight, 0..out, columns, &turned, n)?;
    let result = float_tensor(transposed(&rows, n), &shape)?;
    Ok(vec![match call.optional_tensor("bias")? {
        Some(bias) => sum_with_bias(&result, &bias, out)?,
        None => result,
    }])
}

fn sum_with_bias(result: &Tensor, bias: &Tensor, out: usize) -> Result<Tensor> {
    ensure!(bias.dims() == [out] && bias.dtype() == result.dtype(), "bias {:?} for {out} values", bias.dims());
    Ok(result.broadcast_add(bias)?)
}

/// The product of integers: float64 holds those of 32 bits, and their sums in all but absurd cases.
fn of_ints(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F64)?.broadcast_matmul(&y.to_dtype(DType::F64)?)?.to_dtype(DType::I64)?)
}

/// Batched product; batch axes are broadcast, a vector is a matrix of one row or column.
fn matmul(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    ensure!(x.dtype() == y.dtype(), "operands are {:?} and {:?}", call.dtype("x")?, call.dtype("y")?);
    let (x_vector, y_vector) = (x.rank() == 1, y.rank() == 1);
    ensure!(x.rank() > 0 && y.rank() > 0, "a scalar has no product");
    let x = if x_vector { x.unsqueeze(0)? } else { x };
    let y = if y_vector { y.unsqueeze(1)? } else { y };
    let x = if call.flag_or("transpose_x", false)? && !x_vector { x.t()? } else { x };
    let y = if call.flag_or("transpose_y", false)? && !y_vector { y.t()? } else { y };
    let (rows, columns) = (x.dims()[x.rank() - 2], y.dims()[y.rank() - 1]);
    let mut batch = batch_shape(&x.dims()[..x.rank() - 2], &y.dims()[..y.rank() - 2])?;
    batch.extend([rows, columns]);
    result_elements(&batch)?;
    ensure!(x.dims()[x.rank() - 1] == y.dims()[y.rank() - 2], "operands {:?} and {:?}", x.dims(), y.dims());
    let mut result = if x.dtype() != DType::F32 {
        of_ints(&x, &y)?
    } else if let Some(result) = same_batches(&x, &y)? {
        result
    } else if x.elem_count() == 0 || y.elem_count() == 0 {
        Tensor::zeros(batch, DType::F32, &Device::Cpu)?
    } else {
        x.broadcast_matmul(&y)?
    };
    if x_vector {
        result = result.squeeze(result.rank() - 2)?;
    }
    if y_vector {
        result = result.squeeze(result.rank() - 1)?;
    }
    Ok(vec![result])
}

/// The product where `x` and `y` have the same batches. `y` is taken as it lies in memory; few rows are computed row by
/// row, without what a general product spends on arranging its operands.
fn same_batches(x: &Tensor, y: &Tensor) -> Result<Option<Tensor>> {
    let rank = x.rank();
    let (rows, inner, columns) = (x.dims()[rank - 2], x.dims()[rank - 1], y.dims()[y.rank() - 1]);
    if x.dims()[..rank - 2] != y.dims()[..y.rank() - 2] || y.dims()[y.rank() - 2] != inner {
        return Ok(None);
    }
    let turned = y.t()?;
    let by_columns = turned.is_contiguous();
    if x.elem_count() == 0 || y.elem_count() == 0 || !by_columns && !y.is_contiguous() {
        return Ok(None);
    }
    let mut shape = x.dims().to_vec();
    shape[rank - 1] = columns;
    let matrix = if by_columns { &turned } else { y };
    let values = with_floats(x, |x| {
        with_floats(matrix, |y| {
            if rows > FEW_ROWS {
                return batched(x, y, [rows, inner, columns], by_columns);
            }
            let mut result = vec![0.0; x.len() / inner * columns];
            for (i, (x, out)) in x.chunks(inner).zip(result.chunks_mut(columns)).enumerate() {
                let y = &y[i / rows * inner * columns..][..inner * columns];
                if by_columns {
                    out.iter_mut().zip(y.chunks(inner)).for_each(|(out, column)| *out = dot::floats(column, x));
                } else {
                    x.iter().zip(y.chunks(columns)).for_each(|(&factor, row)| dot::add_scaled(row, factor, out));
                }
            }
            result
        })
    })??;
    Ok(Some(float_tensor(values, &shape)?))
}

fn batch_shape(x: &[usize], y: &[usize]) -> Result<Vec<usize>> {
    let shape = candle_core::Shape::from(x).broadcast_shape_binary_op(&candle_core::Shape::from(y), "matmul")?;
    Ok(shape.dims().to_vec())
}

/// Sums of products by letters: `ab,bc->ac`. A letter may stand in both operands and the result (a batch), in both
/// operands alone (summed), or in one operand and the result; where one operand has size 1, it is repeated; `...` is
/// not taken.
fn einsum(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let values = call.tensors("values")?;
    let equation = call.text("equation")?.replace(' ', "");
    let malformed = || format!("equation `{equation}` for {} values", values.len());
    let (operands, result) = equation.split_once("->").with_context(malformed)?;
    let letters: Vec<Vec<char>> = operands.split(',').map(|operand| operand.chars().collect()).collect();
    let result: Vec<char> = result.chars().collect();
    let [x, y] = &values[..] else { bail!("{}", malformed()) };
    let [xs, ys] = &letters[..] else { bail!("{}", malformed()) };
    ensure!(x.dtype() == DType::F32 && y.dtype() == DType::F32, "the interpreter has no einsum of integers");
    let distinct = |letters: &[char]| letters.iter().collect::<BTreeSet<_>>().len() == letters.len();
    let plain = [xs, ys, &result].iter().all(|l| distinct(l) && l.iter().all(|letter| letter.is_ascii_alphabetic()));
    ensure!(plain && xs.len() == x.rank() && ys.len() == y.rank(), malformed());
    ensure!(result.iter().all(|letter| xs.contains(letter) || ys.contains(letter)), malformed());
    let mut sizes = BTreeMap::new();
    for (letter, &size) in xs.iter().zip(x.dims()).chain(ys.iter().zip(y.dims())) {
        let known = sizes.entry(*letter).or_insert(size);
        ensure!([1, size].contains(known) || size == 1, "`{letter}` is {known} and {size} in `{equation}`");
        *known = if *known == 1 { size } else { *known };
    }
    let spread = |value: &Tensor, own: &[char]| -> Result<Tensor> {
        let shape: Vec<usize> = own.iter().map(|letter| sizes[letter]).collect();
        result_elements(&shape)?;
        Ok(value.broadcast_as(shape)?)
    };
    let (x, y) = (&spread(x, xs)?, &spread(y, ys)?);
    let group = |own: &[char], other: &[char], shared: bool, kept: bool| -> Vec<char> {
        own.iter().copied().filter(|l| other.contains(l) == shared && result.contains(l) == kept).collect()
    };
    let (batch, summed) = (group(xs, ys, true, true), group(xs, ys, true, false));
    let (rows, columns) = (group(xs, ys, false, true), group(ys, xs, false, true));
    // A letter of one operand alone that the result lacks is summed before.
    let reduced = |value: &Tensor, own: &[char], lost: &[char]| -> Result<(Tensor, Vec<char>)> {
        let axes: Vec<usize> = own.iter().enumerate().filter(|(_, l)| lost.contains(l)).map(|(i, _)| i).collect();
        let value = if axes.is_empty() { value.clone() } else { value.sum(&axes[..])? };
        Ok((value, own.iter().copied().filter(|l| !lost.contains(l)).collect()))
    };
    let (x, xs) = reduced(x, xs, &group(xs, ys, false, false))?;
    let (y, ys) = reduced(y, ys, &group(ys, xs.as_slice(), false, false))?;
    let size = |letters: &[char]| letters.iter().map(|l| sizes[l]).product::<usize>();
    let matrix = |value: &Tensor, own: &[char], order: [&[char]; 3]| -> Result<Tensor> {
        let axes = order
            .concat()
            .iter()
            .map(|l| own.iter().position(|o| o == l).expect("its own letters"))
            .collect::<Vec<_>>();
        Ok(value.permute(axes)?.contiguous()?.reshape((size(order[0]), size(order[1]), size(order[2])))?)
    };
    result_elements(&[size(&batch), size(&rows), size(&columns)])?;
    let product = matrix(&x, &xs, [&batch, &rows, &summed])?.matmul(&matrix(&y, &ys, [&batch, &summed, &columns])?)?;
    let have = [batch, rows, columns].concat();
    let shape: Vec<usize> = have.iter().map(|l| sizes[l]).collect();
    let order: Vec<usize> =
        result.iter().map(|l| have.iter().position(|h| h == l).expect("every letter is in an operand")).collect();
    Ok(vec![product.reshape(shape)?.permute(order)?.contiguous()?])
}
