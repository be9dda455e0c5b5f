"""Where keys and values live between calls. A variant is a class: what it adds to a block's interface, and attention
from unrotated heads to the input of o_proj. Architectures know only `Cache`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

from anebake import rope
from anebake.layers import Author, Var, cast, grouped_attention, rope_halves
from anebake.request import BlockRequest

Interface = Mapping[str, tuple[tuple[int, ...], Any]]
"""Name to (shape, MIL dtype)."""


class Cache(Protocol):
    """A cache variant. `head_axis` is the axis on which it wants head_dim (2 or 3)."""

    head_axis: int

    def inputs(self, tokens: int) -> Interface:
        """The inputs of a function of `tokens` tokens, hidden_state excepted."""

    def states(self) -> Interface:
        """The states, shared by all functions."""

    def attend(self, author: Author, values: Mapping[str, Var], q: Var, k: Var, v: Var) -> Var:
        """Rotates q and k, stores k and v, attends: gives (1, heads * head_dim, 1, S). `values` are the function's
        inputs and states by name.
        """


class SliceCache:
    """States [1, kv_heads, context, head_dim] in float16, written by `slice_update` at `position_offset`; rows of the
    RoPE table are cut out with `slice_by_size` at the same place. `position_offset + tokens` must not pass context.
    """

    head_axis = 3

    def __init__(self, request: BlockRequest) -> None:
        self.request = request
        self.cos, self.sin = rope.tables(request)

    def inputs(self, tokens: int) -> Interface:
        """`causal_mask` float16 [1, 1, tokens, context] and `position_offset` int32 [1]."""
        return {
            "causal_mask": ((1, 1, tokens, self.request.context), types.fp16),
            "position_offset": ((1,), types.int32),
        }

    def states(self) -> Interface:
        """`k_cache` and `v_cache`, float16 [1, kv_heads, context, head_dim]; they start as zeros."""
        shape = (1, self.request.kv_heads, self.request.context, self.request.head_dim)
        return {"k_cache": (shape, types.fp16), "v_cache": (shape, types.fp16)}

    def attend(self, author: Author, values: Mapping[str, Var], q: Var, k: Var, v: Var) -> Var:
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
        return grouped_attention(q, k, v, cast(values["causal_mask"], self.request.compute, "mask_compute"))

    def _store(self, state: Var, new: Var, begin: Var, end: Var, name: str) -> Var:
        """Writes `new` (1, kv_heads, S, head_dim) into `state`; gives the whole cache in the compute dtype."""
        cache = mb.read_state(input=state, name=name + "_read")
        new = cast(new, np.float16, name + "_stored")
        cache = mb.slice_update(x=cache, update=new, begin=begin, end=end, name=name + "_written")
        cache = mb.coreml_update_state(state=state, value=cache, name=name + "_all")
        return cast(cache, self.request.compute, name + "_compute")


VARIANTS: Mapping[str, type[SliceCache]] = {"slice": SliceCache}
"""The variants by the name that a request gives."""


def _ints(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)
