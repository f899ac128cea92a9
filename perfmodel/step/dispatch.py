"""What handing out the work of a step costs: launches, idle cores, workspace, page walks, by phase and batch.

Host and device run beside each other: a step takes the longer of launching all kernels and running them, and the host
time that nothing hides. Cores are idle in last waves of a kernel and while the device waits for the host. A workspace
that the kernels of a stream share is as large as the largest need of one of them; each further stream needs its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import NamedTuple

from perfmodel.cost.host import host_launch_time
from perfmodel.cost.streams import Task
from perfmodel.cost.translation import page_walk_time
from perfmodel.errors import SpecError
from perfmodel.estimate import TINY, Bound, Estimate, Num, larger, leaf_shares, smaller
from perfmodel.specs.scheduling import Translation
from perfmodel.step.question import Case
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.step.roofline import Phase
from perfmodel.step.step import Engine, StagePrices
from perfmodel.work.kernel import Message, Slice, Work, n_seqs_of, n_tokens_of
from perfmodel.work.kv import kv_bytes_per_token
from perfmodel.work.memory_rules import activation_peak_bytes
from perfmodel.work.storage import stage_weight_bytes
from perfmodel.work.tiling import Cut, Tile, cut_of

__all__ = ["Dispatch", "KernelRun", "dispatch", "dispatch_rows", "kernel_runs", "tasks", "workspace_growth_frac"]

_MEMORY = (Bound.WEIGHT_READ, Bound.KV_READ, Bound.ACTIVATION_IO)


class KernelRun(NamedTuple):
    """A kernel of a step: how often it runs, its time once, how it is cut, and the part of the time memory moves."""

    name: str
    section: int
    n_times: float
    n_launches: float
    time_s: Num
    memory_s: Num
    n_bytes: Num
    cut: Cut
    time: Estimate


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One step of a phase at one batch on one rank of the first stage."""

    phase: Phase
    n_seqs: Num
    n_tokens: Num
    n_kernels: Num
    is_replayed: bool
    dispatch_s: Num
    """Host time to launch the kernels one by one; 0 where a graph replays them."""
    launch_s: Num
    """Host time of one launch: 0 where a graph replays them."""
    device_s: Num
    """Time the device runs kernels."""
    step_s: Num
    core_frac: Num
    """Share of core time in use while kernels run."""
    activation_bytes: Num
    """Most activations alive at once, by the runtime's model of them."""
    workspace_bytes: Num
    """Workspace that all kernels of the step share: the largest need of one."""
    unshared_bytes: Num
    """Workspace if each kernel of one layer kept its own."""
    page_walk_s: Num
    """Page walks, where memory bounds a kernel and nothing hides them."""
    runs: tuple[KernelRun, ...]
    """The kernels of the step in order."""

    @property
    def stream_bytes(self) -> Num:
        """Temporary memory that a stream needs for such steps: activations and workspace."""
        return self.activation_bytes + self.workspace_bytes

    @property
    def exposed_host_s(self) -> Num:
        """Time of the step during which the device waits for the host."""
        return self.step_s - self.device_s

    @property
    def core_frac_of_step(self) -> Num:
        """Share of core time in use over the whole step, waiting for the host included."""
        return self.core_frac * self.device_s / (self.step_s + TINY)

    @property
    def page_walk_frac(self) -> Num:
        """What page walks add to the time on the device, as a share of it."""
        return self.page_walk_s / (self.device_s + TINY)

    def kernel_rows(self) -> list[dict[str, str | float]]:
        """Return a row for each kernel of the step: how it is cut over the cores, and its workspace."""
        return [
            {
                "phase": self.phase,
                "batch": float(self.n_seqs),
                "kernel": run.name,
                "n_times": run.n_times,
                "n_launches": run.n_launches,
                "time_s": float(run.time_s),
                "n_units": float(run.cut.n_units),
                "n_waves": float(run.cut.n_waves),
                "core_frac": float(run.cut.core_frac),
                "workspace_bytes": float(run.cut.workspace_bytes),
            }
            for run in self.runs
        ]

    def as_row(self) -> dict[str, str | float | bool]:
        """Return the figures as a row with stable keys."""
        return {
            "phase": self.phase,
            "batch": float(self.n_seqs),
            "n_tokens": float(self.n_tokens),
            "n_kernels": float(self.n_kernels),
            "is_replayed": self.is_replayed,
            "launch_s": float(self.launch_s),
            "dispatch_s": float(self.dispatch_s),
            "device_s": float(self.device_s),
            "step_s": float(self.step_s),
            "exposed_host_s": float(self.exposed_host_s),
            "core_frac": float(self.core_frac),
            "core_frac_of_step": float(self.core_frac_of_step),
            "activation_bytes": float(self.activation_bytes),
            "workspace_bytes": float(self.workspace_bytes),
            "stream_bytes": float(self.stream_bytes),
            "unshared_bytes": float(self.unshared_bytes),
            "page_walk_s": float(self.page_walk_s),
            "page_walk_frac": float(self.page_walk_frac),
        }


