"""Which replica a request goes to: policies that look at the replicas as they are when the request is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.replica import Replica

__all__ = ["ROUTINGS", "LeastLoaded", "PrefixAware", "RoundRobin", "Router", "SessionAffinity", "router_of"]


class Router(Protocol):
    """Chooses among the replicas that are up; there is at least one."""

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        """Return the replica that gets the request."""


class RoundRobin:
    """One after the other."""

    def __init__(self, trace: Trace) -> None:  # noqa: ARG002
        self._n_sent = 0

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002
        """Return the next replica."""
        self._n_sent += 1
        return replicas[(self._n_sent - 1) % len(replicas)]


class LeastLoaded:
    """The replica with the fewest requests, the first of equals."""

    def __init__(self, trace: Trace) -> None:
        """Take no notice of the trace."""

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002
        """Return the replica with the fewest requests."""
        return min(replicas, key=lambda one: one.n_requests)


class SessionAffinity:
    """Requests of one conversation, or else of one group, stay where the first of them went; others go by load."""

    def __init__(self, trace: Trace) -> None:
        self._prefixes = trace.prefixes
        self._homes: dict[tuple[str, int], int] = {}

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        """Return the home of the request's session; where it is down the session moves."""
        key = self._session(request)
        home = self._homes.get(key) if key is not None else None
        for one in replicas:
            if one.index == home:
                return one
        chosen = min(replicas, key=lambda one: one.n_requests)
        if key is not None:
            self._homes[key] = chosen.index
        return chosen

    def _session(self, request: int) -> tuple[str, int] | None:
        prefixes = self._prefixes
        if prefixes is None:
            return None
        if prefixes.conversation[request] >= 0:
            return ("conversation", int(prefixes.conversation[request]))
        return ("group", int(prefixes.group[request])) if prefixes.group[request] >= 0 else None


class PrefixAware:
    """The replica with the fewest blocks in use and still to be read, as NVIDIA Dynamo's KV router weighs them."""

    def __init__(self, trace: Trace) -> None:
        self._inputs = trace.input_tokens

    def choose(self, request: int, replicas: Sequence[Replica]) -> Replica:
        """Return the replica where cached blocks outweigh its load."""

        def cost(one: Replica) -> tuple[int, int]:
            pool = one.batch.pool
            whole = (int(self._inputs[request]) - 1) // pool.block_tokens
            return pool.used - pool.found(request, whole), one.n_requests

        return min(replicas, key=cost)


ROUTINGS: Final[dict[str, Callable[[Trace], Router]]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "session": SessionAffinity,
    "prefix": PrefixAware,
}


def router_of(name: str, trace: Trace) -> Router:
    """Return a fresh router by name; raises SpecError for a name that is none."""
    if name not in ROUTINGS:
        raise SpecError(f"unknown routing {name!r}", expected=", ".join(ROUTINGS))
    return ROUTINGS[name](trace)
