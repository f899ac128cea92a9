"""Attention of each layer, read from a config: which kind, which heads, which window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perfmodel.specs.families import Family, QkNorm
from perfmodel.specs.hf.fields import Fields
from perfmodel.specs.model import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    SoftmaxAttention,
)

__all__ = ["AttentionKey", "HeadNames", "attention_keys", "attention_of", "traits_with_flags"]

_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
_KV_HEADS: Final = (
    "num_key_value_heads_per_layer",
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "kv_n_heads",
)
_HEAD_DIM: Final = ("head_dim", "kv_channels", "attention_head_size", "head_size")
_LINEAR_WORDS: Final = frozenset({"linear_attention", "linear", "lightning", "lightning_attention"})
_FULL_WORDS: Final = frozenset({"full_attention", "full", "global", "global_attention", "softmax", "gqa", "attention"})
_WINDOW_WORDS: Final = frozenset({"sliding_attention", "sliding", "local", "local_attention", "chunked_attention"})
_V4_WORDS: Final = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
HeadNames: Final = (*_HEADS, *_KV_HEADS, *_HEAD_DIM)


@dataclass(frozen=True, slots=True)
class AttentionKey:
    """What may differ between the attention of two layers of one model."""

    linear: bool = False
    n_heads: int = 1
    n_kv_heads: int = 1
    window_tokens: int | None = None
    ratio: int = 0
    indexer_shared: bool = False


def traits_with_flags(fields: Fields, family: Family) -> Family:
    """Return the traits of the family after the flags of this config were applied."""
    changed: dict[str, object] = {}
    attention_bias = fields.flag("attention_bias")
    if attention_bias is not None and family.attention_bias:
        changed["qkv_bias"] = attention_bias
        changed["o_bias"] = attention_bias and family.attention_bias == "qkvo"
    for key, targets in _FLAGS.items():
        value = fields.flag(key)
        if value is not None:
            changed |= dict.fromkeys(targets, value)
    if fields.flag("no_bias") is False:
        changed |= dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "norm_bias"), True)
    normed = fields.flag("use_qk_norm", "qk_norm", "qk_layernorm", "normalize_qk_projections")
    if normed is not None and not family.weightless_qk_norm:
        otherwise: QkNorm = "head" if family.qk_norm == "none" else family.qk_norm
        changed["qk_norm"] = otherwise if normed else "none"
    if fields.text("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel"):
        changed["n_norms"] = _falcon_norms(fields)
    return family.model_copy(update=changed)


_FLAGS: Final = {
    "mlp_bias": ("mlp_bias",),
    "qkv_bias": ("qkv_bias",),
    "use_qkv_bias": ("qkv_bias",),
    "add_qkv_bias": ("qkv_bias",),
    "attention_out_bias": ("o_bias",),
    "add_bias_linear": ("o_bias", "mlp_bias"),
    "use_bias": ("qkv_bias", "o_bias", "mlp_bias"),
    "bias": ("qkv_bias", "o_bias"),
    "lm_head_bias": ("lm_head_bias",),
    "attn_output_gate": ("output_gate",),
    "use_routing_bias": ("router_bias",),
    "ffn_with_glu": ("gated",),
}
"""Config keys that switch traits, whatever the family."""


def _falcon_norms(fields: Fields) -> int:
    """Return 2 norms for sequential blocks and for the two-norm form of the new architecture, else 1."""
    if fields.flag("new_decoder_architecture"):
        return fields.size("num_ln_in_parallel_attn", default=2, most=2)
    return 1 if fields.flag("parallel_attn") is not False else 2


def _is_multi_query(fields: Fields) -> bool:
    """Return whether the config says multi-query attention in a family that has that flag."""
    kind = fields.text("model_type")
    if kind in ("falcon", "RefinedWeb", "RefinedWebModel"):
        return not fields.flag("new_decoder_architecture") and fields.flag("multi_query") is not False
    if kind == "gpt_bigcode":
        return fields.flag("multi_query") is not False
    return fields.flag("multi_query") is True


def _kv_heads(fields: Fields, n_layers: int, n_heads: tuple[int, ...]) -> tuple[int, ...]:
    """Return key-value heads of each layer; a config without any has one for each query head."""
    if _is_multi_query(fields):
        return (1,) * n_layers
    if fields.flag("multi_query_attention"):
        return fields.sizes(n_layers, "multi_query_group_num", default=1)
    if fields.found("block_configs") is not None:
        return _block_kv_heads(fields, n_layers, n_heads)
    if fields.found(*_KV_HEADS) is None:
        return n_heads
    return fields.sizes(n_layers, *_KV_HEADS)


def _block_kv_heads(fields: Fields, n_layers: int, n_heads: tuple[int, ...]) -> tuple[int, ...]:
    """Return key-value heads where a Nemotron-NAS config describes each block apart."""
    heads = []
    for i, block in enumerate(fields.items(n_layers, "block_configs") or ()):
        attention = block.get("attention") if isinstance(block, dict) else None
        group = attention.get("n_heads_in_group") if isinstance(attention, dict) else None
        if not isinstance(group, int) or isinstance(group, bool) or group < 1 or n_heads[i] % group:
            fields.fault(
                f"block_configs[{i}].attention", attention, f"n_heads_in_group that divides {n_heads[i]} heads",
                "blocks without attention cannot be modelled",
            )  # fmt: skip
            return n_heads
        heads.append(n_heads[i] // group)
    return tuple(heads) or n_heads


def _check_groups(fields: Fields, n_heads: tuple[int, ...], n_kv_heads: tuple[int, ...]) -> None:
    for i, (heads, kv) in enumerate(zip(n_heads, n_kv_heads, strict=True)):
        if heads % kv:
            fields.fault("num_key_value_heads", kv, f"a divisor of the {heads} attention heads (layer {i})")
            return


def _windows(fields: Fields, family: Family, n_layers: int, context: int | None) -> tuple[int | None, ...]:
    """Return the sliding window of each layer; a window that holds the whole context is none."""
    words = fields.words(n_layers, "layer_types")
    patterned = fields.found("sliding_window_pattern", "_sliding_window_pattern") is not None
    if family.window_rule == "none" and words is None and not patterned:
        return (None,) * n_layers
    window = fields.maybe_size("sliding_window", "sliding_window_size", "attention_chunk_size")
    switched = fields.flag("use_sliding_window")
    off = switched is False or (family.window_rule == "upper" and not switched)
    if window is None or off or (context is not None and window >= context):
        return (None,) * n_layers
    if words is not None:
        return tuple(window if word in _WINDOW_WORDS else None for word in words)
    return tuple(window if bound else None for bound in _bound(fields, family, n_layers))


def _bound(fields: Fields, family: Family, n_layers: int) -> tuple[bool, ...]:
    """Return which layers a window binds where the config has no list of layer types."""
    pattern = fields.found("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is not None and isinstance(pattern[1], str) and pattern[1]:
        return tuple(pattern[1][i % len(pattern[1])] == "L" for i in range(n_layers))
    every = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=family.window_pattern, most=4096)
    if family.window_rule == "pattern" or pattern is not None:
        return tuple((i + 1) % every != 0 for i in range(n_layers))
    if family.window_rule == "upper":
        first = fields.count("max_window_layers", default=0)
        return tuple(i >= first for i in range(n_layers))
    if family.window_rule == "alternate":
        return tuple(i % 2 == 0 for i in range(n_layers))
    return (family.window_rule == "all",) * n_layers


def _linear_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return which layers have linear attention."""
    if fields.found("attn_type_list") is not None:
        kinds = fields.items(n_layers, "attn_type_list") or ()
        if any(kind not in (0, 1) for kind in kinds):
            fields.fault("attn_type_list", kinds, "0 (lightning) or 1 (softmax) for each layer")
        return tuple(kind == 0 for kind in kinds) or (False,) * n_layers
    words = fields.words(n_layers, "layer_types")
    if words is not None:
        known = _LINEAR_WORDS | _FULL_WORDS | _WINDOW_WORDS | _V4_WORDS.keys()
        odd = sorted({word for word in words if word not in known})
        if odd:
            fields.fault(
                "layer_types", ", ".join(odd), "full, sliding or linear attention", "other layers are not modelled"
            )
        return tuple(word in _LINEAR_WORDS for word in words)
    if fields.found("full_attention_interval") is not None:
        every = fields.size("full_attention_interval", most=4096)
        return tuple((i + 1) % every != 0 for i in range(n_layers))
    return (False,) * n_layers


