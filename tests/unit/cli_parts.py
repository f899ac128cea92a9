"""How the tests of commands run one and read its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def answer(run_cli: Run, *arguments: str) -> dict[str, Any]:
    ran = run_cli(*arguments, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found
