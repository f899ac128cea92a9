"""Many questions at once: arrays in, arrays out, through the same lines as the single question.

Rows are worked on in chunks small enough for the processor's cache, on a few threads (numpy releases the interpreter
lock), so that a million rows never hold a million-row tree. Rows that share a layout share an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.estimate import combined_exposure, exposure, spread
from perfmodel.step.request import request_estimate
from perfmodel.step.step import Engine

__all__ = ["CHUNK_ROWS", "SweepTotals", "sweep_totals"]

CHUNK_ROWS = 24576
"""Rows worked on at once: enough that Python's share of the time is small, few enough that a tree takes some 100 MB."""

Floats = NDArray[np.float64]


class SweepTotals(NamedTuple):
    """Columns of a sweep, one row a question; times in seconds, `_sd` relative standard deviations."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    output_tokens_per_s: Floats
    ttft_sd: Floats
    tpot_sd: Floats
    e2e_sd: Floats


def sweep_totals(
    engine: Engine,
    *,
    batch: Floats,
    input_tokens: Floats,
    output_tokens: Floats,
    token_budget: Floats | float,
    on_rows_done: Callable[[int], None] | None = None,
    n_threads: int | None = None,
) -> SweepTotals:
    """Return totals with their first-order bands for every row; the columns have one length.

    `on_rows_done` is called with the number of rows of each finished chunk (for progress bars).
    """
    n_rows = len(batch)
    budgets = np.broadcast_to(np.asarray(token_budget, dtype=np.float64), batch.shape)
    result = SweepTotals(*(np.empty(n_rows) for _ in SweepTotals._fields))

    def fill(rows: slice) -> int:
        columns = _chunk(engine, batch[rows], input_tokens[rows], output_tokens[rows], budgets[rows])
        for target, values in zip(result, columns, strict=True):
            target[rows] = values
        n_done: int = rows.stop - rows.start
        return n_done

    _ = engine.stages  # priced once, before threads share it
    with ThreadPoolExecutor(n_threads or min(4, os.cpu_count() or 1)) as pool:
        for n_done in pool.map(fill, _chunks(n_rows)):
            if on_rows_done is not None:
                on_rows_done(n_done)
    return result


def _chunks(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, CHUNK_ROWS):
        yield slice(start, min(start + CHUNK_ROWS, n_rows))


def _chunk(
    engine: Engine, batch: Floats, input_tokens: Floats, output_tokens: Floats, token_budget: Floats
) -> SweepTotals:
    r = request_estimate(
        engine, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens, token_budget=token_budget
    )
    ttft, tpot = exposure(r.ttft), exposure(r.tpot)
    e2e = combined_exposure(r.e2e, {id(r.ttft): ttft, id(r.tpot): tpot})
    columns = (r.ttft.value, r.tpot.value, r.e2e.value, r.output_tokens_per_s, spread(ttft), spread(tpot), spread(e2e))
    return SweepTotals(*(np.broadcast_to(np.asarray(c, dtype=np.float64), batch.shape) for c in columns))
