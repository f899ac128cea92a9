"""Checks of what passes through main memory and L2: hit rates and shares of bandwidth stated together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from perfmodel.bisection import turn
from perfmodel.cost.hierarchy import Hierarchy, Prediction, stated_pair
from perfmodel.units import bytes_text, rate_text, time_text
from perfmodel.validate.audit.base import Check, Desk, Ref
from perfmodel.validate.audit.verdict import Finding, graded
from perfmodel.work.traffic import MatmulShape

__all__ = ["GatherMemory", "MatmulMemory"]

Size = Annotated[int, Field(ge=1)]
_CLOSE_FRAC: Final = 0.1
"""A share of bandwidth within this of the prediction is taken as the same: that of calibrated streams."""
_FEWEST_ROWS: Final = 1e3
_MOST_ROWS: Final = 1e9
_REL_WIDTH: Final = 1e-6
_ACCESSES_PER_ROW: Final = 25.0
"""Neighbours of a vertex in public graphs of middling size, so that first touches do not decide."""


def _hierarchy(desk: Desk, name: str) -> Hierarchy:
    device = desk.device(name)
    fit = desk.catalogue.calibration_for("auto", [device], "").for_device(device)
    return Hierarchy.of(fit, desk.catalogue.core_of(device))


class MatmulMemory(Check):
    """A matmul of m x k with k x n: share of main memory's bandwidth in use, and L2 hit rate."""

    kind: Literal["matmul_memory"]
    device: str
    m: Size
    n: Size
    k: Size
    dtype: str = "fp16"
    element_bytes: Annotated[float, Field(gt=0)] = 2.0
    dram_use: Ref
    hit: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield both figures against the tiles of the device, and what the pair would mean for bytes and time."""
        model = _hierarchy(desk, self.device)
        shape = MatmulShape(float(self.m), float(self.n), float(self.k), self.element_bytes, self.element_bytes)
        found = model.matmul(shape, dtype=self.dtype)
        use, hit = desk.value(self.dram_use), desk.value(self.hit)
        pair = stated_pair(found, least_bytes=shape.footprint_bytes, dram_use_frac=use, hit_frac=hit)
        footprint, room = float(shape.footprint_bytes), model.tiles.cache_bytes
        meaning = (
            f"the pair means {bytes_text(float(pair.dram_bytes))} in {time_text(float(pair.time_s))}: each byte would "
            f"move {float(pair.n_moves):.2g} times, while the {bytes_text(footprint)} of all matrices "
            f"{'fit' if footprint <= room else 'do not fit'} into the {bytes_text(room)} of L2 that count"
        )
        working = (
            f"predicted: {time_text(float(found.time.value))}, {rate_text(float(found.flop / found.time.value))}",
            f"hit rate {100 * float(found.hit_frac):.1f} %, main memory {100 * float(found.dram_use_frac):.1f} % used",
            meaning,
        )
        for ref, stated, value in (
            (self.dram_use, use, float(found.dram_use_frac)),
            (self.hit, hit, float(found.hit_frac)),
        ):
            yield graded(
                self.kind,
                ref.rpartition(".")[2],
                stated=stated,
                model=value,
                low=value * (1.0 - _CLOSE_FRAC),
                high=value * (1.0 + _CLOSE_FRAC),
                least=0.0,
                most=1.0,
                inside="as the tiles of the device give it",
                cause=f"{100 * value:.3g} % by the model; {meaning}",
                bound="more than all of it",
                working=working,
            )


class GatherMemory(Check):
    """Reading rows of a table at random: share of main memory's bandwidth in use, and L2 hit rate."""

    kind: Literal["gather_memory"]
    device: str
    row_bytes: Size
    n_rows: Size | None = None
    dram_use: Ref
    hit: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the use of main memory at the stated hit rate, and the table that would give this rate."""
        model = _hierarchy(desk, self.device)
        use, hit = desk.value(self.dram_use), desk.value(self.hit)
        found, rows = self._found(model, hit)
        table = bytes_text(rows * self.row_bytes)
        value = float(found.dram_use_frac)
        unstated = "" if self.n_rows is not None else "the size of the table and how its rows are chosen"
        yield graded(
            self.kind,
            self.dram_use.rpartition(".")[2],
            stated=use,
            model=value,
            low=value * (1.0 - _CLOSE_FRAC),
            high=value * (1.0 + _CLOSE_FRAC),
            least=0.0,
            most=1.0,
            inside=f"a table of {table} ({rows:,.3g} rows of {self.row_bytes} bytes, all alike) gives the hit rate of "
            f"{100 * hit:.3g} %, and {100 * value:.3g} % of main memory with it",
            cause=f"at a hit rate of {100 * float(found.hit_frac):.3g} % it is {100 * value:.3g} % of main memory",
            bound="more than all of it",
            unstated=unstated,
            working=(
                f"{rows:,.4g} rows of {self.row_bytes} bytes: {table}, hit rate {100 * float(found.hit_frac):.1f} %",
            ),
        )

    def _found(self, model: Hierarchy, hit: float) -> tuple[Prediction, float]:
        """Return the prediction of the table that is stated, or of the one that gives the hit rate."""

        def of(rows: float) -> Prediction:
            return model.gather(n_rows=rows, row_bytes=float(self.row_bytes), n_accesses=_ACCESSES_PER_ROW * rows)

        if self.n_rows is not None:
            return of(float(self.n_rows)), float(self.n_rows)
        rows, _ = turn(
            lambda n: float(of(n).hit_frac) > hit, _FEWEST_ROWS, _MOST_ROWS, rel_width=_REL_WIDTH, in_log=True
        )
        return of(rows), rows
