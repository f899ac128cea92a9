"""Finding and parsing config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from perfmodel.errors import SpecError
from perfmodel.specs.hf.fields import shown

__all__ = ["config_from_path", "config_from_text"]

_CURE = "give the config.json of a model, or the directory that holds it"


def config_from_path(path: Path | str) -> Mapping[str, object]:
    """Return the object in a config.json, given that file or the directory that holds it.

    Raises SpecError where there is none, or it is not one JSON object.
    """
    place = Path(path)
    file = place / "config.json" if place.is_dir() else place
    try:
        raw = file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{file} cannot be read", got=reason, expected="a readable file", cure=_CURE) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{file} is no text", got=f"byte {error.start} is not UTF-8", expected="JSON", cure=_CURE
        ) from error
    return config_from_text(text, str(file))


def config_from_text(text: str, where: str) -> Mapping[str, object]:
    """Return the object in a JSON text; raises SpecError naming the line where the text is wrong."""
    if not text.strip():
        raise SpecError(f"{where} is empty", expected="a JSON object", cure=_CURE)
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{where} is no JSON", where=f"line {error.lineno}, column {error.colno}", got=error.msg, cure=_CURE
        ) from error
    except (RecursionError, ValueError) as error:
        raise SpecError(
            f"{where} cannot be parsed", got=shown(str(error)), expected="a JSON object", cure=_CURE
        ) from error
    if not isinstance(data, dict):
        raise SpecError(f"{where} is no config", got=shown(data), expected="a JSON object with keys", cure=_CURE)
    return data
