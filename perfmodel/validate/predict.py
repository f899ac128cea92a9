"""A whole table predicted: for each row a value with its band and bound, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.measure.schema import KINDS
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.memory import memory_predictions
from perfmodel.validate.operators import OPERATOR_KINDS, collective_predictions, operator_predictions
from perfmodel.validate.parts import Floats, Found, Parts, Positions, refused
from perfmodel.validate.serving import serve_predictions
from perfmodel.validate.steps import STEP_KINDS, step_predictions

__all__ = ["Predictions", "predictions"]

Predictor = Callable[[Parts, Table, Positions], Iterator[Found]]

_PREDICTORS: Final[dict[str, Predictor]] = {
    **dict.fromkeys(OPERATOR_KINDS, operator_predictions),
    "collective": collective_predictions,
    **dict.fromkeys(STEP_KINDS, step_predictions),
    "memory": memory_predictions,
    "serve": serve_predictions,
}
_REASONS: Final = {
    "bandwidth": "a bandwidth is an input of the model, not something it predicts",
    "counter": "no law predicts this counter",
    "quality": "the model predicts time and memory, not quality",
}


@dataclass(frozen=True, eq=False)
class Predictions:
    """Columns beside a table, one cell a row: NaN and "" where there is no prediction, with the `reason`."""

    table: Table
    predicted: Floats
    low: Floats
    high: Floats
    bound: NDArray[np.object_]
    calibration: NDArray[np.object_]
    reason: NDArray[np.object_]
    remark: NDArray[np.object_]

    @property
    def measured(self) -> Floats:
        """Measured values, NaN where the table states none."""
        return np.asarray(self.table["value"], dtype=np.float64)

    @property
    def error(self) -> Floats:
        """Predicted / measured - 1, NaN where one of the two is missing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.measured > 0, self.predicted / self.measured - 1.0, np.nan)

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether the measured value lies in the band."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self.low <= self.measured) & (self.measured <= self.high))

    def selected(self, mask: NDArray[Any]) -> Predictions:
        """Return the rows for which a mask is true."""
        columns = (self.predicted, self.low, self.high, self.bound, self.calibration, self.reason, self.remark)
        return Predictions(self.table.selected(mask), *(column[mask] for column in columns))


def predictions(
    table: Table,
    catalogue: Catalogue,
    calibration: str = "auto",
    *,
    on_rows_done: Callable[[int], None] | None = None,
) -> Predictions:
    """Return the table predicted, row by row in its order; `on_rows_done` hears how many rows came out (progress).

    A row of one kind never spoils another: what cannot be predicted says why in `reason`.
    """
    n = len(table)
    if calibration != "auto":
        catalogue.calibration(calibration)  # an unknown name is one error, not one a row
    numbers = [np.full(n, np.nan) for _ in range(3)]
    words = [np.full(n, "", dtype=object) for _ in range(4)]
    result = Predictions(table, *numbers, *words)
    parts = Parts(catalogue, calibration)
    with np.errstate(over="ignore", invalid="ignore"):  # counts too large for a float get a reason below
        for found in _found(parts, table):
            at = found.at
            result.predicted[at], result.low[at], result.high[at] = found.value, found.low, found.high
            result.bound[at] = found.bound
            result.calibration[at], result.reason[at], result.remark[at] = found.calibration, found.reason, found.remark
            if on_rows_done is not None:
                on_rows_done(len(at))
    odd = ~(np.isfinite(result.predicted) & (result.predicted >= 0)) & (result.reason == "")
    result.reason[odd] = "the counts of this row give no finite time"
    for column in (result.predicted, result.low, result.high):
        column[result.reason != ""] = np.nan
    return result


def _found(parts: Parts, table: Table) -> Iterator[Found]:
    kinds = table["kind"]
    metrics = _metrics(table)
    asked = Table({**table.columns, "metric": metrics}, len(table), table.sidecar, table.name)
    for predictor in dict.fromkeys(_PREDICTORS.values()):
        own = [kind for kind, used in _PREDICTORS.items() if used is predictor]
        at = np.flatnonzero(np.isin(kinds, own))
        if len(at):
            yield from predictor(parts, asked, at)
    for kind, reason in _REASONS.items():
        at = np.flatnonzero(kinds == kind)
        if len(at):
            yield refused(at, reason)


def _metrics(table: Table) -> NDArray[np.object_]:
    """Return the metric of each row, the first of its kind where none is stated."""
    metrics = np.array(table["metric"], dtype=object)
    for kind, rule in KINDS.items():
        metrics[(metrics == "") & (table["kind"] == kind)] = next(iter(rule.metrics))
    return metrics
