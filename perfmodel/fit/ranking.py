"""Rival laws on the same data: by AICc where the number of points allows it, by left-out error where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from perfmodel.errors import FitError, UnknownNameError
from perfmodel.fit.crossval import is_supported, left_out_rows
from perfmodel.fit.data import FitData
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws.base import FitLaw
from perfmodel.fit.result import FitOptions, FitResult
from perfmodel.fit.verdict import percent

__all__ = ["Criterion", "RankedFit", "Ranking", "Standing", "ranked_fits"]

_CLOSE_AICC: Final = 2.0
_CLOSE_ERROR: Final = 1.5
"""Laws whose left-out error is within this factor of the best are not told apart."""


class Criterion(StrEnum):
    """What the ranking goes by."""

    AICC = "aicc"
    LEFT_OUT = "left_out"
    NONE = "none"


class Standing(StrEnum):
    """What became of a law in a ranking."""

    RANKED = "ranked"
    NOT_IDENTIFIABLE = "not identifiable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RankedFit:
    """A law's place. `aicc`, `delta`, `weight` and `left_out_error` are NaN where n does not support them."""

    law: FitLaw
    standing: Standing
    reason: str
    result: FitResult | None = None
    aicc: float = math.nan
    delta: float = math.nan
    weight: float = math.nan
    left_out_error: float = math.nan
    left_out_median_frac: float = math.nan
    close: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """All rivals, best first, those that could not be judged last; `verdict` says how much the order means."""

    criterion: Criterion
    entries: tuple[RankedFit, ...]
    verdict: str

    @property
    def best(self) -> RankedFit | None:
        """Return the first ranked law, None where no law could be judged."""
        return next((e for e in self.entries if e.standing is Standing.RANKED), None)


def ranked_fits(laws: Sequence[FitLaw], data: FitData, options: FitOptions | None = None) -> Ranking:
    """Return the laws fitted and ranked.

    AICc counts sigma as a parameter and is used where n - (k+1) - 1 > 0 for every law that n supports at all. Else the
    supported laws (n - 1 > k) are ranked by left-out error. Laws with more parameters are reported as not identifiable.
    With a robust loss AICc has no meaning and the left-out error decides.
    """
    if not laws:
        raise FitError("there is no law to rank", expected="at least one", cure="Name one with --law.")
    chosen = options or FitOptions()
    entries = [_entry(law, data, chosen) for law in laws]
    ranked = [e for e in entries if e.standing is Standing.RANKED]
    rest = sorted(
        (e for e in entries if e.standing is not Standing.RANKED),
        key=lambda e: (e.standing is Standing.FAILED, _size(e)),
    )
    if not ranked:
        return Ranking(Criterion.NONE, tuple(rest), _nothing(data, rest))
    by_aicc = not any(math.isnan(e.aicc) for e in ranked)
    criterion = Criterion.AICC if by_aicc else Criterion.LEFT_OUT
    ordered = _by_aicc(ranked) if by_aicc else _by_left_out(ranked)
    return Ranking(criterion, (*ordered, *rest), _verdict(criterion, ordered, rest, data))


def _size(entry: RankedFit) -> int:
    return entry.result.k if entry.result else len(entry.law.parameters)


def _entry(law: FitLaw, data: FitData, options: FitOptions) -> RankedFit:
    fixed = {name: v for name, v in options.fixed.items() if name in law.names}
    k = len(law.names) - len(fixed)
    own = FitOptions(options.residual, options.loss, options.loss_scale, options.n_starts, options.seed, fixed, None)
    n = data.n
    reason = f"{k} parameter{'' if k == 1 else 's'} are not identifiable with {n} points"
    if n < k:
        return RankedFit(law, Standing.NOT_IDENTIFIABLE, reason)
    try:
        result = fit(law, data, own)
        if not is_supported(n, k):
            return RankedFit(law, Standing.NOT_IDENTIFIABLE, reason, result)
        left_out = left_out_rows(result)
    except (FitError, UnknownNameError) as error:
        return RankedFit(law, Standing.FAILED, error.problem)
    if math.isnan(left_out.error):
        return RankedFit(law, Standing.FAILED, "no left-out row could be predicted", result)
    return RankedFit(
        law,
        Standing.RANKED,
        "",
        result,
        result.aicc,
        left_out_error=left_out.error,
        left_out_median_frac=left_out.median_rel_frac,
    )


def _by_aicc(ranked: Sequence[RankedFit]) -> list[RankedFit]:
    ordered = sorted(ranked, key=lambda e: (e.aicc, _size(e)))
    least = ordered[0].aicc
    total = sum(math.exp(-0.5 * (e.aicc - least)) for e in ordered)
    return [
        RankedFit(
            e.law,
            e.standing,
            e.reason,
            e.result,
            e.aicc,
            e.aicc - least,
            math.exp(-0.5 * (e.aicc - least)) / total,
            e.left_out_error,
            e.left_out_median_frac,
            e.aicc - least <= _CLOSE_AICC,
        )
        for e in ordered
    ]


def _by_left_out(ranked: Sequence[RankedFit]) -> list[RankedFit]:
    ordered = sorted(ranked, key=lambda e: (e.left_out_error, _size(e)))
    least = ordered[0].left_out_error
    return [
        RankedFit(
            e.law,
            e.standing,
            e.reason,
            e.result,
            e.aicc,
            math.nan,
            math.nan,
            e.left_out_error,
            e.left_out_median_frac,
            e.left_out_error <= _CLOSE_ERROR * least,
        )
        for e in ordered
    ]


def _nothing(data: FitData, rest: Sequence[RankedFit]) -> str:
    if all(e.standing is Standing.FAILED for e in rest):
        return f"No law could be fitted: {rest[0].reason}"
    return f"No law can be judged with {data.n} points: any curve through so few would look good. Add measurements."


def _verdict(criterion: Criterion, ordered: Sequence[RankedFit], rest: Sequence[RankedFit], data: FitData) -> str:
    best = ordered[0]
    n = data.n
    error = f"left-out error {percent(best.left_out_median_frac)} (median)"
    if criterion is Criterion.AICC:
        text = (
            f"Of {len(ordered)} laws, {best.law.name} ranks first by AICc on {n} points "
            f"(weight {best.weight:.2f}, {error})."
        )
    else:
        text = (
            f"{n} points are too few for AICc with every law; of {len(ordered)} laws that {n} points support, "
            f"{best.law.name} predicts left-out points best ({error})."
        )
    rivals = [e.law.name for e in ordered[1:] if e.close]
    if rivals:
        text += f" The data do not choose between it and {', '.join(rivals)}."
    if n <= 8:
        text += f" That is {n} points' worth of evidence: new measurements can change the order."
    hidden = [f"{e.law.name} ({_size(e)} parameters)" for e in rest if e.standing is Standing.NOT_IDENTIFIABLE]
    if hidden:
        names = ", ".join(hidden)
        text += f" Not identifiable with {n} points: {names}; such curves may touch every point and mean little."
    failed = [e.law.name for e in rest if e.standing is Standing.FAILED]
    if failed:
        text += f" Not fitted: {', '.join(failed)}."
    limits = dict.fromkeys(limit for e in ordered for limit in e.law.limits)
    return " ".join([text, *limits])
