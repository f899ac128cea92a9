"""Execute every notebook in place of a reader; a cell that fails fails the run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def code_of(notebook: Path) -> str:
    """Return the code cells of a notebook as one script."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def main() -> None:
    """Run all notebooks, each in a namespace and folder of its own."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    found = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for notebook in found:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            exec(compile(code_of(notebook), str(notebook), "exec"), {"__name__": "__main__"})
        print(f"{notebook.name}: ran")
    print(f"{len(found)} notebooks ran", file=sys.stderr)


if __name__ == "__main__":
    main()
