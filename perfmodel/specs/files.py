"""YAML and JSON files in, checked data out: the only home of the yaml library.

A file's faults are reported all at once, each with its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from perfmodel.errors import Fault, PerfmodelError, SpecError

__all__ = ["checked", "data_from_text", "read_data", "read_text", "yaml_text"]

S = TypeVar("S", bound=BaseModel)

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_BYTES = 32 * 2**20
_MOST_VALUES = 1_000_000


def read_text(path: Path) -> str:
    """Return the text of a file; raises SpecError for a missing, unreadable, binary or oversized one."""
    try:
        if path.is_dir():
            raise SpecError(f"{path} is a folder", expected="a file")
        if path.stat().st_size > _MAX_BYTES:
            raise SpecError(f"{path} is too large to be a description", expected="a text file below 32 MiB")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not text", where=f"byte {error.start}", expected="UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{path} cannot be read", got=reason, expected="a readable file") from error
    if "\0" in text:
        raise SpecError(f"{path} is not text", got="NUL bytes", expected="UTF-8 text")
    return text


def data_from_text(text: str, name: str, *, as_json: bool = False) -> Mapping[str, Any]:
    """Return the mapping that YAML or JSON text holds; `name` is what messages call the text."""
    try:
        data = json.loads(text) if as_json else yaml.load(text, Loader=_Loader)
        n_values = _n_values(data, {}) if "&" in text and not as_json else 0  # only anchors multiply
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{name} is not valid JSON", where=f"line {error.lineno}, column {error.colno}", got=error.msg
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise SpecError(f"{name} is not valid YAML", where=line, got=str(problem)) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name} cannot be parsed", got=str(error)) from error
    if n_values > _MOST_VALUES:
        raise SpecError(
            f"{name} refers to itself too often", got="more than a million values", expected="a description"
        )
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise SpecError(f"{name} is no description", got=found, expected="keys with values")
    return data


def _n_values(data: object, known: dict[int, int]) -> int:
    """Return how many values the data spells out, anchors followed each time; each object is counted once."""
    if not isinstance(data, (dict, list)):
        return 1
    if id(data) not in known:
        known[id(data)] = 1
        children = data.values() if isinstance(data, dict) else data
        known[id(data)] = 1 + sum(_n_values(child, known) for child in children)
    return known[id(data)]


def read_data(path: Path) -> Mapping[str, Any]:
    """Return the mapping that a YAML or JSON file holds."""
    return data_from_text(read_text(path), str(path), as_json=path.suffix == ".json")


def checked(cls: type[S], data: Mapping[str, Any], name: str, *, text: str | None = None) -> S:
    """Return `data` as a checked specification; raises SpecError with every fault (and its line, given the text)."""
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        lines = _line_numbers(text) if text is not None else {}
        faults = [_fault(entry, lines) for entry in error.errors(include_url=False)]
        what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        raise SpecError(f"{name} is no valid {what} description", faults=faults) from error


def _fault(entry: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> Fault:
    path = tuple(str(part) for part in entry["loc"])
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    where = ".".join(path) or "the whole file"
    where = f"line {line}, {where}" if line else where
    got = repr(entry.get("input"))
    got = got if len(got) <= 80 else f"{got[:77]}..."
    if entry["type"] == "value_error":
        return Fault(f"{where}: {str(entry['msg']).removeprefix('Value error, ')}")
    if entry["type"] == "extra_forbidden":
        return Fault(where, got, "no such key", "Remove it or correct its spelling.")
    if entry["type"] == "missing":
        return Fault(where, "nothing", "this key")
    return Fault(where, got, str(entry["msg"]))


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    lines: dict[tuple[str, ...], int] = {}

    def visit(node: yaml.Node, path: tuple[str, ...]) -> None:
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                child = (*path, str(key.value))
                lines[child] = key.start_mark.line + 1
                visit(value, child)
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                visit(value, (*path, str(i)))

    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError:
        return {}
    if root is not None:
        visit(root, ())
    return lines


class _Dumper(yaml.SafeDumper):
    """Writes tuples as lists and keeps the order of keys."""


_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))


def yaml_text(data: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return `data` as YAML, keys in the order given."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118)
    return text


def read_spec(cls: type[S], path: Path) -> S:
    """Return the checked specification that a YAML or JSON file holds."""
    text = read_text(path)
    try:
        return checked(cls, data_from_text(text, str(path), as_json=path.suffix == ".json"), str(path), text=text)
    except PerfmodelError:
        raise
    except RecursionError as error:
        raise SpecError(f"{path} is nested too deeply", got=str(error)) from error
