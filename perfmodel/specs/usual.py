"""What is usual, as data: taken where a device file or a question says nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from perfmodel.specs.figures import FracFigure, Spec, checked_sources

__all__ = ["UsualValues"]


class UsualValues(Spec):
    """What is taken where a device file or a question says nothing."""

    kind: Literal["usual_values"]
    name: str
    title: str = ""
    sources: dict[str, str]
    energy_rel_sd: FracFigure
    """Relative standard deviation of the linear power model."""
    idle_power_frac: FracFigure
    """Idle over board power."""
    draft_acceptance_frac: FracFigure
    """Probability that a drafted token is accepted, given that the ones before it were."""
    repeat_frac: FracFigure
    """Relative difference of serving benchmarks that were run twice."""

    @model_validator(mode="after")
    def _sources_exist(self) -> UsualValues:
        checked_sources(
            self.sources, (self.energy_rel_sd, self.idle_power_frac, self.draft_acceptance_frac, self.repeat_frac)
        )
        return self
