"""One module per architecture, named as the `model_type` of Hugging Face's `config.json`.

A module has `tensors(request)`, the block's tensors by role with their checkpoint shapes, and `block(author, x,
attend)`, which authors the block on the residual stream x (1, hidden, 1, S) and returns the stream after it. `attend`
takes q, k, v as `BlockAuthor.heads` gives them and returns (1, heads * head_dim, 1, S).
"""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from anebake.layers import BlockAuthor, Var
from anebake.request import BlockRequest

Attend = Callable[[Var, Var, Var], Var]


class Architecture(Protocol):
    """What every module here offers."""

    def tensors(self, request: BlockRequest) -> Mapping[str, tuple[int, ...]]:
        """Role to checkpoint shape, in the order of first use."""

    def block(self, author: BlockAuthor, x: Var, attend: Attend) -> Var:
        """BlockAuthors one block."""


def find(model_type: str) -> Architecture:
    """The module of a `model_type`; a ValueError if there is none."""
    if not re.fullmatch("[a-z][a-z0-9_]*", model_type):
        raise ValueError(f"`{model_type}` is no model_type")
    name = f"{__name__}.{model_type}"
    try:
        return cast(Architecture, importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(f"no graph for architecture `{model_type}`") from error
