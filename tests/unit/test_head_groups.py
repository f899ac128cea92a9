"""Messages behind attention cut into groups: sizes by hand, what cannot be beaten, one group is the step model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.grouping import grouped_time, share_after, time_ratio_behind
from perfmodel.errors import SpecError
from perfmodel.estimate import Bound, leaf, refolded
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.deployment import Deployment
from perfmodel.step.head_groups import best_grouping, grouped_step, grouping_rows
from perfmodel.step.question import Question, case_of
from perfmodel.step.step import Engine
from perfmodel.work.head_groups import (
    Split,
    group_message,
    group_work,
    head_gradient_bytes,
    head_slice_bytes,
    output_bytes,
    padded_bytes,
    row_useful_frac,
    tokens_behind,
)
from perfmodel.work.kernel import Message, Slice, Work

CATALOGUE = Catalogue((builtin_home(),))
MIB = 2.0**20
TIMES = st.floats(1e-6, 10.0)
PROMPT = (Slice("prefill", 1.0, 4096.0, 1.0, 4096.0),)


def engine(tp: int = 4, **more: Any) -> Engine:
    question = Question(model="llama-3.1-8b", hardware="dgx-a100", deployment=Deployment(tp=tp, **more))
    return case_of(CATALOGUE, question).engine


def test_sizes_of_a_small_attention() -> None:
    """32 heads of 64 (d_model 2048) on 4 ranks, 8 each, 2 bytes.

    Slices of 8 heads fill 1.25 MiB with 1280 tokens (1280 x 512 x 2 = 1,310,720), those of 16 heads 2.5 MiB. The
    output of all heads fills 1.25 MiB with 320 tokens. A gradient of [4, 64, 64] is 16,384 elements: 32 or 64 KiB.
    """
    assert head_slice_bytes(n_tokens=1280.0, n_heads=8.0, d_head=64.0, element_bytes=2.0) == 1.25 * MIB
    assert head_slice_bytes(n_tokens=1280.0, n_heads=16.0, d_head=64.0, element_bytes=2.0) == 2.5 * MIB
    assert output_bytes(n_tokens=320.0, d_model=2048.0, element_bytes=2.0) == 1.25 * MIB
    assert tokens_behind(1.25 * MIB, d_row=512.0, element_bytes=4.0) == 640.0
    assert [head_gradient_bytes(n_heads=4.0, d_head=64.0, element_bytes=e) / 2**10 for e in (2.0, 4.0)] == [32.0, 64.0]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(n_bytes=st.floats(1.0, 1e9), unit=st.sampled_from([1.0, 32.0, 128.0, 512.0]), ranks=st.integers(1, 16))
def test_padding_adds_less_than_a_unit_for_each_share(n_bytes: float, unit: float, ranks: int) -> None:
    padded = float(padded_bytes(n_bytes, unit_bytes=unit, n_shares=float(ranks)))
    assert n_bytes <= padded < n_bytes + unit * ranks + 1e-6
    assert padded % (unit * ranks) == 0
    assert float(padded_bytes(n_bytes * 1.5, unit_bytes=unit, n_shares=float(ranks))) >= padded


def test_padding_of_a_large_message_is_small_and_that_of_rows_is_not() -> None:
    """1.25 MB over 4 ranks in units of 512: at most 2048 bytes, 0.16 %. Rows of 80 x 2 bytes in 128: 160 / 256."""
    assert float(padded_bytes(1.25e6, unit_bytes=512.0, n_shares=4.0)) / 1.25e6 - 1 < 2048 / 1.25e6
    assert row_useful_frac(d_row=80.0, element_bytes=2.0, unit_bytes=128.0) == 0.625
    assert row_useful_frac(d_row=64.0, element_bytes=2.0, unit_bytes=128.0) == 1.0
    rows = np.array([64.0, 80.0])
    np.testing.assert_array_equal(
        np.asarray(row_useful_frac(d_row=rows, element_bytes=2.0, unit_bytes=128.0)), [1.0, 0.625]
    )


@pytest.mark.parametrize("split", ["columns", "heads"])
@pytest.mark.parametrize("n_groups", [1, 2, 4, 8])
def test_groups_add_up_to_the_whole(split: Split, n_groups: int) -> None:
    """Flop and weights are conserved. Columns: bytes sent too; heads: each message has the full size."""
    whole = Message("m", "all_reduce", 4096.0 * 8192, 4)
    work = Work(
        "o", "matmul", "bf16", flop=1e12, weight_bytes=1e7, io_bytes=3e7 + whole.n_bytes, rows=4096.0, depth=1024.0
    )
    part, piece = group_message(whole, n_groups, split=split), group_work(work, whole.n_bytes, n_groups, split=split)
    assert piece.flop * n_groups == pytest.approx(work.flop)
    assert piece.weight_bytes is not None
    assert piece.weight_bytes * n_groups == pytest.approx(1e7)
    assert part.n_bytes * n_groups == pytest.approx(whole.n_bytes * (1 if split == "columns" else n_groups))
    assert piece.n_bytes * n_groups >= work.n_bytes * (1 - 1e-12)
    if n_groups == 1:
        assert (part.n_bytes, piece.n_bytes, piece.depth) == (whole.n_bytes, work.n_bytes, work.depth)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(c=TIMES, m=TIMES, g=st.integers(1, 32))
def test_overlap_lies_between_its_bounds(c: float, m: float, g: int) -> None:
    """Never below all computing or all sending, never above one after the other; the tree folds to its value."""
    compute, message = leaf("c", c, bound=Bound.COMPUTE), leaf("m", m, bound=Bound.LINK)
    found = grouped_time("g", compute, message, g)
    serial = grouped_time("g", compute, message, g, overlap=False)
    assert float(serial.value) == pytest.approx(g * (c + m))
    assert g * max(c, m) * (1 - 1e-12) <= float(found.value) <= float(serial.value) * (1 + 1e-12)
    assert refolded(found) == pytest.approx(float(found.value), rel=1e-12)


def test_shares_and_what_is_behind_them() -> None:
    """18 % doubled beside an unchanged rest is 0.36 / 1.18 = 30.5 %; 18 to 31 % needs (31/69) / (18/82) = 2.05 times.

    (31 - 18) / 31 = 42 % is by how much the smaller share lies below the larger; upwards it is 72 %.
    """
    assert share_after(0.18, 2.0) == pytest.approx(0.36 / 1.18)
    assert time_ratio_behind(0.18, 0.31) == pytest.approx((31 / 69) / (18 / 82))
    assert share_after(0.18, time_ratio_behind(0.18, 0.31)) == pytest.approx(0.31)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("slices", [PROMPT, (Slice("decode", 32.0, 1.0, 1024.0, 1024.0),)], ids=["prefill", "decode"])
def test_one_group_is_the_step_model(slices: tuple[Slice, ...], overlap: bool) -> None:
    for eager in (False, True):
        priced = engine(enforce_eager=eager)
        plain = priced.stage_step(priced.stages[0], slices)
        assert grouped_step(priced, slices, 1, overlap=overlap).value == pytest.approx(plain.value, rel=1e-12)


def test_more_groups_send_smaller_messages_that_are_slower_in_sum() -> None:
    rows = grouping_rows(engine(), PROMPT, [1, 2, 4, 8, 16])
    assert [row.message_bytes for row in rows] == [4096 * 4096 * 2 / g for g in (1, 2, 4, 8, 16)]
    sums = [row.n_groups * row.message_s for row in rows]
    assert sums == sorted(sums)
    assert [row.bus_bytes_per_s for row in rows] == sorted((r.bus_bytes_per_s for r in rows), reverse=True)
    assert [row.n_messages for row in rows] == [32 * g for g in (1, 2, 4, 8, 16)]
    for row in rows:
        assert refolded(row.tree) == pytest.approx(row.step_s, rel=1e-12)
        assert row.exposed_s >= row.message_s * (1 - 1e-9)  # the last message is never hidden


def test_a_long_prompt_gains_from_groups_and_a_small_batch_does_not() -> None:
    """c = 140 us of projection and s = 10 us of start: sqrt(c / s) = 3.7 groups. In decode there is nothing to hide."""
    assert best_grouping(grouping_rows(engine(), PROMPT, [1, 2, 4, 8, 16])).n_groups == 4
    decode = (Slice("decode", 32.0, 1.0, 1024.0, 1024.0),)
    assert best_grouping(grouping_rows(engine(), decode, [1, 2, 4])).n_groups == 1


@pytest.mark.parametrize("split", ["columns", "heads"])
def test_without_overlap_groups_only_cost(split: Split) -> None:
    steps = [r.step_s for r in grouping_rows(engine(), PROMPT, [1, 2, 4], split=split, overlap=False)]
    assert steps == sorted(steps)


def test_partial_sums_of_heads_send_the_whole_output_each() -> None:
    rows = grouping_rows(engine(), PROMPT, [1, 4], split="heads")
    assert rows[0].message_bytes == rows[1].message_bytes
    assert rows[1].step_s > rows[0].step_s


def test_the_command(run_cli: Callable[..., Any]) -> None:
    asked = ("allreduce", "llama-3.1-8b", "dgx-a100", "-tp", "4", "--tokens", "4096", "--head-groups", "1,2,4,8")
    ran = run_cli(*asked, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    steps = {row["n_groups"]: row["step_s"] for row in document["rows"]}
    assert steps[document["best_n_groups"]] == min(steps.values())
    assert document["align_bytes"] == 128.0
    assert "Best: 4 groups" in run_cli(*asked).out
    assert run_cli(*asked, "--csv").out.count("\n") == 5
    assert "groups_side_by_side" in run_cli(*asked, "--explain").out
    assert json.loads(run_cli(*asked, "--explain", "--json").out)["explanation"]
    decode = run_cli(*asked[:5], "--phase", "decode", "--tokens", "33", "--no-overlap", "--align", "4096")
    assert "Best: 1 group" in decode.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--head-groups", "1,x"), "--head-groups"),
        (("--head-groups", "0"), "--head-groups"),
        (("--split", "rows"), "--split"),
        (("--phase", "mixed"), "--phase"),
        (("--align", "-1"), "--align"),
        (("--tokens", "1", "--batch", "2"), "less than a token"),
        (("-tp", "1"), "no all-reduce"),
    ],
)
def test_the_command_refuses(run_cli: Callable[..., Any], words: tuple[str, ...], says: str) -> None:
    ran = run_cli("allreduce", "llama-3.1-8b", "dgx-a100", *(() if "-tp" in words else ("-tp", "4")), *words)
    assert ran.code == 2
    assert says in ran.err


def test_no_groups_are_refused() -> None:
    with pytest.raises(SpecError):
        grouped_time("g", leaf("c", 1.0, bound=Bound.COMPUTE), leaf("m", 1.0, bound=Bound.LINK), 0)
    with pytest.raises(SpecError):
        group_message(Message("m", "all_reduce", 1.0, 2), 0)
