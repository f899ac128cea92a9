"""A fit as plain data, and its YAML file: written beside, then moved, and never over another file unasked."""

from __future__ import annotations

import math
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import FitError
from perfmodel.fit.crossval import LeftOut
from perfmodel.fit.ranking import Ranking
from perfmodel.fit.result import FitResult
from perfmodel.fit.verdict import verdict
from perfmodel.specs.files import yaml_text

__all__ = ["fit_document", "program_version", "ranking_document", "written"]


def program_version() -> str:
    """Return the version of the installed program."""
    try:
        return version("perfmodel")
    except PackageNotFoundError:
        return "unknown"


def _number(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def fit_document(result: FitResult, *, left_out: LeftOut | None = None) -> dict[str, Any]:
    """Return a fit as plain data with stable keys; what is not known is null."""
    law, data, options, error = result.law, result.data, result.options, result.errors
    parameters = {}
    for i, parameter in enumerate(law.parameters):
        parameters[parameter.name] = {
            "value": float(result.values[i]),
            "stderr": _number(result.stderr[i]),
            "interval_95": [_number(result.low[i]), _number(result.high[i])],
            "unit": parameter.unit,
            "status": _status(result, i),
        }
    names = [law.names[i] for i in result.free]
    covariance = result.covariance[np.ix_(result.free, result.free)]
    document: dict[str, Any] = {
        "kind": "fit",
        "law": law.name,
        "formula": law.formula,
        "source": law.source,
        "parameters": parameters,
        "covariance": {
            "parameters": names,
            "matrix": None if result.dof <= 0 else [[_number(v) for v in row] for row in covariance],
        },
        "range": {name: [low, high] for name, (low, high) in result.x_range.items()},
        "n": result.n,
        "degrees_of_freedom": result.dof,
        "residual": str(options.residual),
        "loss": options.loss,
        "sigma": _number(result.sigma),
        "aicc": _number(result.aicc),
        "error": {
            "r_squared": _number(error.r_squared),
            "rmse": _number(error.rmse),
            "median_rel_frac": _number(error.median_rel_frac),
            "p90_rel_frac": _number(error.p90_rel_frac),
            "max_rel_frac": _number(error.max_rel_frac),
            "left_out_median_rel_frac": _number(left_out.median_rel_frac) if left_out else None,
            "left_out_p90_rel_frac": _number(left_out.p90_rel_frac) if left_out else None,
        },
        "grade": str(result.grade),
        "findings": [{"code": f.code, "grade": str(f.grade), "text": f.text} for f in result.findings],
        "verdict": verdict(result),
        "data": {
            "source": data.source,
            "x": list(data.x_names),
            "y": data.y_name,
            "sha256": data.sha256,
            "file_sha256": data.file_sha256 or None,
        },
        "search": {"n_starts": result.n_starts, "n_agreeing": result.n_agreeing, "seed": options.seed},
        "program_version": program_version(),
    }
    return document


def _status(result: FitResult, index: int) -> str:
    name = result.law.names[index]
    if index not in result.free:
        return "fixed"
    return "at bound" if name in result.at_bound else "fitted"


def ranking_document(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking as plain data with stable keys."""
    return {
        "kind": "ranking",
        "criterion": str(ranking.criterion),
        "best": ranking.best.law.name if ranking.best else None,
        "laws": [
            {
                "law": e.law.name,
                "standing": str(e.standing),
                "reason": e.reason,
                "n_parameters": e.result.k if e.result else len(e.law.parameters),
                "aicc": _number(e.aicc),
                "aicc_delta": _number(e.delta),
                "aicc_weight": _number(e.weight),
                "left_out_error": _number(e.left_out_error),
                "left_out_median_rel_frac": _number(e.left_out_median_frac),
                "r_squared": _number(e.result.errors.r_squared) if e.result else None,
                "as_good_as_best": e.close,
                "parameters": e.result.parameters if e.result else None,
            }
            for e in ranking.entries
        ],
        "verdict": ranking.verdict,
    }


def written(document: dict[str, Any], path: Path, *, force: bool = False) -> Path:
    """Return the path after the document stands there as YAML; raises FitError for an existing file without `force`.

    The text goes to a new file in the same folder which is then moved, so that a reader never sees half a file.
    """
    if path.is_dir():
        raise FitError(f"{path.name} is a folder", expected="a file name")
    if path.exists() and not force:
        raise FitError(
            f"{path.name} exists already", expected="a new file", cure="Choose another name, or --force to replace it."
        )
    if not path.parent.is_dir():
        raise FitError("the folder of the output does not exist", where=path.parent.name, expected="an existing folder")
    text = yaml_text(document)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FitError(
            f"{path.name} cannot be written", got=error.strerror or str(error), expected="a writable folder"
        ) from error
    return path
