"""Rules of thumb are data: read, checked, and replaced by a catalogue of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfmodel.errors import SpecError
from perfmodel.specs.catalogue import Catalogue, builtin_home

RULES = builtin_home() / "hardware" / "rules"


def changed(tmp_path: Path, name: str, pattern: str, by: str) -> Catalogue:
    folder = tmp_path / "hardware" / "rules"
    folder.mkdir(parents=True, exist_ok=True)
    text = (RULES / f"{name}.yaml").read_text(encoding="utf-8")
    assert re.search(pattern, text)
    (folder / f"{name}.yaml").write_text(re.sub(pattern, by, text, count=1), encoding="utf-8")
    return Catalogue((tmp_path, builtin_home()))


def test_a_parameter_of_a_class_goes_before_the_general_one(catalogue: Catalogue) -> None:
    rules = catalogue.fitting_rules()
    assert rules.of_kernel("matmul/16bit", "chain_s") == rules.kernels["matmul.chain_s"]
    assert rules.of_kernel("attention/decode", "chain_s") == rules.kernels["chain_s"]
    assert rules.of_kernel("matmul/16bit", "knee") == rules.kernels["knee"]


def test_limits_hold_the_centre(catalogue: Catalogue) -> None:
    rules = catalogue.fitting_rules()
    for name, rule in {**rules.kernels, **rules.collectives}.items():
        if rule.centre is not None:
            shift = 1.0 if name == "knee" and rule is rules.kernels["knee"] else 0.0
            assert rule.low <= rule.centre - shift <= rule.high, name


def test_own_values_go_first(tmp_path: Path) -> None:
    own = changed(tmp_path, "usual", r"idle_power_frac: \{value: 0\.2", "idle_power_frac: {value: 0.3")
    assert own.usual_values().idle_power_frac.value == 0.3


@pytest.mark.parametrize(
    ("name", "pattern", "by", "said"),
    [
        ("usual", "source: power-model", "source: hearsay", "hearsay is used but not listed"),
        ("usual", "value: 0.25", "value: -1", "energy_rel_sd"),
        ("fitting", "low: 0.3, high: 1.0", "low: 2.0, high: 1.0", "must be below high"),
        ("fitting", "source: nccl}", "source: nobody}", "nobody is used but not listed"),
        ("fitting", "widening: 1.5", "widening: 0.5", "widening"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, name: str, pattern: str, by: str, said: str) -> None:
    own = changed(tmp_path, name, pattern, by)
    with pytest.raises(SpecError, match=said):
        own.usual_values() if name == "usual" else own.fitting_rules()
