"""What a kernel costs on a device: launch, then the soft maximum of arithmetic and memory traffic.

    t = launch + chain x depth + (flop / (compute_frac x peak)) (+)q (bytes / (memory_frac x bandwidth))

with x (+)q y = (x^q + y^q)^(1/q).

Source: the roofline model, with a q-norm for the knee. Without a knee coefficient the maximum is hard. Bytes are
those that main memory must move at least once, split by what they are, so that the bottleneck has a name. `depth` is a
serial chain that no width shortens: the contraction of a matmul, the merge of partial results in decode attention.
Attention kernels work on whole tiles: `pad_tokens` more tokens than asked. A tile of `min_rows` query rows against the
longest context runs on one core: the engine is busy at least that long, as if all cores had such a tile. Operands
that a kernel just before has written may be read from the last cache: their bytes then cost 1/cache_speedup, fading to
1 around its capacity. Activations that are scaled before the multiply pass through a kernel of its own, which a
quantise_frac prices apart; without it their bytes are the multiply's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.estimate import (
    TINY,
    Bound,
    Coefficient,
    Estimate,
    Law,
    Num,
    larger,
    leaf,
    slowest,
    smaller,
    soft_slowest,
    total,
    uncertain,
)
from perfmodel.specs.calibration import CalibratedDevice
from perfmodel.work.kernel import Work

__all__ = ["KernelPrices", "cached_share"]

COMPUTE = Law("flop / (compute_frac x peak_flop_per_s)", "roofline")
MEMORY = Law("bytes / (memory_frac x bandwidth_bytes_per_s)", "roofline")
QUANTISE = Law("bytes / (quantise_frac x bandwidth_bytes_per_s)")
GROUPED = Law("grouped_share x start_s")
LAUNCH = Law("n_launches x launch_s (x shown_frac)")
CHAIN = Law("depth x chain_s (x shown_frac)")


@dataclass(frozen=True, slots=True)
class _Rates:
    """Effective rates for one kernel class, dtype and engine, with what the explanation shows."""

    s_per_flop: float
    s_per_byte: float
    launch_s: float
    knee: float | None
    chain: Coefficient | None
    pad_tokens: float
    min_rows: float
    n_cores: float
    cached_bytes: float
    cache_saving_frac: float
    cache_capacity_bytes: float
    s_per_quantised_byte: float | None
    compute: tuple[Coefficient, ...]
    memory: tuple[Coefficient, ...]
    launch: tuple[Coefficient, ...]
    quantise: tuple[Coefficient, ...]
    grouped: Coefficient | None
    scatter: tuple[Coefficient, ...]
    measured_bytes: tuple[float, float] | None
    compute_inputs: tuple[tuple[str, Num], ...]
    memory_inputs: tuple[tuple[str, Num], ...]
    launch_inputs: tuple[tuple[str, Num], ...]


def _padded_flop(work: Work, rates: _Rates) -> Num:
    """Return the flop that the engine is busy for: pad_tokens more tokens, at least min_rows rows, whole units."""
    flop = work.flop
    if work.flop_per_pad is not None and rates.pad_tokens > 0:
        flop = flop + work.flop_per_pad * rates.pad_tokens
    if work.rows is not None and rates.min_rows > 0:
        flop = flop * (larger(work.rows, rates.min_rows) / (work.rows + TINY))
    if work.unit_flop_per_row is not None and rates.min_rows > 0:
        flop = larger(flop, work.unit_flop_per_row * (rates.min_rows * rates.n_cores))
    return flop * work.effort if rates.min_rows > 0 else flop


def _padded_kv(work: Work, rates: _Rates) -> Num | None:
    """Return cache bytes with those of pad_tokens more tokens a sequence."""
    if work.kv_bytes is None or work.bytes_per_pad is None or rates.pad_tokens <= 0:
        return work.kv_bytes
    return work.kv_bytes + work.bytes_per_pad * rates.pad_tokens


def _activation_bytes(work: Work, rates: _Rates) -> Num | None:
    """Return the bytes of activations that count as the kernel's own."""
    if work.quantise_bytes is None or rates.s_per_quantised_byte is not None:
        return work.io_bytes
    return work.quantise_bytes if work.io_bytes is None else work.io_bytes + work.quantise_bytes