def _shared_indexers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return which layers reuse the token choice of an earlier layer (GLM-5.2)."""
    words = fields.words(n_layers, "indexer_types")
    if words is not None:
        return tuple(word == "shared" for word in words)
    letters = fields.found("index_topk_pattern")
    if letters is not None and isinstance(letters[1], str) and len(letters[1]) >= n_layers:
        return tuple(letter == "S" for letter in letters[1][:n_layers])
    every = fields.size("index_topk_freq", default=1, most=4096)
    offset = fields.count("index_skip_topk_offset", default=1)
    return tuple(max(i - offset + 1, 0) % every != 0 for i in range(n_layers))


def _ratios(fields: Fields, family: Family, n_layers: int) -> tuple[int, ...]:
    """Return tokens per compressed entry of each layer of DeepSeek-V4; 0: window only."""
    if not family.compressed:
        return (0,) * n_layers
    words = fields.words(n_layers, "layer_types")
    if words is not None and fields.found("compress_ratios") is None:
        return tuple(_V4_WORDS.get(word, 0) for word in words)
    if fields.found("compress_ratios") is None:
        fields.missing("compress_ratios", cure="give the list with one ratio per layer")
        return (0,) * n_layers
    entries = fields.items(n_layers, "compress_ratios", longer=True) or (0,) * n_layers
    if any(isinstance(e, bool) or not isinstance(e, int) or not 0 <= e < 2**20 for e in entries):
        fields.fault("compress_ratios", entries, "whole numbers >= 0")
        return (0,) * n_layers
    return tuple(e for e in entries if isinstance(e, int))


def attention_keys(fields: Fields, family: Family, n_layers: int, context: int | None) -> tuple[AttentionKey, ...]:
    """Return the kind of attention of each layer, in order."""
    n_heads = fields.sizes(n_layers, *_HEADS)
    latent = fields.found("kv_lora_rank") is not None
    n_kv = n_heads if latent or family.compressed else _kv_heads(fields, n_layers, n_heads)
    _check_groups(fields, n_heads, n_kv)
    linear = _linear_layers(fields, n_layers)
    windows = (None,) * n_layers if latent or family.compressed else _windows(fields, family, n_layers, context)
    shared = _shared_indexers(fields, n_layers) if latent else (False,) * n_layers
    ratios = _ratios(fields, family, n_layers)
    return tuple(
        AttentionKey(True) if linear[i] else AttentionKey(False, n_heads[i], n_kv[i], windows[i], ratios[i], shared[i])
        for i in range(n_layers)
    )


def _head_dim(fields: Fields, d_model: int, n_heads: int) -> int:
    """Return the width of a head: as stated, else hidden size over heads."""
    if fields.found(*_HEAD_DIM) is not None:
        return fields.size(*_HEAD_DIM)
    if d_model % n_heads:
        fields.fault(
            "num_attention_heads", n_heads, f"a divisor of hidden_size {d_model}", "or give head_dim in the config"
        )
    return max(1, d_model // n_heads)


def _indexer(fields: Fields, *, shared: bool) -> Indexer | None:
    if fields.found("index_n_heads") is None:
        return None
    d_head = fields.size("index_head_dim")
    return Indexer(
        n_heads=fields.size("index_n_heads"),
        d_head=d_head,
        top_k=fields.size("index_topk"),
        shared=shared,
        key_cache_bytes=d_head + 4 * -(-d_head // 128),
    )


def _latent(fields: Fields, key: AttentionKey) -> LatentAttention:
    return LatentAttention(
        n_heads=key.n_heads,
        q_lora_rank=fields.maybe_size("q_lora_rank"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        d_nope=fields.size("qk_nope_head_dim"),
        d_rope=fields.size("qk_rope_head_dim"),
        d_value=fields.size("v_head_dim"),
        indexer=_indexer(fields, shared=key.indexer_shared),
    )


def _compressed(fields: Fields, key: AttentionKey) -> CompressedAttention:
    return CompressedAttention(
        n_heads=key.n_heads,
        d_head=fields.size("head_dim"),
        d_rope=fields.size("qk_rope_head_dim"),
        q_lora_rank=fields.size("q_lora_rank"),
        o_groups=fields.size("o_groups"),
        o_lora_rank=fields.size("o_lora_rank"),
        window_tokens=fields.size("sliding_window"),
        ratio=key.ratio,
        indexer=_indexer(fields, shared=False) if key.ratio == 4 else None,
    )


def _linear(fields: Fields, family: Family, d_model: int) -> LinearAttention:
    if family.linear_variant == "lightning":
        n_heads = fields.size(*_HEADS)
        d_head = _head_dim(fields, d_model, n_heads)
        return LinearAttention(
            variant="lightning",
            n_key_heads=n_heads,
            n_value_heads=n_heads,
            d_key=d_head,
            d_value=d_head,
            state_dtype=family.linear_state_dtype,
        )
    return LinearAttention(
        variant="gated_deltanet",
        n_key_heads=fields.size("linear_num_key_heads"),
        n_value_heads=fields.size("linear_num_value_heads"),
        d_key=fields.size("linear_key_head_dim"),
        d_value=fields.size("linear_value_head_dim"),
        conv_width=fields.count("linear_conv_kernel_dim", default=4),
        state_dtype=family.linear_state_dtype,
    )


def attention_of(fields: Fields, family: Family, key: AttentionKey, d_model: int) -> Attention:
    """Return one kind of attention in normal form. Latent fields win over the head counts beside them."""
    if key.linear:
        return _linear(fields, family, d_model)
    if family.compressed:
        return _compressed(fields, key)
    if fields.found("kv_lora_rank") is not None:
        return _latent(fields, key)
    d_head = _head_dim(fields, d_model, key.n_heads)
    return SoftmaxAttention(
        n_heads=key.n_heads,
        n_kv_heads=key.n_kv_heads,
        d_head=d_head,
        d_value=fields.maybe_size("v_head_dim"),
        window_tokens=key.window_tokens,
        qkv_bias=family.qkv_bias,
        o_bias=family.o_bias,
        qk_norm=family.qk_norm,
        sinks=family.sinks,
        output_gate=family.output_gate,
    )