def kernel_runs(engine: Engine, stage: StagePrices, slices: Sequence[Slice], tile: Tile) -> Iterator[KernelRun]:
    """Yield the kernels of a step in order, section by section; messages between devices have no cores and are left."""
    device = stage.kernels.device.device
    n_cores = (device.matrix or device.vector).n_cores.value
    for index, section in enumerate(engine.sections(stage, slices)):
        # The head works on the last token of each prompt only.
        n_rows = n_seqs_of(slices) if section.name == "lm_head" else n_tokens_of(slices)
        for item in section.items:
            if isinstance(item, Work):
                time = stage.item_time(item)
                yield KernelRun(
                    item.name,
                    index,
                    section.n_times,
                    item.n_launches,
                    time.value,
                    _memory_s(time),
                    item.n_bytes,
                    cut_of(item, tile, n_cores, n_rows=n_rows),
                    time,
                )


def _memory_s(time: Estimate) -> Num:
    """Return the time that memory takes for a kernel, hidden behind arithmetic or not."""
    found: Num = 0.0
    for node in time.nodes():
        if not node.parts and node.bound in _MEMORY:
            found = found + node.value
    return found


def _walks_s(run: KernelRun, translation: Translation, working_set_bytes: Num, n_cores: float) -> Num:
    """Return what page walks add to a kernel: nothing where arithmetic takes longer than memory with its walks."""
    added = page_walk_time(
        n_bytes=run.n_bytes,
        working_set_bytes=working_set_bytes,
        page_bytes=translation.page.value,
        reach_bytes=translation.reach.value,
        walk_s=translation.walk.value,
        n_walkers=larger(smaller(run.cut.n_units, n_cores), 1.0),
    ).value
    compute: Num = 0.0
    for node, _ in leaf_shares(run.time):
        if node.bound is Bound.COMPUTE:
            compute = compute + node.value
    return larger(run.memory_s + added - larger(compute, run.memory_s), 0.0)


