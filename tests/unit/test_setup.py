"""Setups: what hardware cannot do as asked is settled and said; what makes no sense is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.errors import SpecError
from perfmodel.specs.layout import Layout
from perfmodel.specs.setup import KV_ELEMENT_BYTES, Speculation
from perfmodel.step.step import Engine

EngineOf = Callable[..., Engine]


@pytest.mark.parametrize(
    ("n_draft", "length"), [(0, 1.0), (-1, 1.0), (3, 0.5), (3, 4.01), (1, float("nan")), (1, float("inf"))]
)
def test_impossible_speculation_is_refused(n_draft: int, length: float) -> None:
    with pytest.raises(SpecError, match="speculation"):
        Speculation(n_draft, length)


def test_speculation_limits() -> None:
    assert Speculation(3, 1.0).acceptance_length == 1.0
    assert Speculation(3, 4.0).acceptance_length == 4.0


def test_bf16_becomes_fp16_where_the_card_has_none(engine_of: EngineOf) -> None:
    setup = engine_of("llama-3.1-8b", "v100-sxm").setup
    assert setup.dtype == "fp16"
    assert any("bf16" in note for note in setup.assumed)
    assert setup.kv_element_bytes == 2.0
    assert engine_of("llama-3.1-8b", "a100-80gb-sxm").setup.dtype == "bf16"


def test_dtypes_and_their_other_names(engine_of: EngineOf) -> None:
    for name, dtype in (("half", "fp16"), ("bfloat16", "bf16"), ("float16", "fp16"), ("auto", "bf16")):
        assert engine_of("llama-3.1-8b", "a100-80gb-sxm", dtype=name).setup.dtype == dtype
    assert engine_of("llama-3.1-8b", "a100-80gb-sxm", dtype="fp16").setup.element_bytes == 2.0
    with pytest.raises(SpecError, match="unknown dtype"):
        engine_of("llama-3.1-8b", "a100-80gb-sxm", dtype="int7")
    with pytest.raises(SpecError, match="unknown KV cache dtype"):
        engine_of("llama-3.1-8b", "a100-80gb-sxm", kv_dtype="int7")


def test_kv_element_bytes() -> None:
    # FlashMLA's FP8 layout keeps 656 bytes for the 576 elements of a latent.
    assert KV_ELEMENT_BYTES["fp8_ds_mla"] * 576 == pytest.approx(656, rel=1e-15)
    assert KV_ELEMENT_BYTES["fp8"] * 2 == KV_ELEMENT_BYTES["bf16"] == 2.0


def test_low_precision_falls_back_to_weights_only(engine_of: EngineOf) -> None:
    """An A100 stores FP8 weights but multiplies in 16 bit."""
    lacking, having = (
        engine_of("llama-3.1-8b", "a100-80gb-sxm", scheme="fp8"),
        engine_of("llama-3.1-8b", "h100-sxm", scheme="fp8"),
    )
    assert any("no fp8" in note for note in lacking.setup.assumed)
    assert not having.setup.assumed
    assert {m.dtype for layer, _ in lacking.stages[0].blueprint.layers for m in layer.projections} == {"bf16"}
    assert {m.dtype for layer, _ in having.stages[0].blueprint.layers for m in layer.projections} == {"fp8"}
    own, other = (
        [m.weight_bytes for layer, _ in e.stages[0].blueprint.layers for m in layer.projections]
        for e in (lacking, having)
    )
    assert own == pytest.approx(other, rel=1e-3)


def test_devices_match_the_stages(engine_of: EngineOf) -> None:
    with pytest.raises(SpecError, match="pipeline stages"):
        engine_of("llama-3.1-8b", "a100-80gb-sxm", "h100-sxm")
    mixed = engine_of("llama-3.1-8b", "a100-80gb-sxm", "h100-sxm", layout=Layout(pp=2))
    assert [mixed.setup.device_of_stage(i).name for i in range(2)] == ["a100-80gb-sxm", "h100-sxm"]
    alike = engine_of("llama-3.1-8b", "h100-sxm", layout=Layout(pp=2))
    assert [alike.setup.device_of_stage(i).name for i in range(2)] == ["h100-sxm", "h100-sxm"]
