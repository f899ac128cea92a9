"""Certified fixtures: every non-linear set of the NIST Statistical Reference Datasets, from both certified starts.

Source: NIST StRD, https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml (public domain).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from perfmodel.fit.data import FitData, data_from_arrays
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws import Array, Columns, FitLaw, Input, real
from perfmodel.fit.result import FitOptions

FOLDER = Path(__file__).parent / "nist"
exp = np.exp

Formula = Callable[[Columns, Sequence[Array]], Array]


def _enso(x: Columns, b: Sequence[Array]) -> Array:
    turn = 2.0 * np.pi * x[0]
    year = b[1] * np.cos(turn / 12.0) + b[2] * np.sin(turn / 12.0)
    first = b[4] * np.cos(turn / b[3]) + b[5] * np.sin(turn / b[3])
    return b[0] + year + first + b[7] * np.cos(turn / b[6]) + b[8] * np.sin(turn / b[6])


def _gauss(x: Columns, b: Sequence[Array]) -> Array:
    peaks = b[2] * exp(-(((x[0] - b[3]) / b[4]) ** 2)) + b[5] * exp(-(((x[0] - b[6]) / b[7]) ** 2))
    return b[0] * exp(-b[1] * x[0]) + peaks


def _cubics(x: Columns, b: Sequence[Array]) -> Array:
    above = b[0] + x[0] * (b[1] + x[0] * (b[2] + x[0] * b[3]))
    return above / (1.0 + x[0] * (b[4] + x[0] * (b[5] + x[0] * b[6])))


def _lanczos(x: Columns, b: Sequence[Array]) -> Array:
    return b[0] * exp(-b[1] * x[0]) + b[2] * exp(-b[3] * x[0]) + b[4] * exp(-b[5] * x[0])


def _chwirut(x: Columns, b: Sequence[Array]) -> Array:
    return exp(-b[0] * x[0]) / (b[1] + b[2] * x[0])


def _misra1a(x: Columns, b: Sequence[Array]) -> Array:
    return b[0] * (1.0 - exp(-b[1] * x[0]))


FORMULAS: dict[str, Formula] = {
    "Bennett5": lambda x, b: b[0] * (b[1] + x[0]) ** (-1.0 / b[2]),
    "BoxBOD": _misra1a,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "DanWood": lambda x, b: b[0] * x[0] ** b[1],
    "ENSO": _enso,
    "Eckerle4": lambda x, b: b[0] / b[1] * exp(-0.5 * ((x[0] - b[2]) / b[1]) ** 2),
    "Gauss1": _gauss,
    "Gauss2": _gauss,
    "Gauss3": _gauss,
    "Hahn1": _cubics,
    "Kirby2": lambda x, b: (b[0] + x[0] * (b[1] + x[0] * b[2])) / (1.0 + x[0] * (b[3] + x[0] * b[4])),
    "Lanczos1": _lanczos,
    "Lanczos2": _lanczos,
    "Lanczos3": _lanczos,
    "MGH09": lambda x, b: b[0] * (x[0] ** 2 + x[0] * b[1]) / (x[0] ** 2 + x[0] * b[2] + b[3]),
    "MGH10": lambda x, b: b[0] * exp(b[1] / (x[0] + b[2])),
    "MGH17": lambda x, b: b[0] + b[1] * exp(-x[0] * b[3]) + b[2] * exp(-x[0] * b[4]),
    "Misra1a": _misra1a,
    "Misra1b": lambda x, b: b[0] * (1.0 - (1.0 + b[1] * x[0] / 2.0) ** -2.0),
    "Misra1c": lambda x, b: b[0] * (1.0 - (1.0 + 2.0 * b[1] * x[0]) ** -0.5),
    "Misra1d": lambda x, b: b[0] * b[1] * x[0] / (1.0 + b[1] * x[0]),
    "Nelson": lambda x, b: b[0] - b[1] * x[0] * exp(-b[2] * x[1]),
    "Rat42": lambda x, b: b[0] / (1.0 + exp(b[1] - b[2] * x[0])),
    "Rat43": lambda x, b: b[0] / (1.0 + exp(b[1] - b[2] * x[0])) ** (1.0 / b[3]),
    "Roszman1": lambda x, b: b[0] - b[1] * x[0] - np.arctan(b[2] / (x[0] - b[3])) / np.pi,
    "Thurber": _cubics,
}


@dataclass(frozen=True)
class Certified:
    """One data set with its starts and certified values."""

    data: FitData
    starts: Array
    values: Array
    stderr: Array
    residual_sum_of_squares: float


def certified(name: str) -> Certified:
    """Return the data set of that name."""
    lines = (FOLDER / f"{name}.dat").read_text().splitlines()
    numbers = [line.split("=")[1].split() for line in lines[:60] if line.strip().startswith("b") and "=" in line]
    table = np.array([row for row in numbers if len(row) == 4], dtype=float)
    squares = next(float(line.split(":")[1]) for line in lines if line.startswith("Residual Sum of Squares"))
    body = np.array([line.split() for line in lines[60:] if line.strip()], dtype=float)
    y = np.log(body[:, 0]) if name == "Nelson" else body[:, 0]
    data = data_from_arrays({f"x{j}": body[:, j] for j in range(1, body.shape[1])}, y)
    return Certified(data, table[:, :2].T, table[:, 2], table[:, 3], squares)


def law(name: str, k: int, columns: int) -> FitLaw:
    """Return the NIST model as a law without bounds."""
    inputs = tuple(Input(f"x{j + 1}", "") for j in range(columns))
    parameters = tuple(real(f"b{i + 1}", "", "") for i in range(k))
    return FitLaw(
        name, name, "see the data file", "NIST StRD", inputs, parameters, FORMULAS[name], lambda x, y: [1.0] * k
    )


def digits(found: Array, expected: Array) -> float:
    """Return the least number of agreeing significant digits (log relative error)."""
    return float(-np.log10(np.max(np.abs(found / expected - 1.0)) + 1e-16))


def test_all_sets_are_here() -> None:
    assert {p.stem for p in FOLDER.glob("*.dat")} == set(FORMULAS)
    assert len(FORMULAS) == 27


@pytest.mark.parametrize("start", [0, 1], ids=["start1", "start2"])
@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_certified_values(name: str, start: int) -> None:
    case = certified(name)
    chosen = law(name, case.values.size, len(case.data.x))
    from_here = dict(zip(chosen.names, case.starts[start], strict=True))
    result = fit(chosen, case.data, FitOptions(start=from_here, n_starts=1))
    assert result.converged
    assert digits(result.values, case.values) >= 6.0
    if name != "Lanczos1":  # its residuals are at rounding level
        assert digits(result.stderr, case.stderr) >= 4.0
        assert float((result.residuals**2).sum()) == pytest.approx(case.residual_sum_of_squares, rel=1e-6)
