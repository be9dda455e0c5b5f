"""Qwen2 and 2.5: pre-norm, biases on q, k and v, RoPE, grouped-query attention, SwiGLU."""

from collections.abc import Mapping

from anebake.archs import Attend
from anebake.layers import BlockAuthor, Var
from anebake.request import BlockRequest


def tensors(request: BlockRequest) -> Mapping[str, tuple[int, ...]]:
    """See `anebake.archs`."""
    hidden, inner = request.hidden, request.intermediate
    q, kv = request.heads * request.head_dim, request.kv_heads * request.head_dim
    return {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.q_proj.bias": (q,),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }


def block(author: BlockAuthor, x: Var, attend: Attend) -> Var:
    """See `anebake.archs`."""
    request = author.request
    h = author.norm(x, "input_layernorm")
    q = author.heads(author.projection(h, "self_attn.q_proj", bias=True), request.heads, "q")
    k = author.heads(author.projection(h, "self_attn.k_proj", bias=True), request.kv_heads, "k")
    v = author.heads(author.projection(h, "self_attn.v_proj", bias=True), request.kv_heads, "v")
    x = author.add(x, author.projection(attend(q, k, v), "self_attn.o_proj"), "attention_residual")

    h = author.norm(x, "post_attention_layernorm")
    h = author.gated_silu(author.projection(h, "mlp.gate_proj"), author.projection(h, "mlp.up_proj"))
    return author.add(x, author.projection(h, "mlp.down_proj"), "mlp_residual")
