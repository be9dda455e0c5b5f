"""Every op of the interpreter, as packages with inputs and expected outputs. Argument: the folder to write to.

`CASES` is the one list. A case is authored in float16 and in float32 where it has floats; `f` makes a number or an
array of that dtype. Inputs are float16 values in both.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from authoring import Output, expected, mb, program, types

Array = np.ndarray
INF, NAN = np.inf, np.nan

# Tolerances: the very value; so many units in the last place of the dtype; a share of the largest value beside that.
EXACT: Any = "exact"


def ulp(count: int) -> dict[str, Any]:
    """Units in the last place."""
    return {"ulp": count}


def close(share: float) -> dict[str, Any]:
    """A share of the largest value, for sums of many terms."""
    return {"close": share}


SUM = close(3e-6)
FUNCTION = ulp(4)


@dataclass
class Case:
    """An op with one set of parameters."""

    op: str
    name: str
    build: Callable[..., Any]
    inputs: dict[str, Any]
    tolerance: Any
    target: str = "iOS18"
    floats: bool = field(init=False)

    def __post_init__(self) -> None:
        self.floats = any(np.asarray(value).dtype.kind == "f" for value in self.inputs.values())


CASES: list[Case] = []


def case(op: str, variant: str, build: Callable[..., Any], tolerance: Any = EXACT, **inputs: Any) -> None:
    """Adds a case; `target` is no input."""
    target = inputs.pop("target", "iOS18")
    name = f"{op}.{variant}" if variant else op
    CASES.append(Case(op, name, build, {k: np.asarray(v) for k, v in inputs.items()}, tolerance, target))


_RANDOM = np.random.default_rng(7)


def normal(*shape: int, scale: float = 1.0) -> Array:
    """float16 values."""
    return (_RANDOM.standard_normal(shape) * scale).astype(np.float16).astype(np.float64)


def spread(low: float, high: float, *shape: int) -> Array:
    """float16 values inside bounds."""
    return _RANDOM.uniform(low, high, shape).astype(np.float16).astype(np.float64)


def ints(low: int, high: int, *shape: int) -> Array:
    """int32 from `low` to `high - 1`."""
    return _RANDOM.integers(low, high, shape).astype(np.int32)


def i32(values: Any) -> Array:
    """int32."""
    return np.asarray(values, np.int32)


EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 65504.0, -65504.0, 6e-8, 1e-4, -1e-4, 3.0, -7.0])
SPECIAL = np.array([INF, -INF, NAN, 0.0, 1.0, -1.0])


# Activations and functions of one element.


def unary(op: str, x: Array, tolerance: Any, **parameters: Any) -> Callable[..., Any]:
    """A case of an op with `x` and parameters of the dtype."""

    def build(f: Any, x: Any) -> Any:
        return getattr(mb, op)(x=x, **{k: f(v) if isinstance(v, float) else v for k, v in parameters.items()})

    label = ",".join(f"{k}={v}" for k, v in parameters.items())
    case(op, label, build, tolerance, x=x)
    return build


for name in ("abs", "sign", "square", "relu", "relu6", "ceil", "floor", "round"):
    unary(name, np.concatenate([EDGES, normal(24, scale=4.0)]), EXACT if name != "square" else ulp(1))
    case(name, "special", lambda f, x, n=name: getattr(mb, n)(x=x), EXACT, x=SPECIAL)
for name in ("abs", "sign", "square"):
    case(name, "int", lambda f, x, n=name: getattr(mb, n)(x=x), EXACT, x=ints(-40_000, 40_000, 3, 4))
for name, x in {
    "acos": spread(-1, 1, 33),
    "asin": spread(-1, 1, 33),
    "atan": normal(33, scale=9.0),
    "atanh": spread(-0.99, 0.99, 33),
    "cos": normal(33, scale=9.0),
    "cosh": spread(-9, 9, 33),
    "erf": normal(33, scale=2.0),
    "exp": spread(-17, 11, 33),
    "exp2": spread(-20, 15, 33),
    "sigmoid": normal(33, scale=9.0),
    "silu": normal(33, scale=9.0),
    "sin": normal(33, scale=9.0),
    "sinh": spread(-9, 9, 33),
    "softplus": normal(33, scale=9.0),
    "softsign": normal(33, scale=9.0),
    "sqrt": spread(0, 60_000, 33),
    "tan": spread(-1.5, 1.5, 33),
    "tanh": normal(33, scale=2.0),
}.items():
    unary(name, x, FUNCTION)
for name in ("exp", "exp2", "sigmoid", "tanh", "sqrt", "erf", "atan", "cos", "softplus"):
    case(name, "special", lambda f, x, n=name: getattr(mb, n)(x=x), FUNCTION, x=SPECIAL)
for name in ("acos", "asin", "atanh", "sqrt"):
    case(name, "outside", lambda f, x, n=name: getattr(mb, n)(x=x), FUNCTION, x=[-2.0, 1.5, -1.0, 1.0, 0.0])
unary("clamped_relu", normal(33, scale=4.0), ulp(1), alpha=0.3, beta=2.0)
unary("clamped_relu", normal(33, scale=4.0), ulp(1), alpha=-0.75, beta=1.5)
unary("leaky_relu", normal(33, scale=4.0), ulp(1), alpha=0.3)
unary("thresholded_relu", normal(33, scale=2.0), EXACT, alpha=0.75)
unary("thresholded_relu", normal(33, scale=2.0), EXACT, alpha=-0.5)
unary("elu", normal(33, scale=3.0), FUNCTION, alpha=1.25)
unary("linear_activation", normal(33), ulp(1), alpha=2.5, beta=-0.75)
unary("scaled_tanh", normal(33), FUNCTION, alpha=1.75, beta=0.625)
unary("sigmoid_hard", normal(33, scale=5.0), ulp(2), alpha=0.2, beta=0.5)
for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
    unary("gelu", spread(-6, 6, 49), close(1e-6), mode=mode)
unary("clip", normal(33, scale=3.0), EXACT, alpha=-1.5, beta=2.25)
case("clip", "special", lambda f, x: mb.clip(x=x, alpha=f(-2.0), beta=f(3.0)), EXACT, x=SPECIAL)
unary("threshold", normal(33, scale=3.0), EXACT, alpha=0.5)
case("threshold", "int", lambda f, x: mb.threshold(x=x, alpha=np.int32(3)), EXACT, x=ints(-9, 9, 12))
unary("inverse", spread(0.1, 9, 33), ulp(2), epsilon=0.01)
unary("inverse", spread(-9, -0.1, 33), ulp(2))
unary("log", spread(0.01, 900, 33), FUNCTION)
unary("log", spread(0, 2, 33), close(2e-6), epsilon=0.25)
case("log", "zero", lambda f, x: mb.log(x=x, epsilon=f(0.0)), FUNCTION, x=[0.0, -1.0, 1.0, INF, NAN])
unary("rsqrt", spread(0.01, 900, 33), ulp(2))
unary("rsqrt", spread(0, 4, 33), ulp(2), epsilon=0.125)
case("prelu", "4d", lambda f, x: mb.prelu(x=x, alpha=f([0.1, -2.0, 0.0])), ulp(1), x=normal(2, 3, 2, 2))
case("prelu", "3d", lambda f, x: mb.prelu(x=x, alpha=f([0.25, 0.25])), ulp(1), x=normal(2, 2, 5))
case(
    "softplus_parametric",
    "",
    lambda f, x: mb.softplus_parametric(x=x, alpha=f([0.5, 2.0, -1.0]), beta=f([1.0, 0.25, -0.75])),
    FUNCTION,
    x=normal(1, 3, 2, 4, scale=3.0),
)
case("exp", "rank 0", lambda f, x: mb.exp(x=mb.squeeze(x=x)), FUNCTION, x=[0.75])
case("identity", "float", lambda f, x: mb.identity(x=x), EXACT, x=np.concatenate([EDGES, SPECIAL]))
case("identity", "int", lambda f, x: mb.identity(x=x), EXACT, x=ints(-9, 9, 2, 3))

for to in ("fp16", "fp32", "int32", "int8", "uint8", "int16", "uint16", "bool"):
    low, high = {"int8": (-100, 100), "uint8": (0, 250), "uint16": (0, 30_000)}.get(to, (-30_000, 30_000))
    case("cast", f"float to {to}", lambda f, x, to=to: mb.cast(x=x, dtype=to), EXACT, x=spread(low, high, 17))
    case("cast", f"int to {to}", lambda f, x, to=to: mb.cast(x=x, dtype=to), EXACT, x=ints(low // 20, high // 20, 17))
    case("cast", f"bool to {to}", lambda f, x, to=to: mb.cast(x=x, dtype=to), EXACT, x=ints(0, 2, 9) != 0)
case("cast", "fractions to int32", lambda f, x: mb.cast(x=x, dtype="int32"), EXACT, x=[1.5, -1.5, 0.75, -0.75, 2.0])
case("cast", "fractions to bool", lambda f, x: mb.cast(x=x, dtype="bool"), EXACT, x=[0.25, -0.5, 0.0, -0.0, NAN, INF])
case("cast", "int wraps to int8", lambda f, x: mb.cast(x=x, dtype="int8"), EXACT, x=i32([127, 128, 255, 256, -129]))
case("cast", "int wraps to uint8", lambda f, x: mb.cast(x=x, dtype="uint8"), EXACT, x=i32([-1, 255, 256, 300]))

# Two operands.

BROADCASTS = {
    "same": ((2, 3), (2, 3)),
    "one axis": ((2, 1, 3), (4, 1)),
    "vector": ((2, 3, 4), (4,)),
    "one": ((1,), (2, 5)),
}
BINARY = ("add", "sub", "mul", "maximum", "minimum", "real_div")
COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
for name in (*BINARY, "floor_div", "mod", *COMPARE):
    tolerance = ulp(1) if name in BINARY or name == "mod" else EXACT
    for label, (a, b) in BROADCASTS.items():
        build = lambda f, x, y, n=name: getattr(mb, n)(x=x, y=y)
        x, y = normal(*a, scale=3.0), normal(*b)
        if name in COMPARE:
            x, y = np.round(x), np.round(y)
        case(name, label, build, tolerance, x=x, y=y)
        y = ints(1, 9, *b) * (1 - 2 * ints(0, 2, *b))
        case(name, f"int, {label}", build, EXACT, x=ints(-99, 99, *a), y=y)
    case(
        name,
        "constant",
        lambda f, x, n=name: getattr(mb, n)(x=x, y=f(0.75)),
        tolerance,
        x=np.concatenate([normal(12), [0.75]]),
    )
for name in (*BINARY[:5], *COMPARE):
    case(
        name,
        "special",
        lambda f, x, y, n=name: getattr(mb, n)(x=x, y=y),
        EXACT,
        x=np.repeat(SPECIAL, len(SPECIAL)),
        y=np.tile(SPECIAL, len(SPECIAL)),
    )
case("real_div", "by zero", lambda f, x, y: mb.real_div(x=x, y=y), EXACT, x=[1.0, -1.0, 0.0], y=[0.0, 0.0, 0.0])
case(
    "add", "overflow", lambda f, x, y: mb.add(x=x, y=y), ulp(1), x=[65504.0, 65504.0, -65504.0], y=[15.0, 16.0, -900.0]
)
case("add", "int wraps", lambda f, x, y: mb.add(x=x, y=y), EXACT, x=i32([2**31 - 1, 5]), y=i32([2, 6]))
case(
    "mod",
    "signs",
    lambda f, x, y: mb.mod(x=x, y=y),
    ulp(1),
    x=[7.0, -7.0, 7.0, -7.0, 6.0],
    y=[3.0, 3.0, -3.0, -3.0, 3.0],
)
case("mod", "far", lambda f, x, y: mb.mod(x=x, y=y), ulp(1), x=[60_000.0, 1000.0, -999.0], y=[0.125, 7.0, 0.75])
case(
    "floor_div",
    "signs",
    lambda f, x, y: mb.floor_div(x=x, y=y),
    EXACT,
    x=[7.0, -7.0, 7.0, -7.0],
    y=[2.0, 2.0, -2.0, -2.0],
)
case("pow", "", lambda f, x, y: mb.pow(x=x, y=y), FUNCTION, x=spread(0, 4, 3, 5), y=spread(-2, 3, 5))
case(
    "pow",
    "negative base",
    lambda f, x, y: mb.pow(x=x, y=y),
    FUNCTION,
    x=[-2.0, -2.0, 0.0, -1.5, 2.0],
    y=[2.0, 3.0, 0.0, 0.5, -1.0],
)
case("pow", "int", lambda f, x, y: mb.pow(x=x, y=y), EXACT, x=ints(-5, 6, 4, 3), y=ints(0, 6, 3))
for name in ("logical_and", "logical_or", "logical_xor"):
    case(
        name,
        "",
        lambda f, x, y, n=name: getattr(mb, n)(x=x, y=y),
        EXACT,
        x=np.array([[True, False], [True, False]]),
        y=np.array([True, True, False, False]).reshape(2, 2),
    )
    case(
        name,
        "broadcast",
        lambda f, x, y, n=name: getattr(mb, n)(x=x, y=y),
        EXACT,
        x=ints(0, 2, 3, 1) != 0,
        y=ints(0, 2, 4) != 0,
    )
case("logical_not", "", lambda f, x: mb.logical_not(x=x), EXACT, x=ints(0, 2, 3, 4) != 0)
case(
    "select",
    "",
    lambda f, c, a, b: mb.select(cond=c, a=a, b=b),
    EXACT,
    c=ints(0, 2, 3, 4) != 0,
    a=normal(3, 4),
    b=normal(3, 4),
)
case(
    "select",
    "broadcast",
    lambda f, c, a, b: mb.select(cond=c, a=a, b=b),
    EXACT,
    c=ints(0, 2, 3, 1) != 0,
    a=normal(3, 4),
    b=normal(4),
)
case(
    "select",
    "int",
    lambda f, c, a, b: mb.select(cond=c, a=a, b=b),
    EXACT,
    c=ints(0, 2, 5) != 0,
    a=ints(0, 9, 5),
    b=ints(0, 9, 5),
)
case("select", "constant", lambda f, c, a: mb.select(cond=c, a=a, b=f(-INF)), EXACT, c=ints(0, 2, 5) != 0, a=normal(5))


def nonzero(x: Array) -> None:
    """`non_zero` of a value: its output's size is not known, so a package holds the value."""
    count = int(np.count_nonzero(x))

    def build(f: Any, dummy: Any) -> Any:
        del dummy
        const = f(x) if x.dtype.kind == "f" else x
        return mb.reshape(x=mb.non_zero(x=const), shape=[count, x.ndim])

    case("non_zero", f"{x.dtype} {x.ndim}", build, EXACT, dummy=[1.0] if x.dtype.kind == "f" else i32([1]))


