"""Chains of operators and what fusing them saves: bytes, launches and live memory, before and after.

A chain is a list of operators in the order they run, each reading and writing named buffers whole. An operator apart
reads its inputs from main memory and writes its outputs back; a fused group reads each input of the group once and
writes only what is needed outside of it, so that what it hands on inside never reaches memory. Hence a fused chain
never moves more bytes and never has more launches. Live memory is the other way round only where a buffer inside of the
group is smaller than both ends (a reduction): a fused kernel holds its inputs and outputs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, NamedTuple

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, larger
from perfmodel.work.kernel import Work

__all__ = ["Buffer", "Chain", "Operator", "Traffic"]

Role = Literal["input", "output", "held", "inner"]


class Buffer(NamedTuple):
    """A tensor in main memory.

    `input`: alive until its last reader. `output`: alive from its writer to the end. `inner`: from writer to last
    reader. `held`: alive all along (weights, the cache), and counted as moved only by operators that name it.
    """

    name: str
    n_bytes: Num
    role: Role = "inner"


class Operator(NamedTuple):
    """One kernel: which buffers it reads and writes, each whole and once, and its arithmetic.

    `kernel`, `dtype`, `engine`, `rows` and `depth` are those of `Work`.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flop: Num = 0.0
    kernel: str = "elementwise"
    dtype: str = "fp32"
    engine: Literal["matrix", "vector"] = "vector"
    rows: Num | None = None
    depth: Num | None = None


