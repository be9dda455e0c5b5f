"""Tensors of a part: probe values for a template, and quantization by coremltools' own code."""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil.mil import types
from coremltools.optimize import _utils as coremltools_quantizer

from anebake.layers import Quantized, Weight
from anebake.request import Refused, Scheme

CHUNK = 1 << 17
"""Elements quantized at once; keeps numpy's temporaries small."""

IN_FILE = 10
"""coremltools writes smaller consts into model.mlmodel instead of weight.bin."""


def probe(role: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Values for a template: pseudo-random, the same for a role, shape and dtype everywhere; float16 or float32.

    Matrices have 2^-10 <= |x| < 2^-2, vectors 2^-6 <= |x| < 2^2: a block of them computes finite values. Each value is
    made of the bits of a PCG64 stream seeded with the role's SHA-256, whose output numpy keeps stable between versions.
    No two rows or tensors are equal, none is zero.
    """
    count = int(np.prod(shape))
    seed = int.from_bytes(hashlib.sha256(role.encode()).digest()[:16], "little")
    wide = np.dtype(dtype).itemsize
    exponent = 5 if len(shape) == 2 else 9
    words = np.random.PCG64(seed).random_raw(-(-count * wide // 8))
    if np.dtype(dtype) == np.float16:
        bits16 = words.astype("<u8", copy=False).view("<u2")[:count]
        bits16 &= np.uint16(0x9FFF)  # sign, three low exponent bits, mantissa
        bits16 += np.uint16(exponent << 10)
        return bits16.view(np.float16).reshape(shape)
    bits32 = words.astype("<u8", copy=False).view("<u4")[:count]
    bits32 &= np.uint32(0x83FFFFFF)
    bits32 += np.uint32((112 + exponent) << 23)
    return bits32.view(np.float32).reshape(shape)


def quantize(weight: npt.NDArray[Any], scheme: Scheme, role: str) -> Quantized:
    """`weight` [out, in], float16 or float32, by `compute_qparams_by_dtype`, some rows at a time.

    `linear_quantize_weights` calls the same function on the whole tensor; rows do not depend on each other unless the
    granularity is per_tensor. `Refused` where the block size does not divide the columns.
    """
    rows, columns = weight.shape
    block = {"per_tensor": [0, 0], "per_channel": [1, 0], "per_block": [1, scheme.block_size or 0]}[scheme.granularity]
    if block[1] and columns % block[1]:
        raise Refused(f"tensor `{role}`: dim 1 is {columns}, not a multiple of block size {block[1]}")
    integer = types.string_to_builtin(scheme.dtype)
    data = np.empty(weight.shape, types.nptype_from_builtin(integer))
    blocks = columns // block[1] if block[1] else 1
    scale = np.empty((rows if block[0] else 1, blocks), weight.dtype)
    step = max(1, CHUNK // columns) if block[0] else rows

    def one(first: int) -> None:
        part = slice(first, first + step)
        data[part], scale[part if block[0] else slice(None)], _ = coremltools_quantizer.compute_qparams_by_dtype(
            weight[part], integer, "LINEAR_SYMMETRIC", block
        )

    # numpy computes without the interpreter's lock.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(one, range(0, rows, step)))
    return Quantized(data, scale)


def rows_of(weight: Weight, first: int, count: int) -> Weight:
    """`count` rows of a tensor whose rows do not share scales; they share its memory."""
    part = slice(first, first + count)
    return Quantized(weight.data[part], weight.scale[part]) if isinstance(weight, Quantized) else weight[part]


def check_stampable(shapes: Mapping[str, tuple[int, ...]], schemes: Mapping[str, Scheme]) -> None:
    """`Refused` where a tensor or its scales would lie inside model.mlmodel, where they cannot be replaced."""
    for role, shape in shapes.items():
        size, scheme = int(np.prod(shape)), schemes.get(role)
        if size < IN_FILE:
            raise Refused(f"tensor `{role}` has {size} elements; below {IN_FILE} coremltools keeps it in model.mlmodel")
        if scheme is None:
            continue
        scales = {
            "per_tensor": 1,
            "per_channel": shape[0],
            "per_block": shape[0] * (shape[1] // (scheme.block_size or 1)),
        }[scheme.granularity]
        if scales < IN_FILE:
            raise Refused(
                f"tensor `{role}` has {scales} scales ({scheme.granularity}); below {IN_FILE} coremltools keeps them"
                " in model.mlmodel"
            )
