"""Elasticities: Euler's theorem on homogeneous times, tree shares, arrays, whole units, and ends that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfmodel.estimate import leaf_shares
from perfmodel.plan.knobs import Scene, figures_in, knobs_of, together, with_figure
from perfmodel.plan.sensitivity import Effect, effects, outputs, steady_of
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.question import Question, case_of

SceneOf = Callable[..., Scene]


@pytest.fixture(scope="module")
def scene_of(catalogue: Catalogue) -> SceneOf:
    def scene(model: str = "llama-3.1-8b", hardware: str = "a100-80gb-sxm", tp: int = 2, **load: object) -> Scene:
        question = Question(
            model=model, hardware=hardware, deployment=Deployment(tp=tp), input_tokens=1000, output_tokens=200
        )
        wanted: dict[str, object] = {"concurrency": 16.0, "input_tokens": 1000.0, "output_tokens": 200.0}
        return Scene(case=case_of(catalogue, question), **(wanted | load))  # type: ignore[arg-type]

    return scene


def elasticity(found: tuple[Effect, ...], output: str) -> dict[str, float]:
    return {e.knob.name: float(e.elasticity[output]) for e in found}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite"])
def test_times_are_homogeneous_in_what_they_are_made_of(scene_of: SceneOf, model: str) -> None:
    """Every time of the hardware doubled and every rate halved doubles every time: elasticities add up to one.

    Start and launch times lie in the calibration and in the runtime, latencies and rates in device and system.
    """
    scene = scene_of(model)
    found = effects(scene)
    for output in ("tpot_s", "e2e_s"):
        total = 0.0
        for name, value in elasticity(found, output).items():
            part = name.rsplit(".", 1)[-1]
            is_time = part in ("launch", "chain", "start", "peer", "latency", "poll") or "host_" in name
            is_rate = ".rates[" in name or part in ("bandwidth", "bandwidth_per_direction")
            if is_time:
                total += value
            elif is_rate and not name.startswith("calibration."):
                total -= value
        assert total == pytest.approx(1.0, abs=2e-4)


def test_they_agree_with_the_shares_of_the_tree(scene_of: SceneOf) -> None:
    """Where counts of steps do not depend on times, d ln t / d ln bandwidth is minus the share of its leaves."""
    scene = scene_of(concurrency=1.0)
    tree = steady_of(scene).one.tpot
    found = elasticity(effects(scene), "tpot_s")
    shares = {"device.memory[dram].bandwidth": 0.0, "device.matrix.rates[bf16]": 0.0}
    for leaf, share in leaf_shares(tree):
        names = dict(leaf.inputs)
        if "peak_flop_per_s" in names:
            peak = scene.case.setup.devices[0].peak_flop_per_s("bf16")
            shares["device.matrix.rates[bf16]"] += float(share) * (names["peak_flop_per_s"] == peak)
        elif "memory_frac" in names:
            shares["device.memory[dram].bandwidth"] += float(share)
    for name, share in shares.items():
        assert -found[name] == pytest.approx(share, rel=2e-3)


def test_signs_are_those_of_nature(scene_of: SceneOf) -> None:
    found = effects(scene_of(usd_per_device_hour=2.0))
    tpot, cost = elasticity(found, "tpot_s"), elasticity(found, "usd_per_million_tokens")
    memory = elasticity(found, "kv_tokens")
    assert tpot["device.memory[dram].bandwidth"] < 0 < tpot["workload.concurrency"]
    assert tpot["model.n_layers"] == pytest.approx(1.0, abs=0.15)
    assert cost["price.usd_per_device_hour"] == pytest.approx(1.0)
    assert memory["device.usable_memory"] > 1.0 > 0.0 > memory["model.d_ff"]


def test_loads_run_as_arrays(scene_of: SceneOf) -> None:
    users = np.array([1.0, 8.0, 64.0])
    together_at_once = effects(scene_of(concurrency=users))
    for i, n in enumerate(users):
        alone = {e.knob.name: e for e in effects(scene_of(concurrency=float(n)))}
        for effect in together_at_once:
            if effect.knob.name in alone:
                one = float(alone[effect.knob.name].elasticity["e2e_s"])
                assert float(effect.elasticity["e2e_s"][i]) == pytest.approx(one, abs=1e-9)


def test_the_ends_of_a_change_are_whole_evaluations(scene_of: SceneOf) -> None:
    scene = scene_of()
    effect = next(e for e in effects(scene, change_frac=0.2) if e.knob.name == "device.memory[dram].bandwidth")
    fast = outputs(effect.knob.turned(scene, 1.2))
    np.testing.assert_allclose(effect.high["tpot_s"], fast["tpot_s"], rtol=1e-12)
    assert effect.swing("tpot_s") > 0


def test_an_end_that_does_not_fit_is_nan(scene_of: SceneOf) -> None:
    scene = scene_of(hardware="rtx-4090", tp=1, concurrency=1.0)
    found = {e.knob.name: e for e in effects(scene, change_frac=0.5)}
    assert np.isnan(found["device.usable_memory"].low["kv_tokens"])
    assert np.isfinite(found["device.usable_memory"].high["kv_tokens"])


def test_a_step_is_marked_and_takes_the_flatter_side(scene_of: SceneOf) -> None:
    """A prompt of 2000 tokens beside 47 others just fits a budget of 2048: a little longer takes a second step."""
    scene = scene_of("deepseek-r1-distill-qwen-32b", tp=4, concurrency=48.0, input_tokens=2000.0)
    effect = next(e for e in effects(scene) if e.knob.name == "workload.input_tokens")
    assert "ttft_s" in effect.jumps
    assert abs(float(effect.elasticity["ttft_s"])) < 3.0


def test_figures_are_found_and_replaced(catalogue: Catalogue) -> None:
    device = catalogue.device("a100-80gb-sxm")
    found = {label: (path, value) for label, path, value in figures_in(device)}
    path, value = found["memory[dram].bandwidth"]
    assert value == device.dram_bytes_per_s
    faster = with_figure(device, path, 2 * value)
    assert faster.dram_bytes_per_s == 2 * value
    assert device.dram_bytes_per_s == value
    assert {
        "matrix.rates[bf16]",
        "matrix.rates[int8]",
        "usable_memory",
        "links[nvlink].bandwidth_per_direction",
    } <= set(found)


def test_several_figures_turn_together(scene_of: SceneOf) -> None:
    """All rates twice as fast and all times half as long: the time per token halves."""
    scene = scene_of()
    base = outputs(scene)["tpot_s"]
    knobs = {k.name: k for k in knobs_of(scene, (steady_of(scene).one.e2e,))}
    rates = [k for name, k in knobs.items() if ".rates[" in name or name.endswith(("bandwidth", "_per_direction"))]
    rates = [k for k in rates if not k.name.startswith("calibration.")]
    times = [
        k
        for name, k in knobs.items()
        if "host_" in name or name.endswith(("launch", "chain", "start", "peer", "latency"))
    ]
    faster = together("rates", rates).turned(scene, 2.0)
    both = together("times", times).turned(faster, 0.5)
    assert float(outputs(both)["tpot_s"]) == pytest.approx(float(base) / 2, rel=1e-6)
