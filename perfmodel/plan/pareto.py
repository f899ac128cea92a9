"""Points that no other beats in both of two figures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["front"]

Floats = NDArray[np.float64]


def front(x: Floats, y: Floats) -> NDArray[np.int64]:
    """Return the indices of points that none dominates, by growing x; more is better in both.

    A point dominates another if it is at least as good in both figures and better in one. Of equal points the first
    stands for all. Points that are not finite are left out.

    >>> front(np.array([1.0, 2.0, 3.0, 2.0]), np.array([5.0, 4.0, 1.0, 3.0])).tolist()
    [0, 1, 2]
    """
    usable = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(usable):
        return usable.astype(np.int64)
    order = usable[np.lexsort((usable, -y[usable], -x[usable]))]
    ordinate = y[order]
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(ordinate)[:-1]])
    kept: NDArray[np.int64] = order[ordinate > best_before][::-1].astype(np.int64)
    return kept