nonzero(ints(0, 2, 3, 4))
nonzero(np.array([[0.0, -1.5, NAN], [0.25, 0.0, -0.0]]))
nonzero(ints(0, 2, 2, 3, 2) != 0)
nonzero(np.zeros(3, np.int32) + i32([0, 7, 0]))

# Reductions.

REDUCE = ("sum", "mean", "max", "min", "prod", "l1_norm", "l2_norm", "sum_square", "log_sum", "log_sum_exp")
for name in REDUCE:
    op = f"reduce_{name}"
    x = spread(0.5, 1.5, 2, 3, 4) if name in ("prod", "log_sum") else normal(2, 3, 4)
    tolerance = EXACT if name in ("max", "min") else SUM
    for axes in (None, [0], [-1], [1, 2], [-3, -1], [0, 1, 2]):
        for keep in (False, True):
            case(
                op,
                f"axes={axes},keep_dims={keep}",
                lambda f, x, op=op, axes=axes, keep=keep: getattr(mb, op)(x=x, axes=axes, keep_dims=keep),
                tolerance,
                x=x,
            )
    if name in ("sum", "mean", "max", "min", "prod", "l1_norm", "sum_square"):
        x = ints(-2_000, 2_000, 3, 4) if name != "prod" else ints(-5, 6, 3, 4)
        for axes in (None, [-1], [0]):
            case(op, f"int,axes={axes}", lambda f, x, op=op, axes=axes: getattr(mb, op)(x=x, axes=axes), EXACT, x=x)
for name in ("sum", "max", "min", "mean"):
    build = lambda f, x, op=f"reduce_{name}": getattr(mb, op)(x=x, axes=[-1])
    case(f"reduce_{name}", "special", build, EXACT, x=[[INF, 1.0], [-INF, 1.0], [NAN, 1.0], [1.0, NAN], [-INF, -INF]])
for op in ("reduce_sum", "reduce_l2_norm"):
    build = lambda f, x, op=op: getattr(mb, op)(x=x, axes=np.zeros(0, np.int32), keep_dims=True)
    case(op, "axes=[]", build, ulp(1), x=normal(2, 3))
