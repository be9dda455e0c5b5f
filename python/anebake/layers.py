"""What blocks and the head are made of: each helper appends ops to the function being authored.

Layout is (1, channels, 1, tokens) unless said otherwise. `Var` is a value of the graph. Every dtype is that of the
helper's input; every const that carries a weight or a table goes through `weight` or `table`, so that functions of
one program can share it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

from anebake.request import BlockRequest, Request, const_name

Var = Any
"""A coremltools `Var`; coremltools carries no types."""


class Quantized(NamedTuple):
    """A projection weight as integers: int8 `data` [out, in] (int4 keeps one value a byte) and `scale`
    [out or 1, blocks], in the compute dtype.
    """

    data: npt.NDArray[Any]
    scale: npt.NDArray[Any]


Weight = npt.NDArray[Any] | Quantized
"""A tensor as it is stored: [out, in] or [n], in the compute dtype unless quantized."""


def scalar(value: float, like: Var) -> Any:
    """`value` as a numpy scalar of the dtype of `like`: MIL refuses operands of different dtypes."""
    return types.nptype_from_builtin(like.dtype)(value)


def cast(x: Var, dtype: npt.DTypeLike, name: str) -> Var:
    """`x` as float16 or float32; nothing is added where it already is."""
    wanted = "fp16" if np.dtype(dtype) == np.float16 else "fp32"
    return x if types.builtin_to_string(x.dtype) == wanted else mb.cast(x=x, dtype=wanted, name=name)


def to_channels(x: Var) -> Var:
    """(1, tokens, hidden) to (1, hidden, 1, tokens)."""
    return mb.expand_dims(x=mb.transpose(x=x, perm=[0, 2, 1], name="channels_first"), axes=[2], name="channels")


def from_channels(x: Var, name: str) -> Var:
    """(1, hidden, 1, tokens) to (1, tokens, hidden)."""
    return mb.transpose(x=mb.squeeze(x=x, axes=[2], name=name + "_squeezed"), perm=[0, 2, 1], name=name)


def leave(x: Var, name: str, form: Callable[[Var, str], Var]) -> Var:
    """The output `name`: what `form` makes of `x`, in float16. `form` is given the name of its last op."""
    if types.builtin_to_string(x.dtype) == "fp16":
        return form(x, name)
    return cast(form(x, name + "_compute"), np.float16, name)


def pad(x: Var, axis: int, count: int, name: str) -> Var:
    """`x` with `count` zeros behind the others on one of its last two axes; nothing is added where it is 0."""
    if count == 0:
        return x
    pairs = [0, count, 0, 0] if axis == len(x.shape) - 2 else [0, 0, 0, count]
    return mb.pad(x=x, pad=pairs, mode="constant", constant_val=scalar(0.0, x), name=name)


def rms_norm_max_scaled(x: Var, gain: Var, axis: int, eps: float, name: str) -> Var:
    """`x / sqrt(mean(x^2) + eps) * gain` over `axis`, with every intermediate inside float16 for |x| <= 65504.

    With m = max(max|x|, sqrt(eps)) this is `x/m / sqrt(mean((x/m)^2) + (sqrt(eps)/m)^2) * gain`, exact for any m; the
    floor keeps a row of zeros at zero.
    """
    root_eps = scalar(float(np.sqrt(eps)), x)
    largest = mb.reduce_max(x=mb.abs(x=x, name=name + "_abs"), axes=[axis], keep_dims=True, name=name + "_largest")
    largest = mb.maximum(x=largest, y=root_eps, name=name + "_divisor")
    scaled = mb.real_div(x=x, y=largest, name=name + "_scaled")
    squares = mb.mul(x=scaled, y=scaled, name=name + "_squares")
    mean = mb.reduce_mean(x=squares, axes=[axis], keep_dims=True, name=name + "_mean")
    rest = mb.real_div(x=root_eps, y=largest, name=name + "_root_eps")
    mean = mb.add(x=mean, y=mb.mul(x=rest, y=rest, name=name + "_eps"), name=name + "_mean_eps")
    # rsqrt adds 1e-12 unless told otherwise; float16 cannot hold that, and the sum is never 0.
    inverse = mb.rsqrt(x=mean, epsilon=scalar(0.0, x), name=name + "_inverse")
    return mb.mul(x=mb.mul(x=scaled, y=inverse, name=name + "_unit"), y=gain, name=name)


def rms_norm_layer_norm_pair(x: Var, gain: Var, axis: int, eps: float, name: str) -> Var:
    """The same as `layer_norm` over [x, -x]: the mean of the pair is 0, its variance mean(x^2)."""
    negative = mb.mul(x=x, y=scalar(-1.0, x), name=name + "_negative")
    pair = mb.concat(values=[x, negative], axis=axis, name=name + "_pair")
    pair = mb.layer_norm(x=pair, axes=[axis], epsilon=scalar(eps, x), name=name + "_normed")
    unit = mb.slice_by_size(x=pair, begin=[0] * len(x.shape), size=list(x.shape), name=name + "_unit")
    return mb.mul(x=unit, y=gain, name=name)


NORMS: Mapping[str, Callable[[Var, Var, int, float, str], Var]] = {
    "max_scaled": rms_norm_max_scaled,
    "layer_norm_pair": rms_norm_layer_norm_pair,
}


def rope_halves(x: Var, cos: Var, sin: Var, axis: int, name: str) -> Var:
    """`x * cos + rotate_half(x) * sin`, head_dim on `axis`; cos and sin broadcast against `x`."""
    half = x.shape[axis] // 2
    size = [half if i == axis else n for i, n in enumerate(x.shape)]
    begin = [half if i == axis else 0 for i in range(len(size))]
    low = mb.slice_by_size(x=x, begin=[0] * len(size), size=size, name=name + "_low")
    high = mb.slice_by_size(x=x, begin=begin, size=size, name=name + "_high")
    negative = mb.mul(x=high, y=scalar(-1.0, x), name=name + "_negative")
    rotated = mb.concat(values=[negative, low], axis=axis, name=name + "_rotated")
    kept = mb.mul(x=x, y=cos, name=name + "_cos")
    return mb.add(x=kept, y=mb.mul(x=rotated, y=sin, name=name + "_sin"), name=name)


def grouped_attention(q: Var, k: Var, v: Var, mask: Var, head_dim: int) -> Var:
    """Attention of q (1, heads, S, d) over k and v (1, kv_heads, T, d) with an additive mask (1, 1, S, T); gives
    (1, heads * head_dim, 1, S). Beyond head_dim, d holds zeros. K and V are not repeated: the query heads of one KV
    head become rows of one matmul.
    """
    _, heads, tokens, width = q.shape
    _, kv_heads, length, _ = k.shape
    rows = heads // kv_heads * tokens
    q = mb.mul(x=q, y=scalar(head_dim**-0.5, q), name="query_scaled")
    q = mb.reshape(x=q, shape=[1, kv_heads, rows, width], name="query_groups")
    scores = mb.matmul(x=q, y=k, transpose_y=True, name="scores")
    if tokens > 1:
        scores = mb.reshape(x=scores, shape=[1, heads, tokens, length], name="scores_heads")
    scores = mb.softmax(x=mb.add(x=scores, y=mask, name="scores_masked"), axis=-1, name="probabilities")
    if tokens > 1:
        scores = mb.reshape(x=scores, shape=[1, kv_heads, rows, length], name="probability_groups")
    mixed = mb.matmul(x=scores, y=v, name="mixed")
    mixed = mb.reshape(x=mixed, shape=[1, heads, tokens, width], name="mixed_heads")
    mixed = mb.transpose(x=mixed, perm=[0, 1, 3, 2], name="mixed_channels")
    if width != head_dim:
        size = [1, heads, head_dim, tokens]
        mixed = mb.slice_by_size(x=mixed, begin=[0, 0, 0, 0], size=size, name="mixed_unpadded")
    return mb.reshape(x=mixed, shape=[1, heads * head_dim, 1, tokens], name="attention")


class Author:
    """Authors the body of one function: knows the request and the tensors. `shared` collects the names of the consts
    that functions of one program share.
    """

    def __init__(self, request: Request, weights: Mapping[str, Weight]) -> None:
        self.request = request
        self.weights = weights
        self.shared: set[str] = set()

    def table(self, values: npt.NDArray[Any], name: str) -> Var:
        """A const that all functions share."""
        self.shared.add(name)
        return mb.const(val=values, name=name)

    def weight(self, role: str, shape: tuple[int, ...]) -> Var:
        """The tensor `role`, reshaped to `shape`; dequantized in the graph where it is quantized."""
        weight, name = self.weights[role], const_name(role)
        if not isinstance(weight, Quantized):
            return self.table(weight.reshape(shape), name)
        self.shared.add(name + "_quantized")
        return mb.constexpr_blockwise_shift_scale(
            data=weight.data.reshape(shape),
            scale=weight.scale.reshape(*weight.scale.shape, 1, 1),
            name=name + "_quantized",
        )

    def projection(self, x: Var, role: str, *, bias: bool = False) -> Var:
        """The linear layer `role` as a 1x1 convolution: (1, in, 1, S) to (1, out, 1, S)."""
        weight = self.weights[role + ".weight"]
        out, columns = (weight.data if isinstance(weight, Quantized) else weight).shape
        kernel = self.weight(role + ".weight", (out, columns, 1, 1))
        name = role.rsplit(".", maxsplit=1)[-1]
        if bias:
            return mb.conv(x=x, weight=kernel, bias=self.weight(role + ".bias", (out,)), name=name)
        return mb.conv(x=x, weight=kernel, name=name)

    def norm(self, x: Var, role: str, axis: int = 1) -> Var:
        """RMSNorm `role` over `axis`, in the form that the request names."""
        gain = self.weight(role + ".weight", tuple(n if i == axis else 1 for i, n in enumerate(x.shape)))
        name = role.rsplit(".", maxsplit=1)[-1]
        return NORMS[self.request.norm](x, gain, axis, self.request.rms_norm_eps, name)


class BlockAuthor(Author):
    """Authors a block; knows on which axis the cache variant wants head_dim."""

    request: BlockRequest

    def __init__(self, request: BlockRequest, weights: Mapping[str, Weight], head_axis: int) -> None:
        super().__init__(request, weights)
        self.head_axis = head_axis

    def heads(self, x: Var, count: int, name: str) -> Var:
        """(1, count * d, 1, S) to (1, count, S, d), or (1, count, d, S) where the cache variant wants that."""
        x = mb.reshape(x=x, shape=[1, count, self.request.head_dim, x.shape[3]], name=name + "_heads")
        return x if self.head_axis == 2 else mb.transpose(x=x, perm=[0, 1, 3, 2], name=name + "_rows")

    def head_norm(self, x: Var, role: str) -> Var:
        """RMSNorm `role` over each head of what `heads` gave."""
        return self.norm(x, role, self.head_axis)

    def add(self, x: Var, y: Var, name: str) -> Var:
        """x + y."""
        return mb.add(x=x, y=y, name=name)

    def gated_silu(self, gate: Var, up: Var) -> Var:
        """silu(gate) * up."""
        return mb.mul(x=mb.silu(x=gate, name="gate"), y=up, name="gated")
