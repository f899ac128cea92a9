"""Predictions for rows of serving: the closed form of a steady load, one engine for each setup, arrays over the loads.

How a load was made stands in the words of `variant`, joined by "+": `lengths-0.8-1` (lengths drawn evenly between
these shares of what is written), `requests-10x` (ten requests a user, all users at once in the beginning),
`budget-8192` (token budget of a step), `seqs-256` (max_num_seqs), `poll-30` (the scheduler looks for requests every 30
steps), `wait-20` (it waits up to 20 steps for more prompts before it reads one).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.estimate import Z80, Estimate, Num, relative_sd
from perfmodel.measure.table import Table
from perfmodel.serving.steady import SteadyServing
from perfmodel.serving.steady_case import SteadyCase, steady_case
from perfmodel.step.question import Case
from perfmodel.validate.parts import Floats, Found, Parts, Positions, bounds_of, grouped, refused
from perfmodel.validate.steps import SETUP_COLUMNS, case_of_row

__all__ = ["KV_NOTE", "LoadWords", "load_words", "serve_predictions", "served_case"]

_WORD: Final = re.compile(r"(lengths)-([\d.]+)-([\d.]+)|(requests)-([\d.]+)x|(budget|seqs|poll|wait)-(\d+)")
_TAIL: Final = re.compile(r"p(?!50$)\d+")
"""Percentiles that a mean cannot stand for; beside a median it is close."""
_FLOOD: Final = 2.0**20
"""Users who keep every slot taken, whatever the engine."""
KV_NOTE: Final = "the KV cache is the limit: a simulation is more exact"


@dataclass(frozen=True, slots=True)
class LoadWords:
    """How a load was made: mean length over the written one, requests a user (None: unknown), limits of a step."""

    length_frac: float = 1.0
    low_frac: float = 1.0
    high_frac: float = 1.0
    requests_per_user: float | None = None
    token_budget: int | None = None
    max_num_seqs: int | None = None
    n_poll_steps: float | None = None
    """Twice the mean number of steps that a request waits for the scheduler to take it."""


def load_words(variant: str) -> LoadWords:
    """Return what the words of a variant say about a load; other words are left alone.

    >>> load_words("lengths-0.8-1+requests-10x").length_frac
    0.9
    """
    found = LoadWords()
    for match in _WORD.finditer(variant):
        if match[1]:
            low, high = float(match[2]), float(match[3])
            found = replace(found, length_frac=0.5 * (low + high), low_frac=low, high_frac=high)
        elif match[4]:
            found = replace(found, requests_per_user=float(match[5]))
        elif match[6] == "budget":
            found = replace(found, token_budget=int(match[7]))
        elif match[6] == "seqs":
            found = replace(found, max_num_seqs=int(match[7]))
        else:
            steps = float(match[7]) * (2.0 if match[6] == "wait" else 1.0)
            found = replace(found, n_poll_steps=(found.n_poll_steps or 0.0) + steps)
    return found


def served_case(case: Case, words: LoadWords, longest: float) -> Case:
    """Return the case with the limits that a load states, for requests of at most so many tokens."""
    options: dict[str, object] = {"max_model_len": int(longest)}
    if words.token_budget is not None:
        options["max_num_batched_tokens"] = words.token_budget
    if words.max_num_seqs is not None:
        options["max_num_seqs"] = words.max_num_seqs
    setup = case.setup
    if words.n_poll_steps is not None:
        setup = replace(setup, runtime=setup.runtime.model_copy(update={"n_poll_steps": words.n_poll_steps}))
    return replace(case, setup=setup, memory=case.memory.with_options(**options))


def serve_predictions(parts: Parts, table: Table, at: Positions) -> Iterator[Found]:
    """Yield predictions of the serving rows at `at`, setup by setup and metric by metric."""
    for words, here in grouped(table, at, ("op", "variant", *SETUP_COLUMNS)):
        if _TAIL.fullmatch(words["op"]):
            yield refused(here, f"the closed form gives means, no {words['op']}: `perfmodel diagnose` has percentiles")
            continue
        if words["op"] == "disagg":
            yield refused(here, "prompts and decodes on workers of their own are not predicted in closed form")
            continue
        rates = np.asarray(table["request_rate_per_s"][here], dtype=np.float64)
        users = np.asarray(table["batch"][here], dtype=np.float64)
        tokens = table["input_tokens"][here] + table["output_tokens"][here]
        is_stated = np.isfinite(tokens)
        closed = is_stated & np.isfinite(users) & (np.isnan(rates) | np.isinf(rates))
        opened = is_stated & np.isfinite(rates) & ~closed
        flood = is_stated & np.isinf(rates) & ~closed
        if not is_stated.all():
            yield refused(here[~is_stated], "the lengths of the requests are not stated")
        for rows, kind in ((closed, "closed"), (opened, "open"), (flood, "flood")):
            if rows.any():
                yield from _predicted(parts, table, here[rows], words, kind)
        lacking = is_stated & ~closed & ~opened & ~flood
        if lacking.any():
            yield refused(here[lacking], "neither users (batch) nor a rate (request_rate_per_s) is stated")


def _predicted(parts: Parts, table: Table, here: Positions, words: dict[str, str], kind: str) -> Iterator[Found]:
    load = load_words(words["variant"])
    prompt, output = (
        np.maximum(table[name][here] * load.length_frac, 1.0) for name in ("input_tokens", "output_tokens")
    )
    longest = float(np.max(table["input_tokens"][here] + table["output_tokens"][here]))
    first, point_of = _points(table, here)
    try:
        case, remark = case_of_row(parts, words, int(longest))
        case = served_case(case, load, longest + 1)
        found = _served(case, table, here[first], load, kind, prompt[first], output[first])
    except PerfmodelError as error:
        yield refused(here, str(error))
        return
    metrics = table["metric"][here]
    for metric in dict.fromkeys(metrics):
        rows = np.flatnonzero(metrics == metric)
        if kind == "flood" and not str(metric).endswith("per_s"):
            yield refused(here[rows], "all requests come at once: latencies depend on how many, which is not stated")
            continue
        yield from _found(found, str(metric), len(first), point_of[rows], here[rows], remark)


def _points(table: Table, here: Positions) -> tuple[Positions, Positions]:
    """Return (a row of each load, the load of each row): the metrics of one run are one question."""
    names = ("batch", "request_rate_per_s", "input_tokens", "output_tokens")
    loads = np.stack([np.nan_to_num(table[name][here], nan=-1.0) for name in names])
    _, first, point_of = np.unique(loads, axis=1, return_index=True, return_inverse=True)
    return first, np.asarray(point_of).reshape(-1)


def _served(
    case: Case, table: Table, here: Positions, load: LoadWords, kind: str, prompt: Floats, output: Floats
) -> SteadyCase:
    rates, users = (np.asarray(table[name][here], dtype=np.float64) for name in ("request_rate_per_s", "batch"))
    burst = 0.0 if load.requests_per_user is None or kind != "closed" else 1.0 / max(load.requests_per_user, 1.0)
    return steady_case(
        case,
        concurrency={"open": None, "flood": np.full(len(here), _FLOOD)}.get(kind, users),
        requests_per_s=rates if kind == "open" else None,
        input_tokens=prompt,
        output_tokens=output,
        burst_frac=burst,
    )


def _found(
    found: SteadyCase, metric: str, n_points: int, points: Positions, here: Positions, remark: str
) -> Iterator[Found]:
    """Yield the rows at `here`, `points` says which of the `n_points` loads each asks about."""
    one, n_replicas = found.one, float(found.case.n_replicas)
    tree, gain, value = _answered(one, metric, n_replicas)

    def column(number: Num) -> Floats:
        return np.broadcast_to(np.asarray(number, dtype=np.float64), (n_points,))[points]

    factor, full = np.exp(Z80 * column(relative_sd(tree)) * column(gain)), column(value)
    bounds = bounds_of(tree, n_points)[points]
    name = found.case.calibration.name
    stable, limited = column(one.stable) > 0, column(one.kv_limited) > 0
    for mask, extra in ((stable & ~limited, ""), (stable & limited, KV_NOTE)):
        if mask.any():
            said = "; ".join(text for text in (remark, extra) if text)
            at = here[mask]
            yield Found(
                at, full[mask], full[mask] / factor[mask], full[mask] * factor[mask], bounds[mask], name, "", said
            )
    if not stable.all():
        yield refused(here[~stable], "the rate is beyond what can be served: what waits grows without end")


def _answered(one: SteadyServing, metric: str, n_replicas: float) -> tuple[Estimate, Num, Num]:
    """Return the tree behind a metric, how its band widens, and the value."""
    match metric:
        case "ttft_s":
            return one.ttft, one.e2e_gain, one.ttft.value
        case "tpot_s" | "itl_s":
            return one.tpot, one.tpot_gain, one.tpot.value
        case "e2e_s":
            return one.e2e, one.e2e_gain, one.e2e.value
        case "requests_per_s":
            return one.e2e, 1.0, one.requests_per_s * n_replicas
        case "output_tokens_per_s":
            return one.e2e, 1.0, one.output_tokens_per_s * n_replicas
    raise SpecError(f"no law predicts {metric} of serving", expected="a latency or a rate")
