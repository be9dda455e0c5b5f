"""Opens packages with coremltools and compares their decompressed weights with a checkpoint, read by numpy alone.

Argument: a JSON list of `{"package", "layer", "checkpoint"}`, `checkpoint` being a `.safetensors` file, or a package of
float weights that stands for it. Prints JSON: for each package, the tensors compared, by name: largest `code` and
number of `scales`, or the float `dtype`; `error`, the largest in scale steps; `excess`, the largest beyond half a step
and what rounding to the compute dtype explains.
"""

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
import coremltools.optimize.coreml as cto  # noqa: E402
from coremltools.converters.mil.frontend.milproto.load import load  # noqa: E402


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor as float64."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors


def one_function(package: Path, folder: Path) -> "ct.models.MLModel":
    """The package as a model with its default function alone: `decompress_weights` takes no other."""
    joined = ct.models.MLModel(str(package), skip_model_load=True)
    spec = joined.get_spec()
    program, description = spec.mlProgram, spec.description
    name = description.defaultFunctionName
    if sorted(program.functions) != ["decode", "prefill"]:
        raise ValueError(f"functions are {sorted(program.functions)}")
    chosen = next(function for function in description.functions if function.name == name)
    description.input.extend(chosen.input)
    description.output.extend(chosen.output)
    description.state.extend(chosen.state)
    del description.functions[:]
    description.defaultFunctionName = ""
    program.functions["main"].CopyFrom(program.functions[name])
    for other in ["decode", "prefill"]:
        del program.functions[other]
    single = ct.models.MLModel(spec, weights_dir=joined.weights_dir, skip_model_load=True)
    path = folder / f"{package.parent.name}-{package.stem}.mlpackage"
    single.save(str(path))
    return ct.models.MLModel(str(path), skip_model_load=True)


def operations(model: "ct.models.MLModel") -> list:
    """The ops of a model of one function."""
    spec = model.get_spec()
    program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=model.weights_dir)
    return list(program.functions["main"].operations)


def consts(model: "ct.models.MLModel") -> dict[str, np.ndarray]:
    """Every const of at least 10 elements, by name."""
    large = (op for op in operations(model) if op.op_type == "const" and np.size(op.val.val) >= 10)
    return {op.name: np.asarray(op.val.val) for op in large}


def quantized(model: "ct.models.MLModel") -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Codes, scales broadcast to their shape, and the number of scales, by the name of the tensor."""
    found = {}
    for op in operations(model):
        if op.op_type == "constexpr_blockwise_shift_scale":
            codes, scale = np.asarray(op.data.val).astype(np.float64), np.asarray(op.scale.val).astype(np.float64)
            count = scale.size
            for axis, (size, blocks) in enumerate(zip(codes.shape, scale.shape, strict=True)):
                scale = np.repeat(scale, size // blocks, axis=axis)
            found[op.name.removesuffix("_quantized")] = (codes, scale, count)
    return found


def compare(case: dict, folder: Path) -> dict[str, dict]:
    """Every tensor of one package against the source."""
    model = one_function(Path(case["package"]), folder)
    codes = quantized(model)
    got = {name.removesuffix("_quantized"): value for name, value in consts(cto.decompress_weights(model)).items()}
    if case["checkpoint"].endswith(".safetensors"):
        prefix = f"model.layers.{case['layer']}."
        source = {
            "_".join(name.split(".")[-2:]): value
            for name, value in read_safetensors(Path(case["checkpoint"])).items()
            if name.startswith(prefix)
        }
    else:
        floats = consts(one_function(Path(case["checkpoint"]), folder))
        source = {name: value.astype(np.float64) for name, value in floats.items() if "rope" not in name}
    if missing := set(source) - set(got):
        raise ValueError(f"{sorted(missing)} are not in the package")
    report = {}
    for name, want in source.items():
        value = got[name].astype(np.float64).reshape(want.shape)
        precision = np.finfo(got[name].dtype)
        unit, tiny = float(precision.eps) / 2, float(precision.smallest_subnormal)
        error = np.abs(value - want)
        if name not in codes:
            excess = error - unit * np.abs(want) - tiny / 2
            report[name] = {"dtype": str(got[name].dtype), "excess": float(excess.max())}
            continue
        code, scale, count = codes[name]
        step = scale.reshape(want.shape)
        # The source, the scale, the quotient and the product are rounded once each.
        excess = error - step / 2 - 4 * (unit * np.abs(want) + tiny / 2)
        report[name] = {
            "code": int(np.abs(code).max()),
            "scales": count,
            "error": float((error / step).max()),
            "excess": float(excess.max()),
        }
    return report


def main() -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        cases = json.loads(sys.argv[1])
        sys.stdout.write(json.dumps([compare(case, Path(folder)) for case in cases]))


main()
