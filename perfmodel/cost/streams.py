"""How kernels of several streams share a device, and the waiting that follows in closed form.

A kernel alone fills `core_frac` of the cores' time and `memory_frac` of the memory's bandwidth at rate 1. Side by side
the streams' rates are such that neither is exceeded: all alike (`equal`), or each in order of priority from what those
before it leave (`priority`). A fixed share of the cores for each (`partition`) leaves only the memory in common.
Source: processor sharing; M/D/1 waiting by Pollaczek and Khinchine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from perfmodel.estimate import TINY, Num

__all__ = ["Policy", "Task", "fifo_cycle_s", "md1_wait_s", "rates"]

Policy = Literal["one stream", "equal", "priority", "partition"]


class Task(NamedTuple):
    """A kernel as the arbiter sees it: its time alone, what it fills meanwhile, and how long one unit holds a core."""

    name: str
    time_s: float
    core_frac: float
    memory_frac: float
    unit_s: float = 0.0


def rates(running: Sequence[Task], policy: Policy, *, core_shares: Sequence[float] = ()) -> tuple[float, ...]:
    """Return the rate of each running kernel against running alone; the first has the highest priority.

    `core_shares` are the cores of each stream under `partition`. Cores and bandwidth in use never exceed 1.

    >>> a, b = Task("a", 1.0, 0.4, 0.5), Task("b", 1.0, 1.0, 0.25)
    >>> rates((a, b), "priority"), rates((a,), "equal")
    ((1.0, 0.6), (1.0,))
    """
    if policy == "one stream":
        return tuple(1.0 if i == 0 else 0.0 for i in range(len(running)))
    if policy == "partition":
        own = [min(1.0, share / (t.core_frac + TINY)) for t, share in zip(running, core_shares, strict=True)]
        asked = sum(r * t.memory_frac for r, t in zip(own, running, strict=True))
        return tuple(r / max(1.0, asked) for r in own)
    if policy == "equal":
        asked = max(sum(t.core_frac for t in running), sum(t.memory_frac for t in running))
        return (1.0 / max(1.0, asked),) * len(running)
    found, cores, memory = [], 1.0, 1.0
    for t in running:
        rate = max(0.0, min(1.0, cores / (t.core_frac + TINY), memory / (t.memory_frac + TINY)))
        found.append(rate)
        cores, memory = cores - rate * t.core_frac, memory - rate * t.memory_frac
    return tuple(found)


def md1_wait_s(*, arrivals_per_s: Num, service_s: Num) -> Num:
    """Return the mean wait before service of random arrivals that each take the same time; infinite at full load.

    >>> md1_wait_s(arrivals_per_s=0.5, service_s=1.0)
    0.5
    """
    load = arrivals_per_s * service_s
    return load * service_s / (2.0 * (1.0 - load))


def fifo_cycle_s(*, decode_s: Num, arrivals_per_s: Num, prefill_s: Num) -> Num:
    """Return the mean time between decode steps that queue behind every prefill that came before them.

    In a cycle the prefills that arrived meanwhile are read: cycle = decode + arrivals x cycle x prefill.

    >>> fifo_cycle_s(decode_s=0.02, arrivals_per_s=2.0, prefill_s=0.25)
    0.04
    """
    return decode_s / (1.0 - arrivals_per_s * prefill_s)
