"""Policies: who is served, in what order, and who is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import Run, ServingSetup, simulated
from perfmodel.serving.scheduler import Limit, SchedulerLimits, policy_of

CLOCK = FixedClock(10, 100, 1)


def limits(**changes: object) -> SchedulerLimits:
    usual = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 100,
        "n_blocks": 100,
        "block_tokens": 4,
    }
    return SchedulerLimits(**(usual | changes))  # type: ignore[arg-type]


def served(rows: list[tuple[int, int, int]], of: SchedulerLimits, policy: str = "mixed", **more: object) -> Run:
    columns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return simulated(Trace(*columns), ServingSetup(limits=of, policy=policy, **more), CLOCK)  # type: ignore[arg-type]


def test_a_request_alone_takes_its_prompt_and_its_decode_steps() -> None:
    run = served([(7, 10, 5)], limits())
    assert run.scheduled_ns.tolist() == [7]
    assert run.first_token_ns.tolist() == [7 + 110]
    assert run.finish_ns.tolist() == [7 + 110 + 4 * 10]


def test_a_long_prompt_is_cut_to_the_budget_beside_decodes() -> None:
    run = served([(0, 10, 20), (50, 80, 2)], limits())
    # The first decodes in every step; the second reads 63 tokens beside it, then 17.
    assert run.first_token_ns.tolist() == [110, 110 + 163 + 117]
    segments = run.segments[0]
    assert segments.prompt_tokens[segments.prompt_tokens > 0].tolist() == [10, 63, 17]
    assert Limit.TOKEN_BUDGET not in segments.limit


def test_prompts_first_stop_the_decodes() -> None:
    run = served([(0, 10, 20), (50, 60, 2)], limits(), "prefill-first")
    # The second arrives during the first prompt, and is read before the first decode step.
    assert run.first_token_ns.tolist() == [110, 110 + 160]
    assert run.late_gaps.tolist() == [[170, 1]]


def test_a_static_batch_is_closed_until_all_are_done() -> None:
    rows = [(0, 10, 3), (0, 10, 9), (5, 10, 3)]
    run = served(rows, limits(), "static")
    assert run.finish_ns.tolist()[:2] == [120 + 20, 120 + 80]
    assert run.scheduled_ns.tolist() == [0, 0, 200]
    assert Limit.BATCH_CLOSED in run.segments[0].limit


def test_what_makes_requests_wait_is_named() -> None:
    many = [(0, 10, 5)] * 12
    assert Limit.MAX_NUM_SEQS in served(many, limits(max_num_batched_tokens=200)).segments[0].limit
    assert Limit.TOKEN_BUDGET in served(many, limits()).segments[0].limit
    assert Limit.KV_CAPACITY in served(many, limits(n_blocks=9)).segments[0].limit


def test_the_newest_is_preempted_and_resumes_from_what_is_left() -> None:
    rows = [(0, 8, 20), (0, 8, 20)]
    with_prefix = served(rows, limits(n_blocks=9))
    without = served(rows, limits(n_blocks=9, keeps_prefix=False))
    assert with_prefix.n_preemptions.tolist() == without.n_preemptions.tolist() == [0, 1]
    assert with_prefix.finish_ns[0] == without.finish_ns[0]
    assert with_prefix.finish_ns[1] <= without.finish_ns[1]
    assert without.n_reused_blocks == 0


def test_requests_that_can_never_be_served_are_refused_with_the_reason() -> None:
    rows = [(0, 90, 20), (0, 60, 30), (1, 10, 5)]
    assert served(rows, limits(n_blocks=22)).refused == {0: "context_limit", 1: "kv_capacity"}
    run = served([(0, 70, 5), (1, 10, 5)], limits(), "prefill-first")
    assert run.refused == {0: "token_budget"}
    assert run.finish_ns[0] == -1
    assert run.sent_ns[0] == 0
    assert served([(0, 99, 1)], limits(preallocated_tokens=100)).refused == {}
    assert served([(0, 10, 1)], limits(preallocated_tokens=100, n_blocks=24)).refused == {0: "kv_capacity"}


def test_a_refused_request_frees_its_user() -> None:
    trace = Trace(np.zeros(3, np.int64), np.array([99, 5, 5]), np.array([99, 2, 2]), max_in_flight=1)
    run = simulated(trace, ServingSetup(limits=limits()), CLOCK)
    assert (run.finish_ns > 0).tolist() == [False, True, True]


def test_whole_prompts_wait_for_room_in_the_budget() -> None:
    run = served([(0, 10, 20), (0, 60, 2)], limits(chunked=False))
    assert run.first_token_ns.tolist()[0] == 110
    assert (run.finish_ns > 0).all()


def test_room_for_the_whole_prompt_can_be_asked_for() -> None:
    rows = [(0, 30, 30), (0, 90, 2)]
    early = served(rows, limits(n_blocks=30, max_num_batched_tokens=40))
    late = served(rows, limits(n_blocks=30, max_num_batched_tokens=40, reserves_prompt=True))
    assert early.scheduled_ns[1] < late.scheduled_ns[1]


def test_load_routing_prefers_the_idle_replica() -> None:
    rows = [(0, 10, 60), (1, 10, 60), (2, 10, 2), (900, 10, 2)]
    run = served(rows, limits(), n_replicas=2, routing="least-loaded")
    assert run.replica.tolist() == [0, 1, 0, 0]
    assert served(rows, limits(), n_replicas=2).replica.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"n_blocks": 0, "block_tokens": -1}, "block_tokens"),
        ({"watermark_frac": 1.0}, "watermark_frac"),
        ({"preallocated_tokens": 50}, "preallocated_tokens"),
    ],
)
def test_limits_that_cannot_work(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        limits(**changes)


def test_names_that_are_none() -> None:
    with pytest.raises(SpecError, match="scheduling policy 'lifo'"):
        policy_of("lifo", limits())
    for wrong in ({"order": "lifo"}, {"routing": "random"}, {"n_replicas": 0}):
        with pytest.raises(SpecError):
            ServingSetup(limits=limits(), **wrong)
