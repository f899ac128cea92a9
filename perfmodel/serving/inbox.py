"""Where requests come from: those that are sent at their time, and those of users who wait for an answer first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from perfmodel.serving.records import NEVER

__all__ = ["Closed", "Open", "Routed", "Turns"]


class Open:
    """Requests that are sent at their time, as (time, request)."""

    def __init__(self, sent: Iterable[tuple[int, int]] = ()) -> None:
        self.due: deque[tuple[int, int]] = deque(sent)

    def next_ns(self) -> int:
        """Return when the next request is sent, `NEVER` where none is left."""
        return self.due[0][0] if self.due else NEVER

    def take(self) -> tuple[int, int]:
        """Take the next request: when it is sent, and which."""
        return self.due.popleft()

    def answered(self, request: int, at_ns: int) -> None:
        """Nobody waits for the answer."""


class Closed(Open):
    """Requests that are sent once they are due and one of the users is free."""

    def __init__(self, sent: Sequence[tuple[int, int]], n_users: int, think_ns: Sequence[int]) -> None:
        super().__init__(sent)
        self._free_at = [0] * min(n_users, max(len(sent), 1))
        self._think_ns = think_ns

    def next_ns(self) -> int:
        """Return when the next request is sent, `NEVER` where none is left or nobody is free."""
        return max(self.due[0][0], self._free_at[0]) if self.due and self._free_at else NEVER

    def take(self) -> tuple[int, int]:
        """Take the next request: when it is sent, and which."""
        at_ns = self.next_ns()
        heappop(self._free_at)
        return at_ns, self.due.popleft()[1]

    def answered(self, request: int, at_ns: int) -> None:
        """Let the user of a request think, and then be free."""
        heappush(self._free_at, at_ns + self._think_ns[request])


class Turns(Open):
    """Requests of conversations: the next turn is sent once it is due and the last one was answered and thought about.

    `after[i]` is the request whose answer the i-th one waits for, -1 for a first turn.
    """

    def __init__(self, sent: Sequence[tuple[int, int]], after: Sequence[int], think_ns: Sequence[int]) -> None:
        super().__init__()
        self._ready = [(at_ns, request) for at_ns, request in sent if after[request] < 0]
        self._next = {after[request]: (at_ns, request) for at_ns, request in sent if after[request] >= 0}
        self._think_ns = think_ns

    def next_ns(self) -> int:
        """Return when the next request is sent, `NEVER` where none is left or all wait for answers."""
        return self._ready[0][0] if self._ready else NEVER

    def take(self) -> tuple[int, int]:
        """Take the next request: when it is sent, and which."""
        return heappop(self._ready)

    def answered(self, request: int, at_ns: int) -> None:
        """Let the next turn of a conversation come."""
        if request in self._next:
            due_ns, following = self._next.pop(request)
            thought_ns = at_ns + self._think_ns[request]
            heappush(self._ready, (max(due_ns, thought_ns), following))


class Routed(Open):
    """What a replica of a fleet was given; answers go to the inbox that all of them share."""

    def __init__(self, front: Open) -> None:
        super().__init__()
        self._front = front

    def answered(self, request: int, at_ns: int) -> None:
        """Tell the inbox in front."""
        self._front.answered(request, at_ns)
