"""Replicas together: pools for prefill and decode, routing, failures, a shared device; small cases by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import Run, ServingSetup, simulated
from perfmodel.serving.fleet_setup import Disaggregation, Failure, KvLink, Sharing
from perfmodel.serving.kv_cache import BlockPool
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.prefix_cache import Prefixes
from perfmodel.serving.records import LOST, NEVER
from perfmodel.serving.scheduler import BatchWindow, SchedulerLimits
from perfmodel.serving.sharing import SlowdownTable

CLOCK = FixedClock(10, 100, 1)
"""A decode step takes 10 ns, one with prompts 100 ns and 1 ns a prompt token."""
LIMITS = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=100, n_blocks=100, block_tokens=4)
LINK = KvLink(latency_ns=50, token_ns=3.0)


def trace(rows: list[tuple[int, int, int]], **more: object) -> Trace:
    columns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Trace(*columns, **more)  # type: ignore[arg-type]


def served(sent: Trace, of: SchedulerLimits = LIMITS, **more: object) -> Run:
    run = simulated(sent, ServingSetup(limits=of, **more), CLOCK)  # type: ignore[arg-type]
    assert serving_result(run).checks.hold
    return run


def apart(n_prefill: int, n_decode: int, link: KvLink = LINK) -> dict[str, Any]:
    both = Disaggregation(n_prefill=n_prefill, n_decode=n_decode, link=link)
    return {"n_replicas": n_prefill + n_decode, "apart": both}


def test_a_cache_travels_between_the_first_and_the_second_token() -> None:
    run = served(trace([(0, 10, 5), (200, 20, 1)]), **apart(1, 1))
    # The prompt takes 110, its cache 10 x 3 + 50, four more tokens 10 each; one token needs no decode replica.
    assert run.first_token_ns.tolist() == [110, 320]
    assert run.finish_ns.tolist() == [110 + 80 + 40, 320]
    assert run.replica.tolist() == [1, 0]
    assert run.sent_tokens == 10
    assert run.late_gaps.tolist() == [[80 + 10, 1]]


def test_a_link_sends_one_cache_after_the_other() -> None:
    run = served(trace([(0, 10, 5), (0, 20, 5)]), **apart(1, 1))
    # Both prompts end at 130. The first cache takes 30 + 50, the second waits for 30 and takes 60 + 50.
    assert run.finish_ns.tolist() == [130 + 80 + 40, 130 + 30 + 110 + 40]


def test_the_stated_ratio_of_prefill_to_decode_is_used() -> None:
    """aliyun/SimAI PR#268: a simulator had prefill:decode wired to 1:1; three to one has to be three to one."""
    rows = [(i * 20, 45, 50) for i in range(40)]
    roomy = replace(LIMITS, n_blocks=2000)
    three_to_one, even, one_to_three = (
        served(trace(rows), roomy, **apart(n_prefill, n_decode)) for n_prefill, n_decode in ((3, 1), (2, 2), (1, 3))
    )
    busy = [[int(s.prompt_tokens.sum()) > 0 for s in run.segments] for run in (three_to_one, even, one_to_three)]
    assert busy == [[True] * 3 + [False], [True] * 2 + [False] * 2, [True] + [False] * 3]
    # Prompts of 145 ns every 20 ns: the more replicas read them, the sooner the first token.
    first = [(run.first_token_ns - run.sent_ns).mean() for run in (three_to_one, even, one_to_three)]
    assert first[0] < first[1] < first[2]
    assert set(three_to_one.replica.tolist()) == {3}
    assert set(one_to_three.replica.tolist()) == {1, 2, 3}


def test_a_free_link_and_a_second_replica_do_not_slow_requests_down() -> None:
    rows = [(i * 37, 30, 20) for i in range(30)]
    both, one = served(trace(rows), **apart(1, 1, KvLink(latency_ns=0, token_ns=0.0))), served(trace(rows))
    assert (both.first_token_ns - both.sent_ns).mean() < (one.first_token_ns - one.sent_ns).mean()
    assert (both.finish_ns - both.sent_ns).mean() < (one.finish_ns - one.sent_ns).mean()


def test_a_long_window_passes_at_once_where_several_serve() -> None:
    window = BatchWindow(delay_ns=5 * 10**9, preferred=8)
    sent = trace([(0, 10, 5), (3, 20, 5)])
    shared = Sharing(n_instances=2, contention=SlowdownTable((1.0, 2.0)))
    run = served(sent, n_replicas=2, window=window, sharing=shared)
    # Each instance waits for its window alone; the second one's prompt runs beside the first one's, twice as long.
    assert run.scheduled_ns.tolist() == [5 * 10**9, 5 * 10**9 + 3]
    assert run.first_token_ns.tolist() == [5 * 10**9 + 110, 5 * 10**9 + 3 + 240]
    split = served(sent, window=window, **apart(1, 1))
    assert split.scheduled_ns.tolist() == [5 * 10**9] * 2
    # A failure in the window sends its requests to the other replica, behind the one that waits there.
    failure = Failure(replica=0, at_ns=4 * 10**9, back_ns=NEVER)
    left = served(sent, n_replicas=2, window=window, failures=(failure,))
    assert left.replica.tolist() == [1, 1]
    assert left.scheduled_ns.tolist() == [5 * 10**9 + 3] * 2


