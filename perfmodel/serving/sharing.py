"""Clocks of replicas that do not run by themselves: instances that share a device, ranks that share steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perfmodel.errors import SpecError
from perfmodel.serving.clock import Clock

__all__ = ["Contention", "RankClock", "SharedClock", "SlowdownTable"]


class Contention(Protocol):
    """How much longer a step takes while so many instances of its device run, itself included."""

    def slowdown(self, n_busy: int) -> float:
        """Return the factor, 1 for one instance, never below 1."""


@dataclass(frozen=True, slots=True)
class SlowdownTable:
    """Factors for one, two, ... busy instances; raises SpecError where they begin not with 1, or fall."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        falls = any(later < earlier for earlier, later in zip(self.factors, self.factors[1:], strict=False))
        if not self.factors or self.factors[0] != 1.0 or falls:
            raise SpecError(
                "the contention cannot be used",
                got=", ".join(f"{f:g}" for f in self.factors) or "no factor",
                expected="1 for one instance, and no less for each further one",
            )

    def slowdown(self, n_busy: int) -> float:
        """Return the factor for so many busy instances, the last one beyond the table."""
        return self.factors[min(n_busy, len(self.factors)) - 1]


class SharedClock:
    """A clock that is slowed down by `factor`, which is set anew before each step; steps pass one by one."""

    __slots__ = ("clock", "factor")

    def __init__(self, clock: Clock) -> None:
        self.clock, self.factor = clock, 1.0

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:
        """Return the time of one decode step."""
        return round(self.clock.decode_ns(n_seqs, context_tokens) * self.factor)

    def decode_run(
        self,
        n_seqs: int,
        context_tokens: int,
        *,
        n_most: int,  # noqa: ARG002
        until_ns: int,  # noqa: ARG002
        per_step: int = 1,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return one step and its time: who else runs may have changed after it."""
        return 1, self.decode_ns(n_seqs, context_tokens)

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:
        """Return the time of a step with prompts."""
        time_ns = self.clock.mixed_ns(n_seqs, context_tokens, prompt_tokens=prompt_tokens, pairs=pairs)
        return round(time_ns * self.factor)


@dataclass(frozen=True, slots=True)
class RankClock:
    """The clock of one of `n_ranks` data-parallel ranks: that of all of them where each has as much to do.

    Of a step of ranks with unequal work the longest time counts: attention waits for the busiest rank, and experts are
    priced as if every rank sent as many tokens, which they may not.
    """

    clock: Clock
    n_ranks: int

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:
        """Return the time of one decode step."""
        return self.clock.decode_ns(n_seqs * self.n_ranks, context_tokens * self.n_ranks)

    def decode_run(
        self, n_seqs: int, context_tokens: int, *, n_most: int, until_ns: int, per_step: int = 1
    ) -> tuple[int, int]:
        """Return (steps, time) of a run of decode steps."""
        n = self.n_ranks
        return self.clock.decode_run(
            n_seqs * n, context_tokens * n, n_most=n_most, until_ns=until_ns, per_step=per_step
        )

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:
        """Return the time of a step with prompts."""
        n = self.n_ranks
        return self.clock.mixed_ns(n_seqs * n, context_tokens * n, prompt_tokens=prompt_tokens * n, pairs=pairs * n)
