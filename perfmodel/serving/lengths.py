"""Lengths of sequences as a distribution over whole numbers of tokens: exact moments, and draws that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, isfinite, log, sqrt

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Tokens

__all__ = ["LengthDistribution", "fixed", "lognormal", "observed", "uniform"]

_MOST_LENGTHS = 2_000_000
_MOST_TOKENS = 2**24
_TAIL_SIGMAS = 6.0


@dataclass(frozen=True, eq=False, slots=True)
class LengthDistribution:
    """Each length in `tokens` has its `share`; shares add up to 1. `name` is how it is printed."""

    name: str
    tokens: Tokens
    share: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.most_tokens > _MOST_TOKENS:
            raise _bad(self.name, f"{self.most_tokens} tokens", f"at most {_MOST_TOKENS}: no context is longer")

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return float(self.tokens @ self.share)

    @property
    def most_tokens(self) -> int:
        """The longest length."""
        return int(self.tokens.max())

    def drawn(self, n: int, rng: Generator) -> Tokens:
        """Return `n` independent lengths."""
        steps = np.cumsum(self.share)
        place = np.searchsorted(steps, rng.random(n) * steps[-1], side="right")
        lengths: Tokens = self.tokens[np.minimum(place, len(self.tokens) - 1)]
        return lengths


def _bad(what: str, got: str, expected: str) -> SpecError:
    return SpecError("the lengths cannot be used", where=what, got=got, expected=expected)


def fixed(tokens: int) -> LengthDistribution:
    """Return the distribution of one length.

    >>> fixed(100).mean_tokens
    100.0
    """
    if tokens < 1:
        raise _bad("fixed", str(tokens), "at least 1 token")
    return LengthDistribution(f"{tokens} tokens", np.array([tokens], np.int64), np.ones(1))


def uniform(low_tokens: int, high_tokens: int) -> LengthDistribution:
    """Return the even distribution from low to high, both included.

    >>> uniform(20_000, 32_000).mean_tokens
    26000.0
    """
    if not 1 <= low_tokens <= high_tokens or high_tokens - low_tokens >= _MOST_LENGTHS:
        raise _bad("uniform", f"{low_tokens} to {high_tokens}", f"1 <= low <= high, at most {_MOST_LENGTHS} lengths")
    tokens = np.arange(low_tokens, high_tokens + 1, dtype=np.int64)
    name = f"uniform {low_tokens} to {high_tokens} tokens"
    return LengthDistribution(name, tokens, np.full(len(tokens), 1.0 / len(tokens)))


def lognormal(mean_tokens: float, sigma: float, most_tokens: int | None = None) -> LengthDistribution:
    """Return log-normal lengths of this mean and deviation of the logarithm, rounded, at least 1 and at most the most.

    Without `most_tokens` the tail ends six deviations out. Cutting lowers the mean: see `mean_tokens` of the result.
    """
    if not (isfinite(mean_tokens) and mean_tokens >= 1 and isfinite(sigma) and 0 < sigma <= 5):
        raise _bad("lognormal", f"mean {mean_tokens:g}, sigma {sigma:g}", "a mean of at least 1, sigma above 0 to 5")
    centre = log(mean_tokens) - sigma * sigma / 2
    most = most_tokens if most_tokens is not None else int(exp(centre + _TAIL_SIGMAS * sigma)) + 1
    if not 1 <= most <= _MOST_LENGTHS:
        raise _bad("lognormal", f"lengths up to {most}", f"1 to {_MOST_LENGTHS}: state the longest length")
    tokens = np.arange(1, most + 1, dtype=np.int64)
    edges = [0.5 * (1.0 + erf((log(k + 0.5) - centre) / (sigma * sqrt(2.0)))) for k in range(1, most)]
    below = np.array([0.0, *edges, 1.0])
    name = f"log-normal, mean {mean_tokens:g}, sigma {sigma:g}, at most {most} tokens"
    return LengthDistribution(name, tokens, np.diff(below))


def observed(tokens: Sequence[int] | Tokens, name: str = "observed lengths") -> LengthDistribution:
    """Return the distribution of lengths that were seen, each as often as it was."""
    seen = np.asarray(tokens, np.int64)
    if seen.ndim != 1 or not len(seen) or int(seen.min()) < 1:
        raise _bad(name, f"{len(seen)} lengths", "at least one length, each of at least 1 token")
    values, counts = np.unique(seen, return_counts=True)
    return LengthDistribution(name, values, counts / len(seen))
