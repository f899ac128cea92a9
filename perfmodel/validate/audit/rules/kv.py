"""Checks of what KV memory wastes under a policy, and of what moving caches takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from perfmodel.bisection import last_true
from perfmodel.serving.fragmentation import internal_waste_frac, reallocation_s
from perfmodel.serving.kv_policy import Fixed, KvPolicy, Paged, Window
from perfmodel.serving.lengths import LengthDistribution, uniform
from perfmodel.units import GB, time_text
from perfmodel.validate.audit.base import Check, Desk, Ref
from perfmodel.validate.audit.verdict import Finding, graded

__all__ = ["KvWaste", "Reallocation"]

_USUAL_BLOCKS: Final = (16, 128)
"""Tokens of a block in engines: vLLM on GPUs, MindIE and vLLM on Ascend."""
_MOST_TOKENS: Final = 2_000_000
Tokens = Annotated[int, Field(ge=1)]


class KvWaste(Check):
    """Share of KV memory that is held and not used, for lengths spread evenly between two figures."""

    kind: Literal["kv_waste"]
    policy: Literal["fixed", "paged", "window"]
    reserved_tokens: Tokens | None = None
    block_tokens: Tokens | None = None
    window_tokens: Tokens | None = None
    low_tokens: Ref
    high_tokens: Ref
    figure: Ref

    @model_validator(mode="after")
    def _policy_is_whole(self) -> KvWaste:
        if self.policy == "fixed" and self.reserved_tokens is None:
            raise ValueError("a fixed policy needs reserved_tokens")
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the waste of the policy, and what share of prompts or which blocks would give the figure."""
        stated = desk.printed(self.figure)
        lengths = uniform(
            desk.count(self.low_tokens, most=_MOST_TOKENS), desk.count(self.high_tokens, most=_MOST_TOKENS)
        )
        low, high, model, solved, working = (self._fixed if self.reserved_tokens else self._blocks)(
            lengths, stated.value
        )
        spread = f"{int(lengths.tokens.min()):,} to {lengths.most_tokens:,} tokens"
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated.value,
            model=model,
            low=low - stated.resolution,
            high=high + stated.resolution,
            most=1.0,
            inside=f"the waste of this policy for {spread}",
            cause=f"{100 * low:.3g} to {100 * high:.3g} % for {spread}; {solved}"
            if high - low > stated.resolution
            else f"{100 * model:.4g} % for {spread}; {solved}",
            bound="more than everything",
            working=(*working, solved),
        )

    def _fixed(self, lengths: LengthDistribution, stated: float) -> tuple[float, float, float, str, tuple[str, ...]]:
        reserved = float(self.reserved_tokens or 1)
        whole = internal_waste_frac(Fixed(int(reserved)), lengths)
        # a conversation that grows evenly from p to all of its n tokens holds (1 + p) / 2 of them on average, and is
        # there for as long as it grows: 1 - (1 + p) / 2 x E[n^2] / (E[n] x reserved)
        n = lengths.tokens.astype(np.float64)
        weighted = float(n**2 @ lengths.share) / lengths.mean_tokens
        empty = 1.0 - 0.5 * weighted / reserved
        share = 2.0 * (1.0 - stated) * reserved / weighted - 1.0
        solved = (
            f"the figure is what conversations give that start at {100 * share:.0f} % of their length and grow"
            if 0.0 <= share < 1.0
            else "no conversations that grow give the figure"
        )
        working = (
            f"1 - mean / reserved = 1 - {lengths.mean_tokens:,.0f} / {reserved:,.0f} = {100 * whole:.4g} %",
            f"growing from nothing: 1 - {weighted:,.0f} / (2 x {reserved:,.0f}) = {100 * empty:.3g} %",
        )
        return whole, whole, whole, solved, working

    def _blocks(self, lengths: LengthDistribution, stated: float) -> tuple[float, float, float, str, tuple[str, ...]]:
        blocks = (self.block_tokens,) if self.block_tokens else _USUAL_BLOCKS

        def policy(block: int) -> KvPolicy:
            return Window(self.window_tokens, block) if self.window_tokens else Paged(block)

        wastes = {block: internal_waste_frac(policy(block), lengths) for block in blocks}
        needed = last_true(lambda n: internal_waste_frac(policy(n), lengths) < stated, 1, lengths.most_tokens) or 1
        low, high = min(wastes.values()), max(wastes.values())
        listed = ", ".join(f"blocks of {block} waste {100 * waste:.2g} %" for block, waste in wastes.items())
        solved = f"the figure is what blocks of about {needed:,} tokens waste"
        return low, high, high, solved, (listed,)


class Reallocation(Check):
    """Time that moving caches to other places takes, or saves."""

    kind: Literal["reallocation"]
    device: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield how many bytes the time would move, against the memory of the device."""
        stated, device = desk.value(self.figure), desk.device(self.device)
        rate = device.dram_bytes_per_s
        copied = 0.5 * stated * rate
        whole = reallocation_s(copied_bytes=device.usable_memory.value, n_device_calls=0.0, bytes_per_s=rate)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=float(whole),
            low=float("nan"),
            high=float("nan"),
            most=float(whole),
            inside="",
            cause=f"as copying alone it would move {copied / GB:.3g} GB, "
            f"{100 * copied / device.usable_memory.value:.0f} % of the memory; how much moves is not stated",
            bound=f"longer than copying the whole memory takes: {time_text(float(whole))}",
            working=(f"{time_text(stated)} x {rate / GB:,.0f} GB/s / 2 = {copied / GB:.3g} GB read and written",),
        )
