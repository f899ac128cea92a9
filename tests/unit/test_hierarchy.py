"""Kernels through the hierarchy: never below the hard bound, unchanged where the L2 is not in the way, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.cost.hierarchy import Hierarchy, shape_of
from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import SpecError
from perfmodel.estimate import bound_shares, refolded
from perfmodel.specs.catalogue import Catalogue
from perfmodel.units import MIB
from perfmodel.work.kernel import Work
from perfmodel.work.traffic import MatmulShape

CATALOGUE = Catalogue.standard()
NAMES = ("ascend-910b2", "a100-80gb-sxm", "h100-sxm", "mi300x", "gaudi2", "b200-sxm")


def hierarchy(name: str, calibration: str = "auto") -> Hierarchy:
    device = CATALOGUE.device(name)
    fit = CATALOGUE.calibration_for(calibration, [device], "").for_device(device)
    return Hierarchy.of(fit, CATALOGUE.core_of(device))


ASCEND = hierarchy("ascend-910b2")
IDEAL = hierarchy("ascend-910b2", "ideal")
SIZES = st.integers(1, 20000).map(float)


@given(m=SIZES, n=SIZES, k=SIZES, warm=st.booleans(), name=st.sampled_from(NAMES))
def test_no_kernel_beats_peak_or_bandwidth(m: float, n: float, k: float, warm: bool, name: str) -> None:
    found, shape = (
        hierarchy(name, "ideal").matmul(MatmulShape(m, n, k), dtype="bf16", is_warm=warm),
        MatmulShape(m, n, k),
    )
    device = CATALOGUE.device(name)
    assert found.time.value >= shape.flop / device.peak_flop_per_s("bf16") * (1 - 1e-12)
    assert found.time.value >= found.traffic.dram_bytes / device.dram_bytes_per_s * (1 - 1e-12)
    assert all(level.use_frac <= 1 + 1e-9 for level in found.levels)
    assert refolded(found.time) == pytest.approx(found.time.value)
    assert sum(bound_shares(found.time).values()) == pytest.approx(1.0)


@given(m=SIZES, n=SIZES, k=SIZES)
def test_a_warm_run_is_never_slower_and_never_hits_less(m: float, n: float, k: float) -> None:
    cold, warm = (ASCEND.matmul(MatmulShape(m, n, k), dtype="fp16", is_warm=w) for w in (False, True))
    assert warm.time.value <= cold.time.value * (1 + 1e-12)
    assert warm.hit_frac >= cold.hit_frac - 1e-12


@given(m=SIZES, n=SIZES, k=SIZES, factor=st.floats(1, 8))
def test_time_never_falls_with_a_longer_contraction(m: float, n: float, k: float, factor: float) -> None:
    less, more = (ASCEND.matmul(MatmulShape(m, n, k * f), dtype="fp16") for f in (1.0, factor))
    assert more.time.value >= less.time.value * (1 - 1e-12)


@pytest.mark.parametrize("name", ["ascend-910b2", "a100-80gb-sxm", "h100-sxm"])
@pytest.mark.parametrize("rows", [1.0, 16.0])
def test_cold_weights_cost_what_the_step_model_says(name: str, rows: float) -> None:
    """A matmul of few rows reads its weights once: the same bytes, the same time as the step model's law."""
    model = hierarchy(name)
    shape = MatmulShape(rows, 8192.0, 8192.0)
    work = Work(
        "matmul", "matmul/16bit", "bf16", flop=shape.flop, weight_bytes=float(shape.weight_bytes),
        io_bytes=float(shape.input_bytes + shape.output_bytes), rows=rows, depth=8192.0,
    )  # fmt: skip
    step = KernelPrices(model.prices.device).time(work).value
    assert model.matmul(shape, dtype="bf16").time.value == pytest.approx(step, rel=1e-3)
    assert model.matmul_of(work).time.value == pytest.approx(step, rel=1e-3)


def test_the_shape_behind_a_work_is_found_again() -> None:
    shape = MatmulShape(32.0, 4096.0, 1024.0, b_bytes=0.5)
    work = Work(
        "up", "matmul/16bit", "fp16", flop=shape.flop, weight_bytes=float(shape.weight_bytes),
        io_bytes=float(shape.input_bytes + shape.output_bytes), rows=32.0, depth=1024.0,
    )  # fmt: skip
    assert shape_of(work) == shape
    with pytest.raises(SpecError, match="no matmul"):
        shape_of(Work("norm", "elementwise", "fp32", io_bytes=1.0))


