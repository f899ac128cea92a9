"""A measurement table in columns: rows to look at, arrays to compute with, filters to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UnknownNameError
from perfmodel.measure.row import Row
from perfmodel.measure.schema import ALWAYS, COLUMNS, DTYPES, GRADES, KINDS, MAY_BE_ZERO, STATUSES, USABLE
from perfmodel.measure.sidecar import Sidecar
from perfmodel.measure.text import Faults, listed

__all__ = ["Columns", "Table", "near", "noted_faults", "table_from_rows"]

Columns: TypeAlias = Mapping[str, NDArray[Any]]
Texts: TypeAlias = str | Sequence[str] | None
Where: TypeAlias = Callable[[int, str], str]
"""From a row's position and a column to the words that tell a reader where that is."""


def near(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" or nothing."""
    error = UnknownNameError.of("name", name, list(known))
    return error.faults[0].where if error.faults else ""


@dataclass(frozen=True, eq=False)
class Table:
    """Measurements by column. Text columns hold str ("" = not stated), the others float64 (NaN = not stated).

    `columns` holds only columns that some row fills; `table["m"]` returns any column of the schema.
    """

    columns: Columns
    n_rows: int
    sidecar: Sidecar = field(default_factory=Sidecar)
    name: str = "table"

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self.columns:
            return self.columns[name]
        if name not in COLUMNS:
            raise UnknownNameError.of("column", name, list(COLUMNS))
        if COLUMNS[name].cell == "text":
            return np.full(self.n_rows, "", dtype=object)
        return np.full(self.n_rows, np.nan)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        names = {*self.columns, *other.columns}
        same = self.n_rows == other.n_rows and self.sidecar == other.sidecar
        return same and all(_equal(self[name], other[name]) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def row(self, index: int) -> Row:
        """Return one row as an object."""
        cells: dict[str, Any] = {}
        for name, column in self.columns.items():
            cell = column[index]
            if COLUMNS[name].cell == "text":
                cells[name] = cell
            elif cell == cell:
                cells[name] = float(cell)
        return Row(**cells)

    def rows(self) -> Iterator[Row]:
        """Yield all rows as objects."""
        return (self.row(i) for i in range(self.n_rows))

    def selected(self, mask: NDArray[Any]) -> Table:
        """Return the rows for which a mask is true, or that an array of positions names."""
        chosen = {name: column[mask] for name, column in self.columns.items()}
        n_rows = int(np.count_nonzero(mask)) if mask.dtype == bool else len(mask)
        return Table(chosen, n_rows, self.sidecar, self.name)

    def where(
        self,
        *,
        kind: Texts = None,
        device: Texts = None,
        model: Texts = None,
        runtime: Texts = None,
        metric: Texts = None,
        op: Texts = None,
        compute_dtype: Texts = None,
        quantization: Texts = None,
        status: Texts = USABLE,
    ) -> Table:
        """Return the rows that match everything stated; each argument is one word or several to choose from.

        `runtime` matches the whole word or its beginning up to a dash: "vllm" finds "vllm-0.6.3". Rows are usable
        ones (ok and inferred) unless `status` says otherwise; None takes all.
        """
        wanted = {"kind": kind, "device": device, "model": model, "metric": metric, "op": op, "status": status}
        wanted |= {"compute_dtype": compute_dtype, "quantization": quantization}
        mask = np.ones(self.n_rows, dtype=bool)
        for name, texts in wanted.items():
            if texts is not None:
                mask &= np.isin(self[name], [texts] if isinstance(texts, str) else list(texts))
        if runtime is not None:
            families = (runtime,) if isinstance(runtime, str) else tuple(runtime)
            present = {r for r in set(self["runtime"]) for f in families if r == f or r.startswith(f"{f}-")}
            mask &= np.isin(self["runtime"], list(present))
        return self.selected(mask)

    @property
    def complete(self) -> Table:
        """The rows that state every condition a prediction needs; the others can only be shown."""
        mask = np.ones(self.n_rows, dtype=bool)
        for kind, rule in KINDS.items():
            for group in rule.wanted:
                mask &= (self["kind"] != kind) | np.any([_filled(self, name) for name in group], axis=0)
        return self.selected(mask)

    def counts(self, column: str) -> dict[str, int]:
        """Return how often each word of a text column occurs."""
        words, numbers = np.unique(self[column].astype(str), return_counts=True)
        return {str(word): int(number) for word, number in zip(words, numbers, strict=True)}

    def with_status(self, changes: Mapping[int, tuple[str, str]]) -> Table:
        """Return the table in which the rows at some positions have another status and one more sentence as note."""
        if not changes:
            return self
        status, note = self["status"].copy(), self["note"].copy()
        for i, (word, why) in changes.items():
            status[i] = word
            note[i] = f"{note[i]}; {why}" if note[i] else why
        return Table({**self.columns, "status": status, "note": note}, self.n_rows, self.sidecar, self.name)

    def joined(self, other: Table) -> Table:
        """Return both tables in one, with the sidecar of the first."""
        names = [name for name in COLUMNS if name in self.columns or name in other.columns]
        both = {name: np.concatenate([self[name], other[name]]) for name in names}
        return Table(both, self.n_rows + other.n_rows, self.sidecar, self.name)


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype == object:
        return bool(np.array_equal(one, other))
    return bool(np.array_equal(one.astype(float), other.astype(float), equal_nan=True))


def table_from_rows(rows: Iterable[Row], *, sidecar: Sidecar | None = None, name: str = "table") -> Table:
    """Return a checked table of rows; raises MeasurementError that lists what is wrong, by id."""
    listed_rows = list(rows)
    columns: dict[str, NDArray[Any]] = {}
    for column, rule in COLUMNS.items():
        cells = [getattr(row, column) for row in listed_rows]
        if rule.cell == "text":
            if any(cells):
                columns[column] = np.array([str(c).strip() for c in cells] + [None], dtype=object)[:-1]
        elif any(c is not None for c in cells):
            columns[column] = np.array([np.nan if c is None else float(c) for c in cells])
    faults = Faults()
    names = [row.id or f"row {i + 1}" for i, row in enumerate(listed_rows)]
    noted_faults(faults, columns, len(listed_rows), lambda i, column: f"{names[i]}, {column}")
    if faults:
        raise faults.raised(f"{name} is no valid table of measurements")
    return Table(columns, len(listed_rows), sidecar or Sidecar(), name)


def noted_faults(faults: Faults, columns: Columns, n_rows: int, where: Where, *, is_question: bool = False) -> None:
    """Add to `faults` whatever is wrong with the values in columns; a question may leave open what it asks for."""
    if not n_rows:
        return
    table = Table(columns, n_rows)
    _note_words(faults, table, where)
    _note_numbers(faults, table, where)
    _note_kinds(faults, table, where, ("kind", "device") if is_question else ALWAYS)
    _note_repeats(faults, table, where)


def _note_words(faults: Faults, table: Table, where: Where) -> None:
    closed = {"kind": tuple(KINDS), "status": STATUSES, "grade": GRADES, "compute_dtype": DTYPES}
    for name, words in closed.items():
        column = table[name]
        optional = name in ("grade", "compute_dtype")
        for word in set(column) - set(words):
            if word == "" and (optional or name == "kind"):
                continue  # an empty kind is reported with the missing columns
            for i in np.flatnonzero(column == word):
                faults.add(where(int(i), name), word, f"one of {', '.join(words)}", near(word, words))


def _note_numbers(faults: Faults, table: Table, where: Where) -> None:
    for name, column in table.columns.items():
        rule = COLUMNS[name]
        if rule.cell == "text":
            continue
        values = cast("NDArray[np.float64]", column)
        with np.errstate(invalid="ignore"):
            bad = (values < rule.least) | (np.isinf(values) & ((values < 0) | (not rule.may_be_infinite)))
            if rule.cell == "count":
                bad |= np.isfinite(values) & (values != np.floor(values))
            large = np.isfinite(values) & (values > rule.most) & ~bad
        kind = "a whole number" if rule.cell == "count" else "a finite number"
        for i in np.flatnonzero(bad):
            faults.add(where(int(i), name), f"{values[i]:g}", f"{kind} of at least {rule.least:g}")
        for i in np.flatnonzero(large):
            faults.add(where(int(i), name), f"{values[i]:g}", f"at most {rule.most:g}")


def _note_kinds(faults: Faults, table: Table, where: Where, always: Sequence[str]) -> None:
    kinds = table["kind"]
    for name in always:
        column = table[name]
        empty = (column == "") if COLUMNS[name].cell == "text" else np.isnan(column.astype(float))
        if empty.all() and len(empty) > 1:
            faults.add(f"column {name}", "nothing in any row", "a value in every row", _EMPTY_CURE.get(name, ""))
            continue
        for i in np.flatnonzero(empty):
            faults.add(where(int(i), name), "nothing", "a value in every row", _EMPTY_CURE.get(name, ""))
    for kind, rule in KINDS.items():
        mask = kinds == kind
        if not mask.any():
            continue
        positions = np.flatnonzero(mask)
        for name in rule.required:
            for i in positions[~_filled(table, name)[mask]]:
                faults.add(where(int(i), name), "nothing", f"a value: kind {kind} needs {', '.join(rule.required)}")
        _note_metrics(faults, table, kind, positions, where)
        _note_nothing(faults, table, kind, positions, where)


def _note_nothing(faults: Faults, table: Table, kind: str, positions: NDArray[Any], where: Where) -> None:
    """Note counts of 0 where that is no work at all, and more experts for a token than there are."""
    rule = KINDS[kind]
    for name in (*rule.required, *(name for group in rule.wanted for name in group)):
        if COLUMNS[name].cell != "text" and name not in MAY_BE_ZERO:
            for i in positions[table[name][positions] == 0]:
                faults.add(where(int(i), name), "0", "a number above 0: there is nothing to time")
    if kind == "moe_ffn":
        ranks = np.nan_to_num(table["ep"][positions], nan=1.0)
        for i in positions[table["top_k"][positions] > table["n_experts"][positions] * ranks]:
            faults.add(where(int(i), "top_k"), f"{table['top_k'][i]:g}", "at most the experts of all ranks")


_EMPTY_CURE = {
    "id": "Give each row a name of its own, such as run1-0007.",
    "device": "Name it as the hardware catalogue does, or state it once under `constants` of the YAML beside it.",
    "source": "Say where the figure comes from, or state it once in the YAML beside the table.",
    "runtime": "Name software and version, such as vllm-0.10.2.",
}


def _filled(table: Table, name: str) -> NDArray[np.bool_]:
    column = table[name]
    if COLUMNS[name].cell == "text":
        return np.asarray(column != "", dtype=bool)
    return np.asarray(~np.isnan(column.astype(float)))


def _note_metrics(faults: Faults, table: Table, kind: str, positions: NDArray[Any], where: Where) -> None:
    rule = KINDS[kind]
    metrics, values = table["metric"][positions], table["value"].astype(float)[positions]
    for word in set(metrics) - set(rule.metrics) - {""}:
        cure = _unit_cure(word, rule.metrics) or near(word, rule.metrics)
        for i in positions[metrics == word]:
            faults.add(where(int(i), "metric"), word, f"{' or '.join(rule.metrics)} for kind {kind}", cure)
    if not rule.may_be_zero:
        for i in positions[values == 0]:
            cure = "A time or rate of zero was not measured: drop the row."
            faults.add(where(int(i), "value"), "0", "a number above 0", cure)


def _unit_cure(word: str, metrics: Iterable[str]) -> str:
    scales = {"ms": "divide by 1000", "us": "divide by 1e6", "ns": "divide by 1e9"}
    for suffix, cure in scales.items():
        base = word.removesuffix(f"_{suffix}")
        if base != word and f"{base}_s" in metrics:
            return f"Write {base}_s and {cure}: tables hold base units."
    is_rate = "bytes_per_s" in metrics and "b" in word.lower()
    return "Write bytes_per_s in base units: 1 GB/s is 1e9." if is_rate else ""


def _note_repeats(faults: Faults, table: Table, where: Where) -> None:
    ids = table["id"]
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    for i, name in enumerate(ids):
        if name and name in first:
            cure = f"First used at {where(first[name], 'id')}."
            faults.add(where(i, "id"), name, "an id that no other row has", cure)
        first.setdefault(name, i)


def names_text(table: Table, column: str) -> str:
    """Return the distinct words of a text column as a short list."""
    return listed(sorted(set(table[column]) - {""}))
