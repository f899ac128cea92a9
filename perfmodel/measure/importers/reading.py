"""Numbers, JSON and tables out of text that tools, terminals and people have had their hands on."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.text import Faults

__all__ = ["Grid", "csv_grid", "json_documents", "json_objects", "number_in", "number_of", "quantity_s"]

NUMBER: Final = re.compile(
    r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf(?:inity)?|nan)\b", re.IGNORECASE
)
_PER_S: Final = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "秒": 1.0, "ms": 1e3, "毫秒": 1e3,
    "us": 1e6, "μs": 1e6, "µs": 1e6, "微秒": 1e6, "ns": 1e9,
}  # fmt: skip
_CUT_OFF: Final = "The file seems to be cut off: copy it whole, or let the tool write it again."
_NOTHING: Final = ("", "n/a", "na", "-", "--", "/", "null", "none", "nan", "无")


def number_of(value: object) -> float | None:
    """Return a number that JSON or a cell gives as a number or as text; None for nothing, NaN and what is no number.

    >>> number_of("1,024"), number_of("inf"), number_of("N/A"), number_of(True)
    (1024.0, inf, None, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        if value in _NOTHING or value == "N/A":
            return None
        word = value.strip().replace(",", "").replace("_", "")
        if word.lower() in _NOTHING:
            return None
        try:
            number = float(word)
        except ValueError:
            return None
        return None if math.isnan(number) else number
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return None if math.isnan(number) else number
    return None


def number_in(text: str) -> float | None:
    """Return the first number in text, whatever stands around it.

    >>> number_in(" 13395.44  ·"), number_in("42.1x"), number_in("none")
    (13395.44, 42.1, None)
    """
    match = NUMBER.search(text)
    return number_of(match[0]) if match else None


def quantity_s(text: str, unit: str = "ms") -> float | None:
    """Return a time in seconds from a cell such as "106.9 ms"; a bare number is in `unit`.

    >>> quantity_s("107 ms"), quantity_s("51"), quantity_s("/")
    (0.107, 0.051, None)
    """
    match = re.match(rf"\s*({NUMBER.pattern})\s*([a-zA-Zμµ秒毫微]*)", text, re.IGNORECASE)
    value = number_of(match[1]) if match else None
    if match is None or value is None:
        return None
    per_s = _PER_S.get(match[2].lower() or unit)
    return None if per_s is None else value / per_s


def json_documents(text: str, name: str) -> list[Any]:
    """Return the JSON documents in text: one, or one a line. Infinity and NaN literals are read.

    Raises MeasurementError with the line of every broken document.
    """
    plain = text.removeprefix("\ufeff").strip()
    if not plain:
        raise MeasurementError(f"{name} is empty", expected="JSON")
    try:
        return [_loaded(plain)]
    except json.JSONDecodeError as whole:
        lines = [(i + 1, line) for i, line in enumerate(text.removeprefix("\ufeff").splitlines()) if line.strip()]
        if len(lines) > 1 and _is_document(lines[0][1]):
            return _json_lines(lines, name)
        cure = _CUT_OFF if whole.pos >= len(plain) - 1 or "Unterminated" in whole.msg else ""
        where = f"line {whole.lineno}, column {whole.colno}"
        raise MeasurementError(
            f"{name} is not valid JSON", where=where, got=whole.msg, cure=cure or _CUT_OFF
        ) from whole
    except (ValueError, RecursionError) as error:
        raise MeasurementError(f"{name} cannot be parsed", got=str(error)[:120]) from error


def _loaded(text: str) -> Any:
    return json.loads(text, strict=False)


def _is_document(line: str) -> bool:
    try:
        return isinstance(_loaded(line), (dict, list))
    except (ValueError, RecursionError):
        return False


def _json_lines(lines: Sequence[tuple[int, str]], name: str) -> list[Any]:
    faults = Faults()
    found = []
    for number, line in lines:
        try:
            found.append(_loaded(line))
        except json.JSONDecodeError as error:
            faults.add(f"line {number}, column {error.colno}", error.msg, "one JSON object a line", _CUT_OFF)
        except (ValueError, RecursionError) as error:
            faults.add(f"line {number}", str(error)[:80], "one JSON object a line")
    if faults:
        raise faults.raised(f"{name} is not valid JSON lines")
    return found


def json_objects(text: str, name: str) -> list[dict[str, Any]]:
    """Return the JSON objects in text; a list counts as its items, and keys broken by line breaks are mended."""
    found: list[dict[str, Any]] = []
    for document in json_documents(text, name):
        for item in document if isinstance(document, list) else [document]:
            if not isinstance(item, dict):
                raise MeasurementError(
                    f"{name} holds no results", got=f"a {type(item).__name__}", expected="objects with named values"
                )
            found.append({re.sub(r"\s*\n\s*", "", key): value for key, value in item.items()})
    if not found:
        raise MeasurementError(f"{name} holds no results", got="an empty list", expected="objects with named values")
    return found


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts: header, and rows with the line each stands on."""

    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    name: str

    def records(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield (line, cells by column)."""
        for line, row in self.rows:
            yield line, dict(zip(self.header, row, strict=True))


def csv_grid(text: str, name: str) -> Grid:
    """Return CSV text (comma, tab or semicolon) or a markdown table as a grid.

    Raises MeasurementError that names every row with another number of cells than the header.
    """
    rows = _markdown_rows(text) or _csv_rows(text.removeprefix("\ufeff"), name)
    if not rows:
        raise MeasurementError(f"{name} is empty", expected="a table with a header")
    header = tuple(cell.strip() for cell in rows[0][1])
    faults = Faults()
    kept = []
    for line, cells in rows[1:]:
        if len(cells) > len(header) and not any(cell.strip() for cell in cells[len(header) :]):
            cells = cells[: len(header)]
        if len(cells) != len(header):
            cure = _CUT_OFF if (line, cells) == rows[-1] and len(cells) < len(header) else ""
            faults.add(f"line {line}", f"{len(cells)} cells", f"{len(header)}, as in the header", cure)
        else:
            kept.append((line, tuple(cell.strip() for cell in cells)))
    if faults:
        raise faults.raised(f"{name} is no whole table")
    return Grid(header, tuple(kept), name)


def _csv_rows(text: str, name: str) -> list[tuple[int, list[str]]]:
    csv.field_size_limit(2**24)
    first = text.lstrip().split("\n", 1)[0]
    delimiter = max((",", "\t", "，"), key=lambda mark: first.count(mark)) if "," in first or "\t" in first else ";"
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter, skipinitialspace=True)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        cure = _CUT_OFF if "unexpected end" in str(error) else ""
        where = f"line {reader.line_num}"
        raise MeasurementError(f"{name} is no readable CSV", where=where, got=str(error), cure=cure) from error


def _markdown_rows(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of the first table drawn with | (markdown, or a frame of a terminal); none if there is none."""
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line.strip().replace("│", "|").replace("┃", "|")
        if plain.startswith("|") and plain.endswith("|") and len(plain) > 1:
            cells = [cell.strip() for cell in plain[1:-1].split("|")]
            if not all(re.fullmatch(r":?-*:?", cell) for cell in cells):
                rows.append((number, cells))
        elif rows and plain and not re.fullmatch(r"[-+=╭╮╰╯├┤┬┴┼─━┏┓┗┛┡┩╇┳┻╋═ ]+", plain):
            break
    return rows


def first_of(record: Mapping[str, Any], *names: str) -> Any:
    """Return the first value that is stated under one of several names."""
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)
