"""What a kernel costs through main memory, L2 and core: time, hit rate and use of each level together.

    busy   = max( compute (+)q memory,  l2_bytes / (tiled_l2_frac x l2 bandwidth) )
    memory = dram_bytes / (memory_frac x dram bandwidth)
           + bytes found at first use / max(stream_l2_frac x l2 bandwidth, memory_frac x dram bandwidth)

Compute, main memory, knee, launch and chain are those of the calibration (cost/kernel.py); only the bytes differ: those
that the cache does not have (work/traffic.py). A prediction changes only where the L2 spares bytes of main memory, or
where all that is asked of it takes longer than the rest. A kernel that uses each byte once reaches less of the L2's
nominal bandwidth than a tiled one: it has less under way. An L2 without a stated bandwidth streams as main memory does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from perfmodel.cost.kernel import KernelPrices
from perfmodel.cost.layout import StridedAccess
from perfmodel.errors import SpecError
from perfmodel.estimate import (
    Bound,
    Coefficient,
    Estimate,
    Law,
    Num,
    Rule,
    ceiling,
    larger,
    leaf,
    slowest,
    smaller,
    soft_slowest,
    total,
)
from perfmodel.specs.calibration import CalibratedDevice
from perfmodel.specs.core import CoreClass, RateShare
from perfmodel.specs.device import Device
from perfmodel.work.kernel import Work
from perfmodel.work.traffic import MatmulShape, Tiles, Traffic, gather_traffic, matmul_traffic, stream_traffic

__all__ = [
    "Hierarchy",
    "LevelBytes",
    "LevelUse",
    "Prediction",
    "StatedPair",
    "level_bytes",
    "shape_of",
    "stated_pair",
    "tiles_of",
]

STREAM: Final = Law("bytes_found_at_first_use / stream_bytes_per_s", "hierarchical-roofline")
TILED: Final = Law("l2_bytes / tiled_bytes_per_s", "hierarchical-roofline")


class LevelUse(NamedTuple):
    """A memory level under a kernel: bytes that pass, intensity (over a byte at least), share of bandwidth in use."""

    level: Literal["dram", "l2"]
    n_bytes: Num
    intensity_flop_per_byte: Num
    bytes_per_s: float
    use_frac: Num


class LevelBytes(NamedTuple):
    """Bytes that pass each level for one kernel, from far to near: never fewer nearer to the core."""

    dram_bytes: Num
    l2_bytes: Num
    on_chip_bytes: Num


@dataclass(frozen=True, slots=True)
class Prediction:
    """A kernel through the hierarchy: its time as a tree, and what each level sees in that time."""

    name: str
    flop: Num
    traffic: Traffic
    time: Estimate
    dram_bytes_per_s: float
    l2_bytes_per_s: float

    @property
    def hit_frac(self) -> Num:
        """Share of the bytes asked of the L2, reads and writes, that it has."""
        return self.traffic.hit_frac

    @property
    def dram_use_frac(self) -> Num:
        """Bytes of main memory over what its nominal bandwidth would move in the time."""
        return self.traffic.dram_bytes / (self.time.value * self.dram_bytes_per_s)

    @property
    def levels(self) -> tuple[LevelUse, ...]:
        """Main memory, and the L2 where its bandwidth is known."""
        rows: list[tuple[Literal["dram", "l2"], Num, float]] = [
            ("dram", self.traffic.dram_bytes, self.dram_bytes_per_s),
            ("l2", self.traffic.l2_bytes, self.l2_bytes_per_s),
        ]
        return tuple(
            LevelUse(level, n_bytes, self.flop / larger(n_bytes * 1.0, 1.0), rate, n_bytes / (self.time.value * rate))
            for level, n_bytes, rate in rows
            if rate > 0
        )


@dataclass(frozen=True, slots=True)
class StatedPair:
    """A stated use of main memory with a stated hit rate: what both together say of a kernel.

    Bytes that miss are `dram_bytes`; at the stated use they take `time_s`. `n_moves` is how often each byte that
    has to move would move, `least_use_frac` the use of main memory if each moved once in the predicted time.
    """

    dram_bytes: Num
    time_s: Num
    flop_per_s: Num
    n_moves: Num
    least_use_frac: Num


def stated_pair(prediction: Prediction, *, least_bytes: Num, dram_use_frac: Num, hit_frac: Num) -> StatedPair:
    """Return what a stated pair of use and hit rate says of a predicted kernel that must move `least_bytes`."""
    missed = (1.0 - hit_frac) * prediction.traffic.l2_bytes
    time = missed / (dram_use_frac * prediction.dram_bytes_per_s)
    return StatedPair(
        dram_bytes=missed,
        time_s=time,
        flop_per_s=prediction.flop / time,
        n_moves=missed / least_bytes,
        least_use_frac=least_bytes / (prediction.time.value * prediction.dram_bytes_per_s),
    )


def shape_of(work: Work) -> MatmulShape:
    """Return the shape behind the counts of a matmul; raises SpecError for other work."""
    if work.rows is None or work.depth is None or work.weight_bytes is None or work.io_bytes is None:
        raise SpecError(f"{work.name} is no matmul", got=f"work of the class {work.kernel}", expected="rows and depth")
    rows, depth = work.rows, work.depth
    width = work.flop / (2.0 * rows * depth)
    element = work.io_bytes / (rows * (depth + width))
    return MatmulShape(rows, width, depth, element, work.weight_bytes / (depth * width), element)


def level_bytes(work: Work, core: CoreClass, tiles: Tiles) -> LevelBytes:
    """Return the bytes that a kernel moves through each level, its operands cold.

    A matmul as cut into tiles. Attention reads keys and values once for each `attention_rows` queries. Experts read
    their weights once for each row of tiles. All else passes each level once.
    """
    tiling, chip = core.tiling, 0.0 * work.n_bytes
    dram, l2 = work.n_bytes + chip, work.n_bytes + chip
    if work.kernel.startswith("matmul") and work.rows is not None and work.depth is not None:
        shape = shape_of(work)
        traffic = matmul_traffic(shape, tiles)
        dram, l2 = traffic.dram_bytes, traffic.l2_bytes
        chip = shape.input_bytes * ceiling(shape.n_n / tiling.operand_n.value)
        chip = chip + shape.weight_bytes * ceiling(shape.n_m / tiling.operand_m.value)
    elif work.kernel.startswith(("attention", "mla")):
        element = 1.0 if work.dtype in ("fp8", "int8") else 2.0
        l2 = larger(l2, work.flop * (element / (2.0 * tiling.attention_rows.value)))
        chip = work.flop * (element / (2.0 * tiling.operand_m.value))
    elif work.rows is not None and work.weight_bytes is not None:
        l2 = l2 + work.weight_bytes * (ceiling(work.rows / tiling.tile_m.value) - 1.0)
        chip = work.weight_bytes * ceiling(work.rows / tiling.operand_m.value)
    return LevelBytes(dram, l2, larger(l2, chip))


def tiles_of(device: Device, core: CoreClass) -> Tiles:
    """Return how a device cuts a matmul: the tiles of its class of cores, its cores, the part of its L2 that counts."""
    engine, tiling = device.matrix or device.vector, core.tiling
    return Tiles(
        tile_m=round(tiling.tile_m.value),
        tile_n=round(tiling.tile_n.value),
        n_cores=round(engine.n_cores.value),
        cache_bytes=device.l2_bytes * tiling.usable_l2_frac.value,
        axis=tiling.order.axis,
        group_tiles=tiling.order.group_tiles,
        zigzag=tiling.order.zigzag,
    )


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Prices kernels on one device through its memory hierarchy."""

    prices: KernelPrices
    core: CoreClass
    tiles: Tiles
    l2_bytes_per_s: float

    @classmethod
    def of(cls, calibrated: CalibratedDevice, core: CoreClass) -> Hierarchy:
        """Return the hierarchy of a device with its coefficients and the tiles of its class of cores."""
        level = calibrated.device.level("l2")
        rate = level.bandwidth.value if level is not None and level.bandwidth is not None else 0.0
        return cls(KernelPrices(calibrated), core, tiles_of(calibrated.device, core), rate)

    def with_tiles(self, tiles: Tiles) -> Hierarchy:
        """Return the same with other tiles, another order or another cache."""
        return replace(self, tiles=tiles)

    def matmul(
        self,
        shape: MatmulShape,
        *,
        dtype: str,
        kernel: str = "matmul/16bit",
        n_launches: float = 1.0,
        is_warm: bool = False,
    ) -> Prediction:
        """Return the prediction of a matmul; `is_warm`: it ran just before, and its inputs stay where all fits.

        A kernel class whose activations are quantised on the fly has two launches.
        """
        work = Work("matmul", kernel, dtype, shape.flop, rows=shape.n_m, depth=shape.n_k, n_launches=n_launches)
        return self._matmul(work, shape, is_warm=is_warm)

    def matmul_of(self, work: Work, *, is_warm: bool = False) -> Prediction:
        """Return the prediction of a matmul given as work of the step model: its shape follows from its counts."""
        return self._matmul(work, shape_of(work), is_warm=is_warm)

    def _matmul(self, work: Work, shape: MatmulShape, *, is_warm: bool) -> Prediction:
        traffic = matmul_traffic(shape, self.tiles, is_warm=is_warm)
        moved = work._replace(weight_bytes=traffic.dram_read_bytes, io_bytes=traffic.dram_write_bytes)
        return self._predicted(moved, traffic, shape.footprint_bytes)

    def stream(self, work: Work, *, is_warm: bool = False) -> Prediction:
        """Return the prediction of a kernel that uses each of its bytes once: attention over a cache, elementwise.

        Activations are counted as new; weights and cache stay from a run just before where all fits (`is_warm`).
        """
        written = 0.0 if work.io_bytes is None else work.io_bytes
        kept = work.n_bytes - written
        traffic = stream_traffic(
            n_bytes=kept, written_bytes=written, cache_bytes=self.tiles.cache_bytes, is_warm=is_warm
        )
        share = traffic.dram_read_bytes / larger(kept * 1.0, 1.0)
        missed = work._replace(
            weight_bytes=None if work.weight_bytes is None else work.weight_bytes * share,
            kv_bytes=None if work.kv_bytes is None else work.kv_bytes * share,
            bytes_per_pad=None if work.bytes_per_pad is None else work.bytes_per_pad * share,
        )
        return self._predicted(missed, traffic, traffic.l2_bytes)

    def gather(
        self,
        *,
        n_rows: Num,
        row_bytes: Num,
        n_accesses: Num,
        skew: Num = 0.0,
        flop_per_byte: Num = 0.0,
        is_warm: bool = True,
    ) -> Prediction:
        """Return the prediction of reading rows of a table at random (aggregation over a graph, embeddings).

        A row costs its whole lines; rows shorter than a line share one, and a line is then what the cache keeps.
        `skew` is the locality (Zipf exponent of how often a row is read), `flop_per_byte` what is done with each byte.
        """
        level = self.prices.device.device.level("l2")
        line = level.line_bytes.value if level is not None and level.line_bytes is not None else 1.0
        lines = StridedAccess(run_bytes=row_bytes, stride_bytes=row_bytes, line_bytes=line).lines_per_run
        unit = larger(row_bytes * 1.0, line)
        traffic = gather_traffic(
            n_units=larger(n_rows * row_bytes / unit, 1.0),
            n_asked=n_accesses * (lines * line / unit),
            unit_bytes=unit,
            cache_bytes=self.tiles.cache_bytes,
            skew=skew,
            is_warm=is_warm,
        )
        useful = n_accesses * row_bytes
        work = Work(
            "gather", "elementwise", "fp32", flop=useful * flop_per_byte, io_bytes=traffic.dram_bytes, engine="vector"
        )
        return self._predicted(work, traffic, traffic.l2_bytes)

    def _predicted(self, work: Work, traffic: Traffic, first_bytes: Num) -> Prediction:
        *beside, busy = self.prices.time(work).parts
        return Prediction(
            work.name,
            work.flop,
            traffic,
            total(work.name, (*beside, self._through(work, busy, traffic, first_bytes))),
            self.prices.device.device.dram_bytes_per_s,
            self.l2_bytes_per_s,
        )

    def _through(self, work: Work, busy: Estimate, traffic: Traffic, first_bytes: Num) -> Estimate:
        """Return compute and memory with what the L2 gives at first use, or all that is asked of it if that is longer.

        A stream out of the L2 is never slower than one out of main memory.
        """
        compute, memory = busy.parts
        found = larger(smaller(first_bytes * 1.0, traffic.l2_bytes * 1.0) - traffic.dram_bytes, 0.0)
        device, stream, tiled = self.prices.device, self.core.tiling.stream_l2_frac, self.core.tiling.tiled_l2_frac
        out_of_memory = device.kernel(work.kernel).memory.value * device.device.dram_bytes_per_s
        streamed = _l2("l2_stream", found, max(stream.value * self.l2_bytes_per_s, out_of_memory), stream, STREAM)
        parts = (compute, total("memory", (memory, streamed)))
        both = soft_slowest("busy", parts, float(busy.parameter)) if busy.rule is Rule.NORM else slowest("busy", parts)
        if self.l2_bytes_per_s == 0.0:
            return both
        asked = _l2("l2_tiled", traffic.l2_bytes, tiled.value * self.l2_bytes_per_s, tiled, TILED)
        return slowest("through_l2", (both, asked))


def _l2(name: str, n_bytes: Num, bytes_per_s: float, share: RateShare, law: Law) -> Estimate:
    return leaf(
        name,
        n_bytes / bytes_per_s,
        bound=Bound.WEIGHT_READ,
        law=law,
        inputs=(("bytes", n_bytes), (f"{name.removeprefix('l2_')}_bytes_per_s", bytes_per_s)),
        coefficients=(Coefficient(f"{name}.rate", share.value, share.rel_sd, share.source),),
    )
