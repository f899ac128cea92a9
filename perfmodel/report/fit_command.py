"""All that one call of `perfmodel fit` finds: rival laws ranked, the best of them, laws with given parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import FitError, UnknownNameError
from perfmodel.fit.crossval import LeftOut, left_out_groups
from perfmodel.fit.data import FitData
from perfmodel.fit.document import fit_document, ranking_document
from perfmodel.fit.fitter import evaluation, fit
from perfmodel.fit.laws import FitLaw, candidate_laws, law_by_name
from perfmodel.fit.ranking import Ranking, Standing, ranked_fits
from perfmodel.fit.result import Evaluation, FitOptions, FitResult, Residual
from perfmodel.fit.solver import LOSSES
from perfmodel.fit.verdict import percent
from perfmodel.report.fit import evaluation_text, fit_figure, fit_text, ranking_text
from perfmodel.report.picture import saved_picture

__all__ = ["FitOutcome", "FitRequest", "fitted", "saved_plot", "shown_text"]

_MOST_RIVALS = 4


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What is to be fitted, and how: no laws means all that suit the columns."""

    laws: tuple[FitLaw, ...]
    options: FitOptions
    given: tuple[tuple[FitLaw, dict[str, float]], ...]

    @classmethod
    def of(cls, *, law: str, residual: str, loss: str, evaluate: Sequence[str]) -> FitRequest:
        """Return the request behind words; raises FitError or UnknownNameError for one that is not known."""
        names = [name.strip() for name in law.split(",") if name.strip()]
        laws = () if names == ["auto"] else tuple(law_by_name(name) for name in names)
        if residual not in list(Residual):
            raise UnknownNameError.of("residual", residual, list(Residual), f"There are {', '.join(Residual)}.")
        if loss not in LOSSES:
            raise UnknownNameError.of("loss", loss, list(LOSSES), f"There are {', '.join(LOSSES)}.")
        options = FitOptions(residual=Residual(residual), loss=loss)
        return cls(laws, options, tuple(_given(text) for text in evaluate))


def _given(text: str) -> tuple[FitLaw, dict[str, float]]:
    name, colon, rest = text.partition(":")
    try:
        pairs = [part.split("=") for part in rest.split(",")] if colon else []
        values = {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        values = {}
    if not values:
        raise FitError(
            "a law to evaluate cannot be read", got=repr(text), expected="law:parameter=value,parameter=value"
        )
    return law_by_name(name.strip()), values


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """What was found. `best` is the first law that could be judged, or the one law that was asked for."""

    data: FitData
    ranking: Ranking | None
    best: FitResult | None
    left_out: LeftOut | None
    evaluations: tuple[Evaluation, ...]

    def document(self) -> dict[str, Any]:
        """Return the outcome as plain data with stable keys."""
        fitted = fit_document(self.best, left_out=self.left_out) if self.best else {"kind": "fit", "law": None}
        evaluated = [
            {
                "law": entry.law.name,
                "parameters": dict(entry.parameters),
                "predicted": [float(v) for v in entry.predicted],
                "r_squared": entry.errors.r_squared if np.isfinite(entry.errors.r_squared) else None,
                "median_rel_frac": entry.errors.median_rel_frac if np.isfinite(entry.errors.median_rel_frac) else None,
                "verdict": entry.verdict,
            }
            for entry in self.evaluations
        ]
        ranked = ranking_document(self.ranking) if self.ranking else None
        return {**fitted, "ranking": ranked, "evaluations": evaluated, "notes": list(self.data.notes)}


def fitted(data: FitData, request: FitRequest) -> FitOutcome:
    """Return the laws fitted to the data; one law alone is fitted, several are ranked."""
    laws = request.laws or candidate_laws(data.x_names, data.y_name)
    if not laws:
        raise FitError("no law reads these columns", got=", ".join(data.x_names), cure="Name one with --law.")
    ranking, best = None, None
    if len(laws) == 1:
        best = fit(laws[0], data, request.options)
    else:
        ranking = ranked_fits(laws, data, request.options)
        best = ranking.best.result if ranking.best else None
    evaluations = tuple(evaluation(law, values, data) for law, values in request.given)
    left_out = left_out_groups(best) if best is not None and data.group is not None else None
    return FitOutcome(data, ranking, best, left_out, evaluations)


def shown_text(outcome: FitOutcome) -> str:
    """Return the outcome as text."""
    parts = [f"note: {note}" for note in outcome.data.notes]
    if outcome.ranking is not None:
        parts.append(ranking_text(outcome.ranking))
    if outcome.best is not None:
        parts.append(fit_text(outcome.best))
    if outcome.left_out is not None:
        worst = sorted(outcome.left_out.by_group.items(), key=lambda pair: -np.nan_to_num(pair[1], nan=np.inf))[:3]
        named = ", ".join(f"{name} {percent(value)}" for name, value in worst)
        parts.append(
            f"groups left out: median {percent(outcome.left_out.median_rel_frac)}, "
            f"P90 {percent(outcome.left_out.p90_rel_frac)}; worst {named}"
        )
    x = outcome.data.x[0].tolist() if len(outcome.data.x) == 1 else ()
    parts += [evaluation_text(entry, x) for entry in outcome.evaluations]
    return "\n\n".join(parts)


def saved_plot(outcome: FitOutcome, path: Path) -> Path:
    """Draw the best law with its bands, its close rivals and the given laws; return the path of the picture."""
    if outcome.best is None:
        raise FitError("there is no fit to draw", cure="Name one law with --law.")
    close = [
        entry.result
        for entry in (outcome.ranking.entries if outcome.ranking else ())
        if entry.standing is Standing.RANKED and entry.result is not None and entry.result is not outcome.best
    ]
    figure = fit_figure(outcome.best, rivals=close[:_MOST_RIVALS], evaluations=outcome.evaluations)
    return saved_picture(figure, path)
