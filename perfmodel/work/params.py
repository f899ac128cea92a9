"""Exact parameter counts, by part and by the three customs of counting "active" ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfmodel.specs.model import Model, MoeFfn
from perfmodel.work.tensors import Part, layer_tensors, model_tensors, mtp_tensors

__all__ = ["ParamCounts", "param_counts"]


@dataclass(frozen=True, slots=True)
class ParamCounts:
    """Parameters of a model: weights, biases and norms as stored; scales of quantised weights do not count.

    Active ones are those that one token meets: all but the routed experts that were not chosen. The three customs
    differ in the tables: with everything (DeepSeek-V3's 37.6 B), without the input table, which is a look-up
    (gpt-oss's 5.1 B), and without input table and head (GLM-4.5's 32 B). A tied table serves as the head, so that it
    stays in the second count. A learned position table stays in all three.
    """

    total: int
    with_mtp: int
    by_part: Mapping[Part, int]
    active_incl_embedding: int
    active_excl_input_embedding: int
    active_excl_embed_and_head: int

    @property
    def mtp(self) -> int:
        """Parameters of the multi-token-prediction modules."""
        return self.with_mtp - self.total


def _idle_expert_params(model: Model) -> int:
    """Return the parameters of the experts that a token does not visit."""
    idle = 0
    for layer, n in model.layer_counts():
        if isinstance(layer.ffn, MoeFfn):
            experts = sum(t.n_params for t in layer_tensors(layer, model.d_model) if t.part == "experts")
            idle += n * (experts // layer.ffn.n_experts) * (layer.ffn.n_experts - layer.ffn.top_k)
    return idle


def param_counts(model: Model) -> ParamCounts:
    """Return the exact parameter counts of a model.

    A vision tower, where the model has one, is in `total` and in `by_part`, and in no active count.
    """
    by_part: dict[Part, int] = {}
    for tensor, n in model_tensors(model):
        by_part[tensor.part] = by_part.get(tensor.part, 0) + n * tensor.n_params
    total = sum(by_part.values())
    active = total - _idle_expert_params(model) - by_part.get("vision", 0)
    table = model.vocab_size * model.d_model
    head = by_part.get("lm_head", 0)
    return ParamCounts(
        total=total,
        with_mtp=total + sum(tensor.n_params for tensor in mtp_tensors(model)),
        by_part=MappingProxyType(by_part),
        active_incl_embedding=active,
        active_excl_input_embedding=active if model.tied_embeddings else active - table,
        active_excl_embed_and_head=active - table - head,
    )
