"""Execute every notebook in place of a reader; a cell that fails fails the run. With --write, keep the outputs."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 120
MOST_BYTES = 400_000
"""Notebooks are read in a browser and kept in the history: a picture or two, no data."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def faults(notebook: Any) -> list[str]:
    """Return what a reader would miss: a question at the beginning, a caveat at the end."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    found = [] if texts and "?" in texts[0] else ["begins without a question"]
    return found if texts and "caveat" in texts[-1].lower() else [*found, "ends without a caveat"]


def executed(path: Path) -> Any:
    """Return the notebook with the outputs of a fresh run; raises CellExecutionError where a cell fails."""
    read: Any = nbformat.read
    notebook = read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_S,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
    return notebook


def traces(path: Path) -> list[str]:
    """Return what a file tells of the machine that it was run on."""
    text = path.read_text(encoding="utf-8")
    return [f"holds {place}" for place in (str(ROOT), "/home/", "/root/", "/tmp/") if place in text]


def main() -> None:
    """Run the notebooks, each with a kernel and a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of file names; all without")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebooks")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    paths = [
        path
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
        if not asked.names or path.name.startswith(tuple(asked.names))
    ]
    failed = []
    for path in paths:
        start = time.monotonic()
        try:
            notebook = executed(path)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            failed.append(f"{path.name}: {_COLOURS.sub('', str(error)).strip()}")
            print(f"{path.name}: FAILED", flush=True)
            continue
        wrong = faults(notebook)
        if asked.write:
            write: Any = nbformat.write
            write(notebook, path)
        size = path.stat().st_size
        wrong += traces(path)
        wrong += [f"has {size} bytes, more than {MOST_BYTES}"] if size > MOST_BYTES else []
        failed += [f"{path.name} {fault}" for fault in wrong]
        print(f"{path.name}: ran in {time.monotonic() - start:.0f} s, {size // 1000} KB", flush=True)
    print(f"{len(paths)} notebooks ran", file=sys.stderr)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
