"""The flag that chooses prefill or decode, for commands that look at one kind of step."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import typer

from perfmodel.cli.values import choice

__all__ = ["PhaseFlag", "phase_of"]

PhaseFlag = Annotated[str, typer.Option("--phase", help="prefill or decode.", metavar="PHASE")]


def phase_of(text: str) -> Literal["prefill", "decode"]:
    """Return the phase that a flag names; raises SpecError."""
    return cast(Literal["prefill", "decode"], choice("--phase", text, ("prefill", "decode")))
