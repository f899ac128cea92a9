"""Pipes and issue: laws on random programs, then chains worked out by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.cost.issue import (
    Call,
    Machine,
    PipelineRun,
    Timing,
    instruction_growth,
    issue_share,
    issue_time,
    machine_of,
    pipeline_run,
    program_of,
    slowdown,
)
from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.estimate import Bound
from perfmodel.specs.catalogue import Catalogue

PIPES = {"vector": 1, "cube": 2, "mte": 1}
OPS = {"vadd": "vector", "vdiv": "vector", "mmad": "cube", "load": "mte"}
NAMES = st.sampled_from("abcdef")
CALLS = st.builds(
    lambda op, target, sources, n: Call(op, target, tuple(sources), float(n)),
    st.sampled_from(sorted(OPS)),
    NAMES,
    st.lists(NAMES, max_size=2),
    st.integers(1, 20),
)
PROGRAMS = st.lists(CALLS, min_size=1, max_size=25)
LATENCIES = st.fixed_dictionaries({op: st.integers(0, 30) for op in OPS})


def machine(latencies: dict[str, int], *, width: int = 2, has_forwarding: bool = False) -> Machine:
    """Return a machine with these latencies; results come a third into them, elements one a cycle but for vdiv."""
    timings = {
        op: Timing(pipe, float(latencies[op]), latencies[op] / 3, 4.0 if op == "vdiv" else 1.0)
        for op, pipe in OPS.items()
    }
    return Machine(width, PIPES, timings, has_forwarding)


@given(program=PROGRAMS, latencies=LATENCIES, width=st.integers(1, 4), forwarding=st.booleans())
def test_hard_bounds(program: list[Call], latencies: dict[str, int], width: int, forwarding: bool) -> None:
    core = machine(latencies, width=width, has_forwarding=forwarding)
    run = pipeline_run(program, core)
    assert 0 < run.whole_ipc <= width
    assert run.whole_ipc <= run.ceiling_ipc + 1e-12
    assert run.n_instructions == len(program)
    assert run.n_cycles == max(one.ready_cycles for one in run.issued)
    for pipe in PIPES:
        own = [one for one in run.issued if one.pipe == pipe]
        assert all(a.start_cycles <= b.start_cycles for a, b in pairwise(own))  # in order
        assert sum(one.free_cycles - one.start_cycles for one in own) <= PIPES[pipe] * run.n_cycles + 1e-9
    assert all(one.stall_cycles >= 0 for one in run.issued)
    assert sum(run.stalls().values()) == pytest.approx(sum(one.stall_cycles for one in run.issued))


@given(program=PROGRAMS, latencies=LATENCIES, longer=st.sampled_from(sorted(OPS)), more=st.integers(1, 20))
def test_a_longer_latency_never_raises_ipc(
    program: list[Call], latencies: dict[str, int], longer: str, more: int
) -> None:
    before = pipeline_run(program, machine(latencies))
    after = pipeline_run(program, machine(latencies | {longer: latencies[longer] + more}))
    assert after.n_cycles >= before.n_cycles
    assert all(a.start_cycles >= b.start_cycles for a, b in zip(after.issued, before.issued, strict=True))


@given(program=PROGRAMS, latencies=LATENCIES, width=st.integers(1, 4))
def test_width_and_forwarding_never_delay(program: list[Call], latencies: dict[str, int], width: int) -> None:
    plain = pipeline_run(program, machine(latencies, width=width))
    assert pipeline_run(program, machine(latencies, width=width + 1)).n_cycles <= plain.n_cycles
    forwarded = pipeline_run(program, machine(latencies, width=width, has_forwarding=True))
    assert forwarded.n_cycles <= plain.n_cycles + 1e-9


@given(program=PROGRAMS, latencies=LATENCIES)
def test_operands_are_there_when_they_are_read(program: list[Call], latencies: dict[str, int]) -> None:
    written: dict[str, float] = {}
    for one in pipeline_run(program, machine(latencies)).issued:
        assert all(one.start_cycles >= written.get(name, 0.0) for name in one.call.sources)
        assert one.start_cycles >= written.get(one.call.target, 0.0)
        written[one.call.target] = one.ready_cycles


@pytest.mark.parametrize("width", [1, 2, 3])
def test_independent_instructions_reach_the_ceiling(width: int) -> None:
    """One-cycle instructions on three pipes that write 120 different registers: nothing but the width is in the way."""
    core = Machine(width, dict.fromkeys("xyz", 1), {p: Timing(p, 25.0, 25.0, 0.0) for p in "xyz"})
    program = [Call("xyz"[i % 3], f"r{i}") for i in range(120)]
    run = pipeline_run(program, core, n_iterations=40)
    assert run.ceiling_ipc == width
    assert run.steady_ipc == pytest.approx(width, rel=0.02)


def test_a_chain_costs_its_latencies() -> None:
    """Busy 1, latency 2 (an execution of two cycles whose result is written one later): a dependent every 3 cycles.

    Starts 0, 3, 6, last result at 9: IPC 3 / 9. Handed on after one cycle the starts are 0, 1, 2, the last at 5.
    """
    timing = Timing("v", 2.0, 1.0, 0.0)
    program = program_of("vadd c, a, b; vmul d, c, b; vdiv e, d, a")
    for forwarding, starts, cycles in ((False, [0, 3, 6], 9), (True, [0, 1, 2], 5)):
        core = Machine(1, {"v": 1}, dict.fromkeys(("vadd", "vmul", "vdiv"), timing), forwarding)
        run = pipeline_run(program, core)
        assert [one.start_cycles for one in run.issued] == starts
        assert run.n_cycles == cycles
        assert run.whole_ipc == pytest.approx(3 / cycles)


def ascend(text: str, *, has_forwarding: bool = False) -> PipelineRun:
    """Run a program of 128 fp16 elements a call on an AI core of a 910B2."""
    catalogue = Catalogue.standard()
    core = catalogue.core_of(catalogue.device("ascend-910b2"))
    return pipeline_run(program_of(text, n_elements=128), machine_of(core, dtype="fp16", has_forwarding=has_forwarding))


def test_a_dependent_chain_of_vector_calls_on_an_ascend_core() -> None:
    """fp16, 128 elements: vadd 22.2 + 128 x 0.0103 = 23.52, vmul 23.1 + 1.408 = 24.51, vdiv 29.1 + 5.888 = 34.99.

    Each waits for the one before: 83.01 cycles, IPC 0.036. Without the dependence the pipe is the limit: it is busy for
    1.32 + 1.41 + 5.89 = 8.61 cycles, IPC 0.348.
    """
    run = ascend("vadd c, a, b; vmul d, c, b; vdiv e, d, a")
    assert run.n_cycles == pytest.approx(83.0144)
    assert run.whole_ipc == pytest.approx(3 / 83.0144)
    assert run.ceiling_ipc == pytest.approx(3 / 8.6144)
    assert list(run.stalls()) == ["d", "c"]
    assert ascend("vadd c, a, b; vmul d, c, b; vdiv e, d, a", has_forwarding=True).n_cycles < run.n_cycles
    free = ascend("vadd c, a, b; vmul d, a, b; vdiv e, b, a")
    assert free.n_cycles == pytest.approx(1.3184 + 1.408 + 5.888 + 29.1)


def cube_loop(n_buffers: int) -> float:
    """Return cycles of one step of a tile of 128 x 256 x 64 in the long run, with operands in so many L0 buffers.

    128 x 64 x 2 = 16 KiB of A and 64 x 256 x 2 = 32 KiB of B come from L1, then 128 x 256 x 64 multiply-adds.
    """
    text = "; ".join(
        f"load_l0a a{i}, l1 x16384; load_l0b b{i}, l1 x32768; mmad c, a{i}, b{i}, c x2097152" for i in range(n_buffers)
    )
    core = Catalogue.standard().core("ascend-c220")
    run = pipeline_run(program_of(text), machine_of(core, dtype="fp16"), n_iterations=60)
    return 3.0 / run.steady_ipc


def test_one_buffer_leaves_the_cube_idle_and_two_hide_the_loads() -> None:
    """Loads: 16384 / 256 + 32768 / 128 = 320 cycles; cube: 2097152 / 4096 = 512; 14 more until results are there.

    One buffer: a load waits for the cube to have read, the cube for the load: 320 + 14 + 512 = 846, so that the cube is
    idle for 39 % of it. Two: 512 + 14, since sums in c depend on each other. A public guide (pto-dsl) sees the cube
    idle for about half of the time with one buffer, and twice the rate with two.
    """
    assert cube_loop(1) == pytest.approx(320 + 14 + 512, rel=0.02)
    assert cube_loop(2) == pytest.approx(512 + 14, rel=0.02)


def test_ipc_and_time() -> None:
    """Half the IPC doubles what is bound by issue: at most +100 %. +112 % needs 2.12 / 2 = 1.06 times the count."""
    assert slowdown(before_ipc=3.8, after_ipc=1.9) == 2.0
    assert issue_share(before_ipc=3.8, after_ipc=1.9, longer_frac=1.12) == pytest.approx(1.12)
    assert instruction_growth(before_ipc=3.8, after_ipc=1.9, longer_frac=1.12) == pytest.approx(1.06)
    # the other cut of the row, 1.91 and 12 %: 0.12 / (3.8 / 1.91 - 1) = 0.1213 of the time is bound by issue
    assert issue_share(before_ipc=3.8, after_ipc=1.91, longer_frac=0.12) == pytest.approx(0.12127, rel=1e-4)


@given(share=st.floats(0.01, 1), before=st.floats(0.1, 4), fall=st.floats(0.1, 0.99))
def test_the_relations_undo_each_other(share: float, before: float, fall: float) -> None:
    after = before * fall
    ratio = slowdown(before_ipc=before, after_ipc=after, bound_share=share)
    assert 1.0 <= ratio <= before / after + 1e-9
    assert issue_share(before_ipc=before, after_ipc=after, longer_frac=ratio - 1.0) == pytest.approx(share)
    growth = instruction_growth(before_ipc=before, after_ipc=after, longer_frac=ratio - 1.0, bound_share=share)
    assert growth == pytest.approx(1.0)


def test_issue_time_is_a_leaf_bound_by_issue_for_arrays_too() -> None:
    one = issue_time(n_instructions=7.2e9, mean_ipc=0.5, n_cores=4.0, clock_hz=1.8e9)
    assert (one.value, one.bound) == (2.0, Bound.ISSUE)
    many = issue_time(n_instructions=np.array([0.0, 7.2e9]), mean_ipc=0.5, n_cores=4.0, clock_hz=1.8e9)
    np.testing.assert_allclose(many.value, [0.0, 2.0])


@pytest.mark.parametrize("text", ["", "# only a remark", "vadd", "vadd 1, 2", "a + b", "vadd c, a b"])
def test_text_that_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="instruction"):
        program_of(text)


def test_what_a_core_does_not_know_is_refused() -> None:
    catalogue = Catalogue.standard()
    core = catalogue.core_of(catalogue.device("ascend-910b2"))
    with pytest.raises(UnknownNameError, match="vadd"):
        pipeline_run(program_of("vad c, a"), machine_of(core, dtype="fp16"))
    with pytest.raises(UnknownNameError, match="vmull"):
        machine_of(core, dtype="fp16", latency_cycles={"vmull": 3.0})
    with pytest.raises(SpecError, match="no pipes"):
        machine_of(catalogue.core("generic"), dtype="fp16")
    with pytest.raises(SpecError, match="at least 1"):
        machine_of(core, dtype="fp16", width=0)
    with pytest.raises(SpecError, match="iterations"):
        pipeline_run(program_of("vadd c, a"), machine_of(core, dtype="fp16"), n_iterations=0)
