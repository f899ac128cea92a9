"""The shipped classes of cores: they validate, no family is claimed twice, and instructions keep physics."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.core import CoreClass
from perfmodel.specs.device import Device

CATALOGUE = Catalogue.standard()
CORES = [CATALOGUE.core(name) for name in CATALOGUE.paths("core")]


def devices() -> list[Device]:
    return [CATALOGUE.device(name) for name, head in CATALOGUE.headers("hardware") if head.get("kind") != "system"]


def test_each_family_has_one_class_and_each_class_a_device() -> None:
    claimed = [family for core in CORES for family in core.families]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) <= {device.family for device in devices()}
    assert {core.name: Path(CATALOGUE.path("core", core.name)).stem for core in CORES} == {
        c.name: c.name for c in CORES
    }


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_a_class_keeps_physics(core: CoreClass) -> None:
    for instruction in core.instructions:
        assert instruction.latency_cycles.value > 0
        assert instruction.op == instruction.op.lower()
    tiling = core.tiling
    assert 0 < tiling.stream_l2_frac.value <= tiling.tiled_l2_frac.value <= 1
    assert 0 < tiling.usable_l2_frac.value <= 1


def test_vector_instructions_never_beat_the_vector_rate_of_the_device_by_much() -> None:
    """A call on n fp16 elements is busy n x cycles: a 910B2 states 128 lanes, 1 / 128 = 0.0078 cycles an element.

    Calls with a scalar operand were fitted 9 % below that, which is their own error.
    """
    core, device = CATALOGUE.core("ascend-c220"), CATALOGUE.device("ascend-910b2")
    assert device.ai_core is not None
    for instruction in core.instructions:
        if instruction.pipe == "vector" and instruction.cycles_per_element is not None:
            lanes = device.ai_core.vector_lanes_fp16.value / (2 if instruction.dtype == "fp32" else 1)
            assert instruction.cycles_per_element.value > 0.9 / lanes


def test_a_class_that_contradicts_itself_is_refused() -> None:
    data = CATALOGUE.core("ascend-c220").model_dump()
    with pytest.raises(ValidationError, match="not listed under `pipes`"):
        CoreClass.model_validate(data | {"pipes": data["pipes"][:1]})
    with pytest.raises(ValidationError, match="not listed under `sources`"):
        CoreClass.model_validate(data | {"sources": {"other": "text"}})
    first = dict(data["instructions"][1]) | {"forwarded_cycles": {"value": 99, "source": "autofuse"}}
    with pytest.raises(ValidationError, match="hands its result on later"):
        CoreClass.model_validate(data | {"instructions": [first]})
