"""Latency over rate: what is swept, where the knee is, and the largest rate within the objectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.report.latency_plot import latency_figure, rate_figure
from perfmodel.serving.arrivals import Trace, constant_arrivals, fixed_lengths
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import ServingSetup
from perfmodel.serving.metrics import Slo
from perfmodel.serving.rate_sweep import RateSweep, rate_sweep
from perfmodel.serving.scheduler import SchedulerLimits
from tests.unit.cli_parts import Run, answer

LIMITS = SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=100, n_blocks=50)
SERVICE_S = 0.1
"""A server of one request at a time: one step reads the prompt and gives the only token."""
CLOCK = FixedClock(1_000_000, 100_000_000)


def trace_of(n: int = 200) -> Trace:
    one = fixed_lengths(n, tokens=1)
    return Trace(constant_arrivals(n, requests_per_s=1.0), fixed_lengths(n, tokens=10), one)


def sweep_of(n: int = 200, **more: object) -> RateSweep:
    return rate_sweep(trace_of(n), ServingSetup(limits=LIMITS), CLOCK, **more)  # type: ignore[arg-type]


def test_a_server_with_constant_arrivals_holds_until_its_service_rate() -> None:
    # One request takes 0.1 s: 10 requests/s. Below that nobody waits; above, the queue grows with the trace.
    found = sweep_of(rates_per_s=(2.0, 6.0, 14.0), slo=Slo(ttft_s=0.15))
    assert found.capacity_requests_per_s == pytest.approx(10.0)
    assert [point.requests_per_s for point in found.points] == [2.0, 6.0, 14.0]
    assert [point.result.is_stable for point in found.points] == [True, True, False]
    assert found.points[0].result.spreads["ttft_s"].mean == pytest.approx(SERVICE_S)
    assert found.knee_requests_per_s == pytest.approx(10.0, rel=0.03)
    assert found.best_requests_per_s == pytest.approx(10.0, rel=0.03)


def test_without_rates_the_sweep_ends_beyond_capacity() -> None:
    found = sweep_of(1000, n_points=6)
    rates = [point.requests_per_s for point in found.points]
    assert rates == pytest.approx(np.linspace(0.5, 12.0, 6).tolist())
    assert found.best_requests_per_s is None
    assert not found.points[-1].result.is_stable


def test_an_objective_that_no_rate_meets_and_one_that_all_meet() -> None:
    assert sweep_of(rates_per_s=(2.0, 4.0), slo=Slo(ttft_s=0.05)).best_requests_per_s is None
    assert sweep_of(rates_per_s=(2.0, 4.0), slo=Slo(ttft_s=5.0)).best_requests_per_s == 4.0


def test_stricter_objectives_never_allow_a_higher_rate() -> None:
    rng = np.random.default_rng(3)
    trace = Trace(np.sort(rng.integers(0, 10**11, 300)), fixed_lengths(300, tokens=10), fixed_lengths(300, tokens=1))
    best = [
        rate_sweep(trace, ServingSetup(limits=LIMITS), CLOCK, n_points=5, slo=Slo(ttft_s=limit)).best_requests_per_s
        or 0.0
        for limit in (0.12, 0.2, 0.4, 1.0)
    ]
    assert best == sorted(best)
    assert best[-1] > best[0]


@pytest.mark.parametrize(
    ("trace", "more"),
    [
        (trace_of().closed(2), {}),
        (Trace(np.zeros(3, np.int64), fixed_lengths(3, tokens=1), fixed_lengths(3, tokens=1)), {}),
        (trace_of(), {"rates_per_s": (1.0, -2.0)}),
        (trace_of(), {"n_points": 1}),
        (trace_of(), {"slo_frac": 0.0}),
        (Trace(np.arange(3), fixed_lengths(3, tokens=500), fixed_lengths(3, tokens=1)), {}),
    ],
)
def test_what_cannot_be_swept_is_refused(trace: Trace, more: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="no rate can be swept"):
        rate_sweep(trace, ServingSetup(limits=LIMITS), CLOCK, **more)  # type: ignore[arg-type]


def test_pictures_have_a_panel_for_each_figure_and_mark_objectives() -> None:
    slo = Slo(ttft_s=0.15)
    found = sweep_of(rates_per_s=(2.0, 6.0, 14.0), slo=slo)
    labels = [text.get_text() for text in rate_figure(found, title="t").axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    assert "objective" in labels
    assert any(label.startswith("knee") for label in labels)
    figure = latency_figure(found.points[0].result, title="t", slo=slo)
    assert [axes.get_xlabel() for axes in figure.axes] == ["TTFT (s)", "TPOT (s)", "end to end (s)"]
    heights = figure.axes[0].lines[0].get_ydata()
    assert heights[-1] == pytest.approx(100.0)  # type: ignore[index]


FLAGS = ("llama-3.1-8b", "a100-80gb-sxm", "--isl", "512", "--osl", "64", "--num-prompts", "200", "--points", "5")


def test_the_command_prints_a_line_for_each_rate_and_the_largest_in_the_objectives(
    run_cli: Run, tmp_path: Path
) -> None:
    picture = tmp_path / "knee.png"
    document = answer(run_cli, "sweep-rate", *FLAGS, "--slo-ttft", "300", "--slo-tpot", "40", "--plot", str(picture))
    assert len(document["points"]) == 5
    assert 0 < document["best_requests_per_s"] <= document["highest_requests_per_s"]
    assert document["knee_requests_per_s"] > 0
    assert picture.stat().st_size > 10_000
    ran = run_cli("sweep-rate", *FLAGS)
    assert "Knee" in ran.out
    assert "Within objectives" not in ran.out
    assert len(run_cli("sweep-rate", *FLAGS, "--csv").out.splitlines()) == 6


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rates", "1,0"), "--rates"),
        (("--rates", "1,x"), "--rates"),
        (("--points", "1"), "--points"),
        (("--num-prompts", "1"), "--num-prompts"),
        (("--slo-share", "0"), "--slo-share"),
        (("--max-concurrency", "8"), "closed loop"),
    ],
)
def test_flags_that_cannot_be_used(run_cli: Run, flags: tuple[str, ...], words: str) -> None:
    ran = run_cli("sweep-rate", *FLAGS[:6], *flags)
    assert ran.code == 2
    assert words in ran.err


def test_replicas_of_a_sweep_are_those_that_the_flags_ask_for(run_cli: Run) -> None:
    one = answer(run_cli, "sweep-rate", *FLAGS)
    split = answer(run_cli, "sweep-rate", *FLAGS, "--prefill-replicas", "2", "--decode-replicas", "1")
    assert split["capacity_requests_per_s"] > 1.3 * one["capacity_requests_per_s"]


def test_no_rate_within_the_objectives_is_exit_code_1(run_cli: Run) -> None:
    asked = ("sweep-rate", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "512", "--osl", "16", "--num-prompts", "50")
    ran = run_cli(*asked, "--rates", "1,2", "--slo-ttft", "0.01")
    assert ran.code == 1
    assert "not even the lowest rate" in ran.out
    assert "no rate is within the objectives" in ran.err
    assert run_cli(*asked, "--rates", "1,2", "--slo-ttft", "1000").code == 0
