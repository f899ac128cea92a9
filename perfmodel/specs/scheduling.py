"""How a family of devices hands out work and translates addresses: facts that scheduling laws need.

Files stand in `hardware/scheduling/`; `names` are the device families that a file is about. A figure without a public
source says "assumed", with a wide standard deviation.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import CountFigure, SizeFigure, Spec, TimeFigure, source_keys

__all__ = ["SchedulingClass", "Translation"]


class Translation(Spec):
    """Address translation: pages, what the last translation buffer covers, and a walk of the page table."""

    page: SizeFigure
    """The page that large allocations get."""
    small_page: SizeFigure | None = None
    """The page of small allocations."""
    giant_page: SizeFigure | None = None
    """A larger page that can be asked for."""
    reach: SizeFigure
    """Memory that one core reaches without a walk, at `page`."""
    walk: TimeFigure
    """Time that a miss adds to an access."""


class SchedulingClass(Spec):
    """Streams and address translation of a family of devices."""

    kind: Literal["scheduling"] = "scheduling"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    names: tuple[str, ...] = ()
    """Device families."""
    sources: dict[str, str] = Field(min_length=1)
    stream_priorities: CountFigure
    """Levels of priority that a program can give a stream; 1: none."""
    translation: Translation
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sources_exist(self) -> SchedulingClass:
        missing = sorted({key for key in source_keys(self.model_dump()) if key not in self.sources})
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        return self
