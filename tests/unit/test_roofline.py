"""The roofline: hand-checked points, laws that every picture keeps, and files that can be written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfmodel.errors import SpecError
from perfmodel.report.roofline import roofline_figure, save_roofline
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.layout import Layout
from perfmodel.specs.setup import Setup, Speculation
from perfmodel.step.request import request_estimate
from perfmodel.step.roofline import Roofline, roofline
from perfmodel.step.step import Engine

CATALOGUE = Catalogue.standard()
NUMBERS = {"batch": 8.0, "input_tokens": 1024.0, "output_tokens": 512.0, "token_budget": 4096.0}


def engine(
    model: str,
    device: str,
    *,
    runtime: str = "vllm-0.6.3",
    calibration: str = "prior",
    scheme: str | None = None,
    layout: Layout | None = None,
    speculation: Speculation | None = None,
    second_device: str | None = None,
) -> Engine:
    """Return an engine of catalogued parts."""
    choice, hardware, cut = CATALOGUE.model(model), CATALOGUE.hardware(device).device, layout or Layout()
    devices = (hardware, CATALOGUE.device(second_device)) if second_device else (hardware,)
    setup = Setup(
        model=choice.model,
        scheme=CATALOGUE.scheme(scheme or choice.scheme),
        layout=cut,
        runtime=CATALOGUE.runtime(runtime),
        devices=devices,
        system=CATALOGUE.usual_system(hardware, cut.tp * cut.pp * cut.dp),
        dtype="auto",
        kv_dtype="auto",
        speculation=speculation,
    )
    return Engine(setup.resolved(), CATALOGUE.calibration(calibration))


ENGINES = {
    "dense": lambda: engine("llama-3.1-8b", "a100-80gb-sxm"),
    "ideal": lambda: engine("llama-3.1-8b", "a100-80gb-sxm", calibration="ideal"),
    "eager": lambda: engine("llama-3.1-8b", "a100-80gb-sxm", runtime="pytorch-eager"),
    "latent_on_ascend": lambda: engine("deepseek-v2-lite", "ascend-910b2", runtime="vllm-ascend-0.9"),
    "fp8_tp8": lambda: engine("deepseek-v3", "h200-sxm", runtime="vllm-0.11", layout=Layout(tp=8)),
    "two_stages": lambda: engine("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=2)),
    "speculative": lambda: engine("llama-3.1-8b", "a100-80gb-sxm", speculation=Speculation(3, 2.5)),
}


@pytest.fixture(scope="module", params=list(ENGINES))
def case(request: pytest.FixtureRequest) -> tuple[Engine, Roofline]:
    """Return an engine and its roofline."""
    built = ENGINES[request.param]()
    return built, roofline(built, **NUMBERS)


def test_the_ridge_is_peak_over_bandwidth() -> None:
    data = roofline(engine("deepseek-v2-lite", "ascend-910b2", runtime="vllm-ascend-0.9"), **NUMBERS)
    assert data.ridge_flop_per_byte("bf16") == pytest.approx(353.9e12 / 1600e9, rel=1e-12)
    assert data.ridge_flop_per_byte("int8", level="l2") == pytest.approx(707.8e12 / 7e12, rel=1e-12)
    assert data.ridge_flop_per_byte("fp32", engine="vector") == pytest.approx(11.06e12 / 1600e9, rel=1e-12)
    with pytest.raises(SpecError, match="no ridge of fp8"):
        data.ridge_flop_per_byte("fp8")


def test_memory_levels_are_of_the_whole_device_with_main_memory_first() -> None:
    data = roofline(engine("deepseek-v2-lite", "ascend-910b2", runtime="vllm-ascend-0.9"), **NUMBERS)
    found = [(m.name, m.bytes_per_s) for m in data.memories]
    assert found == [
        ("HBM2e", 1600e9),
        ("L2", 7e12),
        ("L1 buffer", pytest.approx(24 * 691e9)),
        ("unified buffer", pytest.approx(48 * 461e9)),
    ]
    assert {c.name: c.is_used for c in data.ceilings} == {
        "int4": False, "int8": False, "bf16": True, "fp16": False, "tf32": False, "fp32": False, "fp32 vector": True,
    }  # fmt: skip


def test_no_point_is_above_its_roof(case: tuple[Engine, Roofline]) -> None:
    """Vector kernels whose operands fit the last cache reach its diagonal; all others that of main memory."""
    engine, data = case
    cache = engine.setup.device_of_stage(0).last_cache_bytes
    peaks = {(c.dtype, c.engine): c.flop_per_s for c in data.ceilings}
    for p in data.points:
        roof = min(peaks[p.dtype, p.engine], p.intensity_flop_per_byte * data.memories[0].bytes_per_s)
        assert p.bound_flop_per_s == pytest.approx(roof, rel=1e-12)
        is_held = p.engine == "vector" and p.n_bytes / p.n_launches < 2.0 * cache
        reached = data.memories[1 if is_held else 0].bytes_per_s
        highest = min(peaks[p.dtype, p.engine], p.intensity_flop_per_byte * reached)
        assert 0 < p.predicted_flop_per_s <= highest * (1 + 1e-12)
        assert p.predicted_flop_per_s * p.time_s == pytest.approx(p.flop, rel=1e-12)


def test_shares_of_a_step_add_up_to_one(case: tuple[Engine, Roofline]) -> None:
    _, data = case
    for phase in ("prefill", "decode"):
        own = [p.time_share for p in data.points if p.phase == phase]
        own += [o.time_share for o in data.others if o.phase == phase]
        assert min(own) >= 0
        assert sum(own) == pytest.approx(1.0, abs=1e-12)


def test_operators_add_up_to_the_device_time_of_the_step(case: tuple[Engine, Roofline]) -> None:
    """What is summed by name is what the step prices: nothing is missing, nothing counted twice."""
    built, data = case
    whole = request_estimate(built, **NUMBERS)
    for phase, root in (("prefill", whole.ttft), ("decode", whole.tpot)):
        on_device = sum(x.time_s for x in data.points if x.phase == phase)
        on_device += sum(x.time_s for x in data.others if x.phase == phase and x.kind in ("message", "kernel"))
        passed = [node for node in root.nodes() if re.fullmatch(r"stage_\d", node.name)][: len(built.stages)]
        assert on_device == pytest.approx(sum(float(stage.find("device").value) for stage in passed), rel=1e-12)


def test_the_steps_are_those_of_a_request() -> None:
    built = engine("llama-3.1-8b", "a100-80gb-sxm")
    data, whole = roofline(built, **NUMBERS), request_estimate(built, **NUMBERS)
    prefill, decode = data.steps
    assert decode.step_s == pytest.approx(float(whole.tpot.value), rel=1e-12)
    assert prefill.step_s * float(whole.n_prefill_steps) == pytest.approx(float(whole.ttft.value), rel=1e-12)
    assert (prefill.n_tokens, decode.n_seqs) == (4096.0, 8.0)


def test_intensity_of_a_matmul_by_hand() -> None:
    """Decode of 8 rows through llama-3.1-8b's down projection: 14336 x 4096, bf16, 32 layers."""
    data = roofline(engine("llama-3.1-8b", "a100-80gb-sxm", calibration="ideal"), **NUMBERS)
    down = next(p for p in data.points if (p.name, p.phase) == ("down_proj", "decode"))
    flop = 2 * 8 * 14336 * 4096
    n_bytes = 2 * 14336 * 4096 + 2 * 8 * (14336 + 4096)
    assert (down.flop, down.n_bytes, down.n_launches) == (32 * flop, 32 * n_bytes, 32)
    assert down.intensity_flop_per_byte == pytest.approx(flop / n_bytes, rel=1e-12)
    assert down.bound_flop_per_s == pytest.approx(flop / n_bytes * 2039e9, rel=1e-12)
    assert down.bound.value == "weight_read"
    assert down.roof_frac == pytest.approx(1.0, rel=1e-9)


