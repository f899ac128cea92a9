"""Feed-forward block of each layer, read from a config: dense, or routed and shared experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perfmodel.specs.families import Family
from perfmodel.specs.hf.fields import Fields
from perfmodel.specs.model import DenseFfn, Ffn, MoeFfn

__all__ = ["FfnKey", "ffn_keys", "ffn_of"]

_N_EXPERTS: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
_TOP_K: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_k",
    "num_selected_experts",
)
_D_FF: Final = (
    "intermediate_size",
    "ffn_dim",
    "ffn_hidden_size",
    "n_inner",
    "inner_hidden_size",
)
_D_EXPERT: Final = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size")
_N_SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_D_SHARED: Final = ("shared_expert_intermediate_size", "shared_intermediate_size")


@dataclass(frozen=True, slots=True)
class FfnKey:
    """What may differ between the feed-forward blocks of two layers of one model."""

    moe: bool
    width: int


def _sparse_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return which layers route to experts."""
    if not fields.count(*_N_EXPERTS):
        return (False,) * n_layers
    words = fields.words(n_layers, "mlp_layer_types")
    if words is not None:
        return tuple(word != "dense" for word in words)
    first = fields.count("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    dense = _listed(fields, "mlp_only_layers") or frozenset()
    sparse = _listed(fields, "moe_layers")
    stepped = _stepped(fields, n_layers)
    return tuple(
        i >= first and i not in dense and (i in sparse if sparse is not None else stepped[i]) for i in range(n_layers)
    )


def _listed(fields: Fields, name: str) -> frozenset[object] | None:
    """Return the layer numbers in a list, None where the key is absent."""
    found = fields.found(name)
    if found is None:
        return None
    if not isinstance(found[1], list | tuple) or not all(isinstance(entry, int) for entry in found[1]):
        fields.fault(name, found[1], "a list of layer numbers")
        return None
    return frozenset(found[1])


def _stepped(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return which layers a step between sparse layers selects; the families start counting differently."""
    frequency = fields.found("moe_layer_freq")
    if frequency is not None and isinstance(frequency[1], list | tuple):
        return tuple(bool(entry) for entry in fields.items(n_layers, "moe_layer_freq") or (True,) * n_layers)
    from_zero = fields.size("moe_layer_freq", default=1, most=4096)
    from_one = fields.size(
        "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1, most=4096
    )
    return tuple(i % from_zero == 0 and (i + 1) % from_one == 0 for i in range(n_layers))


def ffn_keys(fields: Fields, family: Family, n_layers: int, d_model: int) -> tuple[FfnKey, ...]:
    """Return the kind and width of the feed-forward block of each layer, in order."""
    sparse = _sparse_layers(fields, n_layers)
    experts = fields.sizes(n_layers, *_D_EXPERT) if any(sparse) else (1,) * n_layers
    dense = (1,) * n_layers if all(sparse) else _dense_widths(fields, family, n_layers, d_model)
    return tuple(FfnKey(sparse[i], experts[i] if sparse[i] else dense[i]) for i in range(n_layers))


def _dense_widths(fields: Fields, family: Family, n_layers: int, d_model: int) -> tuple[int, ...]:
    if fields.found("ffn_multipliers") is not None:
        return _multiplied(fields, n_layers, d_model)
    if fields.found("block_configs") is not None:
        return _block_widths(fields, n_layers, d_model)
    ratio = fields.size("expansion_ratio", default=family.d_ff_ratio, most=64) if family.d_ff_ratio else 0
    names = ("intermediate_size_mlp",) if fields.found("intermediate_size_mlp") else _D_FF
    widths = fields.sizes(n_layers, *names, default=ratio * d_model or None)
    if not family.halves_ffn:
        return widths
    if any(width % 2 for width in widths):
        fields.fault("intermediate_size", widths[0], "an even number: gate and up projection together")
    return tuple(max(1, width // 2) for width in widths)


def _rounded(value: float, step: int) -> int:
    """Return `value` cut to a whole number and raised to a multiple of `step`."""
    return -(-int(value) // step) * step


def _multiplied(fields: Fields, n_layers: int, d_model: int) -> tuple[int, ...]:
    """Return the widths of OpenELM, whose config gives a factor for each layer; rounding as in its modelling code."""
    step = fields.size("ffn_dim_divisor", default=256)
    factors = fields.items(n_layers, "ffn_multipliers") or (1.0,) * n_layers
    if not all(isinstance(f, int | float) and not isinstance(f, bool) and 0 < f < 1024 for f in factors):
        fields.fault("ffn_multipliers", factors, "numbers > 0")
        return (1,) * n_layers
    widths = [f * d_model for f in factors if isinstance(f, int | float)]
    nearest = [max(step, int(width + step / 2) // step * step) for width in widths]
    return tuple(n + step if n < 0.9 * width else n for n, width in zip(nearest, widths, strict=True))


def _block_widths(fields: Fields, n_layers: int, d_model: int) -> tuple[int, ...]:
    """Return the widths where a Nemotron-NAS config describes each block apart."""
    widths = []
    for i, block in enumerate(fields.items(n_layers, "block_configs") or ()):
        ffn = block.get("ffn") if isinstance(block, dict) else None
        factor = ffn.get("ffn_mult") if isinstance(ffn, dict) else None
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1024:
            where = f"block_configs[{i}].ffn"
            fields.fault(where, ffn, "ffn_mult > 0", "blocks without a feed-forward part cannot be modelled")
            return (1,) * n_layers
        widths.append(_rounded(2 * factor * d_model / 3, 256))
    return tuple(widths) or (1,) * n_layers


def _shared_width(fields: Fields, family: Family, d_expert: int) -> int:
    """Return the width of all shared experts together: as stated, else their number times an expert's width."""
    if fields.found(*_D_SHARED) is not None:
        return fields.count(*_D_SHARED)
    return fields.count(*_N_SHARED, default=family.n_shared) * d_expert


def ffn_of(fields: Fields, family: Family, key: FfnKey) -> Ffn:
    """Return one kind of feed-forward block in normal form."""
    if not key.moe:
        return DenseFfn(d_ff=key.width, gated=family.gated, bias=family.mlp_bias)
    d_shared = _shared_width(fields, family, key.width)
    return MoeFfn(
        n_experts=fields.size(*_N_EXPERTS),
        top_k=fields.size(*_TOP_K),
        d_expert=key.width,
        gated=family.gated,
        expert_bias=family.expert_bias,
        router_bias=family.router_bias,
        d_shared=d_shared,
        shared_gate=family.shared_gate and d_shared > 0,
    )
