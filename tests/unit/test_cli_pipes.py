"""Where output goes nowhere: a reader that has gone is no fault, a full disk is one; neither leaves a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = ("hierarchy", "show", "ascend-910b2")


@pytest.mark.parametrize("words", [TABLE, (*TABLE, "--json"), (*TABLE, "--csv"), ("hierarchy", "--help")])
def test_a_reader_that_has_gone_is_no_fault(words: tuple[str, ...]) -> None:
    """Exit code 1 would say that the answer is no; rich, typer and print meet the broken pipe each in its own way."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as gone:
        ran = subprocess.run(
            [sys.executable, "-m", "perfmodel", *words], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [TABLE, (*TABLE, "--csv")])
def test_a_full_disk_is_told_once(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "perfmodel", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr == "perfmodel: No space left on device\n"
