"""Checks of quality figures against published ones for the same way of quantising."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from perfmodel.validate.audit.base import Check, Desk, MissingError, Ref
from perfmodel.validate.audit.verdict import Finding, graded

__all__ = ["PerplexityRise"]


class PerplexityRise(Check):
    """Perplexity of quantised weights over that of the 16-bit ones, against published pairs of the scheme."""

    kind: Literal["perplexity_rise"]
    scheme: str
    baseline: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the relative rise's place in the published range."""
        fact = desk.facts.get(self.scheme)
        if not fact.perplexity:
            raise MissingError(f"no published perplexities of {fact.title} are known")
        before, after = desk.value(self.baseline), desk.value(self.figure)
        rises = {pair.model: pair.value / pair.baseline - 1.0 for pair in fact.perplexity}
        low, high = min(rises.values()), max(rises.values())
        stated = after / before - 1.0
        yield graded(
            self.kind,
            "rise_frac",
            stated=stated,
            model=sum(rises.values()) / len(rises),
            low=low,
            high=high,
            inside="inside the published range",
            cause=f"published rises of {fact.title} are {100 * low:.1f} to {100 * high:.1f} %: "
            + (
                "the weights were not quantised as published (wider groups or no search), or the text is another kind"
                if stated > high
                else "less loss than published"
            ),
            working=tuple(
                f"{pair.model}: {pair.baseline:g} to {pair.value:g}, {100 * rises[pair.model]:+.1f} % ({pair.source})"
                for pair in fact.perplexity
            ),
        )