def test_fewer_users_than_replicas_never_send_more_than_they_are() -> None:
    sent = trace([(0, 10, 5)] * 12).closed(2)
    run = served(sent, n_replicas=4)
    starts, ends = np.sort(run.sent_ns), np.sort(run.finish_ns)
    in_flight = np.arange(1, 13) - np.searchsorted(ends, starts, side="right")
    assert in_flight.max() == 2
    assert np.bincount(run.replica).tolist() == [3, 3, 3, 3]


def test_a_session_stays_and_moves_only_when_its_replica_is_down() -> None:
    turns = Prefixes(np.full(6, -1), np.zeros(6, np.int64), np.array([0, 1, 0, 1, 0, 1]))
    rows = [(i * 1000, 20, 5) for i in range(6)]
    run = served(trace(rows, prefixes=turns), n_replicas=2, routing="session")
    assert run.replica.tolist() == [0, 0, 0, 0, 0, 0]
    close = [(i, 20, 5) for i in range(6)]
    assert served(trace(close, prefixes=turns), n_replicas=2, routing="session").replica.tolist() == [0, 1, 0, 1, 0, 1]
    gone = Failure(replica=0, at_ns=2500)
    moved = served(trace(rows, prefixes=turns), n_replicas=2, routing="session", failures=(gone,))
    assert moved.replica.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_prefix_draws_requests_to_where_it_is_cached() -> None:
    groups = Prefixes(np.array([0, 1, 1, 0, 1]), np.full(5, 40), np.full(5, -1))
    rows = [(0, 50, 5), (1, 50, 5), (1000, 50, 5), (2000, 50, 5), (3000, 50, 5)]
    run = served(trace(rows, prefixes=groups), n_replicas=2, routing="prefix", prefix_cache=True)
    assert run.replica.tolist() == [0, 1, 1, 0, 1]
    assert run.found_tokens == 3 * 40


def test_a_closed_loop_goes_to_the_replica_with_the_least_load() -> None:
    rows = [(0, 10, 60), (0, 10, 2), (0, 10, 2), (0, 10, 2)]
    run = served(trace(rows).closed(2), n_replicas=2, routing="least-loaded")
    assert run.replica.tolist() == [0, 1, 1, 1]


def test_requests_of_a_failed_replica_are_sent_again_from_the_start() -> None:
    rows = [(0, 10, 50), (0, 10, 50)]
    failure = Failure(replica=0, at_ns=300, back_ns=5000)
    run = served(trace(rows), n_replicas=2, failures=(failure,))
    # The step that ends at 300 is the last one: 1 + 19 tokens are lost. The other replica reads the prompt anew.
    assert run.n_retried == 1
    assert run.lost_tokens == 19
    assert run.replica.tolist() == [1, 1]
    assert run.first_token_ns.tolist() == [300 + 110, 110]
    assert (run.finish_ns >= 0).all()


def test_lost_requests_are_counted_with_the_reason() -> None:
    rows = [(0, 10, 50), (0, 10, 50), (400, 10, 5)]
    failure = Failure(replica=0, at_ns=300, back_ns=5000, then="lose")
    run = served(trace(rows), n_replicas=2, failures=(failure,))
    assert run.refused == {0: LOST}
    assert (run.finish_ns >= 0).tolist() == [False, True, True]
    assert serving_result(run).n_refused == {LOST: 1}


@pytest.mark.parametrize("n", [1, 2])
def test_shares_stay_shares_where_a_failure_takes_what_ran_last(n: int) -> None:
    # One request ends at 150, the other is lost at 500 in the middle of its answer, or both are.
    failure = Failure(replica=0, at_ns=500 if n == 2 else 50, back_ns=NEVER)
    result = serving_result(served(trace([(0, 10, 5), (1, 10, 80)][-n:]), failures=(failure,)))
    assert 0 < result.usage.busy_frac <= 1
    assert 0 < result.usage.kv_used_frac <= result.usage.kv_used_most_frac <= 1
    assert sum(result.usage.limit_shares.values()) == pytest.approx(1)


def test_requests_wait_for_the_restart_of_the_only_replica_or_are_lost() -> None:
    rows = [(0, 10, 50), (400, 10, 5)]
    back = served(trace(rows), failures=(Failure(replica=0, at_ns=300, back_ns=5000),))
    assert (back.first_token_ns == 5000 + 120).all()
    assert back.sent_ns.tolist() == [0, 400]
    gone = served(trace(rows), failures=(Failure(replica=0, at_ns=300),))
    assert gone.refused == {0: LOST, 1: LOST}


