"""Runs that somebody states figures for: what was run, and what they say came out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from perfmodel.specs.figures import Spec

__all__ = ["Stated", "StatedDocument", "StatedRun"]


class Stated(Spec):
    """Figures as stated; None: not stated."""

    output_tokens_per_s: float | None = None
    ttft_s: float | None = None
    memory_bytes: float | None = None


class StatedRun(Spec):
    """One set-up. `deployment` holds fields of a Deployment; each batch is run by itself."""

    name: str
    model: str
    hardware: str
    deployment: dict[str, int | float | str | bool] = Field(default_factory=dict)
    runtime: str | None = None
    batches: tuple[Annotated[int, Field(ge=1)], ...]
    stated: Stated = Stated()


class StatedDocument(Spec):
    """A file of such runs, all with the same lengths."""

    kind: Literal["stated_runs"]
    title: str
    source: str
    how_to_read: str
    input_tokens: int
    output_tokens: int
    runs: tuple[StatedRun, ...]
