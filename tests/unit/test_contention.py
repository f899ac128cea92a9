"""Laws of instances that share a device: one is alone, more never make one faster, and nothing beats the roofline."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.contention import (
    CacheDemand,
    Demand,
    InstanceDemand,
    Sharing,
    asymptotic_cycle_s,
    contended,
    instance_demand,
    instances_per_device,
    most_throughput,
    serial_cycle_s,
)
from perfmodel.errors import SpecError
from perfmodel.estimate import Bound, leaf, quickest, refolded, repeated, slowest, total
from perfmodel.fit.laws.contention import CONTENTION_LAWS
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.step.instances import best_instances, fixed_work_demand, fixed_work_rows, instance_rows
from perfmodel.step.question import Question, case_of
from perfmodel.step.request import request_estimate
from perfmodel.work.memory import memory_plan

CATALOGUE = Catalogue((builtin_home(),))
SHARINGS: tuple[Sharing, ...] = get_args(Sharing)
NAMES = ("cores", "memory", "link", "media")
TIMES = st.floats(0.0, 10.0)


def demand(
    *pairs: tuple[float, float], own: float, launch: float = 0.0, cache: CacheDemand | None = None
) -> InstanceDemand:
    """Return a demand of (busy, visit) pairs for cores, memory, link and media in turn."""
    shared = tuple(Demand(n, max(b, v), v, Bound.COMPUTE) for n, (b, v) in zip(NAMES, pairs, strict=False))
    return InstanceDemand(shared, own, launch, cache)


@st.composite
def demands(draw: st.DrawFn) -> InstanceDemand:
    pairs = draw(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=4))
    own, launch = draw(st.floats(1e-3, 10.0)), draw(TIMES)
    made = demand(*pairs, own=own, launch=launch)
    # What works beside the rest works no longer than the whole cycle.
    return replace(made, demands=tuple(replace(d, busy_s=min(d.busy_s, made.cycle_s)) for d in made.demands))


@pytest.mark.parametrize("sharing", SHARINGS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(one=demands())
def test_laws_of_sharing(sharing: Sharing, one: InstanceDemand) -> None:
    """Alone exactly; slower with each further one; between the bounds; throughput within the roofline."""
    found = [contended(one, n, sharing=sharing) for n in range(1, 9)]
    cycles = [float(f.cycle_s) for f in found]
    assert cycles[0] == pytest.approx(float(one.cycle_s), rel=1e-12)
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(cycles))
    roofline = 1 / max(float(one.busiest_s), 1e-300)
    for f in found:
        n = f.n_instances
        assert float(f.cycles_per_s) <= roofline * (1 + 1e-9)
        assert float(asymptotic_cycle_s(one, n, sharing=sharing)) <= float(f.cycle_s) * (1 + 1e-12)
        assert float(f.cycle_s) <= float(serial_cycle_s(one, n, sharing=sharing)) * (1 + 1e-12)
        assert float(f.speed_frac) * n >= 1 - 1e-9
        assert refolded(f.cycle) == pytest.approx(float(f.cycle_s), rel=1e-12)
        assert float(f.stretched_s(one)) == pytest.approx(float(f.cycle_s), rel=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(one=demands())
def test_throughput_rises_and_each_further_instance_costs_no_less(one: InstanceDemand) -> None:
    """With fixed demands n / T(n) never falls, and T(n+1) - T(n) never does either."""
    cycles = [float(contended(one, n).cycle_s) for n in range(1, 17)]
    rates = [n / cycle for n, cycle in enumerate(cycles, start=1)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(rates))
    steps = np.diff(cycles)
    assert np.all(np.diff(steps) >= -1e-9 * cycles[-1])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(one=demands(), n=st.integers(1, 8))
def test_interleaving_beats_fixed_parts_and_time_slices(one: InstanceDemand, n: int) -> None:
    mixed = float(contended(one, n).cycle_s)
    assert mixed <= float(contended(one, n, sharing="partitioned").cycle_s) * (1 + 1e-12)
    assert float(contended(one, n, sharing="time_sliced").cycle_s) >= mixed * (1 - 1e-12)


def test_one_queue_by_hand() -> None:
    """Own 1, visit 3. n = 2: Q(1) = 3/4, R = 3 x 1.75 = 5.25, T = 6.25. Partitioned: 1 + 2 x 3 = 7."""
    one = demand((3.0, 3.0), own=1.0)
    assert contended(one, 2).cycle_s == pytest.approx(6.25)
    assert contended(one, 2, sharing="partitioned").cycle_s == pytest.approx(7.0)


def simulated_cycles_per_s(visits: list[float], own: float, n_instances: int, n_cycles: int) -> float:
    """Return the throughput of a closed network played event by event: exponential times, first come first served."""
    rng = np.random.default_rng(5)
    free_at = [0.0] * len(visits)
    events = [(float(rng.exponential(own)), i, 0) for i in range(n_instances)]
    heapify(events)
    done, now = 0, 0.0
    while done < n_cycles:
        now, instance, stage = heappop(events)
        if stage == len(visits):
            done += 1
            heappush(events, (now + float(rng.exponential(own)), instance, 0))
            continue
        free_at[stage] = max(free_at[stage], now) + float(rng.exponential(visits[stage]))
        heappush(events, (free_at[stage], instance, stage + 1))
    return done / now


@pytest.mark.parametrize("n_instances", [1, 3, 6])
def test_mean_values_are_those_of_a_simulated_network(n_instances: int) -> None:
    """30,000 cycles with exponential times: a standard error of about 1 / sqrt(30,000) = 0.6 % of the throughput."""
    visits, own = [2.0, 1.0], 4.0
    exact = contended(demand(*((v, v) for v in visits), own=own), n_instances)
    played = simulated_cycles_per_s(visits, own, n_instances, 30_000)
    assert played == pytest.approx(float(exact.cycles_per_s), rel=0.02)


def test_equal_resources_give_the_hyperbolic_law() -> None:
    """m = 4 resources of 1: T(n) = 4 (1 + (n - 1) / 4) = n + 3; the fitted law has n0 = m."""
    one = demand((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), own=0.0)
    law = next(law for law in CONTENTION_LAWS if law.name == "contention_hyperbolic")
    n = np.arange(1.0, 9.0)
    speeds = [float(contended(one, int(k)).speed_frac) for k in n]
    np.testing.assert_allclose(speeds, 4.0 / (n + 3.0), rtol=1e-12)
    np.testing.assert_allclose(law.value((n,), (1.0, 4.0)), speeds, rtol=1e-12)


def test_hidden_work_counts_once_it_is_the_limit() -> None:
    """Cores work 4 of 10 s behind something else: with 3 instances 12 s are needed, however little they queue."""
    one = demand((4.0, 0.0), own=10.0)
    assert [float(contended(one, n).cycle_s) for n in (1, 2, 3)] == [10.0, 10.0, 12.0]


def test_half_of_the_cores_as_a_vendor_guide_has_it() -> None:
    """An operator takes 100 us on 24 cores and 150 us on 12: 50 us do not shrink. Two at once on 12 each: 75 us each.

    Partitioned, 50 + 2 x 50 = 150 us for both. Freely interleaved it would be between 100 and 150.
    """
    one = demand((50e-6, 50e-6), own=50e-6)
    parted = contended(one, 2, sharing="partitioned")
    assert parted.cycle_s == pytest.approx(150e-6)
    assert 1 / parted.cycles_per_s == pytest.approx(75e-6)
    assert 100e-6 <= float(contended(one, 2).cycle_s) <= 150e-6


def test_a_time_sliced_device_loses_the_gaps_between_kernels() -> None:
    """Cores 4, memory 2, launches 2, own 2. Sliced the device is 8 of 10: at most 1/8 a second instead of 1/4."""
    one = demand((4.0, 4.0), (2.0, 2.0), own=2.0, launch=2.0)
    many = 60
    assert float(contended(one, many, sharing="time_sliced").cycles_per_s) == pytest.approx(1 / 8, rel=0.01)
    assert float(contended(one, many).cycles_per_s) == pytest.approx(1 / 4, rel=0.01)


def test_a_full_cache_lowers_the_throughput_of_all() -> None:
    """Cache 100, working set 60 read once a cycle at 0.1 s a byte. Two keep 100/120 of each: 10 bytes, 1 s, lost."""
    cache = CacheDemand(100.0, 60.0, 60.0, 0.1)
    assert cache.kept_frac(1) == 1.0
    assert cache.lost_s(2) == pytest.approx(1.0)
    one = demand((1.0, 1.0), (4.0, 4.0), own=0.0, cache=cache)
    assert contended(one, 1).cycle_s == pytest.approx(5.0)
    rates = [float(contended(one, n).cycles_per_s) for n in range(1, 9)]
    assert max(rates) > rates[-1]
    assert most_throughput(one, n_most=8) is not None
    chosen = most_throughput(one, n_most=8)
    assert chosen is not None
    assert float(chosen.cycles_per_s) == max(rates)


def test_the_best_number_keeps_the_limit_and_is_the_smallest() -> None:
    """Own 6, visit 2: hidden queues aside the device is full from 4 on; at 10 s a cycle only 2 are allowed."""
    one = demand((2.0, 2.0), own=6.0)
    allowed = [n for n in range(1, 9) if contended(one, n).cycle_s <= 10.0]
    chosen = most_throughput(one, n_most=8, limit_s=10.0)
    assert chosen is not None
    assert chosen.n_instances == max(allowed)
    assert most_throughput(one, n_most=8, limit_s=7.0) is None
    full = demand((5.0, 0.0), own=5.0)
    best = most_throughput(full, n_most=8)
    assert best is not None
    assert best.n_instances == 1


def test_arrays_and_numbers_agree() -> None:
    own, visit = np.array([0.5, 1.0, 2.0]), np.array([1.0, 3.0, 0.1])
    many = InstanceDemand((Demand("memory", visit, visit, Bound.WEIGHT_READ),), own)
    for n in (1, 2, 5):
        for sharing in SHARINGS:
            single = [
                float(contended(demand((v, v), own=o), n, sharing=sharing).cycle_s)
                for o, v in zip(own.tolist(), visit.tolist(), strict=True)
            ]
            np.testing.assert_allclose(np.asarray(contended(many, n, sharing=sharing).cycle_s), single, rtol=1e-12)


def test_demands_are_read_from_a_tree() -> None:
    """Twice max(compute 3, weights 2) and launch 1, then host 4: cores 6, launches 2, own 4; memory works 4, hidden."""
    kernel = total(
        "kernel",
        (
            leaf("launch", 1.0, bound=Bound.LAUNCH),
            slowest("busy", (leaf("c", 3.0, bound=Bound.COMPUTE), leaf("w", 2.0, bound=Bound.WEIGHT_READ))),
        ),
    )
    ways = quickest("message", (leaf("ring", 5.0, bound=Bound.LINK), leaf("direct", 2.0, bound=Bound.LINK)))
    one = instance_demand(total("step", (repeated("layers", kernel, 2.0), ways, leaf("host", 4.0, bound=Bound.HOST))))
    found = {d.resource: (d.busy_s, d.visit_s) for d in one.demands}
    assert found == {"cores": (6.0, 6.0), "memory": (4.0, 0.0), "link": (2.0, 2.0)}
    assert (one.own_s, one.launch_s, one.cycle_s) == (4.0, 2.0, 14.0)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_one_instance_is_the_step_model(sharing: Sharing) -> None:
    question = Question(
        model="llama-3.1-8b", hardware="a100-80gb-sxm", batch=8.0, input_tokens=512.0, output_tokens=64.0
    )
    case = case_of(CATALOGUE, question)
    rows = instance_rows(case, 3, sharing=sharing)
    budget = float(memory_plan(case.memory).limits.max_num_batched_tokens)
    one = request_estimate(case.engine, batch=8.0, input_tokens=512.0, output_tokens=64.0, token_budget=budget)
    for ours, theirs in ((rows[0].cycle_s, one.e2e), (rows[0].ttft_s, one.ttft), (rows[0].tpot_s, one.tpot)):
        assert ours == pytest.approx(float(theirs.value), rel=1e-9)
    for row in rows:
        assert row.ttft_s is not None
        assert row.tpot_s is not None
        assert row.ttft_s + 63 * row.tpot_s == pytest.approx(row.cycle_s, rel=1e-9)


def test_copies_of_weights_must_fit() -> None:
    """16 GB of weights and 0.9 x 79.25 GiB: four copies have 17.8 GiB each and fit, five have 14.3 and do not."""
    question = Question(
        model="llama-3.1-8b", hardware="a100-80gb-sxm", batch=1.0, input_tokens=512.0, output_tokens=64.0
    )
    rows = instance_rows(case_of(CATALOGUE, question), 5)
    assert [row.fits for row in rows] == [True, True, True, True, False]
    assert best_instances(rows) is not None
    assert best_instances(rows, limit_s=1e-6) is None


def test_more_instances_find_less_in_the_last_cache() -> None:
    """Each sees an n-th of the L2: the same instance alone on such a device takes no less, and a prompt takes more."""
    question = Question(
        model="qwen2.5-1.5b", hardware="ascend-910b2", batch=4.0, input_tokens=1024.0, output_tokens=64.0
    )
    rows = instance_rows(case_of(CATALOGUE, question), 6)
    best = [row.best_cycle_s for row in rows]
    assert best == sorted(best)
    assert best[2] > rows[0].cycle_s  # nothing is full yet, and still the cycle is longer than alone
    for row in rows:
        assert row.best_cycle_s <= row.cycle_s * (1 + 1e-12) <= row.worst_cycle_s * (1 + 1e-9)
        assert row.speed_frac == pytest.approx(rows[0].cycle_s / row.cycle_s)


def test_instances_spread_evenly() -> None:
    """Sixteen on eight devices are two on each; four share nothing."""
    assert [instances_per_device(n, 8) for n in (1, 4, 8, 9, 12, 16)] == [1, 1, 1, 2, 2, 2]
    work, device = CATALOGUE.fixed_work("resnet-50"), CATALOGUE.device("ascend-910b2")
    assert work is not None
    calibrated = CATALOGUE.calibration("prior").for_device(device)
    one = fixed_work_demand(work, calibrated, batch=16.0)
    rows = fixed_work_rows(one, device, 16, batch=16.0, instance_bytes=1e9, n_devices=8)
    assert rows[3].speed_frac == 1.0
    assert rows[3].items_per_s == pytest.approx(4 * rows[0].items_per_s)
    # Twelve: four devices with two, four with one.
    two = rows[15].items_per_s / 8
    assert rows[11].items_per_s == pytest.approx(4 * two + 4 * rows[0].items_per_s)


def test_media_units_show_once_they_are_slower() -> None:
    """14,336 images of 1920 x 1080 a second: 16 of them take 1.116 ms, more than the network."""
    work, device = CATALOGUE.fixed_work("resnet-50"), CATALOGUE.device("ascend-910b2")
    assert work is not None
    calibrated = CATALOGUE.calibration("prior").for_device(device)
    free = fixed_work_demand(work, calibrated, batch=16.0)
    small, large = (fixed_work_demand(work, calibrated, batch=16.0, n_pixels=n) for n in (500.0 * 375, 1920.0 * 1080))
    assert small.cycle_s == pytest.approx(free.cycle_s)
    assert large.cycle_s == pytest.approx(16 / 14336)
    with pytest.raises(SpecError, match="no units that decode"):
        fixed_work_demand(
            work, CATALOGUE.calibration("prior").for_device(CATALOGUE.device("l4")), batch=1.0, n_pixels=1.0
        )


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(SpecError):
        contended(demand((1.0, 1.0), own=1.0), 0)
    with pytest.raises(SpecError):
        instances_per_device(0, 8)
    piped = Question(model="llama-3.1-8b", hardware="dgx-a100", n_devices=2)
    piped = replace(piped, deployment=replace(piped.deployment, pp=2, tp=1))
    with pytest.raises(SpecError, match="pipeline"):
        instance_rows(case_of(CATALOGUE, piped), 2)
    with pytest.raises(SpecError, match="counted"):
        instance_rows(case_of(CATALOGUE, Question(model="llama-3.1-8b", hardware="a100-80gb-sxm")), 0)


def test_the_command(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    asked = ("instances", "llama-3.1-8b", "a100-80gb-sxm", "--batch", "8", "--osl", "64", "--instances", "1..5")
    ran = run_cli(*asked, "--json", "--latency-limit", "25", "--latency-of", "tpot", "--plot", str(tmp_path / "i.png"))
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    chosen = document["rows"][document["best_n_instances"] - 1]
    assert chosen["tpot_s"] <= 0.025
    assert all(
        r["items_per_s"] <= chosen["items_per_s"] for r in document["rows"] if r["fits"] and r["tpot_s"] <= 0.025
    )
    assert (tmp_path / "i.png").stat().st_size > 10_000
    table = run_cli(*asked)
    assert "Best: " in table.out
    assert "do not fit" in table.out
    assert run_cli(*asked, "--csv").out.count("\n") == 6
    assert "queue of the others" in run_cli(*asked, "--explain").out
    assert json.loads(run_cli(*asked, "--explain", "--json").out)["explanation"]


def test_media_units_are_shown(run_cli: Callable[..., Any]) -> None:
    assert "14,336/s" in run_cli("hardware", "show", "ascend-910b2").out


def test_the_command_for_samples(run_cli: Callable[..., Any]) -> None:
    ran = run_cli("instances", "resnet-50", "ascend-910b2", "-n", "8", "--instances", "16", "--sharing", "partitioned")
    assert ran.code == 0, ran.err
    assert "Best: 16 instances" in ran.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--instances", "2..4"), 2, "1..N"),
        (("--instances", "1..900"), 2, "--instances"),
        (("--instances", "1.5"), 2, "--instances"),
        (("--sharing", "luck"), 2, "interleaved"),
        (("--latency-of", "p99"), 2, "ttft"),
        (("--latency-limit", "-1"), 2, "--latency-limit"),
        (("--latency-limit", "0.001"), 1, "no number of instances"),
        (("--image-pixels", "100"), 2, "no images"),
    ],
)
def test_the_command_refuses(run_cli: Callable[..., Any], words: tuple[str, ...], code: int, says: str) -> None:
    ran = run_cli("instances", "llama-3.1-8b", "a100-80gb-sxm", *words)
    assert ran.code == code
    assert says in ran.err
    assert run_cli("instances", "resnet-50", "ascend-910b2", "--latency-of", "tpot").code == 2
