"""What every importer takes and gives back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final

from perfmodel.errors import Fault, MeasurementError, UnknownNameError
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.row import Row, missing_columns
from perfmodel.measure.serving_run import ServingRun
from perfmodel.measure.sidecar import Sidecar
from perfmodel.measure.table import Table, table_from_rows

__all__ = ["Context", "Imported", "context_from", "named_rows", "stem_of"]

NO_FACTS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a foreign file does not say and its owner knows. Stated values win over what a file says of itself."""

    file: str = ""
    """Name of the file, for messages and for row ids."""
    device: str = ""
    n_devices: int | None = None
    link: str = ""
    model: str = ""
    runtime: str = ""
    compute_dtype: str = ""
    quantization: str = ""
    kv_dtype: str = ""
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dp: int | None = None
    batch: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    context_tokens: float | None = None
    op: str = ""
    """Which collective a hccl_test or nccl-tests file is about, where it does not say."""
    variant: str = ""
    source: str = ""
    grade: str = "A"
    min_success_frac: float = 0.95
    """Share of requests that must have succeeded before a serving run may be fitted."""

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self.file or "the text"

    def cells(self) -> dict[str, Any]:
        """Return the stated columns of the measurement table, for a Row."""
        skip = ("file", "min_success_frac", "source", "grade", "op", "variant")
        stated = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}
        cells = {name: value for name, value in stated.items() if value not in ("", None)}
        return {**cells, "source": self.source or self.file, "grade": self.grade}

    def filled(self, **found: Any) -> Context:
        """Return the context with what the file says of itself where nothing was stated."""
        lacking = {k: v for k, v in found.items() if v not in ("", None) and getattr(self, k) in ("", None)}
        return replace(self, **lacking)


def context_from(**stated: Any) -> Context:
    """Return the context of stated words; raises MeasurementError for a word that it does not know."""
    known = [f.name for f in fields(Context)]
    for name in stated:
        if name not in known:
            near = UnknownNameError.of("context", name, known).faults
            raise MeasurementError(
                f"{name!r} is nothing that an import can be told",
                expected=f"one of {', '.join(known)}",
                cure=near[0].where if near else "",
            )
    return Context(**stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a foreign file holds in the words of this program.

    `rows` are measurements, `operators` timings that a profiler can look into, `runs` serving benchmarks as wholes,
    `facts` everything else by name (base units), `system` a description that can be saved as a hardware file.
    `warnings` are sentences for the reader.
    `usable_for_fit` is False where the file itself shows that its figures mislead.
    """

    format: str
    rows: tuple[Row, ...] = ()
    operators: tuple[OperatorTiming, ...] = ()
    runs: tuple[ServingRun, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=lambda: NO_FACTS)
    system: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    usable_for_fit: bool = True
    bad_durations: tuple[Fault, ...] = ()
    """Operators left out since their duration is a number and none that time can take: negative or infinite."""
    links: tuple[tuple[int, int], ...] = ()
    """Pairs of operators (by position) of which the second waited for the first, as the file states it."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Columns that the rows need and that neither the file nor the context gave."""
        names = [name for row in self.rows for name in missing_columns(row)]
        return tuple(dict.fromkeys(names))

    def table(self, *, sidecar: Sidecar | None = None) -> Table:
        """Return the rows as a checked table; raises MeasurementError that says what has to be stated."""
        if self.missing:
            faults = [
                Fault(
                    name,
                    "nothing in the file",
                    "a value",
                    f"State it: {word}=..., for a command --{word.replace('_', '-')}",
                )
                for name in self.missing
                for word in [name.split(" or ")[0]]
            ]
            raise MeasurementError(
                f"a file of format {self.format} does not say everything a measurement needs", faults=faults
            )
        return table_from_rows(self.rows, sidecar=sidecar, name=self.format)

    def with_warnings(self, *more: str) -> Imported:
        """Return the same with further warnings."""
        return replace(self, warnings=(*self.warnings, *more))


def stem_of(context: Context, default: str) -> str:
    """Return the beginning of row ids: the file's name without its ending."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(context.file).stem).strip("-") or default


def named_rows(rows: Iterable[Row], context: Context, default: str) -> tuple[Row, ...]:
    """Return rows with ids made of the file's name and a number; overflown figures of a damaged file are left out."""
    stem = stem_of(context, default)
    sound = [row for row in rows if row.value is not None and 0 <= row.value < math.inf]
    return tuple(row.with_columns(id=row.id or f"{stem}-{i:04d}") for i, row in enumerate(sound))
