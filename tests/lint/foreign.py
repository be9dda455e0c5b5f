"""Packages as coremltools alone makes them, each with one habit that goes wrong. Argument: the folder to write to.

A small decoder block with its cache in states, or a head; every package differs from `sound` in what its name says.
"""

import sys
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

Array = np.ndarray
RANDOM = np.random.default_rng(5)
HIDDEN, HEADS, WIDTH, POSITIONS, TOKENS = 64, 2, 32, 128, 4


def normal(*shape: int) -> Array:
    """Weights of a sane spread."""
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)


def rotary() -> tuple[Array, Array]:
    """Cosines and sines, [POSITIONS, WIDTH]."""
    angles = np.outer(np.arange(POSITIONS), 10000.0 ** (-np.arange(WIDTH // 2) / (WIDTH // 2)))
    angles = np.concatenate([angles, angles], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def block(wide: Any = types.fp16, hidden_mask: float = -1e4, third_state: bool = False, tokens: Any = TOKENS) -> Any:
    """One attention over a cache that a mask moves, then a projection."""
    kind = np.float16 if wide is types.fp16 else np.float32
    weights = {name: normal(HIDDEN, HIDDEN).astype(kind) for name in ("q", "k", "v", "o", "up", "down")}
    cos, sin = (table.astype(kind) for table in rotary())
    mask = np.triu(np.full((TOKENS, POSITIONS), hidden_mask, kind), 1)
    shape = (HEADS, POSITIONS, WIDTH)
    specs = [
        mb.TensorSpec((1, tokens, HIDDEN), dtype=wide),
        mb.TensorSpec((TOKENS,), dtype=types.int32),
        mb.StateTensorSpec(shape, dtype=types.fp16),
        mb.StateTensorSpec(shape, dtype=types.fp16),
    ]
    if third_state:
        specs.append(mb.StateTensorSpec((1, HIDDEN), dtype=types.fp16))

    def build(x: Any, positions: Any, k_cache: Any, v_cache: Any, extra: Any = None) -> Any:
        def heads(name: str) -> Any:
            y = mb.linear(x=x, weight=weights[name], name=f"{name}_proj")
            return mb.transpose(x=mb.reshape(x=y, shape=[TOKENS, HEADS, WIDTH]), perm=[1, 0, 2])

        def turned(y: Any) -> Any:
            rows = [mb.gather(x=table, indices=positions, axis=0) for table in (cos, sin)]
            swap = mb.const(val=np.roll(np.eye(WIDTH, dtype=kind), WIDTH // 2, axis=1))
            return mb.add(x=mb.mul(x=y, y=rows[0]), y=mb.mul(x=mb.matmul(x=y, y=swap), y=rows[1]))

        def kept(cache: Any, new: Any) -> Any:
            old = mb.read_state(input=cache)
            if wide is not types.fp16:
                new = mb.cast(x=new, dtype="fp16")
            rows = mb.slice_by_size(x=old, begin=[0, 0, 0], size=[HEADS, POSITIONS - TOKENS, WIDTH])
            written = mb.slice_update(x=old, update=new, begin=[0, POSITIONS - TOKENS, 0], end=list(shape))
            written = mb.add(x=written, y=mb.mul(x=mb.reduce_mean(x=rows, axes=[1], keep_dims=True), y=np.float16(0)))
            written = mb.coreml_update_state(state=cache, value=written)
            return mb.cast(x=written, dtype="fp32") if wide is not types.fp16 else written

        keys, values = kept(k_cache, turned(heads("k"))), kept(v_cache, heads("v"))
        scores = mb.matmul(x=turned(heads("q")), y=keys, transpose_y=True)
        mixed = mb.matmul(x=mb.softmax(x=mb.add(x=scores, y=mask), axis=-1), y=values)
        mixed = mb.reshape(x=mb.transpose(x=mixed, perm=[1, 0, 2]), shape=[1, TOKENS, HIDDEN])
        y = mb.add(x=x, y=mb.linear(x=mixed, weight=weights["o"], name="o_proj"))
        inner = mb.silu(x=mb.linear(x=y, weight=weights["up"], name="up_proj"))
        y = mb.add(x=y, y=mb.linear(x=inner, weight=weights["down"], name="down_proj"))
        if extra is not None:
            last = mb.squeeze(x=mb.slice_by_size(x=y, begin=[0, TOKENS - 1, 0], size=[1, 1, HIDDEN]), axes=[1])
            mb.coreml_update_state(state=extra, value=last)
        return mb.identity(x=y, name="hidden_out")

    if third_state:

        @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
        def three(x: Any, positions: Any, k_cache: Any, v_cache: Any, extra: Any) -> Any:
            return build(x, positions, k_cache, v_cache, extra)

        return three

    @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
    def two(x: Any, positions: Any, k_cache: Any, v_cache: Any) -> Any:
        return build(x, positions, k_cache, v_cache)

    return two


def convert(program: Any, **options: Any) -> Any:
    """By the default passes."""
    return ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=ct.target.macOS15, skip_model_load=True, **options
    )


def ranged() -> Any:
    """A projection of as many rows as the caller likes."""
    weight = normal(HIDDEN, HIDDEN).astype(np.float16)
    rows = ct.converters.mil.mil.get_new_symbol()

    @mb.program(input_specs=[mb.TensorSpec((1, rows, HIDDEN), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.relu(x=mb.linear(x=x, weight=weight), name="y")

    shape = ct.Shape((1, ct.RangeDim(1, 64, 4), HIDDEN))
    return convert(program, inputs=[ct.TensorType(name="x", shape=shape, dtype=np.float16)])


def head(vocabulary: int) -> Any:
    """Logits of a vocabulary from two hidden columns."""
    weight = normal(vocabulary, 2).astype(np.float16)

    @mb.program(input_specs=[mb.TensorSpec((1, 1, 2), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.linear(x=x, weight=weight, name="logits")

    return convert(program)


def quantized(model: Any, by_type: bool, **options: Any) -> Any:
    """Linear int8: of everything that is large, or of products alone."""
    config = cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8", **options)
    if by_type:
        return cto.linear_quantize_weights(model, cto.OptimizationConfig(op_type_configs={"linear": config}))
    return cto.linear_quantize_weights(model, cto.OptimizationConfig(global_config=config))


def main(folder: Path) -> None:
    """Writes every package."""
    half = convert(block())
    packages = {
        "sound": quantized(half, by_type=True, granularity="per_channel", weight_threshold=0),
        "global-config": quantized(half, by_type=False, granularity="per_channel"),
        "per-block": quantized(half, by_type=True, granularity="per_block", block_size=32, weight_threshold=0),
        "float32": convert(block(types.fp32), compute_precision=ct.precision.FLOAT32),
        "infinite-mask": convert(block(hidden_mask=-np.inf)),
        "three-states": convert(block(third_state=True)),
        "range": ranged(),
        "wide-head": head(151_936),
        "narrow-head": head(16_384),
        "palette": cto.palettize_weights(
            half,
            cto.OptimizationConfig(
                op_type_configs={"linear": cto.OpPalettizerConfig(nbits=4, mode="uniform", weight_threshold=0)}
            ),
        ),
    }
    for name, model in packages.items():
        model.save(str(folder / f"{name}.mlpackage"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
