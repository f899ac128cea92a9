"""Build the wheel, install it in a fresh environment outside the checkout, and ask it a question there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Exit with a message where the installed wheel does not answer as it should."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _run(sys.executable, "-m", "build", "--wheel", "--outdir", place / "dist", ROOT, cwd=place)
        wheel = next((place / "dist").glob("*.whl"))
        venv.create(place / "env", with_pip=True)
        python = place / "env" / "bin" / "python"
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=place)
        question = ("estimate", "llama-3.1-8b", "ascend-910b3", "--batch", "4", "--isl", "512", "--osl", "64", "--json")
        answer = json.loads(_run(place / "env" / "bin" / "perfmodel", *question, cwd=place))
        if not 0 < answer["tpot_s"] < 1:
            sys.exit(f"the installed wheel answers {answer['tpot_s']!r} for TPOT")
        where = _run(python, "-c", "import perfmodel; print(perfmodel.__file__)", cwd=place)
        if str(ROOT) in where:
            sys.exit(f"the checkout was used instead of the wheel: {where}")
    print(f"{wheel.name}: installed in a fresh environment and answered")


if __name__ == "__main__":
    main()
