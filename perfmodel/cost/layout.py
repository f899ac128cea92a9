"""How much of each fetched cache line an access uses, and how often lanes meet in one bank.

A strided access reads runs of r contiguous bytes, each s bytes after the one before, through lines of l bytes. With
g = gcd(s, l) its starts visit every multiple of g in a line equally often, so that with the phase p = start mod g

    lines of a run   = (g ceil((p + r) / g) + l - g) / l       exact over a whole cycle (Hermite's identity)
    distinct lines   = s / l where the gap s - r is shorter than a line, else as above

A tensor is a dense row-major array of named axes. Reading a block of it gives runs at nested strides; lines are counted
exactly, by how many runs start at each byte of a line: no tensor is ever enumerated. The bandwidth that an access
reaches is at most its line use times that of the memory: whole lines travel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, above, ceiling

__all__ = ["BlockRead", "StridedAccess", "axes_of", "bank_passes", "block_read"]

_LAYOUT: Final = re.compile(r"\[?\s*([A-Za-z][A-Za-z0-9_]*(?:\s*[,x]\s*[A-Za-z0-9_]+)*)\s*\]?")
_WHOLE: Final = 1e-300


@dataclass(frozen=True, slots=True)
class StridedAccess:
    """Runs of `run_bytes` at a stride, the first one `phase_bytes` after the start of a line. Whole bytes all.

    >>> access = StridedAccess(run_bytes=128.0, stride_bytes=384.0, line_bytes=512.0)
    >>> float(access.lines_per_run), float(access.use_frac)
    (1.0, 0.25)
    """

    run_bytes: Num
    stride_bytes: Num
    line_bytes: Num
    phase_bytes: Num = 0.0

    @property
    def step_bytes(self) -> Num:
        """Greatest common divisor of stride and line: starts are `phase_bytes` plus its multiples, all equally often.

        A stride of zero reads one run over and over: its step is the line.
        """
        whole = (np.asarray(value).astype(np.int64) for value in (self.stride_bytes, self.line_bytes))
        return np.multiply(np.gcd(*whole), 1.0)

    @property
    def lines_per_run(self) -> Num:
        """Lines that a run touches, on average over a whole cycle of starts."""
        step = self.step_bytes
        reach = np.remainder(self.phase_bytes, step) + self.run_bytes
        return (step * ceiling(reach / step) + self.line_bytes - step) / self.line_bytes

    @property
    def distinct_lines_per_run(self) -> Num:
        """Lines that are new to the access, on average: neighbours share lines where no whole line lies between."""
        gap = self.stride_bytes - self.run_bytes
        apart = 1.0 - above(self.line_bytes - gap, 0.0)
        return apart * self.lines_per_run + (1.0 - apart) * (self.stride_bytes / self.line_bytes)

    @property
    def use_frac(self) -> Num:
        """Bytes asked for over bytes fetched where each run fetches its own lines."""
        return self.run_bytes / (self.lines_per_run * self.line_bytes)

    @property
    def shared_use_frac(self) -> Num:
        """Bytes asked for over bytes fetched where a line stays until its neighbours have used it."""
        return self.run_bytes / (self.distinct_lines_per_run * self.line_bytes)


def axes_of(layout: str) -> tuple[str, ...]:
    """Return the axes of a layout, outermost first; raises SpecError for text that is none or names an axis twice.

    >>> axes_of("[B, H, L, D]")
    ('B', 'H', 'L', 'D')
    """
    match = _LAYOUT.fullmatch(layout.strip())
    axes = tuple(part.strip() for part in re.split(r"[,x]", match[1])) if match else ()
    if not axes or len(set(axes)) < len(axes):
        raise SpecError(
            "a layout cannot be read",
            got=repr(layout),
            expected="axes parted by commas, each once, outermost first, as in [B,H,L,D]",
        )
    return axes


@dataclass(frozen=True)
class BlockRead:
    """A block of a dense row-major tensor, read run by run; counts are means over every place that it may have.

    `levels` are (count, stride in bytes) of the nested repeats of a run, innermost first. The start of the block is the
    start of the tensor, a multiple of `alignment_bytes`, plus any multiple of the block itself along each axis.
    """

    layout: tuple[str, ...]
    run_bytes: int
    levels: tuple[tuple[int, int], ...]
    line_bytes: int
    alignment_bytes: int
    places: tuple[tuple[int, int], ...] = ()

    @property
    def n_runs(self) -> int:
        """Runs of the block."""
        return int(np.prod([n for n, _ in self.levels], dtype=object)) if self.levels else 1

    @property
    def useful_bytes(self) -> int:
        """Bytes that were asked for."""
        return self.n_runs * self.run_bytes

    @cached_property
    def _first_starts(self) -> NDArray[np.float64]:
        """How often the block starts at each byte of a line, as a share."""
        starts = np.zeros(self.line_bytes)
        starts[:: self.alignment_bytes] = 1.0
        for n, stride in self.places:
            starts = _repeated(starts, n, stride)
        shares: NDArray[np.float64] = starts / starts.sum()
        return shares

    @cached_property
    def lines(self) -> float:
        """Lines fetched where each run fetches its own."""
        starts = self._first_starts
        for n, stride in self.levels:
            starts = _repeated(starts, n, stride)
        touched = (np.arange(self.line_bytes) + self.run_bytes - 1) // self.line_bytes + 1
        return float(starts @ touched)

    @cached_property
    def distinct_lines(self) -> float:
        """Lines fetched where a line stays until the next run has used it, as within one pass of a kernel."""
        shared, extent = 0.0, self.run_bytes
        for i, (n, stride) in enumerate(self.levels):
            gap = stride - extent
            if gap < self.line_bytes:
                starts = np.roll(self._first_starts, stride % self.line_bytes)
                starts = _repeated(starts, n - 1, stride)
                for n_outer, outer in self.levels[i + 1 :]:
                    starts = _repeated(starts, n_outer, outer)
                shared += float(starts[gap + 1 :].sum())
            extent += (n - 1) * stride
        return self.lines - shared

    @property
    def use_frac(self) -> float:
        """Bytes asked for over bytes fetched where each run fetches its own lines."""
        return self.useful_bytes / (self.lines * self.line_bytes)

    @property
    def shared_use_frac(self) -> float:
        """Bytes asked for over bytes fetched where lines stay for the next run."""
        return self.useful_bytes / (self.distinct_lines * self.line_bytes)

    @property
    def stride_bytes(self) -> int:
        """Bytes from the start of a run to that of the next; those of the run itself where there is one run."""
        return self.levels[0][1] if self.levels else self.run_bytes


def _repeated(starts: NDArray[np.float64], n: int, stride: int) -> NDArray[np.float64]:
    """Return how often runs start at each byte of a line when all of them are repeated n times at a stride."""
    line = len(starts)
    step = stride % line
    cycle = line // np.gcd(step, line) if step else 1
    whole, rest = divmod(n, cycle)
    result: NDArray[np.float64] = np.zeros(line)
    for i in range(cycle if whole else rest):
        result += np.roll(starts, i * step % line) * (whole + (i < rest))
    return result


def block_read(
    layout: str | tuple[str, ...],
    *,
    sizes: Mapping[str, int],
    read: Mapping[str, int],
    element_bytes: float,
    line_bytes: int,
    alignment_bytes: int | None = None,
) -> BlockRead:
    """Return how a block is read: `read` says how many of an axis; axes that it does not name are read whole.

    The tensor starts at a line unless `alignment_bytes` says otherwise. Raises SpecError for an axis without a size, a
    block larger than its tensor, elements that do not fill whole bytes, or a line that the alignment does not divide.

    >>> rope = block_read("[L,D]", sizes={"L": 4096, "D": 576}, read={"D": 64}, element_bytes=2, line_bytes=128)
    >>> rope.run_bytes, rope.n_runs, rope.use_frac
    (128, 4096, 1.0)
    """
    axes = axes_of(layout) if isinstance(layout, str) else layout
    alignment = line_bytes if alignment_bytes is None else alignment_bytes
    _check(axes, sizes, read, line_bytes, alignment)
    run, stride, levels, places = element_bytes, element_bytes, [], []
    is_contiguous = True
    for axis in reversed(axes):
        n, size = read.get(axis, sizes[axis]), sizes[axis]
        if size // n > 1:
            places.append((size // n, _whole_bytes(n * stride, axis)))
        if is_contiguous:
            run = n * stride
            is_contiguous = n == size
        elif n > 1:
            levels.append((n, _whole_bytes(stride, axis)))
        stride = stride * size
    return BlockRead(axes, _whole_bytes(run, axes[-1]), tuple(levels), line_bytes, alignment, tuple(places))


def _whole_bytes(size: float, axis: str) -> int:
    if size - np.floor(size) > _WHOLE:
        raise SpecError(
            "a block does not fill whole bytes",
            where=f"axis {axis}",
            got=f"{size:g} bytes",
            expected="elements that fill whole bytes along this axis",
        )
    return round(size)


def _check(
    axes: tuple[str, ...], sizes: Mapping[str, int], read: Mapping[str, int], line_bytes: int, alignment_bytes: int
) -> None:
    layout = f"[{','.join(axes)}]"
    if missing := [axis for axis in axes if axis not in sizes]:
        raise SpecError(f"{layout} lacks sizes", got=f"none for {', '.join(missing)}", expected="a size for each axis")
    if unknown := sorted(set(read) - set(axes)):
        raise SpecError(f"{layout} has no axis {', '.join(unknown)}", expected=f"some of {', '.join(axes)}")
    for axis in axes:
        n, size = read.get(axis, sizes[axis]), sizes[axis]
        if not 1 <= n <= size:
            raise SpecError(f"{n} of axis {axis} cannot be read", where=layout, expected=f"1 to {size}")
    if line_bytes < 1 or alignment_bytes < 1 or line_bytes % alignment_bytes:
        raise SpecError(
            "lines and alignment do not fit",
            got=f"lines of {line_bytes} bytes, alignment {alignment_bytes}",
            expected="an alignment that divides the line",
        )


def bank_passes(*, n_lanes: int, stride_bytes: int, n_banks: int, bank_bytes: int) -> int:
    """Return in how many passes lanes at a stride are served, each bank one word a pass; lanes of one word share it.

    For a stride of whole words this is n_lanes x gcd(stride in words, n_banks) / n_banks, rounded up.

    >>> bank_passes(n_lanes=32, stride_bytes=4, n_banks=32, bank_bytes=4)
    1
    >>> bank_passes(n_lanes=32, stride_bytes=128, n_banks=32, bank_bytes=4)
    32
    """
    if n_lanes < 1 or n_banks < 1 or bank_bytes < 1 or stride_bytes < 0:
        got = f"{n_lanes} lanes, stride {stride_bytes}, {n_banks} banks of {bank_bytes} bytes"
        raise SpecError("banks cannot be counted", got=got, expected="numbers of at least 1 and a stride of at least 0")
    words = np.unique(np.arange(n_lanes, dtype=np.int64) * stride_bytes // bank_bytes)
    return int(np.bincount(words % n_banks).max())
