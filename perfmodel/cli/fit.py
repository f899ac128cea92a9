"""`perfmodel fit`: points people who ask "does it fit" to the right command."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.specs.catalogue import Catalogue

__all__ = ["CONTEXT", "fit"]

CONTEXT: Final = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Flags of `memory` are taken as they come, so that they can be repeated in the advice."""


def fit(
    what: Annotated[str, typer.Argument(help="A table of measurements.")],
    rest: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Fit measured data to a law (not in this version); for "does the model fit in memory" use `perfmodel memory`."""
    try:
        name = Catalogue.standard().model(what).model.name
    except PerfmodelError:
        raise SpecError(
            f"{what!r} cannot be fitted",
            cure="Fitting measurements is not in this version; for memory use `perfmodel memory MODEL HARDWARE`.",
        ) from None
    asked = " ".join(["perfmodel memory", what, *(rest or ["HARDWARE"])])
    raise SpecError(f"{name} is a model, and `fit` fits curves to measurements", cure=f"Did you mean `{asked}`?")
