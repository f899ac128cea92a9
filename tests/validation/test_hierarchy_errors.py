"""The memory hierarchy against public measurements: bounds are what was reached, with room for a few per cent.

Times were fitted by laws without an L2 (the calibrations have seen these rows); what is tested is that counting the L2
keeps the cold rows and does not spoil the resident ones. Hit rates were not used for any coefficient.
"""

from __future__ import annotations

from functools import cache

import pytest

from perfmodel.measure.csv_io import read_table
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.validate.hierarchy import HitRate, StateError, hit_rates, state_errors
from perfmodel.validate.shipped import shipped_tables

CATALOGUE = Catalogue((builtin_home(),))


@cache
def measured() -> tuple[list[HitRate], dict[tuple[str, str, str], StateError]]:
    tables = [read_table(path).where() for path in shipped_tables(CATALOGUE)]
    rates = [rate for table in tables for rate in hit_rates(table, CATALOGUE)]
    return rates, {(e.device, e.kernel, e.state): e for e in state_errors(tables, CATALOGUE)}


def test_hit_rates_of_three_orders_and_sizes() -> None:
    """Measured on a 910B2: 97.88 %, 30.9 % and 93.72 %."""
    rates, _ = measured()
    assert {(rate.shape.split()[0], rate.order) for rate in rates} == {
        ("4096", "rows"),
        ("16384", "rows"),
        ("16384", "group-5-zigzag"),
    }
    assert max(abs(rate.difference_frac) for rate in rates) < 0.012


@pytest.mark.parametrize(
    ("device", "kernel", "state", "median", "p90"),
    [
        ("ascend-910b2", "matmul/16bit", "cold", 0.06, 0.16),
        ("ascend-910b2", "matmul/int8", "cold", 0.03, 0.09),
        ("ascend-910b2", "attention/decode", "cold", 0.10, 0.26),
        ("a100-80gb-sxm", "matmul/16bit", "cold", 0.08, 0.20),
        ("a100-80gb-sxm", "matmul/16bit", "resident", 0.08, 0.22),
        ("a100-80gb-sxm", "attention/decode", "resident", 0.10, 0.20),
        ("a100-80gb-pcie", "matmul/16bit", "cold", 0.05, 0.13),
        ("a100-80gb-pcie", "matmul/16bit", "resident", 0.06, 0.17),
        ("h100-sxm", "matmul/16bit", "cold", 0.06, 0.16),
        ("h100-sxm", "attention/decode", "resident", 0.10, 0.40),
        ("h100-sxm", "matmul/fp8", "cold", 0.09, 0.42),
        ("h100-sxm", "matmul/fp8", "resident", 0.09, 0.38),
        ("rtx-4090", "matmul/16bit", "cold", 0.04, 0.09),
    ],
)
def test_times_cold_and_resident(device: str, kernel: str, state: str, median: float, p90: float) -> None:
    found = measured()[1][device, kernel, state]
    assert found.n_rows >= 25
    assert found.median_error_frac <= median
    assert found.p90_error_frac <= p90


def test_counting_the_l2_never_costs_much() -> None:
    for found in measured()[1].values():
        assert found.median_error_frac <= found.median_without_l2_frac + 0.02, found


def test_decode_attention_replayed_on_an_h100_is_predicted_better_with_the_l2() -> None:
    """Medians fall from 10 to 9 % with a 16-bit cache and from 20 to 14 % with an 8-bit one."""
    for kernel in ("attention/decode", "attention/decode/kv8"):
        found = measured()[1]["h100-sxm", kernel, "resident"]
        assert found.median_error_frac < found.median_without_l2_frac
