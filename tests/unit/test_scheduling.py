"""Dispatch, idle cores, page walks and streams: laws, closed forms against simulation, hand counts, commands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.streams import Task, fifo_cycle_s, md1_wait_s, rates
from perfmodel.cost.translation import missed_frac, page_walk_share, page_walk_time
from perfmodel.errors import SpecError
from perfmodel.serving.streams import arrival_times, stream_run
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.figures import SizeFigure
from perfmodel.step.dispatch import dispatch, kernel_runs, tasks, workspace_growth_frac
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Work
from perfmodel.work.tiling import Tile, cut_of
from tests.unit.cli_parts import Run, answer

EngineOf = Callable[..., Engine]
TILE = Tile(128.0, 256.0, 128.0)


def matmul(m: float, n: float, k: float) -> Work:
    return Work("matmul", "matmul/16bit", "bf16", flop=2.0 * m * n * k, weight_bytes=2.0 * n * k, rows=m, depth=k)


def test_tiles_and_waves_by_hand() -> None:
    # 4096 x 4096 outputs in tiles of 128 x 256: 32 x 16 = 512 tiles on 24 cores: 22 waves, 512 / 528 = 97.0 %.
    cut = cut_of(matmul(4096.0, 4096.0, 4096.0), TILE, 24.0, n_rows=4096.0)
    assert (cut.n_units, cut.n_waves) == (512.0, 22.0)
    assert cut.core_frac == pytest.approx(512 / 528)
    assert cut.workspace_bytes == 0.0
    # One row, 4096 outputs: 16 tiles on 24 cores cannot be split in two (32 > 24): 66.7 %.
    one = cut_of(matmul(1.0, 4096.0, 4096.0), TILE, 24.0, n_rows=1.0)
    assert one.core_frac == pytest.approx(16 / 24)
    # 108 cores: six parts of each tile, 96 units, and six partial sums of 4096 outputs in 32 bits.
    split = cut_of(matmul(1.0, 4096.0, 4096.0), TILE, 108.0, n_rows=1.0)
    assert (split.n_units, split.workspace_bytes) == (96.0, 6 * 4096 * 4.0)


@given(m=st.floats(1, 1e5), n=st.floats(1, 1e5), cores=st.integers(1, 200))
@settings(max_examples=80, deadline=None)
def test_cores_are_never_more_than_full(m: float, n: float, cores: int) -> None:
    cut = cut_of(matmul(m, n, 4096.0), TILE, float(cores), n_rows=m)
    assert 0 < cut.core_frac <= 1 + 1e-12
    assert cut.n_units <= cut.n_waves * cores + 1e-9


def test_scalar_and_array_cut_agree() -> None:
    rows = np.array([1.0, 100.0, 129.0, 4096.0])
    many = cut_of(matmul(rows, 4096.0, 4096.0), TILE, 24.0, n_rows=rows)  # type: ignore[arg-type]
    for i, m in enumerate(rows):
        alone = cut_of(matmul(float(m), 4096.0, 4096.0), TILE, 24.0, n_rows=float(m))
        for whole, single in zip(many, alone, strict=True):
            assert np.broadcast_to(whole, 4)[i] == pytest.approx(single)


def test_larger_batches_fill_cores_and_hide_launches(engine_of: EngineOf, catalogue: Catalogue) -> None:
    engine = engine_of("llama-2-7b", "ascend-910b2", runtime="pytorch-eager")
    pages = catalogue.scheduling_of(engine.setup.devices[0]).translation
    found = [dispatch(engine, (decode_slice(n, 512.0, 16.0),), TILE, pages) for n in (1.0, 4.0, 16.0, 64.0)]
    of_step = [float(one.core_frac_of_step) for one in found]
    assert of_step == sorted(of_step)
    assert len({float(one.dispatch_s) for one in found}) == 1  # launches do not depend on the batch
    for one in found:
        assert one.step_s >= one.device_s
        assert one.step_s >= one.dispatch_s
        assert 0 <= one.core_frac_of_step <= one.core_frac <= 1
    prompt = dispatch(engine, (prefill_slice(4.0, 512.0, n_steps=1.0),), TILE, pages)
    # A 7B model launched one by one from Python: decode at batch 1 waits for the host, prefill does not.
    assert prompt.core_frac_of_step > 0.9
    assert found[0].core_frac_of_step < 0.5
    assert prompt.page_walk_frac < found[0].page_walk_frac


def test_dispatch_counts_by_hand(engine_of: EngineOf, catalogue: Catalogue) -> None:
    # transformers, 32 layers: 2 norms of 5 kernels, q, k, v, o, gate, up, down, 5 for rotation and cache, attention,
    # 2 for the activation = 25; beside them the embedding, a norm, the head and 3 of sampling: 806 launches of 34 us.
    engine = engine_of("llama-2-7b", "ascend-910b2", runtime="pytorch-eager")
    pages = catalogue.scheduling_of(engine.setup.devices[0]).translation
    one = dispatch(engine, (decode_slice(1.0, 512.0, 16.0),), TILE, pages)
    assert one.n_kernels == 32 * 25 + 6
    assert one.dispatch_s == pytest.approx(806 * 34e-6)
    graph = engine_of("llama-2-7b", "ascend-910b2", runtime="cann-graph")
    assert dispatch(graph, (decode_slice(1.0, 512.0, 16.0),), TILE, pages).dispatch_s == 0.0


def test_page_walks_by_hand() -> None:
    # 2 MiB pages, 24 walkers, 0.5 us, 1.6 TB/s: a core takes 31.5 us for a page, a walk adds 0.5 us: 1.59 %.
    share = page_walk_share(bytes_per_s=1.6e12, page_bytes=2.0**21, walk_s=5e-7, n_walkers=24.0, missed_frac=1.0)
    assert share == pytest.approx(0.5 / (2.0**21 / (1.6e12 / 24) * 1e6))
    time = page_walk_time(
        n_bytes=1.6e10, working_set_bytes=1e15, page_bytes=2.0**21, reach_bytes=1.0, walk_s=5e-7, n_walkers=24.0
    )
    assert time.value / (1.6e10 / 1.6e12) == pytest.approx(share, rel=1e-9)


@given(size=st.floats(1, 1e12), reach=st.floats(1, 1e12), more=st.floats(1, 1e6))
def test_walks_grow_with_the_working_set_and_fall_with_the_reach(size: float, reach: float, more: float) -> None:
    base = missed_frac(working_set_bytes=size, reach_bytes=reach)
    assert 0 <= base <= 1
    assert missed_frac(working_set_bytes=size * more, reach_bytes=reach) >= base
    assert missed_frac(working_set_bytes=size, reach_bytes=reach * more) <= base


def test_small_pages_cost_more(engine_of: EngineOf, catalogue: Catalogue) -> None:
    engine = engine_of("llama-2-7b", "ascend-910b2")
    pages = catalogue.scheduling_of(engine.setup.devices[0]).translation
    small = pages.model_copy(update={"page": SizeFigure(value=4096.0, source="test")})
    step = (decode_slice(1.0, 512.0, 16.0),)
    large_frac = dispatch(engine, step, TILE, pages).page_walk_frac
    assert dispatch(engine, step, TILE, small).page_walk_frac > 100 * large_frac
    # A memory that lies within reach is never walked for.
    within = pages.model_copy(update={"reach": SizeFigure(value=1e15, source="test")})
    assert dispatch(engine, step, TILE, within).page_walk_s == 0.0


def test_every_family_has_scheduling_facts(catalogue: Catalogue) -> None:
    assert catalogue.scheduling_of(catalogue.device("ascend-910b2")).name == "ascend-a2"
    assert catalogue.scheduling_of(catalogue.device("ascend-910b2")).stream_priorities.value == 1
    assert catalogue.scheduling_of(catalogue.device("ascend-310p")).stream_priorities.value == 8
    assert catalogue.scheduling_of(catalogue.device("a100-80gb-sxm")).name == "nvidia"
    assert catalogue.scheduling_of(catalogue.device("mi300x")).name == "generic"


def test_workspace_of_two_streams() -> None:
    assert workspace_growth_frac(100.0, 0.0) == 0.0
    assert workspace_growth_frac(100.0, 100.0) == pytest.approx(1.0)
    assert workspace_growth_frac(3.0, 7.0) == workspace_growth_frac(7.0, 3.0)


@given(
    cores=st.lists(st.floats(0.01, 1), min_size=1, max_size=4), memory=st.lists(st.floats(0, 1), min_size=4, max_size=4)
)
def test_streams_never_exceed_the_device(cores: list[float], memory: list[float]) -> None:
    running = [Task(str(i), 1.0, c, m) for i, (c, m) in enumerate(zip(cores, memory, strict=False))]
    shares = [1.0 / len(running)] * len(running)
    for policy in ("one stream", "equal", "priority", "partition"):
        speed = rates(running, policy, core_shares=shares)
        assert all(0 <= rate <= 1 for rate in speed)
        assert sum(r * t.core_frac for r, t in zip(speed, running, strict=True)) <= 1 + 1e-9
        assert sum(r * t.memory_frac for r, t in zip(speed, running, strict=True)) <= 1 + 1e-9


DECODE = (Task("d", 0.010, 0.4, 0.9),)
PREFILL = (Task("p", 0.050, 1.0, 0.2, unit_s=0.001),)


def test_decode_alone_runs_at_its_own_pace() -> None:
    for policy in ("one stream", "equal", "priority"):
        run = stream_run(DECODE, PREFILL, (), policy, duration_s=1.0, host_gap_s=0.002)
        assert np.allclose(run.decode_step_s[1:], 0.012)
        assert run.core_frac == pytest.approx(0.4 * 10 / 12, rel=0.02)


def test_random_prefills_alone_wait_as_in_a_queue() -> None:
    arrivals = arrival_times(np.random.default_rng(1), arrivals_per_s=12.0, duration_s=2000.0)
    run = stream_run((), PREFILL, arrivals, "one stream", duration_s=2000.0)
    # Load 0.6: mean wait 0.6 x 50 ms / (2 x 0.4) = 37.5 ms, beside 50 ms of service.
    assert md1_wait_s(arrivals_per_s=12.0, service_s=0.05) == pytest.approx(0.0375)
    assert float(run.prefill_s.mean()) == pytest.approx(0.0875, rel=0.03)
    same = stream_run((), PREFILL, arrivals[:400], "equal", duration_s=30.0)
    whole = stream_run((), PREFILL, arrivals[:400], "one stream", duration_s=30.0)
    assert np.allclose(same.prefill_s[: len(whole.prefill_s)], whole.prefill_s)


def test_one_stream_meets_its_closed_form() -> None:
    arrivals = arrival_times(np.random.default_rng(2), arrivals_per_s=10.0, duration_s=1000.0)
    run = stream_run(DECODE, PREFILL, arrivals, "one stream", duration_s=1000.0)
    assert float(run.decode_step_s.mean()) == pytest.approx(
        fifo_cycle_s(decode_s=0.01, arrivals_per_s=10.0, prefill_s=0.05), rel=0.03
    )


def test_two_streams_by_hand() -> None:
    # Prefill is always there. Decode first: 0.4 of the cores and 0.9 of the memory are gone, so that prefill runs at
    # min(0.6 / 1, 0.1 / 0.2) = 0.5; a step takes 10 ms and up to one unit of 1 ms.
    arrivals = np.zeros(100)
    first = stream_run(DECODE, PREFILL, arrivals, "priority", duration_s=2.0)
    assert 0.010 - 1e-9 <= first.decode_step_s.min() <= first.decode_step_s.max() <= 0.011 + 1e-9
    # All alike: cores 1.4, memory 1.1: both at 1 / 1.4.
    alike = stream_run(DECODE, PREFILL, arrivals, "equal", duration_s=2.0)
    assert float(np.median(alike.decode_step_s)) == pytest.approx(0.014)
    assert alike.prefills_per_s == pytest.approx(20 / 1.4, rel=0.05)
    assert first.prefills_per_s < alike.prefills_per_s
    one = stream_run(DECODE, PREFILL, arrivals, "one stream", duration_s=2.0)
    assert one.prefills_per_s > alike.prefills_per_s
    for run in (first, alike, one):
        assert run.core_frac <= 1 + 1e-9
        assert len(run.prefill_s) + run.n_waiting == len(arrivals)


def test_decode_first_never_slows_decode_below_other_policies(engine_of: EngineOf) -> None:
    engine = engine_of("llama-3.2-1b", "a100-80gb-sxm")
    decode = tasks(engine, (decode_slice(8.0, 512.0, 64.0),), TILE)
    prompt = tasks(engine, (prefill_slice(1.0, 512.0, n_steps=1.0),), TILE)
    assert len(decode) == len(list(kernel_runs(engine, engine.stages[0], (decode_slice(8.0, 512.0, 64.0),), TILE))) + (
        15 * 9
    )
    arrivals = arrival_times(np.random.default_rng(0), arrivals_per_s=20.0, duration_s=0.5)
    steps = {
        policy: stream_run(decode, prompt, arrivals, policy, duration_s=0.5).decode_step_s.mean()
        for policy in ("one stream", "equal", "priority", "partition")
    }
    assert min(steps, key=lambda policy: steps[policy]) == "priority"


def test_streams_without_anything_to_run_are_refused() -> None:
    for decode, prefill, arrivals, seconds, share in (
        ((), PREFILL, (), 1.0, 0.5),
        (DECODE, (), (0.0,), 1.0, 0.5),
        (DECODE, PREFILL, (), 0.0, 0.5),
        (DECODE, PREFILL, (), 1.0, 1.0),
    ):
        with pytest.raises(SpecError, match="cannot be run"):
            stream_run(decode, prefill, arrivals, "equal", duration_s=seconds, decode_core_share=share)


def test_dispatch_command(run_cli: Run) -> None:
    data = answer(run_cli, "dispatch", "llama-2-7b", "ascend-910b2", "--isl", "512", "--batches", "1,4")
    assert [row["phase"] for row in data["rows"]] == ["prefill", "prefill", "decode", "decode"]
    assert data["page_bytes"] == 2**21
    assert any("no public figure" in text for text in data["assumed"])
    assert {row["kernel"] for row in data["kernels"]} >= {"qkv_proj", "attention", "lm_head"}
    assert all(row["n_units"] <= 24 * row["n_waves"] for row in data["kernels"])
    listed = run_cli("dispatch", "llama-2-7b", "ascend-910b2", "--batches", "1", "--kernels")
    assert "decode, batch 1" in listed.out
    assert len(run_cli("dispatch", "llama-2-7b", "ascend-910b2", "--kernels", "--csv").out.splitlines()) > 50
    shown = run_cli("dispatch", "llama-2-7b", "a100-80gb-sxm", "--page-size", "4KiB", "--tile", "256x128")
    assert shown.code == 0
    assert "256 x 128 outputs a core" in shown.out
    assert "more temporary memory" in shown.out
    rows = run_cli("dispatch", "qwen3-8b", "a100-80gb-sxm", "--csv", "--batches", "8").out.splitlines()
    assert len(rows) == 3


def test_streams_command(run_cli: Run) -> None:
    words = ("streams", "llama-3.2-1b", "ascend-910b2", "--batch", "4", "--isl", "256", "--osl", "16")
    data = answer(run_cli, *words, "--duration", "0.3")
    assert [row["policy"] for row in data["rows"]] == ["one stream", "equal", "priority", "partition"]
    assert data["stream_priorities"] == 1
    shown = run_cli(*words, "--duration", "0.1", "--prefill-rate", "1000")
    assert "cannot keep up" in shown.out
    assert "have no priorities" in shown.out
    assert run_cli(*words, "--duration", "0.1", "--csv").out.startswith("policy,")


@pytest.mark.parametrize(
    "words",
    [
        ("dispatch", "--batches", "0"),
        ("dispatch", "--batches", "a"),
        ("dispatch", "--tile", "128"),
        ("dispatch", "--tile", "0x128"),
        ("dispatch", "--page-size", "big"),
        ("dispatch", "--page-walk", "-1us"),
        ("streams", "--duration", "0"),
        ("streams", "--prefill-rate", "fast"),
        ("streams", "--decode-cores", "1"),
    ],
)
def test_bad_flags_are_refused(run_cli: Run, words: tuple[str, ...]) -> None:
    ran = run_cli(words[0], "llama-2-7b", "ascend-910b2", *words[1:])
    assert ran.code == 2
    assert "perfmodel:" in ran.err