def test_messages_have_no_place_under_the_roof_but_a_share() -> None:
    data = roofline(ENGINES["fp8_tp8"](), **NUMBERS)
    kinds = {o.name: o.kind for o in data.others if o.phase == "decode"}
    assert kinds["attention_all_reduce"] == "message"
    assert kinds["embed_tokens"] == "kernel"
    assert kinds["host"] == "host"
    assert not {p.name for p in data.points} & set(kinds)
    assert data.layout == "TP 8"


def test_stages_on_another_device_are_only_timed() -> None:
    built = engine("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=2), second_device="h200-sxm")
    data = roofline(built, **NUMBERS)
    other = [o for o in data.others if o.kind == "other_device"]
    assert {o.phase for o in other} == {"prefill", "decode"}
    assert all("H200" in o.name for o in other)
    assert "lm_head" not in {p.name for p in data.points}


def test_rows_have_the_same_keys_and_hold_every_point(case: tuple[Engine, Roofline]) -> None:
    _, data = case
    rows = data.as_rows()
    assert len({tuple(row) for row in rows}) == 1
    kinds = [row["kind"] for row in rows]
    assert kinds.count("operator") == len(data.points)
    assert kinds.count("ridge") == len(data.ceilings) * len(data.memories)
    assert len(rows) == sum(map(len, (data.ceilings, data.memories, data.ridges, data.points, data.others)))


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(SpecError, match="at least 1"):
        roofline(engine("llama-3.1-8b", "a100-80gb-sxm"), **{**NUMBERS, "batch": 0.0})


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_the_picture_is_written_by_suffix(tmp_path: Path, suffix: str, start: bytes) -> None:
    data = roofline(engine("deepseek-v2-lite", "ascend-910b2", runtime="vllm-ascend-0.9"), **NUMBERS)
    path = save_roofline(data, tmp_path / f"roofline{suffix}")
    assert path.read_bytes().startswith(start)


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    data = roofline(engine("llama-3.1-8b", "a100-80gb-sxm"), **NUMBERS)
    with pytest.raises(SpecError, match=r"expected one of \.png, \.svg, \.pdf"):
        save_roofline(data, tmp_path / "roofline.jpg")
    with pytest.raises(SpecError, match="suffix none"):
        save_roofline(data, tmp_path / "roofline")
    with pytest.raises(SpecError, match="cannot be written"):
        save_roofline(data, tmp_path / "absent" / "roofline.png")


@pytest.mark.parametrize("name", ["dense", "ideal", "latent_on_ascend", "fp8_tp8"])
def test_labels_do_not_cover_each_other(name: str) -> None:
    """Every upright text of the picture stands clear of every other; the figure says model, device and calibration."""
    data = roofline(ENGINES[name](), **NUMBERS)
    figure = roofline_figure(data)
    figure.canvas.draw()
    panel = figure.axes[0]
    texts = [t for t in panel.texts if t.get_rotation() == 0]
    boxes = [t.get_window_extent().padded(-1.0) for t in texts]
    clashes = [
        (a.get_text(), b.get_text())
        for i, (a, box) in enumerate(zip(texts, boxes, strict=True))
        for b, other in zip(texts[:i], boxes[:i], strict=True)
        if box.overlaps(other)
    ]
    assert clashes == []
    titles = " ".join(t.get_text() for t in figure.texts)
    assert all(word in titles for word in (data.model, data.device, data.calibration, "batch 8", "1024 tokens in"))