case("reduce_sum", "large ints", lambda f, x: mb.reduce_sum(x=x), EXACT, x=i32([2**24, 1, 1, 2**25 + 1]))
case("reduce_max", "large ints", lambda f, x: mb.reduce_max(x=x), EXACT, x=i32([2**24, 2**24 + 1, 3]))
case("reduce_prod", "large ints", lambda f, x: mb.reduce_prod(x=x), EXACT, x=i32([4099, 4093, 3]))
case(
    "reduce_log_sum_exp",
    "large",
    lambda f, x: mb.reduce_log_sum_exp(x=x, axes=[1]),
    SUM,
    x=[[900.0, 900.0], [-900.0, -901.0]],
)
for name in ("reduce_argmax", "reduce_argmin"):
    for axis in (0, 1, -1):
        for keep in (False, True):
            build = lambda f, x, n=name, a=axis, k=keep: getattr(mb, n)(x=x, axis=a, keep_dims=k)
            case(name, f"axis={axis},keep_dims={keep}", build, EXACT, x=normal(3, 4, 5))
    build = lambda f, x, n=name: getattr(mb, n)(x=x, axis=-1)
    case(name, "ties", build, EXACT, x=[[1.0, 2.0, 2.0, 1.0], [0.0, -0.0, 0.0, 0.0]])
    case(name, "int", build, EXACT, x=i32([[2**24, 2**24 + 1, 2**24 - 1], [5, 5, 5]]))
    build = lambda f, x, n=name: getattr(mb, n)(x=x, axis=-1, output_dtype="uint16")
    case(name, "uint16", build, EXACT, x=normal(3, 4))

# Products.

MATMULS = {
    "2d": ((3, 4), (4, 5)),
    "batched": ((2, 3, 4), (2, 4, 5)),
    "broadcast": ((2, 1, 3, 4), (5, 4, 2)),
    "row": ((1, 7), (7, 2)),
    "long": ((2, 300), (300, 3)),
    "vector": ((4,), (4, 5)),
}
for label, (a, b) in MATMULS.items():
    case("matmul", label, lambda f, x, y: mb.matmul(x=x, y=y), SUM, x=normal(*a), y=normal(*b))
    case(
        "matmul",
        f"constant, {label}",
        lambda f, x, y=normal(*b): mb.matmul(x=x, y=f(y)),
        SUM,
        x=normal(*a),
    )
case(
    "matmul",
    "transposed",
    lambda f, x, y: mb.matmul(x=x, y=y, transpose_x=True, transpose_y=True),
    SUM,
    x=normal(2, 4, 3),
    y=normal(2, 5, 4),
)
case(
    "matmul",
    "transpose_y",
    lambda f, x, y: mb.matmul(x=x, y=y, transpose_y=True),
    SUM,
    x=normal(3, 4),
    y=normal(2, 5, 4),
)
case("matmul", "int", lambda f, x, y: mb.matmul(x=x, y=y), EXACT, x=ints(-9, 9, 3, 4), y=ints(-9, 9, 4, 2))
for shape in ((5,), (3, 5), (2, 3, 5), (2, 2, 9, 5)):
    case(
        "linear",
        f"rank {len(shape)}",
        lambda f, x, w=normal(12, 5), b=normal(12): mb.linear(x=x, weight=f(w), bias=f(b)),
        SUM,
        x=normal(*shape),
    )
case("linear", "no bias", lambda f, x, w=normal(4, 33): mb.linear(x=x, weight=f(w)), SUM, x=normal(2, 33))
case(
    "linear",
    "int",
    lambda f, x, w=ints(-9, 9, 4, 3): mb.linear(x=x, weight=w, bias=i32([1, 2, 3, 4])),
    EXACT,
    x=ints(-9, 9, 2, 3),
)
case(
    "einsum",
    "4d",
    lambda f, x, y: mb.einsum(values=(x, y), equation="nchw,nwhu->nchu"),
    SUM,
    x=normal(2, 3, 4, 5),
    y=normal(2, 5, 4, 6),
)
case(
    "einsum",
    "3d",
    lambda f, x, y: mb.einsum(values=(x, y), equation="chw,whr->chr"),
    SUM,
    x=normal(3, 4, 5),
    y=normal(5, 4, 6),
)
case(
    "einsum",
    "broadcast",
    lambda f, x, y: mb.einsum(values=(x, y), equation="nchw,nwhu->nchu"),
    SUM,
    x=normal(2, 3, 1, 5),
    y=normal(1, 5, 4, 6),
)
for label, q, k, v, mask in (
    ("3d", (2, 3, 4), (2, 5, 4), (2, 5, 6), None),
    ("4d", (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 5)),
    ("mask broadcast", (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), (2, 1, 3, 5)),
):
    if mask is None:
        build = lambda f, q, k, v: mb.scaled_dot_product_attention(query=q, key=k, value=v)
        case("scaled_dot_product_attention", label, build, SUM, q=normal(*q), k=normal(*k), v=normal(*v))
    else:
        build = lambda f, q, k, v, m: mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m)
        case(
            "scaled_dot_product_attention", label, build, SUM, q=normal(*q), k=normal(*k), v=normal(*v), m=normal(*mask)
        )
        booleans = ints(0, 2, *mask) != 0
        booleans[..., 0] = True
        case(
            "scaled_dot_product_attention",
            f"{label}, bool",
            build,
            SUM,
            q=normal(*q),
            k=normal(*k),
            v=normal(*v),
            m=booleans,
        )

# Convolutions and pools.


def conv(label: str, x: tuple[int, ...], weight: tuple[int, ...], bias: bool = True, **parameters: Any) -> None:
    """A convolution with a constant weight."""
    w, b = normal(*weight, scale=0.5), normal(weight[0])

    def build(f: Any, x: Any) -> Any:
        return mb.conv(x=x, weight=f(w), **({"bias": f(b)} if bias else {}), **parameters)

    case("conv", label, build, SUM, x=normal(*x))


conv("pointwise", (1, 6, 1, 5), (4, 6, 1, 1))
conv("pointwise, one column", (1, 40, 1, 1), (12, 40, 1, 1), bias=False)
conv("pointwise, batch", (2, 6, 3, 3), (4, 6, 1, 1), bias=False)
conv("1d", (2, 3, 9), (4, 3, 3))
conv("1d strides dilations", (1, 3, 17), (4, 3, 3), strides=[2], dilations=[3])
conv("1d groups", (1, 4, 9), (6, 2, 3), groups=2)
conv("1d same", (1, 3, 9), (2, 3, 4), pad_type="same", strides=[2])
conv("1d same_lower", (1, 3, 9), (2, 3, 4), pad_type="same_lower", strides=[2])
conv("1d custom", (1, 3, 9), (2, 3, 4), pad_type="custom", pad=[3, 1])
conv("2d", (2, 3, 6, 7), (4, 3, 3, 2))
conv("2d strides", (1, 3, 8, 9), (4, 3, 3, 3), strides=[2, 3], pad_type="custom", pad=[1, 2, 0, 1])
conv("2d dilations", (1, 2, 9, 9), (3, 2, 3, 2), dilations=[2, 3], pad_type="same")
conv("2d same_lower", (1, 2, 7, 6), (3, 2, 4, 2), strides=[2, 2], pad_type="same_lower")
conv("2d depthwise", (1, 6, 5, 5), (6, 1, 3, 3), groups=6, pad_type="same")
conv("2d groups", (2, 6, 5, 5), (4, 3, 3, 3), groups=2, bias=False)
conv("3d", (1, 2, 4, 5, 4), (3, 2, 2, 3, 2))
conv("3d strides groups", (1, 4, 6, 5, 4), (4, 2, 2, 3, 2), strides=[2, 1, 2], groups=2, pad_type="same")
case("conv", "weight of an op", lambda f, x, w: mb.conv(x=x, weight=w), SUM, x=normal(1, 3, 6, 6), w=normal(2, 3, 3, 3))


def conv_transpose(
    label: str, x: tuple[int, ...], weight: tuple[int, ...], bias: bool = True, **parameters: Any
) -> None:
    """A transposed convolution with a constant weight."""
    w, b = normal(*weight, scale=0.5), normal(weight[1] * parameters.get("groups", 1))

    def build(f: Any, x: Any) -> Any:
        return mb.conv_transpose(x=x, weight=f(w), **({"bias": f(b)} if bias else {}), **parameters)

    case("conv_transpose", label, build, SUM, x=normal(*x))


