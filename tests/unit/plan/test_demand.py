"""How many replicas a demand needs, and which demands and targets cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.plan.demand import Demand, Targets


def test_replicas_of_users_cover_all_users() -> None:
    demand = Demand(input_tokens=10, output_tokens=10, n_users=200)
    in_flight = np.arange(1.0, 300.0)
    replicas = np.asarray(demand.replicas(in_flight=in_flight, requests_per_s=1.0))
    assert np.all(replicas * in_flight >= 200)
    assert np.all((replicas - 1) * in_flight < 200)


def test_thinking_users_hold_fewer_slots() -> None:
    """100 users, 2 requests/s a replica, 10 s of thinking: 20 think for each replica, so 100 / (5 + 20) = 4."""
    demand = Demand(input_tokens=10, output_tokens=10, n_users=100, think_s=10.0)
    assert demand.replicas(in_flight=5.0, requests_per_s=2.0) == 4.0
    # Each user comes back every e2e + think = 2.5 + 10 s: 100 / 12.5 = 8 requests/s, 2 for each of 4 replicas.
    assert demand.served_per_s(e2e_s=2.5) == 8.0


def test_replicas_of_a_rate() -> None:
    demand = Demand(input_tokens=10, output_tokens=10, requests_per_s=9.0)
    assert demand.replicas(in_flight=5.0, requests_per_s=3.0) == 3.0
    assert demand.replicas(in_flight=5.0, requests_per_s=2.9) == 4.0
    assert demand.served_per_s(e2e_s=7.0) == 9.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_users": None}, "neither"),
        ({"requests_per_s": 2.0}, "both"),
        ({"input_tokens": 0.0}, "input tokens"),
        ({"output_tokens": 1.5}, "output tokens"),
        ({"think_s": -1.0}, "think time"),
        ({"n_users": None, "requests_per_s": 1.0, "think_s": 3.0}, "beside a request rate"),
        ({"spread_frac": 2.0}, "length spread"),
        ({"n_users": float("nan")}, "concurrent users"),
    ],
)
def test_demands_that_cannot_be_are_refused(changes: dict[str, float | None], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        Demand(**({"input_tokens": 1.0, "output_tokens": 1.0, "n_users": 1.0} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"ttft_s": 0.0}, {"percentile": 42}, {"max_devices": 0}, {"available": {"h20": -1}}]
)
def test_targets_that_cannot_be_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="targets"):
        Targets(**changes)  # type: ignore[arg-type]


def test_availability_limits_each_device() -> None:
    targets = Targets(max_devices=8, available={"h20": 4, "l4": 20})
    assert [targets.devices_of(name) for name in ("h20", "l4", "a10")] == [4, 8, 8]
