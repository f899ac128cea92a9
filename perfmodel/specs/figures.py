"""A figure is a number with a source: hardware files hold nothing else."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from perfmodel.units import Bytes, BytesPerS, FlopPerS, Frac, Hertz, Seconds, UsdPerHour, Watts

__all__ = [
    "BandwidthFigure",
    "CountFigure",
    "Figure",
    "FracFigure",
    "FrequencyFigure",
    "PowerFigure",
    "PriceFigure",
    "RateFigure",
    "SizeFigure",
    "Spec",
    "TimeFigure",
    "checked_sources",
    "source_keys",
]


class Spec(BaseModel):
    """Base of all specifications: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)


class Figure(Spec):
    """A number, the key of its source in the file's `sources`, and what a reader should know about it."""

    source: Annotated[str, Field(min_length=1)]
    note: str = ""


class SizeFigure(Figure):
    value: Bytes


class BandwidthFigure(Figure):
    value: BytesPerS


class RateFigure(Figure):
    value: FlopPerS


class FrequencyFigure(Figure):
    value: Hertz


class TimeFigure(Figure):
    value: Seconds


class PowerFigure(Figure):
    value: Watts


class PriceFigure(Figure):
    value: UsdPerHour


class FracFigure(Figure):
    value: Frac


class CountFigure(Figure):
    value: Annotated[float, Field(ge=0)]


def source_keys(node: object) -> list[str]:
    """Return the keys of sources that the figures of a dumped specification name, in their order."""
    if isinstance(node, dict):
        own = [node["source"]] if isinstance(node.get("source"), str) else []
        return own + [key for name, child in node.items() if name != "sources" for key in source_keys(child)]
    if isinstance(node, (list, tuple)):
        return [key for child in node for key in source_keys(child)]
    return []


def checked_sources(known: dict[str, str], figures: tuple[Figure, ...]) -> None:
    """Check that every source that figures name is listed; raises ValueError, for pydantic to place."""
    missing = sorted({f.source for f in figures} - set(known))
    if missing:
        raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
