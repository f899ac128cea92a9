"""Variations of a question: one field changed, or several at once, and many numbers in a grid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any, Final, get_type_hints

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.specs.deployment import Deployment
from perfmodel.step.question import Question

__all__ = ["parsed_axes", "variations", "varied"]

_SHORT: Final[Mapping[str, str]] = {
    "isl": "input_tokens", "osl": "output_tokens", "devices": "n_devices", "concurrency": "batch",
    "q": "quantization", "kv": "kv_cache_dtype", "util": "gpu_memory_utilization",
    "gpu_memory_utilization": "gpu_memory_utilization", "max_model_len": "max_model_len",
    "speculative": "speculative_tokens", "hw": "hardware", "block_size": "block_tokens",
}  # fmt: skip
LARGEST: Final = 10**12
"""No range goes beyond."""
_SKIPPED: Final = {"deployment", "ignored", "unknown", "notes", "environment", "stage_layers", "used_by_others_bytes"}


def _field_names() -> dict[str, bool]:
    """Return every field that can be varied; True: it belongs to the question, False: to its deployment."""
    own = {f.name: True for f in fields(Question) if f.name not in _SKIPPED}
    return {f.name: False for f in fields(Deployment) if f.name not in _SKIPPED} | own


def _typed(name: str, text: str, *, of_question: bool) -> Any:
    hints = get_type_hints(Question if of_question else Deployment)
    wanted = hints[name]
    if text.lower() in ("none", "null") and name != "quantization":
        return None
    if name == "speculative_tokens" and text == "0":  # nobody drafts: the usual way to ask for the comparison
        return None
    try:
        if bool in getattr(wanted, "__args__", ()):
            return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}[text.lower()]
        if float in getattr(wanted, "__args__", ()):
            return float(text)
        if int in getattr(wanted, "__args__", ()):
            return int(text)
    except (ValueError, KeyError) as error:
        kinds = getattr(wanted, "__args__", ())
        expected = "on or off" if bool in kinds else "a number" if float in kinds else "a whole number"
        raise SpecError(f"--vary {name} cannot take this value", got=repr(text), expected=expected) from error
    return text


def parsed_axes(specifications: Sequence[str], *, further: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return axis name -> values from texts such as "tp=1,2" or "batch=1:64:x2" (from : to : factor or step).

    `further` names axes that are none of a question, for who knows what to do with them.

    >>> parsed_axes(["tp=1,2", "batch=1:8:x2", "isl=100:300:100"])
    {'tp': ('1', '2'), 'batch': ('1', '2', '4', '8'), 'input_tokens': ('100', '200', '300')}
    """
    axes: dict[str, tuple[str, ...]] = {}
    for text in specifications:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        name = _SHORT.get(name, name)
        if not equals or not values:
            raise SpecError(
                "an axis cannot be read",
                got=repr(text),
                expected="name=value,value or name=from:to:step or from:to:xfactor",
            )
        if name not in _field_names() and name not in further:
            raise UnknownNameError.of("axis", name, sorted({*_field_names(), *_SHORT, *further}))
        if name in axes:
            raise SpecError(f"axis {name} is given twice", cure="Put all its values into one.")
        axes[name] = tuple(v for part in values.split(",") for v in _expanded(name, part.strip()))
    return axes


def _expanded(name: str, part: str) -> Iterator[str]:
    pieces = part.split(":")
    if len(pieces) == 1 or name in ("hardware", "model", "runtime", "calibration"):
        yield part
        return
    try:
        first, last = float(pieces[0]), float(pieces[1])
        step = pieces[2] if len(pieces) > 2 else "1"
        factor = step.startswith("x")
        size = float(step[1:] if factor else step)
    except (ValueError, IndexError) as error:
        raise SpecError(
            f"range of {name} cannot be read", got=part, expected="from:to:step or from:to:xfactor"
        ) from error
    if not (size > 1 if factor else size > 0) or not last >= first > (0 if factor else -1) or last > LARGEST:
        raise SpecError(
            f"range of {name} does not end",
            got=part,
            expected="from 1 to at most 1e12, with a step above 0 or a factor above 1",
        )
    n_most = 10_000_000
    value = first
    for _ in range(n_most):
        if value > last * (1 + 1e-12):
            return
        yield f"{value:.12g}"
        value = value * size if factor else value + size


def varied(question: Question, changes: Mapping[str, str]) -> Question:
    """Return the question with fields changed, given as text. Without drafted tokens an acceptance length is moot."""
    owners = _field_names()
    own = {name: _typed(name, text, of_question=True) for name, text in changes.items() if owners[name]}
    stated = {name: _typed(name, text, of_question=False) for name, text in changes.items() if not owners[name]}
    if "acceptance_length" not in changes and stated.get("speculative_tokens", 1) is None:
        own["acceptance_length"] = None
    return replace(question, **own, deployment=replace(question.deployment, **stated))


def variations(question: Question, axes: Mapping[str, Iterable[str]]) -> Iterator[tuple[dict[str, str], Question]]:
    """Yield every combination of axis values with the question that it makes."""
    names = list(axes)
    for values in product(*axes.values()):
        changes = dict(zip(names, values, strict=True))
        yield changes, varied(question, changes)
