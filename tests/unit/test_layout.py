"""Layouts: what cannot be cut is refused with every obstacle named, and stages cover the layers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import SpecError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.layout import Layout

SIZES = ("tp", "pp", "dp", "ep", "dcp")


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [0, -1, 1.5, 4097, True, "2", None, float("nan")])
def test_sizes_are_whole_numbers(name: str, size: Any) -> None:
    with pytest.raises(SpecError, match=name):
        Layout(**{name: size})


def test_every_bad_size_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        Layout(tp=0, pp=-1, dp=0, ep=0, dcp=0)
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize(
    ("sizes", "match"),
    [
        ({"tp": 4, "ep": 3}, "a divisor of tp x dp = 4"),
        ({"tp": 4, "dp": 2, "ep": 16}, "a divisor of tp x dp = 8"),
        ({"tp": 4, "dcp": 3}, "a divisor of tp = 4"),
        ({"pp": 2, "stage_layers": (1, 2, 3)}, "2 numbers"),
        ({"pp": 2, "stage_layers": (4, 0)}, "2 numbers of at least 1"),
    ],
)
def test_sizes_must_agree(sizes: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        Layout(**sizes)


def test_counts_by_hand() -> None:
    layout = Layout(tp=4, pp=2, dp=2, ep=4)
    assert layout.n_devices == 16
    assert layout.n_expert_ranks == 8  # tp x dp ranks of a stage
    assert layout.expert_tp == 2  # 8 ranks in 4 groups
    assert Layout(pp=2, stage_layers=(3, 5)).stages(8) == ((0, 3), (3, 8))
    assert Layout(pp=3).stages(8) == ((0, 3), (3, 6), (6, 8))


@given(st.integers(1, 12), st.integers(1, 130))
@settings(max_examples=60, deadline=None)
def test_stages_cover_all_layers_evenly(pp: int, n_layers: int) -> None:
    if n_layers < pp:
        with pytest.raises(SpecError):
            Layout(pp=pp).stages(n_layers)
        return
    stages = Layout(pp=pp).stages(n_layers)
    assert [layer for start, stop in stages for layer in range(start, stop)] == list(range(n_layers))
    sizes = [stop - start for start, stop in stages]
    assert max(sizes) - min(sizes) <= 1


def test_stage_layers_must_add_up() -> None:
    with pytest.raises(SpecError, match=r"add up to 8"):
        Layout(pp=2, stage_layers=(3, 4)).stages(8)


@pytest.mark.parametrize(
    ("name", "layout", "match"),
    [
        ("llama-3.1-8b", Layout(tp=3), "a divisor of the 32 attention heads"),
        ("llama-3.1-8b", Layout(tp=64), "a divisor of the 32 attention heads"),
        ("llama-3.1-8b", Layout(tp=2, ep=2), "this model has no experts"),
        ("llama-3.1-8b", Layout(pp=33), "33 pipeline stages"),
        ("qwen2.5-7b", Layout(tp=8), "a divisor of the 28 attention heads"),
        ("falcon-180b", Layout(tp=29), "heads"),
        ("qwen3-235b-a22b", Layout(tp=8, ep=256, dp=32), "at most the 128 experts"),
        ("deepseek-v2-lite", Layout(tp=32), "a divisor of the 16 attention heads"),
        ("qwen3-next-80b-a3b", Layout(tp=3), "heads"),
        ("mixtral-8x7b", Layout(tp=8, dp=4096, ep=1), "a divisor of the expert width 14336"),
    ],
)
def test_what_cannot_be_cut_is_refused(catalogue: Catalogue, name: str, layout: Layout, match: str) -> None:
    with pytest.raises(SpecError, match=match) as caught:
        layout.checked_for(catalogue.model(name).model)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.1-8b", Layout(tp=16)),  # beyond its 8 KV heads: they are replicated
        ("llama-3.1-8b", Layout(tp=8, pp=4, dp=2)),
        ("deepseek-v3", Layout(tp=8, ep=8)),
        ("deepseek-v3", Layout(dp=256, ep=256)),
        ("deepseek-v3", Layout(tp=8, dcp=8)),
        ("qwen3-next-80b-a3b", Layout(tp=4)),
    ],
)
def test_what_can_be_cut_is_returned(catalogue: Catalogue, name: str, layout: Layout) -> None:
    assert layout.checked_for(catalogue.model(name).model) is layout


def test_context_parallelism_needs_replicated_heads(catalogue: Catalogue) -> None:
    """Four ranks with two of eight KV heads each, a quarter of the tokens each: two heads' worth of cache in all.

    vLLM refuses dcp beyond tp / KV heads for the same reason.
    """
    with pytest.raises(SpecError):
        Layout(tp=4, dcp=4).checked_for(catalogue.model("llama-3.1-8b").model)


def test_a_cache_that_every_rank_holds_can_be_cut_over_all(catalogue: Catalogue) -> None:
    """MLA and the compressed cache of V4 are whole on each tensor-parallel rank."""
    for name in ("deepseek-v3", "deepseek-v4-flash"):
        layout = Layout(tp=8, dcp=8)
        assert layout.checked_for(catalogue.model(name).model) is layout
