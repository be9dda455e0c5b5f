"""From a request and tensors to MIL functions: what every part of a model has in common at its edges, and how functions
share weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types

from anebake.block import Block
from anebake.head import Head
from anebake.kv import Interface
from anebake.layers import Author, Var, Weight, cast, to_channels
from anebake.request import BlockRequest, HeadRequest, Request


class Part(Protocol):
    """A part of a model: what becomes one package."""

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Role to checkpoint shape, in the order of first use."""

    def windows(self) -> Mapping[str, tuple[str, int]]:
        """Matrices of which a template holds no values of their own: role to the name of a matrix that they share, and
        their first row in it. No two of them begin at the same row.
        """

    def inputs(self, rows: int) -> Interface:
        """The inputs of a function of `rows` rows, hidden_state excepted."""

    def states(self) -> Interface:
        """The states, shared by all functions."""

    def author(self, weights: Mapping[str, Weight]) -> Author:
        """Who authors the body of a function."""

    def body(self, author: Any, x: Var, values: Mapping[str, Var]) -> Sequence[Var]:
        """Authors the body on x (1, hidden, 1, rows) in the compute dtype; gives the outputs, named. `author` is what
        `author` made, `values` are the function's inputs and states by name.
        """


def part(request: Request) -> Part:
    """The part that is asked for."""
    if isinstance(request, BlockRequest):
        return Block(request)
    if isinstance(request, HeadRequest):
        return Head(request)
    raise TypeError(f"a {type(request).__name__} is for no part")


def function(request: Request, weights: Mapping[str, Weight], rows: int) -> tuple[Any, set[str]]:
    """One function: `hidden_state` float16 [1, rows, hidden] and what the part adds, to the part's outputs. Also the
    names of the consts and constexprs that functions of one program share.
    """
    wanted = part(request)
    # Const names carry a count that an earlier, abandoned authoring would have advanced.
    mb.name_count.clear()
    inputs = {"hidden_state": ((1, rows, request.hidden), types.fp16), **wanted.inputs(rows)}
    placeholders = {name: mb.placeholder(shape, dtype=dtype) for name, (shape, dtype) in inputs.items()}
    for name, (shape, dtype) in wanted.states().items():
        placeholders[name] = mb.state_tensor_placeholder(shape, dtype=dtype)
    author = wanted.author(weights)
    with Function(placeholders, opset_version=ct.target[request.target]) as authored:
        values = authored.inputs
        x = to_channels(cast(values["hidden_state"], request.compute, "hidden_compute"))
        authored.set_outputs(list(wanted.body(author, x, values)))
    return authored, author.shared


def share(authored: Any, names: Iterable[str]) -> None:
    """Gives the consts called `names`, and the inputs of constexprs called so, an identity: consts of one identity
    are written to weight.bin once for all functions.
    """
    wanted = set(names)
    for op in authored.operations:
        if op.name not in wanted:
            continue
        if op.op_type == "const":
            op.weight_id = op.name
        else:
            for key, var in op.inputs.items():
                if var is not None:
                    var.op.weight_id = f"{op.name}_{key}"


def program(request: Request, weights: Mapping[str, Weight]) -> tuple[Any, set[str]]:
    """All functions in one program, and the names of their shared consts."""
    whole, shared = Program(), set[str]()
    for name, rows in request.functions.items():
        authored, names = function(request, weights, rows)
        authored.name = name
        whole.add_function(name, authored)
        share(authored, names)
        shared |= names
    whole.default_function_name = request.default_function
    whole.export_as_multifunction = True
    return whole, shared
