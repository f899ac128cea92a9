"""What several replicas are to each other: pools for prefill and decode, a shared device, failures at given times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, SpecError
from perfmodel.serving.records import NEVER
from perfmodel.serving.sharing import Contention

__all__ = ["Disaggregation", "Failure", "KvLink", "Sharing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """The way of KV caches from a prefill replica: a message starts in `latency_ns`, a token takes `token_ns`.

    Each prefill replica sends one cache after the other.
    """

    latency_ns: int
    token_ns: float

    def __post_init__(self) -> None:
        if self.latency_ns < 0 or not 0 <= self.token_ns < NEVER:
            got = f"{self.latency_ns} ns and {self.token_ns} ns a token"
            raise SpecError("the KV link cannot be used", got=got, expected="times of 0 or more")

    def busy_ns(self, n_tokens: int) -> int:
        """Return how long the link is taken by the cache of so many tokens."""
        return round(n_tokens * self.token_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Replicas that only read prompts, and others that only decode; raises SpecError where one side is missing.

    The first token comes from the prefill replica, the next one after the KV cache has arrived.
    """

    n_prefill: int
    n_decode: int
    link: KvLink

    def __post_init__(self) -> None:
        faults = [
            Fault(name, str(value), "at least 1")
            for name, value in (("n_prefill", self.n_prefill), ("n_decode", self.n_decode))
            if value < 1
        ]
        if faults:
            raise SpecError("prefill and decode cannot be apart", faults=faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A replica stops at `at_ns` and is back, empty, at `back_ns` (`NEVER`: it stays away).

    The step under way is its last. Its requests are sent again from the start, or are lost.
    """

    replica: int
    at_ns: int
    back_ns: int = NEVER
    then: Literal["retry", "lose"] = "retry"

    def __post_init__(self) -> None:
        if self.replica < 0 or not 0 <= self.at_ns < self.back_ns:
            got = f"replica {self.replica}, {self.at_ns} to {self.back_ns} ns"
            raise SpecError(
                "the failure cannot happen", got=got, expected="a replica from 0, and back after it stopped"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """So many replicas after each other sit on one device and slow each other down."""

    n_instances: int
    contention: Contention

    def __post_init__(self) -> None:
        if self.n_instances < 1:
            got = str(self.n_instances)
            raise SpecError("the device cannot be shared", where="n_instances", got=got, expected="at least 1")
