"""The ladder of `anebake probe`: small packages of a fixed shape, from one norm to 28 blocks, each of which asks a
device one question. A rung is baked with calls and what they give by `anebake.oracle`, so that nothing but the folder
is needed where it is run.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import numpy.typing as npt
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types

from anebake import archs, bake, graph, package, rope
from anebake.block import Block
from anebake.kv import Interface, rope_inputs, rotated
from anebake.layers import (
    BlockAuthor,
    Var,
    from_channels,
    grouped_attention,
    leave,
    to_channels,
)
from anebake.oracle import Oracle
from anebake.request import BlockRequest, Scheme, const_name
from anebake.weights import quantize

Array = npt.NDArray[Any]

TOKENS = 4
"""Rows of a rung's function, unless the rung is about their number."""

SHAPE = BlockRequest(
    hidden=256,
    rms_norm_eps=1e-6,
    functions={"main": TOKENS},
    compute_precision="float16",
    norm="max_scaled",
    target="macOS15",
    weights={},
    architecture="qwen3",
    heads=4,
    kv_heads=2,
    head_dim=64,
    intermediate=512,
    rope_theta=1e6,
    rope_scaling={"type": "none"},
    context=128,
    kv="mask",
)
"""The shape of every rung: a block of Qwen3 in small, every axis a multiple of 32."""

PALETTES = "palettes of 4 bits"

SCHEMES: Mapping[str, Scheme | None] = {
    "float16": None,
    "int8 per channel": Scheme("int8", "per_channel"),
    "int8 per block of 32": Scheme("int8", "per_block", 32),
    "int4 per channel": Scheme("int4", "per_channel"),
    "int4 per block of 32": Scheme("int4", "per_block", 32),
    PALETTES: None,
}
"""How the projections of a rung are stored, by what a report calls it."""

MOST_CALLS = 3
"""Calls of a rung: enough to read a state that an earlier call wrote."""


@dataclass(frozen=True)
class Rung:
    """One package. `asks` is the question it answers, `group` the part of the ladder."""

    id: str
    group: str
    asks: str
    request: BlockRequest = SHAPE
    weights: str = "float16"
    blocks: int = 1
    part: str = "block"


def rungs() -> list[Rung]:
    """The whole ladder, lowest first."""
    found = [
        Rung("rms-norm", "op", "RMSNorm of x / max|x|", part="norm"),
        Rung(
            "rms-norm-pair",
            "op",
            "RMSNorm as layer_norm over [x, -x]",
            replace(SHAPE, norm="layer_norm_pair"),
            part="norm",
        ),
        Rung("qk-norm", "op", "RMSNorm over each head", part="head_norm"),
        Rung("rope", "op", "rotary embedding, head_dim on axis 2", part="rope"),
        Rung("scores-softmax", "op", "scores, mask, softmax and values of grouped attention", part="attention"),
        Rung("mlp", "op", "the gated MLP", part="mlp"),
        Rung("block-stateless", "block", "a block that sees its own tokens only", part="stateless"),
    ]
    for kv, how in [
        ("io", "inputs and outputs"),
        ("mask", "states, rewritten through a one-hot mask"),
        ("slice", "states, written by slice_update at a position"),
    ]:
        found.append(Rung(f"block-{kv}", "block", f"a block, keys and values as {how}", replace(SHAPE, kv=kv)))
    for rows in (1, 2, 8, 64):
        request = replace(SHAPE, functions={"main": rows})
        found.append(Rung(f"query-{rows}", "query", f"a function of {rows} {'row' if rows == 1 else 'rows'}", request))
    request = replace(SHAPE, functions={"decode": TOKENS, "prefill": 64})
    found.append(Rung("two-functions", "query", "two functions that share weights and states", request))
    found.extend(
        Rung(
            f"weights-{name.replace(' ', '-')}",
            "weights",
            f"a block with weights in {name}",
            weights=name,
            part="stateless",
        )
        for name in list(SCHEMES)[1:]
    )
    found.extend(
        Rung(f"stack-{count}", "stack", f"{count} blocks in one package, {2 * count} states", blocks=count)
        for count in (2, 4, 8, 14, 28)
    )
    stateless = replace(SHAPE, kv="io")
    found.extend(
        Rung(f"stack-io-{count}", "stack", f"{count} blocks in one package, no state", stateless, blocks=count)
        for count in (2, 28)
    )
    newer = replace(SHAPE, target="macOS26")
    found.extend(
        Rung(f"macos26-{identifier}", "target", f"a block for macOS 26, weights in {name}", newer, name)
        for name, identifier in [("float16", "float16"), ("int8 per channel", "int8"), (PALETTES, "palettes")]
    )
    return found


