"""A fit on paper: keys, hashes, YAML, and files that are never overwritten unasked."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import FitError
from perfmodel.fit.crossval import left_out_rows
from perfmodel.fit.data import data_from_arrays
from perfmodel.fit.document import fit_document, ranking_document, written
from perfmodel.fit.fitter import evaluation, fit
from perfmodel.fit.laws import LAWS
from perfmodel.fit.ranking import ranked_fits
from perfmodel.fit.result import FitOptions, FitResult
from perfmodel.report.fit import evaluation_text, fit_figure, fit_text, ranking_text
from perfmodel.specs.files import read_data


@pytest.fixture(scope="module")
def result() -> FitResult:
    """Return a fit of the article's IPC table."""
    data = data_from_arrays({"n_instances": [1, 4, 12, 16]}, [3.27, 2.61, 1.53, 1.42], y_name="ipc", source="ipc.csv")
    return fit(LAWS["contention_hyperbolic"], data)


def test_document_holds_everything_and_survives_the_file(result: FitResult, tmp_path: Path) -> None:
    document = fit_document(result, left_out=left_out_rows(result))
    path = written(document, tmp_path / "fit.yaml")
    assert read_data(path) == document
    assert document["parameters"]["base"]["value"] == result.values[0]
    assert document["data"]["sha256"] == result.data.sha256
    assert document["range"] == {"n_instances": [1.0, 16.0]}
    assert np.array(document["covariance"]["matrix"]).shape == (2, 2)
    assert document["n"] == 4
    assert document["aicc"] is None
    assert document["error"]["left_out_median_rel_frac"] > 0.0
    assert document["program_version"]
    assert [p.name for p in tmp_path.iterdir()] == ["fit.yaml"]


def test_nothing_is_overwritten_unasked(result: FitResult, tmp_path: Path) -> None:
    path = tmp_path / "fit.yaml"
    path.write_text("precious: 1\n")
    with pytest.raises(FitError, match="exists already"):
        written(fit_document(result), path)
    assert path.read_text() == "precious: 1\n"
    written(fit_document(result), path, force=True)
    assert read_data(path)["law"] == "contention_hyperbolic"
    with pytest.raises(FitError, match="is a folder"):
        written({}, tmp_path, force=True)
    with pytest.raises(FitError, match="folder of the output does not exist"):
        written({}, tmp_path / "no" / "fit.yaml")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(result: FitResult, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FitError, match="cannot be written"):
        written(fit_document(result), tmp_path / "fit.yaml")
    tmp_path.chmod(0o700)


def test_unknown_numbers_are_null(tmp_path: Path) -> None:
    exact = fit(LAWS["linear"], data_from_arrays({"x": [1, 2]}, [1, 3]))
    document = fit_document(exact)
    assert document["parameters"]["slope"]["stderr"] is None
    assert document["covariance"]["matrix"] is None
    assert ".nan" not in written(document, tmp_path / "a.yaml").read_text()
    fixed = fit(LAWS["linear"], data_from_arrays({"x": [1, 2, 3]}, [1, 3, 4]), FitOptions(fixed={"slope": 1.0}))
    assert fit_document(fixed)["parameters"]["slope"]["status"] == "fixed"


def test_texts_and_figures(result: FitResult, tmp_path: Path) -> None:
    ranking = ranked_fits(
        [LAWS["contention_hyperbolic"], LAWS["contention_power"], LAWS["contention_hill"]], result.data
    )
    assert ranking_document(ranking)["best"] == "contention_hyperbolic"
    table = ranking_text(ranking)
    assert "not identifiable with 4 points" in table
    assert "contention_power" in table
    assert "95 % interval" in fit_text(result)
    given = evaluation(LAWS["contention_printed"], {"base": 3.27, "alpha": 0.82, "beta": 1.35}, result.data)
    assert "does not reproduce" in evaluation_text(given, [1, 4, 12, 16])
    rivals = [e.result for e in ranking.entries if e.result is not None]
    for bootstrap in (False, True):
        figure = fit_figure(result, rivals=rivals, evaluations=[given], bootstrap=bootstrap)
        assert len(figure.axes) == 2
    figure.savefig(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_figure_of_two_columns_with_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    flop, size = 10 ** rng.uniform(8, 13, 50), 10 ** rng.uniform(5, 9, 50)
    y = LAWS["roofline"].value((flop, size), (5e-6, 2e14, 1.5e12, 2.0))
    result = fit(LAWS["roofline"], data_from_arrays({"flop": flop, "bytes": size}, y, stderr=0.05 * y, y_name="time_s"))
    fit_figure(result).savefig(tmp_path / "fit.png")
    assert "time_s" in fit_figure(result).axes[0].get_ylabel()
