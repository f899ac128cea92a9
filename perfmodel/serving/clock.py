"""How long a step takes, in whole nanoseconds: a table made from the step model, or fixed times.

A step holds `n_seqs` decoding sequences that attend to `context_tokens` tokens together (the new ones included), and
`prompt_tokens` prompt tokens that make `pairs` query-key pairs. The clock is what the simulation is exact against: runs
of decode steps are summed in closed form and equal the sum of single steps to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Protocol

from perfmodel.errors import SpecError
from perfmodel.serving.step_table import Grid, StepTable, places

__all__ = ["Clock", "FixedClock", "Stepwise", "TableClock", "floor_sum"]


class Clock(Protocol):
    """What the engine asks of time. Any object with these methods will do."""

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:
        """Return the time of one step that only decodes, at least 1."""

    def decode_run(
        self, n_seqs: int, context_tokens: int, *, n_most: int, until_ns: int, per_step: int = 1
    ) -> tuple[int, int]:
        """Return (steps, time) of the fewest decode steps that last `until_ns` or longer, from 1 to `n_most` steps.

        Each sequence grows by `per_step` tokens a step.
        """

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:
        """Return the time of a step that reads prompt tokens beside `n_seqs` decoding sequences (there may be none)."""


@dataclass(frozen=True, slots=True)
class FixedClock:
    """A decode step takes `decode_step_ns`, a step with prompts `prefill_step_ns` + tokens x `prompt_token_ns`."""

    decode_step_ns: int
    prefill_step_ns: int
    prompt_token_ns: int = 0

    def __post_init__(self) -> None:
        if min(self.decode_step_ns, self.prefill_step_ns + self.prompt_token_ns) < 1:
            raise SpecError("the clock stands still", got=str(self), expected="every step at least 1 ns")

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:  # noqa: ARG002
        """Return the time of one decode step."""
        return self.decode_step_ns

    def decode_run(
        self,
        n_seqs: int,  # noqa: ARG002
        context_tokens: int,  # noqa: ARG002
        *,
        n_most: int,
        until_ns: int,
        per_step: int = 1,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return (steps, time) of a run of decode steps."""
        n = min(n_most, max(1, -(-until_ns // self.decode_step_ns)))
        return n, n * self.decode_step_ns

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:  # noqa: ARG002
        """Return the time of a step with prompts."""
        return self.prefill_step_ns + prompt_tokens * self.prompt_token_ns


@dataclass(frozen=True, slots=True)
class Stepwise:
    """Another clock whose runs are added up step by step: what the closed forms are tested against."""

    clock: Clock

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:
        """Return the time of one decode step."""
        return self.clock.decode_ns(n_seqs, context_tokens)

    def decode_run(
        self, n_seqs: int, context_tokens: int, *, n_most: int, until_ns: int, per_step: int = 1
    ) -> tuple[int, int]:
        """Return (steps, time) of a run, one step after the other."""
        n_steps = time_ns = 0
        while n_steps < n_most and (n_steps == 0 or time_ns < until_ns):
            time_ns += self.clock.decode_ns(n_seqs, context_tokens + n_steps * n_seqs * per_step)
            n_steps += 1
        return n_steps, time_ns

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:
        """Return the time of a step with prompts."""
        return self.clock.mixed_ns(n_seqs, context_tokens, prompt_tokens=prompt_tokens, pairs=pairs)


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Return the sum of floor((a i + b) / m) over i = 0 .. n-1, exactly, in logarithmic time.

    Source: the Euclid-like algorithm in AtCoder Library, floor_sum.

    >>> floor_sum(4, 10, 6, 3), sum((6 * i + 3) // 10 for i in range(4))
    (3, 3)
    """
    total = 0
    while True:
        if not 0 <= a < m:
            total += (n - 1) * n // 2 * (a // m)
            a %= m
        if not 0 <= b < m:
            total += n * (b // m)
            b %= m
        top = a * n + b
        if top < m:
            return total
        n, b = divmod(top, m)
        m, a = a, m


class TableClock:
    """A clock that reads a `StepTable`: between two contexts of the table a decode step's time is a straight line.

    The line is in whole numbers, t = y + (context - x) dy // dx, so that sums over runs are exact.
    """

    __slots__ = ("_attended", "_context", "_dense", "_n_at", "_p_at", "_prompt", "_rows", "_tokens_most", "table")

    def __init__(self, table: StepTable) -> None:
        self.table = table
        n_seqs, self._tokens_most = len(table.decode_ns), int(table.prompt.x[-1])
        self._rows: list[tuple[list[int], list[int]] | None] = [None] * (n_seqs + 1)
        self._n_at = places(table.dense.x, n_seqs), places(table.context.x, n_seqs)
        self._p_at = [places(knots, self._tokens_most) for knots in (table.dense.y, table.attended.x, table.prompt.x)]
        self._dense: list[list[float]] = table.dense.ns.tolist()
        self._context, self._attended, self._prompt = (
            _Columns(grid) for grid in (table.context, table.attended, table.prompt)
        )

    def _row(self, n_seqs: int) -> tuple[list[int], list[int]]:
        row = self._rows[n_seqs] if n_seqs < len(self._rows) else None
        if row is None:
            if not 1 <= n_seqs < len(self._rows):
                most = len(self._rows) - 1
                raise SpecError("the step table is too small", got=f"{n_seqs} sequences", expected=f"1 to {most}")
            row = ((self.table.decode_context * n_seqs).tolist(), self.table.decode_ns[n_seqs - 1].tolist())
            self._rows[n_seqs] = row
        return row

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:
        """Return the time of one decode step."""
        x, y = self._row(n_seqs)
        i = min(max(bisect_right(x, context_tokens) - 1, 0), len(x) - 2)
        return y[i] + (context_tokens - x[i]) * (y[i + 1] - y[i]) // (x[i + 1] - x[i])

    def decode_run(
        self, n_seqs: int, context_tokens: int, *, n_most: int, until_ns: int, per_step: int = 1
    ) -> tuple[int, int]:
        """Return (steps, time) of a run of decode steps, stretch by stretch of the table."""
        x, y = self._row(n_seqs)
        last, grown = len(x) - 2, n_seqs * per_step
        i = min(max(bisect_right(x, context_tokens) - 1, 0), last)
        n_done = done_ns = 0
        while True:
            x0, y0 = x[i], y[i]
            dx, dy = x[i + 1] - x0, y[i + 1] - y0
            off = context_tokens - x0
            n = n_most - n_done
            if i < last:
                n = min(n, -(-(dx - off) // grown))
            wanted = until_ns - done_ns
            first = y0 + off * dy // dx
            if first * n > wanted > 0:
                # A straight line reaches `wanted` where n first + growth n^2 / 2 = wanted.
                growth = grown * dy / dx
                root = sqrt(max(float(first) * first + 2.0 * growth * wanted, 0.0))
                n = min(n, max(1, ceil(2.0 * wanted / (first + root))))
            elif wanted <= 0:
                n = 1
            step, b = grown * dy, off * dy
            time_ns = first if n == 1 else n * y0 + floor_sum(n, dx, step, b)
            # The estimate may be a step off: put right in whole numbers.
            while n > 1 and time_ns - (final := y0 + (b + (n - 1) * step) // dx) >= wanted:
                time_ns, n = time_ns - final, n - 1
            n_done, done_ns = n_done + n, done_ns + time_ns
            if n_done >= n_most or done_ns >= until_ns:
                return n_done, done_ns
            context_tokens += n * grown
            while i < last and context_tokens >= x[i + 1]:
                i += 1

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:
        """Return the time of a step with prompts, linear between the knots of each axis.

        Beyond the largest number of prompt tokens in the table the time grows in proportion.
        """
        most = self._tokens_most
        if prompt_tokens > most:
            part = self.mixed_ns(n_seqs, context_tokens, prompt_tokens=most, pairs=pairs * most // prompt_tokens)
            return part * prompt_tokens // most
        mean_pairs = pairs / prompt_tokens
        if n_seqs == 0:
            return max(1, round(self._prompt.at(self._p_at[2][prompt_tokens], mean_pairs)))
        (h, s), (j, u) = self._n_at[0][n_seqs], self._p_at[0][prompt_tokens]
        few, many = self._dense[h], self._dense[h + 1]
        low, high = few[j] + u * (few[j + 1] - few[j]), many[j] + u * (many[j + 1] - many[j])
        dense = low + s * (high - low)
        attention = self._context.at(self._n_at[1][n_seqs], context_tokens / n_seqs)
        return max(1, round(dense + attention + self._attended.at(self._p_at[1][prompt_tokens], mean_pairs)))


class _Columns:
    """A grid as lists, read at a known place of the first axis and any value of the second."""

    __slots__ = ("_ns", "_y")

    def __init__(self, grid: Grid) -> None:
        self._y: list[float] = grid.y.tolist()
        self._ns: list[list[float]] = grid.ns.tolist()

    def at(self, place: tuple[int, float], y: float) -> float:
        """Return the value at a place of the first axis."""
        i, share = place
        knots, low, high = self._y, self._ns[i], self._ns[i + 1]
        j = min(max(bisect_right(knots, y) - 1, 0), len(knots) - 2)
        v = (y - knots[j]) / (knots[j + 1] - knots[j])
        at_low, at_high = low[j] + v * (low[j + 1] - low[j]), high[j] + v * (high[j + 1] - high[j])
        return at_low + share * (at_high - at_low)
