"""Answers: figures that agree with each other, limits that bind, and what does not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfmodel.errors import InfeasibleError
from perfmodel.estimate import Bound
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.answer import Answer, Figure, answer_to
from perfmodel.step.question import Question, case_of

FRACTIONS = ("prefill_mfu_frac", "decode_mbu_frac", "decode_mfu_frac")


def answer(catalogue: Catalogue, **changes: Any) -> Answer:
    fields: dict[str, Any] = {
        "hardware": "a100-80gb-sxm", "model": "llama-3.1-8b",
        "batch": 4.0, "input_tokens": 1000.0, "output_tokens": 200.0,
    }  # fmt: skip
    return answer_to(case_of(catalogue, Question(**(fields | changes))), ideal=catalogue.calibration("ideal"))


def value(found: Answer, name: str) -> float:
    return found.figures[name].value


def test_figures_agree_with_each_other(catalogue: Catalogue) -> None:
    found = answer(catalogue)
    e2e = value(found, "ttft_s") + 199 * value(found, "tpot_s")
    assert value(found, "e2e_s") == pytest.approx(e2e, rel=1e-12)
    assert value(found, "output_tokens_per_s") == pytest.approx(4 * 200 / e2e, rel=1e-12)
    assert value(found, "requests_per_s") == pytest.approx(4 / e2e, rel=1e-12)
    assert value(found, "decode_tokens_per_s") == pytest.approx(4 / value(found, "tpot_s"), rel=1e-12)
    for time in ("ttft", "tpot", "e2e"):
        assert value(found, f"{time}_floor_s") <= value(found, f"{time}_s")
        assert sum(share for _, share in found.bounds[time]) == pytest.approx(1.0, abs=1e-9)
        shares = [share for _, share in found.bounds[time]]
        assert shares == sorted(shares, reverse=True)


def test_band_by_hand() -> None:
    figure = Figure.of(2.0, 0.1)
    assert figure.high / 2 == pytest.approx(2 / figure.low) == pytest.approx(math.exp(0.1 * 1.2815515655446004))
    assert Figure.of(2.0, 0.0) == Figure(2.0, 2.0, 2.0)


def test_utilisation_by_hand(catalogue: Catalogue) -> None:
    """Ideal decode of one sequence is all memory traffic: MBU 1. MFU is its flop over what 312 Tflop/s would allow."""
    found = answer(catalogue, batch=1.0, input_tokens=2.0, output_tokens=2.0, calibration="ideal")
    assert value(found, "decode_mbu_frac") == pytest.approx(1.0, abs=0.01)
    flop = 2 * (8_030_261_248 - 128_256 * 4096)
    assert value(found, "decode_mfu_frac") == pytest.approx(flop / 312e12 / value(found, "tpot_s"), rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch": 200.0},
        {"deployment": Deployment(speculative_tokens=3), "acceptance_length": 3.9},
        {"deployment": Deployment(pp=4), "batch": 16.0},
        {"deployment": Deployment(tp=2, pp=2), "batch": 7.0},
        {"model": "deepseek-v3", "hardware": "h200-sxm", "deployment": Deployment(dp=8, ep=8), "batch": 64.0},
        {"model": "gpt-oss-20b", "hardware": "h100-sxm", "batch": 32.0},
    ],
)
@pytest.mark.parametrize("calibration", ["ideal", "prior"])
def test_no_device_is_used_beyond_itself(catalogue: Catalogue, changes: dict[str, Any], calibration: str) -> None:
    found = answer(catalogue, calibration=calibration, **changes)
    for name in FRACTIONS:
        assert 0 < value(found, name) <= 1 + 1e-9, name


def test_microbatches_read_the_weights_again(catalogue: Catalogue) -> None:
    """Four stages, four microbatches: each reads its weights once a microbatch. The last, with the head, is never idle.

    Its 8 layers and head are 2.27 G weights, the others' 1.75 G: the mean device is busy for 1.88 / 2.27 = 83 %.
    """
    found = answer(catalogue, deployment=Deployment(pp=4), batch=4.0, calibration="ideal", input_tokens=2.0)
    assert value(found, "decode_mbu_frac") == pytest.approx(0.828, abs=0.01)


def test_energy_lies_between_idle_and_board_power(catalogue: Catalogue) -> None:
    for changes in (
        {},
        {"batch": 64.0},
        {"deployment": Deployment(tp=2)},
        {"deployment": Deployment(speculative_tokens=2)},
    ):
        found = answer(catalogue, **changes)
        device = found.case.setup.devices[0]
        assert device.power.tdp is not None
        n = found.case.setup.layout.n_devices
        watts = value(found, "energy_j_per_output_token") * value(found, "output_tokens_per_s") / n
        assert 0.1 * device.power.tdp.value < watts <= device.power.tdp.value * (1 + 1e-12)
        assert found.figures["energy_j_per_output_token"].high > 1.3 * value(found, "energy_j_per_output_token")


def test_replicas_multiply_throughput_and_share_the_batch(catalogue: Catalogue) -> None:
    one = answer(catalogue, batch=4.0)
    four = answer(catalogue, n_devices=4, deployment=Deployment(tp=1), batch=16.0)
    assert value(four, "tpot_s") == value(one, "tpot_s")
    assert value(four, "output_tokens_per_s") == pytest.approx(4 * value(one, "output_tokens_per_s"))
    assert value(four, "output_tokens_per_s_per_device") == pytest.approx(value(one, "output_tokens_per_s_per_device"))
    assert value(four, "energy_j_per_output_token") == pytest.approx(value(one, "energy_j_per_output_token"))


def test_a_full_cache_binds(catalogue: Catalogue) -> None:
    """Room for about 60 GB / (131,072 x 8,192 tokens): some fifty requests of 8k tokens at once."""
    found = answer(catalogue, batch=500.0, input_tokens=8000.0, output_tokens=192.0)
    assert found.bound is Bound.KV_CAPACITY
    assert 30 < found.workload.batch < 60
    assert any("run at once" in text for text in found.warnings)
    less = answer(catalogue, batch=found.workload.batch, input_tokens=8000.0, output_tokens=192.0)
    assert less.bound is not Bound.KV_CAPACITY
    assert value(less, "tpot_s") == value(found, "tpot_s")


def test_max_num_seqs_binds(catalogue: Catalogue) -> None:
    found = answer(catalogue, batch=100.0, deployment=Deployment(max_num_seqs=10))
    assert found.bound is Bound.MAX_NUM_SEQS
    assert found.workload.batch == 10.0


def test_what_does_not_fit_says_so(catalogue: Catalogue) -> None:
    with pytest.raises(InfeasibleError) as caught:
        answer(catalogue, model="deepseek-v3")
    assert caught.value.exit_code == 1
    with pytest.raises(InfeasibleError):
        answer(catalogue, hardware="l4", input_tokens=131_000.0, output_tokens=72.0)


def test_offload_is_slower_and_makes_room(catalogue: Catalogue) -> None:
    plain = answer(catalogue, hardware="rtx-4090")
    less = answer(catalogue, hardware="rtx-4090", deployment=Deployment(cpu_offload_gib=8.0))
    assert value(less, "tpot_s") > 2 * value(plain, "tpot_s")
    assert less.memory.kv_tokens > plain.memory.kv_tokens


def test_what_has_no_fit_of_its_own_is_said(catalogue: Catalogue) -> None:
    assert any("no fit" in text for text in answer(catalogue, calibration="prior").warnings)
    assert not any("no fit" in text for text in answer(catalogue, calibration="ideal").warnings)
