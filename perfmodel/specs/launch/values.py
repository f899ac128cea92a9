"""Values of flags as numbers: human sizes as vLLM reads them, fractions, booleans."""

from __future__ import annotations

import re
from typing import Final

from perfmodel.errors import Fault, UnitError
from perfmodel.specs.deployment import field_fault
from perfmodel.specs.launch.flags import Kind
from perfmodel.units import GB, GIB, KIB, KILO, MEGA, MIB, TERA, quantity

__all__ = ["NOT_STATED", "TRUTH", "read"]

NOT_STATED: Final = ("none", "null", "")
"""What vLLM and a YAML file write for "use the default"."""

TRUTH: Final = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,15}(?:_[0-9]{1,3})*")
_HUMAN: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([kKmMgGtT])")
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]{1,15}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?|[+-]?inf(?:inity)?|nan", re.IGNORECASE
)
_FACTOR: Final = {
    "k": KILO, "m": MEGA, "g": GB, "t": TERA, "K": KIB, "M": MIB, "G": GIB, "T": 2.0**40,
}  # fmt: skip


def read(field: str, kind: Kind, text: str) -> object:
    """Return the value of a flag, or a Fault where the text is no such value.

    In vLLM 32k is 32,000 and 32K is 32,768; a capital suffix takes no decimals.

    >>> read("max_model_len", "tokens", "32k"), read("max_model_len", "tokens", "32K")
    (32000, 32768)
    """
    text = text.strip()
    if kind == "text":
        value: object = text
    elif kind == "lower":
        value = text.lower()
    elif kind in ("on", "off"):
        truth = TRUTH.get(text.lower())
        value = Fault(field, repr(text), "true or false") if truth is None else truth == (kind == "on")
    elif kind == "number":
        value = float(text) if _NUMBER.fullmatch(text) else Fault(field, repr(text)[:80], "a number")
    else:
        value = _whole(field, kind, text)
    return value if isinstance(value, Fault) else field_fault(field, value) or value


def _whole(field: str, kind: Kind, text: str) -> int | Fault:
    if _WHOLE.fullmatch(text):
        return int(text)
    human = _HUMAN.fullmatch(text) if kind != "count" else None
    if human and human[2].isupper() and "." in human[1]:
        cure = f"Write {human[1]}{human[2].lower()} (powers of 1000) or the number itself."
        return Fault(field, repr(text), "a whole number before a capital suffix (powers of 1024)", cure)
    if human:
        return round(float(human[1]) * _FACTOR[human[2]])
    if kind == "bytes":
        try:
            return round(quantity(text, "bytes"))
        except UnitError:
            return Fault(field, repr(text)[:80], "a size in bytes, such as 17179869184, 16G or 16GiB")
    if kind == "tokens":
        return Fault(field, repr(text)[:80], "a number of tokens, such as 32768, 32k (32,000) or 32K (32,768)")
    return Fault(field, repr(text)[:80], "a whole number")
