"""Messages behind attention, cut into groups: how many bytes each carries, padded to what the fabric moves.

With n ranks each rank holds h / n heads. What they exchange for T tokens, e bytes an element:

    output       T x d_model x e          all-reduce after the output projection: the same however heads are grouped
    head slices  T x heads x d_head x e   the attention output of some heads, before the projection
    gradient     heads x d_head x d_head x e

Cut by columns, g messages carry 1/g of the output each. Cut by heads, every group of heads gives a partial sum of the
whole output: g messages of the full size. A message of which each rank moves a share is padded to whole units of each
share: unit x n x g x ceil(S / (unit x n x g)).
"""

from __future__ import annotations

from typing import Literal

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, ceiling
from perfmodel.work.kernel import Message, Work

__all__ = [
    "Split",
    "group_message",
    "group_work",
    "head_gradient_bytes",
    "head_slice_bytes",
    "output_bytes",
    "padded_bytes",
    "row_useful_frac",
    "tokens_behind",
]

Split = Literal["columns", "heads"]


def output_bytes(*, n_tokens: Num, d_model: Num, element_bytes: Num) -> Num:
    """Return the bytes of the output that an all-reduce adds up over ranks.

    >>> output_bytes(n_tokens=320.0, d_model=2048.0, element_bytes=2.0) / 2**20
    1.25
    """
    return n_tokens * d_model * element_bytes


def head_slice_bytes(*, n_tokens: Num, n_heads: Num, d_head: Num, element_bytes: Num) -> Num:
    """Return the bytes that some heads give for some tokens.

    >>> head_slice_bytes(n_tokens=1280.0, n_heads=8.0, d_head=64.0, element_bytes=2.0) / 2**20
    1.25
    """
    return n_tokens * n_heads * d_head * element_bytes


def head_gradient_bytes(*, n_heads: Num, d_head: Num, element_bytes: Num) -> Num:
    """Return the bytes of a square of d_head for each head: a gradient of shape [heads, d_head, d_head].

    >>> head_gradient_bytes(n_heads=4.0, d_head=64.0, element_bytes=4.0) / 2**10
    64.0
    """
    return n_heads * d_head * d_head * element_bytes


def tokens_behind(n_bytes: Num, *, d_row: Num, element_bytes: Num) -> Num:
    """Return the tokens whose rows of `d_row` elements fill a message.

    >>> tokens_behind(1.25 * 2**20, d_row=8 * 64.0, element_bytes=2.0)
    1280.0
    """
    return n_bytes / (d_row * element_bytes)


def padded_bytes(n_bytes: Num, *, unit_bytes: float, n_shares: float) -> Num:
    """Return the bytes that are moved where each of `n_shares` equal shares is rounded up to whole units; 0: none.

    >>> padded_bytes(1000.0, unit_bytes=512.0, n_shares=4.0), padded_bytes(1000.0, unit_bytes=0.0, n_shares=4.0)
    (2048.0, 1000.0)
    """
    step = unit_bytes * n_shares
    return ceiling(n_bytes / step) * step if step else n_bytes


def row_useful_frac(*, d_row: Num, element_bytes: Num, unit_bytes: float) -> Num:
    """Return the share of moved bytes that is useful where every row is rounded up to whole units on its own.

    >>> row_useful_frac(d_row=80.0, element_bytes=2.0, unit_bytes=128.0)
    0.625
    """
    return d_row * element_bytes / padded_bytes(d_row * element_bytes, unit_bytes=unit_bytes, n_shares=1.0)


def group_message(message: Message, n_groups: int, *, split: Split = "columns", unit_bytes: float = 0.0) -> Message:
    """Return one of the messages that a message is cut into, padded; raises SpecError for less than one group."""
    if n_groups < 1:
        raise SpecError("the heads cannot be grouped", got=f"{n_groups} groups", expected="at least 1")
    part = message.n_bytes * (1.0 / n_groups) if split == "columns" else message.n_bytes
    padded = padded_bytes(part, unit_bytes=unit_bytes, n_shares=float(message.n_ranks))
    return message._replace(name=f"{message.name}_of_group", n_bytes=padded)


def group_work(work: Work, output: Num, n_groups: int, *, split: Split = "columns") -> Work:
    """Return the part of the output projection behind one message; `output` is the bytes that the whole one writes.

    Cut by columns the input is read for each group again; cut by heads the output is written for each group again.
    """
    share = 1.0 / n_groups
    read = (work.io_bytes if work.io_bytes is not None else output) - output
    io_bytes = read + output * share if split == "columns" else read * share + output
    depth = None if work.depth is None else work.depth if split == "columns" else work.depth * share
    weight = None if work.weight_bytes is None else work.weight_bytes * share
    return work._replace(
        name=f"{work.name}_of_group", flop=work.flop * share, weight_bytes=weight, io_bytes=io_bytes, depth=depth
    )
