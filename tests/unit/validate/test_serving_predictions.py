"""Serving rows through the closed form: what a load's words mean, which rows are refused, and how quick it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfmodel.measure.row import Row
from perfmodel.measure.table import Table, table_from_rows
from perfmodel.serving.steady_case import steady_case
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.parts import Parts
from perfmodel.validate.predict import predictions
from perfmodel.validate.serve_sim import both_answers
from perfmodel.validate.serving import KV_NOTE, load_words, served_case
from perfmodel.validate.steps import SETUP_COLUMNS, case_of_row

BASE: dict[str, Any] = {
    "kind": "serve", "device": "h100-sxm", "n_devices": 1, "model": "llama-3.1-8b", "runtime": "vllm-0.11", "tp": 1,
    "batch": 16.0, "input_tokens": 1024.0, "output_tokens": 512.0, "metric": "tpot_s", "value": 0.01, "status": "ok",
    "source": "test",
}  # fmt: skip


def rows(*changes: dict[str, Any]) -> Table:
    return table_from_rows([Row(**{**BASE, "id": str(i), **change}) for i, change in enumerate(changes)])


def test_words_of_a_load() -> None:
    load = load_words("lengths-0.8-1+requests-10x+budget-16384+seqs-64+poll-30+wait-20+something")
    assert (load.length_frac, load.requests_per_user) == (0.9, 10.0)
    assert (load.token_budget, load.max_num_seqs) == (16384, 64)
    assert load.n_poll_steps == 70.0  # looked for every 30 steps, then up to 20 more: 15 + 20 on average, doubled
    assert load_words("").n_poll_steps is None


def test_a_row_is_the_closed_form_of_its_load(catalogue: Catalogue) -> None:
    found = predictions(rows({"variant": "lengths-0.8-1+requests-10x"}, {"metric": "ttft_s"}), catalogue)
    words = dict.fromkeys(SETUP_COLUMNS, "") | {n: str(BASE[n]) for n in ("device", "model", "runtime")}
    case, _ = case_of_row(Parts(catalogue), {**words, "tp": "1", "n_devices": "1"}, 1536)
    case = served_case(case, load_words(""), 1537.0)
    lengths = {"input_tokens": 0.9 * 1024.0, "output_tokens": 0.9 * 512.0}
    one = steady_case(case, concurrency=16.0, burst_frac=0.1, **lengths).one  # type: ignore[arg-type]
    assert found.predicted[0] == pytest.approx(float(one.tpot_s), rel=1e-9)
    assert np.all((found.low < found.predicted) & (found.predicted < found.high))


def test_a_mean_stands_beside_a_median_and_not_beside_a_tail(catalogue: Catalogue) -> None:
    found = predictions(rows({}, {"op": "p50"}, {"op": "p99"}), catalogue)
    assert found.predicted[0] == found.predicted[1]
    assert np.isnan(found.predicted[2])
    assert "no p99" in found.reason[2]


def test_metrics_of_one_load_agree_by_littles_law(catalogue: Catalogue) -> None:
    names = ("ttft_s", "tpot_s", "e2e_s", "requests_per_s", "output_tokens_per_s", "itl_s")
    ttft, tpot, e2e, requests, tokens, itl = predictions(rows(*({"metric": n} for n in names)), catalogue).predicted
    assert e2e == pytest.approx(ttft + 511 * tpot, rel=1e-9)
    assert requests * e2e == pytest.approx(16.0, rel=1e-9)
    assert tokens == pytest.approx(512 * requests, rel=1e-9)
    assert itl == tpot


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"op": "disagg"}, "workers of their own"),
        ({"batch": None, "request_rate_per_s": 1e4}, "without end"),
        ({"batch": None, "request_rate_per_s": float("inf")}, "all requests come at once"),
        ({"batch": None}, "neither users"),
        ({"input_tokens": None}, "lengths"),
        ({"runtime": "transformers-4.46"}, "static"),
        ({"model": "deepseek-r1"}, "fit"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_predicted_says_why(catalogue: Catalogue, change: dict[str, Any], reason: str) -> None:
    found = predictions(rows(change, {}), catalogue)
    assert reason in found.reason[0]
    assert not found.reason[1]
    assert np.isnan(found.predicted[0])


def test_all_at_once_has_a_rate(catalogue: Catalogue) -> None:
    flood = {"batch": None, "request_rate_per_s": float("inf"), "metric": "output_tokens_per_s"}
    found = predictions(rows(flood, {"metric": "output_tokens_per_s"}), catalogue).predicted
    assert found[0] > 2 * found[1]


def test_polling_and_waiting_delay_only_the_first_token(catalogue: Catalogue) -> None:
    words = ({"variant": ""}, {"variant": "poll-30"}, {"variant": "wait-20"})
    ttft = predictions(rows(*({**w, "metric": "ttft_s"} for w in words)), catalogue).predicted
    tpot = predictions(rows(*words), catalogue).predicted
    np.testing.assert_allclose(tpot, tpot[0], rtol=0.02)
    assert ttft[1] - ttft[0] == pytest.approx(14.5 * tpot[0], rel=0.05)  # half of 30 steps instead of half a step
    assert ttft[2] - ttft[0] == pytest.approx(19.5 * tpot[0], rel=0.05)


def test_the_simulation_agrees_where_the_cache_has_room_and_is_told_where_not(catalogue: Catalogue) -> None:
    full = {"device": "rtx-4090", "batch": 96.0, "variant": "requests-4x"}
    ten = {"variant": "requests-10x"}
    table = rows(ten, {**ten, "metric": "ttft_s"}, full, {**full, "metric": "ttft_s"})
    both = both_answers(table, catalogue)
    assert both.kv_limited.tolist() == [False, False, True, True]
    assert both.simulated[0] == pytest.approx(both.closed[0], rel=0.05)
    assert both.simulated[1] == pytest.approx(both.closed[1], rel=0.25)
    assert both.simulated[3] > 1.0  # most of 96 users wait for a place in the cache
    assert KV_NOTE in predictions(table, catalogue).remark[2]


def test_every_one_of_many_loads_is_predicted(catalogue: Catalogue) -> None:
    n = 5_000
    rng = np.random.default_rng(0)
    few = rows({}, {"metric": "ttft_s"})
    at = np.arange(n) % 2
    columns = {name: column[at] for name, column in few.columns.items()}
    columns |= {
        "id": np.array([str(i) for i in range(n)], dtype=object),
        "batch": np.floor(np.exp(rng.uniform(0.0, 5.0, n))),
        "input_tokens": np.floor(rng.uniform(16.0, 4000.0, n)),
    }
    found = predictions(Table(columns, n), catalogue)
    assert np.isfinite(found.predicted).all()


def test_metrics_of_one_run_are_one_question(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve rows of two runs are answered with two points, and each row as if it stood alone."""
    asked: list[int] = []

    def counted(*arguments: Any, **loads: Any) -> Any:
        asked.append(len(loads["input_tokens"]))
        return steady_case(*arguments, **loads)

    monkeypatch.setattr("perfmodel.validate.serving.steady_case", counted)
    run: dict[str, Any] = {
        "kind": "serve", "device": "h100-sxm", "model": "llama-3.1-8b", "runtime": "vllm-0.11", "source": "made up",
        "input_tokens": 1024, "output_tokens": 256, "compute_dtype": "bf16", "value": 0.01,
    }  # fmt: skip
    rows = [
        Row(**{**run, "id": f"{i}-{metric}-{users}", "metric": metric, "batch": users})
        for i in range(3) for metric in ("ttft_s", "tpot_s") for users in (8, 64)
    ]  # fmt: skip
    found = predictions(table_from_rows(rows), catalogue)
    assert asked == [2]
    alone = [predictions(table_from_rows([row]), catalogue).predicted[0] for row in rows]
    np.testing.assert_allclose(found.predicted, alone, rtol=1e-12)
