"""Kernel fits: they recover what they were fed, say what rows cannot tell, and their laws keep order."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import FitError
from perfmodel.fit.calibrate import base_of
from perfmodel.fit.kernel_fit import _replayed, fitted_kernel, predicted_times, rows_sha256
from perfmodel.measure.expert_loads import power_law_loads
from perfmodel.measure.operator_work import OperatorRows, operator_rows, pooled
from perfmodel.measure.row import Row
from perfmodel.measure.table import table_from_rows
from perfmodel.specs.calibration import Calibration, Coef, KernelFit
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.device import Device

CATALOGUE = Catalogue((builtin_home(),))
PRIOR, RULES = CATALOGUE.calibration("prior"), CATALOGUE.fitting_rules()
DEVICE = CATALOGUE.device("a100-80gb-sxm")
BASE = Row(device=DEVICE.name, runtime="kernel", compute_dtype="bf16", metric="time_s", value=1.0, source="made here")


def known(**values: float) -> KernelFit:
    return KernelFit(**{name: Coef(value=value) for name, value in values.items()})


MATMUL = known(launch_s=4e-6, compute_frac=0.78, memory_frac=0.86, knee=2.2, chain_s=0.5e-9, min_rows=16.0)
DECODE = known(launch_s=9e-6, compute_frac=0.25, memory_frac=0.9, chain_s=1.2e-6, pad_tokens=70.0)


def matmul_rows(n_times: int = 1) -> OperatorRows:
    shapes = [(m, n, k) for m in (1, 8, 64, 256, 1024, 4096) for n in (1024, 4096, 12288) for k in (1024, 4096, 8192)]
    listed = [
        BASE.with_columns(id=f"m{i}-{j}", kind="gemm", m=float(m), n=float(n + 64 * j), k=float(k))
        for i, (m, n, k) in enumerate(shapes)
        for j in range(n_times)
    ]
    return next(operator_rows(table_from_rows(listed)))


def decode_rows() -> OperatorRows:
    listed = [
        BASE.with_columns(
            id=f"d{b}-{c}-{h}", kind="attention", batch=b, query_tokens=1.0, context_tokens=c, n_heads=32.0,
            n_kv_heads=h, head_dim=128.0, op="decode",
        )
        for b in (1.0, 4.0, 16.0, 64.0) for c in (127.0, 1023.0, 4095.0, 16383.0) for h in (1.0, 4.0, 8.0)
    ]  # fmt: skip
    return next(operator_rows(table_from_rows(listed)))


def timed(rows: OperatorRows, times: NDArray[np.float64], noise: float = 0.0) -> OperatorRows:
    spread = np.exp(np.random.default_rng(1).normal(0.0, noise, len(times))) if noise else 1.0
    return rows._replace(time_s=times * spread)


def test_recovers_a_matmul() -> None:
    rows = matmul_rows()
    exact = timed(rows, predicted_times(DEVICE, rows.kernel, MATMUL, rows.work))
    made = fitted_kernel(DEVICE, exact, base_of(PRIOR, rows.kernel, DEVICE), RULES, source="made")
    for name in ("launch_s", "compute_frac", "memory_frac", "knee", "chain_s"):
        assert getattr(made.fit, name).value == pytest.approx(getattr(MATMUL, name).value, rel=0.05), name
    assert made.record.left_out_p90_frac < 0.01
    assert made.record.data_sha256 == rows_sha256(exact.selected(np.arange(len(exact.time_s)) >= 0))


def test_standard_errors_hold_the_truth() -> None:
    rows = matmul_rows()
    noisy = timed(rows, predicted_times(DEVICE, rows.kernel, MATMUL, rows.work), 0.05)
    made = fitted_kernel(DEVICE, noisy, base_of(PRIOR, rows.kernel, DEVICE), RULES, source="made")
    for name in ("launch_s", "compute_frac", "memory_frac"):
        coef, truth = getattr(made.fit, name), getattr(MATMUL, name).value
        assert 0 < coef.rel_sd < 0.2
        assert abs(np.log(coef.value / truth)) < 4 * coef.rel_sd
    assert made.fit.scatter is not None
    assert made.fit.scatter.value == pytest.approx(0.05, rel=0.5)
    assert 0.6 < made.left_out_covered.mean() < 0.95


def test_a_replay_from_l2_does_not_spoil_the_bandwidth() -> None:
    rows = decode_rows()
    warm = predicted_times(DEVICE, rows.kernel, DECODE, _replayed(DEVICE, rows.work, 3.0))
    made = fitted_kernel(DEVICE, timed(rows, warm), base_of(PRIOR, rows.kernel, DEVICE), RULES, source="made")
    assert made.fit.memory_frac.value == pytest.approx(0.9, rel=0.03)
    assert "replay" in made.record.parameters
    assert any("within L2" in remark for remark in made.record.remarks)


def test_what_rows_cannot_tell_stays_at_the_prior() -> None:
    rows = matmul_rows(2)
    few = rows.selected(rows.work.rows == 1.0)  # type: ignore[arg-type]
    exact = timed(few, predicted_times(DEVICE, few.kernel, MATMUL, few.work))
    base = base_of(PRIOR, few.kernel, DEVICE)
    made = fitted_kernel(DEVICE, exact, base, RULES, source="made", leave_out=False)
    assert made.fit.compute_frac.value == pytest.approx(base.compute_frac.value, rel=0.05)
    assert any(remark.startswith("compute_frac stays near the prior") for remark in made.record.remarks)


def test_too_few_rows_are_refused() -> None:
    rows = matmul_rows()
    with pytest.raises(FitError, match="too few rows"):
        fitted_kernel(DEVICE, rows.selected(np.arange(len(rows.time_s)) < 5), MATMUL, RULES, source="made")


def test_many_noisy_rows_tell_the_rates_closely() -> None:
    rows = matmul_rows(40)
    noisy = timed(rows, predicted_times(DEVICE, rows.kernel, MATMUL, rows.work), 0.05)
    found = fitted_kernel(DEVICE, noisy, base_of(PRIOR, rows.kernel, DEVICE), RULES, source="made").fit
    assert found.compute_frac.value == pytest.approx(MATMUL.compute_frac.value, rel=0.02)
    assert found.memory_frac.value == pytest.approx(MATMUL.memory_frac.value, rel=0.02)


def prefill_time(device: Device, fit: KernelFit, **shape: float) -> float:
    cells = {"batch": 1.0, "context_tokens": 0.0, "n_heads": 32.0, "n_kv_heads": 8.0, "head_dim": 128.0} | shape
    row = BASE.with_columns(id="p", kind="attention", op="prefill", **cells)
    rows = next(operator_rows(table_from_rows([row])))
    return float(predicted_times(device, "attention/prefill", fit, rows.work)[0])


def test_few_query_rows_cost_a_tile() -> None:
    """Behind a long context 16 rows of a prompt take as long as 64: a tile runs on one core."""
    fit = base_of(PRIOR, "attention/prefill", DEVICE)
    few, tile, many = (prefill_time(DEVICE, fit, query_tokens=q, context_tokens=16384.0) for q in (16.0, 64.0, 2048.0))
    assert few == pytest.approx(tile, rel=0.02)
    assert many > 2 * tile
    times = [prefill_time(DEVICE, fit, query_tokens=float(q), context_tokens=512.0) for q in (2, 7, 64, 100, 128, 500)]
    assert times == sorted(times)


def test_narrow_heads_cost_more_a_flop() -> None:
    fit = base_of(PRIOR, "attention/prefill", DEVICE)
    narrow = prefill_time(DEVICE, fit, query_tokens=8192.0, head_dim=64.0)
    usual = prefill_time(DEVICE, fit, query_tokens=8192.0)
    assert 0.5 < narrow / usual < 0.75


def test_no_tile_law_where_the_calibration_has_none() -> None:
    ideal = CATALOGUE.calibration("ideal").for_device(DEVICE)
    row = BASE.with_columns(
        id="p", kind="attention", op="prefill", batch=1.0, query_tokens=4096.0, context_tokens=0.0, n_heads=1.0,
        n_kv_heads=1.0, head_dim=256.0,
    )  # fmt: skip
    work = next(operator_rows(table_from_rows([row]))).work
    floor = float(np.asarray(work.flop)[0]) / DEVICE.peak_flop_per_s("bf16")
    assert float(np.asarray(KernelPrices(ideal).time(work).value)[0]) >= floor


def test_launch_bound_kernels_have_a_band_too() -> None:
    from perfmodel.estimate import relative_sd

    fit = DECODE.model_copy(update={"scatter": Coef(value=0.1)})
    rows = decode_rows()
    bare = Calibration(name="made", status="fit", kernels={rows.kernel: fit})
    sds = np.asarray(relative_sd(KernelPrices(bare.for_device(DEVICE)).time(rows.work)))
    assert np.allclose(sds, 0.1, rtol=1e-6)


def test_power_law_routing_is_skewed() -> None:
    pairs, touched = power_law_loads(64, 128, 8, 1, 1.2)
    assert pairs == 512.0
    assert 8 <= touched < 128 * (1 - (1 - 8 / 128) ** 64)
    busiest, _ = power_law_loads(64, 128, 8, 8, 1.2)
    assert 64.0 < busiest <= 512.0
    assert power_law_loads(64, 128, 8, 8, 1.2) == (busiest, _)


def test_pooled_rows_keep_all() -> None:
    rows = matmul_rows()
    half = np.arange(len(rows.time_s)) % 2 == 0
    other = rows.selected(~half)._replace(runtime="other")
    both = pooled([rows.selected(half), other])
    assert sorted(both.ids) == sorted(rows.ids)
    assert both.runtime == "kernel + other"
    assert np.asarray(both.work.flop).sum() == pytest.approx(np.asarray(rows.work.flop).sum())