def listing() -> str:
    """JSON of the ladder: what a report says of each rung, and the macOS that it needs."""
    return json.dumps(
        [
            {
                "id": rung.id,
                "group": rung.group,
                "asks": rung.asks,
                "target": rung.request.target,
                "weights": rung.weights,
                "kv": rung.request.kv if rung.part == "block" else None,
                "blocks": rung.blocks,
                "rows": min(rung.request.functions.values()),
            }
            for rung in rungs()
        ]
    )


def make(identifier: str, folder: Path) -> str:
    """Bakes a rung: `<id>.mlpackage`, and `<id>.npz` with the arrays of its calls, `<call>.in.<name>` and
    `<call>.out.<name>`. Gives JSON: the function of each call. States begin as zeros and are carried from call to call.
    """
    (rung,) = (rung for rung in rungs() if rung.id == identifier)
    path = folder / f"{rung.id}.mlpackage"
    program = _program(rung)
    bake.to_package(program, rung.request, ct.PassPipeline.EMPTY, path)
    package.normalise(path)
    oracle = Oracle(path)
    state = oracle.new_state(next(iter(rung.request.functions)))
    arrays: dict[str, Array] = {}
    calls = list(_calls(rung))
    for index, (function, position) in enumerate(calls):
        inputs = _values(rung, oracle.interface(function), f"{rung.id} {index}", position)
        outputs = oracle.predict(function, inputs, state)
        arrays |= {f"{index}.in.{name}": value for name, value in inputs.items()}
        arrays |= {f"{index}.out.{name}": value for name, value in outputs.items()}
    np.savez(folder / f"{rung.id}.npz", **arrays)  # type: ignore[arg-type]
    return json.dumps([function for function, _ in calls])


def _calls(rung: Rung) -> Iterator[tuple[str, int]]:
    """Function and first position of each call, as many as the context holds."""
    names, position = list(rung.request.functions), 0
    for index in range(MOST_CALLS):
        name = names[index % len(names)]
        if position + rung.request.functions[name] > rung.request.context:
            return
        yield name, position
        position += rung.request.functions[name]


def _values(
    rung: Rung, interface: Mapping[str, tuple[str, tuple[int, ...]]], seed: str, position: int
) -> dict[str, Array]:
    """Inputs of a call at `position`, by what their names say."""
    cos, sin = rope.tables(rung.request)
    found: dict[str, Array] = {}
    for name, (dtype, shape) in interface.items():
        rows = slice(position, position + shape[2]) if len(shape) == 4 else slice(0)
        if name == "position_offset":
            value = np.array([position])
        elif name == "rope_cos":
            value = cos[None, None, rows]
        elif name == "rope_sin":
            value = sin[None, None, rows]
        elif name == "write_mask":
            value = np.zeros(shape)
            for row in range(shape[3]):
                value[0, 0, position + row, row] = 1
        elif name == "causal_mask":
            value = _mask(rung, shape, position)
        elif name.startswith(("k_past", "v_past")):
            value = _normal(f"{seed} {name}", shape)
            value[:, :, position if rung.part == "block" else shape[2] :] = 0
        else:
            value = _normal(f"{seed} {name}", shape)
        found[name] = value.astype(dtype)
    return found


def _mask(rung: Rung, shape: tuple[int, ...], position: int) -> Array:
    """Row i sees what lies at or before `position + i`; columns are as the part has them."""
    rows, columns = shape[2:]
    places = np.arange(columns)
    if rung.part == "stateless":
        places = places + position
    elif rung.part == "block" and rung.request.kv == "io":
        past = columns - rows
        places = np.where(places < past, np.where(places < position, 0, columns), places - past + position)
    seen = places[None, :] <= position + np.arange(rows)[:, None]
    return np.where(seen, 0.0, -1e4)[None, None]


