"""The model of the memory hierarchy against measurements: L2 hit rates, and times of cold and resident operands.

Rows of matmuls and decode attention are told apart by their working set: `cold` where it exceeds the usable L2 (or the
table says that operands come from memory), `resident` where it fits and the benchmark replays it. Beside each error
stands that of the calibrated law without an L2, for which every byte comes from main memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.hierarchy import Hierarchy, Prediction, shape_of
from perfmodel.errors import SpecError
from perfmodel.measure.operator_work import OperatorRows, operator_rows
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.parts import Parts
from perfmodel.work.traffic import MatmulShape, Tiles

__all__ = ["HitRate", "StateError", "hit_rates", "in_order", "state_errors"]

Floats = NDArray[np.float64]

_ALWAYS_COLD: Final = "rotate through more than"
_HIT_RATE: Final = "l2_hit_rate"


@dataclass(frozen=True, slots=True)
class HitRate:
    """A measured hit rate of a matmul beside the predicted one."""

    row_id: str
    device: str
    shape: str
    order: str
    measured_frac: float
    predicted_frac: float
    predicted_dram_use_frac: float

    @property
    def difference_frac(self) -> float:
        """Predicted less measured, in points of the hit rate."""
        return self.predicted_frac - self.measured_frac


@dataclass(frozen=True, slots=True)
class StateError:
    """Errors of one kernel class on one device with its operands in one state; NaN where nothing was measured."""

    device: str
    kernel: str
    state: str
    n_rows: int
    median_error_frac: float
    p90_error_frac: float
    bias_frac: float
    median_without_l2_frac: float
    p90_without_l2_frac: float


def hit_rates(table: Table, catalogue: Catalogue) -> list[HitRate]:
    """Return the rows of a table that state an L2 hit rate of a matmul, each predicted with the order it names."""
    at = np.flatnonzero((table["kind"] == "counter") & (table["op"] == _HIT_RATE) & np.isfinite(table["m"]))
    parts = Parts(catalogue)
    found = []
    for i in at.tolist():
        row = {name: table[name][i] for name in ("id", "device", "variant", "compute_dtype", "m", "n", "k", "value")}
        shape = MatmulShape(float(row["m"]), float(row["n"]), float(row["k"]))
        model = _hierarchy(parts, str(row["device"]), "kernel")
        ordered = model.with_tiles(in_order(model.tiles, str(row["variant"])))
        predicted = ordered.matmul(shape, dtype=str(row["compute_dtype"]) or "fp16", is_warm=True)
        found.append(
            HitRate(
                str(row["id"]),
                str(row["device"]),
                f"{shape.n_m:g} x {shape.n_n:g} x {shape.n_k:g}",
                str(row["variant"]),
                float(row["value"]),
                float(predicted.hit_frac),
                float(predicted.dram_use_frac),
            )
        )
    return found


def in_order(tiles: Tiles, words: str) -> Tiles:
    """Return the tiles in the order that a table names: `rows`, `columns`, or `group-5` with an optional `-zigzag`."""
    name, _, rest = words.partition("-")
    if name == "rows" or not name:
        return replace(tiles, axis="n", group_tiles=0, zigzag=False) if name else tiles
    if words == "columns":
        return replace(tiles, axis="m", group_tiles=0, zigzag=False)
    count, _, zigzag = rest.partition("-")
    if name != "group" or not count.isdigit() or zigzag not in ("", "zigzag"):
        expected = "rows, columns, group-N, group-N-zigzag"
        raise SpecError("an order of tiles cannot be read", got=repr(words), expected=expected)
    return replace(tiles, axis="n", group_tiles=int(count), zigzag=bool(zigzag))


def state_errors(tables: list[Table], catalogue: Catalogue) -> list[StateError]:
    """Return errors by device, kernel class and state of the operands, over rows of matmuls and decode attention."""
    parts = Parts(catalogue)
    pooled: dict[tuple[str, str, str], list[tuple[Floats, Floats]]] = {}
    for table in tables:
        is_cold = any(_ALWAYS_COLD in text for text in table.sidecar.how_to_read) if table.sidecar else False
        for rows in operator_rows(table):
            if not rows.kernel.startswith(("matmul/", "attention/decode")):
                continue
            for state, errors, without in _errors(parts, rows, is_always_cold=is_cold):
                pooled.setdefault((rows.device, rows.kernel, state), []).append((errors, without))
    result = []
    for (device, kernel, state), pairs in sorted(pooled.items()):
        errors, without = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
        sizes, plain = np.abs(errors), np.abs(without)
        result.append(
            StateError(
                device,
                kernel,
                state,
                len(errors),
                float(np.median(sizes)),
                float(np.percentile(sizes, 90)),
                float(np.median(errors)),
                float(np.median(plain)),
                float(np.percentile(plain, 90)),
            )
        )
    return result


def _errors(parts: Parts, rows: OperatorRows, *, is_always_cold: bool) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield (state, errors with the L2, errors without) of the rows in each state."""
    model = _hierarchy(parts, rows.device, parts.engine(rows.runtime))
    if not model.tiles.cache_bytes:
        return
    if rows.kernel.startswith("attention"):
        footprint: Floats = np.asarray(rows.work.n_bytes, dtype=np.float64)
        predicted = [model.stream(rows.work, is_warm=warm) for warm in (False, True)]
    else:
        footprint = np.asarray(shape_of(rows.work).footprint_bytes, dtype=np.float64)
        predicted = [model.matmul_of(rows.work, is_warm=warm) for warm in (False, True)]
    plain = np.asarray(model.prices.time(rows.work).value, dtype=np.float64)
    is_resident = (footprint <= model.tiles.cache_bytes) & (not is_always_cold)
    for state, mask, found in zip(("cold", "resident"), (~is_resident, is_resident), predicted, strict=True):
        if mask.any():
            yield state, _relative(found, rows, mask), (plain / rows.time_s - 1.0)[mask]


def _relative(found: Prediction, rows: OperatorRows, mask: NDArray[np.bool_]) -> Floats:
    error: Floats = np.asarray(found.time.value, dtype=np.float64) / rows.time_s - 1.0
    return error[mask]


def _hierarchy(parts: Parts, name: str, engine: str) -> Hierarchy:
    device = parts.catalogue.device(name)
    return Hierarchy.of(parts.coefficients(device, engine).for_device(device), parts.catalogue.core_of(device))
