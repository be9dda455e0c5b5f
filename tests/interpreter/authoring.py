"""Programs of coremltools' MIL builder as packages, and what they should give.

`expected` evaluates an authored program op by op in float64: by coremltools' `value_inference` where that is defined
and sound, else by the numpy functions of `reference.py`. It does so twice: with every result kept as it is, and with
every result rounded to float16 where the program declares float16.
"""

import copy
import gc
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Before the import: coremltools warns of its macOS parts and draws progress bars.
logging.disable(logging.WARNING)
os.environ["TQDM_DISABLE"] = "1"
warnings.simplefilter("ignore")

import coremltools as ct  # noqa: E402
from coremltools.converters.mil.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import types  # noqa: E402
from coremltools.converters.mil.mil.types.symbolic import any_symbolic  # noqa: E402
from reference import REFERENCES  # noqa: E402

# Every conversion collects garbage; what the import made is not garbage.
gc.freeze()

Array = np.ndarray
TARGETS = {"iOS16": ct.target.iOS16, "iOS17": ct.target.iOS17, "iOS18": ct.target.iOS18}
INTERFACE = {np.dtype("float16"): types.fp16, np.dtype("float32"): types.fp32, np.dtype("int32"): types.int32}


class Known:
    """Stands for a `Var` whose value is known, floats in float64, so that `value_inference` computes."""

    def __init__(self, var: Any, value: Array) -> None:
        self._var, self.val, self.sym_val = var, value, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._var, name)

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return types.fp64 if types.is_float(self._var.dtype) else self._var.dtype

    @property
    def rank(self) -> int:
        """Its rank."""
        return int(np.ndim(self.val))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(np.shape(self.val))


def _wide(var: Any, value: Any) -> Any:
    return np.asarray(value, np.float64) if types.is_float(var.dtype) else value


def _evaluate(op: Any, value: Callable[[Any], Any]) -> Any:
    def known(var: Any) -> Any:
        if var is None:
            return None
        return [known(one) for one in var] if isinstance(var, (list, tuple)) else Known(var, value(var))

    inputs = {name: known(var) for name, var in op.inputs.items()}
    if op.op_type in REFERENCES:
        return REFERENCES[op.op_type](inputs, op.outputs)
    stand_in = copy.copy(op)
    stand_in._input_vars = inputs
    for name, var in inputs.items():
        setattr(stand_in, name, var)
    return stand_in.value_inference()


def expected(function: Any, inputs: Mapping[str, Array], rounded: bool) -> dict[str, Array]:
    """Outputs of an authored function by name."""
    values: dict[str, Any] = {
        name: _wide(var, inputs[name].astype(types.nptype_from_builtin(var.dtype)))
        for name, var in function.inputs.items()
    }

    def value(var: Any) -> Any:
        return values[var.name] if var.name in values else _wide(var, var.val)

    for op in function.operations:
        if op.op_type == "const":
            continue
        with np.errstate(all="ignore"):
            results = _evaluate(op, value)
        results = results if isinstance(results, (tuple, list)) and len(op.outputs) > 1 else [results]
        for output, result in zip(op.outputs, results, strict=True):
            result = np.asarray(result)
            if not any_symbolic(output.shape) and result.shape != tuple(output.shape):
                result = result.reshape(tuple(int(size) for size in output.shape))
            if not types.is_float(output.dtype):
                result = result.astype(types.nptype_from_builtin(output.dtype))
            elif rounded and output.dtype == types.fp16:
                with np.errstate(all="ignore"):
                    result = result.astype(np.float16)
            values[output.name] = _wide(output, result)
    return {output.name: np.asarray(value(output)) for output in function.outputs}


def program(build: Callable[..., Any], inputs: Mapping[str, Array], target: str) -> Any:
    """A program of `build(**inputs)`. Dtypes that an interface cannot have are cast at its edges."""
    specs = [mb.TensorSpec(value.shape, dtype=INTERFACE.get(value.dtype, types.int32)) for value in inputs.values()]

    def body(*given: Any) -> Any:
        named = {}
        for var, (name, value) in zip(given, inputs.items(), strict=True):
            foreign = value.dtype not in INTERFACE
            named[name] = mb.cast(x=var, dtype=value.dtype.name, name=f"{name}_cast") if foreign else var
        results = build(**named)
        results = results if isinstance(results, (tuple, list)) else (results,)
        narrow = [types.builtin_to_string(result.dtype) not in ("fp16", "fp32", "int32") for result in results]
        return tuple(
            mb.cast(x=result, dtype="int32") if cast else result for result, cast in zip(results, narrow, strict=True)
        )

    # The builder takes the inputs' names from the parameters' names.
    names = ", ".join(inputs)
    wrapped = eval(f"lambda {names}: body({names})", {"body": body})  # noqa: S307
    return mb.program(input_specs=specs, opset_version=TARGETS[target])(wrapped)


class Output:
    """A folder of packages, and of values: one file of raw numbers, and `cases.json` that says what lies where."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cases, self._values, self._size = folder, [], [], 0

    def _store(self, value: Array) -> dict[str, Any]:
        value = np.asarray(value)
        kind = "float" if value.dtype.kind == "f" else "int"
        data = np.ascontiguousarray(value).astype("<f4" if kind == "float" else "<i4").tobytes()
        entry = {"kind": kind, "shape": list(value.shape), "offset": self._size, "size": len(data)}
        self._values.append(data)
        self._size += len(data)
        return entry

    def package(self, name: str, authored: Any, target: str, pipeline: Any = None) -> Any:
        """Converts a program; returns the model."""
        model = ct.convert(
            authored,
            convert_to="mlprogram",
            pass_pipeline=ct.PassPipeline.EMPTY if pipeline is None else pipeline,
            skip_model_load=True,
            minimum_deployment_target=TARGETS[target],
            compute_precision=ct.precision.FLOAT32,
        )
        self.keep(name, model)
        return model

    def keep(self, name: str, model: Any) -> None:
        """Keeps the package of a model."""
        shutil.move(model.package_path, self.folder / f"{name}.mlpackage")

    def case(self, name: str, calls: list[dict[str, Any]], **about: Any) -> None:
        """Adds a case: for each call its `inputs` and, by arithmetic, its `outputs`."""
        stored = [
            {
                "inputs": {key: self._store(value) for key, value in call["inputs"].items()},
                "outputs": {
                    arithmetic: {key: self._store(value) for key, value in outputs.items()}
                    for arithmetic, outputs in call["outputs"].items()
                },
            }
            for call in calls
        ]
        self.cases.append({"name": name, "package": f"{name}.mlpackage", "calls": stored, **about})

    def write(self) -> None:
        """Writes `values.bin` and `cases.json`."""
        (self.folder / "values.bin").write_bytes(b"".join(self._values))
        (self.folder / "cases.json").write_text(json.dumps(self.cases))
