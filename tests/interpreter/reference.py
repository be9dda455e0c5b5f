"""Ops in numpy, where coremltools has no `value_inference`, or one that is not what Core ML documents.

Each takes the op's inputs by name, values that carry `.val`, and its output variables; floats are float64.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Inputs = Mapping[str, Any]


def _get(inputs: Inputs, name: str, default: Any = None) -> Any:
    var = inputs.get(name)
    return default if var is None else var.val


def _shape(outputs: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in outputs[0].shape)


def _channels(value: Array, rank: int) -> Array:
    """One value for each channel, to broadcast against rank `rank`."""
    return value.reshape([-1 if axis == 1 else 1 for axis in range(rank)])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _axis(inputs: Inputs, name: str, default: int, rank: int) -> int:
    return int(_get(inputs, name, default)) % rank


# Windows.


def _padding(inputs: Inputs, size: list[int], reach: list[int], strides: list[int]) -> list[tuple[int, int]]:
    kind, pad = str(_get(inputs, "pad_type", "valid")), _get(inputs, "pad")
    if kind == "custom":
        return [(int(pad[2 * i]), int(pad[2 * i + 1])) for i in range(len(size))]
    if kind == "valid":
        return [(0, 0)] * len(size)
    totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in zip(size, reach, strides, strict=True)]
    halves = [(total // 2, total - total // 2) for total in totals]
    return halves if kind == "same" else [(after, before) for before, after in halves]


def _windows(x: Array, kernel: list[int], inputs: Inputs, fill: float) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Each place of the kernel, and the elements that it meets, one for each window."""
    rank = len(kernel)
    strides = [int(s) for s in _get(inputs, "strides", [1] * rank)]
    dilations = [int(d) for d in _get(inputs, "dilations", [1] * rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _padding(inputs, list(x.shape[2:]), reach, strides)
    counts = [(n + sum(p) - r) // s + 1 for n, p, r, s in zip(x.shape[2:], pads, reach, strides, strict=True)]
    if bool(_get(inputs, "ceil_mode", False)):
        for i, (n, p, r, s) in enumerate(zip(x.shape[2:], pads, reach, strides, strict=True)):
            counts[i] = (n + sum(p) - r + s - 1) // s + 1
            if (counts[i] - 1) * s >= n + p[0] and sum(p) > 0:
                counts[i] -= 1
            pads[i] = (p[0], max(p[1], (counts[i] - 1) * s + r - n - p[0]))
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    for place in np.ndindex(*kernel):
        starts = [i * d for i, d in zip(place, dilations, strict=True)]
        cut = tuple(slice(b, b + (c - 1) * s + 1, s) for b, c, s in zip(starts, counts, strides, strict=True))
        yield place, padded[(slice(None), slice(None), *cut)]


def _conv(inputs: Inputs, outputs: Any) -> Array:
    x, weight = inputs["x"].val, inputs["weight"].val
    groups = int(_get(inputs, "groups", 1))
    result = np.zeros(_shape(outputs))
    ins, outs = weight.shape[1], weight.shape[0] // groups
    for place, part in _windows(x, list(weight.shape[2:]), inputs, 0.0):
        for group in range(groups):
            rows = slice(group * outs, (group + 1) * outs)
            taps = weight[(rows, slice(None), *place)]
            result[:, rows] += np.einsum("ni...,oi->no...", part[:, group * ins : (group + 1) * ins], taps)
    bias = _get(inputs, "bias")
    return result if bias is None else result + _channels(bias, x.ndim)


def _conv_transpose(inputs: Inputs, outputs: Any) -> Array:
    x, weight = inputs["x"].val, inputs["weight"].val
    rank, groups = x.ndim - 2, int(_get(inputs, "groups", 1))
    strides = [int(s) for s in _get(inputs, "strides", [1] * rank)]
    dilations = [int(d) for d in _get(inputs, "dilations", [1] * rank)]
    shape = _shape(outputs)
    full = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(x.shape[2:], strides, weight.shape[2:], dilations, strict=True)
    ]
    grown = np.zeros([x.shape[0], shape[1], *full])
    ins, outs = x.shape[1] // groups, weight.shape[1]
    for place in np.ndindex(*weight.shape[2:]):
        starts = [i * d for i, d in zip(place, dilations, strict=True)]
        cut = tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, x.shape[2:], strides, strict=True))
        for group in range(groups):
            own = slice(group * ins, (group + 1) * ins)
            taps = weight[(own, slice(None), *place)]
            add = np.einsum("ni...,io->no...", x[:, own], taps)
            grown[(slice(None), slice(group * outs, (group + 1) * outs), *cut)] += add
    kind, pad = str(_get(inputs, "pad_type", "valid")), _get(inputs, "pad")
    result = np.zeros(shape)
    for axis in range(rank):
        size, have = shape[2 + axis], full[axis]
        before = int(pad[2 * axis]) if kind == "custom" else max(have - size, 0) // 2 if kind == "same" else 0
        grown = np.moveaxis(grown, 2 + axis, 0)[before : before + size]
        grown = np.moveaxis(grown, 0, 2 + axis)
    result[tuple(slice(0, size) for size in grown.shape)] = grown
    bias = _get(inputs, "bias")
    return result if bias is None else result + _channels(bias, x.ndim)


