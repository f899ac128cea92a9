"""Steps and operators through the levels: bytes never fall towards the core, and what is counted is all of a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfmodel.cost.hierarchy import level_bytes, tiles_of
from perfmodel.report.levels import levels_lines
from perfmodel.report.roofline import roofline_figure
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.levels import StepLevels, step_levels
from perfmodel.step.request import prefill_slice
from perfmodel.step.roofline import Roofline, roofline
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Work
from perfmodel.work.traffic import MatmulShape

EngineOf = Callable[..., Engine]
ASKED = (("llama-3.1-8b", "a100-80gb-sxm"), ("deepseek-v2-lite", "ascend-910b2"), ("qwen3-30b-a3b", "h100-sxm"))
NUMBERS = {"batch": 8.0, "input_tokens": 1024.0, "output_tokens": 64.0, "token_budget": 4096.0}


def drawn(engine_of: EngineOf, catalogue: Catalogue, model: str, device: str) -> Roofline:
    return roofline(engine_of(model, device), catalogue.core_of(catalogue.device(device)), **NUMBERS)


@pytest.mark.parametrize(("model", "device"), ASKED)
def test_intensity_falls_towards_the_core_and_no_roof_is_broken(
    engine_of: EngineOf, catalogue: Catalogue, model: str, device: str
) -> None:
    data = drawn(engine_of, catalogue, model, device)
    plain = roofline(engine_of(model, device), **NUMBERS)
    assert [p.time_s for p in data.points] == [p.time_s for p in plain.points]  # drawing levels changes no prediction
    for point in data.points:
        intensities = [level.intensity_flop_per_byte for level in point.levels]
        assert intensities == sorted(intensities, reverse=True)
        assert point.levels[0].n_bytes >= point.n_bytes * (1 - 1e-9)
        peak = next(c.flop_per_s for c in data.ceilings if (c.dtype, c.engine) == (point.dtype, point.engine))
        for level in point.levels:
            assert level.bound_flop_per_s <= peak
            assert level.bound_flop_per_s <= level.intensity_flop_per_byte * max(m.bytes_per_s for m in data.memories)
    rows = [row for row in data.as_rows() if row["kind"] == "level"]
    assert {row["level"] for row in rows} == {"dram", "l2", "on_chip"}
    assert not any(row["kind"] == "level" for row in plain.as_rows())


def test_a_matmul_of_a_4096_cube_by_hand(catalogue: Catalogue) -> None:
    """1568 MiB through the L2 (test_traffic.py). L0 strips of the whole tile: A 16 times, B 32 times: 1536 MiB on chip,
    which cannot be less than the L2 gives."""
    device = catalogue.device("ascend-910b2")
    core = catalogue.core_of(device)
    shape = MatmulShape(4096.0, 4096.0, 4096.0)
    work = Work(
        "up", "matmul/16bit", "fp16", flop=shape.flop, weight_bytes=float(shape.weight_bytes),
        io_bytes=float(shape.input_bytes + shape.output_bytes), rows=4096.0, depth=4096.0,
    )  # fmt: skip
    levels = level_bytes(work, core, tiles_of(device, core))
    assert [float(size) / 2**20 for size in levels] == [96, 1568, 1568]
    gpu = catalogue.device("a100-80gb-sxm")
    near = level_bytes(work, catalogue.core_of(gpu), tiles_of(gpu, catalogue.core_of(gpu)))
    assert float(near.on_chip_bytes) / 2**20 == 64 * 32 * 2  # 64 x 64 a warp: each matrix of 32 MiB 64 times


def test_prefill_attention_reads_its_cache_once_for_each_block_of_queries(catalogue: Catalogue) -> None:
    """One query head of 128 over 1024 keys, not causal: 4 x 1024 x 1024 x 128 flop. 8 blocks of 128 queries read
    keys and values of 512 KiB: 4 MiB."""
    device = catalogue.device("ascend-910b2")
    core = catalogue.core_of(device)
    work = Work("a", "attention/prefill", "fp16", flop=4.0 * 1024 * 1024 * 128, kv_bytes=512 * 1024.0)
    assert level_bytes(work, core, tiles_of(device, core)).l2_bytes == 4 * 2**20


@pytest.mark.parametrize(("model", "device"), ASKED)
def test_a_step_through_the_levels(engine_of: EngineOf, catalogue: Catalogue, model: str, device: str) -> None:
    engine = engine_of(model, device)
    found = step_levels(engine, catalogue.core_of(catalogue.device(device)), prefill_slice(4.0, 512.0, n_steps=1.0))
    assert found.dram_bytes >= found.weight_bytes > 0
    assert found.l2_bytes >= found.dram_bytes * (1 - 1e-9)
    assert 0 <= found.hit_frac < 1
    assert not found.weights_stay
    assert (found.issue_s is not None) == (device == "ascend-910b2")
    if found.issue_s is not None:
        assert 0 < found.issue_s < found.step_s


def test_lines_say_what_stays() -> None:
    whole = StepLevels("decode", 50e6, 10e6, 61e6, 100e6, 191e6, 1e-3, None)
    large = StepLevels("decode", 5e9, 1e9, 6.1e9, 7e9, 191e6, 1e-3, 1e-5)
    assert "weights (47.68 MiB) stay" in levels_lines([whole])[0]
    assert "would fit" in levels_lines([whole])[0]
    stays, issue = levels_lines([large])
    assert "do not stay" in stays
    assert "does not fit" in stays
    assert "10 us of a decode step (1 %)" in issue
    assert levels_lines([StepLevels("prefill", 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, None)]) == []


def test_explain_says_it_and_json_holds_it(run_cli: Callable[..., Any]) -> None:
    asked = ("estimate", "deepseek-v2-lite", "ascend-910b2", "--batch", "4", "--isl", "512", "--osl", "32", "--explain")
    text = " ".join(run_cli(*asked).out.split())
    assert "L2 in a prefill step: asked for" in text
    assert "starting its vector instructions takes at least" in text
    steps = json.loads(run_cli(*asked, "--json").out)["explanation"]["memory_hierarchy"]
    assert [step["phase"] for step in steps] == ["prefill", "decode"]
    assert all(0 <= step["l2_hit_frac"] < 1 for step in steps)
    assert "L2 in a" not in run_cli(*asked[:-1]).out


def test_the_picture_of_levels(
    engine_of: EngineOf, catalogue: Catalogue, run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    figure = roofline_figure(drawn(engine_of, catalogue, "llama-3.1-8b", "h100-sxm"))
    words = {text.get_text() for text in figure.axes[0].texts}
    assert "the same rate over bytes of the L2" in words
    assert figure.axes[0].get_xlabel().endswith("of the level")
    target = tmp_path / "h.svg"
    ran = run_cli("roofline", "llama-3.1-8b", "h100-sxm", "--hierarchical", "-o", str(target))
    assert ran.code == 0
    assert target.stat().st_size > 10_000
    rows = json.loads(run_cli("roofline", "llama-3.1-8b", "h100-sxm", "--hierarchical", "--json").out)["rows"]
    assert any(row["kind"] == "level" for row in rows)
