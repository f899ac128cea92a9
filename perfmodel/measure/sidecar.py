"""The YAML file beside a measurement table: who measured what, with what, how to read it, and constant columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from perfmodel.errors import MeasurementError, UnknownNameError
from perfmodel.measure.schema import COLUMNS
from perfmodel.measure.text import file_text
from perfmodel.specs.figures import Spec
from perfmodel.specs.files import checked, data_from_text, yaml_text

__all__ = ["Sidecar", "read_sidecar", "sidecar_from_text", "sidecar_text"]


class Sidecar(Spec):
    """What holds for a whole table. Each entry of `constants` stands for a column that is the same in every row."""

    title: str = ""
    measured_by: str = ""
    measured_on: str = ""
    """Machines and date."""
    software: str = ""
    source: str = ""
    """Where the table comes from; fills the column `source` of rows that leave it empty."""
    licence: str = ""
    how_to_read: tuple[str, ...] = ()
    known_faults: tuple[str, ...] = ()
    constants: dict[str, str | int | float] = Field(default_factory=dict)

    @field_validator("how_to_read", "known_faults", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("constants")
    @classmethod
    def _constants_are_columns(cls, value: dict[str, str | int | float]) -> dict[str, str | int | float]:
        for name, cell in value.items():
            if name not in COLUMNS:
                raise ValueError(str(UnknownNameError.of("column", name, list(COLUMNS))).replace("\n  ", "; "))
            if name in ("id", "value"):
                raise ValueError(f"{name} differs from row to row: it cannot be a constant")
            wants_text = COLUMNS[name].cell == "text"
            if wants_text != isinstance(cell, str):
                raise ValueError(f"{name} must be {'text' if wants_text else 'a number'}, not {cell!r}")
            if not wants_text and not math.isfinite(float(cell)):
                raise ValueError(f"{name} must be finite, not {cell!r}")
        return value

    def columns(self) -> Mapping[str, str | int | float]:
        """Return the constant columns, `source` among them where the file names one."""
        own = {"source": self.source} if self.source else {}
        return {**own, **self.constants}


def sidecar_from_text(text: str, name: str = "sidecar") -> Sidecar:
    """Return the sidecar that YAML text holds; raises SpecError with the line of every fault."""
    return checked(Sidecar, data_from_text(text, name), name, text=text)


def read_sidecar(path: Path) -> Sidecar:
    """Return the sidecar in a YAML file."""
    return sidecar_from_text(file_text(path), str(path))


def sidecar_text(sidecar: Sidecar) -> str:
    """Return a sidecar as YAML, without what it leaves empty."""
    data: dict[str, Any] = sidecar.model_dump()
    filled = {key: value for key, value in data.items() if value not in ("", (), [], {})}
    if not filled:
        raise MeasurementError("the sidecar says nothing", cure="State at least the source of the table.")
    return yaml_text(filled)
