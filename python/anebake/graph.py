"""From a request and tensors to MIL functions: the interface of a block, its edges, and how functions share weights."""

from collections.abc import Iterable, Mapping
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types

from anebake import archs
from anebake.kv import VARIANTS, Cache
from anebake.layers import Author, Weight, cast, from_channels, to_channels
from anebake.request import Request


def function(request: Request, weights: Mapping[str, Weight], cache: Cache, tokens: int) -> tuple[Any, set[str]]:
    """One function: `hidden_state` float16 [1, tokens, hidden] and what `cache` adds, to `hidden_out` of the same
    shape. Also the names of the consts and constexprs that functions of one program share.
    """
    # Const names carry a count that an earlier, abandoned authoring would have advanced.
    mb.name_count.clear()
    inputs = {"hidden_state": ((1, tokens, request.hidden), types.fp16), **cache.inputs(tokens)}
    placeholders = {name: mb.placeholder(shape, dtype=dtype) for name, (shape, dtype) in inputs.items()}
    for name, (shape, dtype) in cache.states().items():
        placeholders[name] = mb.state_tensor_placeholder(shape, dtype=dtype)
    author = Author(request, weights, cache.head_axis)
    with Function(placeholders, opset_version=ct.target[request.target]) as authored:
        values = authored.inputs
        x = to_channels(cast(values["hidden_state"], request.compute, "hidden_compute"))
        x = archs.find(request.architecture).block(author, x, lambda q, k, v: cache.attend(author, values, q, k, v))
        if np.dtype(request.compute) == np.float16:
            x = from_channels(x, "hidden_out")
        else:
            x = cast(from_channels(x, "hidden_out_compute"), np.float16, "hidden_out")
        authored.set_outputs([x])
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
    cache = VARIANTS[request.kv](request)
    for name, tokens in request.functions.items():
        authored, names = function(request, weights, cache, tokens)
        authored.name = name
        whole.add_function(name, authored)
        share(authored, names)
        shared |= names
    whole.default_function_name = request.default_function
    whole.export_as_multifunction = True
    return whole, shared
