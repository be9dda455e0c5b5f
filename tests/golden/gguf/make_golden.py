"""Writes the GGUF goldens: files by llama.cpp's own `gguf` package, and the values that they hold.

    python -m venv /tmp/gguf && /tmp/gguf/bin/pip install gguf==0.19.0 && /tmp/gguf/bin/python make_golden.py

`types.gguf` holds one tensor of random blocks for each quantized type of ggml, `llama.gguf` a whole one-block model
with q and k reordered as llama.cpp's converter does. The `.safetensors` beside each holds the expected values, float32,
in Hugging Face order.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES

HERE = Path(__file__).parent
ROWS, COLUMNS = 2, 256
Q2_0 = 42  # newer than the package


def halves(blocks):
    return blocks.copy().view("<f2").astype(np.float32)


# What the package does not dequantize, after `dequantize_row_*` of ggml-quants.c (Q8_1: its block layout, `d * qs`).
def q8_1(blocks):
    return halves(blocks[:, :2]) * blocks[:, 4:].view(np.int8)


def q8_k(blocks):
    return blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].view(np.int8)


def q1_0(blocks):
    d = halves(blocks[:, :2])
    return np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") == 1, d, -d)


def q2_0(blocks):
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    return halves(blocks[:, :2]) * (codes.reshape(len(blocks), -1).astype(np.float32) - 1)


OWN = {Type.Q8_1: q8_1, Type.Q8_K: q8_k, Type.Q1_0: q1_0, Q2_0: q2_0}
NAMES = {Q2_0: "Q2_0"}
GGML_QUANT_SIZES[Type.Q8_1] = (32, 36)  # two halves and 32 bytes; the package has the size of a former layout
GGML_QUANT_SIZES[Q2_0] = (64, 18)


def dequantize(blocks, kind):
    if kind in OWN:
        return OWN[kind](blocks).astype(np.float32)
    return gguf.quants.dequantize(blocks, kind).astype(np.float32)


def random_rows(rng, kind):
    """Random blocks whose values are finite: scales are drawn again where they are not."""
    size, width = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // size, width), dtype=np.uint8)
    for i in range(len(blocks)):
        while not np.isfinite(dequantize(blocks[i : i + 1], kind)).all():
            blocks[i] = rng.integers(0, 256, width, dtype=np.uint8)
    return blocks.reshape(ROWS, -1), dequantize(blocks, kind).reshape(ROWS, COLUMNS)


def describe(writer, hidden, heads, kv_heads, intermediate):
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_token_list(["a", "bc", "", "ü", "e", "f", "g", "h"])


def finish(writer, expected, stem):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, data = {}, b""
    for name, values in expected.items():
        values = values.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(expected[name].shape),
            "data_offsets": [len(data), len(data) + len(values)],
        }
        data += values
    text = json.dumps(header).encode()
    (HERE / f"{stem}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def types(rng):
    writer = gguf.GGUFWriter(HERE / "types.gguf", "qwen3")
    describe(writer, 64, 4, 2, 96)
    expected = {}
    kinds = [kind for kind in Type if kind not in (Type.F32, Type.F16, Type.BF16, Type.F64) and kind.name[0] != "I"]
    kinds += [kind for kind in Type if kind.name.startswith("IQ")]
    for kind in [*kinds, Q2_0]:
        name = NAMES.get(kind) or kind.name
        blocks, values = random_rows(rng, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        expected[name] = values
    finish(writer, expected, "types")


def permute(weights, heads):
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def llama(rng):
    hidden, heads, kv_heads, intermediate = 32, 4, 2, 64
    keys = hidden // heads * kv_heads
    writer = gguf.GGUFWriter(HERE / "llama.gguf", "llama")
    describe(writer, hidden, heads, kv_heads, intermediate)
    writer.add_rope_dimension_count(hidden // heads)
    expected = {}

    def add(name, hugging_face, shape, kind, heads=None):
        values = rng.standard_normal(shape).astype(np.float32)
        stored = gguf.quants.quantize(values if heads is None else permute(values, heads), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        # Rows are quantized one by one, so that reordering and quantizing commute.
        expected[hugging_face] = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)

    block = "model.layers.0."
    add("token_embd.weight", "model.embed_tokens.weight", (8, hidden), Type.Q4_1)
    add("output_norm.weight", "model.norm.weight", (hidden,), Type.F32)
    add("blk.0.attn_norm.weight", block + "input_layernorm.weight", (hidden,), Type.F32)
    add("blk.0.attn_q.weight", block + "self_attn.q_proj.weight", (hidden, hidden), Type.Q8_0, heads)
    add("blk.0.attn_k.weight", block + "self_attn.k_proj.weight", (keys, hidden), Type.F16, kv_heads)
    add("blk.0.attn_v.weight", block + "self_attn.v_proj.weight", (keys, hidden), Type.F32)
    add("blk.0.attn_output.weight", block + "self_attn.o_proj.weight", (hidden, hidden), Type.BF16)
    add("blk.0.ffn_norm.weight", block + "post_attention_layernorm.weight", (hidden,), Type.F32)
    add("blk.0.ffn_gate.weight", block + "mlp.gate_proj.weight", (intermediate, hidden), Type.Q5_0)
    add("blk.0.ffn_up.weight", block + "mlp.up_proj.weight", (intermediate, hidden), Type.Q5_1)
    add("blk.0.ffn_down.weight", block + "mlp.down_proj.weight", (hidden, intermediate), Type.Q4_0)
    divisors = np.array([1, 1, 1.5, 8], np.float32)
    writer.add_tensor("rope_freqs.weight", divisors)
    finish(writer, expected, "llama")


if __name__ == "__main__":
    types(np.random.default_rng(7))
    llama(np.random.default_rng(8))