def _program(rung: Rung) -> Any:
    """All functions of a rung."""
    weights = [_weights(rung, index) for index in range(rung.blocks)]
    program = Program()
    for name, rows in rung.request.functions.items():
        mb.name_count.clear()
        function, authors = _function(rung, weights, rows)
        function.name = name
        program.add_function(name, function)
        # Names are unique to a block only; packages of several blocks have one function and share nothing.
        if len(authors) == 1:
            graph.share(function, authors[0].shared)
    program.default_function_name = next(iter(rung.request.functions))
    program.export_as_multifunction = True
    return program


def _function(rung: Rung, weights: Sequence[Mapping[str, Any]], rows: int) -> tuple[Any, list[BlockAuthor]]:
    request, part = rung.request, PARTS[rung.part](rung.request)
    indices = range(rung.blocks)

    def of(name: str, index: int) -> str:
        return name if rung.blocks == 1 or name not in part.own(rows) else f"{name}_{index}"

    placeholders = {"hidden_state": mb.placeholder((1, rows, request.hidden), dtype=types.fp16)}
    for name, (shape, dtype) in part.inputs(rows).items():
        placeholders |= {of(name, index): mb.placeholder(shape, dtype=dtype) for index in indices}
    for name, (shape, dtype) in part.states().items():
        placeholders |= {of(name, index): mb.state_tensor_placeholder(shape, dtype=dtype) for index in indices}
    authors: list[BlockAuthor] = []
    with Function(placeholders, opset_version=ct.target[request.target]) as function:
        x, more = to_channels(function.inputs["hidden_state"]), list[Var]()
        for index in indices:
            author = _Author(request, weights[index], part.head_axis)
            names = ["hidden_state", *part.inputs(rows), *part.states()]
            values = {name: function.inputs[of(name, index)] for name in names}
            before = len(function.operations)
            x, outputs = part.body(author, x, values)
            if rung.blocks > 1:
                _prefix(list(function.operations)[before:], f"block_{index}_")
            more.extend(outputs)
            authors.append(author)
        function.set_outputs([leave(x, "hidden_out", from_channels), *more])
    return function, authors


def _prefix(operations: Iterable[Any], prefix: str) -> None:
    """Names of ops and values must be unique in a function, and coremltools stores consts of one name once."""
    for op in operations:
        op.name = prefix + op.name
        for output in op.outputs:
            output.name = prefix + output.name


@dataclass(frozen=True)
class _Palettized:
    """A weight [out, in] as indices into sixteen values."""

    indices: Array
    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.indices.shape


class _Author(BlockAuthor):
    """Knows palettes too."""

    def weight(self, role: str, shape: tuple[int, ...]) -> Var:
        weight: Any = self.weights[role]
        if not isinstance(weight, _Palettized):
            return super().weight(role, shape)
        name = const_name(role) + "_palettized"
        self.shared.add(name)
        lut = weight.values.reshape(*(1 for _ in shape), weight.values.size, 1)
        return mb.constexpr_lut_to_dense(indices=weight.indices.reshape(shape), lut=lut, name=name)


def _weights(rung: Rung, index: int) -> dict[str, Any]:
    """Values of one block: gains about 1; projections that keep the size of what they are given, those that end in the
    residual stream smaller by the number of blocks.
    """
    found: dict[str, Any] = {}
    for role, shape in archs.find(rung.request.architecture).tensors(rung.request).items():
        values = _normal(f"{index} {role}", shape)
        if len(shape) == 1:
            found[role] = (1 + 0.1 * values).astype(np.float16)
            continue
        values *= shape[1] ** -0.5
        if role.endswith(("o_proj.weight", "down_proj.weight")):
            values *= (2 * rung.blocks) ** -0.5
        weight, scheme = values.astype(np.float16), SCHEMES[rung.weights]
        if rung.weights == PALETTES:
            found[role] = _palettized(weight)
        else:
            found[role] = weight if scheme is None else quantize(weight, scheme, role)
    return found