def dispatch(
    engine: Engine, slices: Sequence[Slice], tile: Tile, translation: Translation, *, kv_bytes: Num = 0.0
) -> Dispatch:
    """Return what handing out one step costs; `kv_bytes` is the cache that belongs to the working set."""
    stage, runtime = engine.stages[0], engine.setup.runtime
    device = stage.kernels.device.device
    n_cores = (device.matrix or device.vector).n_cores.value
    runs = list(kernel_runs(engine, stage, slices, tile))
    is_decode = all(s.phase == "decode" for s in slices)
    is_replayed = runtime.decode_graphs if is_decode else runtime.prefill_graphs
    weights = stage_weight_bytes(
        engine.setup.model, engine.setup.scheme, engine.setup.layout, 0, high_bytes=engine.setup.element_bytes
    )
    working_set = sum(weights.values()) + kv_bytes
    n_kernels = sum(run.n_times * run.n_launches for run in runs) + _n_messages(engine, stage, slices)
    filled: Num = 0.0
    walked: Num = 0.0
    workspace: Num = 0.0
    unshared: Num = 0.0
    spent: Num = 0.0
    for run in runs:
        spent = spent + run.n_times * run.time_s
        filled = filled + run.n_times * run.time_s * run.cut.core_frac
        walked = walked + run.n_times * _walks_s(run, translation, working_set, n_cores)
        workspace = larger(workspace, run.cut.workspace_bytes)
        unshared = unshared + run.cut.workspace_bytes
    whole = engine.stage_step(stage, slices)
    launched = 0.0 if is_replayed else host_launch_time(runtime, n_kernels).value
    return Dispatch(
        phase="decode" if is_decode else "prefill",
        n_seqs=n_seqs_of(slices),
        n_tokens=n_tokens_of(slices),
        n_kernels=n_kernels,
        is_replayed=is_replayed,
        dispatch_s=launched,
        launch_s=0.0 if is_replayed else runtime.host_launch.value,
        device_s=whole.find("device").value,
        step_s=whole.value,
        core_frac=filled / (spent + TINY),
        activation_bytes=activation_peak_bytes(
            engine.setup.model,
            runtime.memory.activation,
            layout=engine.setup.layout,
            n_tokens=n_tokens_of(slices),
            n_seqs=n_seqs_of(slices),
            element_bytes=engine.setup.element_bytes,
        ),
        workspace_bytes=workspace,
        unshared_bytes=unshared,
        page_walk_s=walked,
        runs=tuple(runs),
    )


def dispatch_rows(case: Case, tile: Tile, translation: Translation, batches: Sequence[float]) -> tuple[Dispatch, ...]:
    """Return a prefill step and a decode step of each batch: whole prompts of `input_tokens`, one token after them.

    Prefill comes first. The working set is the weights and the cache of the batch. Raises SpecError for a batch below
    1.
    """
    if not all(1.0 <= n < inf for n in batches):
        raise SpecError("a step cannot be handed out", where="batches", got=str(list(batches)), expected="at least 1")
    work, setup = case.workload, case.setup
    per_token = kv_bytes_per_token(setup.model, kv_bytes_per_element=setup.kv_element_bytes, tp=setup.layout.tp)
    engine = case.engine
    steps = [
        *((n, prefill_slice(n, work.input_tokens, n_steps=1.0)) for n in batches),
        *((n, decode_slice(n, work.input_tokens, work.output_tokens)) for n in batches),
    ]
    return tuple(
        dispatch(engine, (one,), tile, translation, kv_bytes=n * work.input_tokens * per_token) for n, one in steps
    )


def _n_messages(engine: Engine, stage: StagePrices, slices: Sequence[Slice]) -> float:
    """Return the collectives of a step, which are launched like kernels."""
    return sum(
        section.n_times * sum(isinstance(item, Message) and item.n_ranks > 1 for item in section.items)
        for section in engine.sections(stage, slices)
    )


def workspace_growth_frac(first_bytes: Num, second_bytes: Num) -> Num:
    """Return by how much temporary memory grows where two phases run in streams of their own instead of one.

    One stream keeps the larger need, two keep both.

    >>> workspace_growth_frac(100.0, 32.0)
    0.32
    """
    return smaller(first_bytes, second_bytes) / (larger(first_bytes, second_bytes) + TINY)


def tasks(engine: Engine, slices: Sequence[Slice], tile: Tile) -> tuple[Task, ...]:
    """Return the kernels of a step of one sequence of numbers as an arbiter of streams sees them."""
    stage = engine.stages[0]
    found: list[Task] = []
    for _, runs in groupby(kernel_runs(engine, stage, slices, tile), key=lambda run: run.section):
        once = list(runs)
        found += [_task(run) for run in once] * round(once[0].n_times)
    return tuple(found)


def _task(run: KernelRun) -> Task:
    time_s, waves = float(run.time_s), float(run.cut.n_waves)
    return Task(
        run.name,
        time_s,
        float(run.cut.core_frac),
        min(1.0, float(run.memory_s) / (time_s + TINY)),
        time_s / max(1.0, waves),
    )
