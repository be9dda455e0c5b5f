"""A transformer block: an architecture's graph around a cache variant's attention."""

from collections.abc import Mapping

from anebake import archs
from anebake.kv import VARIANTS, Interface
from anebake.layers import BlockAuthor, Var, Weight
from anebake.request import BlockRequest


class Block:
    """See `anebake.graph.Part`. The output is `hidden_out`, the residual stream after the block."""

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

    def inputs(self, tokens: int) -> Interface:
        """What the cache variant says."""
        return self.cache.inputs(tokens)

    def states(self) -> Interface:
        """What the cache variant says."""
        return self.cache.states()

    def author(self, weights: Mapping[str, Weight]) -> BlockAuthor:
        """For the architecture's graph."""
        return BlockAuthor(self.request, weights, self.cache.head_axis)

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> Mapping[str, Var]:
        """The architecture's graph."""

        def attend(q: Var, k: Var, v: Var) -> Var:
            return self.cache.attend(author, values, q, k, v)

        return {"hidden_out": self.architecture.block(author, x, attend)}
