"""Figures as printed, and arithmetic as printed: units that fit, digits that count, nothing but arithmetic run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import PerfmodelError, SpecError, UnitError
from perfmodel.validate.audit.facts import version_holds
from perfmodel.validate.audit.figures import figure_text, printed
from perfmodel.validate.audit.formula import formula_range, formula_value


@pytest.mark.parametrize(
    ("name", "raw", "value", "resolution"),
    [
        ("memory_bytes", "12.3 GB", 12.3e9, 0.1e9),
        ("peak_bytes_per_s", "2.0 TB/s", 2e12, 1e11),
        ("share_frac", "38 %", 0.38, 0.01),
        ("ttft_change_frac", -0.37, -0.37, 0.01),
        ("ttft_change_frac", "-37 %", -0.37, 0.01),
        ("output_tokens_per_s", 184.2, 184.2, 0.1),
        ("n_heads", 32, 32.0, 0.0),
        ("n_params", "7e9", 7e9, 1e9),
        ("clock_hz", "1.80 GHz", 1.8e9, 1e7),
    ],
)
def test_a_figure_has_its_base_unit_and_the_step_of_its_last_digit(
    name: str, raw: float | str, value: float, resolution: float
) -> None:
    found = printed(name, raw)
    assert found.value == pytest.approx(value)
    assert found.resolution == pytest.approx(resolution)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("ttft_s", "12 GB"),
        ("memory_bytes", "127 ms"),
        ("output_tokens_per_s", "184 ms"),
        ("ttft_s", -0.1),
        ("gain_frac", "many"),
        ("gain_frac", True),
        ("ttft_s", "nan"),
    ],
)
def test_a_unit_that_contradicts_the_name_is_refused(name: str, raw: float | str) -> None:
    with pytest.raises(UnitError, match=name if raw is not True else "True"):
        printed(name, raw)


@given(st.floats(1e-6, 1e6))
def test_text_of_a_figure_reads_back(value: float) -> None:
    """What is shown means what was meant, to the four digits shown."""
    assert printed("ttft_s", figure_text("ttft_s", value)).value == pytest.approx(value, rel=6e-4)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.b",
        "a[0]",
        "lambda: 1",
        "a if b else c",
        "a < b",
        "a // b",
        "'x'",
        "[1]",
        "a and b",
        "sqrt(1, 2)",
        "sqrt(a=1)",
        "open(a)",
        "1 +",
        "",
        "a" * 600,
        "True",
        "1j",
    ],
)
def test_nothing_but_arithmetic_is_evaluated(text: str) -> None:
    with pytest.raises(SpecError):
        formula_value(text, {"a": 1.0, "b": 2.0, "c": 3.0})


def test_huge_powers_end_at_once() -> None:
    assert float(formula_value("9 ** 9 ** 9 ** 9", {})) == float("inf")


def test_a_missing_name_is_named() -> None:
    with pytest.raises(PerfmodelError, match="beta"):
        formula_value("alpha + beta", {"alpha": 1.0})


@given(st.floats(1.0, 1e3), st.floats(1.0, 1e3))
def test_the_range_holds_the_value(a: float, b: float) -> None:
    value, low, high = formula_range("a / b - 1", {"a": printed("a", round(a, 1)), "b": printed("b", round(b, 1))})
    assert low <= value <= high


@pytest.mark.parametrize(
    ("version", "condition", "holds"),
    [
        ("4.44.0", ">=4.45.0", False),
        ("4.45.2", ">=4.45.0", True),
        ("2.4", "==2.4.0", True),
        ("2.10", ">2.9", True),
        ("2.3.0", "<2.3", False),
        ("2.3.0", "<=2.3", True),
    ],
)
def test_versions_compare_by_their_numbers(version: str, condition: str, holds: bool) -> None:
    assert version_holds(version, condition) is holds
