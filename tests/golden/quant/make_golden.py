#!/usr/bin/env python
"""Write `cases.json` and `cases.bin`: what coremltools itself makes of a sweep of small weights.

Codes and scales come from `coremltools.optimize._utils.compute_qparams_by_dtype`; the packing of int4 is read back
from the `weight.bin` of a package that coremltools saved. With `--check`, regenerate into a temporary directory,
compare the bytes, and exit 1 naming the files that drifted.
"""

import argparse
import filecmp
import json
import logging
import os
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

# Before the import: coremltools warns of its macOS parts and draws progress bars.
logging.disable(logging.WARNING)
os.environ["TQDM_DISABLE"] = "1"

import coremltools as ct  # noqa: E402
from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import types  # noqa: E402
from coremltools.optimize._utils import compute_qparams_by_dtype  # noqa: E402

HERE = Path(__file__).resolve().parent
FILES = ("cases.json", "cases.bin")

# (rows, columns): odd tails, one row, one column, whole blocks, several vector widths.
SHAPES = ((5, 33), (1, 67), (13, 1), (3, 64), (2, 48))
GRANULARITIES = ("per_channel", "per_block_32", "per_block_16", "per_tensor")
WEIGHT_DTYPES = {"int8": types.int8, "int4": types.int4}
COMPUTE = {"float16": np.float16, "float32": np.float32}
METADATA = struct.Struct("<IIQQQ")  # blob storage v2: sentinel, dtype, size, offset of the data, padding bits


