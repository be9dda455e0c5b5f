"""What the program is compared with, each as a process of its own.

`floor`: what no bake that digests its output can avoid. Two threads share the blocks; for each block's
tensors, piece by piece (1 MiB): read, SHA-256 of half of it, write that half to a file.
`--sync` syncs every file. Nothing is quantized.

`mlx`: MLX's 8-bit quantization in groups of 64 of the same projections, saved as safetensors, as `mlx_lm.convert` does;
nothing is digested or synced. Prints the seconds of its own steps as JSON.
"""

import argparse
import hashlib
import json
import os
import re
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

PIECE = 1 << 20
PROJECTION = re.compile(r"model\.layers\.\d+\..*_proj\.weight")


def header(checkpoint: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's tensors, and where their bytes begin."""
    with checkpoint.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(length))
    tensors.pop("__metadata__", None)
    return tensors, 8 + length


def blocks(checkpoint: Path) -> dict[int, list[tuple[int, int]]]:
    """Offset and length of every tensor of every block."""
    tensors, start = header(checkpoint)
    found: dict[int, list[tuple[int, int]]] = {}
    for name, tensor in tensors.items():
        if match := re.match(r"model\.layers\.(\d+)\.", name):
            begin, end = tensor["data_offsets"]
            found.setdefault(int(match[1]), []).append((start + begin, end - begin))
    return found


def floor(checkpoint: Path, out: Path, sync: bool) -> None:
    """Reads, digests and writes; see the module."""
    source = os.open(checkpoint, os.O_RDONLY)
    out.mkdir()

    def block(index: int, ranges: list[tuple[int, int]]) -> str:
        written = hashlib.sha256()
        target = os.open(out / f"{index}.bin", os.O_WRONLY | os.O_CREAT, 0o644)
        buffer = bytearray(PIECE)
        for offset, length in ranges:
            for position in range(offset, offset + length, PIECE):
                piece = memoryview(buffer)[: min(PIECE, offset + length - position)]
                os.preadv(source, [piece], position)
                half = piece[: len(piece) // 2]
                written.update(half)
                os.write(target, half)
        if sync:
            os.fdatasync(target)
        os.close(target)
        return written.hexdigest()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(block, *zip(*blocks(checkpoint).items(), strict=True)))


def mlx(checkpoint: Path, out: Path) -> None:
    """Quantizes and saves by MLX; see the module."""
    begin = time.perf_counter()
    import mlx.core as mx

    imported = time.perf_counter()
    weights: dict[str, Any] = {}
    # Not kept in a variable: what is quantized may go.
    for name, tensor in cast("dict[str, Any]", mx.load(str(checkpoint))).items():
        if PROJECTION.fullmatch(name):
            base = name.removesuffix(".weight")
            weights[name], weights[base + ".scales"], weights[base + ".biases"] = mx.quantize(
                tensor, group_size=64, bits=8
            )
    mx.eval(weights)
    quantized = time.perf_counter()
    mx.save_safetensors(str(out), weights)
    saved = time.perf_counter()
    steps = {"import": imported - begin, "quantize": quantized - imported, "save": saved - quantized}
    json.dump(steps, sys.stdout)


def main() -> None:
    """Runs one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["floor", "mlx"])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sync", action="store_true")
    options = parser.parse_args()
    if options.which == "floor":
        floor(options.checkpoint, options.out, options.sync)
    else:
        mlx(options.checkpoint, options.out)


if __name__ == "__main__":
    main()