conv_transpose("1d", (2, 3, 5), (3, 4, 3))
conv_transpose("1d strides", (1, 3, 5), (3, 4, 3), strides=[2], bias=False)
conv_transpose("1d same", (1, 3, 5), (3, 4, 4), strides=[2], pad_type="same")
conv_transpose("1d custom", (1, 3, 5), (3, 4, 4), strides=[2], pad_type="custom", pad=[1, 2])
conv_transpose("2d", (1, 3, 4, 5), (3, 2, 3, 2))
conv_transpose("2d strides dilations", (1, 3, 4, 5), (3, 2, 3, 2), strides=[2, 3], dilations=[2, 1])
conv_transpose("2d groups", (2, 4, 3, 3), (4, 3, 2, 2), groups=2, strides=[2, 2])
conv_transpose(
    "2d output_shape",
    (1, 3, 4, 4),
    (3, 2, 3, 3),
    strides=[2, 2],
    pad_type="custom",
    pad=[1, 1, 1, 1],
    output_shape=[1, 2, 8, 8],
)
conv_transpose("3d", (1, 2, 3, 2, 3), (2, 2, 2, 2, 2), strides=[2, 1, 2])

for name in ("max_pool", "avg_pool", "l2_pool"):
    pools: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("1d", (2, 3, 9), {"kernel_sizes": [3], "pad_type": "valid"}),
        ("1d strides", (1, 2, 10), {"kernel_sizes": [3], "strides": [2], "pad_type": "same"}),
        ("2d", (1, 2, 6, 7), {"kernel_sizes": [2, 3], "strides": [2, 2], "pad_type": "valid"}),
        ("2d same", (1, 2, 6, 7), {"kernel_sizes": [3, 3], "strides": [2, 2], "pad_type": "same"}),
        ("2d same_lower", (1, 2, 6, 7), {"kernel_sizes": [2, 2], "strides": [1, 1], "pad_type": "same_lower"}),
        ("2d custom", (1, 2, 6, 7), {"kernel_sizes": [3, 3], "pad_type": "custom", "pad": [1, 2, 0, 1]}),
    ]
    if name != "l2_pool":
        pools.append(("3d", (1, 2, 4, 4, 5), {"kernel_sizes": [2, 2, 3], "strides": [2, 1, 1], "pad_type": "valid"}))
    if name == "avg_pool":
        inside = {
            "kernel_sizes": [3, 3],
            "pad_type": "custom",
            "pad": [1, 1, 2, 2],
            "exclude_padding_from_average": True,
        }
        pools.append(("2d inside", (1, 2, 6, 7), inside))
    else:
        pools.append(
            (
                "2d ceil",
                (1, 2, 6, 8),
                {"kernel_sizes": [3, 3], "strides": [2, 2], "pad_type": "valid", "ceil_mode": True},
            )
        )
        padded = {
            "kernel_sizes": [3, 3],
            "strides": [2, 2],
            "pad_type": "custom",
            "pad": [1, 1, 1, 1],
            "ceil_mode": True,
        }
        pools.append(("2d ceil padded", (1, 2, 6, 8), padded))
    for label, shape, parameters in pools:
        build = lambda f, x, n=name, p=parameters: getattr(mb, n)(x=x, **p)
        case(name, label, build, EXACT if name == "max_pool" else SUM, x=normal(*shape))
case(
    "max_pool",
    "special",
    lambda f, x: mb.max_pool(x=x, kernel_sizes=[2], pad_type="valid"),
    EXACT,
    x=[[[NAN, 1.0, 2.0, -INF, -INF, INF, 3.0, NAN]]],
)

# Normalizations.

for axis in (-1, 0, 1, 2):
    case("softmax", f"axis={axis}", lambda f, x, a=axis: mb.softmax(x=x, axis=a), SUM, x=normal(2, 3, 4, scale=5.0))
case(
    "softmax",
    "masked",
    lambda f, x: mb.softmax(x=x),
    SUM,
    x=[[0.0, -INF, 1.0], [-65504.0, 65504.0, 0.0], [INF, 0.0, 1.0]],
)
case("softmax", "large", lambda f, x: mb.softmax(x=x), SUM, x=[[60_000.0, 59_968.0, 0.0]])
case(
    "layer_norm",
    "last axis",
    lambda f, x, g=normal(6), b=normal(6): mb.layer_norm(x=x, axes=[-1], gamma=f(g), beta=f(b)),
    SUM,
    x=normal(2, 3, 6),
)
case(
    "layer_norm",
    "two axes",
    lambda f, x, g=normal(3, 6), b=normal(3, 6): mb.layer_norm(
        x=x, axes=[1, 2], gamma=f(g), beta=f(b), epsilon=f(1e-3)
    ),
    SUM,
    x=normal(2, 3, 6),
)
case(
    "layer_norm", "first axis", lambda f, x, g=normal(5): mb.layer_norm(x=x, axes=[0], gamma=f(g)), SUM, x=normal(5, 3)
)
case("layer_norm", "plain", lambda f, x: mb.layer_norm(x=x, axes=[-1]), SUM, x=normal(2, 33, scale=100.0))
case("layer_norm", "all axes", lambda f, x: mb.layer_norm(x=x, axes=[0, 1]), SUM, x=normal(2, 5))
case(
    "batch_norm",
    "4d",
    lambda f, x, m=normal(3), v=spread(0.5, 2, 3), g=normal(3), b=normal(3): mb.batch_norm(
        x=x, mean=f(m), variance=f(v), gamma=f(g), beta=f(b), epsilon=f(1e-3)
    ),
    SUM,
    x=normal(2, 3, 2, 2),
)
case(
    "batch_norm",
    "3d plain",
    lambda f, x, m=normal(3), v=spread(0.5, 2, 3): mb.batch_norm(x=x, mean=f(m), variance=f(v)),
    SUM,
    x=normal(2, 3, 4),
)
case(
    "instance_norm",
    "4d",
    lambda f, x, g=normal(3), b=normal(3): mb.instance_norm(x=x, gamma=f(g), beta=f(b), epsilon=f(1e-3)),
    SUM,
    x=normal(2, 3, 4, 4),
)
case("instance_norm", "3d plain", lambda f, x: mb.instance_norm(x=x), SUM, x=normal(2, 3, 7))
case("l2_norm", "4d", lambda f, x: mb.l2_norm(x=x, epsilon=f(1e-3)), SUM, x=normal(2, 3, 4, 2))
case("l2_norm", "3d", lambda f, x: mb.l2_norm(x=x), SUM, x=normal(3, 4, 2))
for size in (1, 2, 3, 5):
    case(
        "local_response_norm",
        f"size={size}",
        lambda f, x, s=size: mb.local_response_norm(x=x, size=s, alpha=f(0.5), beta=f(0.75), k=f(2.0)),
        SUM,
        x=normal(2, 6, 3, 2),
    )
case(
    "local_response_norm",
    "defaults",
    lambda f, x: mb.local_response_norm(x=x, size=3),
    SUM,
    x=normal(1, 4, 3, scale=9.0),
)

# Shapes.

x234 = normal(2, 3, 4)
for axis in (0, 1, -1):
    case(
        "concat",
        f"axis={axis}",
        lambda f, x, y, a=axis: mb.concat(values=(x, y, x), axis=a),
        EXACT,
        x=x234,
        y=normal(2, 3, 4),
    )
    case(
        "concat",
        f"interleave, axis={axis}",
        lambda f, x, y, a=axis: mb.concat(values=(x, y), axis=a, interleave=True),
        EXACT,
        x=x234,
        y=normal(2, 3, 4),
    )
    case(
        "stack",
        f"axis={axis}",
        lambda f, x, y, a=axis: mb.stack(values=(x, y), axis=a),
        EXACT,
        x=x234,
        y=normal(2, 3, 4),
    )
    case(
        "split",
        f"equal, axis={axis}",
        lambda f, x, a=axis: mb.split(x=x, num_splits=2, axis=a),
        EXACT,
        x=normal(2, 4, 6),
    )
