"""How fast a core gets through instructions, and what that does to a time.

A core dispatches instructions in order, at most `width` a cycle, to pipes that start them in order and work beside each
other. An instruction starts when it is dispatched, a unit of its pipe is free and its operands are there; a unit is
busy for `busy_cycles`. Without forwarding a result is there after busy + latency, with forwarding as soon as no element
is asked for before it is made. Queues are taken to be deep enough.

    cycles >= instructions / width,   cycles >= busy cycles of any pipe / its units,   cycles >= any chain of dependents

Times scale with cycles: at a fixed clock and a fixed count of instructions, a share s of a time that is bound by issue
takes IPC_before / IPC_after times as long, and the whole 1 - s + s IPC_before / IPC_after (Amdahl).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.estimate import Bound, Estimate, Law, Num, bound_shares, leaf
from perfmodel.specs.core import CoreClass

__all__ = [
    "Call",
    "Issued",
    "Machine",
    "PipelineRun",
    "core_share",
    "instruction_growth",
    "issue_share",
    "issue_time",
    "machine_of",
    "pipeline_run",
    "program_of",
    "slowdown",
]

ISSUE: Final = Law("n_instructions / (ipc x n_cores x clock_hz)", "amdahl")
_CALL: Final = re.compile(r"(?P<op>[a-z][a-z0-9_.]*)\s*(?P<operands>[^#]*?)(?:\s+x(?P<n>\d+))?", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Call(NamedTuple):
    """One instruction of a program: what it writes, what it reads, how many elements it works on."""

    op: str
    target: str
    sources: tuple[str, ...] = ()
    n_elements: float = 1.0

    @property
    def text(self) -> str:
        """The call as it is written."""
        return f"{self.op} {', '.join((self.target, *self.sources))}"


class Timing(NamedTuple):
    """How an instruction behaves: its pipe, and the cycles until dependents start and for which a unit is busy."""

    pipe: str
    latency_cycles: float
    forwarded_cycles: float
    cycles_per_element: float


@dataclass(frozen=True)
class Machine:
    """A core as a set of pipes: units by pipe, timings by instruction, instructions started a cycle."""

    width: int
    units: Mapping[str, int]
    timings: Mapping[str, Timing]
    has_forwarding: bool = False

    def timing(self, op: str) -> Timing:
        """Return the timing of an instruction; raises UnknownNameError with near names."""
        if op not in self.timings:
            raise UnknownNameError.of(
                "instruction", op, list(self.timings), f"There are {', '.join(sorted(self.timings))}."
            )
        return self.timings[op]


class Issued(NamedTuple):
    """A call on its way: cycles at which it is dispatched, a unit is open, it starts, frees it, lets dependents start.

    `waits_for` names what it waited for last: a register, the pipe, or nothing (it started when dispatched).
    """

    call: Call
    pipe: str
    dispatched_cycles: float
    open_cycles: float
    start_cycles: float
    free_cycles: float
    ready_cycles: float
    waits_for: str

    @property
    def stall_cycles(self) -> float:
        """Cycles that an open unit waits for operands."""
        return self.start_cycles - self.open_cycles


@dataclass(frozen=True)
class PipelineRun:
    """A program run on a machine: every call with its cycles."""

    issued: tuple[Issued, ...]
    n_cycles: float
    ceiling_ipc: float
    steady_ipc: float

    @property
    def n_instructions(self) -> int:
        """Calls that were run."""
        return len(self.issued)

    @property
    def whole_ipc(self) -> float:
        """Instructions over cycles, fill and drain included."""
        return len(self.issued) / self.n_cycles

    def stalls(self) -> dict[str, float]:
        """Return register -> cycles for which open units waited for it, the largest first."""
        found: dict[str, float] = {}
        for one in self.issued:
            if one.stall_cycles > 0:
                found[one.waits_for] = found.get(one.waits_for, 0.0) + one.stall_cycles
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def program_of(text: str, *, n_elements: float = 1.0) -> tuple[Call, ...]:
    """Return the calls of a program: `op target, source, ...`, one a line or parted by `;`, `#` starts a remark.

    ` x256` at the end says how many elements a call works on. Raises SpecError for a line that is none.

    >>> [call.text for call in program_of("vadd c, a, b; vmul d, c, b x64")]
    ['vadd c, a, b', 'vmul d, c, b']
    """
    calls = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _CALL.fullmatch(words)
        operands = [part.strip() for part in match["operands"].split(",")] if match and match["operands"] else []
        if match is None or not operands or not all(_NAME.fullmatch(name) for name in operands):
            raise SpecError(
                "an instruction cannot be read",
                where=f"instruction {number}",
                got=repr(words),
                expected="`op target, source, ...` with an optional count of elements, as in `vadd c, a, b x128`",
            )
        n = float(match["n"]) if match["n"] else n_elements
        calls.append(Call(match["op"].lower(), operands[0], tuple(operands[1:]), n))
    if not calls:
        raise SpecError("there are no instructions", got=repr(text), expected="at least one instruction")
    return tuple(calls)


def machine_of(
    core: CoreClass,
    *,
    dtype: str,
    width: int | None = None,
    has_forwarding: bool = False,
    latency_cycles: Mapping[str, float] | None = None,
) -> Machine:
    """Return the machine of a class of cores; `width` and `latency_cycles` by instruction replace its own.

    Raises SpecError where the class states no pipes, or no issue width and none is given, or a number is below zero.
    """
    if not core.instructions or (core.issue_width is None and width is None):
        raise SpecError(
            f"no pipes are known of {core.title}", where=core.name, cure="Name a device whose core file states them."
        )
    dtypes = sorted({i.dtype for i in core.instructions if i.dtype})
    if dtypes and dtype not in dtypes:
        raise UnknownNameError.of("dtype", dtype, dtypes, f"There are {', '.join(dtypes)}.")
    given = dict(latency_cycles or {})
    timings = {}
    for op in dict.fromkeys(i.op for i in core.instructions):
        own = core.instruction(op, dtype)
        if own is None:
            continue
        latency = given.pop(op, own.latency_cycles.value)
        forwarded = own.forwarded_cycles.value if own.forwarded_cycles is not None else latency
        rate = own.cycles_per_element.value if own.cycles_per_element is not None else 0.0
        timings[op] = Timing(own.pipe, latency, min(forwarded, latency), rate)
    if given:
        raise UnknownNameError.of("instruction", next(iter(given)), list(timings), f"There are {', '.join(timings)}.")
    asked = width if width is not None else round(core.issue_width.value) if core.issue_width else 1
    if asked < 1 or any(timing.latency_cycles < 0 for timing in timings.values()):
        raise SpecError(
            "a core cannot work like that", expected="an issue width of at least 1, latencies of at least 0"
        )
    return Machine(asked, {pipe.name: pipe.n_units for pipe in core.pipes}, timings, has_forwarding)


def pipeline_run(program: Sequence[Call], machine: Machine, *, n_iterations: int = 1) -> PipelineRun:
    """Return the program run `n_iterations` times over, as a loop without overhead; registers carry over.

    `steady_ipc` is that of the second half of the iterations, `ceiling_ipc` what independent instructions would reach.
    """
    if n_iterations < 1:
        raise SpecError("a program must run", got=f"{n_iterations} iterations", expected="at least 1")
    state = _State(machine)
    ends: list[float] = []
    for _ in range(n_iterations):
        for call in program:
            state.add(call)
        ends.append(state.end_cycles)
    half = (n_iterations - 1) // 2
    steady = ends[-1] - ends[half]
    n_steady = len(program) * (n_iterations - 1 - half)
    whole = len(state.issued) / state.end_cycles
    return PipelineRun(
        tuple(state.issued),
        state.end_cycles,
        _ceiling_ipc(program, machine),
        n_steady / steady if steady > 0 else whole,
    )


def _busy_cycles(call: Call, timing: Timing) -> float:
    return max(call.n_elements * timing.cycles_per_element, 1.0)


def _ceiling_ipc(program: Sequence[Call], machine: Machine) -> float:
    """Return instructions a cycle if none depended on another: the width, or what the busiest pipe lets through."""
    busy: dict[str, float] = {}
    for call in program:
        timing = machine.timing(call.op)
        busy[timing.pipe] = busy.get(timing.pipe, 0.0) + _busy_cycles(call, timing)
    slowest = max(cycles / machine.units[pipe] for pipe, cycles in busy.items())
    return len(program) / max(slowest, len(program) / machine.width)


class _State:
    """What a core remembers while it runs: free units, who wrote and who read each register last."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.issued: list[Issued] = []
        self.end_cycles = 0.0
        self.free = {pipe: [0.0] * n for pipe, n in machine.units.items()}
        self.last_start = dict.fromkeys(machine.units, 0.0)
        self.writers: dict[str, Issued] = {}
        self.read_until: dict[str, float] = {}

    def add(self, call: Call) -> None:
        """Run one more call."""
        timing = self.machine.timing(call.op)
        busy = _busy_cycles(call, timing)
        dispatched = float(len(self.issued) // self.machine.width)
        units = self.free[timing.pipe]
        unit = units.index(min(units))
        opens = max(dispatched, units[unit], self.last_start[timing.pipe])
        waits = [(opens, f"pipe {timing.pipe}" if opens > dispatched else "")]
        waits += [(self._operand_cycles(name, busy), name) for name in call.sources if name in self.writers]
        waits += self._overwrite(call.target)
        start, reason = max(waits, key=lambda wait: wait[0])
        ready = start + busy + timing.latency_cycles
        one = Issued(call, timing.pipe, dispatched, opens, start, start + busy, ready, reason)
        units[unit], self.last_start[timing.pipe] = start + busy, start
        for name in call.sources:
            self.read_until[name] = max(self.read_until.get(name, 0.0), start + busy)
        self.writers[call.target] = one
        self.read_until.pop(call.target, None)
        self.issued.append(one)
        self.end_cycles = max(self.end_cycles, ready)

    def _operand_cycles(self, name: str, busy_cycles: float) -> float:
        """Return when an operand may be asked for by an instruction that reads it for `busy_cycles`."""
        writer = self.writers[name]
        if not self.machine.has_forwarding:
            return writer.ready_cycles
        made = writer.start_cycles + self.machine.timing(writer.call.op).forwarded_cycles
        slower = max(writer.free_cycles - writer.start_cycles - busy_cycles, 0.0)
        return min(made + slower, writer.ready_cycles)

    def _overwrite(self, target: str) -> list[tuple[float, str]]:
        """Return until when a register may not be written, as a scoreboard has it: readers done, earlier write there.

        This does not depend on the writer's own latency, so that a longer latency never lets anything start earlier.
        """
        waits = [(self.read_until.get(target, 0.0), target)]
        if target in self.writers:
            waits.append((self.writers[target].ready_cycles, target))
        return waits


def issue_time(*, n_instructions: Num, mean_ipc: Num, n_cores: Num, clock_hz: Num) -> Estimate:
    """Return the time in which cores get through instructions at a mean IPC of one core, as a leaf bound by issue.

    >>> issue_time(n_instructions=3.6e9, mean_ipc=1.0, n_cores=2.0, clock_hz=1.8e9).value
    1.0
    """
    return leaf(
        "issue",
        n_instructions / (mean_ipc * n_cores * clock_hz),
        bound=Bound.ISSUE,
        law=ISSUE,
        inputs=(("n_instructions", n_instructions), ("ipc", mean_ipc), ("n_cores", n_cores), ("clock_hz", clock_hz)),
    )


def slowdown(*, before_ipc: Num, after_ipc: Num, bound_share: Num = 1.0) -> Num:
    """Return time after over time before, where a share of the time before is bound by issue.

    >>> slowdown(before_ipc=3.8, after_ipc=1.9), slowdown(before_ipc=3.8, after_ipc=1.9, bound_share=0.5)
    (2.0, 1.5)
    """
    return 1.0 - bound_share + bound_share * (before_ipc / after_ipc)


def issue_share(*, before_ipc: Num, after_ipc: Num, longer_frac: Num) -> Num:
    """Return the share of the time before that must be bound by issue for a time longer by a fraction.

    Above 1 no share is enough: more instructions were run (`instruction_growth`), or the clock fell.
    """
    return longer_frac / (before_ipc / after_ipc - 1.0)


def core_share(tree: Estimate) -> Num:
    """Return the share of a time that cores work or start work: the most that a change of IPC can stretch.

    Reading memory, messages between devices and host software take their time whatever the IPC.
    """
    found = bound_shares(tree)
    share: Num = 0.0
    for bound in (Bound.COMPUTE, Bound.LAUNCH, Bound.ISSUE):
        share = share + found.get(bound, 0.0)
    return share


def instruction_growth(*, before_ipc: Num, after_ipc: Num, longer_frac: Num, bound_share: Num = 1.0) -> Num:
    """Return by which factor the count of instructions must have grown beside the fall of the IPC.

    >>> round(instruction_growth(before_ipc=3.8, after_ipc=1.9, longer_frac=1.12), 4)
    1.06
    """
    return (longer_frac + bound_share) / (bound_share * (before_ipc / after_ipc))
