"""What to bake: the JSON document that the program sends, checked while it is read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class Refused(ValueError):
    """The request is well formed, but this road cannot bake it. The message says which tensor and why."""


@dataclass(frozen=True)
class Scheme:
    """How one projection weight is quantized, always linear-symmetric.

    `dtype` is int8 or int4; `granularity` is per_tensor, per_channel or per_block; `block_size` counts input channels
    and is set for per_block only.
    """

    dtype: str
    granularity: str
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("int8", "int4"):
            raise ValueError(f"dtype `{self.dtype}` is neither int8 nor int4")
        if self.granularity not in ("per_tensor", "per_channel", "per_block"):
            raise ValueError(f"granularity `{self.granularity}` is none of per_tensor, per_channel, per_block")
        if (self.granularity == "per_block") != (self.block_size is not None):
            raise ValueError(f"block_size is {self.block_size} with granularity {self.granularity}")


@dataclass(frozen=True)
class Request:
    """What every part of a model is baked by. Field names are those of the program's model config.

    `functions` maps a function's name to the rows that it takes per call; the first is the default function. `weights`
    names the quantized tensors only.
    """

    hidden: int
    rms_norm_eps: float
    functions: Mapping[str, int]
    compute_precision: str
    norm: str
    target: str
    weights: Mapping[str, Scheme]

    def __post_init__(self) -> None:
        if self.compute_precision not in ("float16", "float32"):
            raise ValueError(f"compute_precision `{self.compute_precision}` is neither float16 nor float32")
        if not self.functions:
            raise ValueError("no function is asked for")
        for name, rows in self.functions.items():
            if rows < 1:
                raise ValueError(f"function `{name}` takes {rows} rows")

    @staticmethod
    def from_json(text: str) -> "Request":
        """Reads a request; `part` says which kind. Unknown or missing fields are TypeErrors, impossible values
        ValueErrors.
        """
        fields = json.loads(text)
        part = fields.pop("part", None)
        kinds: Mapping[str, type[Request]] = {"block": BlockRequest, "head": HeadRequest}
        if part not in kinds:
            raise ValueError(f"part `{part}` is none of {', '.join(kinds)}")
        fields["weights"] = {role: Scheme(**scheme) for role, scheme in fields["weights"].items()}
        return kinds[part](**fields)

    @property
    def compute(self) -> npt.DTypeLike:
        """The dtype in which the graph computes and float weights are stored."""
        return np.float16 if self.compute_precision == "float16" else np.float32

    @property
    def default_function(self) -> str:
        """Name of the function that a runner gets when it names none."""
        return next(iter(self.functions))


@dataclass(frozen=True)
class BlockRequest(Request):
    """A transformer block."""

    architecture: str
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    rope_scaling: Mapping[str, Any]
    context: int
    kv: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd")
        for name, rows in self.functions.items():
            if rows > self.context:
                raise ValueError(f"function `{name}` takes {rows} rows, but the context holds {self.context}")


@dataclass(frozen=True)
class HeadRequest(Request):
    """The final norm and the output matrix, whose rows are split into parts: `outputs` has the size of each."""

    outputs: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.outputs or min(self.outputs) < 1:
            raise ValueError(f"outputs are {list(self.outputs)}")


def const_name(role: str) -> str:
    """Name of a tensor's const in the graph: `self_attn.q_proj.weight` becomes `q_proj_weight`."""
    return "_".join(role.split(".")[-2:])