def test_instances_of_one_device_slow_each_other_down_while_they_run() -> None:
    table = SlowdownTable((1.0, 1.5))
    sharing = Sharing(n_instances=2, contention=table)
    alone = served(trace([(0, 10, 5)]), n_replicas=2, sharing=sharing)
    assert alone.finish_ns.tolist() == [110 + 40]
    both = served(trace([(0, 10, 5), (0, 10, 5)]), n_replicas=2, sharing=sharing)
    # All steps of both take half as long again: 165, then four of 15.
    assert both.finish_ns.tolist() == [165 + 60, 165 + 60]
    apart_devices = served(trace([(0, 10, 5), (0, 10, 5)]), n_replicas=2)
    assert apart_devices.finish_ns.tolist() == [150, 150]
    assert [table.slowdown(n) for n in (1, 2, 7)] == [1.0, 1.5, 1.5]


def test_ranks_step_together_as_long_as_the_slowest() -> None:
    rows = [(0, 10, 4), (0, 30, 4)]
    run = served(trace(rows), n_replicas=2, n_ranks=2)
    # A prompt token costs 1 ns for each of two ranks: 160 ns for the longer prompt, which the shorter one waits for.
    assert run.replica.tolist() == [0, 1]
    assert run.first_token_ns.tolist() == [160, 160]
    assert run.finish_ns.tolist() == [190, 190]
    # A prompt that one rank reads makes the other's decode step as long; blocks are each rank's own.
    late = served(trace([(0, 10, 5), (125, 30, 2)]), n_replicas=2, n_ranks=2)
    assert late.finish_ns.tolist() == [120 + 10 + 160 + 10 + 10, 120 + 10 + 160 + 10]
    tight = replace(LIMITS, n_blocks=9)
    apart_blocks = served(trace([(0, 8, 20), (0, 8, 20)]), tight, n_replicas=2, n_ranks=2)
    assert apart_blocks.n_preemptions.sum() == 0
    for wrong in (
        {"n_replicas": 3, "n_ranks": 2},
        {"n_replicas": 2, "n_ranks": 2, "failures": (Failure(replica=0, at_ns=1),)},
    ):
        with pytest.raises(SpecError, match="ranks cannot share"):
            ServingSetup(limits=LIMITS, **wrong)


def test_another_kind_of_pool_can_be_given() -> None:
    class Counted(BlockPool):
        """A pool that says how often it was asked for blocks."""

        n_taken = 0

        def take(self, n_blocks: int) -> None:
            Counted.n_taken += n_blocks
            super().take(n_blocks)

    def counted(of: SchedulerLimits) -> BlockPool:
        return Counted(of.n_blocks, block_tokens=of.block_tokens)

    served(trace([(0, 10, 5)]), make_pool=counted)
    # 10 prompt tokens and 4 more: 4 blocks of 4.
    assert Counted.n_taken == 4


def test_a_turn_is_sent_after_the_answer_and_the_thought() -> None:
    sent = trace([(0, 10, 5), (0, 30, 5), (7, 10, 5)], after=np.array([-1, 0, -1]), think_ns=np.array([90, 0, 0]))
    run = served(sent)
    assert run.sent_ns.tolist() == [0, int(run.finish_ns[0]) + 90, 7]
    spread = served(sent, n_replicas=2, routing="least-loaded")
    assert spread.sent_ns[1] == spread.finish_ns[0] + 90


@pytest.mark.parametrize(("after", "says"), [([0, -1], "request 0"), ([-1, 5], "request 1"), ([-2, -1], "request 0")])
def test_turns_that_cannot_follow(after: list[int], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        trace([(0, 1, 1), (0, 1, 1)], after=np.array(after))


def test_what_cannot_be_set_up() -> None:
    with pytest.raises(SpecError, match="same answer"):
        trace([(0, 1, 1)] * 3, after=np.array([-1, 0, 0]))
    with pytest.raises(SpecError, match="one of the two"):
        trace([(0, 1, 1)] * 2, after=np.array([-1, 0]), max_in_flight=1)
    for wrong, says in (
        ({"failures": (Failure(replica=1, at_ns=0),)}, "replica 1 of 1"),
        ({"apart": Disaggregation(n_prefill=1, n_decode=1, link=LINK)}, "as many replicas"),
        ({"routing": "dice"}, "routing"),
    ):
        with pytest.raises(SpecError, match=says):
            ServingSetup(limits=LIMITS, **wrong)
    with pytest.raises(SpecError, match="n_decode"):
        Disaggregation(n_prefill=1, n_decode=0, link=LINK)
    with pytest.raises(SpecError, match="back after"):
        Failure(replica=0, at_ns=5, back_ns=5)
    with pytest.raises(SpecError, match="link"):
        KvLink(latency_ns=-1, token_ns=0.0)
    with pytest.raises(SpecError, match="n_instances"):
        Sharing(n_instances=0, contention=SlowdownTable((1.0,)))
    for factors in ((), (1.1,), (1.0, 2.0, 1.5)):
        with pytest.raises(SpecError, match="contention"):
            SlowdownTable(factors)
    assert Failure(replica=0, at_ns=5).back_ns == NEVER
    assert replace(LINK, token_ns=0.4).busy_ns(10) == 4
