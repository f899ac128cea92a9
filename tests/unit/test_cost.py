"""Prices: kernels, messages and host time by hand, and what no law may break."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.host import host_launch_time, host_time, offload_time
from perfmodel.cost.kernel import KernelPrices
from perfmodel.cost.network import NetworkPrices
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.estimate import Bound, Coefficient, Estimate, Rule, bound_shares
from perfmodel.specs.calibration import Calibration, Coef, CollectiveFit, KernelFit
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.system import System
from perfmodel.work.kernel import Collective, Message, Work

START_S, SHARE = 10e-6, 0.8


def calibration(status: Any = "fit", **kernel: float) -> Calibration:
    fit = {"launch_s": 5e-6, "compute_frac": 0.5, "memory_frac": 0.8} | kernel
    return Calibration(
        name="mine",
        status=status,
        kernels={"matmul": KernelFit.model_validate({name: {"value": value} for name, value in fit.items()})},
        collectives={"any": CollectiveFit(start_s=Coef(value=START_S), bandwidth_frac=Coef(value=SHARE))},
    )


@pytest.fixture(scope="session")
def a100(catalogue: Catalogue) -> Device:
    return catalogue.device("a100-80gb-sxm")


def priced(device: Device, work: Work, status: str = "fit", **kernel: float) -> Estimate:
    return KernelPrices(calibration(status, **kernel).for_device(device)).time(work)


def matmul(rows: float, **changes: Any) -> Work:
    """4096 x 4096 in bf16."""
    work = Work(
        "w", "matmul/16bit", "bf16", flop=rows * 2 * 4096**2, weight_bytes=2.0 * 4096**2, io_bytes=rows * 2 * 8192,
        rows=rows,
    )  # fmt: skip
    return work._replace(**changes)


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_a_kernel_bound_by_memory_by_hand(a100: Device) -> None:
    """One row: 33,554,432 + 16,384 bytes at 0.8 of 2.039 TB/s, beside which 0.2 us of arithmetic vanishes."""
    found = priced(a100, matmul(1.0))
    seconds = (2 * 4096**2 + 2 * 8192) / (0.8 * a100.dram_bytes_per_s)
    assert found.value == pytest.approx(5e-6 + seconds, rel=1e-14)
    assert max(bound_shares(found).items(), key=lambda pair: float(pair[1]))[0] is Bound.WEIGHT_READ


def test_a_kernel_bound_by_arithmetic_by_hand(a100: Device) -> None:
    found = priced(a100, matmul(8192.0))
    assert found.value == pytest.approx(5e-6 + 8192 * 2 * 4096**2 / (0.5 * 312e12), rel=1e-12)
    assert max(bound_shares(found).items(), key=lambda pair: float(pair[1]))[0] is Bound.COMPUTE


def test_the_knee_is_soft_and_above_both(a100: Device) -> None:
    compute = 300 * 2 * 4096**2 / (0.5 * 312e12)
    memory = (2 * 4096**2 + 300 * 2 * 8192) / (0.8 * a100.dram_bytes_per_s)
    found = priced(a100, matmul(300.0), knee=2.0)
    assert found.value == pytest.approx(5e-6 + (compute**2 + memory**2) ** 0.5, rel=1e-12)
    assert found.value > priced(a100, matmul(300.0)).value


def test_few_rows_cost_a_whole_tile(a100: Device) -> None:
    """A matrix engine works on 16 rows at least: one row takes the arithmetic of 16."""
    one, sixteen = (priced(a100, matmul(rows), min_rows=16.0).find("compute").value for rows in (1.0, 16.0))
    assert one == pytest.approx(sixteen, rel=1e-12)
    assert priced(a100, matmul(17.0), min_rows=16.0).find("compute").value > sixteen
    assert priced(a100, matmul(0.0), min_rows=16.0).find("compute").value == 0.0


def test_two_launches_take_twice_the_time(a100: Device) -> None:
    assert priced(a100, matmul(1.0, n_launches=2.0)).find("launch").value == pytest.approx(10e-6)


def test_a_rate_that_the_device_lacks_is_refused(a100: Device) -> None:
    with pytest.raises(SpecError, match="has no fp8 matrix rate"):
        priced(a100, matmul(1.0, dtype="fp8"))


def test_the_bound_frees_what_fits_in_the_cache(a100: Device) -> None:
    """40 MB of L2 on an A100: a small matrix costs no traffic, a large one its bytes less the cache."""
    frac = {"launch_s": 0.0, "compute_frac": 1.0, "memory_frac": 1.0}
    assert a100.l2_bytes == pytest.approx(40e6, rel=0.05)
    small = matmul(1.0)
    assert priced(a100, small, "bound", **frac).find("uncached").value == 0.0
    large = small._replace(weight_bytes=1e9)
    missed = (1e9 + 2 * 8192 - a100.l2_bytes) / a100.dram_bytes_per_s
    assert priced(a100, large, "bound", **frac).find("uncached").value == pytest.approx(missed, rel=1e-12)


def test_leaves_state_what_they_are_made_of(a100: Device) -> None:
    for node in priced(a100, matmul(8.0, kv_bytes=1e6), knee=2.0).nodes():
        if node.rule is Rule.LEAF:
            assert node.law.formula
            assert node.inputs
            assert node.coefficients


@given(
    st.floats(1.0, 1e5), st.floats(0.0, 1e9), st.floats(0.0, 1e9), st.floats(1.0, 4.0), st.floats(1.0, 4.0),
    st.sampled_from([None, 1.0, 1.3, 2.0, 3.0]),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_time_never_falls_with_work(
    a100: Device, rows: float, weights: float, kv: float, more: float, much_more: float, knee: float | None
) -> None:
    options = {"min_rows": 16.0} | ({"knee": knee} if knee else {})
    prices = KernelPrices(calibration("fit", **options).for_device(a100))
    base = matmul(rows, weight_bytes=weights, kv_bytes=kv)
    time = prices.time(base).value
    for changed in (
        matmul(rows * more, weight_bytes=weights, kv_bytes=kv),
        base._replace(weight_bytes=weights * much_more),
        base._replace(kv_bytes=kv * much_more),
        base._replace(io_bytes=np.asarray(base.io_bytes).item() * more),
        base._replace(n_launches=base.n_launches + 1),
    ):
        assert prices.time(changed).value >= time * (1 - 1e-12)


# --- messages --------------------------------------------------------------------------------------------------------


def net(system: System, device: Device, status: str = "fit") -> NetworkPrices:
    return NetworkPrices(system, calibration(status).for_device(device))


def wired(device: Device, *levels: tuple[str, int, float], latency_s: float = 2e-6, reduces: bool = False) -> System:
    """Return a system with fabrics (topology, devices, bytes per second)."""
    fabrics = [
        {
            "name": f"level{i}", "kind": "nvlink", "topology": topology, "n_devices": n, "latency_class": "p2p",
            "bandwidth_per_direction": {"value": rate, "source": "test"},
            "latency": {"value": latency_s, "source": "test"}, "reduces_in_switch": reduces,
        }
        for i, (topology, n, rate) in enumerate(levels)
    ]  # fmt: skip
    return System.model_validate(
        {
            "name": "box", "title": "Box", "device": device.name, "n_devices": levels[-1][1],
            "sources": {"test": "made up"}, "fabrics": fabrics,
        }
    )  # fmt: skip


def message(op: Collective, n_bytes: float, n_ranks: int, stride: int = 1) -> Message:
    return Message("m", op, n_bytes, n_ranks, stride)


S, W, L = 64e6, 100e9, 2e-6


@pytest.mark.parametrize("topology", ["switch", "full_mesh", "ring", "tree"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_ring_all_reduce_by_hand(a100: Device, topology: str, n: int) -> None:
    """Start, 2 (n-1) steps of latency, 2 (n-1)/n of the buffer. In a full mesh of 8 one link carries a seventh of W."""
    found = net(wired(a100, (topology, 8, W)), a100).time(message("all_reduce", S, n)).find("ring")
    link = W / 7 if topology == "full_mesh" else W
    assert found.value == pytest.approx(START_S + 2 * (n - 1) * L + 2 * (n - 1) / n * S / (SHARE * link), rel=1e-12)


def test_two_shot_and_one_shot_by_hand(a100: Device) -> None:
    prices = net(wired(a100, ("switch", 8, W)), a100)
    large, small = prices.time(message("all_reduce", S, 4)), prices.time(message("all_reduce", 1e3, 4))
    assert large.find("two_shot").value == pytest.approx(START_S + 2 * L + 1.5 * S / (SHARE * W), rel=1e-12)
    assert large.find("one_shot").value == pytest.approx(START_S + L + 3 * S / (SHARE * W), rel=1e-12)
    assert large.value == large.find("two_shot").value
    assert small.value == small.find("one_shot").value


def test_a_mesh_uses_as_many_links_as_it_has_peers(a100: Device) -> None:
    """4 of 8 ranks in a full mesh: 3 of 7 links, so 3/7 of the bandwidth."""
    found = net(wired(a100, ("full_mesh", 8, W)), a100).time(message("all_reduce", S, 4)).find("two_shot")
    assert found.value == pytest.approx(START_S + 2 * L + 1.5 * S / (SHARE * W * 3 / 7), rel=1e-12)


def test_rings_and_trees_have_no_shots(a100: Device) -> None:
    for topology in ("ring", "tree"):
        found = net(wired(a100, (topology, 8, W)), a100).time(message("all_reduce", 1e3, 8))
        assert [part.name for part in found.parts] == ["ring"]


@pytest.mark.parametrize(
    ("op", "topology", "steps", "sent"),
    [
        ("all_gather", "switch", 1, 7 / 8),
        ("reduce_scatter", "switch", 1, 7 / 8),
        ("all_gather", "ring", 7, 7 / 8),
        ("reduce_scatter", "tree", 7, 7 / 8),
        ("all_to_all", "switch", 1, 7 / 8),
    ],
)
def test_other_collectives_by_hand(a100: Device, op: Collective, topology: str, steps: int, sent: float) -> None:
    found = net(wired(a100, (topology, 8, W)), a100).time(message(op, S, 8))
    assert found.value == pytest.approx(START_S + steps * L + sent * S / (SHARE * W), rel=1e-12)


def test_point_to_point_by_hand(a100: Device) -> None:
    for topology, rate in (("switch", W), ("full_mesh", W / 7)):
        found = net(wired(a100, (topology, 8, W)), a100).time(message("point_to_point", S, 2))
        assert found.value == pytest.approx(START_S + L + S / (SHARE * rate), rel=1e-12)


def test_all_reduce_over_two_levels_by_hand(a100: Device) -> None:
    """16 ranks in nodes of 8: scatter and gather 7/8 inside, and an eighth of the buffer between two nodes."""
    system = wired(a100, ("switch", 8, W), ("switch", 32, W / 10))
    found = net(system, a100).time(message("all_reduce", S, 16))
    inside = START_S + L + 7 / 8 * S / (SHARE * W)
    shard = S / 8
    between = min(START_S + L + shard / (SHARE * W / 10), START_S + 2 * L + 2 * 0.5 * shard / (SHARE * W / 10))
    assert found.value == pytest.approx(2 * inside + between, rel=1e-12)
    assert [part.name for part in found.parts] == ["reduce_scatter_inside", "all_reduce_level1", "all_gather_inside"]


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_an_all_reduce_is_a_scatter_and_a_gather(a100: Device, n: int) -> None:
    """On one level and over two: what is sent agrees, whichever way it is counted."""
    system = wired(a100, ("switch", 8, W), ("switch", 32, W / 10), latency_s=0.0)
    prices = NetworkPrices(system, calibration().for_device(a100))
    sent = {
        op: float(np.asarray(prices.time(message(op, 1e15, n)).value))
        for op in ("all_reduce", "reduce_scatter", "all_gather")
    }
    assert sent["all_reduce"] == pytest.approx(sent["reduce_scatter"] + sent["all_gather"], rel=1e-6)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"])
def test_one_rank_is_free(a100: Device, op: Collective) -> None:
    assert NetworkPrices(None, calibration().for_device(a100)).time(message(op, S, 1)).value == 0.0
    rows = np.array([1.0, 2.0])
    found = NetworkPrices(None, calibration().for_device(a100)).time(Message("m", op, rows, 1))
    assert np.array_equal(np.asarray(found.value), [0.0, 0.0])


def test_ranks_that_lie_apart_use_the_outer_wires(a100: Device) -> None:
    system = wired(a100, ("switch", 8, W), ("switch", 32, W / 10))
    prices = net(system, a100)
    near, far = (prices.time(message("point_to_point", S, 2, stride)) for stride in (1, 8))
    assert near.value == pytest.approx(START_S + L + S / (SHARE * W), rel=1e-12)
    assert far.value == pytest.approx(START_S + L + S / (SHARE * W / 10), rel=1e-12)


def test_no_wire_is_infeasible(a100: Device) -> None:
    with pytest.raises(SpecError, match="is wired is not known"):
        NetworkPrices(None, calibration().for_device(a100)).time(message("all_reduce", S, 2))
    with pytest.raises(InfeasibleError, match="at least 16"):
        net(wired(a100, ("switch", 8, W)), a100).time(message("all_reduce", S, 16))
    with pytest.raises(InfeasibleError):
        net(wired(a100, ("switch", 8, W)), a100).time(message("point_to_point", S, 2, stride=8))


def test_the_switch_adds_in_the_bound_only(a100: Device) -> None:
    system = wired(a100, ("switch", 8, W), reduces=True)
    assert [p.name for p in net(system, a100).time(message("all_reduce", S, 8)).parts] == [
        "ring",
        "two_shot",
        "one_shot",
    ]
    bound = net(system, a100, "bound").time(message("all_reduce", S, 8))
    assert bound.find("in_switch").value == pytest.approx(START_S + S / (SHARE * W), rel=1e-12)
    assert bound.value == bound.find("in_switch").value


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"])
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_nothing_beats_the_bound_and_time_grows(a100: Device, op: Collective, n: int) -> None:
    system = wired(a100, ("switch", 8, W), ("switch", 32, W / 10), reduces=True)
    sizes = np.array([1.0, 1e3, 1e6, 1e9])
    fit, ideal, bound = (
        np.asarray(net(system, a100, status).time(Message("m", op, sizes, n)).value)
        for status in ("fit", "ideal", "bound")
    )
    assert np.all(np.diff(fit) > 0)
    assert np.all(bound <= ideal)
    assert np.all(ideal <= fit)
    for size, seconds in zip(sizes, fit, strict=True):
        assert net(system, a100).time(message(op, float(size), n)).value == pytest.approx(seconds, rel=1e-12)


# --- host ------------------------------------------------------------------------------------------------------------


def test_host_time_by_hand(catalogue: Catalogue) -> None:
    runtime = catalogue.runtime("vllm-eager")
    found = host_time(runtime, n_layers=32.0, n_seqs=10.0)
    by_hand = runtime.host_per_step.value + 32 * runtime.host_per_layer.value + 10 * runtime.host_per_sequence.value
    assert found.value == pytest.approx(by_hand, rel=1e-14)
    assert set(bound_shares(found)) == {Bound.HOST}
    assert host_launch_time(runtime, 300.0).value == pytest.approx(300 * runtime.host_launch.value)


def test_offloaded_bytes_cross_the_host_link() -> None:
    """10 GiB over 0.8 of 32 GB/s."""
    found = offload_time(10 * 2**30, bytes_per_s=32e9, bandwidth_frac=Coefficient("pcie", 0.8, 0.1))
    assert found.value == pytest.approx(10 * 2**30 / 25.6e9, rel=1e-14)
    assert found.bound is Bound.LINK


def test_the_bound_frees_what_the_outermost_cache_holds(catalogue: Catalogue) -> None:
    mi300x, a100 = catalogue.device("mi300x"), catalogue.device("a100-80gb-sxm")
    assert mi300x.last_cache_bytes > mi300x.l2_bytes
    assert a100.last_cache_bytes == a100.l2_bytes


def test_fp16_accumulation_is_priced_by_its_own_peak(catalogue: Catalogue) -> None:
    """An RTX 4090 does 330.3 Tflop/s adding up in fp16 and 165.2 in fp32; an A100 has one rate for both."""
    card, a100 = catalogue.device("rtx-4090"), catalogue.device("a100-80gb-sxm")
    assert card.peak_flop_per_s("fp16/fp16") == pytest.approx(330.3e12)
    assert card.peak_flop_per_s("fp16") == pytest.approx(165.2e12)
    assert a100.peak_flop_per_s("fp16/fp16") == a100.peak_flop_per_s("fp16")
