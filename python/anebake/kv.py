"""Where keys and values live between calls. A variant is a class: what it adds to a block's interface, and attention
from unrotated heads to the input of o_proj. Architectures know only `Cache`.

A function has `rows` rows, of which a call may fill fewer: the rest is padding, finite values that no real row sees.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

from anebake import rope
from anebake.layers import Author, Var, cast, grouped_attention, leave, pad, rope_halves
from anebake.request import BlockRequest

Interface = Mapping[str, tuple[tuple[int, ...], Any]]
"""Name to (shape, MIL dtype)."""


class Cache(Protocol):
    """A cache variant. `head_axis` is the axis on which it wants head_dim (2 or 3)."""

    head_axis: int

    def inputs(self, rows: int) -> Interface:
        """The inputs of a function of `rows` rows, hidden_state excepted."""

    def states(self) -> Interface:
        """The states, shared by all functions."""

    def attend(self, author: Author, values: Mapping[str, Var], q: Var, k: Var, v: Var) -> tuple[Var, Sequence[Var]]:
        """Rotates q and k, stores k and v, attends: gives (1, heads * head_dim, 1, S), and outputs of the function,
        named. `values` are its inputs and states by name.
        """


class SliceCache:
    """States [1, kv_heads, context, head_dim] in float16, written by `slice_update` at `position_offset`; rows of the
    RoPE table are cut out with `slice_by_size` at the same place. Every row is written, padding included:
    `position_offset + rows` must not pass context.
    """

    head_axis = 3

    def __init__(self, request: BlockRequest) -> None:
        self.request = request
        self.cos, self.sin = rope.tables(request)

    def inputs(self, rows: int) -> Interface:
        """`causal_mask` float16 [1, 1, rows, context] and `position_offset` int32 [1]."""
        return {
            "causal_mask": ((1, 1, rows, self.request.context), types.fp16),
            "position_offset": ((1,), types.int32),
        }

    def states(self) -> Interface:
        """`k_cache` and `v_cache`, float16 [1, kv_heads, context, head_dim]; they start as zeros."""
        shape = (1, self.request.kv_heads, self.request.context, self.request.head_dim)
        return {"k_cache": (shape, types.fp16), "v_cache": (shape, types.fp16)}

    def attend(self, author: Author, values: Mapping[str, Var], q: Var, k: Var, v: Var) -> tuple[Var, Sequence[Var]]:
        """See `Cache`; q, k and v are (1, n, S, head_dim)."""
        position, tokens, width = values["position_offset"], q.shape[2], self.request.head_dim
        row = mb.concat(values=[position, _ints(0)], axis=0, name="rope_begin")
        cos = mb.slice_by_size(x=author.table(self.cos, "rope_cos"), begin=row, size=[tokens, width], name="cos")
        sin = mb.slice_by_size(x=author.table(self.sin, "rope_sin"), begin=row, size=[tokens, width], name="sin")
        q, k = rope_halves(q, cos, sin, 3, "q_rope"), rope_halves(k, cos, sin, 3, "k_rope")
        after = mb.add(x=position, y=_ints(tokens), name="position_end")
        begin = mb.concat(values=[_ints(0, 0), position, _ints(0)], axis=0, name="write_begin")
        end = mb.concat(values=[_ints(1, self.request.kv_heads), after, _ints(width)], axis=0, name="write_end")
        k = self._store(values["k_cache"], k, begin, end, "k")
        v = self._store(values["v_cache"], v, begin, end, "v")
        mask = cast(values["causal_mask"], self.request.compute, "mask_compute")
        return grouped_attention(q, k, v, mask, width), []

    def _store(self, state: Var, new: Var, begin: Var, end: Var, name: str) -> Var:
        """Writes `new` (1, kv_heads, S, head_dim) into `state`; gives the whole cache in the compute dtype."""
        cache = mb.read_state(input=state, name=name + "_read")
        new = cast(new, np.float16, name + "_stored")
        cache = mb.slice_update(x=cache, update=new, begin=begin, end=end, name=name + "_written")
        cache = mb.coreml_update_state(state=state, value=cache, name=name + "_all")
        return cast(cache, self.request.compute, name + "_compute")


class MaskCache:
    """States [1, kv_heads, context, width] in float16, rewritten as a whole: rows that `write_mask` names are replaced,
    all others kept. Positions are nowhere in the graph: the caller gives cos, sin and the mask of the step. In float16
    no op gives an integer or a bool, and none casts. The padding's columns of `write_mask` are zeros: nothing of it is
    stored, and rows may pass context.

    `width` is head_dim, or the next multiple of 32 that the Neural Engine asks of a state's last axis. There q, k and v
    are padded with zeros on axis 2, while head_dim lies there, and what attention gives is cut on axis 2 again: no op
    cuts the last axis. The zeros add nothing to a product, so the padding changes no bit.
    """

    head_axis = 2

    def __init__(self, request: BlockRequest) -> None:
        self.request = request
        self.width = -(-request.head_dim // STATE_ALIGNMENT) * STATE_ALIGNMENT

    def inputs(self, rows: int) -> Interface:
        """`causal_mask` float16 [1, 1, rows, context]; `rope_cos` and `rope_sin` float16 [1, 1, rows, head_dim], the
        table's rows at the positions; `write_mask` float16 [1, 1, context, rows], 1 at (position, row), else 0.
        """
        context = self.request.context
        return {
            "causal_mask": ((1, 1, rows, context), types.fp16),
            **rope_inputs(self.request, rows),
            "write_mask": ((1, 1, context, rows), types.fp16),
        }

    def states(self) -> Interface:
        """`k_cache` and `v_cache`, float16 [1, kv_heads, context, width]; they start as zeros."""
        shape = (1, self.request.kv_heads, self.request.context, self.width)
        return {"k_cache": (shape, types.fp16), "v_cache": (shape, types.fp16)}

    def attend(self, author: Author, values: Mapping[str, Var], q: Var, k: Var, v: Var) -> tuple[Var, Sequence[Var]]:
        """See `Cache`; q, k and v are (1, n, head_dim, S)."""
        del author
        q, k = rotated(self.request, values, {"q_rope": q, "k_rope": k})
        more = self.width - self.request.head_dim
        q, k, v = pad(q, 2, more, "q_padded"), pad(k, 2, more, "k_padded"), pad(v, 2, more, "v_padded")
        write = values["write_mask"]
        written = write if write.shape[3] == 1 else mb.reduce_sum(x=write, axes=[3], keep_dims=True, name="write_rows")
        keep = mb.sub(x=np.float16(1), y=written, name="keep_rows")
        k = self._store(values["k_cache"], k, write, keep, "k")
        v = self._store(values["v_cache"], v, write, keep, "v")
        q = mb.transpose(x=q, perm=[0, 1, 3, 2], name="q_rows")
        mask = cast(values["causal_mask"], self.request.compute, "mask_compute")
        return grouped_attention(q, k, v, mask, self.request.head_dim), []

    def _store(self, state: Var, new: Var, write: Var, keep: Var, name: str) -> Var:
        """Writes `new` (1, kv_heads, width, S) into `state`; gives the whole cache in the compute dtype."""
        cache = mb.read_state(input=state, name=name + "_read")
        cache = mb.mul(x=cache, y=keep, name=name + "_kept")
        new = cast(new, np.float16, name + "_stored")
        placed = mb.matmul(x=write, y=new, transpose_y=True, name=name + "_placed")
        cache = mb.add(x=cache, y=placed, name=name + "_written")
        cache = mb.coreml_update_state(state=state, value=cache, name=name + "_all")
        return cast(cache, self.request.compute, name + "_compute")


class IoCache:
    """No states: the caller holds the cache, gives all of it, and is given the new rows to put into it. Columns of
    `causal_mask` are the past's positions, then the call's own rows. As with `MaskCache`, positions are nowhere in the
    graph and no op gives anything but a float. The caller stores the rows of real tokens alone.
    """

    head_axis = 2

    def __init__(self, request: BlockRequest) -> None:
        self.request = request

    def inputs(self, rows: int) -> Interface:
        """`causal_mask` float16 [1, 1, rows, context + rows]; `rope_cos` and `rope_sin` float16 [1, 1, rows, head_dim],
        the table's rows at the positions; `k_past` and `v_past` float16 [1, kv_heads, context, head_dim], zeros where
        nothing is stored yet.
        """
        request = self.request
        past = ((1, request.kv_heads, request.context, request.head_dim), types.fp16)
        return {
            "causal_mask": ((1, 1, rows, request.context + rows), types.fp16),
            **rope_inputs(request, rows),
            "k_past": past,
            "v_past": past,
        }

    def states(self) -> Interface:
        """None."""
        return {}

    def attend(self, author: Author, values: Mapping[str, Var], q: Var, k: Var, v: Var) -> tuple[Var, Sequence[Var]]:
        """See `Cache`; q, k and v are (1, n, head_dim, S). Gives `k_new` and `v_new`, float16 [1, kv_heads, rows,
        head_dim].
        """
        del author
        q, k = rotated(self.request, values, {"q_rope": q, "k_rope": k})
        k_new, v_new = self._new(k, "k_new"), self._new(v, "v_new")
        k, v = self._joined(values["k_past"], k_new, "k"), self._joined(values["v_past"], v_new, "v")
        q = mb.transpose(x=q, perm=[0, 1, 3, 2], name="q_rows")
        mask = cast(values["causal_mask"], self.request.compute, "mask_compute")
        return grouped_attention(q, k, v, mask, self.request.head_dim), [k_new, v_new]

    def _new(self, x: Var, name: str) -> Var:
        """(1, kv_heads, head_dim, S) to the output `name`."""
        return leave(x, name, lambda x, name: mb.transpose(x=x, perm=[0, 1, 3, 2], name=name))

    def _joined(self, past: Var, new: Var, name: str) -> Var:
        """Past and new rows, (1, kv_heads, context + S, head_dim) in the compute dtype."""
        joined = mb.concat(values=[past, new], axis=2, name=name + "_all")
        return cast(joined, self.request.compute, name + "_compute")


VARIANTS: Mapping[str, Callable[[BlockRequest], Cache]] = {"slice": SliceCache, "mask": MaskCache, "io": IoCache}
"""The variants by the name that a request gives."""

STATE_ALIGNMENT = 32
"""The last axis of a state must be a multiple of 64 bytes where the Neural Engine is to take it."""


def rope_inputs(request: BlockRequest, rows: int) -> Interface:
    """`rope_cos` and `rope_sin` float16 [1, 1, rows, head_dim]."""
    shape = (1, 1, rows, request.head_dim)
    return {"rope_cos": (shape, types.fp16), "rope_sin": (shape, types.fp16)}


def rotated(request: BlockRequest, values: Mapping[str, Var], tensors: Mapping[str, Var]) -> list[Var]:
    """Tensors (1, n, head_dim, S), by the names of the results, rotated by the caller's `rope_cos` and `rope_sin`."""
    cos = cast(values["rope_cos"], request.compute, "rope_cos_compute")
    sin = cast(values["rope_sin"], request.compute, "rope_sin_compute")
    cos = mb.transpose(x=cos, perm=[0, 1, 3, 2], name="cos")
    sin = mb.transpose(x=sin, perm=[0, 1, 3, 2], name="sin")
    return [rope_halves(x, cos, sin, 2, name) for name, x in tensors.items()]


def _ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)
