"""Rules of a caching device allocator: how requests are rounded, which segments are taken, when a rest is split off."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import SizeFigure, Spec

__all__ = ["CachingRules"]


class CachingRules(Spec):
    """The figures of one allocator, each with its source."""

    kind: Literal["allocator"] = "allocator"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    names: tuple[str, ...] = ()
    sources: dict[str, str] = Field(min_length=1)
    round: SizeFigure
    small_limit: SizeFigure
    small_segment: SizeFigure
    large_limit: SizeFigure
    large_segment: SizeFigure
    large_round: SizeFigure
    small_split: SizeFigure
    large_split: SizeFigure

    @model_validator(mode="after")
    def _fit_together(self) -> CachingRules:
        figures = {name: getattr(self, name) for name in type(self).model_fields if name not in _TEXTS}
        missing = sorted({f.source for f in figures.values()} - set(self.sources))
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        if any(f.value < 1 or f.value != int(f.value) for f in figures.values()):
            raise ValueError("sizes are whole numbers of bytes, at least 1")
        if not self.small_limit.value <= self.small_segment.value:
            raise ValueError("small_limit must not exceed small_segment: such a request would fit no segment")
        if not self.small_limit.value <= self.large_limit.value <= self.large_segment.value:
            raise ValueError("small_limit <= large_limit <= large_segment must hold")
        return self


_TEXTS = ("kind", "name", "title", "names", "sources")
