"""Quantities: every unit by hand, refusals, and texts that read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import PerfmodelError, UnitError
from perfmodel.units import (
    Bytes,
    Frac,
    bandwidth_text,
    bytes_text,
    count_text,
    quantity,
    rate_text,
    time_text,
)

DIMENSIONS = ("bytes", "bytes_per_s", "flop_per_s", "hertz", "seconds", "watts", "usd_per_hour", "frac")


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("40 MB", "bytes", 40e6),
        ("192 KiB", "bytes", 192 * 1024),
        ("4 Gbit", "bytes", 5e8),
        ("1.6 TB/s", "bytes_per_s", 1.6e12),
        ("200 Gbps", "bytes_per_s", 25e9),
        ("200 Gbit/s", "bytes_per_s", 25e9),
        ("312 TFLOPS", "flop_per_s", 312e12),
        ("1.979 Pflop/s", "flop_per_s", 1.979e15),
        ("624 TOPS", "flop_per_s", 624e12),
        ("1410 MHz", "hertz", 1.41e9),
        ("2.5us", "seconds", 2.5e-6),
        ("2.5 µs", "seconds", 2.5e-6),
        ("3 min", "seconds", 180.0),
        ("400 W", "watts", 400.0),
        ("1.1 kW", "watts", 1100.0),
        ("1.5 USD/h", "usd_per_hour", 1.5),
        ("90 %", "frac", 0.9),
        ("90%", "frac", 0.9),
        ("1_024", "bytes", 1024.0),
        ("1e3", "bytes", 1000.0),
        (17, "bytes", 17.0),
        (0.5, "frac", 0.5),
    ],
)
def test_quantity_by_hand(text: object, dimension: str, value: float) -> None:
    assert quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "value",
    [
        "", "fast", "GB", "12 parsecs", "1.6 TB/s", "--3 GB", "-1 GB", -1, "1e400", "nan", "inf GB", math.nan, math.inf,
        True, None, [1], {"value": 1}, 10**400, "9" * 400, "1 2 GB", "1 GB GB", "0x10", "1,5 GB", "\x00",
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(UnitError) as caught:
        quantity(value, "bytes")
    assert caught.value.exit_code == 2
    assert "\n" in str(caught.value)


def test_a_unit_of_another_kind_is_named() -> None:
    with pytest.raises(UnitError, match="'GB' is no unit of flop/s"):
        quantity("80 GB", "flop_per_s")


@pytest.mark.parametrize("bad", ["3 TB/s", -1, 10**400, float("nan"), None])
def test_fields_refuse_as_pydantic_expects(bad: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Bytes).validate_python(bad)
    assert TypeAdapter(Frac).validate_python("12.5 %") == 0.125


@given(st.one_of(st.text(max_size=20), st.floats(), st.integers(), st.none()), st.sampled_from(DIMENSIONS))
@settings(max_examples=200, deadline=None)
def test_anything_is_a_finite_size_or_a_unit_error(value: object, dimension: str) -> None:
    try:
        found = quantity(value, dimension)
    except PerfmodelError:
        return
    assert math.isfinite(found)
    assert found >= 0


@given(st.floats(1e-9, 1e18))
@settings(max_examples=60, deadline=None)
def test_texts_read_back(value: float) -> None:
    """Four digits are kept. Small sizes and times below a nanosecond keep the last unit."""
    for text, dimension in ((bytes_text, "bytes"), (bandwidth_text, "bytes_per_s"), (rate_text, "flop_per_s")):
        assert quantity(text(value), dimension) == pytest.approx(value, rel=1e-3)
    if value < 1e9:
        assert quantity(time_text(value), "seconds") == pytest.approx(value, rel=1e-3)


def test_texts_by_hand() -> None:
    assert time_text(90.0) == "1.5 min"
    assert time_text(3.5e-6) == "3.5 us"
    assert bytes_text(80e9) == "74.51 GiB"
    assert bandwidth_text(2.039e12) == "2.039 TB/s"
    assert rate_text(1.979e15) == "1.979 Pflop/s"
    assert count_text(671_026_419_200) == "671 G"
    assert count_text(12) == "12"
