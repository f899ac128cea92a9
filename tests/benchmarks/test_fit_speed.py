"""Speed of a fit (ten thousand rows, six parameters, eight starts) and of a predicted table (100,000 rows)."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.fit.data import data_from_arrays
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws import Array, Columns, FitLaw, Input, positive, real
from perfmodel.fit.laws.base import Values
from perfmodel.fit.result import FitOptions, Residual
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.predict import predictions
from perfmodel.validate.shipped import read_all, shipped_tables

MOST_FIT_S = 5.0
MOST_PREDICT_S = 5.0
N_PREDICTED = 100_000


def six(columns: Columns, p: Values) -> Array:
    """Return a roofline with a soft knee, plus a term that grows slowly with the work."""
    knee = ((columns[0] / p[1]) ** p[3] + (columns[1] / p[2]) ** p[3]) ** (1.0 / p[3])
    return p[0] + knee + p[4] * columns[0] ** p[5]


def test_fit_of_ten_thousand_rows(benchmark: Any) -> None:
    rng = np.random.default_rng(1)
    flop, size = 10 ** rng.uniform(8, 13, 10_000), 10 ** rng.uniform(5, 9.5, 10_000)
    parameters = (
        real("t0_s", "s", "", 0.0), positive("rate", "", ""), positive("bandwidth", "", ""),
        positive("knee", "", "", 1.0, 20.0), real("slow", "", "", 0.0), positive("exponent", "", "", 0.01, 3.0),
    )  # fmt: skip
    law = FitLaw(
        "six", "six", "", "", (Input("flop", ""), Input("bytes", "")), parameters, six,
        lambda x, y: (1e-6, 1e14, 1e12, 2.0, 1e-9, 0.3),
    )  # fmt: skip
    truth = (5e-6, 2.4e14, 1.5e12, 2.2, 3e-9, 0.35)
    y = law.value((flop, size), truth) * np.exp(rng.normal(0.0, 0.06, flop.size))
    data = data_from_arrays({"flop": flop, "bytes": size}, y)
    result = benchmark.pedantic(
        fit, args=(law, data, FitOptions(residual=Residual.LOG, n_starts=8)), rounds=3, iterations=1
    )
    assert result.n_starts == 8
    assert benchmark.stats.stats.min < MOST_FIT_S
    np.testing.assert_allclose(result.values, truth, rtol=0.2)


def test_prediction_of_a_hundred_thousand_rows(benchmark: Any, catalogue: Catalogue) -> None:
    """The shipped rows over and over, each with lengths of its own: kernels, collectives, steps and generations."""
    shipped = read_all(shipped_tables(catalogue))
    at = np.arange(N_PREDICTED) % len(shipped)
    columns = {name: column[at] for name, column in shipped.columns.items()}
    columns["id"] = np.array([f"r{i}" for i in range(N_PREDICTED)] + [None], dtype=object)[:-1]
    columns["input_tokens"] = columns["input_tokens"] + np.arange(N_PREDICTED) // len(shipped)
    table = Table(columns, N_PREDICTED, shipped.sidecar)
    found = benchmark.pedantic(predictions, args=(table, catalogue), rounds=3, iterations=1)
    assert np.mean(np.isfinite(found.predicted)) > 0.8
    assert benchmark.stats.stats.min < MOST_PREDICT_S
