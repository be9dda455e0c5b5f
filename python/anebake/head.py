"""The end of a model: the final norm and the output matrix, split by rows, since no axis may be longer than the Neural
Engine takes.
"""

from collections.abc import Mapping, Sequence

from anebake.kv import Interface
from anebake.layers import Author, Var, Weight, from_channels, leave
from anebake.request import HeadRequest


class Head:
    """See `anebake.graph.Part`. Outputs are `logits_0`, `logits_1`, …, float16 [1, rows, n]: side by side they are the
    logits.
    """

    def __init__(self, request: HeadRequest) -> None:
        self.request = request

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """`norm.weight` [hidden], and `lm_head_0.weight` [n, hidden] for each output."""
        hidden = self.request.hidden
        parts = {f"lm_head_{i}.weight": (rows, hidden) for i, rows in enumerate(self.request.outputs)}
        return {"norm.weight": (hidden,), **parts}

    def windows(self) -> Mapping[str, tuple[str, int]]:
        """Every output's matrix begins a row later than the one before: all different, in the memory of one."""
        return {f"lm_head_{i}.weight": ("lm_head.weight", i) for i in range(len(self.request.outputs))}

    def inputs(self, rows: int) -> Interface:
        """None."""
        del rows
        return {}

    def states(self) -> Interface:
        """None."""
        return {}

    def author(self, weights: Mapping[str, Weight]) -> Author:
        """Nothing that a block would need besides."""
        return Author(self.request, weights)

    def body(self, author: Author, x: Var, values: Mapping[str, Var]) -> Sequence[Var]:
        """Norm, then one projection for each output."""
        del values
        h = author.norm(x, "norm")
        parts = range(len(self.request.outputs))
        return [leave(author.projection(h, f"lm_head_{i}"), f"logits_{i}", from_channels) for i in parts]
