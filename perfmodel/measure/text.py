"""Text of a measurement file, in whatever encoding the tools of the field write; and lists of faults kept short."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from perfmodel.errors import Fault, MeasurementError

__all__ = ["MAX_FAULTS", "Faults", "decoded", "file_text"]

MAX_FAULTS: Final = 20
_MAX_BYTES: Final = 2 * 2**30
_GZIP_MAGIC: Final = b"\x1f\x8b"


def file_text(path: Path) -> str:
    """Return the text of a measurement file, unpacked if it is gzip; raises MeasurementError where there is none."""
    try:
        if path.is_dir():
            raise MeasurementError(f"{path} is a folder", expected="a file", cure="Name one file in it.")
        if path.stat().st_size > _MAX_BYTES:
            raise MeasurementError(f"{path} is too large", expected="a file below 2 GiB", cure="Split it.")
        raw = path.read_bytes()
        if raw.startswith(_GZIP_MAGIC):
            raw = _unpacked(raw, str(path))
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{path} cannot be read", got=str(error), expected="a readable file") from error
    return decoded(raw, str(path))


def _unpacked(raw: bytes, name: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            data = stream.read(_MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MeasurementError(f"{name} is a broken gzip file", got=str(error), cure="Copy the file again.") from error
    if len(data) > _MAX_BYTES:
        raise MeasurementError(f"{name} is too large unpacked", expected="below 2 GiB", cure="Split it.")
    return data


def decoded(raw: bytes, name: str) -> str:
    """Return bytes as text: UTF-8 with or without a mark, UTF-16 with one, else GB18030 (Chinese spreadsheets).

    >>> decoded(b"\\xef\\xbb\\xbfa,b", "x.csv")
    'a,b'
    """
    try:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = raw.decode("utf-16")
        else:
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = raw.decode("gb18030")
    except UnicodeDecodeError as error:
        raise MeasurementError(
            f"{name} is not text", where=f"byte {error.start}", expected="UTF-8, UTF-16 or GB18030 text"
        ) from error
    if "\0" in text:
        raise MeasurementError(f"{name} is not text", got="NUL bytes", expected="UTF-8 text")
    return text.removeprefix("\ufeff")


class Faults:
    """A growing list of faults that keeps the first twenty and counts the rest."""

    def __init__(self) -> None:
        self._kept: list[Fault] = []
        self._places: set[str] = set()
        self.count = 0

    def add(self, where: str, got: object = "", expected: str = "", cure: str = "") -> None:
        """Note one fault; of a place that has one already, later ones follow from the first and are left out."""
        if where in self._places:
            return
        if where:
            self._places.add(where)
        self.count += 1
        if len(self._kept) < MAX_FAULTS:
            shown = got if isinstance(got, str) else repr(got)
            self._kept.append(Fault(where, shown if len(shown) <= 80 else f"{shown[:77]}...", expected, cure))

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[Fault]:
        yield from self._kept
        if self.count > len(self._kept):
            yield Fault(f"and {self.count - len(self._kept)} more")

    def raised(self, problem: str) -> MeasurementError:
        """Return the error that lists the faults."""
        return MeasurementError(problem, faults=tuple(self))


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Return names as a short list.

    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
