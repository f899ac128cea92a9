"""What is laid over drawn requests: shared prefixes, conversations, priorities; and cuts of a trace by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.prefix_cache import Prefixes
from perfmodel.units import NS_PER_S

__all__ = ["in_groups", "in_turns", "sent_within", "with_priorities"]


def in_groups(trace: Trace, *, n_groups: int, prefix_tokens: int, rng: Generator) -> Trace:
    """Return the trace with `prefix_tokens` tokens before each prompt, the same for all of a group drawn evenly."""
    if n_groups < 1 or prefix_tokens < 1:
        got = f"{n_groups} groups, {prefix_tokens} tokens"
        raise SpecError("prompts cannot share a prefix", got=got, expected="at least 1 of both")
    n = len(trace)
    prefixes = Prefixes(rng.integers(0, n_groups, n), np.full(n, prefix_tokens, np.int64), np.full(n, -1, np.int64))
    return replace(trace, input_tokens=trace.input_tokens + prefix_tokens, prefixes=prefixes)


def in_turns(trace: Trace, *, n_turns: int, think_s: float) -> Trace:
    """Return the trace as conversations of `n_turns` turns: each is sent `think_s` after the answer before it.

    A prompt holds all prompts and answers before it. A conversation starts when the first of its requests was due, so
    that the rate of requests stays; the last one may have fewer turns. Of groups the first turn's counts.
    """
    if n_turns < 1 or not 0 <= think_s < 1e9:
        got = f"{n_turns} turns, {think_s:g} s to think"
        raise SpecError("conversations cannot be drawn", got=got, expected="at least 1 turn and 0 s or more")
    n = len(trace)
    places = np.arange(n)
    turn, first = places % n_turns, places - places % n_turns
    own = trace.input_tokens.copy()
    prefixes = trace.prefixes or Prefixes.none(n)
    own[turn > 0] -= prefixes.group_tokens[turn > 0]
    grown = np.cumsum(own + trace.output_tokens)
    before = grown - own - trace.output_tokens
    return replace(
        trace,
        arrival_ns=trace.arrival_ns[first],
        input_tokens=before - before[first] + own,
        think_ns=np.full(n, round(think_s * NS_PER_S), np.int64),
        prefixes=replace(prefixes, group=prefixes.group[first], conversation=first // n_turns),
        after=np.where(turn > 0, places - 1, -1),
    )


def with_priorities(trace: Trace, shares: Sequence[tuple[int, float]], *, rng: Generator) -> Trace:
    """Return the trace with priorities drawn by (priority, share)."""
    total = sum(share for _, share in shares)
    if not shares or any(share < 0 for _, share in shares) or not total > 0:
        got = ", ".join(f"{priority}:{share:g}" for priority, share in shares) or "none"
        raise SpecError("priorities cannot be drawn", got=got, expected="shares of 0 or more that are not all 0")
    drawn = rng.choice(len(shares), len(trace), p=[share / total for _, share in shares])
    return replace(trace, priority=np.array([priority for priority, _ in shares], np.int64)[drawn])


def sent_within(trace: Trace, *, until_s: float) -> Trace:
    """Return the requests that are due up to `until_s` seconds after the first.

    Raises SpecError where all are due at once: users who wait for answers send for as long as there are requests.
    """
    if len(trace) > 1 and trace.span_ns == 0:
        got, cure = "requests that are all due at once", "State how many there are."
        raise SpecError("the trace cannot be cut by time", where="until", got=got, cure=cure)
    if not until_s > 0:
        raise SpecError("the trace cannot be cut", where="until", got=f"{until_s:g} s", expected="above 0 s")
    last_ns = int(trace.arrival_ns[0]) + round(until_s * NS_PER_S)
    return trace.cut(int(np.searchsorted(trace.arrival_ns, last_ns, side="right")))
