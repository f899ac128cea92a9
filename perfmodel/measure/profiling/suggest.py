"""Patterns in a profile that cost time, as rules, each with the time that mending it could save at most.

A bound, not a forecast: a fused kernel still has to read what the first of its parts reads and write what the last one
writes, and is taken to need at least as long as the quickest part. Rules look at operators that follow each other in
one stream, so that a profile without starts is read in the order of its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.profile_file import Profile
from perfmodel.measure.profiling.roofline_gap import is_elementwise
from perfmodel.measure.profiling.shares import type_of
from perfmodel.measure.profiling.timeline import Timeline
from perfmodel.units import bytes_text

__all__ = ["Suggestion", "suggestions"]

_LAYOUT = ("cast", "transpose", "transdata", "tensormove")
_LEAST_REPEATS = 3
_LEAST_IDLE_FRAC = 0.05


class Suggestion(NamedTuple):
    """What to change, why, in how many places, and the time it could save at most."""

    rule: str
    advice: str
    example: str
    n_places: int
    saves_at_most_s: float


def suggestions(
    profile: Profile,
    *,
    timeline: Timeline | None = None,
    cache_bytes: float = 0.0,
    dram_bytes_per_s: float = 0.0,
) -> tuple[Suggestion, ...]:
    """Return the suggestions for a profile, the largest saving first.

    `cache_bytes` and `dram_bytes_per_s` are those of the device; without them nothing is said of weights in the cache.
    """
    rows = [[profile.operators[i] for i in positions] for positions in profile.streams.values()]
    is_sequence = all(o.n_calls == 1 for o in profile.operators)  # a table of totals by type says nothing of neighbours
    found = [
        *_elementwise_chains(rows if is_sequence else ()),
        *_convolution_and_activation(rows if is_sequence else ()),
        *_repeated_layout(rows),
        *_constant_weights(rows, cache_bytes, dram_bytes_per_s),
        *_idle(timeline),
    ]
    return tuple(sorted(found, key=lambda one: -one.saves_at_most_s))


def _spent(operators: Sequence[OperatorTiming]) -> float:
    return sum(o.duration_s * o.n_calls for o in operators)


def _at(operator: OperatorTiming) -> str:
    return operator.place or operator.name


def _elementwise_chains(rows: Sequence[Sequence[OperatorTiming]]) -> Iterator[Suggestion]:
    """Find elementwise operators that follow each other: one kernel could do them."""
    chains: dict[tuple[str, ...], list[list[OperatorTiming]]] = {}
    for row in rows:
        run: list[OperatorTiming] = []
        for operator in (*row, None):
            if operator is not None and is_elementwise(operator):
                run.append(operator)
                continue
            if len(run) > 1:
                chains.setdefault(tuple(type_of(o) for o in run), []).append(run)
            run = []
    for types, runs in chains.items():
        saved = sum(_spent(run) - min(o.duration_s * o.n_calls for o in run) for run in runs)
        yield Suggestion(
            "fuse elementwise chain", f"Fuse {' + '.join(types)} into one kernel.", _at(runs[0][0]), len(runs), saved
        )


def _convolution_and_activation(rows: Sequence[Sequence[OperatorTiming]]) -> Iterator[Suggestion]:
    """Find a convolution or matmul with an activation right behind it, which fits into its epilogue."""
    pairs: dict[tuple[str, str], list[OperatorTiming]] = {}
    for row in rows:
        for first, second in pairwise(row):
            is_source = first.family == "gemm" or type_of(first).lower().startswith("conv")
            if is_source and second.family == "activation":
                pairs.setdefault((type_of(first), type_of(second)), []).append(second)
    for (source, activation), found in pairs.items():
        yield Suggestion(
            "fuse activation",
            f"Fuse {activation} into the end of {source}.",
            _at(found[0]),
            len(found),
            _spent(found),
        )


def _repeated_layout(rows: Sequence[Sequence[OperatorTiming]]) -> Iterator[Suggestion]:
    """Find casts and transposes of one and the same shape again and again: of a constant, once would do."""
    groups: dict[tuple[object, ...], list[OperatorTiming]] = {}
    for row in rows:
        for o in row:
            if type_of(o).lower().startswith(_LAYOUT) and o.input_shapes:
                groups.setdefault((type_of(o), o.input_shapes, o.input_dtypes, o.output_dtypes), []).append(o)
    for found in groups.values():
        n_calls = sum(o.n_calls for o in found)
        if n_calls < _LEAST_REPEATS:
            continue
        shape = ",".join(map(str, found[0].input_shapes[0])) or "scalar"
        yield Suggestion(
            "keep the converted tensor",
            f"{type_of(found[0])} of [{shape}] runs {n_calls} times: if it is a weight, convert it once.",
            _at(found[0]),
            n_calls,
            _spent(found) * (1.0 - 1.0 / n_calls),
        )


def _constant_weights(
    rows: Sequence[Sequence[OperatorTiming]], cache_bytes: float, dram_bytes_per_s: float
) -> Iterator[Suggestion]:
    """Find matmuls of one name whose second operand keeps its shape.

    Weights that all fit into the last cache together need not be read anew, if calls of one name read the same ones.
    """
    groups: dict[tuple[object, ...], list[OperatorTiming]] = {}
    for row in rows:
        for o in row:
            if o.family == "gemm" and len(o.input_shapes) > 1:
                groups.setdefault((o.name, type_of(o), o.input_shapes[1], o.input_dtypes), []).append(o)
    repeated = {key: found for key, found in groups.items() if sum(o.n_calls for o in found) >= _LEAST_REPEATS}
    if not repeated or not cache_bytes or not dram_bytes_per_s:
        return
    sizes = {key: _weight_bytes(found[0]) for key, found in repeated.items()}
    fits = sum(sizes.values()) <= cache_bytes
    n_calls = {key: sum(o.n_calls for o in found) for key, found in repeated.items()}
    saved = sum(
        min(_spent(found), (n_calls[key] - 1) * sizes[key] / dram_bytes_per_s) for key, found in repeated.items()
    )
    held = f"{bytes_text(sum(sizes.values()))} of static weights behind matmuls of constant shape"
    advice = (
        f"Keep {held} in the last cache, if calls of one name read the same ones."
        if fits
        else f"The {held} do not fit into the last cache together: keeping them there saves nothing."
    )
    first = next(iter(repeated.values()))[0]
    yield Suggestion("cache static weights", advice, _at(first), sum(n_calls.values()), saved if fits else 0.0)


def _weight_bytes(operator: OperatorTiming) -> float:
    element = {"fp32": 4.0, "int8": 1.0, "fp8": 1.0, "int4": 0.5}.get(next(iter(operator.input_dtypes[1:2]), ""), 2.0)
    n = element
    for size in operator.input_shapes[1]:
        n *= size
    return n


def _idle(timeline: Timeline | None) -> Iterator[Suggestion]:
    """Find time during which no operator runs: launches and host work that a captured graph would hide."""
    if timeline is None:
        return
    busy, reached, n_gaps = 0.0, 0.0, 0
    first = timeline.operators[0].start_s or 0.0
    for o in timeline.operators:
        start = (o.start_s or 0.0) - first
        end = start + o.duration_s
        n_gaps += start > reached
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    idle = timeline.span_s - busy
    if idle > _LEAST_IDLE_FRAC * timeline.span_s:
        yield Suggestion(
            "capture a graph",
            f"No operator runs during {idle / timeline.span_s:.0%} of the time: capture a graph, or launch ahead.",
            _at(timeline.operators[0]),
            n_gaps,
            idle,
        )
