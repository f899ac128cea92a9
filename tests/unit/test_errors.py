"""Errors: one tree, exit codes, and messages that say where, what, what was expected and what to do."""

from __future__ import annotations

import re

import pytest

from perfmodel import errors
from perfmodel.errors import Fault, InfeasibleError, PerfmodelError, SpecError, UnknownNameError


def test_the_docstring_lists_the_tree() -> None:
    listed = set(re.findall(r"\b([A-Z]\w+Error)\b", errors.__doc__ or ""))
    exported = {name for name in errors.__all__ if name.endswith("Error")}
    assert listed == exported
    for name in exported - {"PerfmodelError"}:
        assert issubclass(getattr(errors, name), PerfmodelError)


def test_only_what_does_not_fit_exits_with_1() -> None:
    codes = {name: getattr(errors, name).exit_code for name in errors.__all__ if name.endswith("Error")}
    assert codes.pop("InfeasibleError") == 1
    assert set(codes.values()) == {2}


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(), ""),
        (Fault("line 3"), "line 3"),
        (Fault("line 3", "-1"), "line 3: got -1"),
        (Fault("line 3", "-1", "a size"), "line 3: got -1, expected a size"),
        (Fault("line 3", "-1", "a size", "Write 1."), "line 3: got -1, expected a size. Write 1."),
        (Fault(got="-1", expected="a size"), "got -1: expected a size"),
        (Fault(cure="Write 1."), "Write 1."),
    ],
)
def test_fault_text(fault: Fault, text: str) -> None:
    assert str(fault) == text


def test_all_faults_are_reported_at_once() -> None:
    error = SpecError("a.yaml is wrong", where="top", got="x", faults=[Fault("line 1", "a"), Fault("line 2", "b")])
    assert str(error).splitlines() == ["a.yaml is wrong", "  top: got x", "  line 1: got a", "  line 2: got b"]
    assert len(error.faults) == 3
    assert str(SpecError("alone")) == "alone"


def test_near_names_are_offered_and_far_ones_are_not() -> None:
    near = UnknownNameError.of("device", "A100-80GB-SMX", ["a100-80gb-sxm", "l4"])
    assert "did you mean a100-80gb-sxm?" in str(near)
    far = UnknownNameError.of("device", "zzz", ["a100-80gb-sxm"], "See the list.")
    assert "did you mean" not in str(far)
    assert "See the list." in str(far)
    assert UnknownNameError.of("device", "", []).faults == ()


def test_errors_are_caught_as_one_kind() -> None:
    with pytest.raises(PerfmodelError, match="does not fit"):
        raise InfeasibleError("does not fit", got="1 GiB", expected="2 GiB")