case("concat", "sizes", lambda f, x, y: mb.concat(values=(x, y), axis=1), EXACT, x=normal(2, 3), y=normal(2, 5))
case("concat", "one", lambda f, x: mb.concat(values=(x,), axis=0), EXACT, x=normal(2, 3))
case("concat", "int", lambda f, x, y: mb.concat(values=(x, y), axis=0), EXACT, x=ints(0, 9, 3), y=ints(0, 9, 2))
case("stack", "int", lambda f, x, y: mb.stack(values=(x, y), axis=1), EXACT, x=ints(0, 9, 3), y=ints(0, 9, 3))
case("split", "sizes", lambda f, x: mb.split(x=x, split_sizes=[1, 3, 2], axis=-1), EXACT, x=normal(2, 6))
case("split", "int", lambda f, x: mb.split(x=x, num_splits=3, axis=0), EXACT, x=ints(0, 9, 6, 2))
case("depth_to_space", "", lambda f, x: mb.depth_to_space(x=x, block_size=2), EXACT, x=normal(2, 8, 2, 3))
case("space_to_depth", "", lambda f, x: mb.space_to_depth(x=x, block_size=2), EXACT, x=normal(2, 2, 4, 6))
case("pixel_shuffle", "", lambda f, x: mb.pixel_shuffle(x=x, upscale_factor=2), EXACT, x=normal(2, 8, 2, 3))
case(
    "pixel_unshuffle",
    "",
    lambda f, x: mb.pixel_unshuffle(x=x, downscale_factor=np.uint32(2)),
    EXACT,
    x=normal(2, 2, 4, 6),
)
for axes in ([0], [-1], [0, 2], [1, -1], [0, 1]):
    case("expand_dims", f"axes={axes}", lambda f, x, a=axes: mb.expand_dims(x=x, axes=a), EXACT, x=normal(2, 3))
case("expand_dims", "rank 0", lambda f, x: mb.expand_dims(x=mb.squeeze(x=x), axes=[0, 1]), EXACT, x=[1.5])
for axes in (None, [0], [-1], [0, 2], [0, 2, 4]):
    case("squeeze", f"axes={axes}", lambda f, x, a=axes: mb.squeeze(x=x, axes=a), EXACT, x=normal(1, 3, 1, 2, 1))
case("squeeze", "int", lambda f, x: mb.squeeze(x=x, axes=[1]), EXACT, x=ints(0, 9, 3, 1))
for axis in (0, 1, 2, 3, -1):
    case("flatten2d", f"axis={axis}", lambda f, x, a=axis: mb.flatten2d(x=x, axis=a), EXACT, x=x234)
for shape in ([24], [4, 6], [-1, 3], [2, -1], [0, 0, 4], [2, 3, 2, 2], [1, 0, 3, 4], [4, 0, -1]):
    case("reshape", f"shape={shape}", lambda f, x, s=shape: mb.reshape(x=x, shape=s), EXACT, x=x234)
case("reshape", "iOS16", lambda f, x: mb.reshape(x=x, shape=[0, -1, 4]), EXACT, x=x234, target="iOS16")
case("reshape", "int", lambda f, x: mb.reshape(x=x, shape=[3, 2]), EXACT, x=ints(0, 9, 6))
case("reshape", "bool", lambda f, x: mb.reshape(x=x, shape=[3, 2]), EXACT, x=ints(0, 2, 6) != 0)
for axes in (None, [0], [-1], [0, 2]):
    case("reverse", f"axes={axes}", lambda f, x, a=axes: mb.reverse(x=x, axes=a), EXACT, x=x234)
case("reverse", "int", lambda f, x: mb.reverse(x=x), EXACT, x=ints(0, 9, 2, 3))
for perm in ([2, 0, 1], [-1, -3, -2], [0, 1, 2], [1, 0, 2]):
    case("transpose", f"perm={perm}", lambda f, x, p=perm: mb.transpose(x=x, perm=p), EXACT, x=x234)
case("transpose", "int", lambda f, x: mb.transpose(x=x, perm=[1, 0]), EXACT, x=ints(0, 9, 2, 3))
case("transpose", "bool", lambda f, x: mb.transpose(x=x, perm=[1, 0]), EXACT, x=ints(0, 2, 2, 3) != 0)
case("shape", "", lambda f, x: mb.shape(x=x), EXACT, x=x234)
case("shape", "int", lambda f, x: mb.shape(x=x), EXACT, x=ints(0, 9, 3, 1))

# Slices.

x456 = normal(4, 5, 6)
SLICES: dict[str, dict[str, Any]] = {
    "plain": {"begin": [1, 0, 2], "end": [3, 5, 6]},
    "negative": {"begin": [-3, -5, -2], "end": [-1, -1, 6]},
    "strides": {"begin": [0, 1, 0], "end": [4, 5, 6], "stride": [2, 2, 3]},
    "backwards": {"begin": [3, 4, 5], "end": [0, 1, 0], "stride": [-1, -2, -3]},
    "backwards to the start": {
        "begin": [3, 4, 5],
        "end": [0, 0, 0],
        "stride": [-1, -1, -2],
        "end_mask": [True, True, False],
    },
    "masks": {"begin": [2, 2, 2], "end": [3, 3, 3], "begin_mask": [True, False, True], "end_mask": [False, True, True]},
    "masks backwards": {
        "begin": [2, 2, 2],
        "end": [1, 1, 1],
        "stride": [-1, -1, -1],
        "begin_mask": [True, False, True],
        "end_mask": [False, True, True],
    },
    "squeeze": {"begin": [1, 0, 2], "end": [2, 5, 6], "squeeze_mask": [True, False, False]},
    "squeeze two": {"begin": [1, -1, 0], "end": [0, 0, 4], "squeeze_mask": [True, True, False]},
    "squeeze masked": {
        "begin": [1, 2, 0],
        "end": [2, 3, 4],
        "begin_mask": [True, False, False],
        "squeeze_mask": [True, False, False],
    },
    "past the end": {"begin": [1, 0, 0], "end": [99, 99, 2147483647]},
}
for label, parameters in SLICES.items():
    case("slice_by_index", label, lambda f, x, p=parameters: mb.slice_by_index(x=x, **p), EXACT, x=x456)
case(
    "slice_by_index",
    "squeeze all",
    lambda f, x: mb.slice_by_index(x=x, begin=[1, 2, 3], end=[0, 0, 0], squeeze_mask=[True] * 3),
    EXACT,
    x=x456,
)
case(
    "slice_by_index",
    "int",
    lambda f, x: mb.slice_by_index(x=x, begin=[1], end=[7], stride=[2]),
    EXACT,
    x=ints(0, 99, 9),
)
case(
    "slice_by_index",
    "bool",
    lambda f, x: mb.slice_by_index(x=x, begin=[7], end=[1], stride=[-2]),
    EXACT,
    x=ints(0, 2, 9) != 0,
)
case(
    "slice_by_index",
    "bounds computed",
    lambda f, x, b: mb.reshape(x=mb.slice_by_index(x=x, begin=b, end=mb.add(x=b, y=i32([2, 3]))), shape=[2, 3]),
    EXACT,
    x=normal(4, 6),
    b=i32([1, 2]),
)
for label, begin, size in (
    ("", [1, 0, 2], [2, 5, 3]),
    ("rest", [1, 2, 3], [-1, -1, -1]),
    ("negative", [-2, 0, -3], [1, 5, 2]),
):
    case("slice_by_size", label, lambda f, x, b=begin, s=size: mb.slice_by_size(x=x, begin=b, size=s), EXACT, x=x456)
case("slice_by_size", "int", lambda f, x: mb.slice_by_size(x=x, begin=[2], size=[3]), EXACT, x=ints(0, 99, 9))
for label, parameters in SLICES.items():
    begin, end = list(parameters["begin"]), list(parameters["end"])
    cut = []
    for axis in range(3):
        low = None if parameters.get("begin_mask", [0] * 3)[axis] else begin[axis]
        high = None if parameters.get("end_mask", [0] * 3)[axis] else end[axis]
        if parameters.get("squeeze_mask", [0] * 3)[axis]:
            cut.append(low or 0)
        else:
            cut.append(slice(low, high, parameters.get("stride", [1] * 3)[axis]))
    update = normal(*x456[tuple(cut)].shape)
    case(
        "slice_update",
        label,
        lambda f, x, u, p=parameters: mb.slice_update(x=x, update=u, **p),
        EXACT,
        x=x456,
        u=update,
    )
case(
    "slice_update",
    "whole",
    lambda f, x, u: mb.slice_update(x=x, update=u, begin=[0, 0], end=[2, 3]),
    EXACT,
    x=normal(2, 3),
    u=normal(2, 3),
)
case(
    "slice_update",
    "int",
    lambda f, x, u: mb.slice_update(x=x, update=u, begin=[1], end=[7], stride=[3]),
    EXACT,
    x=ints(0, 9, 9),
    u=ints(0, 9, 2),
)
case(
    "slice_update",
    "bounds computed",
    lambda f, x, u, b: mb.slice_update(x=x, update=u, begin=b, end=mb.add(x=b, y=i32([1, 2]))),
    EXACT,
    x=normal(4, 6),
    u=normal(1, 2),
    b=i32([3, 2]),
)

# Gather and scatter.

