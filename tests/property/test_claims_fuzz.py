"""Whatever stands in a claims file, the audit answers or refuses: exit code 0 or 2, no traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.validate.audit.run import template_text
from tests.unit.cli_parts import Run

LINES = template_text().splitlines(keepends=True)
ODD = st.sampled_from(
    ["", "null", "-1", "0", "1e400", "nan", "[]", "{}", "'x'", "12 GB", "127 ms", "true", "0.5 %", "no-such-thing"]
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("claims") / "claims.yaml"


def refused_or_answered(run_cli: Run, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    ran = run_cli("audit", str(path), "--json")
    assert ran.code in (0, 2), ran.err
    assert "Traceback" not in ran.err
    assert ran.code == 0 or ran.err.startswith("perfmodel: ")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(LINES) - 1), odd=ODD)
def test_a_value_replaced(run_cli: Run, path: Path, place: int, odd: str) -> None:
    """The first value of a line becomes something odd."""
    changed = re.sub(r": [^{\[\n#,}]+", lambda _: f": {odd}", LINES[place], count=1)
    refused_or_answered(run_cli, path, "".join([*LINES[:place], changed, *LINES[place + 1 :]]))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(0, len(LINES) - 1), n_lines=st.integers(1, 12))
def test_lines_missing(run_cli: Run, path: Path, first: int, n_lines: int) -> None:
    refused_or_answered(run_cli, path, "".join([*LINES[:first], *LINES[first + n_lines :]]))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text(run_cli: Run, path: Path, text: str) -> None:
    refused_or_answered(run_cli, path, text)
