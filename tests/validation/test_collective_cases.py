"""Benchmarks of collectives from public threads: bus factors, units, latency and bandwidth, rates above the line."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.cost.network import NetworkPrices
from perfmodel.fit.data import data_from_arrays
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws import law_by_name
from perfmodel.fit.result import FitOptions, Residual
from perfmodel.measure.importers.base import Context
from perfmodel.measure.importers.collective_tests import (
    bus_factor,
    implied_ranks,
    non_monotone_sizes,
    parse_hccl,
    parse_nccl,
    unit_of_bandwidth,
)
from perfmodel.specs.catalogue import Catalogue
from perfmodel.units import GB, GIB, KIB, MIB
from perfmodel.work.kernel import Message

P2P_4 = (
    (32768, 18.78), (65536, 25.8), (131072, 42.44), (262144, 66.25), (524288, 94.11), (1048576, 152.7),
    (2097152, 271.8), (4194304, 510.6), (16777216, 1993.0), (67108864, 7888.0),
)  # fmt: skip
"""Four consumer cards with a peer-to-peer driver: bytes, microseconds (tinygrad/open-gpu-kernel-modules PR#22)."""
CUSTOM_8 = (
    (24576, 6.3), (49152, 6.7), (98304, 7.6), (196608, 10.0), (393216, 13.1), (786432, 16.0), (1572864, 24.2),
)  # fmt: skip
"""Custom all-reduce of eight cards at the sizes of decode steps (vllm-project/vllm PR#39080)."""


def bus_gb_per_s(n_bytes: float, time_us: float, n: int) -> float:
    return n_bytes / (time_us * 1e-6) * bus_factor("all_reduce", n) / GB


def test_comm_01_latency_and_bandwidth() -> None:
    sizes, times = (np.array(column, dtype=float) for column in zip(*P2P_4, strict=True))
    assert bus_gb_per_s(*P2P_4[5], n=4) == pytest.approx(10.3, rel=0.005)
    assert bus_gb_per_s(*P2P_4[-1], n=4) == pytest.approx(12.76, rel=0.005)
    found = fit(law_by_name("alpha_beta"), data_from_arrays({"bytes": sizes}, times * 1e-6, y_name="time_s"))
    alpha_s, bytes_per_s = found.values
    assert 1e6 * alpha_s == pytest.approx(20.0, rel=0.6)
    assert bytes_per_s * bus_factor("all_reduce", 4) / GB == pytest.approx(12.7, rel=0.03)


def test_comm_02_two_ranks_move_each_byte_once() -> None:
    """1 GiB in 9,306.7 us on two H100 PCIe with a bridge (NVIDIA/nccl-tests#194): the factor is 1."""
    assert bus_factor("all_reduce", 2) == 1.0
    assert bus_gb_per_s(GIB, 9306.7, 2) == pytest.approx(115.4, rel=0.001)


def test_comm_03_a_switch_that_adds_may_exceed_the_line(catalogue: Catalogue) -> None:
    """480 GB/s of bus bandwidth on links of 450 (NVIDIA/nccl-tests#212): 274 GB/s of data, and no bound is broken.

    Without the addition in the switch no wire could do it: the ring's floor is above the measured time.
    """
    algorithm_gb_per_s = 480 / bus_factor("all_reduce", 8)
    assert algorithm_gb_per_s == pytest.approx(274.3, rel=0.01)
    hgx = catalogue.system("hgx-h100")
    device = catalogue.calibration("hard-bound").for_device(catalogue.device("h100-sxm"))
    bound = NetworkPrices(hgx, device).time(Message("all_reduce", "all_reduce", 16.0 * GIB, 8))
    measured_s = 16.0 * GIB / (algorithm_gb_per_s * GB)
    assert float(bound.value) <= measured_s
    assert float(bound.find("ring").value) > measured_s


def test_comm_04_units_are_computed_and_never_read() -> None:
    """hccl_test printed 0.00998 for 8,192 bytes in 764.55 us: that is GiB/s under the heading GB/s."""
    assert pytest.approx(0.010715, rel=0.002) == 8192 / 764.55e-6 / GB
    assert unit_of_bandwidth(8192, 764.55e-6, 0.00998) == GIB
    text = (
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n8192 | 764.55 | 0.00998 | success\n"
    )
    row = parse_hccl(text, context=Context(device="ascend-910b2", op="all_reduce", n_devices=8)).rows[0]
    assert row.value == pytest.approx(764.55e-6)


def test_comm_05_ranks_follow_from_the_ratio_and_the_dip_is_seen() -> None:
    """Bus over algorithm bandwidth of 1.9375 is 2 (n - 1) / n of 32 ranks (stas00/ml-engineering)."""
    rows = (
        (32 * KIB, 0.92, 0.48),
        (MIB, 17.13, 8.84),
        (32 * MIB, 98.34, 50.76),
        (64 * MIB, 84.9, 43.82),
        (16 * GIB, 91.69, 47.32),
    )
    for size, bus, algorithm in rows:
        assert bus / algorithm == pytest.approx(1.9375, rel=0.02)
        if size > MIB:  # smaller ones are printed with too few digits to tell 31 from 33
            assert implied_ranks(bus / algorithm) == 32
    assert non_monotone_sizes([(size, bus) for size, bus, _ in rows]) == (64 * MIB, 16 * GIB)


def test_comm_06_an_average_of_zero_is_no_measurement() -> None:
    """NVIDIA/nccl-tests#294, #71: nothing is divided by it, and no fit takes it."""
    text = "# nThread 1 nGpus 8\n# all_reduce_perf\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n"
    found = parse_nccl(text, context=Context(device="h100-sxm"))
    assert found.facts["usable"] is False
    assert not found.rows
    assert "average bus bandwidth is 0" in found.warnings[0]


def test_comm_07_custom_all_reduce_starts_in_six_microseconds() -> None:
    rates = [bus_gb_per_s(size, time, 8) for size, time in CUSTOM_8]
    assert rates == pytest.approx([6.8, 12.8, 22.6, 34.4, 52.6, 85.8, 113.9], rel=0.01)
    assert rates[-1] / 537.6 == pytest.approx(0.21, rel=0.02)
    sizes, times = (np.array(column, dtype=float) for column in zip(*CUSTOM_8, strict=True))
    found = fit(
        law_by_name("alpha_beta"),
        data_from_arrays({"bytes": sizes}, times * 1e-6, y_name="time_s"),
        FitOptions(residual=Residual.RELATIVE),
    )
    assert 1e6 * found.values[0] == pytest.approx(6.0, rel=0.15)