for axis in (0, 1, -1):
    case(
        "gather",
        f"axis={axis}",
        lambda f, x, i, a=axis: mb.gather(x=x, indices=i, axis=a),
        EXACT,
        x=x234,
        i=i32([[0, 1], [1, -1]]),
    )
    along = ints(-1, 2, *{0: (3, 3, 4), 1: (2, 5, 4), -1: (2, 3, 2)}[axis])
    case(
        "gather_along_axis",
        f"axis={axis}",
        lambda f, x, i, a=axis: mb.gather_along_axis(x=x, indices=i, axis=a),
        EXACT,
        x=x234,
        i=along,
    )
case("gather", "one", lambda f, x: mb.gather(x=x, indices=np.int32(1), axis=1), EXACT, x=x234)
case(
    "gather",
    "batch_dims=1",
    lambda f, x, i: mb.gather(x=x, indices=i, axis=2, batch_dims=1),
    EXACT,
    x=x234,
    i=i32([[3, 0, 1], [2, 2, 0]]),
)
case(
    "gather",
    "batch_dims=1, inner",
    lambda f, x, i: mb.gather(x=x, indices=i, axis=1, batch_dims=1),
    EXACT,
    x=x234,
    i=i32([[2, 0, 1, 1], [2, 2, 0, 0]]),
)
case("gather", "int", lambda f, x, i: mb.gather(x=x, indices=i, axis=0), EXACT, x=ints(0, 99, 7), i=ints(0, 7, 4))
case(
    "gather",
    "uint8 indices",
    lambda f, x, i: mb.gather(x=x, indices=i, axis=0),
    EXACT,
    x=normal(7, 2),
    i=np.array([6, 0, 3], np.uint8),
)
case("gather", "table", lambda f, i, t=normal(20, 3): mb.gather(x=f(t), indices=i, axis=0), EXACT, i=ints(0, 20, 1, 5))
case(
    "gather_along_axis",
    "int",
    lambda f, x, i: mb.gather_along_axis(x=x, indices=i, axis=0),
    EXACT,
    x=ints(0, 99, 7),
    i=ints(0, 7, 4),
)
case(
    "gather_nd",
    "whole",
    lambda f, x, i: mb.gather_nd(x=x, indices=i),
    EXACT,
    x=x234,
    i=i32([[0, 1, 2], [1, 2, 3], [-1, 0, -4]]),
)
case("gather_nd", "part", lambda f, x, i: mb.gather_nd(x=x, indices=i), EXACT, x=x234, i=i32([[[0, 1]], [[1, 2]]]))
case(
    "gather_nd",
    "batch_dims=1",
    lambda f, x, i: mb.gather_nd(x=x, indices=i, batch_dims=1),
    EXACT,
    x=x234,
    i=i32([[[0, 1], [2, 3]], [[1, 0], [2, 2]]]),
)
case(
    "gather_nd",
    "batch_dims=1, inner",
    lambda f, x, i: mb.gather_nd(x=x, indices=i, batch_dims=1),
    EXACT,
    x=x234,
    i=i32([[[2]], [[1]]]),
)
case("gather_nd", "int", lambda f, x, i: mb.gather_nd(x=x, indices=i), EXACT, x=ints(0, 99, 3, 3), i=ints(0, 3, 4, 2))
for mode in ("update", "add", "sub", "mul", "div", "max", "min"):
    tolerance = EXACT if mode in ("update", "max", "min") else ulp(2)
    case(
        "scatter",
        f"mode={mode}",
        lambda f, d, i, u, m=mode: mb.scatter(data=d, indices=i, updates=u, axis=1, mode=m),
        tolerance,
        d=normal(2, 4, 3),
        i=i32([2, 0]),
        u=spread(0.5, 2, 2, 2, 3),
    )
    case(
        "scatter_along_axis",
        f"mode={mode}",
        lambda f, d, i, u, m=mode: mb.scatter_along_axis(data=d, indices=i, updates=u, axis=1, mode=m),
        tolerance,
        d=normal(2, 4),
        i=i32([[2, 0], [1, -1]]),
        u=spread(0.5, 2, 2, 2),
    )
    case(
        "scatter_nd",
        f"mode={mode}",
        lambda f, d, i, u, m=mode: mb.scatter_nd(data=d, indices=i, updates=u, mode=m),
        tolerance,
        d=normal(3, 4, 2),
        i=i32([[2, 0], [1, 3]]),
        u=spread(0.5, 2, 2, 2),
    )
case(
    "scatter",
    "default, axis 0, twice",
    lambda f, d, i, u: mb.scatter(data=d, indices=i, updates=u),
    SUM,
    d=normal(4, 3),
    i=i32([1, 1, -1]),
    u=normal(3, 3),
)
case(
    "scatter",
    "int",
    lambda f, d, i, u: mb.scatter(data=d, indices=i, updates=u, axis=0, mode="add"),
    EXACT,
    d=i32([2**25 + 1, 2, 3]),
    i=i32([0, 2]),
    u=i32([2, 5]),
)
case(
    "scatter",
    "indices of rank 2",
    lambda f, d, i, u: mb.scatter(data=d, indices=i, updates=u, axis=0, mode="update"),
    EXACT,
    d=normal(5, 2),
    i=i32([[0, 3], [4, 1]]),
    u=normal(2, 2, 2),
)
case(
    "scatter_along_axis",
    "axis 0",
    lambda f, d, i, u: mb.scatter_along_axis(data=d, indices=i, updates=u, axis=0, mode="update"),
    EXACT,
    d=normal(4, 2),
    i=i32([[2, 0], [1, 3]]),
    u=normal(2, 2),
)
case(
    "scatter_along_axis",
    "int",
    lambda f, d, i, u: mb.scatter_along_axis(data=d, indices=i, updates=u, axis=-1, mode="max"),
    EXACT,
    d=ints(0, 9, 5),
    i=i32([2, 0]),
    u=ints(0, 9, 2),
)
case(
    "scatter_nd",
    "int",
    lambda f, d, i, u: mb.scatter_nd(data=d, indices=i, updates=u, mode="add"),
    EXACT,
    d=ints(0, 9, 5),
    i=i32([[2], [2], [0]]),
    u=ints(0, 9, 3),
)
case(
    "scatter_nd",
    "whole rows",
    lambda f, d, i, u: mb.scatter_nd(data=d, indices=i, updates=u, mode="update"),
    EXACT,
    d=normal(4, 3),
    i=i32([[3], [0]]),
    u=normal(2, 3),
)

# Made, repeated, padded, ordered.

case("fill", "float", lambda f, x: mb.mul(x=x, y=mb.fill(shape=i32([2, 3]), value=f(1.5))), EXACT, x=normal(2, 3))
case("fill", "int", lambda f, x: mb.add(x=x, y=mb.fill(shape=i32([3]), value=np.int32(7))), EXACT, x=ints(0, 9, 3))
case(
    "fill",
    "shape computed",
    lambda f, x: mb.reshape(x=mb.fill(shape=mb.shape(x=x), value=f(2.5)), shape=[2, 3]),
    EXACT,
    x=normal(2, 3),
)
case("fill_like", "float", lambda f, x: mb.fill_like(ref_tensor=x, value=f(-0.75)), EXACT, x=normal(2, 3))
case("fill_like", "int", lambda f, x: mb.fill_like(ref_tensor=x, value=np.int32(3)), EXACT, x=normal(2, 3))
case("fill_like", "bool", lambda f, x: mb.fill_like(ref_tensor=x, value=True), EXACT, x=ints(0, 9, 2, 3))
for axis in (0, 1, -1):
    case(
        "one_hot",
        f"axis={axis}",
        lambda f, i, a=axis: mb.one_hot(
            indices=i, one_hot_vector_size=np.int32(4), axis=a, on_value=np.int32(5), off_value=np.int32(-1)
        ),
        EXACT,
        i=ints(0, 4, 2, 3),
    )
    case(
        "one_hot",
        f"float, axis={axis}",
        lambda f, x, i, a=axis: mb.one_hot(
            indices=i, one_hot_vector_size=np.int32(4), axis=a, on_value=f(0.5), off_value=f(-1.5)
        ),
        EXACT,
        x=normal(1),
        i=ints(0, 4, 2, 3),
    )
case(
    "one_hot", "defaults", lambda f, i: mb.one_hot(indices=i, one_hot_vector_size=np.int32(3)), EXACT, i=i32([0, 2, -1])
)
for mode in ("constant", "reflect", "replicate"):
    case("pad", f"mode={mode}", lambda f, x, m=mode: mb.pad(x=x, pad=[1, 2, 3, 0], mode=m), EXACT, x=normal(2, 3, 5))
    case("pad", f"mode={mode}, one axis", lambda f, x, m=mode: mb.pad(x=x, pad=[2, 3], mode=m), EXACT, x=normal(2, 5))
