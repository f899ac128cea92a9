"""Replicas over the day: the load, the rating, the autoscaler, failures, growth and the manifest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.plan.capacity import Policy, grown, needed_replicas, policy_for, scaled, survives
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.load_curve import LoadCurve, counted, diurnal, sampled
from perfmodel.plan.manifest import hpa_manifest, kubernetes_quantity
from perfmodel.plan.rating import Rating, rating_of
from perfmodel.plan.search import open_loop_at
from perfmodel.plan.space import candidate_of
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.files import data_from_text, yaml_text
from perfmodel.step.question import Question, case_of

RATING = Rating(10.0, 8.0, 8.5, None)
DEMAND = Demand(input_tokens=512, output_tokens=128, requests_per_s=1.0, spread_frac=0.2)


def flat(rate: float, n: int = 200) -> LoadCurve:
    return LoadCurve(15.0, np.full(n, rate))


def test_a_day_has_its_peak_its_mean_and_its_period() -> None:
    day = diurnal(peak_requests_per_s=17.0, swing_frac=0.7, step_s=60.0)
    assert day.duration_s == 86_400.0
    assert day.mean_requests_per_s == pytest.approx(10.0, rel=1e-9)
    assert day.peak_requests_per_s == pytest.approx(17.0, rel=1e-5)
    assert day.requests_per_s.min() == pytest.approx(3.0, rel=1e-4)


def test_a_trace_is_counted_and_no_request_is_lost() -> None:
    arrivals = np.sort(np.random.default_rng(0).uniform(0.0, 1000.0, 5000))
    load = counted(arrivals, step_s=10.0)
    whole = (arrivals - arrivals[0]) < load.duration_s
    assert load.requests_per_s.sum() * 10.0 == pytest.approx(whole.sum())


def test_a_table_is_read_between_its_points() -> None:
    load = sampled(np.array([0.0, 100.0]), np.array([0.0, 10.0]), step_s=20.0)
    np.testing.assert_allclose(load.requests_per_s, [1.0, 3.0, 5.0, 7.0, 9.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: LoadCurve(15.0, np.array([])),
        lambda: LoadCurve(15.0, np.array([0.0])),
        lambda: LoadCurve(15.0, np.array([1.0, -1.0])),
        lambda: LoadCurve(0.0, np.array([1.0])),
        lambda: diurnal(peak_requests_per_s=1.0, swing_frac=1.5),
        lambda: diurnal(peak_requests_per_s=0.0, swing_frac=0.5),
        lambda: diurnal(peak_requests_per_s=1.0, swing_frac=0.5, step_s=1e-3),
        lambda: counted(np.array([0.0, 1.0]), step_s=10.0),
        lambda: sampled(np.array([0.0, 0.0]), np.array([1.0, 1.0]), step_s=1.0),
    ],
)
def test_loads_that_cannot_be_are_refused(make: object) -> None:
    with pytest.raises(SpecError):
        make()  # type: ignore[operator]


def test_needed_replicas_by_hand() -> None:
    """8 requests/s a replica: 16 need 2, 17 need 3; one spare on top."""
    load = LoadCurve(15.0, np.array([0.0, 16.0, 17.0]))
    assert needed_replicas(load, RATING).tolist() == [1.0, 2.0, 3.0]
    assert needed_replicas(load, RATING, spare=1).tolist() == [1.0, 3.0, 4.0]


def test_a_steady_load_settles_where_it_should() -> None:
    """20 requests/s at 5 each: 4 replicas, from either side, and nothing waits."""
    policy = Policy(target_requests_per_s=5.0, max_replicas=10)
    found = scaled(flat(20.0), RATING, policy)
    assert found.paid[-1] == found.ready[-1] == 4.0
    assert found.backlog_requests.max() == 0.0
    assert found.kept_frac == 1.0
    assert found.replica_hours == pytest.approx(4 * 200 * 15 / 3600)


def test_replicas_start_late_and_stop_late() -> None:
    """A jump from 5 to 20: asked for at once, ready 120 s = 8 rounds later; the fall waits for the window of 300 s."""
    rates = np.concatenate([np.full(20, 5.0), np.full(60, 20.0), np.full(60, 5.0)])
    policy = Policy(target_requests_per_s=5.0, max_replicas=10, start_s=120.0, down_window_s=300.0)
    found = scaled(LoadCurve(15.0, rates), RATING, policy)
    assert found.paid[20] == 1.0
    assert found.paid[21] == 4.0
    assert found.ready[27] == 1.0
    assert found.ready[28] == 4.0
    # While one replica of capacity 10 meets 20, ten requests more wait each second.
    assert found.backlog_requests[27] == pytest.approx(8 * 15 * 10.0)
    assert found.overloaded[20:28].all()
    assert not found.overloaded[28:80].any()
    fall = int(np.flatnonzero(found.paid[80:] < 4.0)[0])
    assert fall == 21  # 20 rounds of the window, and the change shows in the next
    assert found.paid[-1] == 1.0


@given(
    rates=st.lists(st.floats(0.1, 200.0), min_size=2, max_size=60),
    target=st.floats(1.0, 9.0),
    start_s=st.sampled_from([0.0, 15.0, 300.0]),
    most=st.integers(1, 40),
)
def test_requests_and_replicas_are_conserved(rates: list[float], target: float, start_s: float, most: int) -> None:
    load = LoadCurve(15.0, np.array(rates))
    policy = Policy(target_requests_per_s=target, max_replicas=most, start_s=start_s)
    found = scaled(load, RATING, policy)
    came, served = load.requests_per_s.sum() * 15.0, found.served_requests_per_s.sum() * 15.0
    assert served + found.backlog_requests[-1] == pytest.approx(came, rel=1e-9, abs=1e-6)
    assert np.all(found.served_requests_per_s <= found.ready * RATING.capacity_requests_per_s * (1 + 1e-12))
    assert np.all((found.paid >= 1) & (found.paid <= most))
    assert np.all(found.ready <= found.paid)
    assert np.all(found.ready >= 0)


def test_a_metric_that_saturates_never_scales() -> None:
    """Served requests a replica cannot exceed its capacity of 10: at a target of 9.5 the tolerance hides the queue."""
    policy = Policy(target_requests_per_s=9.5, max_replicas=10, metric="served")
    seeing = scaled(flat(50.0), RATING, replace(policy, metric="arriving", min_replicas=2))
    assert seeing.paid[-1] == 6.0
    late = np.concatenate([np.full(5, 5.0), np.full(195, 50.0)])
    stuck = scaled(LoadCurve(15.0, late), RATING, policy)
    assert stuck.paid[-1] == 1.0
    assert stuck.backlog_requests[-1] > 1000


def test_the_policy_keeps_the_targets_at_every_steady_load() -> None:
    """The tolerance lets a replica get 10 % more than the aim: still within the rating."""
    for peak in (7.0, 33.0, 79.0):
        for spare in (0, 1, 2):
            load = flat(peak, 400)
            policy = policy_for(load, RATING, spare=spare)
            found = scaled(load, RATING, policy)
            assert not found.overloaded[-1]
            assert found.paid[-1] >= policy.min_replicas
            if spare:
                left = found.paid[-1] - 1
                assert peak / left <= RATING.capacity_requests_per_s


def test_spare_replicas_survive_a_loss() -> None:
    load = flat(64.0)
    alone, with_spare = (int(needed_replicas(load, RATING, spare=n).max()) for n in (0, 1))
    assert (alone, with_spare) == (8, 9)
    holds, share = survives(load, RATING, alone)
    assert not holds
    assert share == pytest.approx(64 / 7 / 8)
    assert survives(load, RATING, with_spare)[0]
    assert survives(load, RATING, 1) == (False, float("inf"))


def test_growth_by_hand() -> None:
    """64 requests/s growing by a half each month: 64, 96, 144 need 8, 12, 18; 20 replicas do until month 2."""
    found = grown(flat(64.0), RATING, growth_per_month_frac=0.5, max_replicas=20, months=2)
    assert [row["n_replicas"] for row in found.rows] == [8.0, 12.0, 18.0]
    assert found.months_to_limit == 3
    assert grown(flat(64.0), RATING, growth_per_month_frac=0.0, max_replicas=20).months_to_limit is None
    with pytest.raises(InfeasibleError, match="more replicas"):
        grown(flat(64.0), RATING, growth_per_month_frac=0.1, max_replicas=4)
    with pytest.raises(InfeasibleError, match="more replicas"):
        policy_for(flat(64.0), RATING, max_replicas=4)


def test_a_rating_keeps_the_targets_and_a_little_more_does_not(catalogue: Catalogue) -> None:
    question = Question(
        model="llama-3.1-8b", hardware="a100-80gb-sxm", deployment=Deployment(), input_tokens=512, output_tokens=128
    )
    candidate = candidate_of(case_of(catalogue, question), DEMAND)
    targets = Targets(ttft_s=0.5, tpot_s=0.025)
    by_mean = rating_of(candidate, DEMAND, targets, simulate=False)
    rate = by_mean.target_requests_per_s
    assert 0 < rate < by_mean.capacity_requests_per_s
    assert float(open_loop_at(candidate, DEMAND, rate).tpot.value) <= 0.025 * (1 + 1e-6)
    assert float(open_loop_at(candidate, DEMAND, rate * 1.01).tpot.value) > 0.025
    simulated = rating_of(candidate, DEMAND, targets)
    assert simulated.simulated is not None
    assert simulated.simulated.misses(targets) == ""
    assert simulated.target_requests_per_s <= rate
    with pytest.raises(InfeasibleError, match="single request"):
        rating_of(candidate, DEMAND, Targets(tpot_s=1e-4))
    free = rating_of(candidate, DEMAND, Targets(), simulate=False)
    assert free.target_requests_per_s == pytest.approx(0.98 * free.capacity_requests_per_s)


def test_the_manifest_is_what_kubernetes_takes() -> None:
    policy = Policy(target_requests_per_s=2.1567, min_replicas=2, max_replicas=9, down_window_s=600.0)
    found = data_from_text(yaml_text(hpa_manifest(policy, name="qwen-chat", metric="rps")), "hpa")
    assert (found["apiVersion"], found["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    spec = found["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "qwen-chat"}
    metric = spec["metrics"][0]["pods"]
    assert metric == {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "2156m"}}
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


@pytest.mark.parametrize(("name", "metric"), [("Bad_Name", "rps"), ("ok", "has space"), ("", "rps")])
def test_names_that_kubernetes_refuses(name: str, metric: str) -> None:
    with pytest.raises(SpecError):
        hpa_manifest(Policy(target_requests_per_s=1.0), name=name, metric=metric)


@given(st.floats(0.001, 1e5))
def test_quantities_never_exceed_the_target(value: float) -> None:
    text = kubernetes_quantity(value)
    read = int(text[:-1]) / 1000 if text.endswith("m") else float(text)
    assert read <= value * (1 + 1e-9)
    assert read > value - 0.001001


@pytest.mark.parametrize(
    "changes",
    [
        {"min_replicas": 5, "max_replicas": 4},
        {"target_requests_per_s": 0.0},
        {"tolerance_frac": 1.0},
        {"start_s": -1.0},
        {"metric": "cpu"},
    ],
)
def test_policies_that_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="policy"):
        Policy(**({"target_requests_per_s": 1.0} | changes))  # type: ignore[arg-type]
