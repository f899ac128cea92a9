"""Step times in a table, with the error of reading between its knots stated against the exact step model.

Decode steps: every number of sequences, by mean context. Steps with prompts: three tables that add up, since kernels
run one after the other and each depends on one pair only: dense work on (sequences, prompt tokens), decode attention on
(sequences, mean context), prompt attention on (prompt tokens, mean attended tokens). Where the host's launches set the
pace they do not quite add up; the error is measured on drawn points. Knots are put where straight lines would miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, ceiling, larger, smaller
from perfmodel.step.step import Engine
from perfmodel.units import NS_PER_S
from perfmodel.work.kernel import Slice

__all__ = ["EngineTimes", "Grid", "StepTable", "StepTimes", "places", "prompt_slice", "step_table"]

Array = NDArray[np.float64]

_TOLERANCE: Final = 5e-4
"""Error of a straight line, halfway between two knots of one axis, from which a knot is added there."""
_MOST_NODES: Final = 40_000
_CHECKED_POINTS: Final = 4000
_SHORTEST_ATTENDED: Final = 16
"""Mean attended tokens of the shortest prompts that the error is stated for: prompts of 31 tokens."""


class StepTimes(Protocol):
    """Seconds of steps, for arrays of one shape: from the step model, or from measurements."""

    def decode_s(self, n_seqs: Array, context: Array) -> Array:
        """Return the time of decode steps with `context` tokens for each sequence, the new one included."""

    def mixed_s(self, n_seqs: Array, context: Array, prompt_tokens: Array, attended: Array) -> Array:
        """Return the time of steps that also read prompts, each token attending to `attended` on average."""

    def prompt_s(self, prompt_tokens: Array, attended: Array) -> Array:
        """Return the time of steps that only read prompts."""


def prompt_slice(prompt_tokens: Num, attended: Num) -> Slice:
    """Return the prompt part of a step as one slice with these tokens and this mean of attended tokens.

    Fewer than half of the tokens: several prompts read from their beginning, of 2 x attended - 1 tokens each. More: the
    end of one prompt, whose beginning is cached.
    """
    length = smaller(2.0 * attended - 1.0, prompt_tokens)
    past = larger(attended - (prompt_tokens + 1.0) * 0.5, 0.0)
    return Slice("prefill", prompt_tokens / length, length, past + 1.0, past + length, past)


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Step times of a priced setup. Data-parallel ranks share the sequences evenly and keep pace with each other.

    With pipeline stages a step lets every sequence advance once, in as many microbatches as there are stages.
    """

    engine: Engine

    def _step_s(self, n_seqs: Array, slices: Callable[[Num], Sequence[Slice]], shape: Array) -> Array:
        layout = self.engine.setup.layout
        n_micro = smaller(ceiling(larger(n_seqs, 1.0) / float(layout.dp)), float(layout.pp))
        estimate = self.engine.step("step", slices(1.0 / (layout.dp * np.asarray(n_micro))), n_microbatches=n_micro)
        return np.asarray(estimate.value, np.float64) * np.ones_like(shape)

    def decode_s(self, n_seqs: Array, context: Array) -> Array:
        """Return the time of decode steps."""
        return self._step_s(n_seqs, lambda share: (self._decoding(n_seqs * share, context),), context)

    def _decoding(self, n_seqs: Num, context: Num) -> Slice:
        """Return the decoding part of a step: each sequence looks at its last token and at what is drafted after it."""
        speculation = self.engine.setup.speculation
        width = 1.0 if speculation is None else 1.0 + speculation.n_draft
        return Slice("decode", larger(n_seqs, 1.0), width, context, context)

    def mixed_s(self, n_seqs: Array, context: Array, prompt_tokens: Array, attended: Array) -> Array:
        """Return the time of steps that read prompts beside decoding."""

        def slices(share: Num) -> tuple[Slice, Slice]:
            prompts = prompt_slice(larger(prompt_tokens * share, 1.0), attended)
            return self._decoding(n_seqs * share, context), prompts

        return self._step_s(n_seqs + 1.0, slices, context)

    def prompt_s(self, prompt_tokens: Array, attended: Array) -> Array:
        """Return the time of steps that only read prompts."""
        one = np.ones_like(attended)
        return self._step_s(one, lambda share: (prompt_slice(larger(prompt_tokens * share, 1.0), attended),), attended)


@dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """Nanoseconds at the knots of two axes; linear between them, and on the last straight line beyond."""

    x: Array
    y: Array
    ns: Array

    def at(self, x: Array, y: Array) -> Array:
        """Return the times at points."""
        i, u = _place(self.x, x)
        j, v = _place(self.y, y)
        low = self.ns[i, j] + v * (self.ns[i, j + 1] - self.ns[i, j])
        high = self.ns[i + 1, j] + v * (self.ns[i + 1, j + 1] - self.ns[i + 1, j])
        return low + u * (high - low)


@dataclass(frozen=True, eq=False, slots=True)
class StepTable:
    """Step times at knots. `decode_ns[n - 1]` holds n sequences at each `decode_context`, in whole nanoseconds.

    A step with prompts takes dense(n, p) + context(n, m) + attended(p, a); without decoding sequences prompt(p, a).
    `max_error_frac` is the largest relative error against the exact times, at points drawn between the knots; prompts
    shorter than 31 tokens are left out of it (their rows in the output projection are counted with the mean).
    """

    decode_context: NDArray[np.int64]
    decode_ns: NDArray[np.int64]
    dense: Grid
    context: Grid
    attended: Grid
    prompt: Grid
    max_error_frac: float = 0.0

    def scaled(self, factor: float) -> StepTable:
        """Return the table of a server whose every step takes `factor` times as long."""
        grids = {name: getattr(self, name) for name in ("dense", "context", "attended", "prompt")}
        decode_ns = np.maximum(np.rint(self.decode_ns * factor), 1).astype(np.int64)
        return replace(self, decode_ns=decode_ns, **{name: replace(g, ns=g.ns * factor) for name, g in grids.items()})


