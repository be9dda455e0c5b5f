"""Writes a checkpoint of a given shape with realistic values: the same bytes for the same shape and seed.

Needs numpy. Values are made, rounded and written a few rows at a time, so that memory stays small.
"""

import argparse
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 1 << 21
"""Values made at a time."""

SHAPES: dict[str, dict[str, int]] = {
    "qwen3-0.6b": {
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
    },
    "quick": {
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
        "vocab_size": 512,
    },
}


def config(shape: dict[str, int]) -> dict[str, Any]:
    """`config.json`, as Qwen3-0.6B has it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **shape,
        "attention_bias": False,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
    }


def tensors(shape: dict[str, int]) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes, in file order."""
    hidden, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [shape["vocab_size"], hidden]
    for layer in range(shape["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [hidden]
        yield prefix + "mlp.down_proj.weight", [hidden, inner]
        yield prefix + "mlp.gate_proj.weight", [inner, hidden]
        yield prefix + "mlp.up_proj.weight", [inner, hidden]
        yield prefix + "post_attention_layernorm.weight", [hidden]
        yield prefix + "self_attn.k_norm.weight", [head]
        yield prefix + "self_attn.k_proj.weight", [keys, hidden]
        yield prefix + "self_attn.o_proj.weight", [hidden, queries]
        yield prefix + "self_attn.q_norm.weight", [head]
        yield prefix + "self_attn.q_proj.weight", [queries, hidden]
        yield prefix + "self_attn.v_proj.weight", [keys, hidden]
    yield "model.norm.weight", [hidden]


def pieces(name: str, shape: list[int], seed: int) -> Iterator[bytes]:
    """A tensor's values as bfloat16: gains about 1, rows of matrices normal, each row with its own spread."""
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if len(shape) == 1:
        yield bfloat16(1 + 0.2 * random.standard_normal(shape[0], dtype=np.float32))
        return
    rows, cols = shape
    step = max(1, PIECE // cols)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        spread = 0.025 * np.exp(0.3 * random.standard_normal((count, 1), dtype=np.float32))
        yield bfloat16(spread * random.standard_normal((count, cols), dtype=np.float32))


def bfloat16(values: "np.ndarray[Any, np.dtype[np.float32]]") -> bytes:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes()


def write(folder: Path, shape: dict[str, int], seed: int) -> None:
    """Writes `config.json` and `model.safetensors`, unless the folder holds just these already."""
    wanted = json.dumps({"shape": shape, "seed": seed, "numpy": np.__version__})
    marker = folder / "made-of.json"
    if marker.exists() and marker.read_text() == wanted:
        return
    marker.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(shape), indent=2))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dims in tensors(shape):
        begin, end = end, end + 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors(shape):
            for piece in pieces(name, dims, seed):
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    marker.write_text(wanted)


def main() -> None:
    """Writes one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--vocab", type=int, help="another vocabulary")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = dict(SHAPES[options.shape])
    if options.layers is not None:
        shape["num_hidden_layers"] = options.layers
    if options.vocab is not None:
        shape["vocab_size"] = options.vocab
    write(options.folder, shape, options.seed)


if __name__ == "__main__":
    main()
