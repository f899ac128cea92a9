"""The runner of notebooks: cells run in one kernel, a failing one is told, and files tell nothing of a machine."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tests.run_notebooks import ROOT, executed, faults, traces


def notebook(path: Path, *cells: str) -> Path:
    made = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    made.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    nbformat.write(made, path)  # type: ignore[no-untyped-call]
    return path


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.filterwarnings("ignore")
def test_cells_run_in_one_kernel_and_keep_their_outputs(tmp_path: Path) -> None:
    ran = executed(notebook(tmp_path / "a.ipynb", "x = 20", "import perfmodel\nprint(x + 1)"))
    assert ran.cells[1].outputs[0].text == "21\n"
    assert all(cell.execution_count is None for cell in ran.cells)


@pytest.mark.filterwarnings("ignore")
def test_a_cell_that_fails_raises(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(notebook(tmp_path / "b.ipynb", "1 / 0"))


def test_what_a_reader_must_not_miss_and_not_see(tmp_path: Path) -> None:
    path = notebook(tmp_path / "c.ipynb", "open('/home/somebody/data.csv')")
    assert "holds /home/" in traces(path)
    made = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    made.cells = [
        nbformat.v4.new_markdown_cell("# Is it so?"),  # type: ignore[no-untyped-call]
        nbformat.v4.new_markdown_cell("One caveat."),  # type: ignore[no-untyped-call]
    ]
    assert faults(made) == []
    assert len(faults(nbformat.v4.new_notebook())) == 2  # type: ignore[no-untyped-call]