def _palettized(weight: Array) -> _Palettized:
    """The nearest of sixteen values that divide the range evenly."""
    largest = np.abs(weight).max()
    values = np.linspace(-largest, largest, 16).astype(np.float16)
    indices = np.abs(weight[:, :, None] - values).argmin(axis=-1)
    return _Palettized(indices.astype(types.nptype_from_builtin(types.uint4)), values)


def _normal(seed: str, shape: tuple[int, ...]) -> Array:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    return np.random.default_rng(number).standard_normal(shape)


class _Part:
    """A part of a block: takes and gives the residual stream's layout, (1, hidden, 1, S)."""

    head_axis = 2

    def __init__(self, request: BlockRequest) -> None:
        self.request = request

    def inputs(self, rows: int) -> Interface:
        """Inputs but `hidden_state`."""
        del rows
        return {}

    def states(self) -> Interface:
        return {}

    def own(self, rows: int) -> set[str]:
        """Inputs and states that every block of a stack has for itself."""
        del rows
        return set()

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        raise NotImplementedError

    def joined(self, x: Var, name: str) -> Var:
        """(1, heads, head_dim, S) to (1, heads * head_dim, 1, S)."""
        return mb.reshape(x=x, shape=[1, x.shape[1] * x.shape[2], 1, x.shape[3]], name=name)


class _Norm(_Part):
    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        del values
        return author.norm(x, "input_layernorm"), []


class _HeadNorm(_Part):
    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        del values
        q = author.head_norm(author.heads(x, self.request.heads, "q"), "self_attn.q_norm")
        return self.joined(q, "joined"), []


class _Rope(_Part):
    def inputs(self, rows: int) -> Interface:
        return rope_inputs(self.request, rows)

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        (q,) = rotated(self.request, values, {"q_rope": author.heads(x, self.request.heads, "q")})
        return self.joined(q, "joined"), []


class _Attention(_Part):
    def inputs(self, rows: int) -> Interface:
        past = ((1, self.request.kv_heads, self.request.context, self.request.head_dim), types.fp16)
        mask = ((1, 1, rows, self.request.context), types.fp16)
        return {"causal_mask": mask, "k_past": past, "v_past": past}

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        q = mb.transpose(x=author.heads(x, self.request.heads, "q"), perm=[0, 1, 3, 2], name="q_rows")
        k, v, mask = values["k_past"], values["v_past"], values["causal_mask"]
        return grouped_attention(q, k, v, mask, self.request.head_dim), []


class _Mlp(_Part):
    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        del values
        h = author.gated_silu(author.projection(x, "mlp.gate_proj"), author.projection(x, "mlp.up_proj"))
        return author.projection(h, "mlp.down_proj"), []


class _Stateless(_Part):
    """A block whose tokens see those of the call only."""

    def inputs(self, rows: int) -> Interface:
        return {"causal_mask": ((1, 1, rows, rows), types.fp16), **rope_inputs(self.request, rows)}

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        def attend(q: Var, k: Var, v: Var) -> Var:
            q, k = rotated(self.request, values, {"q_rope": q, "k_rope": k})
            q, k, v = (
                mb.transpose(x=one, perm=[0, 1, 3, 2], name=name) for one, name in ((q, "q"), (k, "k"), (v, "v"))
            )
            return grouped_attention(q, k, v, values["causal_mask"], self.request.head_dim)

        return archs.find(self.request.architecture).block(author, x, attend), []


class _Block(_Part):
    """A block as a bake has it."""

    def __init__(self, request: BlockRequest) -> None:
        super().__init__(request)
        self.block = Block(request)
        self.head_axis = self.block.cache.head_axis

    def inputs(self, rows: int) -> Interface:
        return self.block.inputs(rows)

    def states(self) -> Interface:
        return self.block.states()

    def own(self, rows: int) -> set[str]:
        return {*self.states(), *(name for name in self.inputs(rows) if name.endswith("_past"))}

    def body(self, author: BlockAuthor, x: Var, values: Mapping[str, Var]) -> tuple[Var, Sequence[Var]]:
        return self.block.stream(author, x, values)


PARTS: Mapping[str, type[_Part]] = {
    "norm": _Norm,
    "head_norm": _HeadNorm,
    "rope": _Rope,
    "attention": _Attention,
    "mlp": _Mlp,
    "stateless": _Stateless,
    "block": _Block,
}
"""What a rung can be made of."""
