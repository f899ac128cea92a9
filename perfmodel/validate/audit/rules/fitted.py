"""Checks of a formula that is said to describe points, and of thresholds read off a few of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from perfmodel.errors import FitError
from perfmodel.step.request import prefill_slice
from perfmodel.step.rotary import rotary_fallback
from perfmodel.units import time_text
from perfmodel.validate.audit.base import Check, Desk, Ref, paired
from perfmodel.validate.audit.formula import Formula, formula_value
from perfmodel.validate.audit.rules.numbers import given_names
from perfmodel.validate.audit.verdict import Finding, Verdict
from perfmodel.work.precision import rotation_error_bound_frac

__all__ = ["DriftThreshold", "FormulaFit"]

_STARTS: Final = 2
"""Of each law: few points and smooth laws have no other minima worth finding, and the audit has to be quick."""


class FormulaFit(Check):
    """A formula with printed parameters against the points that it is said to fit."""

    kind: Literal["formula_fit"]
    formula: Formula
    x_name: str
    x: Annotated[tuple[Ref | float, ...], Field(min_length=2)]
    y: Annotated[tuple[Ref, ...], Field(min_length=2)]
    parameters: dict[str, Ref | float]
    r_squared: Ref | None = None
    law_of: str = ""
    """Name of the x column by which rival laws are found (n_instances, layer, ...); "" fits none."""

    @model_validator(mode="after")
    def _points_pair(self) -> FormulaFit:
        paired(x=self.x, y=self.y)
        given_names(self.formula, {*self.parameters, self.x_name})
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the formula as printed gives the points within the rounding of its parameters."""
        x = np.array([desk.given(ref) for ref in self.x])
        points = [desk.printed(ref) for ref in self.y]
        y = np.array([point.value for point in points])
        given = {name: desk.given(ref) for name, ref in self.parameters.items()}
        found = formula_value(self.formula, {**given, self.x_name: x})
        with np.errstate(over="ignore", invalid="ignore"):  # squares of huge figures; what is not finite does not hold
            spread = float(((y - y.mean()) ** 2).sum())
            own = 1.0 - float(((y - found) ** 2).sum()) / spread if spread > 0 else math.nan
        off = np.abs(found - y)[y != 0.0] / np.abs(y[y != 0.0])
        claimed = desk.value(self.r_squared) if self.r_squared else math.nan
        slack = 0.5 * desk.printed(self.r_squared).resolution if self.r_squared else 0.1
        holds = bool(np.isfinite(own)) and own >= (claimed if self.r_squared else 1.0) - slack
        listed = ", ".join(f"{a:.3g}" for a in found)
        reason = f"as printed it gives {listed} for the points {', '.join(f'{b:g}' for b in y)} (R2 {own:.3g}"
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if holds else Verdict.CONTRADICTS_ITSELF,
            reason=reason + (f", stated {claimed:g})" if self.r_squared else ")"),
            name="r_squared",
            stated=claimed,
            model=own,
            low=claimed - slack,
            high=1.0,
            working=(
                f"{self.formula} with {', '.join(f'{name} = {value:g}' for name, value in given.items())}",
                f"largest error {100 * float(np.max(off)):.0f} % of a point" if off.size else "all points are 0",
                *_rivals(x, y, self.law_of),
            ),
        )


def _rivals(x: np.ndarray, y: np.ndarray, column: str) -> Iterator[str]:
    """Yield the laws of the program that do describe the points, each with its parameters."""
    if not column:
        return
    from perfmodel.fit.data import data_from_arrays
    from perfmodel.fit.laws import candidate_laws
    from perfmodel.fit.ranking import ranked_fits
    from perfmodel.fit.result import FitOptions

    try:
        ranking = ranked_fits(candidate_laws((column,)), data_from_arrays({column: x}, y), FitOptions(n_starts=_STARTS))
    except FitError:
        return
    for entry in [e for e in ranking.entries if e.result is not None][:3]:
        assert entry.result is not None
        values = ", ".join(f"{n} = {v:.3g}" for n, v in zip(entry.law.names, entry.result.values, strict=True))
        yield f"what does fit: {entry.law.formula} with {values} (R2 {entry.result.errors.r_squared:.3g})"


class DriftThreshold(Check):
    """A threshold on an error that grows with depth: where points reach it, and whether it can tell anything apart."""

    kind: Literal["drift_threshold"]
    threshold: Ref
    layers: Annotated[tuple[Ref, ...], Field(min_length=2)]
    errors: Annotated[tuple[Ref, ...], Field(min_length=2)]
    dtype: str = "fp16"
    setup: str | None = None
    """Where the fallback would run, for what it costs."""

    @model_validator(mode="after")
    def _points_pair(self) -> DriftThreshold:
        paired(layers=self.layers, errors=self.errors)
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield at which depth the laws of drift reach the threshold, against what one rotation rounds."""
        from perfmodel.fit.drift import crossings

        threshold = desk.value(self.threshold)
        found = crossings([desk.value(r) for r in self.layers], [desk.value(r) for r in self.errors], threshold)
        depths = [c.depth_layers for c in found if math.isfinite(c.depth_layers)]
        bound = rotation_error_bound_frac(self.dtype)
        where = f"reached between layers {min(depths):.0f} and {max(depths):.0f}" if depths else "never reached"
        alone = f"one {self.dtype} rotation may be off by {100 * bound:.3g} % in any layer"
        low = threshold < bound
        yield Finding(
            check=self.kind,
            verdict=Verdict.PLAUSIBLE if low else Verdict.REPRODUCED,
            reason=f"by the stated points {where}; {alone}{', so that rounding alone can trip it' if low else ''}",
            name=self.threshold.rpartition(".")[2],
            stated=threshold,
            model=bound,
            working=(
                *(f"{c.law.formula}: layer {c.depth_layers:.1f}" for c in found),
                *(self._cost(desk, min(depths)) if depths and self.setup is not None else ()),
            ),
        )

    def _cost(self, desk: Desk, depth_layers: float) -> Iterator[str]:
        """Yield what fp32 from that depth on adds to a prefill step of the set-up."""
        case = desk.case(self.setup or "")
        engine, work = case.engine, case.workload
        slices = (prefill_slice(work.batch, work.input_tokens, n_steps=1.0),)
        first = min(int(depth_layers), engine.setup.model.n_layers)
        cost, step_s = rotary_fallback(engine, slices, from_layer=first), float(engine.step("prefill", slices).value)
        yield (
            f"fp32 in the last {cost.n_layers} layers of {engine.setup.model.title} adds "
            f"{time_text(float(cost.fused_extra_s))} ({100 * float(cost.fused_extra_s) / step_s:.2g} %) to a prefill "
            f"step, {time_text(float(cost.apart_extra_s))} with casts of their own"
        )