def contents(rng: np.random.Generator, rows: int, cols: int) -> dict[str, np.ndarray]:
    """Weights in float32, by what they probe."""
    shape = (rows, cols)
    normal = rng.standard_normal(shape)
    # With a maximum of 127 (7) and a power of two the scale is that power, so that halves tie exactly.
    ties = rng.integers(-253, 254, shape) / 2.0
    ties[:, 0] = 127.0
    ties4 = rng.integers(-13, 14, shape) / 2.0 * 2.0**-5
    ties4[:, -1] = -7.0 * 2.0**-5
    zeros = normal * 0.05
    zeros[::2] = 0.0
    zeros[1::2, ::3] = -0.0
    lone = np.zeros(shape)
    lone[:, cols // 2] = -0.3
    # Halfway between two float16 neighbours, both parities: 11 bits of significand, then a one.
    midpoints = (2 * rng.integers(1024, 2048, shape) + 1) * 2.0**-17 * rng.choice([-1.0, 1.0], shape)
    spread = normal * 10.0 ** rng.uniform(-7, 3, shape)
    # Row maxima from where float16 scales are coarse down to where they vanish.
    tiny = rng.uniform(-1, 1, shape) * 2.0 ** -(9.0 + 17.0 * np.arange(rows) / max(rows - 1, 1))[:, None]
    large = rng.uniform(-30000, 30000, shape)
    large[0, 0] = 65504.0
    large[-1, -1] = -32768.0
    result = {
        "random": normal * 0.04,
        "ties": ties,
        "ties_int4": ties4,
        "zero_rows": zeros,
        "one_value": lone,
        "midpoints": midpoints,
        "spread": spread,
        "subnormal": tiny,
        "large": large,
        # Both float16 and float32 halve every value here exactly: codes of `large`, half its scales.
        "large_halved": large / 2,
    }
    return {name: values.astype(np.float32) for name, values in result.items()}


def float32_only(rng: np.random.Generator, rows: int, cols: int) -> dict[str, np.ndarray]:
    """Weights beyond float16, for float32 arithmetic."""
    huge = (rng.uniform(-1.6e38, 1.6e38, (rows, cols))).astype(np.float32)
    huge[0, 0] = np.float32(3.4e38)
    tiny = rng.uniform(-1, 1, (rows, cols)) * 2.0 ** -(126.0 + 22.0 * np.arange(rows) / max(rows - 1, 1))[:, None]
    return {"huge": huge, "huge_halved": huge / np.float32(2), "subnormal_f32": tiny.astype(np.float32)}


def sources(values: np.ndarray, wide: bool) -> dict[str, tuple[bytes, np.ndarray]]:
    """By source dtype: the bytes, and what they mean in float32."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    bf16 = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    result = {
        "float32": (values.astype("<f4").tobytes(), values),
        "bfloat16": (bf16.astype("<u2").tobytes(), (bf16.astype(np.uint32) << 16).view(np.float32)),
    }
    if not wide:
        half = values.astype(np.float16)
        result["float16"] = (half.astype("<f2").tobytes(), half.astype(np.float32))
    return result


def block_sizes(granularity: str) -> list[int]:
    """coremltools' `block_sizes` for a `[rows, cols]` weight: 0 spans the whole axis."""
    if granularity == "per_channel":
        return [1, 0]
    if granularity == "per_tensor":
        return [0, 0]
    return [1, int(granularity.removeprefix("per_block_"))]


def packed_by_coremltools(weights: list[tuple[np.ndarray, np.ndarray]], folder: Path) -> list[bytes]:
    """The bytes of each `data` in the `weight.bin` of a package holding all `(data, scale)`."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1,))], opset_version=ct.target.iOS18)
    def program(x):  # type: ignore[no-untyped-def]
        outputs = [
            mb.constexpr_blockwise_shift_scale(data=data, scale=scale, name=f"w{index}")
            for index, (data, scale) in enumerate(weights)
        ]
        return (mb.identity(x=x), *outputs)

    model = ct.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS18,
        pass_pipeline=ct.PassPipeline.EMPTY,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    package = folder / "packing.mlpackage"
    model.save(str(package))
    blob = next(package.rglob("weight.bin")).read_bytes()
    function = model.get_spec().mlProgram.functions["main"]
    block = function.block_specializations[function.opset]
    found = {}
    for op in block.operations:
        if op.type == "constexpr_blockwise_shift_scale":
            at = op.inputs["data"].arguments[0].value.blobFileValue.offset
            sentinel, _, size, offset, _ = METADATA.unpack_from(blob, at)
            assert sentinel == 0xDEADBEEF, hex(sentinel)
            found[op.outputs[0].name] = blob[offset : offset + size]
    return [found[f"w{index}"] for index in range(len(weights))]


def generate(folder: Path) -> None:
    """Write both files into `folder`."""
    rng = np.random.default_rng(20240607)
    blob = bytearray()
    offsets: dict[bytes, int] = {}

    def store(data: bytes) -> int:
        if data not in offsets:
            offsets[data] = len(blob)
            blob.extend(data)
        return offsets[data]

    cases: list[dict[str, object]] = []
    int4: list[tuple[dict[str, object], np.ndarray, np.ndarray]] = []
    for rows, cols in SHAPES:
        narrow = contents(rng, rows, cols)
        wide = float32_only(rng, rows, cols)
        for content, values in (narrow | wide).items():
            for source_dtype, (source, meaning) in sources(values, content in wide).items():
                for compute, numpy_dtype in COMPUTE.items():
                    if content in wide and compute == "float16":
                        continue
                    with np.errstate(over="ignore"):
                        weight = meaning.astype(numpy_dtype)
                    if not np.isfinite(weight).all():
                        continue  # 65504 is 65536 in bfloat16: refused by anebake, left unquantized by coremltools
                    for granularity in GRANULARITIES:
                        for dtype, builtin in WEIGHT_DTYPES.items():
                            sizes = block_sizes(granularity)
                            if sizes[1] and cols % sizes[1]:
                                continue
                            with np.errstate(all="ignore"):
                                result = compute_qparams_by_dtype(weight, builtin, "LINEAR_SYMMETRIC", sizes)
                            assert result is not None
                            data, scale, offset = result
                            assert offset is None and scale.dtype == numpy_dtype
                            case: dict[str, object] = {
                                "content": content,
                                "rows": rows,
                                "cols": cols,
                                "source_dtype": source_dtype,
                                "dtype": dtype,
                                "granularity": granularity,
                                "compute": compute,
                                "source": store(source),
                                "scales": store(scale.astype(scale.dtype.newbyteorder("<")).tobytes()),
                            }
                            cases.append(case)
                            if dtype == "int4":
                                int4.append((case, data, scale))
                            else:
                                case["data"] = store(data.astype(np.int8).tobytes())
    with tempfile.TemporaryDirectory() as temporary:
        packed = packed_by_coremltools([(data, scale) for _, data, scale in int4], Path(temporary))
    for (case, data, _), packing in zip(int4, packed, strict=True):
        assert len(packing) == (data.size + 1) // 2
        case["data"] = store(packing)

    columns = ["content", "rows", "cols", "source_dtype", "dtype", "granularity", "compute", "source", "data", "scales"]
    lines = ",\n".join(json.dumps([case[column] for column in columns], separators=(",", ":")) for case in cases)
    head = json.dumps({"coremltools": ct.__version__, "columns": columns})[:-1]
    (folder / "cases.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')
    (folder / "cases.bin").write_bytes(blob)


def main() -> int:
    """Write the goldens, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is here and write nothing")
    if not parser.parse_args().check:
        generate(HERE)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        generate(Path(temporary))
        drifted = [name for name in FILES if not filecmp.cmp(HERE / name, Path(temporary) / name, shallow=False)]
    for name in drifted:
        print(f"{HERE / name} differs from what coremltools {ct.__version__} gives", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
