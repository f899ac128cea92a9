"""Rules of thumb of fits as data: what they know before they see a row."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import Figure, Spec, checked_sources

__all__ = ["FittingRules", "SearchRule", "TransferRule"]


class SearchRule(Figure):
    """What is known of a parameter before a fit: centre, width of its logarithm, limits of the search.

    `centre` counts where no class of the prior calibration states one, `least_log_sd` (or `log_sd`) is the least width
    where one does.
    """

    centre: Annotated[float, Field(gt=0)] | None = None
    log_sd: Annotated[float, Field(gt=0)]
    least_log_sd: Annotated[float, Field(gt=0)] | None = None
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _limits_hold_the_centre(self) -> SearchRule:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        return self


class TransferRule(Figure):
    """How much wider coefficients become when they are carried to a device that was not measured."""

    widening: Annotated[float, Field(ge=1)]
    least_rel_sd: Annotated[float, Field(ge=0)]


class FittingRules(Spec):
    """What fits of kernels and links know before. A parameter may be stated for one class: `matmul.chain_s`."""

    kind: Literal["fitting_rules"]
    name: str
    title: str = ""
    sources: dict[str, str]
    kernels: dict[str, SearchRule]
    collectives: dict[str, SearchRule]
    transfer: TransferRule

    @model_validator(mode="after")
    def _sources_exist(self) -> FittingRules:
        checked_sources(self.sources, (*self.kernels.values(), *self.collectives.values(), self.transfer))
        return self

    def of_kernel(self, kernel: str, parameter: str) -> SearchRule:
        """Return the rule for a parameter of a kernel class: its own, else the general one."""
        own = self.kernels.get(f"{kernel.split('/')[0]}.{parameter}")
        return own if own is not None else self.kernels[parameter]
