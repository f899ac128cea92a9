"""Flags of the commands about dispatch and streams."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from perfmodel.errors import SpecError
from perfmodel.specs.core import Tiling
from perfmodel.work.tiling import Tile

__all__ = ["TileFlag", "tile_of"]

TileFlag = Annotated[
    str | None, typer.Option("--tile", help="Output tile of one core, e.g. 128x256.", metavar="ROWSxCOLUMNS")
]


def tile_of(text: str | None, usual: Tiling) -> Tile:
    """Return the tile that a flag states, the usual one of the cores without it; raises SpecError."""
    if text is None:
        return Tile(usual.tile_m.value, usual.tile_n.value, usual.attention_rows.value)
    match = re.fullmatch(r"\s*(\d{1,5})\s*[xX*]\s*(\d{1,5})\s*", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise SpecError("a flag cannot be used", where="--tile", got=repr(text), expected="rows x columns, as 128x256")
    return Tile(float(match[1]), float(match[2]), usual.attention_rows.value)
