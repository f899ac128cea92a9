"""Priorities, swap, shared prefixes, speculation and windows: small cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.decoding import BlockRule, Pace
from perfmodel.serving.engine import Run, ServingSetup, Swap, simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.prefix_cache import Prefixes, PrefixPool
from perfmodel.serving.scheduler import BatchWindow, Limit, SchedulerLimits

CLOCK = FixedClock(10, 100, 1)
"""A decode step takes 10 ns, one with prompts 100 ns and 1 ns a prompt token."""


def limits(**changes: object) -> SchedulerLimits:
    usual = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 100, "n_blocks": 100, "block_tokens": 4}
    return SchedulerLimits(**(usual | changes))  # type: ignore[arg-type]


def trace(rows: list[tuple[int, int, int]], **more: object) -> Trace:
    columns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Trace(*columns, **more)  # type: ignore[arg-type]


def served(sent: Trace, of: SchedulerLimits, **more: object) -> Run:
    run = simulated(sent, ServingSetup(limits=of, **more), CLOCK)  # type: ignore[arg-type]
    assert serving_result(run).checks.hold
    return run


def test_the_lowest_priority_number_is_served_first() -> None:
    rows = [(0, 10, 4), (1, 10, 4), (2, 10, 4)]
    urgent_last = trace(rows, priority=np.array([5, 5, 0]))
    alone = limits(max_num_seqs=1)
    # One at a time, 110 + 3 x 10 ns each: the third overtakes the second.
    assert served(urgent_last, alone, order="priority").scheduled_ns.tolist() == [0, 280, 140]
    assert served(urgent_last, alone).scheduled_ns.tolist() == [0, 140, 280]


def test_the_least_urgent_gives_way_though_it_is_the_oldest() -> None:
    rows = [(0, 8, 20), (0, 8, 20)]
    scarce = limits(n_blocks=9)
    newest = served(trace(rows), scarce)
    assert newest.n_preemptions.tolist() == [0, 1]
    ranked = served(trace(rows, priority=np.array([1, 0])), scarce, order="priority")
    assert ranked.n_preemptions.tolist() == [1, 0]


def test_swapped_blocks_cost_their_bytes_and_nothing_is_read_again() -> None:
    rows = [(0, 8, 20), (0, 8, 20)]
    scarce = limits(n_blocks=9)
    swapped = served(trace(rows), scarce, swap=Swap(host_blocks=100, block_ns=7))
    read_again = served(trace(rows), scarce)
    # Both hold 4 blocks at 16 tokens and want a fifth: 10 blocks of 9. The newer one moves out, and back in later.
    assert swapped.n_preemptions.tolist() == [0, 1]
    assert swapped.n_moved_blocks == 2 * 4
    prompt = swapped.segments[0].prompt_tokens
    assert prompt.sum() == 16
    assert read_again.segments[0].prompt_tokens.sum() > 16
    # Prompts 116; 8 steps to 16 tokens; out 4 x 7; 11 steps of the first alone; in 4 x 7; 11 steps of the second.
    assert swapped.finish_ns.tolist() == [116 + 80 + 28 + 110, 116 + 80 + 28 + 110 + 28 + 110]
    assert swapped.late_gaps.tolist() == [[28 + 110 + 28 + 10, 1]]


def test_a_host_without_room_falls_back_to_reading_again() -> None:
    rows = [(0, 8, 20), (0, 8, 20)]
    full = served(trace(rows), limits(n_blocks=9), swap=Swap(host_blocks=3, block_ns=7))
    plain = served(trace(rows), limits(n_blocks=9))
    assert full.n_moved_blocks == 0
    assert full.finish_ns.tolist() == plain.finish_ns.tolist()


def in_groups(rows: list[tuple[int, int, int]], group_tokens: int) -> Trace:
    n = len(rows)
    nobody = np.full(n, -1)
    return trace(rows, prefixes=Prefixes(np.zeros(n, np.int64), np.full(n, group_tokens), nobody))


def test_a_shared_prefix_is_read_once_in_whole_blocks() -> None:
    rows = [(0, 30, 3), (500, 30, 3), (1000, 30, 3)]
    run = served(in_groups(rows, 22), limits(), prefix_cache=True)
    # 22 tokens are 5 whole blocks of 4: 20 tokens are found by the second and the third.
    assert run.segments[0].prompt_tokens[run.segments[0].prompt_tokens > 0].tolist() == [30, 10, 10]
    assert (run.asked_tokens, run.found_tokens) == (90, 40)
    assert (run.first_token_ns - run.sent_ns).tolist() == [130, 110, 110]
    off = served(in_groups(rows, 22), limits())
    assert off.found_tokens == 0
    assert off.segments[0].prompt_tokens.sum() == 90


def test_requests_that_run_together_hold_a_shared_block_once() -> None:
    rows = [(0, 30, 40), (0, 30, 40)]
    shared = served(in_groups(rows, 20), limits(), prefix_cache=True)
    apart = served(in_groups(rows, 20), limits())
    # Each of the two comes to 69 cached tokens in 18 blocks; 5 of them are the same.
    assert apart.segments[0].used_blocks.max() == 36
    assert shared.segments[0].used_blocks.max() == 31


def test_a_turn_finds_the_turns_before_it_and_their_answers() -> None:
    rows = [(0, 10, 11), (1000, 40, 2)]
    both = Prefixes(np.full(2, -1), np.zeros(2, np.int64), np.zeros(2, np.int64))
    run = served(trace(rows, prefixes=both), limits(), prefix_cache=True)
    # The first leaves 10 + 10 tokens in the cache, 5 blocks; the last token of an answer is never read.
    assert run.found_tokens == 20
    strangers = served(trace(rows, prefixes=Prefixes.none(2)), limits(), prefix_cache=True)
    assert strangers.found_tokens == 0


def test_named_blocks_of_a_trace_are_found_up_to_the_first_that_differs() -> None:
    rows = [(0, 24, 2), (1000, 24, 2), (2000, 24, 2)]
    nobody = Prefixes.none(3)
    named = replace(nobody, hashes=[(1, 2, 3), (1, 2, 4), (9, 2, 3)], hash_tokens=8)
    run = served(trace(rows, prefixes=named), limits(), prefix_cache=True)
    assert run.found_tokens == 16
    # The last token is always read: of an equal prompt all blocks but the last are found.
    same = replace(nobody, hashes=[(1, 2, 3)] * 3, hash_tokens=8)
    assert served(trace(rows, prefixes=same), limits(), prefix_cache=True).found_tokens == 2 * 20


def test_what_was_used_longest_ago_is_evicted_end_first() -> None:
    prefixes = Prefixes(np.arange(3), np.full(3, 16), np.full(3, -1))
    pool = PrefixPool(8, block_tokens=4, prefixes=prefixes)
    for request in (0, 1):
        pool.take(4)
        pool.wrote(request, 4)
        pool.give_done(request, 4, n_whole=4)
    assert (pool.found(0, 9), pool.found(1, 9), pool.found(2, 9)) == (4, 4, 0)
    pool.take(2)
    # The oldest free blocks are the end of the first request.
    assert (pool.found(0, 9), pool.found(1, 9)) == (2, 4)
    pool.reclaim(0, 2)
    assert pool.free == pool.unclaimed() == 4
    with pytest.raises(SpecError, match="run out"):
        pool.take(5)


def test_speculative_steps_yield_the_mean_exactly() -> None:
    one = [(0, 10, 41)]
    plain = served(trace(one), limits())
    double = served(trace(one), limits(), pace=Pace(2, 1, 3))
    uneven = served(trace(one), limits(), pace=Pace.of(2.5, n_draft=3))
    # 40 tokens after the first: 40 steps, 20 steps of two, 16 steps of two and three in turn.
    assert [int(run.finish_ns[0] - run.first_token_ns[0]) for run in (plain, double, uneven)] == [400, 200, 160]
    odd = served(trace([(0, 10, 42)]), limits(), pace=Pace(2, 1, 3))
    assert int(odd.finish_ns[0] - odd.first_token_ns[0]) == 210
    assert odd.segments[0].output_tokens.sum() == 41
    with pytest.raises(SpecError, match="acceptance length"):
        Pace.of(4.5, n_draft=3)


def test_drafted_tokens_have_room_in_blocks() -> None:
    run = served(trace([(0, 10, 3)]), limits(), pace=Pace(1, 1, 5))
    # 10 + 5 tokens in 4 blocks when the prompt is read; 12 + 5 in 5 at the end.
    assert run.segments[0].used_blocks.tolist()[0] == 4
    assert run.segments[0].used_blocks.max() == 5


def test_blocks_behind_the_window_are_released() -> None:
    rows = [(0, 10, 60)]
    # A window of 9 tokens: 8 before the new one on 2 blocks, and the block that fills.
    narrow = served(trace(rows), limits(n_full_groups=0, n_window_groups=1, window_tokens=9))
    assert narrow.segments[0].used_blocks.max() == 3
    # One group keeps all of 69 tokens in 18 blocks, one has the window.
    hybrid = served(trace(rows), limits(n_full_groups=1, n_window_groups=1, window_tokens=9))
    assert hybrid.segments[0].used_blocks.max() == 18 + 3
    assert served(trace(rows), limits()).segments[0].used_blocks.max() == 18
    rule = BlockRule(4, 1, 2, 3)
    assert [rule.blocks(n) for n in (0, 1, 4, 5, 12, 13, 100)] == [0, 3, 3, 6, 9, 10, 31]


def test_a_batch_waits_for_the_preferred_size_or_the_end_of_the_window() -> None:
    window = BatchWindow(delay_ns=500, preferred=3)
    rows = [(0, 10, 5), (100, 10, 5), (200, 10, 5), (5000, 10, 5)]
    run = served(trace(rows), limits(), policy="static", window=window)
    # The third arrival makes the batch; the fourth request waits for the whole window.
    assert run.scheduled_ns.tolist() == [200, 200, 200, 5500]
    assert run.finish_ns.tolist() == [200 + 130 + 40] * 3 + [5500 + 110 + 40]
    # While a batch runs the next one gathers, and it starts at once if its first request has waited long enough.
    late = served(trace([(0, 10, 90), (600, 10, 5)]), limits(), policy="static", window=window)
    assert late.scheduled_ns.tolist() == [500, 500 + 110 + 890]
    with pytest.raises(SpecError, match="batching window"):
        BatchWindow(delay_ns=0, preferred=0)


def test_decodes_go_on_while_prompts_wait_for_the_window() -> None:
    window = BatchWindow(delay_ns=500, preferred=2)
    run = served(trace([(0, 10, 90), (700, 10, 5)]), limits(), policy="prefill-first", window=window)
    # The first prompt ends at 610; the second waits until 1,200 while the first decodes in steps of 10.
    assert run.scheduled_ns.tolist() == [500, 1200]
    assert Limit.BATCH_WINDOW in run.segments[0].limit


@pytest.mark.parametrize(
    "changes",
    [
        {"window_tokens": 9},
        {"n_window_groups": 1},
        {"n_full_groups": 0},
        {"n_full_groups": 1, "n_window_groups": 1, "window_tokens": 9, "preallocated_tokens": 100},
    ],
)
def test_windows_that_cannot_work(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="scheduler cannot work"):
        limits(**changes)


def test_prefixes_that_cannot_be_cached() -> None:
    with pytest.raises(SpecError, match="prefixes cannot be cached"):
        ServingSetup(limits=limits(preallocated_tokens=100), prefix_cache=True)
    with pytest.raises(SpecError, match="different lengths"):
        Prefixes(np.zeros(2, np.int64), np.zeros(3, np.int64), np.zeros(2, np.int64))
    with pytest.raises(SpecError, match="of all 1"):
        trace([(0, 1, 1)], prefixes=Prefixes.none(2))
