"""A transformer block: an architecture's graph around a cache variant's attention."""

from collections.abc import Mapping, Sequence

from anebake import archs
from anebake.kv import VARIANTS, Interface
from anebake.layers import BlockAuthor, Var, Weight, from_channels, leave
from anebake.request import BlockRequest


class Block:
    """See `anebake.graph.Part`. Outputs are `hidden_out`, the residual stream after the block, float16 [1, rows,
    hidden], and what the cache variant adds.
    """

    def __init__(self, request: BlockRequest) -> None:
        self.request = request
        self.architecture = archs.find(request.architecture)
        self.cache = VARIANTS[request.kv](request)

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """What the architecture says."""
        return self.architecture.tensors(self.request)

    def windows(self) -> Mapping[str, tuple[str, int]]:
        """None: every tensor has values of its own."""
        return {}

    def inputs(self, rows: int) -> Interface:
        """What the cache variant says."""
        return self.cache.inputs(rows)

    def states(self) -> Interface:
        """What the cache variant says."""
        return self.cache.states()

    def author(self, weights: Mapping[str, Weight]) -> BlockAuthor:
        """For the architecture's graph."""
        return BlockAuthor(self.request, weights, self.cache.head_axis)

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> Sequence[Var]:
        """The architecture's graph."""
        x, more = self.stream(author, x, values)
        return [leave(x, "hidden_out", from_channels), *more]

    def stream(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        """The residual stream after the block, (1, hidden, 1, tokens), and the cache variant's outputs."""
        more: list[Var] = []

        def attend(q: Var, k: Var, v: Var) -> Var:
            attention, outputs = self.cache.attend(author, values, q, k, v)
            more.extend(outputs)
            return attention

        return self.architecture.block(author, x, attend), more
