"""How well predictions agree with measurements: errors by group, coverage of the bands, bounds that must hold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.measure.schema import COLUMNS, KINDS
from perfmodel.validate.parts import Floats
from perfmodel.validate.predict import Predictions

__all__ = ["GROUPS", "ErrorBound", "GroupError", "error_bounds", "error_table", "exceeded", "parsed_groups"]

GROUPS: Final = ("kind", "device", "runtime", "model")
"""What rows are grouped by unless something else is asked for."""
_WORDS: Final = (*(name for name, column in COLUMNS.items() if column.cell == "text"), "phase")


@dataclass(frozen=True, slots=True)
class GroupError:
    """Errors of the rows of one group; `words` says which. Fractions; NaN where no row could be compared.

    `n` rows are compared, `n_without` have no prediction. `bias_frac` is the median of predicted / measured - 1,
    `covered_frac` the share of rows inside their 80 % band, `half_width_frac` the median half-width of the bands.
    """

    words: dict[str, str]
    n: int
    n_without: int
    median_frac: float
    p90_frac: float
    bias_frac: float
    covered_frac: float
    half_width_frac: float


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """A bound that a kind of row must keep."""

    kind: str
    median_frac: float
    p90_frac: float


def parsed_groups(text: str) -> tuple[str, ...]:
    """Return the columns that a text such as "kind,device" names; raises UnknownNameError.

    >>> parsed_groups("kind, device")
    ('kind', 'device')
    """
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in _WORDS:
            raise UnknownNameError.of("group column", name, _WORDS, f"Text columns serve: {', '.join(_WORDS)}.")
    return names


def error_bounds(texts: Sequence[str]) -> tuple[ErrorBound, ...]:
    """Return the bounds that texts such as "gemm=4%,12%" (or 0.04,0.12) state: median and P90 of the absolute error.

    >>> error_bounds(["gemm=4%,12%"])
    (ErrorBound(kind='gemm', median_frac=0.04, p90_frac=0.12),)
    """
    found = []
    for text in texts:
        match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*([0-9.]+)\s*(%?)\s*(?:,\s*([0-9.]+)\s*(%?)\s*)?", text)
        if match is None:
            raise SpecError("a bound cannot be read", got=repr(text), expected="kind=median,p90 such as gemm=4%,12%")
        kind = match[1]
        if kind not in KINDS:
            raise UnknownNameError.of("kind", kind, list(KINDS))
        median = _frac(match[2], match[3], text)
        found.append(ErrorBound(kind, median, _frac(match[4], match[5], text) if match[4] else math.inf))
    return tuple(found)


def _frac(number: str, percent: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError as error:
        raise SpecError("a bound cannot be read", got=repr(text), expected="numbers") from error
    return value / 100.0 if percent else value


def error_table(found: Predictions, by: Sequence[str] = GROUPS) -> tuple[GroupError, ...]:
    """Return errors for each group of rows that were measured, largest kinds first as the table has them.

    Column `phase` is prefill or decode of an attention row. Without `by` all rows are one group.
    """
    measured = np.isfinite(found.measured)
    labels = [_labels(found, name) for name in by]
    keys = list(zip(*labels, strict=True)) if labels else [()] * len(measured)
    members: dict[tuple[str, ...], list[int]] = {}
    for i in np.flatnonzero(measured):
        members.setdefault(tuple(keys[i]), []).append(int(i))
    error, covered = found.error, found.covered
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.sqrt(found.high / found.low) - 1.0
    groups = (
        _group(dict(zip(by, key, strict=True)), np.array(rows), error, covered.astype(np.float64), width)
        for key, rows in members.items()
    )
    return tuple(sorted(groups, key=lambda g: tuple(g.words.values())))


def _labels(found: Predictions, name: str) -> list[str]:
    if name != "phase":
        return [str(word) for word in found.table[name]]
    is_attention = np.isin(found.table["kind"], ("attention", "mla_attention"))
    decode = found.table["query_tokens"] == 1
    return list(np.where(is_attention, np.where(decode, "decode", "prefill"), ""))


def _group(words: dict[str, str], rows: np.ndarray, error: Floats, covered: Floats, width: Floats) -> GroupError:
    use = rows[np.isfinite(error[rows])]
    if not len(use):
        return GroupError(words, 0, len(rows), *(math.nan,) * 5)
    size = np.abs(error[use])
    return GroupError(
        words,
        len(use),
        len(rows) - len(use),
        float(np.median(size)),
        float(np.percentile(size, 90)),
        float(np.median(error[use])),
        float(np.mean(covered[use])),
        float(np.median(width[use])),
    )


def exceeded(found: Predictions, bounds: Sequence[ErrorBound]) -> tuple[str, ...]:
    """Return a sentence for each bound that the rows of its kind exceed, or for which no row was compared."""
    sentences = []
    by_kind = {group.words["kind"]: group for group in error_table(found, ("kind",))}
    for bound in bounds:
        group = by_kind.get(bound.kind)
        if group is None or not group.n:
            sentences.append(f"{bound.kind}: no row could be compared")
            continue
        for name, value, limit in (
            ("median", group.median_frac, bound.median_frac),
            ("P90", group.p90_frac, bound.p90_frac),
        ):
            if value > limit:
                sentences.append(f"{bound.kind}: {name} {100 * value:.1f} % exceeds {100 * limit:g} %")
    return tuple(sentences)
