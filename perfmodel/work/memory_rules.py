"""What decides memory before it is divided: options, scheduler limits, the activation peak, and how KV is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Final

import numpy as np

from perfmodel.errors import Fault, SpecError
from perfmodel.estimate import Num
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import (
    CompressedAttention,
    DenseFfn,
    LatentAttention,
    Layer,
    LinearAttention,
    Model,
    SoftmaxAttention,
)
from perfmodel.specs.runtime import ActivationModel, Runtime
from perfmodel.work.kv import KvFootprint, KvLayout, kv_heads_per_rank

__all__ = [
    "MemoryOptions",
    "StepLimits",
    "activation_peak_bytes",
    "cached_model",
    "dual_pool_tokens",
    "kv_capacity_tokens",
    "sequence_bytes",
    "step_limits",
]

_GATED_COPIES: Final = 3.0
"""Tensors that a gated block holds at once (gate, up, product): what `ffn_copies` is stated for. A plain one has two.
A count that follows from the block, not a measured figure."""


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What the user decides, or read off a log; None leaves a thing to the engine's default, and the plan says so.

    `kv_cache_memory_bytes` is one rank's pool (vLLM --kv-cache-memory-bytes, MindIE npuMemSize);
    `max_total_tokens` caps it (SGLang). `element_bytes` is one unquantised weight or activation. The four `observed_`
    values replace predictions for each rank. `pool_frac` is the share of the rest that becomes the pool (0.5 for
    vllm-ascend on 310P, which keeps as much for attention workspace). Offload and swap are per rank.
    """

    utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    block_tokens: int | None = None
    element_bytes: float | None = None
    kv_element_bytes: float | None = None
    kv_layout: KvLayout = "plain"
    kv_cache_memory_bytes: float | None = None
    num_gpu_blocks_override: int | None = None
    max_total_tokens: int | None = None
    enforce_eager: bool | None = None
    total_bytes: float | None = None
    used_by_others_bytes: float = 0.0
    swa_full_ratio: float | None = None
    pool_frac: float = 1.0
    cpu_offload_bytes: float = 0.0
    swap_space_bytes: float = 0.0
    with_mtp: bool = False
    observed_weights_bytes: float | None = None
    observed_activation_bytes: float | None = None
    observed_non_torch_bytes: float | None = None
    observed_graph_bytes: float | None = None

    def __post_init__(self) -> None:
        faults = [
            Fault(name, repr(value), "a fraction above 0 and at most 1")
            for name, value in (
                ("utilization", self.utilization),
                ("pool_frac", self.pool_frac),
                ("swa_full_ratio", self.swa_full_ratio),
            )
            if value is not None and not 0 < value <= 1
        ]
        counts = (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_tokens",
            "element_bytes",
            "kv_element_bytes",
        )
        for name in (*counts, "max_total_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                faults.append(Fault(name, repr(value), "a number above 0"))
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name.endswith("_bytes") and value is not None and not 0 <= value < inf:
                faults.append(Fault(name, repr(value), "bytes, 0 or more"))
        if faults:
            raise SpecError("the memory options cannot be used", faults=faults)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What one step may hold, as the engine's scheduler decides it from flags and defaults."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    assumed: tuple[str, ...] = ()


def step_limits(model: Model, runtime: Runtime, options: MemoryOptions, device: Device) -> StepLimits:
    """Return what a step may hold, and every default that was taken.

    Without chunked prefill a whole prompt has to fit in one step, so that the budget follows the context limit; some
    engines turn chunking on by themselves beyond a limit, which makes memory use fall there.
    """
    rules, assumed = runtime.scheduler, []
    total = device.usable_memory.value if options.total_bytes is None else options.total_bytes
    large = rules.large_device
    if large is not None and not (total > large.above and device.family not in large.not_families):
        large = None
    length = options.max_model_len or rules.max_model_len or model.max_position_tokens
    if length is None:
        raise SpecError(
            f"{model.title or model.name} states no context limit",
            where="max_model_len",
            expected="the longest context that has to be served",
            cure="Give --max-model-len.",
        )
    if options.max_model_len is None:
        assumed.append(f"context limit {length} tokens ({'engine' if rules.max_model_len else 'model'} default)")
    n_seqs = options.max_num_seqs
    if n_seqs is None:
        n_seqs = large.max_num_seqs if large else rules.max_num_seqs
        assumed.append(f"max_num_seqs {n_seqs} (default of {runtime.name})")
    chunked = options.chunked_prefill
    if chunked is None:
        above = rules.chunked_prefill_above_tokens
        chunked = rules.chunked_prefill or (above is not None and length > above)
        if chunked and not rules.chunked_prefill:
            assumed.append(f"chunked prefill on, since the context limit {length} is above {above}")
    budget = options.max_num_batched_tokens
    if budget is None:
        plain = large.max_num_batched_tokens if large else rules.max_num_batched_tokens
        budget = (rules.chunk_tokens or plain) if chunked else max(plain, length)
        assumed.append(f"max_num_batched_tokens {budget} (default of {runtime.name})")
    elif not chunked and budget < length:
        raise SpecError(
            "a prompt of full length does not fit in one step",
            where="max_num_batched_tokens",
            got=str(budget),
            expected=f"at least the context limit {length}",
            cure="Raise it, lower max_model_len, or turn chunked prefill on.",
        )
    return StepLimits(length, min(n_seqs, budget), budget, chunked, tuple(assumed))


def _attention_width(layer: Layer, tp: int) -> float:
    """Return the elements of queries, keys, values and heads' output that a rank holds for one token."""
    a = layer.attention
    if isinstance(a, SoftmaxAttention):
        heads = ceil(a.n_heads / tp)
        kv = kv_heads_per_rank(a.n_kv_heads, tp) * (a.d_head + a.d_v)
        return heads * (a.d_head * (2 if a.output_gate else 1) + a.d_v) + kv
    if isinstance(a, LatentAttention):
        return ceil(a.n_heads / tp) * (2 * (a.d_nope + a.d_rope) + 2 * a.d_value) + a.d_latent
    if isinstance(a, LinearAttention):
        return (2 * a.n_key_heads * a.d_key + 3 * a.n_value_heads * a.d_value) / tp
    assert isinstance(a, CompressedAttention)
    return 2 * ceil(a.n_heads / tp) * a.d_head + a.d_head


def _ffn_elements(layer: Layer, d_model: int, n_tokens: Num, *, law: ActivationModel, layout: Layout) -> Num:
    """Return the elements that a feed-forward block holds at its peak beside the residual stream."""
    ffn = layer.ffn
    if isinstance(ffn, DenseFfn):
        return n_tokens * law.ffn_copies * (1.0 if ffn.gated else 2 / _GATED_COPIES) * ceil(ffn.d_ff / layout.tp)
    width = ceil(ffn.d_expert / layout.expert_tp)
    up = (2 if ffn.gated else 1) * width
    # vLLM's fused kernel shares one buffer between its first output (up) and its last one (d_model wide).
    routed = law.ffn_copies / _GATED_COPIES * ffn.top_k * (max(up, d_model) + width)
    at_once = n_tokens * layout.dp
    if law.expert_chunk_tokens is not None:
        at_once = np.minimum(at_once, law.expert_chunk_tokens)
    return at_once * routed + n_tokens * law.ffn_copies * ceil(ffn.d_shared / layout.tp)


def activation_peak_bytes(
    model: Model,
    law: ActivationModel,
    *,
    layout: Layout,
    n_tokens: Num,
    n_seqs: Num,
    element_bytes: float = 2.0,
    samples: bool = True,
    start: int = 0,
    stop: int | None = None,
) -> Num:
    """Return the peak of temporary memory on a rank in a step of `n_tokens` with `n_seqs` sampled ones; broadcasts.

    `samples` says whether the rank holds whole logits. Source of the form: buffers alive at once in vLLM's model code;
    of the coefficients: the runtime profile.
    """
    stream = law.hidden_copies + (law.collective_copies if layout.tp > 1 else 0.0)
    peak: Num = 0.0
    for layer, _ in model.layer_counts(start, stop):
        ffn = _ffn_elements(layer, model.d_model, n_tokens, law=law, layout=layout)
        attention = n_tokens * law.attention_copies * _attention_width(layer, layout.tp)
        peak = np.maximum(peak, n_tokens * stream * model.d_model + np.maximum(ffn, attention))
    logits = law.logits_bytes * n_seqs * model.vocab_size if samples else 0.0
    result = np.maximum(peak * element_bytes, logits) + law.constant
    return result if isinstance(result, np.ndarray) else float(result)


def cached_model(model: Model, runtime: Runtime) -> Model:
    """Return the model as the engine's cache sees it: where it does so, latents expanded and windows ignored."""
    layers = []
    for layer in model.layers:
        a = layer.attention
        if isinstance(a, LatentAttention) and not runtime.latent_cache:
            width = runtime.expanded_head
            plain = SoftmaxAttention(
                n_heads=a.n_heads,
                n_kv_heads=a.n_heads,
                d_head=width or a.d_nope + a.d_rope,
                d_value=width or a.d_value,
            )
            layer = layer.model_copy(update={"attention": plain})
        elif isinstance(a, SoftmaxAttention) and a.window_tokens and not runtime.windowed_cache:
            layer = layer.model_copy(update={"attention": a.model_copy(update={"window_tokens": None})})
        layers.append(layer)
    return model.model_copy(update={"layers": tuple(layers)})


def kv_capacity_tokens(*, available_bytes: Num, bytes_per_token: Num, block_tokens: Num) -> Num:
    """Return the tokens that whole blocks of a pool hold, 0 where nothing is left; broadcasts.

    >>> kv_capacity_tokens(available_bytes=4093640704.0, bytes_per_token=131072.0, block_tokens=16.0)
    31232.0
    """
    # Room that differs from a whole block by rounding noise of the bytes before it still counts as that block.
    blocks = np.floor(np.maximum(available_bytes, 0.0) / (bytes_per_token * block_tokens) * (1 + 1e-12))
    result = blocks * block_tokens
    return result if isinstance(result, np.ndarray) else float(result)


def dual_pool_tokens(
    *, available_bytes: Num, full_bytes_per_token: Num, window_bytes_per_token: Num, swa_full_ratio: Num
) -> tuple[Num, Num]:
    """Return tokens of the full pool and of the sliding-window pool that together fill the room; broadcasts.

    The window pool has `swa_full_ratio` tokens for each token of the full one (SGLang).
    """
    both = full_bytes_per_token + swa_full_ratio * window_bytes_per_token
    full = np.floor(np.maximum(available_bytes, 0.0) / both)
    return full, np.floor(full * swa_full_ratio)


def sequence_bytes(footprint: KvFootprint, length: float, *, block_tokens: int, margin_tokens: float) -> float:
    """Return what a sequence takes in whole blocks; a window needs `margin_tokens` more while a chunk passes it."""

    def in_blocks(n_tokens: float) -> float:
        return ceil(n_tokens / block_tokens) * block_tokens

    windows = sum(b * in_blocks(min(length, w + margin_tokens)) for b, w in footprint.windows)
    return footprint.growth_bytes_per_token * in_blocks(length) + windows + footprint.state_bytes_per_sequence
