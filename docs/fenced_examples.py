"""Extension of the documentation: doctests in running text are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)


class FencedExamples(griffe.Extension):
    """Fence every doctest of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence those of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", obj.docstring.value)
