"""Bytes that weights take: in a checkpoint, on a rank of a sharded model, and read by one matmul."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from perfmodel.specs.layout import Layout
from perfmodel.specs.model import Model
from perfmodel.specs.quantization import Scheme
from perfmodel.work.tensors import Tensor, head_tensor, layer_tensors, model_tensors, mtp_tensors

__all__ = [
    "model_high_bytes",
    "rank_tensor",
    "rank_tensor_bytes",
    "rank_weight_bytes",
    "stage_weight_bytes",
    "tensor_bytes",
    "total_weight_bytes",
    "weight_bytes",
]

TIED_EMBEDDING = "tied_embed_tokens"
"""Name of an embedding table that is the head as well: GGUF recipes store it as the head."""


def model_high_bytes(model: Model) -> float:
    """Return bytes of one unquantised element, by the dtype that the model states."""
    return 4.0 if model.dtype == "fp32" else 2.0


def tensor_bytes(
    tensor: Tensor, scheme: Scheme, *, high_bytes: float = 2.0, layer: int | None = None, n_layers: int | None = None
) -> float:
    """Return bytes of all copies of `tensor` under `scheme`, scales and biases included.

    `high_bytes` is the size of an element that is not quantised. A scheme that stores some layers finer (GGUF) needs
    `layer` and `n_layers`; without `layer` the mean over the layers is meant. Groups of a table of embeddings run
    along the width of a row.
    """
    high_bits = scheme.high_bits if scheme.high_bits is not None else 8 * high_bytes
    is_vector = tensor.d_in == 1 and not tensor.linear
    plain = high_bits if scheme.vector_bits is None or not is_vector else scheme.vector_bits
    d_in, d_out = (tensor.d_out, tensor.d_in) if tensor.part == "embed" else (tensor.d_in, tensor.d_out)
    bits = 0.0
    for stored, frac in scheme.stored_formats(
        tensor.name, tensor.part, linear=tensor.linear, layer=layer, n_layers=n_layers
    ):
        bits += frac * tensor.n * (plain * d_in * d_out if stored is None else stored.matrix_bits(d_in, d_out))
    if tensor.bias:
        bias_bits = scheme.bias_bits(tensor.name, tensor.part)
        bits += tensor.n_biases * (high_bits if bias_bits is None else bias_bits)
    return bits / 8


def rank_tensor(tensor: Tensor, *, tp: int = 1, ep: int = 1, moe_tp: int | None = None, vocab_pad: int = 1) -> Tensor:
    """Return what one rank holds of `tensor`; the fullest rank where a size does not divide.

    `ep` splits the number of experts and `moe_tp` the width of each; None: tp // ep, at least 1, as when experts lie
    over the ranks of the tensor-parallel group. Norms, routers and biases of row-split matrices are held whole. Key
    and value heads are never split below one. The vocabulary is padded to a multiple of `vocab_pad` first.
    """
    shard = tensor.shard
    if shard == "columns":
        return replace(tensor, d_out=ceil(tensor.d_out / tp))
    if shard == "rows":
        return replace(tensor, d_in=ceil(tensor.d_in / tp))
    if shard == "kv_columns":
        heads = max(1, tensor.kv_heads)
        return replace(tensor, d_out=tensor.d_out // heads * ceil(heads / tp), kv_heads=ceil(heads / tp))
    if shard == "vocab":
        rows = tensor.d_in if tensor.part == "embed" else tensor.d_out
        own = ceil(ceil(rows / vocab_pad) * vocab_pad / tp)
        return replace(tensor, d_in=own) if tensor.part == "embed" else replace(tensor, d_out=own)
    if shard == "experts":
        return _rank_experts(tensor, tp=tp, ep=ep, moe_tp=max(1, tp // ep) if moe_tp is None else moe_tp)
    return tensor


def _rank_experts(tensor: Tensor, *, tp: int, ep: int, moe_tp: int) -> Tensor:
    if tensor.part != "experts":
        return replace(tensor, n=ceil(tensor.n / tp))
    own = replace(tensor, n=ceil(tensor.n / ep))
    if tensor.name == "down_proj":
        return replace(own, d_in=ceil(tensor.d_in / moe_tp))
    return replace(own, d_out=ceil(tensor.d_out / moe_tp))


def _layer_rows(model: Model, scheme: Scheme, start: int, stop: int) -> Iterator[tuple[Tensor, int, int | None]]:
    """Yield tensors of layers[start:stop], how often, and one layer that stands for all stored alike."""
    if not scheme.depends_on_layer:
        for layer, n in model.layer_counts(start, stop):
            yield from ((t, n, None) for t in layer_tensors(layer, model.d_model))
        return
    alike: dict[tuple[int, tuple[float, ...]], list[int]] = {}
    for i in range(model.n_layers)[start:stop]:
        alike.setdefault((model.pattern[i], scheme.layer_rules(i, model.n_layers)), []).append(i)
    for (kind, _), indices in alike.items():
        yield from ((t, len(indices), indices[0]) for t in layer_tensors(model.layers[kind], model.d_model))


def _outer(model: Model) -> tuple[Tensor, ...]:
    """Return the tensors outside of the layers."""
    bare = model.model_copy(update={"pattern": model.pattern[-1:]})
    n_inner = len(layer_tensors(model.layers[model.pattern[-1]], model.d_model))
    outer = [tensor for tensor, _ in model_tensors(bare)][:-n_inner]
    tied = model.tied_embeddings
    return tuple(replace(t, name=TIED_EMBEDDING) if tied and t.name == "embed_tokens" else t for t in outer)


def weight_bytes(
    model: Model, scheme: Scheme, *, high_bytes: float | None = None, with_mtp: bool = False
) -> dict[str, float]:
    """Return bytes of the whole model by part; their sum is the checkpoint's size without file headers.

    `high_bytes` None: by the model's dtype. `with_mtp` adds the multi-token-prediction modules.
    """
    rows: list[tuple[Tensor, int, int | None]] = [(tensor, 1, None) for tensor in _outer(model)]
    rows += _layer_rows(model, scheme, 0, model.n_layers)
    if with_mtp:
        rows += [(tensor, 1, None) for tensor in mtp_tensors(model)]
    size = model_high_bytes(model) if high_bytes is None else high_bytes
    total: dict[str, float] = {}
    for tensor, n, layer in rows:
        stored = tensor_bytes(tensor, scheme, high_bytes=size, layer=layer, n_layers=model.n_layers)
        total[tensor.part] = total.get(tensor.part, 0.0) + n * stored
    return total


def total_weight_bytes(
    model: Model, scheme: Scheme, *, high_bytes: float | None = None, with_mtp: bool = False
) -> float:
    """Return bytes of all weights of the model."""
    return sum(weight_bytes(model, scheme, high_bytes=high_bytes, with_mtp=with_mtp).values())


def rank_weight_bytes(
    model: Model,
    scheme: Scheme,
    *,
    tp: int = 1,
    ep: int = 1,
    moe_tp: int | None = None,
    layers: tuple[int, int] | None = None,
    has_embedding: bool = True,
    has_head: bool = True,
    high_bytes: float | None = None,
    vocab_pad: int = 1,
    with_mtp: bool = False,
) -> dict[str, float]:
    """Return bytes of weights on one rank, by part.

    `layers` is the half-open range of a pipeline stage, None for all. Of what lies outside of the layers the first
    stage holds embeddings and a vision tower, the last one the final norm and the head. A last stage that does not
    hold the embedding keeps its own copy of a tied one.
    """
    start, stop = layers if layers is not None else (0, model.n_layers)
    outer = [t for t in _outer(model) if (has_head if _is_last(t) else has_embedding)]
    if model.tied_embeddings and has_head and not has_embedding:
        outer.append(head_tensor(model))
    rows: list[tuple[Tensor, int, int | None]] = [(tensor, 1, None) for tensor in outer]
    rows += _layer_rows(model, scheme, start, stop)
    if with_mtp and has_head:
        rows += [(tensor, 1, None) for tensor in mtp_tensors(model)]
    size = model_high_bytes(model) if high_bytes is None else high_bytes
    total: dict[str, float] = {}
    for t, n, layer in rows:
        own = rank_tensor(t, tp=tp, ep=ep, moe_tp=moe_tp, vocab_pad=vocab_pad)
        stored = rank_tensor_bytes(t, own, scheme, high_bytes=size, layer=layer, n_layers=model.n_layers)
        total[t.part] = total.get(t.part, 0.0) + n * stored
    return total


def stage_weight_bytes(
    model: Model, scheme: Scheme, layout: Layout, stage: int, *, high_bytes: float | None = None, with_mtp: bool = False
) -> dict[str, float]:
    """Return bytes of weights on one rank of a pipeline stage, by part."""
    return rank_weight_bytes(
        model,
        scheme,
        tp=layout.tp,
        ep=layout.ep,
        moe_tp=layout.expert_tp,
        layers=layout.stages(model.n_layers)[stage],
        has_embedding=stage == 0,
        has_head=stage == layout.pp - 1,
        high_bytes=high_bytes,
        with_mtp=with_mtp,
    )


def rank_tensor_bytes(
    whole: Tensor,
    own: Tensor,
    scheme: Scheme,
    *,
    high_bytes: float = 2.0,
    layer: int | None = None,
    n_layers: int | None = None,
) -> float:
    """Return bytes of a rank's share of a tensor. The format of a GGUF tensor was chosen before it was split."""
    if isinstance(scheme.weight, str):
        size = tensor_bytes(whole, scheme, high_bytes=high_bytes, layer=layer, n_layers=n_layers)
        return size * own.n_params / whole.n_params
    return tensor_bytes(own, scheme, high_bytes=high_bytes, layer=layer, n_layers=n_layers)


def _is_last(tensor: Tensor) -> bool:
    return tensor.part == "lm_head" or tensor.name in ("final_norm", "other")
