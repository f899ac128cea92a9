"""Fusion priced: each chain of a layer before and after, and what a stated pair of times would ask of it.

Source of the bound on a ratio: for times that add up over kernels, the ratio of two sums lies between the least and the
largest ratio of their parts. So a fused chain can be at most as many times quicker as the largest among the ratio of
bytes, of launches and of arithmetic, whatever the coefficients are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from perfmodel.bisection import turn
from perfmodel.cost.host import host_launch_time
from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.estimate import TINY, Estimate, Num, larger, repeated, slowest, total
from perfmodel.specs.runtime import Runtime
from perfmodel.step.step import Engine
from perfmodel.work.fusion import Chain
from perfmodel.work.fusion_chains import CHAINS, ChainSize, chain_of

__all__ = ["Fusion", "FusionSide", "OperatorTime", "chain_size", "fusion", "fusions", "tokens_for_time", "total_time"]

Phase = Literal["prefill", "decode"]
_REL_WIDTH: Final = 1e-12
_MOST_TOKENS: Final = 2.0**40


class OperatorTime(NamedTuple):
    """One kernel of a chain: what it moves, what is alive while it runs, and its time on the device."""

    name: str
    read_bytes: Num
    written_bytes: Num
    live_bytes: Num
    flop: Num
    time: Estimate


@dataclass(frozen=True, slots=True)
class FusionSide:
    """A chain as a runtime would run it, once: counts, the most memory alive at once, and its time."""

    chain: Chain
    operators: tuple[OperatorTime, ...]
    time: Estimate

    @property
    def n_launches(self) -> int:
        """Kernels of the chain."""
        return self.chain.n_launches

    @property
    def n_bytes(self) -> Num:
        """Bytes that main memory moves."""
        return self.chain.n_bytes

    @property
    def peak_live_bytes(self) -> Num:
        """Most memory alive at once."""
        return self.chain.peak_live_bytes


@dataclass(frozen=True, slots=True)
class Fusion:
    """A chain before and after, in `n_times` layers of one kind; the two sides are those of one layer."""

    name: str
    layer: str
    n_times: float
    before: FusionSide
    after: FusionSide

    @property
    def bytes_ratio(self) -> Num:
        """Bytes before over bytes after, at least 1."""
        return self.before.n_bytes / (self.after.n_bytes + TINY)

    @property
    def launch_ratio(self) -> float:
        """Kernels before over kernels after."""
        return self.before.n_launches / self.after.n_launches

    @property
    def time_ratio(self) -> Num:
        """Time before over time after."""
        return self.before.time.value / (self.after.time.value + TINY)

    @property
    def time_ratio_limit(self) -> Num:
        """Largest ratio of times that fusing alone can give, whatever a launch, a byte and a flop cost.

        It holds where the fused kernel pays for them what those apart do; a kernel of another class (flash attention
        beside matmuls) may run its arithmetic at another rate.
        """
        return larger(self.bytes_ratio, self.launch_ratio)

    @property
    def saved_s(self) -> Num:
        """Time saved over all layers of the kind."""
        return self.n_times * (self.before.time.value - self.after.time.value)

    @property
    def saved_live_bytes(self) -> Num:
        """Memory that is free at the peak of the chain."""
        return self.before.peak_live_bytes - self.after.peak_live_bytes

    def as_row(self) -> dict[str, str | float]:
        """Return the comparison as a row with stable keys; times are of one layer."""
        return {
            "chain": self.name,
            "layer": self.layer,
            "n_layers": self.n_times,
            "n_launches_before": float(self.before.n_launches),
            "n_launches_after": float(self.after.n_launches),
            "bytes_before": float(self.before.n_bytes),
            "bytes_after": float(self.after.n_bytes),
            "peak_live_bytes_before": float(self.before.peak_live_bytes),
            "peak_live_bytes_after": float(self.after.peak_live_bytes),
            "unreleased_bytes_before": float(self.before.chain.unreleased_bytes),
            "unreleased_bytes_after": float(self.after.chain.unreleased_bytes),
            "time_before_s": float(self.before.time.value),
            "time_after_s": float(self.after.time.value),
            "bytes_ratio": float(self.bytes_ratio),
            "launch_ratio": self.launch_ratio,
            "time_ratio": float(self.time_ratio),
            "time_ratio_limit": float(self.time_ratio_limit),
            "saved_s": float(self.saved_s),
        }


def chain_size(*, phase: Phase, n_seqs: Num, input_tokens: Num) -> ChainSize:
    """Return what a step means for a chain: whole prompts without cache, or one token a sequence at that context.

    >>> chain_size(phase="prefill", n_seqs=2.0, input_tokens=3.0)
    ChainSize(n_tokens=6.0, n_pairs=18.0, cached_tokens=0.0, phase='prefill')
    """
    if phase == "prefill":
        n_tokens = n_seqs * input_tokens
        return ChainSize(n_tokens, n_tokens * input_tokens, 0.0, phase)
    return ChainSize(n_seqs, n_seqs * (input_tokens + 1.0), n_seqs * input_tokens, phase)


def fusion(
    chain: Chain,
    prices: KernelPrices,
    *,
    groups: Sequence[Sequence[str]] | None = None,
    layer: str = "",
    n_times: float = 1.0,
    launched_by: Runtime | None = None,
) -> Fusion:
    """Return a chain before and after its groups are fused (None: the whole chain), priced on one device.

    `launched_by` is the runtime whose host launches each kernel beside the device; None where a graph replays them.
    """
    sides = [_side(one, prices, launched_by) for one in (chain, chain.fused(groups))]
    return Fusion(chain.name, layer, n_times, *sides)


def _side(chain: Chain, prices: KernelPrices, launched_by: Runtime | None) -> FusionSide:
    times = tuple(prices.time(work) for work in chain.works())
    device = total(chain.name, times)
    if launched_by is not None and launched_by.host_launch.value > 0:
        device = slowest(f"{chain.name} beside host", (device, host_launch_time(launched_by, float(len(times)))))
    operators = tuple(
        OperatorTime(t.operator, t.read_bytes, t.written_bytes, t.live_bytes, t.flop, time)
        for t, time in zip(chain.traffic, times, strict=True)
    )
    return FusionSide(chain, operators, device)


def fusions(engine: Engine, size: ChainSize, *, phase: Phase, names: Sequence[str] = ()) -> tuple[Fusion, ...]:
    """Return each named chain (none named: all) of each kind of layer of a model, before and after.

    Raises SpecError where no layer of the model has any of them, UnknownNameError for a name that is none.
    """
    setup, stage = engine.setup, engine.stages[0]
    runtime = setup.runtime
    replayed = runtime.decode_graphs if phase == "decode" else runtime.prefill_graphs
    launched_by = None if replayed or engine.calibration.is_physics_only else runtime
    found: list[Fusion] = []
    for name in names or tuple(CHAINS):
        for layer, n_times in setup.model.layer_counts(0, setup.model.n_layers):
            chain = chain_of(name, setup, layer, size)
            if chain is None:
                continue
            kind = f"{layer.attention.kind} {layer.ffn.kind}"
            same = next((i for i, one in enumerate(found) if _is_same(one.before.chain, chain)), None)
            if same is not None:
                one = found[same]
                found[same] = replace(one, layer=f"{one.layer}, {kind}", n_times=one.n_times + n_times)
                continue
            found.append(fusion(chain, stage.kernels, layer=kind, n_times=float(n_times), launched_by=launched_by))
    if not found:
        raise SpecError(
            f"{setup.model.name} has no chain {', '.join(names)}",
            expected="attention with keys and values, or a gated feed-forward block",
        )
    return tuple(found)


def _is_same(first: Chain, second: Chain) -> bool:
    """Tell whether two chains of single numbers are equal; chains of arrays are kept apart."""
    plain = all(isinstance(b.n_bytes, float) for b in (*first.buffers, *second.buffers))
    return plain and first == second


def tokens_for_time(time_s: Callable[[float], float], target_s: float) -> float:
    """Return the number of tokens at which a time that grows with tokens reaches `target_s`, by bisection.

    Raises InfeasibleError where it is beyond the target at one token, or does not reach it at 2^40.

    >>> round(tokens_for_time(lambda n: 2e-6 * n, 1e-3), 6)
    500.0
    """
    low, high = 1.0, _MOST_TOKENS
    if time_s(low) > target_s or time_s(high) < target_s:
        raise InfeasibleError(
            "no number of tokens gives that time",
            got=f"{target_s:g} s",
            expected=f"{time_s(low):.3g} s (one token) to {time_s(high):.3g} s",
        )
    return turn(lambda n: time_s(n) <= target_s, low, high, rel_width=_REL_WIDTH, in_log=True)[0]


def total_time(parts: Sequence[Fusion], *, fused: bool) -> Estimate:
    """Return the time of chains over all their layers, before or after fusion."""
    sides = ((p, p.after if fused else p.before) for p in parts)
    return total("chains", tuple(repeated(f"{p.n_times:g} x {p.name}", side.time, p.n_times) for p, side in sides))
