"""Tables of rotary position embedding."""

from typing import Any

import numpy as np
import numpy.typing as npt

from anebake.request import BlockRequest


def frequencies(request: BlockRequest) -> npt.NDArray[np.float64]:
    """Angle per position, in radians: float64 [head_dim / 2], `theta^(-2i/head_dim)` after scaling."""
    exponents = np.arange(0, request.head_dim, 2, dtype=np.float64) / request.head_dim
    plain = request.rope_theta**-exponents
    scaling = dict(request.rope_scaling)
    kind = scaling.pop("type")
    if kind == "none":
        return plain
    if kind == "linear":
        return plain / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(plain, scaling)
    if kind == "divisors":
        divisors = np.asarray(scaling["divisors"], np.float64)
        if divisors.shape != plain.shape:
            raise ValueError(f"rope scaling has {divisors.size} divisors for {plain.size} frequencies")
        return plain / divisors
    raise ValueError(f"rope scaling `{kind}` is none of none, linear, llama3, divisors")


def _llama3(plain: npt.NDArray[np.float64], scaling: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Llama 3's rule (`_compute_llama3_parameters` of transformers): long waves are stretched by `factor`, short ones
    stay, those between are blended.
    """
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_positions"]) * plain / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - keep) * plain / float(scaling["factor"]) + keep * plain


def tables(request: BlockRequest) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """cos and sin, each [context, head_dim] in the compute dtype; both halves of a row are the same frequencies."""
    half = np.outer(np.arange(request.context), frequencies(request))
    angles = np.concatenate([half, half], axis=-1)
    return np.cos(angles).astype(request.compute), np.sin(angles).astype(request.compute)