def _pool(reduce: Callable[[Array, Array, Inputs], Array]) -> Callable[[Inputs, Any], Array]:
    def pool(inputs: Inputs, outputs: Any) -> Array:
        del outputs
        x, kernel = inputs["x"].val, [int(k) for k in inputs["kernel_sizes"].val]
        values = np.stack([part for _, part in _windows(x, kernel, inputs, 0.0)])
        inside = np.stack([part for _, part in _windows(np.ones_like(x), kernel, inputs, 0.0)])
        return reduce(values, inside != 0, inputs)

    return pool


def _average(values: Array, inside: Array, inputs: Inputs) -> Array:
    counted = inside.sum(0) if bool(_get(inputs, "exclude_padding_from_average", False)) else len(values)
    return values.sum(0) / counted


# Norms and attention.


def _affine(inputs: Inputs, x: Array) -> Array:
    gamma, beta = _get(inputs, "gamma"), _get(inputs, "beta")
    x = x if gamma is None else x * _channels(gamma, x.ndim)
    return x if beta is None else x + _channels(beta, x.ndim)


def _batch_norm(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    x = inputs["x"].val
    mean, variance = _channels(inputs["mean"].val, x.ndim), _channels(inputs["variance"].val, x.ndim)
    return _affine(inputs, (x - mean) / np.sqrt(variance + _get(inputs, "epsilon", 1e-5)))


def _instance_norm(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    x = inputs["x"].val
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    return _affine(inputs, centred / np.sqrt((centred**2).mean(axes, keepdims=True) + _get(inputs, "epsilon", 1e-5)))


def _local_response_norm(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    x, size = inputs["x"].val, int(inputs["size"].val)
    alpha, beta, k = _get(inputs, "alpha", 1e-4), _get(inputs, "beta", 0.75), _get(inputs, "k", 1.0)
    before = (size - 1) // 2
    padded = np.pad(x**2, [(size, size) if axis == 1 else (0, 0) for axis in range(x.ndim)])
    total = sum(padded[:, size + i : size + i + x.shape[1]] for i in range(-before, size - before))
    return x / (k + alpha / size * total) ** beta


# Indices.


def _join(mode: str, old: Any, new: Any) -> Any:
    joins: dict[str, Callable[[Any, Any], Any]] = {
        "update": lambda _, new: new,
        "add": lambda old, new: old + new,
        "sub": lambda old, new: old - new,
        "mul": lambda old, new: old * new,
        "div": lambda old, new: old / new,
        "max": max,
        "min": min,
    }
    return joins[mode](old, new)


def _scatter(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    data, indices, updates = (inputs[name].val for name in ("data", "indices", "updates"))
    axis, mode = _axis(inputs, "axis", 0, data.ndim), str(_get(inputs, "mode", "add"))
    result = np.moveaxis(data.copy(), axis, 0)
    updates = np.moveaxis(updates, list(range(axis, axis + indices.ndim)), list(range(indices.ndim)))
    for place in np.ndindex(*indices.shape):
        for inner in np.ndindex(*result.shape[1:]):
            target = (int(indices[place]), *inner)
            result[target] = _join(mode, result[target], updates[place + inner])
    return np.moveaxis(result, 0, axis)


def _scatter_along_axis(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    data, indices, updates = (inputs[name].val for name in ("data", "indices", "updates"))
    axis, mode = _axis(inputs, "axis", 0, data.ndim), str(_get(inputs, "mode", "add"))
    result = data.copy()
    for place in np.ndindex(*indices.shape):
        target = (*place[:axis], int(indices[place]), *place[axis + 1 :])
        result[target] = _join(mode, result[target], updates[place])
    return result


def _scatter_nd(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    data, indices, updates = (inputs[name].val for name in ("data", "indices", "updates"))
    mode, result = str(_get(inputs, "mode", "add")), data.copy()
    for place in np.ndindex(*indices.shape[:-1]):
        outer = tuple(int(i) for i in indices[place])
        for inner in np.ndindex(*data.shape[len(outer) :]):
            result[outer + inner] = _join(mode, result[outer + inner], updates[place + inner])
    return result


def _gather_nd(inputs: Inputs, outputs: Any) -> Array:
    x, indices, batch = inputs["x"].val, inputs["indices"].val, int(_get(inputs, "batch_dims", 0))
    result = np.zeros(_shape(outputs), x.dtype)
    for place in np.ndindex(*indices.shape[:-1]):
        result[place] = x[place[:batch] + tuple(int(i) for i in indices[place])]
    return result


def _one_hot(inputs: Inputs, outputs: Any) -> Array:
    indices, axis = inputs["indices"].val, int(_get(inputs, "axis", -1))
    on, off = _get(inputs, "on_value", 1), _get(inputs, "off_value", 0)
    rank = indices.ndim + 1
    result = np.moveaxis(np.full(_shape(outputs), off), axis % rank, -1).copy()
    for place in np.ndindex(*indices.shape):
        result[(*place, int(indices[place]))] = on
    return np.moveaxis(result, -1, axis % rank)


def _order(inputs: Inputs) -> Array:
    x, axis = inputs["x"].val, int(_get(inputs, "axis", -1))
    keys = x if bool(_get(inputs, "ascending", False)) else -x.astype(np.float64)
    return np.argsort(keys, axis=axis, kind="stable")


def _topk(inputs: Inputs, outputs: Any) -> Any:
    x, axis, k = inputs["x"].val, int(_get(inputs, "axis", -1)), int(_get(inputs, "k", 1))
    order = np.take(_order(inputs), np.arange(x.shape[axis] if k == -1 else k), axis=axis)
    if not bool(_get(inputs, "sort", True)):
        order = np.sort(order, axis=axis)
    picked = np.take_along_axis(x, order, axis=axis)
    return (picked, order) if len(outputs) == 2 else picked


# Shapes.


def _blocks_to_space(inputs: Inputs, name: str, block_first: bool) -> Array:
    x, b = inputs["x"].val, int(inputs[name].val)
    n, c, h, w = x.shape
    out = c // (b * b)
    parts = x.reshape((n, b, b, out, h, w) if block_first else (n, out, b, b, h, w))
    order = (0, 3, 4, 1, 5, 2) if block_first else (0, 1, 4, 2, 5, 3)
    return parts.transpose(order).reshape(n, out, h * b, w * b)


def _space_to_blocks(inputs: Inputs, name: str, block_first: bool) -> Array:
    x, b = inputs["x"].val, int(inputs[name].val)
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if block_first else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(n, c * b * b, h // b, w // b)


def _concat(inputs: Inputs, outputs: Any) -> Array:
    values, axis = [value.val for value in inputs["values"]], int(inputs["axis"].val)
    if not bool(_get(inputs, "interleave", False)):
        return np.concatenate(values, axis)
    return np.stack(values, axis % values[0].ndim + 1).reshape(_shape(outputs))


def _cumsum(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    x, axis = inputs["x"].val, int(_get(inputs, "axis", 0))
    reverse, exclusive = bool(_get(inputs, "reverse", False)), bool(_get(inputs, "exclusive", False))
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis)
    total = total - x if exclusive else total
    return np.flip(total, axis) if reverse else total


# Compressed constants: floats in float64, where coremltools' own functions compute in the dtype of the scales.


def _per_block(value: Array, shape: tuple[int, ...]) -> Array:
    for axis, size in enumerate(shape):
        value = np.repeat(value, size // value.shape[axis], axis)
    return value


def _blockwise_shift_scale(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    data, offset = inputs["data"].val.astype(np.float64), _get(inputs, "offset")
    shifted = data if offset is None else data - _per_block(offset.astype(np.float64), data.shape)
    return shifted * _per_block(inputs["scale"].val, data.shape)


def _affine_dequantize(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    data, rank = inputs["quantized_data"].val.astype(np.float64), inputs["quantized_data"].val.ndim
    axis = int(inputs["axis"].val) % rank
    along = [-1 if i == axis else 1 for i in range(rank)]
    zero, scale = (np.reshape(inputs[n].val, along).astype(np.float64) for n in ("zero_point", "scale"))
    return (data - zero) * scale


def _dequantize(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    data, scale, zero = inputs["input"].val.astype(np.float64), inputs["scale"].val, _get(inputs, "zero_point")
    along = [1] * data.ndim
    if np.ndim(scale):
        along[int(inputs["axis"].val)] = -1
    shifted = data if zero is None else data - np.reshape(zero, along).astype(np.float64)
    return shifted * np.reshape(scale, along)


def _quantize(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    x, scale, zero = inputs["input"].val, inputs["scale"].val, _get(inputs, "zero_point")
    along = [1] * x.ndim
    if np.ndim(scale):
        along[int(inputs["axis"].val)] = -1
    low, high = (-128, 127) if str(inputs["output_dtype"].val) == "int8" else (0, 255)
    value = np.round(x / np.reshape(scale, along))
    value = value if zero is None else value + np.reshape(zero, along).astype(np.float64)
    return np.clip(value, low, high)


def _bits(packed: Array, width: int, count: int) -> Array:
    """Integers of `width` bits, from the low bits of the first byte up."""
    bits = np.unpackbits(packed, bitorder="little")[: count * width].reshape(count, width)
    return (bits.astype(np.int64) << np.arange(width)).sum(1)


def _lut_to_dense(inputs: Inputs, outputs: Any) -> Array:
    lut, indices, shape = inputs["lut"].val, inputs["indices"].val, _shape(outputs)
    if "shape" in inputs:
        return lut[_bits(indices, int(math.log2(len(lut))), math.prod(shape))].reshape(shape)
    axis, width = _get(inputs, "vector_axis"), lut.shape[-1]
    axis = 0 if axis is None else int(axis) % indices.ndim
    result = np.zeros(shape)
    for place in np.ndindex(*indices.shape):
        table = tuple(i // (n // t) for i, n, t in zip(place, indices.shape, lut.shape, strict=False))
        for j in range(width):
            target = (*place[:axis], place[axis] * width + j, *place[axis + 1 :])
            result[target] = lut[(*table, int(indices[place]), j)]
    return result


def _sparse_to_dense(inputs: Inputs, outputs: Any) -> Array:
    shape, mask, data = _shape(outputs), inputs["mask"].val, inputs["nonzero_data"].val
    bits = _bits(mask, 1, math.prod(shape)).reshape(shape) if "shape" in inputs else mask
    result = np.zeros(shape, data.dtype)
    result[bits != 0] = data
    return result


REFERENCES: Mapping[str, Callable[[Inputs, Any], Any]] = {
    "argsort": lambda inputs, _: _order(inputs),
    "avg_pool": _pool(_average),
    "batch_norm": _batch_norm,
    # coremltools rounds to the dtype; here the caller does.
    "cast": lambda inputs, outputs: _cast(inputs, outputs),
    "concat": _concat,
    "constexpr_affine_dequantize": _affine_dequantize,
    "constexpr_blockwise_shift_scale": _blockwise_shift_scale,
    "constexpr_cast": lambda inputs, _: inputs["source_val"].val,
    "constexpr_lut_to_dense": _lut_to_dense,
    "constexpr_sparse_to_dense": _sparse_to_dense,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    # That of coremltools fails where `exclusive` is set.
    "cumsum": _cumsum,
    "depth_to_space": lambda inputs, _: _blocks_to_space(inputs, "block_size", True),
    "dequantize": _dequantize,
    # That of coremltools makes a float of an empty product.
    "flatten2d": lambda inputs, outputs: inputs["x"].val.reshape(_shape(outputs)),
    "gather_nd": _gather_nd,
    "instance_norm": _instance_norm,
    "l2_pool": _pool(lambda values, *_: np.sqrt((values**2).sum(0))),
    "local_response_norm": _local_response_norm,
    "max_pool": _pool(lambda values, inside, _: np.where(inside, values, -np.inf).max(0)),
    "one_hot": _one_hot,
    "pixel_shuffle": lambda inputs, _: _blocks_to_space(inputs, "upscale_factor", False),
    "pixel_unshuffle": lambda inputs, _: _space_to_blocks(inputs, "downscale_factor", False),
    "quantize": _quantize,
    "scatter": _scatter,
    # That of coremltools knows no mode but `update`.
    "scatter_along_axis": _scatter_along_axis,
    "scatter_nd": _scatter_nd,
    "silu": lambda inputs, _: inputs["x"].val * _sigmoid(inputs["x"].val),
    "space_to_depth": lambda inputs, _: _space_to_blocks(inputs, "block_size", True),
    # That of coremltools writes into its input.
    "thresholded_relu": lambda inputs, _: np.where(inputs["x"].val < inputs["alpha"].val, 0, inputs["x"].val),
    # Equal elements keep their order, which numpy's default sort does not promise.
    "topk": _topk,
}


def _cast(inputs: Inputs, outputs: Any) -> Array:
    del outputs
    x, to = inputs["x"].val, str(inputs["dtype"].val)
    if to in ("fp16", "fp32"):
        return x.astype(np.float64)
    return x.astype(bool if to == "bool" else to)