def cached_share(n_bytes: Num, capacity_bytes: float) -> Num:
    """Return the share of operands of `n_bytes` found in a cache: all up to its capacity, none from twice on.

    Bytes that are not found, n_bytes x (1 - saving x share), grow with n_bytes for any saving up to 1.

    >>> cached_share(0.5, 1.0), cached_share(1.5, 1.0), cached_share(2.0, 1.0)
    (1.0, 0.5, 0.0)
    """
    return larger(smaller(2.0 - n_bytes * (1.0 / capacity_bytes), 1.0), 0.0)


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """Prices kernels on one calibrated device; rates are looked up once per kernel class."""

    device: CalibratedDevice
    launch_frac: float = 1.0
    """Share of a kernel's start and chain that shows where one follows the other (`Runtime.launch_shown_frac`)."""
    _rates: dict[tuple[str, str, str, str], _Rates] = field(default_factory=dict)

    def time(self, work: Work) -> Estimate:
        """Return the time of one kernel as a tree; monotone in every count of `work`.

        Beyond the bytes that were measured the whole is the less certain.
        """
        rates = self._rates_for(work)
        tree = self._tree(work, rates)
        if rates.measured_bytes is None or self.device.calibration.extrapolation is None:
            return tree
        return uncertain(tree, (self.device.beyond(work.kernel, work.n_bytes, rates.measured_bytes),))

    def _tree(self, work: Work, rates: _Rates) -> Estimate:
        flop = _padded_flop(work, rates)
        compute = Estimate(
            "compute",
            flop * rates.s_per_flop,
            bound=Bound.COMPUTE,
            law=COMPUTE,
            inputs=(("flop", flop), *rates.compute_inputs),
            coefficients=rates.compute,
        )
        parts = (compute, self._memory(work, rates))
        busy = slowest("busy", parts) if rates.knee is None else soft_slowest("busy", parts, rates.knee)
        launch = Estimate(
            "launch",
            work.n_launches * rates.launch_s,
            bound=Bound.LAUNCH,
            law=LAUNCH,
            inputs=(("n_launches", work.n_launches), *rates.launch_inputs),
            coefficients=rates.launch,
        )
        before = (launch, *self._grouped(work, rates), *self._quantised(work, rates))
        if rates.chain is None or work.depth is None:
            return total(work.name, (*before, busy))
        chain = Estimate(
            "chain",
            work.depth * (rates.chain.value * self.launch_frac),
            bound=Bound.LAUNCH,
            law=CHAIN,
            inputs=(("depth", work.depth), ("chain_s", rates.chain.value)),
            coefficients=(rates.chain, *rates.scatter),
        )
        return total(work.name, (*before, chain, busy))

    def _grouped(self, work: Work, rates: _Rates) -> tuple[Estimate, ...]:
        """Return what the kernel for grouped heads takes longer to start."""
        if work.grouped_share is None or rates.grouped is None:
            return ()
        start = rates.grouped
        inputs = (("grouped_share", work.grouped_share), ("start_s", start.value))
        time, used = work.grouped_share * start.value, (start, *rates.scatter)
        return (Estimate("grouped", time, bound=Bound.LAUNCH, law=GROUPED, inputs=inputs, coefficients=used),)

    def _quantised(self, work: Work, rates: _Rates) -> tuple[Estimate, ...]:
        """Return the kernel that scales activations, where its rate is known apart."""
        if work.quantise_bytes is None or rates.s_per_quantised_byte is None:
            return ()
        time = work.quantise_bytes * rates.s_per_quantised_byte
        inputs = (("bytes", work.quantise_bytes), *rates.memory_inputs[1:2])
        bound = Bound.ACTIVATION_IO
        return (Estimate("quantise", time, bound=bound, law=QUANTISE, inputs=inputs, coefficients=rates.quantise),)

    def _memory(self, work: Work, rates: _Rates) -> Estimate:
        if rates.cached_bytes:
            missed = larger(work.n_bytes - rates.cached_bytes, 0.0) * rates.s_per_byte
            return leaf("uncached", missed, bound=Bound.WEIGHT_READ, law=MEMORY, inputs=rates.memory_inputs)
        s_per_byte: Num = rates.s_per_byte
        if rates.cache_saving_frac > 0.0:
            of_one = work.n_bytes * (1.0 / work.n_launches)
            s_per_byte = s_per_byte * (1.0 - rates.cache_saving_frac * cached_share(of_one, rates.cache_capacity_bytes))
        leaves = tuple(
            Estimate(
                name,
                n_bytes * s_per_byte,
                bound=bound,
                law=MEMORY,
                inputs=(("bytes", n_bytes), *rates.memory_inputs),
                coefficients=rates.memory,
            )
            for name, n_bytes, bound in (
                ("weights", work.weight_bytes, Bound.WEIGHT_READ),
                ("kv", _padded_kv(work, rates), Bound.KV_READ),
                ("activations", _activation_bytes(work, rates), Bound.ACTIVATION_IO),
            )
            if n_bytes is not None
        )
        return leaves[0] if len(leaves) == 1 else total("memory", leaves)

    def _rates_for(self, work: Work) -> _Rates:
        key = (work.name, work.kernel, work.dtype, work.engine)
        found = self._rates.get(key)
        if found is None:
            found = self._rates[key] = self._looked_up(work)
        return found

    def _looked_up(self, work: Work) -> _Rates:
        fit, spec = self.device.kernel(work.kernel), self.device.device
        peak, bandwidth = spec.peak_flop_per_s(work.dtype, work.engine), spec.dram_bytes_per_s
        is_bound = self.device.calibration.status == "bound"
        if is_bound:
            peak = peak * spec.clock_headroom
        scatter = (Coefficient(f"{work.kernel}.{work.name}.scatter", 1.0, fit.scatter),) if fit.scatter > 0 else ()
        cache, quantise = fit.cache_speedup, fit.quantise
        shown = (("shown_frac", self.launch_frac),) if self.launch_frac != 1.0 else ()
        return _Rates(
            s_per_flop=1.0 / (fit.compute.value * peak),
            s_per_byte=1.0 / (fit.memory.value * bandwidth),
            launch_s=fit.launch.value * self.launch_frac,
            knee=fit.knee,
            chain=fit.chain,
            pad_tokens=fit.pad_tokens,
            min_rows=fit.min_rows,
            n_cores=spec.matrix.n_cores.value if spec.matrix is not None else 1.0,
            cached_bytes=spec.last_cache_bytes if is_bound else 0.0,
            cache_saving_frac=1.0 - 1.0 / cache.value if cache is not None and spec.last_cache_bytes else 0.0,
            cache_capacity_bytes=spec.last_cache_bytes,
            s_per_quantised_byte=1.0 / (quantise.value * bandwidth) if quantise is not None else None,
            quantise=(quantise, *scatter) if quantise is not None else (),
            grouped=fit.grouped_start,
            compute=(fit.compute, *scatter),
            memory=(fit.memory, *((cache,) if cache is not None else ()), *scatter),
            launch=(fit.launch, *scatter),
            scatter=scatter,
            measured_bytes=fit.measured_bytes,
            compute_inputs=(("compute_frac", fit.compute.value), ("peak_flop_per_s", peak)),
            memory_inputs=(
                ("memory_frac", fit.memory.value),
                ("bandwidth_bytes_per_s", bandwidth),
                *((("cache_speedup", cache.value),) if cache is not None else ()),
            ),
            launch_inputs=(("launch_s", fit.launch.value), *shown),
        )
