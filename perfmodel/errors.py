"""Every exception that perfmodel raises on purpose.

    PerfmodelError
    |-- SpecError            a hardware, model, runtime or quantisation description is wrong
    |-- UnitError            a quantity has no unit, a wrong unit, or is no number
    |-- UnknownNameError     a name is in no catalogue (the message offers near names)
    |-- InfeasibleError      a sound question whose answer is "this does not fit" (exit code 1)
    |-- CalibrationError     a calibration lacks a coefficient or is broken
    |-- FitError             data cannot support the fit that was asked for
    `-- MeasurementError     a measurement table is malformed or breaks physics

A message says where the fault is, what was found, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "CalibrationError",
    "Fault",
    "FitError",
    "InfeasibleError",
    "MeasurementError",
    "PerfmodelError",
    "SpecError",
    "UnitError",
    "UnknownNameError",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where it stands, what was got, what was expected, how to cure it."""

    where: str = ""
    got: str = ""
    expected: str = ""
    cure: str = ""

    def __str__(self) -> str:
        parts = [self.where] if self.where else []
        parts += [f"got {self.got}"] if self.got else []
        parts += [f"expected {self.expected}"] if self.expected else []
        text = ": ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else "".join(parts)
        return f"{text}. {self.cure}" if text and self.cure else text or self.cure


class PerfmodelError(Exception):
    """Base of all; `exit_code` is what the command line returns for it.

    >>> print(SpecError("a100.yaml is no device", where="line 3", got="-1", expected="a size >= 0"))
    a100.yaml is no device
      line 3: got -1, expected a size >= 0
    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        where: str = "",
        got: str = "",
        expected: str = "",
        cure: str = "",
        faults: Iterable[Fault] = (),
    ) -> None:
        own = Fault(where, got, expected, cure)
        self.problem = problem
        self.faults: tuple[Fault, ...] = (*((own,) if own != Fault() else ()), *faults)
        super().__init__("\n".join([problem, *(f"  {fault}" for fault in self.faults)]))


class SpecError(PerfmodelError):
    """A description of hardware, model, runtime or quantisation cannot be used as it stands."""


class UnitError(PerfmodelError):
    """A quantity has no unit where one is needed, a unit of the wrong kind, or is no number."""


class UnknownNameError(PerfmodelError):
    """A name stands in no catalogue.

    >>> print(UnknownNameError.of("device", "a100-80gb-smx", ["a100-80gb-sxm", "l4"]))
    unknown device 'a100-80gb-smx'
      did you mean a100-80gb-sxm?
    """

    @classmethod
    def of(cls, kind: str, name: str, known: Sequence[str], cure: str = "") -> UnknownNameError:
        """Return the error for `name`, offering the nearest of the `known` names."""
        import difflib  # only where a name is wrong

        near = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=3, cutoff=0.55)
        hint = f"did you mean {' or '.join(near)}?" if near else ""
        return cls(f"unknown {kind} {name!r}", where=" ".join(filter(None, (hint, cure))))


class InfeasibleError(PerfmodelError):
    """The question is sound and the answer is no: needs, has, and what would fit stand in the message."""

    exit_code = 1


class CalibrationError(PerfmodelError):
    """A calibration lacks a coefficient that a law asks for, or its file is broken."""


class FitError(PerfmodelError):
    """Data cannot support the fit that was asked for."""


class MeasurementError(PerfmodelError):
    """A measurement table is malformed, or a row in it breaks physics."""