case(
    "pad",
    "value",
    lambda f, x: mb.pad(x=x, pad=[1, 0, 0, 1, 2, 2], mode="constant", constant_val=f(-1.25)),
    EXACT,
    x=normal(2, 3, 2),
)
case("pad", "minus infinity", lambda f, x: mb.pad(x=x, pad=[1, 1], constant_val=f(-INF)), EXACT, x=normal(3))
case("pad", "nothing", lambda f, x: mb.pad(x=x, pad=[0, 0, 0, 0]), EXACT, x=normal(2, 3))
case(
    "range_1d",
    "int",
    lambda f, x: mb.add(x=x, y=mb.range_1d(start=np.int32(2), end=np.int32(11), step=np.int32(3))),
    EXACT,
    x=ints(0, 9, 3),
)
case(
    "range_1d",
    "float",
    lambda f, x: mb.add(x=x, y=mb.range_1d(start=f(0.5), end=f(2.5), step=f(0.75))),
    EXACT,
    x=[0.0, 0.0, 0.0],
)
case(
    "range_1d",
    "backwards",
    lambda f, x: mb.add(x=x, y=mb.range_1d(start=np.int32(9), end=np.int32(0), step=np.int32(-4))),
    EXACT,
    x=ints(0, 9, 3),
)
case(
    "range_1d",
    "end computed",
    lambda f, x: mb.reshape(x=mb.range_1d(start=np.int32(0), end=mb.squeeze(x=x), step=np.int32(1)), shape=[5]),
    EXACT,
    x=i32([5]),
)
case("tile", "", lambda f, x: mb.tile(x=x, reps=[2, 1, 3]), EXACT, x=x234)
case("tile", "int", lambda f, x: mb.tile(x=x, reps=[3]), EXACT, x=ints(0, 9, 4))
case("tile", "bool", lambda f, x: mb.tile(x=x, reps=[1, 2]), EXACT, x=ints(0, 2, 2, 2) != 0)
for axis in (0, 1, -1):
    for exclusive in (False, True):
        for reverse in (False, True):
            case(
                "cumsum",
                f"axis={axis},exclusive={exclusive},reverse={reverse}",
                lambda f, x, a=axis, e=exclusive, r=reverse: mb.cumsum(x=x, axis=a, exclusive=e, reverse=r),
                SUM,
                x=x234,
            )
case("cumsum", "int", lambda f, x: mb.cumsum(x=x, axis=0), EXACT, x=i32([2**25, 1, 1, -7]))
for axis in (0, 1, -1):
    for ascending in (False, True):
        case(
            "argsort",
            f"axis={axis},ascending={ascending}",
            lambda f, x, a=axis, s=ascending: mb.argsort(x=x, axis=a, ascending=s),
            EXACT,
            x=x234,
        )
        case(
            "topk",
            f"axis={axis},ascending={ascending}",
            lambda f, x, a=axis, s=ascending: mb.topk(x=x, k=2, axis=a, ascending=s),
            EXACT,
            x=x234,
        )
for ascending in (False, True):
    ties = [[1.0, 3.0, 1.0, 3.0, 2.0, 1.0], [0.0, -0.0, 0.0, -1.0, 0.0, -0.0]]
    case(
        "argsort", f"ties,ascending={ascending}", lambda f, x, s=ascending: mb.argsort(x=x, ascending=s), EXACT, x=ties
    )
    case("topk", f"ties,ascending={ascending}", lambda f, x, s=ascending: mb.topk(x=x, k=4, ascending=s), EXACT, x=ties)
    case(
        "argsort",
        f"int,ascending={ascending}",
        lambda f, x, s=ascending: mb.argsort(x=x, ascending=s),
        EXACT,
        x=i32([2**24, 2**24 + 1, -4, 2**24 + 2]),
    )
    case(
        "topk",
        f"int,ascending={ascending}",
        lambda f, x, s=ascending: mb.topk(x=x, k=2, ascending=s),
        EXACT,
        x=i32([2**24, 2**24 + 1, -4, 2**24 + 2]),
    )
case("topk", "unsorted", lambda f, x: mb.topk(x=x, k=3, sort=False), EXACT, x=normal(2, 7))
case("topk", "values only", lambda f, x: mb.topk(x=x, k=3, return_indices=False), EXACT, x=normal(2, 7))
case("topk", "uint16", lambda f, x: mb.topk(x=x, k=3, output_indices_dtype="uint16"), EXACT, x=normal(2, 7))
case("topk", "all", lambda f, x: mb.topk(x=x, k=5, axis=0), EXACT, x=normal(5, 2))
for lower, upper in ((-1, -1), (0, -1), (-1, 0), (1, 1), (0, 0), (2, 0)):
    case(
        "band_part",
        f"lower={lower},upper={upper}",
        lambda f, x, lo=lower, up=upper: mb.band_part(x=x, lower=lo, upper=up),
        EXACT,
        x=normal(2, 4, 5),
    )
case("band_part", "int", lambda f, x: mb.band_part(x=x, lower=0, upper=-1), EXACT, x=ints(1, 9, 3, 3))

# Quantized values.

for out in ("int8", "uint8"):
    low, high = (-9, 9) if out == "int8" else (-3, 12)
    zero = np.dtype(out).type(3)
    case(
        "quantize",
        f"{out}, one scale",
        lambda f, x, o=out, z=zero: mb.quantize(input=x, scale=f(0.0625), zero_point=z, output_dtype=o),
        EXACT,
        x=spread(low, high, 3, 5),
    )
    case(
        "quantize",
        f"{out}, axis",
        lambda f, x, o=out: mb.quantize(
            input=x, scale=f([0.0625, 0.25, 0.5]), axis=0, zero_point=np.array([1, 0, 7], o), output_dtype=o
        ),
        EXACT,
        x=spread(low, high, 3, 5),
    )
    case(
        "quantize",
        f"{out}, no zero point",
        lambda f, x, o=out: mb.quantize(input=x, scale=f(0.125), output_dtype=o),
        EXACT,
        x=spread(low, high, 3, 5),
    )
    data = ints(-128, 128, 3, 5).astype(np.int8) if out == "int8" else ints(0, 256, 3, 5).astype(np.uint8)
    case(
        "dequantize",
        f"{out}, one scale",
        lambda f, d, x, z=zero: mb.dequantize(input=d, scale=f(0.0123), zero_point=z),
        ulp(1),
        d=data,
        x=normal(1),
    )
    case(
        "dequantize",
        f"{out}, axis",
        lambda f, d, x, o=out: mb.dequantize(
            input=d, scale=f([0.1, 0.2, 0.3, 0.4, 0.5]), axis=-1, zero_point=np.array([1, 0, 7, 2, 9], o)
        ),
        ulp(1),
        d=data,
        x=normal(1),
    )
    case(
        "dequantize",
        f"{out}, no zero point",
        lambda f, d, x: mb.dequantize(input=d, scale=f([0.1, 0.2, 0.3]), axis=0),
        ulp(1),
        d=data,
        x=normal(1),
    )

# Compressed constants. An addition makes them an output.


def compressed(
    op: str, variant: str, build: Callable[[Any], Any], shape: tuple[int, ...], target: str = "iOS18"
) -> None:
    """A constant, added to zeros."""
    case(op, variant, lambda f, x: mb.add(x=x, y=build(f)), ulp(1), x=np.zeros(shape), target=target)


def packed(indices: Array, bits: int) -> Array:
    """The iOS 16 opset's packing: low bits first."""
    flat = indices.reshape(-1, 1).astype(np.int64) >> np.arange(bits) & 1
    return np.packbits(flat.reshape(-1).astype(np.uint8), bitorder="little")


def sub_byte(values: Array, dtype: str) -> Array:
    """Values of a dtype that numpy lacks."""
    return values.astype(types.nptype_from_builtin(types.string_to_builtin(dtype)))


