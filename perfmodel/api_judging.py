"""Curves and claims in the public interface: laws fitted to points, and verdicts on a document.

`perfmodel.api` offers these functions beside the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from perfmodel.specs.catalogue import Catalogue

if TYPE_CHECKING:
    from perfmodel.fit.ranking import Ranking
    from perfmodel.fit.result import FitResult
    from perfmodel.validate.audit.run import Audit

__all__ = ["audit", "curve", "curves", "verdict"]


def curve(law: str, x: ArrayLike, y: ArrayLike, *, x_name: str = "", y_name: str = "y") -> FitResult:
    """Return one law fitted to points, with standard errors, bands and a verdict in words.

    `x_name` is the column that the law reads; a law of one column needs none.

    >>> curve("contention_power", [1, 2, 4, 8], [4.0, 2.8, 2.1, 1.4]).law.name
    'contention_power'
    """
    from perfmodel.fit.data import data_from_arrays
    from perfmodel.fit.fitter import fit
    from perfmodel.fit.laws import law_by_name

    found = law_by_name(law)
    return fit(found, data_from_arrays({x_name or found.inputs[0].name: x}, y, y_name=y_name))


def curves(x: ArrayLike, y: ArrayLike, *, x_name: str, y_name: str) -> Ranking:
    """Return every law that reads these columns fitted and ranked, by AICc where the number of points allows it.

    >>> ranking = curves([1, 4, 12, 16], [3.27, 2.61, 1.53, 1.42], x_name="n_instances", y_name="ipc")
    >>> ranking.best is not None
    True
    """
    from perfmodel.fit.data import data_from_arrays
    from perfmodel.fit.laws import candidate_laws
    from perfmodel.fit.ranking import ranked_fits

    return ranked_fits(candidate_laws((x_name,), y_name), data_from_arrays({x_name: x}, y, y_name=y_name))


def verdict(result: FitResult) -> str:
    """Return in plain words whether a fit deserves trust, and within what.

    >>> "4 points" in verdict(curve("contention_power", [1, 2, 4, 8], [4.0, 2.8, 2.1, 1.4]))
    True
    """
    from perfmodel.fit.verdict import verdict as verdict_of

    return verdict_of(result)


def audit(claims: Path | str | None = None, *, catalogue: Catalogue | None = None) -> Audit:
    """Return the verdict on every claim of a file, or of the founding article.

    >>> found = audit()
    >>> len(found.judgements) > 50
    True
    """
    from perfmodel.validate.audit.run import audit as audited
    from perfmodel.validate.audit.run import read_claims, shipped_claims

    document = read_claims(shipped_claims() if claims is None else Path(claims))
    return audited(document, catalogue or Catalogue.standard())
