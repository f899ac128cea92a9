"""Groups of flags that a command takes as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from perfmodel.errors import SpecError

__all__ = ["FlagGroup", "flag", "refuse_unused", "taking"]


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags by parameter name, as (annotation, default), and what their texts make together."""

    flags: Mapping[str, tuple[Any, Any]]
    made: Callable[[Mapping[str, Any]], Any]


def flag(
    panel: str, help_text: str, *spellings: str, metavar: str | None = "X", default: Any = None
) -> tuple[Any, Any]:
    """Return the annotation and the default of one flag of a group."""
    if isinstance(default, bool):
        return Annotated[bool, typer.Option(*spellings, help=help_text, rich_help_panel=panel)], default
    kind: Any = str if default is not None else str | None
    return Annotated[kind, typer.Option(*spellings, help=help_text, rich_help_panel=panel, metavar=metavar)], default


def refuse_unused(
    group: FlagGroup, given: Mapping[str, Any], names: Collection[str], *, used: bool, beside: str
) -> None:
    """Raise SpecError for flags that say something else than without them, where nothing uses them."""
    stated = [] if used else [name for name in names if given[name] != group.flags[name][1]]
    if stated:
        spelled = ", ".join("--" + name.replace("_", "-") for name in stated)
        raise SpecError("a flag would change nothing", where=spelled, expected=beside)


def taking(**groups: FlagGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator of a command whose parameters of these names are groups of flags."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)

        @wraps(command)
        def wrapped(**values: Any) -> None:
            made = {name: group.made({key: values.pop(key) for key in group.flags}) for name, group in groups.items()}
            command(**values, **made)

        parameters: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            group = groups.get(name)
            if group is None:
                parameters.append(parameter)
                continue
            parameters += [
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for key, (annotation, default) in group.flags.items()
            ]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorated
