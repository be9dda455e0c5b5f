"""Runs a package's ML program with numpy: what the graph means, on any system.

The package is read by coremltools' own loader. Ops that compute on floats are evaluated here in float32, sums and
products accumulated in float32, and rounded once to the dtype that the program declares for the result. Every other
op (shapes, slices, indices, comparisons) is evaluated by coremltools' `value_inference`. Equal graphs of equal weights
give equal bits.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import numpy.typing as npt
from coremltools.converters.mil.frontend.milproto.load import load as load_program
from coremltools.converters.mil.mil import types

Array = npt.NDArray[Any]
State = dict[str, Array]
"""Value of each state by name; `predict` writes it."""


class Oracle:
    """The functions of one package."""

    def __init__(self, package: Path) -> None:
        spec = ct.utils.load_spec(str(package))
        weights = package / "Data" / "com.apple.CoreML" / "weights"
        program = load_program(spec, specification_version=spec.specificationVersion, file_weights_dir=str(weights))
        self._functions: dict[str, Any] = program.functions
        self._materialised: dict[tuple[str, str], Array] = {}

    def functions(self) -> list[str]:
        """Names of the functions, sorted."""
        return sorted(self._functions)

    def interface(self, function: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Inputs of a function, states excepted: name to (numpy dtype, shape)."""
        return {
            name: (np.dtype(_dtype(var)).name, tuple(var.shape))
            for name, var in self._function(function).inputs.items()
            if not types.is_state(var._sym_type)
        }

    def new_state(self, function: str) -> State:
        """Every state of `function`, zeros."""
        return {
            name: np.zeros(var._sym_type.wrapped_type().get_shape(), _dtype(var))
            for name, var in self._function(function).inputs.items()
            if types.is_state(var._sym_type)
        }

    def predict(self, function: str, inputs: Mapping[str, Array], state: State) -> dict[str, Array]:
        """Outputs by name; `state` is updated in place. Inputs must match `interface` exactly: ValueError."""
        expected = self.interface(function)
        given = {name: (value.dtype.name, value.shape) for name, value in inputs.items()}
        if given != expected:
            raise ValueError(f"inputs are {given}, not {expected}")
        values = dict(inputs)

        def value(var: Any) -> Any:
            if isinstance(var, (list, tuple)):
                return [value(one) for one in var]
            if var is None or var.val is not None:
                return None if var is None else var.val
            return values[var.name]

        authored = self._function(function)
        for op in authored.operations:
            if op.op_type == "const":
                continue
            (result,) = op.outputs
            if op.op_type == "read_state":
                computed = state[op.input.name]
            elif op.op_type == "coreml_update_state":
                computed = state[op.state.name] = value(op.value)
            elif op.op_type.startswith("constexpr_"):
                computed = self._constant(function, op)
            elif op.op_type in FLOAT_OPS and _is_float(result):
                arguments = {name: value(var) for name, var in op.inputs.items()}
                # An overflow to infinity is a result like any other, as on the device.
                with np.errstate(all="ignore"):
                    computed = FLOAT_OPS[op.op_type](_Arguments(arguments)).astype(_dtype(result))
            else:
                computed = np.asarray(_inferred(op, value)).astype(_dtype(result))
            if computed.dtype != _dtype(result) or computed.shape != tuple(result.shape):
                raise AssertionError(
                    f"{op.op_type} `{op.name}` gave {computed.dtype}{computed.shape}, not {result.dtype}{result.shape}"
                )
            values[result.name] = computed
        return {output.name: np.array(value(output)) for output in authored.outputs}

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            raise ValueError(f"no function `{name}`; there are {self.functions()}")
        return self._functions[name]

    def _constant(self, function: str, op: Any) -> Array:
        key = (function, op.name)
        if key not in self._materialised:
            self._materialised[key] = op.materialized_val_inference()
        return self._materialised[key]


class _Arguments:
    """The inputs of an op that computes on floats: `floats` as float32, `get` as they are."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def floats(self, name: str) -> Array:
        return np.asarray(self._values[name], np.float32)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def axes(self) -> tuple[int, ...] | None:
        axes = self._values.get("axes")
        return None if axes is None else tuple(int(axis) for axis in np.atleast_1d(axes))


def _conv(op: _Arguments) -> Array:
    x, kernel = op.floats("x"), op.floats("weight")
    if kernel.shape[2:] != (1, 1) or x.shape[0] != 1 or op.get("groups", 1) != 1:
        raise NotImplementedError(f"conv with weight {kernel.shape} on {x.shape}")
    if x.shape[2] != 1 or any(stride != 1 for stride in op.get("strides", [1])):
        raise NotImplementedError(f"conv on {x.shape} with strides {op.get('strides')}")
    result = kernel[:, :, 0, 0] @ x[0, :, 0]
    if op.get("bias") is not None:
        result = result + op.floats("bias")[:, None]
    return result[None, :, None]


def _matmul(op: _Arguments) -> Array:
    x, y = op.floats("x"), op.floats("y")
    x = x.swapaxes(-1, -2) if op.get("transpose_x", False) else x
    y = y.swapaxes(-1, -2) if op.get("transpose_y", False) else y
    return np.asarray(x @ y)


def _softmax(op: _Arguments) -> Array:
    x, axis = op.floats("x"), int(op.get("axis", -1))
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _layer_norm(op: _Arguments) -> Array:
    x, axes = op.floats("x"), op.axes()
    if op.get("gamma") is not None or op.get("beta") is not None:
        raise NotImplementedError("layer_norm with gamma or beta")
    centred = x - x.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + op.floats("epsilon")))


def _reduce(function: Callable[..., Any]) -> Callable[[_Arguments], Array]:
    return lambda op: np.asarray(function(op.floats("x"), axis=op.axes(), keepdims=bool(op.get("keep_dims", False))))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


FLOAT_OPS: Mapping[str, Callable[[_Arguments], Array]] = {
    "abs": lambda op: np.abs(op.floats("x")),
    "add": lambda op: op.floats("x") + op.floats("y"),
    "conv": _conv,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
    "maximum": lambda op: np.maximum(op.floats("x"), op.floats("y")),
    "mul": lambda op: op.floats("x") * op.floats("y"),
    "real_div": lambda op: op.floats("x") / op.floats("y"),
    "reduce_max": _reduce(np.max),
    "reduce_mean": _reduce(np.mean),
    "reduce_sum": _reduce(np.sum),
    "rsqrt": lambda op: 1 / np.sqrt(op.floats("x") + op.floats("epsilon")),
    "sigmoid": lambda op: _sigmoid(op.floats("x")),
    "silu": lambda op: op.floats("x") * _sigmoid(op.floats("x")),
    "softmax": _softmax,
    "sub": lambda op: op.floats("x") - op.floats("y"),
}
"""The ops evaluated here; each gives float32."""


def _is_float(var: Any) -> bool:
    return bool(types.is_float(var.dtype))


def _dtype(var: Any) -> Any:
    dtype = var._sym_type.wrapped_type() if types.is_state(var._sym_type) else var.dtype
    return types.nptype_from_builtin(dtype.get_primitive() if types.is_tensor(dtype) else dtype)


class _Known:
    """Stands for a `Var` whose value is known, so that `value_inference` computes."""

    def __init__(self, var: Any, value: Any) -> None:
        self._var, self.val, self.sym_val = var, value, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._var, name)

    @property
    def rank(self) -> int:
        return int(np.ndim(self.val))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.val))


def _inferred(op: Any, value: Callable[[Any], Any]) -> Any:
    """coremltools' `value_inference` of `op` on known values."""
    known = copy.copy(op)
    known._input_vars = {
        name: None
        if var is None
        else [_Known(one, value(one)) for one in var]
        if isinstance(var, (list, tuple))
        else _Known(var, value(var))
        for name, var in op._input_vars.items()
    }
    for name, var in known._input_vars.items():
        setattr(known, name, var)
    return known.value_inference()
