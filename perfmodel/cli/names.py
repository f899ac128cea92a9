"""Completion of catalogue names in the shell."""

from __future__ import annotations

from perfmodel.specs.catalogue import Catalogue, Kind

__all__ = ["calibration_names", "hardware_names", "model_names", "runtime_names", "scheme_names"]


def _starting(kind: Kind, start: str) -> list[str]:
    return [name for name in Catalogue.standard().paths(kind) if name.startswith(start.lower())]


def model_names(incomplete: str) -> list[str]:
    """Return model names that start like this."""
    return _starting("model", incomplete)


def hardware_names(incomplete: str) -> list[str]:
    """Return device and system names that start like this."""
    return _starting("hardware", incomplete)


def runtime_names(incomplete: str) -> list[str]:
    """Return runtime names that start like this."""
    return _starting("runtime", incomplete)


def calibration_names(incomplete: str) -> list[str]:
    """Return calibration names that start like this."""
    return _starting("calibration", incomplete)


def scheme_names(incomplete: str) -> list[str]:
    """Return quantisation schemes that start like this."""
    return _starting("scheme", incomplete)
