"""How far whole steps scatter around their prediction, beyond what the errors of single coefficients explain."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from perfmodel.estimate import Coefficient
from perfmodel.specs.figures import Figure, Spec

__all__ = ["Scatter", "StepScatter"]


class Scatter(Figure):
    """A relative standard deviation, found on `n_rows` measured steps of `n_groups` models."""

    value: Annotated[float, Field(ge=0, le=3)]
    n_rows: Annotated[int, Field(ge=1)]
    n_groups: Annotated[int, Field(ge=1)]


class StepScatter(Spec):
    """Scatter of steps that read prompts, and of steps and generations that write tokens; None: not measured."""

    prefill: Scatter | None = None
    decode: Scatter | None = None

    def coefficient(self, phase: str, *, owner: str, source: str) -> tuple[Coefficient, ...]:
        """Return the error common to a step of a phase as a coefficient; nothing where none is stated, or it is 0."""
        found: Scatter | None = getattr(self, phase)
        if found is None or found.value <= 0.0:
            return ()
        return (Coefficient(f"{owner}.{phase}.scatter", 1.0, found.value, source),)