def test_a_cold_4096_matmul_of_a_910b2_on_paper() -> None:
    """2 x 4096^3 / 353.9e12 = 388 us. Memory moves 96 MiB: 100.7e6 / (388e-6 x 1.6e12) = 16.2 % of it, hits 93.9 %."""
    shape = MatmulShape(4096.0, 4096.0, 4096.0)
    found = IDEAL.matmul(shape, dtype="fp16")
    assert found.time.value == pytest.approx(2 * 4096**3 / 353.9e12)
    assert found.dram_use_frac == pytest.approx(96 * MIB / (found.time.value * 1.6e12))
    assert found.dram_use_frac == pytest.approx(0.162, abs=0.001)
    assert found.hit_frac == pytest.approx(1 - 96 / 1568)
    assert [level.level for level in found.levels] == ["dram", "l2"]
    assert found.levels[0].intensity_flop_per_byte == pytest.approx(2 * 4096**3 / (96 * MIB))


def test_weights_in_the_l2_stream_at_its_rate() -> None:
    """KV of 100 MiB fits 182.4 MiB: 104.9e6 / (0.29 x 7e12) = 51.7 us, against 65.5 us out of main memory."""
    work = Work("attention", "attention/decode", "fp16", flop=1.0, kv_bytes=100 * MIB)
    cold, warm = (IDEAL.stream(work, is_warm=w) for w in (False, True))
    assert cold.time.value == pytest.approx(100 * MIB / 1.6e12)
    assert warm.time.value == pytest.approx(100 * MIB / (0.29 * 7e12))
    assert (cold.hit_frac, warm.hit_frac) == (0, 1)
    large = work._replace(kv_bytes=300 * MIB)
    assert IDEAL.stream(large, is_warm=True).time.value == IDEAL.stream(large).time.value


def test_a_gather_pays_for_whole_lines_and_for_what_does_not_fit() -> None:
    """100-element fp16 rows (200 bytes) over lines of 512: (8 x 25 + 504) / 512 = 1.375 lines, 704 bytes a row.

    1,000,000 rows are 200 MB, 191 of which fit: 95.6 % hits. The rest costs 512-byte lines.
    """
    found = IDEAL.gather(n_rows=1e6, row_bytes=200.0, n_accesses=1e7)
    assert found.traffic.l2_bytes == pytest.approx(1e7 * 704)
    assert found.hit_frac == pytest.approx(0.95 * 192 * MIB / 200e6, abs=2e-3)
    local = IDEAL.gather(n_rows=1e7, row_bytes=200.0, n_accesses=1e7, skew=1.0)
    spread = IDEAL.gather(n_rows=1e7, row_bytes=200.0, n_accesses=1e7)
    assert local.hit_frac > spread.hit_frac
    assert local.time.value < spread.time.value


def test_a_device_without_an_l2_rate_has_one_level() -> None:
    found = hierarchy("b200-sxm").matmul(MatmulShape(64.0, 4096.0, 4096.0), dtype="bf16")
    assert [level.level for level in found.levels] == ["dram"]


def test_other_tiles_move_other_bytes() -> None:
    """Row after row a 16384-matmul hits 31.8 % of its requests, in groups of five 93.6 %: measured 30.9 and 93.7."""
    shape = MatmulShape(16384.0, 16384.0, 16384.0)
    rows = ASCEND.with_tiles(replace(ASCEND.tiles, group_tiles=0, zigzag=False)).matmul(shape, dtype="fp16")
    groups = ASCEND.matmul(shape, dtype="fp16")
    assert rows.hit_frac == pytest.approx(0.309, abs=0.02)
    assert groups.hit_frac == pytest.approx(0.9372, abs=0.01)
    assert rows.time.value > groups.time.value


def test_arrays_give_what_scalars_give() -> None:
    sizes = np.array([1.0, 64.0, 4096.0])
    many = ASCEND.matmul(MatmulShape(sizes, 4096.0, 8192.0), dtype="fp16")
    for i, rows in enumerate(sizes):
        one = ASCEND.matmul(MatmulShape(float(rows), 4096.0, 8192.0), dtype="fp16")
        assert np.asarray(many.time.value)[i] == pytest.approx(one.time.value, rel=1e-12)
        assert np.asarray(many.dram_use_frac)[i] == pytest.approx(one.dram_use_frac, rel=1e-12)