class Traffic(NamedTuple):
    """What one operator of a chain moves, and the memory that is alive while it runs."""

    operator: str
    read_bytes: Num
    written_bytes: Num
    live_bytes: Num
    flop: Num

    @property
    def n_bytes(self) -> Num:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators in order over named buffers; raises SpecError where an operator reads what nothing has written.

    `fused_kernel` is the kernel class that one fused kernel of the whole chain belongs to; "" takes the class of the
    member with a matrix engine, else of the first.

    >>> a, t, b = Buffer("a", 4.0, "input"), Buffer("t", 4.0), Buffer("b", 4.0, "output")
    >>> chain = Chain("two", (a, t, b), (Operator("f", ("a",), ("t",)), Operator("g", ("t",), ("b",))))
    >>> chain.n_bytes, chain.fused().n_bytes, chain.n_launches, chain.fused().n_launches
    (16.0, 8.0, 2, 1)
    """

    name: str
    buffers: tuple[Buffer, ...]
    operators: tuple[Operator, ...]
    fused_kernel: str = ""

    def __post_init__(self) -> None:
        known = {b.name: b for b in self.buffers}
        there = {b.name for b in self.buffers if b.role in ("input", "held")}
        for operator in self.operators:
            lacking = [name for name in (*operator.reads, *operator.writes) if name not in known]
            early = [name for name in operator.reads if name in known and name not in there]
            if lacking or early:
                raise SpecError(
                    f"chain {self.name} cannot run",
                    where=operator.name,
                    got=", ".join(lacking or early),
                    expected="buffers of the chain" if lacking else "buffers that an earlier operator has written",
                )
            there.update(operator.writes)

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What each operator moves, in order."""
        size = {b.name: b.n_bytes for b in self.buffers}
        return tuple(
            Traffic(o.name, _sum(size, o.reads), _sum(size, o.writes), _sum(size, self._live(i)), o.flop)
            for i, o in enumerate(self.operators)
        )

    @property
    def n_bytes(self) -> Num:
        """Bytes that main memory moves over the whole chain."""
        return _added([part.n_bytes for part in self.traffic])

    @property
    def flop(self) -> Num:
        """Arithmetic of the whole chain."""
        return _added([operator.flop for operator in self.operators])

    @property
    def n_launches(self) -> int:
        """Kernels of the chain."""
        return len(self.operators)

    @property
    def peak_live_bytes(self) -> Num:
        """Most memory alive at once, held buffers included."""
        return reduce(larger, (part.live_bytes for part in self.traffic))

    @property
    def unreleased_bytes(self) -> Num:
        """Memory where nothing is given back before the chain ends: all of its buffers together."""
        return _added([buffer.n_bytes for buffer in self.buffers])

    def passes(self, start: str) -> int:
        """Return how many kernels one element passes through from a buffer to the end: its round trips to memory.

        The longest way over operators counts.
        """
        reach = {start: 0}
        for operator in self.operators:
            before = [reach[name] for name in operator.reads if name in reach]
            for name in operator.writes if before else ():
                reach[name] = max(reach.get(name, 0), max(before) + 1)
        return max(reach.values())

    def works(self) -> tuple[Work, ...]:
        """Return the operators as work that the cost layer prices."""
        held = {b.name for b in self.buffers if b.role == "held"}
        size = {b.name: b.n_bytes for b in self.buffers}
        return tuple(_work(operator, size, held) for operator in self.operators)

    def fused(self, groups: Sequence[Sequence[str]] | None = None) -> Chain:
        """Return the chain with each group of operators as one kernel; None: all of them as one.

        Raises SpecError where a group names an unknown operator, one that another group has, or operators that do not
        follow each other.
        """
        own = [operator.name for operator in self.operators]
        asked = [list(group) for group in (groups if groups is not None else [own]) if group]
        _check_groups(self.name, own, asked)
        left = {group[0]: group for group in asked}
        inside = {name for group in asked for name in group}
        result: list[Operator] = []
        for i, operator in enumerate(self.operators):
            if operator.name in left:
                result.append(self._merged(i, len(left[operator.name])))
            elif operator.name not in inside:
                result.append(operator)
        named = {name for operator in result for name in (*operator.reads, *operator.writes)}
        kept = tuple(b for b in self.buffers if b.name in named or b.role == "held")
        return replace(self, name=f"{self.name}, fused", buffers=kept, operators=tuple(result))

    def _merged(self, start: int, n: int) -> Operator:
        members, after = self.operators[start : start + n], self.operators[start + n :]
        lasting = {b.name for b in self.buffers if b.role in ("output", "held")}
        lasting |= {name for operator in after for name in operator.reads}
        made = {name for operator in members for name in operator.writes}
        reads = dict.fromkeys(name for operator in members for name in operator.reads if name not in made)
        writes = dict.fromkeys(name for operator in members for name in operator.writes if name in lasting)
        model = next((operator for operator in members if operator.engine == "matrix"), members[0])
        whole = n == len(self.operators) and self.fused_kernel
        return model._replace(
            name=" + ".join(operator.name for operator in members) if n > 1 else model.name,
            reads=tuple(reads),
            writes=tuple(writes),
            flop=_added([operator.flop for operator in members]),
            kernel=self.fused_kernel if whole else model.kernel,
        )

    def _live(self, at: int) -> tuple[str, ...]:
        """Return the buffers alive while operator `at` runs."""
        return tuple(b.name for b in self.buffers if self._is_live(b, at))

    def _is_live(self, buffer: Buffer, at: int) -> bool:
        writers = [i for i, o in enumerate(self.operators) if buffer.name in o.writes]
        readers = [i for i, o in enumerate(self.operators) if buffer.name in o.reads]
        first = 0 if buffer.role in ("input", "held") else min(writers, default=len(self.operators))
        end = len(self.operators) if buffer.role in ("output", "held") else max((*writers, *readers), default=-1)
        return first <= at <= end


def _added(values: Sequence[Num]) -> Num:
    result: Num = 0.0
    for value in values:
        result = result + value
    return result


def _sum(size: dict[str, Num], names: Sequence[str]) -> Num:
    return _added([size[name] for name in names])


def _work(operator: Operator, size: dict[str, Num], held: set[str]) -> Work:
    weights = [size[name] for name in operator.reads if name in held]
    moved = [size[name] for name in operator.reads if name not in held] + [size[name] for name in operator.writes]
    return Work(
        operator.name,
        operator.kernel,
        operator.dtype,
        flop=operator.flop,
        weight_bytes=_added(weights) if weights else None,
        io_bytes=_added(moved),
        engine=operator.engine,
        rows=operator.rows,
        depth=operator.depth,
    )


def _check_groups(chain: str, own: Sequence[str], groups: Sequence[Sequence[str]]) -> None:
    seen: set[str] = set()
    for group in groups:
        known = [own.index(name) for name in group if name in own]
        if len(known) < len(group) or seen & set(group):
            raise SpecError(
                f"operators of chain {chain} cannot be fused",
                got=", ".join(group),
                expected=f"each at most once of {', '.join(own)}",
            )
        if known != list(range(known[0], known[0] + len(known))):
            raise SpecError(
                f"operators of chain {chain} cannot be fused",
                got=", ".join(group),
                expected=f"operators that follow each other in {', '.join(own)}",
            )
        seen |= set(group)
