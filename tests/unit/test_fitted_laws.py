"""Laws that only fits use: scaled activations, operands in the cache, grouped heads, rows on one core, NCCL, shots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.kernel import KernelPrices, cached_share
from perfmodel.cost.network import NetworkPrices
from perfmodel.estimate import Estimate, relative_sd
from perfmodel.measure.operator_work import operator_rows
from perfmodel.measure.row import Row
from perfmodel.measure.table import table_from_rows
from perfmodel.specs.calibration import Calibration, Coef, CollectiveFit, FitRecord, KernelFit
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.system import System
from perfmodel.work.elementwise import Elementwise
from perfmodel.work.kernel import Collective, Message, Work

FRAC = {"launch_s": 1e-6, "compute_frac": 0.5, "memory_frac": 0.8}


def calibration(link: dict[str, float] | None = None, **kernel: float) -> Calibration:
    fit = KernelFit.model_validate({name: {"value": value} for name, value in (FRAC | kernel).items()})
    net = {name: {"value": value} for name, value in (link or {"start_s": 1e-5, "bandwidth_frac": 0.8}).items()}
    classes = ("matmul", "elementwise", "attention")
    return Calibration(
        name="mine",
        status="fit",
        kernels=dict.fromkeys(classes, fit),
        collectives={"any": CollectiveFit.model_validate(net)},
    )


@pytest.fixture(scope="session")
def device(catalogue: Catalogue) -> Device:
    return catalogue.device("rtx-4090")  # 72 MB of L2, 128 cores


def priced(device: Device, work: Work, **kernel: float) -> Estimate:
    return KernelPrices(calibration(None, **kernel).for_device(device)).time(work)


# --- kernels ---------------------------------------------------------------------------------------------------------

SCALED = Work("w", "matmul/fp8", "fp8", flop=0.0, weight_bytes=1e6, io_bytes=1e6, quantise_bytes=3e6)


def test_scaled_activations_count_once_in_either_way(device: Device) -> None:
    """Without a rate of their own 5e6 bytes at 0.8 of the bandwidth; with one 2e6 at 0.8 and then 3e6 at 0.4."""
    bandwidth = device.dram_bytes_per_s
    assert SCALED.n_bytes == 5e6
    assert priced(device, SCALED).value == pytest.approx(1e-6 + 5e6 / (0.8 * bandwidth))
    apart = priced(device, SCALED, quantise_frac=0.4)
    assert apart.value == pytest.approx(1e-6 + 2e6 / (0.8 * bandwidth) + 3e6 / (0.4 * bandwidth))
    assert apart.find("quantise").value == pytest.approx(3e6 / (0.4 * bandwidth))


def test_plain_matmuls_have_no_scaling(device: Device) -> None:
    plain = SCALED._replace(quantise_bytes=None)
    assert priced(device, plain, quantise_frac=0.4).value == priced(device, plain).value


def test_operands_in_the_cache_are_read_quicker(device: Device) -> None:
    """Twice as fast well below its capacity, no faster beyond it; several launches fit one by one."""
    cache = device.last_cache_bytes
    for n_bytes, n_launches, factor in ((0.5 * cache, 1.0, 0.5), (2.0 * cache, 1.0, 1.0), (2.0 * cache, 4.0, 0.5)):
        work = Work("w", "elementwise", "fp32", io_bytes=n_bytes, n_launches=n_launches, engine="vector")
        moved = priced(device, work, cache_speedup=2.0).value - n_launches * 1e-6
        assert moved == pytest.approx(factor * n_bytes / (0.8 * device.dram_bytes_per_s))


@given(st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.floats(1.0, 50.0))
@settings(max_examples=100, deadline=None)
def test_time_never_falls_around_the_capacity(n_bytes: float, more: float, speedup: float) -> None:
    saving = 1.0 - 1.0 / speedup
    small, large = (b * (1.0 - saving * cached_share(b, 1.0)) for b in (n_bytes, n_bytes + more))
    assert large >= small * (1 - 1e-12)
    assert cached_share(np.array([n_bytes]), 1.0)[0] == pytest.approx(cached_share(n_bytes, 1.0))  # type: ignore[index]


def test_grouped_heads_start_later(device: Device) -> None:
    alone, grouped = (
        Work("a", "attention/decode", "bf16", kv_bytes=1e6, grouped_share=grouped_share) for grouped_share in (0.0, 1.0)
    )
    late = priced(device, grouped, grouped_start_s=5e-5).value - priced(device, alone, grouped_start_s=5e-5).value
    assert late == pytest.approx(5e-5)
    assert priced(device, grouped).value == priced(device, alone).value


def test_few_rows_of_a_norm_take_as_long_as_all_cores_full(device: Device) -> None:
    """One block works a row: up to min_rows x cores rows take the time of that many."""
    norm = Elementwise("norm", bytes_per_row=16384.0, flop_per_row=24576.0, family="norm")
    cores = 128.0
    full = priced(device, norm.work(2.0 * cores), min_rows=2.0).find("compute").value
    assert priced(device, norm.work(1.0), min_rows=2.0).find("compute").value == pytest.approx(full)
    assert priced(device, norm.work(4.0 * cores), min_rows=2.0).find("compute").value == pytest.approx(2.0 * full)
    plain = Elementwise("add", bytes_per_row=16384.0, flop_per_row=24576.0)
    assert priced(device, plain.work(1.0), min_rows=2.0).find("compute").value == pytest.approx(full / (2.0 * cores))


def test_bands_widen_beyond_what_was_measured(device: Device) -> None:
    """0 within 1 to 4 MB; 0.05 for each doubling above or below; the time itself is the same."""
    fit = calibration()
    record = FitRecord(
        runtime="r", n_rows=9, n_groups=3, left_out_median_frac=0.1, left_out_p90_frac=0.2, data_sha256="",
        ranges={"bytes": (1e6, 4e6)},
    )  # fmt: skip
    own = fit.model_copy(update={"device": device.name, "fits": {"matmul": record}})
    prior = fit.model_copy(update={"status": "prior", "extrapolation": Coef(value=0.05)})
    prices = KernelPrices(prior.with_fits([own]).for_device(device))
    sizes = np.array([0.25e6, 1e6, 2e6, 4e6, 32e6])
    work = Work("w", "matmul/16bit", "bf16", weight_bytes=sizes)
    assert np.allclose(relative_sd(prices.time(work)), [0.1, 0.0, 0.0, 0.0, 0.15])
    for n_bytes, sd in zip(sizes, (0.1, 0.0, 0.0, 0.0, 0.15), strict=True):
        one = prices.time(work._replace(weight_bytes=float(n_bytes)))
        assert float(relative_sd(one)) == pytest.approx(sd, abs=1e-12)
        assert float(one.value) == priced(device, work._replace(weight_bytes=float(n_bytes))).value
    assert float(relative_sd(prices.time(Work("w", "matmul/16bit", "bf16")))) == pytest.approx(0.05 * np.log2(1e6))
    bare = fit.with_fits([own]).for_device(device)  # a prior that says nothing of extrapolation widens nothing
    assert float(np.max(relative_sd(KernelPrices(bare).time(work)))) == 0.0


# --- rows of tables --------------------------------------------------------------------------------------------------

BASE = Row(device="a100-80gb-sxm", runtime="vllm-1", metric="time_s", value=1.0, source="made here")


def only(**columns: Any) -> Work:
    (rows,) = operator_rows(table_from_rows([BASE.with_columns(id="r", **columns)]))
    return rows.work


def test_elementwise_rows_are_counted_at_their_width() -> None:
    act = only(kind="elementwise", op="mlp_act", query_tokens=10.0, hidden=4096.0, intermediate=14336.0)
    assert act.kernel == "elementwise/activation"
    assert float(np.asarray(act.n_bytes)[0]) == 10 * 14336 * 3 * 2  # gate and up in, product out
    norm = only(kind="elementwise", op="rmsnorm", query_tokens=10.0, hidden=4096.0)
    assert norm.kernel == "elementwise/norm"
    assert float(np.asarray(norm.n_bytes)[0]) == 10 * 4096 * 2 * 2
    assert float(np.asarray(norm.unit_flop_per_row)[0]) == 6 * 4096
    assert only(kind="elementwise", op="add", query_tokens=10.0, hidden=4096.0).unit_flop_per_row is None


@pytest.mark.parametrize(
    ("quantization", "dtype", "kernel", "stored"),
    [("mxfp4", "bf16", "moe/weight_only_int4", 0.53125), ("mxfp4", "fp8", "moe/fp8/mxfp4", 0.53125),
     ("nvfp4", "fp4", "moe/fp4", 0.5625), ("fp8-block", "fp8", "moe/fp8/block", 1.0)],
)  # fmt: skip
def test_experts_are_stored_in_what_their_scheme_says(
    quantization: str, dtype: str, kernel: str, stored: float
) -> None:
    work = only(
        kind="moe_ffn", quantization=quantization, compute_dtype=dtype, query_tokens=1.0, hidden=1000.0,
        intermediate=100.0, n_experts=8.0, top_k=2.0,
    )  # fmt: skip
    assert work.kernel == kernel
    assert float(np.asarray(work.weight_bytes)[0]) == pytest.approx(2 * 3 * 1000 * 100 * stored)


# --- messages --------------------------------------------------------------------------------------------------------

NCCL = {"start_s": 5e-6, "hop_s": 1e-6, "bandwidth_frac": 0.8, "pair_excess": 0.3, "switch_frac": 0.5}
SHOTS = {"start_s": 4e-6, "peer_s": 1e-7, "bandwidth_frac": 0.7, "one_shot_frac": 0.6, "second_shot_s": 3e-6}
W = 1e11


def wired(*, reduces: bool) -> System:
    fabric = {
        "name": "links", "kind": "nvlink", "topology": "switch", "n_devices": 8, "latency_class": "p2p",
        "bandwidth_per_direction": {"value": W, "source": "t"}, "latency": {"value": 2e-6, "source": "t"},
        "reduces_in_switch": reduces,
    }  # fmt: skip
    return System.model_validate(
        {
            "name": "box", "title": "Box", "device": "rtx-4090", "n_devices": 8, "sources": {"t": "made up"},
            "fabrics": [fabric],
        }
    )  # fmt: skip


def sent(device: Device, link: dict[str, float], op: Collective, n: int, n_bytes: Any, reduces: bool = False) -> Any:
    prices = NetworkPrices(wired(reduces=reduces), calibration(link).for_device(device))
    return prices.time(Message("m", op, n_bytes, n)).value


def test_a_ring_library_by_hand(device: Device) -> None:
    """8 ranks: all-reduce 14 hops and 7/4 of the buffer, gather 7 and 7/8; few peers slow it by 2 x 0.3 / n."""
    s, slow = 64e6, 1.0 + 0.6 / 8
    assert sent(device, NCCL, "all_reduce", 8, s) == pytest.approx(5e-6 + 14e-6 + 1.75 * s * slow / (0.8 * W))
    assert sent(device, NCCL, "all_gather", 8, s) == pytest.approx(5e-6 + 7e-6 + 0.875 * s * slow / (0.8 * W))
    pair = 1.0 + 0.6 / 2
    assert sent(device, NCCL, "all_reduce", 2, s) == pytest.approx(5e-6 + 2e-6 + s * pair / (0.8 * W))


def test_the_switch_adds_where_it_is_fitted_and_more_than_two_take_part(device: Device) -> None:
    s = 64e6
    in_switch = 5e-6 + 14e-6 + s / (0.5 * W)
    assert sent(device, NCCL, "all_reduce", 8, s, reduces=True) == pytest.approx(in_switch)
    assert sent(device, NCCL, "all_reduce", 2, s, reduces=True) == sent(device, NCCL, "all_reduce", 2, s)
    without = {name: value for name, value in NCCL.items() if name != "switch_frac"}
    assert sent(device, without, "all_reduce", 8, s, reduces=True) == sent(device, NCCL, "all_reduce", 8, s)


def test_shots_by_hand(device: Device) -> None:
    """Small messages go in one shot (n - 1 buffers), large ones in two with a wait between; never in a ring."""
    start = 4e-6 + 7e-7
    small, large = 1e3, 64e6
    assert sent(device, SHOTS, "all_reduce", 8, small) == pytest.approx(start + 7 * small / (0.6 * W))
    two = start + 3e-6 + 1.75 * large / (0.7 * W)
    assert sent(device, SHOTS, "all_reduce", 8, large) == pytest.approx(two)


@pytest.mark.parametrize("link", [NCCL, SHOTS, NCCL | {"knee": 0.6}])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_messages_never_get_quicker(device: Device, link: dict[str, float], op: Collective) -> None:
    sizes = np.geomspace(1.0, 1e9, 60)
    for n in (2, 4, 8):
        times = sent(device, link, op, n, sizes, reduces=True)
        assert np.all(np.diff(times) > 0)
        assert times[7] == pytest.approx(sent(device, link, op, n, float(sizes[7]), reduces=True), rel=1e-12)
