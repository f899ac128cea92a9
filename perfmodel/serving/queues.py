"""Who is next and who is preempted: the order of waiting requests, and the order in which running ones give way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

__all__ = [
    "ORDERS",
    "ArrivalOrder",
    "LowestPriority",
    "NewestFirst",
    "PriorityOrder",
    "Queue",
    "ShortestFirst",
    "Victims",
    "queue_of",
    "victims_of",
]

ORDERS: Final = ("fcfs", "sjf", "priority")


class Queue(Protocol):
    """Requests that wait. `reorders`: a request that comes later may be served before the head."""

    reorders: bool

    def __len__(self) -> int: ...

    def add(self, request: int) -> None:
        """Add a request that has arrived."""

    def put_back(self, request: int) -> None:
        """Add a preempted request: it goes before all others of its rank."""

    def head(self) -> int:
        """Return the next request."""

    def pop(self) -> int:
        """Take the next request."""


class ArrivalOrder:
    """First come, first served."""

    reorders = False

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: int) -> None:
        """Add a request at the end."""
        self._waiting.append(request)

    def put_back(self, request: int) -> None:
        """Add a preempted request at the front."""
        self._waiting.appendleft(request)

    def head(self) -> int:
        """Return the oldest request."""
        return self._waiting[0]

    def pop(self) -> int:
        """Take the oldest request."""
        return self._waiting.popleft()


class ShortestFirst:
    """The request with the fewest tokens first; its length is taken as known. Preempted ones keep their place."""

    reorders = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._back: list[int] = []
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._back) + len(self._heap)

    def add(self, request: int) -> None:
        """Add a request in its place."""
        heappush(self._heap, (self._tokens[request], request))

    def put_back(self, request: int) -> None:
        """Add a preempted request at the front."""
        self._back.append(request)

    def head(self) -> int:
        """Return the shortest request."""
        return self._back[-1] if self._back else self._heap[0][1]

    def pop(self) -> int:
        """Take the shortest request."""
        return self._back.pop() if self._back else heappop(self._heap)[1]


class PriorityOrder:
    """The lowest number first, the older of equals first, preempted or not (vLLM --scheduling-policy priority)."""

    reorders = True

    def __init__(self, priority: Sequence[int]) -> None:
        self._priority = priority
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: int) -> None:
        """Add a request in its place."""
        heappush(self._heap, (self._priority[request], request))

    put_back = add

    def head(self) -> int:
        """Return the most urgent request."""
        return self._heap[0][1]

    def pop(self) -> int:
        """Take the most urgent request."""
        return heappop(self._heap)[1]


class Victims(Protocol):
    """Running requests in the order in which they give way when blocks run out."""

    def add(self, request: int) -> None:
        """Add a request that begins to run."""

    def remove(self, request: int) -> None:
        """Forget a request that has ended."""

    def pop(self) -> int:
        """Take the request that gives way."""


class NewestFirst:
    """The request that was admitted last gives way."""

    def __init__(self) -> None:
        self._running: dict[int, None] = {}

    def add(self, request: int) -> None:
        """Add the newest."""
        self._running[request] = None

    def remove(self, request: int) -> None:
        """Forget a request."""
        del self._running[request]

    def pop(self) -> int:
        """Take the newest."""
        return self._running.popitem()[0]


class LowestPriority:
    """The request with the highest number gives way, the youngest of equals."""

    def __init__(self, priority: Sequence[int]) -> None:
        self._priority = priority
        self._running: set[int] = set()
        self._heap: list[tuple[int, int]] = []

    def add(self, request: int) -> None:
        """Add a request in its place."""
        self._running.add(request)
        heappush(self._heap, (-self._priority[request], -request))

    def remove(self, request: int) -> None:
        """Forget a request."""
        self._running.remove(request)

    def pop(self) -> int:
        """Take the least urgent request."""
        while True:
            request = -heappop(self._heap)[1]
            if request in self._running:
                self._running.remove(request)
                return request


def queue_of(order: str, *, tokens: Sequence[int], priority: Sequence[int]) -> Queue:
    """Return an empty queue of this order."""
    if order == "priority":
        return PriorityOrder(priority)
    return ShortestFirst(tokens) if order == "sjf" else ArrivalOrder()


def victims_of(order: str, *, priority: Sequence[int]) -> Victims:
    """Return who gives way under this order, nobody running yet."""
    return LowestPriority(priority) if order == "priority" else NewestFirst()
