"""What a device costs an hour: as the user says, else the typical price of its file, else not known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.errors import SpecError, UnitError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.units import quantity

__all__ = ["Price", "price_of", "prices_from", "usd_per_hour"]

_PER_HOUR = re.compile(r"\s*/\s*(h|hr|hour)\s*$", re.IGNORECASE)
_DOLLARS = re.compile(r"^\s*\$\s*|\s*(USD|\$)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for one device and hour, and where the figure is from; `value` None: not known."""

    value_usd_per_hour: float | None
    source: str


def usd_per_hour(text: str, *, where: str) -> float:
    """Return a price written as 2.5, 2.5/h, $2.5/h or "2.5 USD/h"; raises SpecError.

    >>> usd_per_hour("$2.5/h", where="--price"), usd_per_hour("2.5 USD/h", where="--price")
    (2.5, 2.5)
    """
    bare = _DOLLARS.sub("", _DOLLARS.sub("", _PER_HOUR.sub("", text)))
    try:
        value = quantity(bare, "usd_per_hour")
    except UnitError as error:
        raise SpecError(
            "a price cannot be read", where=where, got=repr(text), expected="US dollars for an hour, such as 2.5/h"
        ) from error
    if value <= 0:
        raise SpecError("a price cannot be used", where=where, got=repr(text), expected="above 0")
    return value


def prices_from(catalogue: Catalogue, texts: Sequence[str]) -> dict[str, float]:
    """Return device name -> price of texts such as "h100-sxm=2.5/h"; raises SpecError or UnknownNameError."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError("a price cannot be read", got=repr(text), expected="device=price, such as h100-sxm=2.5/h")
        device = catalogue.hardware(name.strip()).device.name
        if device in found:
            raise SpecError(f"the price of {device} is given twice", where="--price")
        found[device] = usd_per_hour(value, where=f"--price {name}")
    return found


def price_of(device: Device, stated: Mapping[str, float]) -> Price:
    """Return the price of one device and hour."""
    if device.name in stated:
        return Price(stated[device.name], "as stated")
    typical = device.price.typical
    if typical is None:
        return Price(None, "no price in the device file")
    source = device.sources.get(typical.source, typical.source)
    return Price(typical.value, f"{source}{': ' + typical.note if typical.note else ''}")