def _place(knots: Array, x: Array) -> tuple[NDArray[np.int64], Array]:
    i = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    return i, (x - knots[i]) / (knots[i + 1] - knots[i])


def places(knots: Array, most: int) -> list[tuple[int, float]]:
    """Return for each whole number up to `most` the knot below it and the share of the way to the next knot."""
    i, share = _place(knots, np.arange(most + 1, dtype=np.float64))
    return list(zip(i.tolist(), share.tolist(), strict=True))


def _knots(most: int, n: int) -> Array:
    """Return about n whole knots from 1 to `most`, at equal ratios; at least two."""
    return np.unique(np.rint(np.geomspace(1, max(most, 2), n)))


def _grid(times: Callable[[Array, Array], Array], x: Array, y: Array) -> Grid:
    """Return the times on the knots, and on those added where a straight line between two of them would miss."""
    for _ in range(8):
        n_before = len(x) + len(y)
        ends = times(*np.meshgrid(x, y, indexing="ij"))
        x_new, y_new = _middles(x), _middles(y)
        grid = Grid(x, y, ends)
        for is_x, new in ((True, x_new), (False, y_new)):
            points = np.meshgrid(new, y, indexing="ij") if is_x else np.meshgrid(x, new, indexing="ij")
            error = np.abs(grid.at(*points) / times(*points) - 1).max(axis=1 if is_x else 0)
            found = new[error > _TOLERANCE]
            if is_x and (len(x) + len(found)) * len(y) <= _MOST_NODES:
                x = np.union1d(x, found)
            elif not is_x and len(x) * (len(y) + len(found)) <= _MOST_NODES:
                y = np.union1d(y, found)
        if len(x) + len(y) == n_before:
            break
    return Grid(x, y, times(*np.meshgrid(x, y, indexing="ij")))


def _middles(knots: Array) -> Array:
    middles = np.floor((knots[:-1] + knots[1:]) / 2)
    return middles[middles > knots[:-1]]


def step_table(times: StepTimes, *, n_seqs: int, context_tokens: int, prompt_tokens: int) -> StepTable:
    """Return a table for up to so many sequences, tokens of one sequence, and prompt tokens of a step.

    Raises SpecError where a size is below 1 or a time is not above zero.
    """
    if min(n_seqs, context_tokens, prompt_tokens) < 1:
        got = f"{n_seqs} sequences, {context_tokens} context tokens, {prompt_tokens} prompt tokens"
        raise SpecError("no step table can be made", got=got, expected="at least 1 of each")
    n, m, p = _knots(n_seqs, 12), _knots(context_tokens, 12), _knots(prompt_tokens, 16)
    context_axis = _grid(times.decode_s, n, m).y
    decode = times.decode_s(*np.meshgrid(np.arange(1.0, n_seqs + 1), context_axis, indexing="ij"))
    n0, m0, p0, a0 = float(n[-1]), float(m[len(m) // 2]), float(p[-1]), float(m[len(m) // 2])

    def mixed(n: Array | float, m: Array | float, p: Array | float, a: Array | float) -> Array:
        return NS_PER_S * times.mixed_s(*np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (n, m, p, a))))

    dense = _grid(lambda n, p: mixed(n, m0, p, a0), n, p)
    context = Grid(dense.x, context_axis, mixed(dense.x[:, None], context_axis, p0, a0))
    attended = _grid(lambda p, a: mixed(n0, m0, p, a), p, m)
    prompt = _grid(lambda p, a: NS_PER_S * times.prompt_s(p, a), p, m)
    for name, part in (("decode", decode), ("mixed", dense.ns), ("prompt", prompt.ns)):
        if not np.all(np.isfinite(part) & (part > 0)):
            raise SpecError("no step table can be made", where=f"{name} steps", expected="finite times above zero")
    table = StepTable(
        decode_context=context_axis.astype(np.int64),
        decode_ns=np.maximum(np.rint(decode * NS_PER_S), 1).astype(np.int64),
        dense=dense,
        context=replace(context, ns=context.ns - mixed(context.x[:, None], m0, p0, a0)),
        attended=replace(attended, ns=attended.ns - mixed(n0, m0, attended.x[:, None], a0)),
        prompt=prompt,
    )
    return replace(table, max_error_frac=_largest_error(table, times, (n_seqs, context_tokens, prompt_tokens)))


def _largest_error(table: StepTable, times: StepTimes, limits: tuple[int, int, int]) -> float:
    """Return the largest relative error at drawn points: evenly in the logarithm, the same points each time."""
    rng = np.random.default_rng(0)
    n, m, p, a = (
        np.rint(np.exp(rng.uniform(0.0, np.log(limit), _CHECKED_POINTS))).astype(np.float64)
        for limit in (*limits, limits[1])
    )
    a = np.minimum(np.maximum(a, _SHORTEST_ATTENDED), limits[1])
    rows = table.decode_ns[n.astype(int) - 1]
    decode = np.array([np.interp(x, table.decode_context, row) for x, row in zip(m, rows, strict=True)])
    mixed = table.dense.at(n, p) + table.context.at(n, m) + table.attended.at(p, a)
    errors = (
        decode / (times.decode_s(n, m) * NS_PER_S),
        mixed / (times.mixed_s(n, m, p, a) * NS_PER_S),
        table.prompt.at(p, a) / (times.prompt_s(p, a) * NS_PER_S),
    )
    return float(max(np.abs(part - 1).max() for part in errors))
