"""Steps and requests: pipelines, microbatches, speculation, offload and host time by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel.estimate import Bound, Estimate, bound_shares
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.setup import Speculation
from perfmodel.step.energy import power_w
from perfmodel.step.request import RequestEstimate, decode_slice, prefill_slice, request_estimate
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice

EngineOf = Callable[..., Engine]

SLICES = (Slice("prefill", 1.0, 512.0, 1.0, 512.0),)


def request(
    engine: Engine, *, batch: float = 1.0, isl: float = 1024.0, osl: float = 128.0, budget: float = 8192.0
) -> Any:
    return request_estimate(engine, batch=batch, input_tokens=isl, output_tokens=osl, token_budget=budget)


def seconds(tree: Estimate) -> float:
    return float(np.asarray(tree.value))


# --- pipelines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_one_step_passes_all_stages(engine_of: EngineOf, pp: int) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=pp))
    stages = [seconds(engine.stage_step(stage, SLICES)) for stage in engine.stages]
    assert seconds(engine.pipelined("x", SLICES, n_steps=1.0)) == pytest.approx(sum(stages), rel=1e-14)
    assert seconds(engine.step("x", SLICES)) == pytest.approx(sum(stages), rel=1e-14)


@pytest.mark.parametrize("n_steps", [2.0, 7.0, 100.0])
def test_each_further_step_adds_the_slowest_stage(engine_of: EngineOf, n_steps: float) -> None:
    """GPipe: n steps through p even stages take (n + p - 1) stage times, a bubble of (p - 1) / n."""
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=4))
    stages = [seconds(engine.stage_step(stage, SLICES)) for stage in engine.stages]
    whole = seconds(engine.pipelined("x", SLICES, n_steps=n_steps))
    assert whole == pytest.approx(sum(stages) + (n_steps - 1) * max(stages), rel=1e-14)


def test_a_larger_first_step_fills_the_pipeline(engine_of: EngineOf) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=2))
    first = (Slice("prefill", 2.0, 512.0, 1.0, 512.0),)
    small, large = ([seconds(engine.stage_step(s, x)) for s in engine.stages] for x in (SLICES, first))
    found = seconds(engine.pipelined("x", SLICES, n_steps=3.0, first=first))
    assert found == pytest.approx(sum(large) + 2 * max(small), rel=1e-14)


def test_a_prompt_just_beyond_the_budget_gains_nothing(engine_of: EngineOf) -> None:
    """With four stages and equal steps, 8193 tokens under a budget of 8192 would take a third less time than 8192."""
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=4))
    fits, beyond = (seconds(request(engine, isl=isl).ttft) for isl in (8192.0, 8193.0))
    assert fits < beyond < 1.3 * fits


def test_microbatches_keep_the_stages_busy(engine_of: EngineOf) -> None:
    """Two stages: one sequence waits for both; two sequences, one on each, take no longer than the slower twice."""
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=2))
    one = (Slice("decode", 1.0, 1.0, 500.0, 500.0),)
    stages = [seconds(engine.stage_step(stage, one)) for stage in engine.stages]
    assert seconds(engine.step("x", one, n_microbatches=1.0)) == pytest.approx(sum(stages))
    assert seconds(engine.step("x", one, n_microbatches=2.0)) == pytest.approx(2 * max(stages))
    assert seconds(engine.step("x", one, n_microbatches=3.0)) == pytest.approx(3 * max(stages))


def test_uneven_stages_are_paced_by_the_longer(engine_of: EngineOf) -> None:
    even, uneven = (
        engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(pp=2, stage_layers=layers))
        for layers in ((16, 16), (24, 8))
    )
    assert [stage.blueprint.n_layers for stage in uneven.stages] == [24, 8]
    times = [seconds(uneven.stage_step(stage, SLICES)) for stage in uneven.stages]
    assert times[0] > 2 * times[1]
    assert seconds(request(uneven, batch=64.0).tpot) > seconds(request(even, batch=64.0).tpot)


def test_mixed_cards_each_run_at_their_own_pace(engine_of: EngineOf) -> None:
    """An A100 and an H100 in one pipeline: each stage takes what it takes in a pipeline of its own kind."""
    layout = Layout(pp=2)
    mixed = engine_of("llama-3.1-8b", "a100-80gb-sxm", "h100-sxm", layout=layout)
    alike = [engine_of("llama-3.1-8b", name, layout=layout) for name in ("a100-80gb-sxm", "h100-sxm")]
    last = seconds(mixed.stage_step(mixed.stages[1], SLICES))
    assert last == seconds(alike[1].stage_step(alike[1].stages[1], SLICES))
    ttft = [seconds(request(e, batch=4.0).ttft) for e in (alike[1], mixed, alike[0])]
    assert ttft == sorted(ttft)


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_request_is_its_parts(engine_of: EngineOf) -> None:
    found: RequestEstimate = request(engine_of("llama-3.1-8b", "a100-80gb-sxm"), batch=4.0, osl=100.0)
    ttft, tpot, e2e = seconds(found.ttft), seconds(found.tpot), seconds(found.e2e)
    assert e2e == pytest.approx(ttft + 99 * tpot, rel=1e-14)
    assert found.output_tokens_per_s == pytest.approx(4 * 100 / e2e)
    assert found.requests_per_s == pytest.approx(4 / e2e)
    assert found.prefill_tokens_per_s == pytest.approx(4 * 1024 / ttft)


def test_one_output_token_needs_no_decoding(engine_of: EngineOf) -> None:
    found = request(engine_of("llama-3.1-8b", "a100-80gb-sxm"), osl=1.0)
    assert seconds(found.e2e) == seconds(found.ttft)


@pytest.mark.parametrize(
    ("batch", "isl", "budget", "n_steps"),
    [(1, 100, 8192, 1), (1, 8192, 8192, 1), (1, 8193, 8192, 2), (10, 4000, 8192, 5)],
)
def test_prefill_steps_by_hand(engine_of: EngineOf, batch: float, isl: float, budget: float, n_steps: int) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm")
    assert request(engine, batch=float(batch), isl=float(isl), budget=float(budget)).n_prefill_steps == n_steps


def test_the_mean_decode_step_is_the_mean_of_all_steps(engine_of: EngineOf) -> None:
    """Where time is linear in context, pricing the mean context is exact: compare with each step priced apart."""
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", calibration="ideal")
    mean = seconds(request(engine, batch=8.0, isl=1000.0, osl=65.0).tpot)
    contexts = range(1001, 1065)
    steps = [seconds(engine.step("x", (Slice("decode", 8.0, 1.0, float(c), float(c)),))) for c in contexts]
    assert mean == pytest.approx(np.mean(steps), rel=1e-9)


def test_data_parallel_ranks_share_the_batch(engine_of: EngineOf) -> None:
    """8 ranks with 3 sequences each: 24 in all, and 17 take as long, since one rank has 3."""
    engine = engine_of("deepseek-v3", "h200-sxm", layout=Layout(dp=8, ep=8))
    assert seconds(request(engine, batch=24.0).tpot) == seconds(request(engine, batch=17.0).tpot)
    assert seconds(request(engine, batch=16.0).tpot) < seconds(request(engine, batch=17.0).tpot)


def test_slices_by_hand() -> None:
    assert decode_slice(3.0, 100.0, 5.0) == Slice("decode", 3.0, 1.0, 101.0, 104.0)
    assert decode_slice(3.0, 100.0, 1.0).last_attended == 101.0
    assert prefill_slice(6.0, 100.0, n_steps=2.0) == Slice("prefill", 3.0, 100.0, 1.0, 100.0, 0.0)
    assert prefill_slice(1.0, 100.0, n_steps=4.0) == Slice("prefill", 0.25, 100.0, 1.0, 100.0, 37.5)


# --- speculation, offload, host --------------------------------------------------------------------------------------


def test_a_token_takes_its_share_of_a_speculative_step(engine_of: EngineOf) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", speculation=Speculation(3, 2.5))
    found = request(engine)
    assert seconds(found.tpot) == pytest.approx(seconds(found.tpot.find("speculative_step")) / 2.5, rel=1e-14)


@pytest.mark.parametrize(("osl", "steps"), [(1.0, 0.0), (2.0, 1.0), (3.0, 1.0), (11.0, 4.0)])
def test_speculation_takes_whole_steps_at_least(engine_of: EngineOf, osl: float, steps: float) -> None:
    """One token after the first takes a whole step, though 2.5 come out of it; ten take 10 / 2.5 = 4."""
    found = request(engine_of("llama-3.1-8b", "a100-80gb-sxm", speculation=Speculation(3, 2.5)), osl=osl)
    step = seconds(found.tpot.find("speculative_step"))
    assert seconds(found.e2e) - seconds(found.ttft) == pytest.approx(steps * step, rel=1e-9, abs=1e-12)


def test_more_acceptance_is_faster_and_none_is_a_loss(engine_of: EngineOf) -> None:
    plain = seconds(request(engine_of("llama-3.1-8b", "a100-80gb-sxm")).tpot)
    tpot = [
        seconds(request(engine_of("llama-3.1-8b", "a100-80gb-sxm", speculation=Speculation(3, n))).tpot)
        for n in (1.0, 2.0, 3.0, 4.0)
    ]
    assert tpot == sorted(tpot, reverse=True)
    assert tpot[0] > plain > tpot[-1]


def test_offloaded_weights_cross_the_host_link_each_step(engine_of: EngineOf) -> None:
    """4 GiB of each rank over the A100's PCIe link, at its calibrated share; a pipeline's ranks each have a link."""
    n_bytes = 4.0 * 2**30
    for layout in (Layout(), Layout(pp=2)):
        plain, less = (
            engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=layout, offload_bytes=n) for n in (0.0, n_bytes)
        )
        stage = less.stages[0]
        link = next(link for link in less.setup.devices[0].links if link.kind.startswith("pcie"))
        share = stage.kernels.device.collective(link.kind)[1].value
        extra = seconds(less.stage_step(stage, SLICES)) - seconds(plain.stage_step(plain.stages[0], SLICES))
        assert extra == pytest.approx(n_bytes / (share * link.bandwidth_per_direction.value), rel=1e-9)
        assert bound_shares(less.stage_step(stage, SLICES))[Bound.LINK] > 0


def test_no_more_can_be_offloaded_than_there_is(engine_of: EngineOf) -> None:
    """Llama-3.1-8B holds 16.06 GB in 16 bit: offloading 20 GiB or 2000 is the same."""
    some, many = (
        seconds(request(engine_of("llama-3.1-8b", "a100-80gb-sxm", offload_bytes=n * 2.0**30)).tpot) for n in (20, 2000)
    )
    assert some == many
    stage = engine_of("llama-3.1-8b", "a100-80gb-sxm", offload_bytes=1.0).stages[0]
    assert stage.weight_bytes == 8_030_261_248 * 2


def test_eager_launches_may_be_what_is_slow(engine_of: EngineOf) -> None:
    """A small model launched kernel by kernel waits for the host; replayed from a graph it does not."""
    eager, graph = (engine_of("qwen2.5-0.5b", "h100-sxm", runtime=name) for name in ("pytorch-eager", "vllm-0.11"))
    assert bound_shares(request(eager).tpot)[Bound.HOST] > 0.5
    assert seconds(request(eager).tpot) > 2 * seconds(request(graph).tpot)


def test_physics_alone_has_no_host_and_no_latency(engine_of: EngineOf) -> None:
    for calibration in ("ideal", "hard-bound"):
        found = request(engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(tp=2), calibration=calibration))
        shares = bound_shares(found.e2e)
        assert not {Bound.HOST} & set(shares)
        assert all(float(np.asarray(shares.get(b, 0.0))) == 0 for b in (Bound.LAUNCH,))


# --- energy ----------------------------------------------------------------------------------------------------------


def test_power_lies_between_idle_and_board_power(catalogue: Catalogue) -> None:
    device = catalogue.device("a100-80gb-sxm")
    tdp, idle_frac = device.power.tdp, catalogue.usual_values().idle_power_frac.value
    assert tdp is not None
    idle = device.power.idle.value if device.power.idle else idle_frac * tdp.value
    assert power_w(device, mfu_frac=0.0, mbu_frac=0.0, idle_power_frac=idle_frac) == idle
    assert power_w(device, mfu_frac=0.1, mbu_frac=1.0, idle_power_frac=idle_frac) == tdp.value
    assert power_w(device, mfu_frac=2.0, mbu_frac=0.0, idle_power_frac=idle_frac) == tdp.value
    half = power_w(device, mfu_frac=0.5, mbu_frac=0.2, idle_power_frac=idle_frac)
    assert half == pytest.approx((idle + tdp.value) / 2)
    rows = np.asarray(power_w(device, mfu_frac=np.linspace(0, 1, 11), mbu_frac=0.3, idle_power_frac=idle_frac))
    assert np.all(np.diff(rows) >= 0)


def test_power_is_unknown_where_no_board_power_is_stated(catalogue: Catalogue) -> None:
    device = catalogue.device("a100-80gb-sxm")
    bare: Device = device.model_copy(update={"power": device.power.model_copy(update={"tdp": None})})
    assert power_w(bare, mfu_frac=0.5, mbu_frac=0.5, idle_power_frac=0.2) is None
