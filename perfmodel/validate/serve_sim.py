"""Measured serving against both answers: the closed form, and the simulation of the same load on the same step model.

The simulation draws lengths as the load states them and sends what the load sends. Polling, which
the engine of a simulation does not do, is added to TTFT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfmodelError
from perfmodel.measure.table import Table
from perfmodel.serving.arrivals import Tokens, Trace, simultaneous_arrivals, uniform_lengths
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.parts import Floats, Parts, grouped
from perfmodel.validate.predict import predictions
from perfmodel.validate.serving import KV_NOTE, LoadWords, load_words, served_case
from perfmodel.validate.steps import SETUP_COLUMNS, case_of_row

__all__ = ["BothAnswers", "both_answers", "runs_to_simulate"]

_USUAL_REQUESTS: Final = 10.0
_USUAL_SPREAD_FRAC: Final = 0.1
"""Lengths are drawn this far around what is written where no spread is stated: of equal lengths all requests would end
in one step, and the next ones begin as one burst, which real answers do not."""
_RUN: Final = ("op", "variant", *SETUP_COLUMNS, "batch", "input_tokens", "output_tokens")


@dataclass(frozen=True, eq=False, slots=True)
class BothAnswers:
    """Rows of measured serving with both predictions; NaN where one of them has none."""

    table: Table
    closed: Floats
    simulated: Floats
    kv_limited: NDArray[np.bool_]

    def errors(self, metric: str, *, kv_limited: bool) -> tuple[Floats, Floats]:
        """Return |predicted / measured - 1| of the closed form and of the simulation, for rows that have both."""
        measured = np.asarray(self.table["value"], dtype=np.float64)
        use = (self.table["metric"] == metric) & (self.kv_limited == kv_limited)
        use &= np.isfinite(self.closed) & np.isfinite(self.simulated)
        closed, found = (np.abs(column[use] / measured[use] - 1.0) for column in (self.closed, self.simulated))
        return closed, found


def runs_to_simulate(table: Table, catalogue: Catalogue, n_most: int) -> Table:
    """Return closed-loop rows of at most so many runs: those for which the KV cache is the limit first, then evenly."""
    rows = table.where(kind="serve", metric=("ttft_s", "tpot_s"))
    rows = rows.selected(np.isfinite(rows["batch"]) & np.isnan(rows["request_rate_per_s"]))
    limited = _is_limited(predictions(rows, catalogue).remark)
    runs = [at for _, at in grouped(rows, np.arange(len(rows)), _RUN)]
    first = [at for at in runs if limited[at].any()]
    others = [at for at in runs if not limited[at].any()]

    def spread(listed: list[NDArray[np.intp]], n: int) -> list[NDArray[np.intp]]:
        if n >= len(listed):
            return listed
        return [listed[i] for i in np.unique(np.linspace(0, len(listed) - 1, n).astype(int))] if n else []

    chosen = spread(first, max(1, n_most // 2) if others else n_most)
    chosen += spread(others, n_most - len(chosen))
    mask = np.zeros(len(rows), dtype=bool)
    for at in chosen:
        mask[at] = True
    return rows.selected(mask)


def both_answers(
    table: Table, catalogue: Catalogue, *, seed: int = 0, on_rows_done: Callable[[int], None] | None = None
) -> BothAnswers:
    """Return the closed form and the simulation for closed-loop rows of TTFT and TPOT; one run after the other."""
    closed = predictions(table, catalogue)
    found = np.full(len(table), np.nan)
    parts = Parts(catalogue)
    for words, at in grouped(table, np.arange(len(table)), _RUN):
        try:
            answer = _simulated(parts, table, int(at[0]), words, seed)
        except PerfmodelError:
            answer = {}  # the closed form says in `reason` why there is none
        for i in at:
            found[i] = answer.get(str(table["metric"][i]), np.nan)
        if on_rows_done is not None:
            on_rows_done(len(at))
    return BothAnswers(table, closed.predicted, found, _is_limited(closed.remark))


def _is_limited(remarks: NDArray[np.object_]) -> NDArray[np.bool_]:
    return np.array([KV_NOTE in remark for remark in remarks], dtype=bool)


def _simulated(parts: Parts, table: Table, row: int, words: dict[str, str], seed: int) -> dict[str, float]:
    load = load_words(words["variant"])
    users, prompt, output = (float(table[name][row]) for name in ("batch", "input_tokens", "output_tokens"))
    case, _ = case_of_row(parts, words, int(prompt + output))
    case = served_case(case, load, (prompt + output) * (1.0 + _USUAL_SPREAD_FRAC) + 1)
    n = max(1, round(users * (load.requests_per_user or _USUAL_REQUESTS)))
    rng = np.random.default_rng(seed)
    trace = Trace(simultaneous_arrivals(n), _drawn(n, prompt, load, rng), _drawn(n, output, load, rng))
    trace = trace.closed(int(users))
    serving = serving_case(case, trace)
    run = simulated(trace, serving.setup, serving.clock)
    spreads = serving_result(run).spreads
    ttft, tpot = spreads["ttft_s"].mean, spreads["tpot_s"].mean
    if ttft is None or tpot is None:
        return {}
    polled = 0.5 * (case.setup.runtime.n_poll_steps - 1.0) * tpot
    return {"ttft_s": ttft + max(polled, 0.0), "tpot_s": tpot}


def _drawn(n: int, tokens: float, load: LoadWords, rng: np.random.Generator) -> Tokens:
    fracs = (load.low_frac, load.high_frac)
    if load.low_frac == load.high_frac:
        fracs = (load.low_frac * (1.0 - _USUAL_SPREAD_FRAC), load.high_frac * (1.0 + _USUAL_SPREAD_FRAC))
    low, high = (max(1, round(tokens * frac)) for frac in fracs)
    return uniform_lengths(n, low_tokens=low, high_tokens=high, rng=rng)
