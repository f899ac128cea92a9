"""Cache lines and banks: closed forms and exact counts against a walk over every byte."""

from __future__ import annotations

from itertools import product
from math import ceil, gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.cost.layout import BlockRead, StridedAccess, axes_of, bank_passes, block_read
from perfmodel.errors import SpecError

LINES = st.sampled_from((8, 16, 32))


def walked(starts: list[int], run: int, line: int) -> tuple[int, int]:
    """Return (lines fetched run by run, distinct lines) of runs that start at these bytes."""
    touched = [set(range(start // line, (start + run - 1) // line + 1)) for start in starts]
    return sum(map(len, touched)), len(set().union(*touched))


@given(run=st.integers(1, 70), stride=st.integers(1, 90), line=LINES, phase=st.integers(0, 40))
def test_a_strided_access_equals_a_walk_over_whole_cycles(run: int, stride: int, line: int, phase: int) -> None:
    cycle = line // gcd(stride, line)
    access = StridedAccess(float(run), float(stride), float(line), float(phase))
    alone, _ = walked([phase + i * stride for i in range(cycle)], run, line)
    assert float(access.lines_per_run) == pytest.approx(alone / cycle, rel=1e-12)
    # distinct lines of the cycles far from both ends: all of three cycles less those of two
    _, three = walked([phase + i * stride for i in range(30 * cycle)], run, line)
    _, two = walked([phase + i * stride for i in range(29 * cycle)], run, line)
    assert float(access.distinct_lines_per_run) == pytest.approx((three - two) / cycle, rel=1e-12)


@given(run=st.integers(1, 70), stride=st.integers(1, 90), line=LINES)
def test_no_line_gives_more_than_it_holds(run: int, stride: int, line: int) -> None:
    access = StridedAccess(float(run), float(stride), float(line))
    assert 0.0 < float(access.use_frac) <= 1.0
    assert float(access.use_frac) >= run / (run + 2 * (line - 1)) - 1e-12
    if run <= stride:
        assert float(access.use_frac) <= float(access.shared_use_frac) + 1e-12
        assert float(access.shared_use_frac) <= 1.0 + 1e-12


def test_longer_runs_never_use_lines_worse_at_byte_alignment() -> None:
    runs = np.arange(1.0, 2000.0)
    use = StridedAccess(runs, 4097.0, 128.0).use_frac
    assert np.all(np.diff(use) > 0)


def test_arrays_give_what_scalars_give() -> None:
    runs = np.array([64.0, 128.0, 1152.0])
    strides = np.array([384.0, 576.0, 1152.0])
    many = StridedAccess(runs, strides, 128.0)
    one = [StridedAccess(float(r), float(s), 128.0) for r, s in zip(runs, strides, strict=True)]
    np.testing.assert_allclose(many.lines_per_run, [float(o.lines_per_run) for o in one], rtol=1e-12)
    np.testing.assert_allclose(many.shared_use_frac, [float(o.shared_use_frac) for o in one], rtol=1e-12)


def block_starts(axes: tuple[str, ...], sizes: dict[str, int], read: dict[str, int], at: tuple[int, ...]) -> list[int]:
    """Return where the elements of a block lie, one byte each, by walking it."""
    strides = [int(np.prod([sizes[a] for a in axes[i + 1 :]], dtype=int)) for i in range(len(axes))]
    ranges = [range(k * read[a], (k + 1) * read[a]) for a, k in zip(axes, at, strict=True)]
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*ranges)]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    wanted=st.lists(st.integers(1, 6), min_size=4, max_size=4),
    element=st.sampled_from((1, 2, 3)),
    line=LINES,
    shift=st.integers(0, 3),
)
def test_a_block_equals_a_walk_over_its_bytes_at_every_place(
    sizes: list[int], wanted: list[int], element: int, line: int, shift: int
) -> None:
    axes = tuple("abcd"[: len(sizes)])
    size = dict(zip(axes, sizes, strict=True))
    read = {
        axis: max(d for d in range(1, n + 1) if n % d == 0 and d <= w)
        for (axis, n), w in zip(size.items(), wanted, strict=False)
    }
    alignment = line >> shift
    block = block_read(axes, sizes=size, read=read, element_bytes=element, line_bytes=line, alignment_bytes=alignment)
    places = list(product(*(range(size[a] // read[a]) for a in axes)))
    alone = distinct = 0
    for base in range(0, line, alignment):
        for at in places:
            elements = block_starts(axes, size, read, at)
            used = {base + e * element + i for e in elements for i in range(element)}
            # runs as the block states them: the same bytes, cut where the block cuts
            starts = [base + elements[0] * element]
            for n, stride in block.levels:
                starts = [s + i * stride for i in range(n) for s in starts]
            covered = {s + i for s in starts for i in range(block.run_bytes)}
            assert covered == used
            fetched, kept = walked(starts, block.run_bytes, line)
            alone, distinct = alone + fetched, distinct + kept
    n = len(places) * (line // alignment)
    assert block.lines == pytest.approx(alone / n, rel=1e-12)
    assert block.distinct_lines == pytest.approx(distinct / n, rel=1e-12)


def head(layout: str, line_bytes: int, *, width: int = 192, alignment_bytes: int | None = None) -> BlockRead:
    """One head of a query: 4096 tokens, 128 heads, 16 bits."""
    sizes = {"B": 1, "L": 4096, "H": 128, "D": width}
    read = {"B": 1, "H": 1}
    return block_read(
        layout, sizes=sizes, read=read, element_bytes=2, line_bytes=line_bytes, alignment_bytes=alignment_bytes
    )


def test_head_major_reads_one_run_and_token_major_one_run_a_token() -> None:
    """A head of 192 elements is 384 bytes. [B,L,H,D]: 4096 runs, 128 x 384 = 49,152 bytes apart. [B,H,L,D]: one run."""
    token_major, head_major = head("[B,L,H,D]", 512), head("[B,H,L,D]", 512)
    assert (token_major.n_runs, token_major.run_bytes, token_major.stride_bytes) == (4096, 384, 49152)
    assert (head_major.n_runs, head_major.run_bytes) == (1, 4096 * 384)
    assert head_major.use_frac == 1.0
    # starts of head h: 384 h mod 512 = 0, 384, 256, 128; 384 bytes from there touch 1, 2, 2, 1 lines: 1.5 on average
    assert token_major.lines / token_major.n_runs == pytest.approx(1.5)
    assert token_major.use_frac == pytest.approx(384 / (1.5 * 512))
    # lines of 128 bytes: 384 = 3 lines, and each head starts at one
    assert head("[B,L,H,D]", 128).use_frac == 1.0


def test_a_latent_row_uses_more_of_its_lines_than_a_slice_of_it() -> None:
    """32-byte alignment, lines of 128: 1152 bytes touch (1152 + 96) / 128 lines, 128 bytes (128 + 96) / 128."""
    sizes = {"K": 4097, "D": 576}
    row = block_read("[K,D]", sizes=sizes, read={"K": 1}, element_bytes=2, line_bytes=128, alignment_bytes=32)
    assert row.use_frac == pytest.approx(1152 / 1248)  # 0.923
    part = StridedAccess(128.0, 1152.0 + 32.0, 128.0)
    assert float(part.use_frac) == pytest.approx(128 / 224)  # 0.571


@given(
    lanes=st.integers(1, 64),
    stride=st.integers(0, 300),
    banks=st.sampled_from((8, 16, 32)),
    width=st.sampled_from((4, 8, 32)),
)
def test_bank_passes_equal_a_walk(lanes: int, stride: int, banks: int, width: int) -> None:
    words: dict[int, set[int]] = {}
    for lane in range(lanes):
        word = lane * stride // width
        words.setdefault(word % banks, set()).add(word)
    found = bank_passes(n_lanes=lanes, stride_bytes=stride, n_banks=banks, bank_bytes=width)
    assert found == max(map(len, words.values()))
    assert 1 <= found <= lanes
    if stride and stride % width == 0:
        assert found == ceil(lanes / (banks // gcd(stride // width, banks)))


def test_the_vendor_s_own_examples_of_an_ascend_unified_buffer() -> None:
    """Eight blocks of 32 bytes, 16 bank groups. Blocks 16 apart all meet: 8 cycles a repeat; 8 apart, in pairs of
    groups: 4 cycles; side by side: none meet. (Ascend C best practices, avoiding bank conflicts.)"""
    stated = {16: 8, 8: 4, 1: 1}
    for stride, cycles in stated.items():
        assert bank_passes(n_lanes=8, stride_bytes=32 * stride, n_banks=16, bank_bytes=32) == cycles


def test_powers_of_two_conflict_and_odd_strides_do_not() -> None:
    passes = [bank_passes(n_lanes=32, stride_bytes=4 * 2**i, n_banks=32, bank_bytes=4) for i in range(7)]
    assert passes == [1, 2, 4, 8, 16, 32, 32]
    assert {bank_passes(n_lanes=32, stride_bytes=4 * odd, n_banks=32, bank_bytes=4) for odd in range(1, 99, 2)} == {1}


@pytest.mark.parametrize("text", ["", "[]", "B,,L", "[B,B]", "B;L"])
def test_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="layout"):
        axes_of(text)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sizes": {"L": 4}}, "none for D"),
        ({"read": {"X": 1}}, "no axis X"),
        ({"read": {"L": 9}}, "1 to 8"),
        ({"read": {"D": 0}}, "1 to 3"),
        ({"element_bytes": 0.5}, "whole bytes"),
        ({"alignment_bytes": 24}, "divides"),
        ({"line_bytes": 0}, "divides"),
    ],
)
def test_a_block_that_cannot_be_is_refused(changed: dict[str, object], words: str) -> None:
    asked: dict[str, object] = {"sizes": {"L": 8, "D": 3}, "read": {"L": 1}, "element_bytes": 1, "line_bytes": 64}
    with pytest.raises(SpecError, match=words):
        block_read("[L,D]", **(asked | changed))  # type: ignore[arg-type]
