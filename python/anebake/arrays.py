"""Arrays as they cross into and out of the program: dtype name, shape, little-endian row-major bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt


def from_bytes(dtype: str, shape: list[int], data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """An array over `data`. bfloat16, which numpy lacks, becomes float32, exactly."""
    if dtype == "bfloat16":
        bits = data.view("<u2").astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32).reshape(shape)
    return data.view(np.dtype(dtype).newbyteorder("<")).reshape(shape)


def to_bytes(array: npt.NDArray[Any]) -> tuple[str, list[int], bytes]:
    """The opposite of `from_bytes`."""
    return array.dtype.name, list(array.shape), array.tobytes()
