"""What README, CONTRIBUTING and docs/kernels.md show is printed so: each line, in order; "..." stands for a cut."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli_parts import Run

ROOT = Path(__file__).parents[2]
BENCH = {
    "backend": "vllm",
    "model_id": "Qwen/Qwen3-4B",
    "num_prompts": 8,
    "request_rate": "inf",
    "max_concurrency": 8,
    "duration": 8 * 1024 / 520,
    "completed": 8,
    "total_input_tokens": 8 * 128,
    "total_output_tokens": 8 * 1024,
    "output_throughput": 520.0,
    "request_throughput": 520 / 1024,
    "mean_ttft_ms": 3900,
}
"""The run that the README diagnoses: a user's plateau of 520 tokens/s, of which a half waits a whole wave."""


def shown(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every command of a page that stands with its output, and the lines shown of it."""
    for block in re.findall(r"^```(?:text)?\n(\$ .*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ perfmodel ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.replace("\\\n", " ").splitlines()
            kept = [line.rstrip() for line in lines if line.strip() not in ("", "...")]
            if kept:
                yield command, kept


SHOWN = [
    (page, command, lines)
    for page in ("README.md", "docs/kernels.md")
    for command, lines in shown(page)
    if not command.startswith("profile ")  # of a file that the page does not hold
]


def missed(lines: list[str], printed: str) -> list[str]:
    """Return the shown lines that do not follow each other in what was printed."""
    rest = iter([line.rstrip() for line in printed.splitlines()])
    return [line for line in lines if line not in rest]


def test_lines_must_stand_in_order() -> None:
    assert missed(["a", "c"], "a\nb\nc \n") == []
    assert missed(["c", "a"], "a\nb\nc\n") == ["a"]
    assert len(SHOWN) >= 10


@pytest.mark.parametrize(
    ("command", "lines"),
    [(command, lines) for _, command, lines in SHOWN],
    ids=[f"{page}-{command.split()[0]}" for page, command, _ in SHOWN],
)
def test_pages_show_what_is_printed(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, lines: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    assert missed(lines, run_cli(*shlex.split(command)).out) == []


def test_a_device_is_added_as_contributing_shows_it(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "CONTRIBUTING.md").read_text()
    device = re.search(r"^```yaml\n(kind: device\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert device is not None
    (tmp_path / "x100-48gb.yaml").write_text(device[1])
    commands = [(command, lines) for command, lines in shown("CONTRIBUTING.md") if "x100-48gb" in command]
    assert [command.split()[0] for command, _ in commands] == ["hardware", "hardware", "estimate"]
    for command, lines in commands:
        assert missed(lines, run_cli(*shlex.split(command)).out) == [], command
