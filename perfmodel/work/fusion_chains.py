"""The chains of a transformer layer that runtimes fuse, with sizes from the model and the layout.

Unfused chains are those of the plain model code (one kernel for each named step, the cache written by a kernel of its
own); a weight vector of a norm and the tables of the rotary embedding are read with them. `n_tokens` are new tokens on
a rank, `n_pairs` its query-key pairs. Sources of the order of steps: the DeepSeek-V2, Llama and Qwen3 model code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.estimate import Num
from perfmodel.specs.model import DenseFfn, LatentAttention, Layer, MoeFfn, SoftmaxAttention
from perfmodel.specs.setup import Setup
from perfmodel.work.fusion import Buffer, Chain, Operator
from perfmodel.work.kv import kv_heads_per_rank
from perfmodel.work.matmul import matmul_of
from perfmodel.work.tensors import Tensor, attention_tensors

__all__ = ["CHAINS", "ChainSize", "chain_of"]

_NORM_FLOP, _ROPE_FLOP, _SOFTMAX_FLOP, _SILU_FLOP = 4.0, 3.0, 5.0, 5.0
_FP32_BYTES: Final = 4.0


@dataclass(frozen=True, slots=True)
class ChainSize:
    """What a chain is about: new tokens of the step, query-key pairs of one head, tokens in the cache."""

    n_tokens: Num
    n_pairs: Num
    cached_tokens: Num = 0.0
    phase: Literal["prefill", "decode"] = "prefill"


def _kv_write(setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        return _latent_write(setup, attention, size)
    if isinstance(attention, SoftmaxAttention):
        return _head_write(setup, attention, size)
    return None


def _latent_write(setup: Setup, a: LatentAttention, size: ChainSize) -> Chain:
    """Return norm of the latent, rotation of the shared key, their concatenation and the cache write."""
    t, e = size.n_tokens, setup.element_bytes
    latent, rope = t * (a.kv_lora_rank * e), t * (a.d_rope * e)
    return Chain(
        "kv-write",
        (
            Buffer("latent", latent, "input"),
            Buffer("rope_key", rope, "input"),
            Buffer("rope_table", rope, "input"),
            Buffer("norm_weight", a.kv_lora_rank * e, "held"),
            Buffer("normed_latent", latent),
            Buffer("rotated_key", rope),
            Buffer("joined", latent + rope),
            Buffer("new_cache_rows", t * (a.d_latent * setup.kv_element_bytes), "output"),
            Buffer("cache", size.cached_tokens * (a.d_latent * setup.kv_element_bytes), "held"),
        ),
        (
            Operator("norm", ("latent", "norm_weight"), ("normed_latent",), t * (_NORM_FLOP * a.kv_lora_rank)),
            Operator("rope", ("rope_key", "rope_table"), ("rotated_key",), t * (_ROPE_FLOP * a.d_rope)),
            Operator("join", ("normed_latent", "rotated_key"), ("joined",)),
            Operator("cache_write", ("joined",), ("new_cache_rows",)),
        ),
    )


def _head_write(setup: Setup, a: SoftmaxAttention, size: ChainSize) -> Chain:
    """Return norm of keys (where the model has one), rotation, packing of keys beside values and the cache write."""
    t, e, heads = size.n_tokens, setup.element_bytes, kv_heads_per_rank(a.n_kv_heads, setup.layout.tp)
    d_key, d_value = heads * a.d_head, heads * a.d_v
    key, value, cached = t * (d_key * e), t * (d_value * e), (d_key + d_value) * setup.kv_element_bytes
    table = t * (a.d_head * e)
    has_norm = a.qk_norm != "none"
    norm = (Operator("norm", ("key", "norm_weight"), ("normed_key",), t * (_NORM_FLOP * d_key)),) if has_norm else ()
    rope_input = "normed_key" if has_norm else "key"
    normed = (Buffer("normed_key", key), Buffer("norm_weight", a.d_head * e, "held")) if has_norm else ()
    return Chain(
        "kv-write",
        (
            Buffer("key", key, "input"),
            Buffer("value", value, "input"),
            Buffer("rope_table", table, "input"),
            *normed,
            Buffer("rotated_key", key),
            Buffer("packed", key + value),
            Buffer("new_cache_rows", t * cached, "output"),
            Buffer("cache", size.cached_tokens * cached, "held"),
        ),
        (
            *norm,
            Operator("rope", (rope_input, "rope_table"), ("rotated_key",), t * (_ROPE_FLOP * d_key)),
            Operator("pack", ("rotated_key", "value"), ("packed",)),
            Operator("cache_write", ("packed",), ("new_cache_rows",)),
        ),
    )


def _heads(setup: Setup, layer: Layer) -> tuple[float, float, float] | None:
    """Return (query heads of a rank, width of a key, width of a value), None for layers without softmax."""
    a = layer.attention
    if isinstance(a, SoftmaxAttention):
        return a.n_heads / setup.layout.tp, float(a.d_head), float(a.d_v)
    if isinstance(a, LatentAttention):
        return a.n_heads / setup.layout.tp, float(a.d_nope + a.d_rope), float(a.d_value)
    return None


def _softmax(setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    """Return scaling, masking and softmax of scores that lie in memory."""
    heads = _heads(setup, layer)
    if heads is None:
        return None
    scores, mask = size.n_pairs * (heads[0] * setup.element_bytes), size.n_pairs * setup.element_bytes
    n = size.n_pairs * heads[0]
    return Chain(
        "softmax",
        (
            Buffer("scores", scores, "input"),
            Buffer("mask_values", mask, "input"),
            Buffer("scaled", scores),
            Buffer("masked", scores),
            Buffer("weights", scores, "output"),
        ),
        (
            Operator("scale", ("scores",), ("scaled",), n),
            Operator("mask", ("scaled", "mask_values"), ("masked",), n),
            Operator("softmax", ("masked",), ("weights",), n * _SOFTMAX_FLOP),
        ),
    )


def _attention(setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    """Return the whole of attention with scores in memory; fused it is flash attention."""
    heads = _heads(setup, layer)
    inner = _softmax(setup, layer, size)
    if heads is None or inner is None:
        return None
    h, d_key, d_value = heads
    e, dtype, n = setup.element_bytes, setup.dtype, size.n_pairs * h
    kv_heads = h
    if isinstance(layer.attention, SoftmaxAttention):
        kv_heads = kv_heads_per_rank(layer.attention.n_kv_heads, setup.layout.tp)
    keys = size.cached_tokens + size.n_tokens
    named = {b.name: b for b in inner.buffers}
    return Chain(
        "attention",
        (
            Buffer("query", size.n_tokens * (h * d_key * e), "input"),
            Buffer("keys", keys * (kv_heads * d_key * e), "input"),
            Buffer("values", keys * (kv_heads * d_value * e), "input"),
            named["scores"]._replace(role="inner"),
            *(named[name] for name in ("mask_values", "scaled", "masked")),
            named["weights"]._replace(role="inner"),
            Buffer("context", size.n_tokens * (h * d_value * e), "output"),
        ),
        (
            Operator("scores", ("query", "keys"), ("scores",), n * (2.0 * d_key), "matmul/16bit", dtype, "matrix"),
            *inner.operators,
            Operator(
                "weighting", ("weights", "values"), ("context",), n * (2.0 * d_value), "matmul/16bit", dtype, "matrix"
            ),
        ),
        fused_kernel=f"attention/{size.phase}",
    )


def _projections(setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    """Return the projections of one input that runtimes join: q, k and v, or both down-projections of MLA."""
    own = attention_tensors(layer.attention, setup.model.d_model)
    groups = (("q_proj", "k_proj", "v_proj"), ("q_a_proj", "kv_a_proj"))
    names = next((g for g in groups if {t.name for t in own} >= set(g)), None)
    if names is None:
        return None
    t, e, d = size.n_tokens, setup.element_bytes, setup.model.d_model
    parts = [_projection(setup, next(one for one in own if one.name == name), size) for name in names]
    return Chain(
        "qkv",
        (Buffer("hidden", t * (d * e), "input"), *(b for buffers, _ in parts for b in buffers)),
        tuple(operator for _, operator in parts),
    )


def _projection(setup: Setup, tensor: Tensor, size: ChainSize) -> tuple[tuple[Buffer, ...], Operator]:
    matmul, t = matmul_of(tensor, setup), size.n_tokens
    d_out = matmul.flop_per_row / (2.0 * matmul.depth)
    output, weight = tensor.name.removesuffix("_proj"), f"{tensor.name}_weight"
    operator = Operator(
        tensor.name,
        ("hidden", weight),
        (output,),
        t * matmul.flop_per_row,
        matmul.kernel,
        matmul.dtype,
        "matrix",
        rows=t,
        depth=matmul.depth,
    )
    return (
        Buffer(weight, matmul.weight_bytes, "held"),
        Buffer(output, t * (d_out * setup.element_bytes), "output"),
    ), operator


def _swiglu(setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    """Return the gated activation between the projections of a feed-forward block."""
    ffn = layer.ffn
    if not ffn.gated:
        return None
    if isinstance(ffn, DenseFfn):
        width = ffn.d_ff / setup.layout.tp
    else:
        assert isinstance(ffn, MoeFfn)  # the other kind of block
        width = (ffn.top_k * ffn.d_expert + ffn.d_shared) / setup.layout.tp
    row = size.n_tokens * (width * setup.element_bytes)
    n = size.n_tokens * width
    return Chain(
        "swiglu",
        (
            Buffer("gate", row, "input"),
            Buffer("up", row, "input"),
            Buffer("activated", row),
            Buffer("product", row, "output"),
        ),
        (
            Operator("silu", ("gate",), ("activated",), n * _SILU_FLOP),
            Operator("multiply", ("activated", "up"), ("product",), n),
        ),
    )


def _add_norm(setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    """Return residual addition and RMS norm as plain model code runs them, in 32 bits between the casts."""
    del layer
    d, e, t = setup.model.d_model, setup.element_bytes, size.n_tokens
    narrow, wide, one = t * (d * e), t * (d * _FP32_BYTES), t * _FP32_BYTES
    n = t * float(d)
    return Chain(
        "add-norm",
        (
            Buffer("hidden", narrow, "input"),
            Buffer("residual", narrow, "input"),
            Buffer("norm_weight", d * e, "held"),
            Buffer("sum", narrow, "output"),
            Buffer("wide_sum", wide),
            Buffer("squares", wide),
            Buffer("scale", one),
            Buffer("wide_normed", wide),
            Buffer("narrow_normed", narrow),
            Buffer("normed", narrow, "output"),
        ),
        (
            Operator("add", ("hidden", "residual"), ("sum",), n),
            Operator("widen", ("sum",), ("wide_sum",)),
            Operator("square", ("wide_sum",), ("squares",), n),
            Operator("mean_rsqrt", ("squares",), ("scale",), n),
            Operator("scale_rows", ("wide_sum", "scale"), ("wide_normed",), n),
            Operator("narrow", ("wide_normed",), ("narrow_normed",)),
            Operator("weigh", ("narrow_normed", "norm_weight"), ("normed",), n),
        ),
    )


CHAINS: Final[Mapping[str, Callable[[Setup, Layer, ChainSize], Chain | None]]] = MappingProxyType(
    {
        "kv-write": _kv_write,
        "softmax": _softmax,
        "attention": _attention,
        "qkv": _projections,
        "swiglu": _swiglu,
        "add-norm": _add_norm,
    }
)
"""Builders by the name of the chain; each returns None for a layer that has no such chain."""


def chain_of(name: str, setup: Setup, layer: Layer, size: ChainSize) -> Chain | None:
    """Return the unfused chain of that name in one layer on one rank, None where the layer has none.

    Raises UnknownNameError for another name, SpecError for a negative size.
    """
    if name not in CHAINS:
        raise UnknownNameError.of("chain", name, list(CHAINS), cure=f"Known: {', '.join(CHAINS)}.")
    if not all(np.all(value >= 0.0) for value in (size.n_tokens, size.n_pairs, size.cached_tokens)):
        raise SpecError("a chain has no size below zero", got=str(size), expected="tokens and pairs >= 0")
    return CHAINS[name](setup, layer, size)
