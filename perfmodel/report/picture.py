"""Figures into files: suffix checked first, no dates inside, so that equal data give equal files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.errors import SpecError
from perfmodel.report.output import placed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["checked_picture", "saved_picture"]

_SUFFIXES: Final = (".png", ".svg", ".pdf")
_UNDATED: Final[dict[str, dict[str, None]]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_DPI: Final = 150


def checked_picture(path: Path | None) -> Path | None:
    """Return the path as it is; raises SpecError for a suffix that no picture has, and where none can stand."""
    if path is None:
        return None
    if path.suffix.lower() not in _SUFFIXES:
        raise SpecError(
            f"a picture cannot be written as {path.name}",
            got=f"suffix {path.suffix or 'none'}",
            expected=f"one of {', '.join(_SUFFIXES)}",
        )
    return placed(path)


def saved_picture(figure: Figure, path: Path) -> Path:
    """Return the path after the figure stands there as PNG, SVG or PDF; raises SpecError where it cannot."""
    checked_picture(path)
    suffix = path.suffix.lower()
    try:
        figure.savefig(path, format=suffix[1:], dpi=_DPI, metadata=_UNDATED.get(suffix, {}))
    except OSError as error:
        raise SpecError(
            f"the picture cannot be written to {path}", got=error.strerror or str(error), expected="a writable place"
        ) from error
    return path
