"""Lengths, arrivals and what is laid over them: means, prefixes, turns, priorities, cuts."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.shaping import in_groups, in_turns, sent_within, with_priorities
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.lengths import LengthSet

FIGURE = {"value": 10, "source": "a"}


def trace(n: int = 6) -> Trace:
    return Trace(np.arange(n) * 10**9, np.full(n, 100), np.full(n, 7))


def test_a_group_shares_tokens_that_come_before_the_own_ones() -> None:
    found = in_groups(trace(), n_groups=2, prefix_tokens=50, rng=np.random.default_rng(0))
    assert found.input_tokens.tolist() == [150] * 6
    assert found.prefixes is not None
    assert set(found.prefixes.group.tolist()) <= {0, 1}
    with pytest.raises(SpecError, match="share a prefix"):
        in_groups(trace(), n_groups=0, prefix_tokens=50, rng=np.random.default_rng(0))


def test_turns_grow_by_prompt_and_answer_and_share_one_text() -> None:
    found = in_turns(trace(), n_turns=4, think_s=2.0)
    # 100; 100 + 7 + 100; 314; 421; the last conversation has two turns.
    assert found.input_tokens.tolist() == [100, 207, 314, 421, 100, 207]
    assert found.after is not None
    assert found.after.tolist() == [-1, 0, 1, 2, -1, 4]
    assert found.arrival_ns.tolist() == [0, 0, 0, 0, 4 * 10**9, 4 * 10**9]
    assert not found.is_open
    grouped = in_turns(
        in_groups(trace(), n_groups=3, prefix_tokens=50, rng=np.random.default_rng(0)), n_turns=3, think_s=0.0
    )
    # The shared tokens stand at the beginning of the first turn only.
    assert grouped.input_tokens.tolist() == [150, 257, 364, 150, 257, 364]
    assert found.cut(3).after.tolist() == [-1, 0, 1]  # type: ignore[union-attr]
    assert found.picked(np.array([0, 1, 4, 5])).after.tolist() == [-1, 0, -1, 2]  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="conversations"):
        in_turns(trace(), n_turns=0, think_s=1.0)


def test_priorities_follow_their_shares() -> None:
    found = with_priorities(trace(10_000), [(0, 1.0), (7, 3.0)], rng=np.random.default_rng(0))
    assert found.priority is not None
    assert set(found.priority.tolist()) == {0, 7}
    assert (found.priority == 0).mean() == pytest.approx(0.25, abs=0.02)


def test_a_cut_by_time_keeps_what_is_due_by_then() -> None:
    assert len(sent_within(trace(), until_s=2.0)) == 3
    with pytest.raises(SpecError, match="cannot be cut"):
        sent_within(trace(), until_s=0.0)


@pytest.mark.parametrize("arrivals", ["gamma", "constant", "on-off", "diurnal"])
def test_every_process_has_the_mean_rate_that_was_asked_for(arrivals: str) -> None:
    found = Traffic(
        n_requests=20_000, input_tokens=10, output_tokens=5, requests_per_s=50.0, arrivals=arrivals,  # type: ignore[arg-type]
        on_s=2.0, off_s=3.0, period_s=20.0, seed=1,
    ).trace()  # fmt: skip
    assert found.requests_per_s == pytest.approx(50.0, rel=0.03)


def test_lognormal_lengths_have_their_means() -> None:
    found = Traffic(
        n_requests=50_000, input_tokens=500, output_tokens=200, lengths="lognormal", input_sigma=0.8, output_sigma=0.4
    ).trace()
    assert found.input_tokens.mean() == pytest.approx(500, rel=0.02)
    assert found.output_tokens.mean() == pytest.approx(200, rel=0.02)
    assert np.log(found.input_tokens).std() == pytest.approx(0.8, rel=0.02)


def test_shipped_sets_of_lengths_are_found_by_name() -> None:
    catalogue = Catalogue.standard()
    assert {"sharegpt", "sharegpt-long"} <= set(catalogue.paths("lengths"))
    assert catalogue.lengths("sharegpt").input_tokens.value == pytest.approx(161.31)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"input_sigma": {"value": 0, "source": "a"}}, "above 0"),
        ({"most_tokens": {"value": 0, "source": "a"}}, "at least one token"),
        ({"output_tokens": {"value": 5, "source": "b"}}, "source b"),
    ],
)
def test_sets_of_lengths_that_cannot_be(change: dict[str, object], says: str) -> None:
    names = ("input_tokens", "input_sigma", "output_tokens", "output_sigma", "most_tokens")
    plain = {"name": "x", "title": "x", "sources": {"a": "a"}} | dict.fromkeys(names, FIGURE)
    assert LengthSet.model_validate(plain).name == "x"
    with pytest.raises(ValueError, match=says):
        LengthSet.model_validate(plain | change)
