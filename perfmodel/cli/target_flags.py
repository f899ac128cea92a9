"""Flags of targets and lengths that commands of planning share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["LongestE2e", "LongestTpot", "LongestTtft", "Percentile", "SpreadOfLengths"]

LongestTtft = Annotated[str | None, typer.Option("--ttft", help="Longest time to first token, e.g. 1s.")]
LongestTpot = Annotated[str | None, typer.Option("--tpot", help="Longest time per output token, e.g. 50ms.")]
LongestE2e = Annotated[str | None, typer.Option("--e2e", help="Longest end-to-end time, e.g. 30s.")]
Percentile = Annotated[
    str, typer.Option("--percentile", help="Share of requests that must meet them: 50, 90, 95, 99.", metavar="N")
]
SpreadOfLengths = Annotated[
    str, typer.Option("--length-spread", help="Lengths vary within this share of isl and osl.", metavar="X")
]
