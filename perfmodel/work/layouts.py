"""Which blocks of queries and caches an attention kernel reads, layout by layout.

A head's tokens lie one head row apart where tokens come first ([B,L,H,D], [B,K,H,D]) and in one piece where heads come
first ([B,H,L,D], [B,H,K,D]: per-head slices). A latent cache has no head axis: one row serves all heads, and a kernel
reads it whole, or its rotary part by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfmodel.errors import SpecError
from perfmodel.specs.model import LatentAttention, Model, SoftmaxAttention

__all__ = ["LayoutRead", "layout_reads"]


class LayoutRead(NamedTuple):
    """A block that is read at once: what it is, the layout of its tensor, sizes of all axes, how many of some."""

    name: str
    layout: str
    sizes: dict[str, int]
    read: dict[str, int]


def layout_reads(model: Model, *, n_seqs: int, n_tokens: int) -> tuple[LayoutRead, ...]:
    """Return the reads of the model's first attention layer over a context; raises SpecError for one without heads."""
    for layer in model.layers:
        attention = layer.attention
        if isinstance(attention, LatentAttention):
            return tuple(_latent(attention, n_seqs, n_tokens))
        if isinstance(attention, SoftmaxAttention):
            return tuple(_softmax(attention, n_seqs, n_tokens))
    raise SpecError(
        f"no layouts are known for the attention of {model.name}", expected="multi-head, grouped or latent attention"
    )


def _heads(name: str, tokens: str, n_seqs: int, n_tokens: int, n_heads: int, width: int) -> Iterator[LayoutRead]:
    """Yield one head of a tensor, with tokens first and with heads first."""
    sizes, one = {"B": n_seqs, tokens: n_tokens, "H": n_heads, "D": width}, {"B": 1, "H": 1}
    yield LayoutRead(f"{name} of a head, tokens first", f"[B,{tokens},H,D]", sizes, one)
    yield LayoutRead(f"{name} of a head, heads first", f"[B,H,{tokens},D]", sizes, one)


def _softmax(attention: SoftmaxAttention, n_seqs: int, n_tokens: int) -> Iterator[LayoutRead]:
    yield from _heads("queries", "L", n_seqs, n_tokens, attention.n_heads, attention.d_head)
    yield from _heads("cached keys", "K", n_seqs, n_tokens, attention.n_kv_heads, attention.d_head)


def _latent(attention: LatentAttention, n_seqs: int, n_tokens: int) -> Iterator[LayoutRead]:
    width = attention.d_nope + attention.d_rope
    yield from _heads("queries", "L", n_seqs, n_tokens, attention.n_heads, width)
    yield from _heads("expanded keys", "K", n_seqs, n_tokens, attention.n_heads, width)
    sizes = {"B": n_seqs, "K": n_tokens, "C": attention.d_latent}
    yield LayoutRead("latent cache of a sequence", "[B,K,C]", sizes, {"B": 1})
    yield LayoutRead("latent of a token", "[B,K,C]", sizes, {"B": 1, "K": 1})
    if attention.d_latent % attention.d_rope == 0:
        yield LayoutRead("rotary part of the latents", "[B,K,C]", sizes, {"B": 1, "C": attention.d_rope})