for kind, low, high in (("int8", -128, 128), ("uint8", 0, 256)):
    data = ints(low, high, 6, 8).astype(kind)
    compressed(
        "constexpr_affine_dequantize",
        f"{kind}, axis 0",
        lambda f, d=data, k=kind: mb.constexpr_affine_dequantize(
            quantized_data=d, scale=f(spread(0.01, 0.02, 6)), zero_point=ints(0, 9, 6).astype(k), axis=np.int32(0)
        ),
        (6, 8),
        "iOS16",
    )
    compressed(
        "constexpr_affine_dequantize",
        f"{kind}, axis -1",
        lambda f, d=data, k=kind: mb.constexpr_affine_dequantize(
            quantized_data=d, scale=f(spread(0.01, 0.02, 8)), zero_point=ints(0, 9, 8).astype(k), axis=np.int32(-1)
        ),
        (6, 8),
        "iOS16",
    )
    compressed(
        "constexpr_affine_dequantize",
        f"{kind}, one",
        lambda f, d=data, k=kind: mb.constexpr_affine_dequantize(
            quantized_data=d, scale=f(0.0123), zero_point=np.dtype(k).type(5), axis=np.int32(0)
        ),
        (6, 8),
        "iOS16",
    )
    compressed(
        "constexpr_affine_dequantize",
        f"{kind}, one zero point",
        lambda f, d=data, k=kind: mb.constexpr_affine_dequantize(
            quantized_data=d, scale=f(spread(0.01, 0.02, 6)), zero_point=np.dtype(k).type(5), axis=np.int32(0)
        ),
        (6, 8),
        "iOS16",
    )
case(
    "constexpr_cast",
    "",
    lambda f, x, v=normal(4, 5): (
        mb.add(x=x, y=mb.cast(x=mb.constexpr_cast(source_val=v.astype(np.float16), output_dtype="fp32"), dtype="fp32"))
        if f.dtype is np.float32
        else mb.add(
            x=x, y=mb.cast(x=mb.constexpr_cast(source_val=v.astype(np.float16), output_dtype="fp32"), dtype="fp16")
        )
    ),
    ulp(1),
    x=np.zeros((4, 5)),
    target="iOS16",
)
for bits in (1, 2, 4, 6, 8):
    table, indices = normal(2**bits), ints(0, 2**bits, 3, 7)
    compressed(
        "constexpr_lut_to_dense",
        f"iOS16, {bits} bits",
        lambda f, t=table, i=indices, b=bits: mb.constexpr_lut_to_dense(
            lut=f(t), indices=packed(i, b), shape=np.array([3, 7], np.uint32)
        ),
        (3, 7),
        "iOS16",
    )
for bits in (1, 2, 3, 4, 6, 8):
    indices = sub_byte(ints(0, 2**bits, 6, 8), f"uint{bits}")
    for label, tables in (("one table", (1, 1)), ("rows", (3, 1)), ("blocks", (2, 4))):
        compressed(
            "constexpr_lut_to_dense",
            f"uint{bits}, {label}",
            lambda f, i=indices, t=normal(*tables, 2**bits, 1): mb.constexpr_lut_to_dense(indices=i, lut=f(t)),
            (6, 8),
        )
    for axis in (0, 1):
        shape = (12, 8) if axis == 0 else (6, 16)
        compressed(
            "constexpr_lut_to_dense",
            f"uint{bits}, vectors on axis {axis}",
            lambda f, i=indices, t=normal(1, 2, 2**bits, 2), a=axis: mb.constexpr_lut_to_dense(
                indices=i, lut=f(t), vector_axis=np.int32(a)
            ),
            shape,
        )
for kind, low, high in (("int4", -8, 8), ("uint4", 0, 16), ("int8", -128, 128), ("uint8", 0, 256)):
    data = sub_byte(ints(low, high, 6, 8), kind)
    for label, blocks in (
        ("one scale", (1, 1)),
        ("rows", (6, 1)),
        ("columns", (1, 8)),
        ("blocks", (3, 2)),
        ("elements", (6, 8)),
    ):
        scale, offset = spread(0.01, 0.03, *blocks), sub_byte(ints(max(low, 0), 7, *blocks), kind)
        compressed(
            "constexpr_blockwise_shift_scale",
            f"{kind}, {label}",
            lambda f, d=data, s=scale: mb.constexpr_blockwise_shift_scale(data=d, scale=f(s)),
            (6, 8),
        )
        compressed(
            "constexpr_blockwise_shift_scale",
            f"{kind}, {label}, offset",
            lambda f, d=data, s=scale, o=offset: mb.constexpr_blockwise_shift_scale(data=d, scale=f(s), offset=o),
            (6, 8),
        )
compressed(
    "constexpr_blockwise_shift_scale",
    "float offset",
    lambda f, d=sub_byte(ints(0, 16, 6, 8), "uint4"): mb.constexpr_blockwise_shift_scale(
        data=d, scale=f(spread(0.1, 0.2, 6, 1)), offset=f(normal(6, 1))
    ),
    (6, 8),
)
compressed(
    "constexpr_blockwise_shift_scale",
    "odd",
    lambda f, d=sub_byte(ints(-8, 8, 5, 3), "int4"): mb.constexpr_blockwise_shift_scale(
        data=d, scale=f(spread(0.1, 0.2, 5, 1))
    ),
    (5, 3),
)
compressed(
    "constexpr_blockwise_shift_scale",
    "rank 4",
    lambda f, d=ints(-128, 128, 4, 6, 1, 1).astype(np.int8): mb.constexpr_blockwise_shift_scale(
        data=d, scale=f(spread(0.1, 0.2, 4, 2, 1, 1))
    ),
    (4, 6, 1, 1),
)
mask = ints(0, 2, 5, 7)
values = normal(int(mask.sum()))
compressed(
    "constexpr_sparse_to_dense",
    "iOS16",
    lambda f: mb.constexpr_sparse_to_dense(
        nonzero_data=f(values), mask=packed(mask, 1), shape=np.array([5, 7], np.uint32)
    ),
    (5, 7),
    "iOS16",
)
compressed(
    "constexpr_sparse_to_dense",
    "iOS18",
    lambda f: mb.constexpr_sparse_to_dense(nonzero_data=f(values), mask=sub_byte(mask, "uint1")),
    (5, 7),
)
sparse4 = sub_byte(ints(-8, 8, int(mask.sum())), "int4")
compressed(
    "constexpr_sparse_to_dense",
    "int4",
    lambda f: mb.constexpr_blockwise_shift_scale(
        data=mb.constexpr_sparse_to_dense(nonzero_data=sparse4, mask=sub_byte(mask, "uint1")),
        scale=f(spread(0.1, 0.2, 5, 1)),
    ),
    (5, 7),
)
quantized = ints(-128, 128, 24, 40).astype(np.int8)
for label, op in (
    ("int8 rows", lambda f: mb.constexpr_blockwise_shift_scale(data=quantized, scale=f(spread(0.01, 0.02, 24, 1)))),
    ("int8 blocks", lambda f: mb.constexpr_blockwise_shift_scale(data=quantized, scale=f(spread(0.01, 0.02, 24, 5)))),
):
    for n in (1, 3, 9):
        case(
            "constexpr_blockwise_shift_scale",
            f"linear, {label}, {n} rows",
            lambda f, x, op=op: mb.linear(x=x, weight=op(f)),
            SUM,
            x=normal(n, 40),
        )


def main(folder: Path) -> None:
    """Writes every case."""
    output, failures = Output(folder), []
    for number, one in enumerate(CASES):
        for dtype in (np.float16, np.float32) if one.floats else (np.float32,):
            # Cases that draw random numbers while they are built get the same ones in both dtypes.
            global _RANDOM
            _RANDOM = np.random.default_rng(number)
            inputs = {
                name: value.astype(dtype) if value.dtype.kind == "f" else value for name, value in one.inputs.items()
            }

            def f(value: Any, dtype: Any = dtype) -> Any:
                return np.asarray(value, dtype)[()]

            f.dtype = dtype  # type: ignore[attr-defined]
            label = f"{one.name} {np.dtype(dtype).name}" if one.floats else one.name
            try:
                authored = program(lambda one=one, f=f, **given: one.build(f, **given), inputs, one.target)
                given = {
                    name: value if value.dtype.kind == "f" else value.astype(np.int32) for name, value in inputs.items()
                }
                function = authored.functions["main"]
                outputs = {
                    arithmetic: expected(function, given, rounded)
                    for arithmetic, rounded in (("f32", False), ("fp16", True))
                }
                output.package(f"{len(output.cases):04}", authored, one.target)
            except Exception as error:
                failures.append(f"{label}: {type(error).__name__}: {error}")
                continue
            output.case(
                f"{len(output.cases):04}",
                [{"inputs": given, "outputs": outputs}],
                label=label,
                op=one.op,
                half=one.floats and dtype is np.float16,
                tolerance=one.tolerance,
            )
    if failures:
        sys.exit("\n".join(failures))
    output.write()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
