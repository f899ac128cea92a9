"""Data in: what is refused, with which words, and what is only noted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import FitError
from perfmodel.fit.data import data_from_arrays, data_from_csv, law_columns
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws import LAWS


def csv(folder: Path, text: str) -> Path:
    """Return a file that holds the text."""
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_is_read(tmp_path: Path) -> None:
    path = csv(tmp_path, "\ufeff# comment\nn_instances,ipc,error,who\n1,3.27,0.1,a\n4,2.61,0.1,a\n\n12,1.53,0.2,b\n")
    data = data_from_csv(path, ["n_instances"], "ipc", stderr="error", group="who")
    assert data.n == 3
    assert data.group == ("a", "a", "b")
    assert data.rows == (3, 4, 6)
    assert data.stderr is not None
    assert data.source == "data.csv"
    assert len(data.sha256) == len(data.file_sha256) == 64


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_and_hash(tmp_path: Path, delimiter: str) -> None:
    path = csv(tmp_path, "y,x\n1,2\n3,4\n5,9\n".replace(",", delimiter))
    data = data_from_csv(path, ["x"], "y")
    assert data.sha256 == data_from_arrays({"x": [2, 4, 9]}, [1, 3, 5], y_name="y").sha256
    assert data.sha256 != data_from_arrays({"x": [2, 4, 9]}, [1, 3, 5.1], y_name="y").sha256


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("x,y\n", "no curve can be fitted to 0 rows"),
        ("x,y\n1,2\n", "no curve can be fitted to 1 row"),
        ("x,z\n1,2\n", "has no column 'y'"),
        ("x,y,x\n1,2,3\n", "stands twice"),
        ("x,y\n1,2\n3\n", "line 3: got 1 cells"),
        ("x,y\n1,2\n3,N/A\n", "line 3, y: got 'N/A'"),
        ("x,y\n1,2\n3,\n", "an empty cell"),
        ("x,y\n1,2\n3,nan\n", "NaN or infinity"),
        ("x,y\n1,2\n3,-2e30\n", "row 3, y: got -2e.30, expected at most 1e.30 in size"),
        ("x,y\n1,inf\n3,1\n", "row 2, y: got inf"),
        ("x,y\n5,2\n5,3\n5,4\n", "x is constant"),
        ("x,y\n1,2\n\0,3\n", "NUL"),
    ],
)
def test_bad_files_are_refused_in_one_message(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FitError, match=words):
        data_from_csv(csv(tmp_path, text), ["x"], "y")


def test_no_file_folder_binary_and_wrong_columns(tmp_path: Path) -> None:
    with pytest.raises(FitError, match="cannot be read"):
        data_from_csv(tmp_path / "none.csv", ["x"], "y")
    with pytest.raises(FitError, match="is a folder"):
        data_from_csv(tmp_path, ["x"], "y")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(FitError, match="is not text"):
        data_from_csv(tmp_path / "binary.csv", ["x"], "y")
    path = csv(tmp_path, "x,y\n1,2\n2,3\n")
    with pytest.raises(FitError, match="asked for twice"):
        data_from_csv(path, ["x"], "x")


def test_many_faults_are_listed_and_counted() -> None:
    with pytest.raises(FitError, match="and 12 more"):
        data_from_arrays({"x": np.full(20, np.nan)}, np.ones(20))


def test_arrays_are_checked() -> None:
    with pytest.raises(FitError, match="differ in length"):
        data_from_arrays({"x": [1, 2, 3]}, [1, 2])
    with pytest.raises(FitError, match="no number"):
        data_from_arrays({"x": ["a", "b"]}, [1, 2])
    with pytest.raises(FitError, match="no column"):
        data_from_arrays({"x": [[1, 2], [3, 4]]}, [1, 2])
    with pytest.raises(FitError, match="needs an x"):
        data_from_arrays({}, [1, 2])
    with pytest.raises(FitError, match="both x and y"):
        data_from_arrays({"y": [1, 2]}, [1, 2])
    with pytest.raises(FitError, match="standard error is not above zero"):
        data_from_arrays({"x": [1, 2]}, [1, 2], stderr=[0.1, 0.0])


@pytest.mark.parametrize(("size", "unit"), [(1e-300, "a smaller unit"), (1e300, "a larger unit")])
def test_numbers_that_lose_their_digits_are_refused(size: float, unit: str) -> None:
    """Sums of their squares are 0 or infinite; 0 itself is a number like others."""
    x = np.arange(1.0, 7.0)
    for columns, y in (({"x": x}, x * size), ({"x": x * size}, x)):
        with pytest.raises(FitError, match=unit):
            data_from_arrays(columns, y)
    assert data_from_arrays({"x": x - 1.0}, x * 1e-20).n == 6


def test_repeats_and_contradictions_are_noted() -> None:
    data = data_from_arrays({"x": [1, 1, 2, 3, 3]}, [5.0, 5.0, 6.0, 7.0, 12.0])
    assert any("repeat another row exactly" in note for note in data.notes)
    assert any("contradictory rows" in note and "rows 4, 5" in note for note in data.notes)
    result = fit(LAWS["linear"], data)
    assert any(f.code == "data" and "contradictory" in f.text for f in result.findings)
    assert data_from_arrays({"x": [1, 1, 2]}, [5.0, 5.1, 6.0]).notes == ()


def test_columns_are_matched_by_name_then_by_place() -> None:
    law = LAWS["roofline"]
    swapped = data_from_arrays({"bytes": [1.0, 2.0], "flop": [10.0, 20.0]}, [1.0, 2.0])
    assert law_columns(law, swapped)[0][0] == 10.0
    named = data_from_arrays({"a": [1.0, 2.0], "b": [10.0, 20.0]}, [1.0, 2.0])
    assert law_columns(law, named)[0][0] == 1.0
    with pytest.raises(FitError, match="other columns"):
        law_columns(law, data_from_arrays({"flop": [1.0, 2.0], "b": [10.0, 20.0]}, [1.0, 2.0]))
    with pytest.raises(FitError, match="reads 2 columns"):
        law_columns(law, data_from_arrays({"flop": [1.0, 2.0]}, [1.0, 2.0]))
    with pytest.raises(FitError, match="outside its range"):
        law_columns(LAWS["contention_usl"], data_from_arrays({"n_instances": [0.0, 2.0]}, [1.0, 2.0]))
