"""`perfmodel fit`: points people who ask "does it fit" to the right command."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.specs.catalogue import Catalogue

__all__ = ["fit"]


def fit(
    what: Annotated[str, typer.Argument(help="A table of measurements.")],
    rest: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Fit measured data to a law (not in this version); for "does the model fit in memory" use `perfmodel memory`."""
    try:
        name = Catalogue.standard().model(what).model.name
    except PerfmodelError:
        raise SpecError(
            f"{what} cannot be fitted", expected="a later version: fitting comes with measurement tables"
        ) from None
    asked = " ".join(["perfmodel memory", what, *(rest or ["HARDWARE"])])
    raise SpecError(f"{name} is a model, and `fit` fits curves to measurements", cure=f"Did you mean `{asked}`?")
