"""Mixture of experts: how many experts a step touches, how many tokens the busiest rank computes, what moves.

With k of E experts per token chosen alike, T tokens touch E (1 - (1 - k/E)^T) distinct experts: exact for independent
tokens, an upper bound for real routing, which is skewed. Over several groups of experts the busiest one has
mean + sqrt(2 mean ln groups) of the token-expert pairs (the usual bound for balls in bins), which decides the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from perfmodel.estimate import TINY, Num, larger, smaller
from perfmodel.specs.model import MoeFfn
from perfmodel.specs.setup import Setup
from perfmodel.work.kernel import Work
from perfmodel.work.matmul import matmul_of, ranked
from perfmodel.work.storage import rank_tensor_bytes
from perfmodel.work.tensors import Tensor

__all__ = ["Experts", "distinct_experts", "experts_of", "pairs_of_busiest_rank"]


def distinct_experts(n_tokens: Num, *, n_experts: int, top_k: int) -> Num:
    """Return the expected number of distinct experts that `n_tokens` touch.

    >>> distinct_experts(1.0, n_experts=256, top_k=8)
    8.0
    >>> round(distinct_experts(16.0, n_experts=256, top_k=8), 1)
    102.0
    """
    return n_experts * (1.0 - (1.0 - top_k / n_experts) ** n_tokens)


def pairs_of_busiest_rank(n_tokens: Num, *, top_k: int, n_experts: int, n_groups: int) -> Num:
    """Return token-expert pairs on the busiest of `n_groups` groups of experts; the mean where there is one group."""
    mean = n_tokens * (top_k / n_groups)
    most = n_tokens * min(top_k, n_experts / n_groups)
    return smaller(mean + (2.0 * log(n_groups) * mean) ** 0.5, most)


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer on one rank."""

    kernel: str
    dtype: str
    n_experts: int
    top_k: int
    n_groups: int
    expert_bytes: float
    expert_params: float
    d_model: int
    d_expert: int
    element_bytes: float
    grouped: bool
    quantise: bool

    def work(self, n_tokens: Num) -> Work:
        """Return the work of the busiest rank for `n_tokens` tokens over all ranks that share the experts."""
        pairs = pairs_of_busiest_rank(n_tokens, top_k=self.top_k, n_experts=self.n_experts, n_groups=self.n_groups)
        as_tokens = pairs * (self.n_groups / self.top_k)
        touched = distinct_experts(as_tokens, n_experts=self.n_experts, top_k=self.top_k) / self.n_groups
        touched = larger(touched, smaller(pairs, 1.0))  # with few tokens on few experts: one pair reads a whole expert
        io_per_pair = (2 * self.d_model + 3 * self.d_expert) * self.element_bytes
        return Work(
            "experts",
            self.kernel,
            self.dtype,
            flop=pairs * (2.0 * self.expert_params),
            weight_bytes=touched * self.expert_bytes,
            io_bytes=pairs * io_per_pair,
            n_launches=(4.0 if self.quantise else 2.0) if self.grouped else 3.0 * self.n_experts / self.n_groups,
            rows=pairs / (touched + TINY),
        )


def experts_of(ffn: MoeFfn, tensors: tuple[Tensor, ...], setup: Setup) -> Experts:
    """Return the experts of one rank; `tensors` are the weights of the feed-forward block."""
    whole = [t for t in tensors if t.part == "experts"]
    own = [ranked(t, setup) for t in whole]
    stored = sum(
        rank_tensor_bytes(t, part, setup.scheme, high_bytes=setup.element_bytes, n_layers=setup.model.n_layers)
        for t, part in zip(whole, own, strict=True)
    )
    n_local = own[0].n
    plain = matmul_of(whole[0], setup)
    return Experts(
        kernel=plain.kernel.replace("matmul", "moe"),
        dtype=plain.dtype,
        n_experts=ffn.n_experts,
        top_k=ffn.top_k,
        n_groups=setup.layout.ep,
        expert_bytes=stored / n_local,
        expert_params=sum(t.n_weights for t in own) / n_local,
        d_model=own[-1].d_out,
        d_expert=own[-1].d_in,
        element_bytes=setup.element_bytes,
        grouped="moe_grouped" in setup.runtime.fused,
        quantise=plain.quantise_bytes_per_row > 0,
    )
