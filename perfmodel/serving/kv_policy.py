"""KV policies: how much a sequence of n tokens holds. Closed forms only; `allocator` gives the object that places them.

fixed      held = reserved
paged      held = block x ceil(n / block)
window     held = block x (ceil(n / block) - floor(max(n - w, 0) / block)),   useful = min(n, w)
best fit   held >= the request rounded up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perfmodel.errors import SpecError
from perfmodel.estimate import Num
from perfmodel.serving.allocators import BestFitSegments, FixedSlots, KvAllocator, PagedBlocks, WindowBlocks
from perfmodel.specs.allocator import CachingRules

__all__ = ["BestFit", "Fixed", "KvPolicy", "Paged", "Window"]


class KvPolicy(Protocol):
    """What a sequence of n tokens holds, and who places it. Token figures are whole numbers in floats or arrays."""

    @property
    def name(self) -> str:
        """How the policy is printed."""
        ...

    @property
    def exact(self) -> bool:
        """Whether `held_tokens` is what an allocator gives, and not only its least."""
        ...

    def held_tokens(self, n_tokens: Num) -> Num:
        """Return tokens of room that are held for `n_tokens`."""
        ...

    def useful_tokens(self, n_tokens: Num) -> Num:
        """Return tokens of the cache that are still needed."""
        ...

    def allocator(self, capacity_bytes: int, *, bytes_per_token: int) -> KvAllocator:
        """Return an allocator of this policy for a pool."""
        ...


def _whole(what: str, **tokens: int) -> None:
    for name, value in tokens.items():
        if value < 1:
            raise SpecError(
                "the KV policy cannot be used", where=f"{what} {name}", got=str(value), expected="at least 1"
            )


@dataclass(frozen=True, slots=True)
class Fixed:
    """Room for `reserved_tokens` from the first token on: static batching, or a cache sized for the longest context."""

    reserved_tokens: int

    def __post_init__(self) -> None:
        _whole("fixed", reserved_tokens=self.reserved_tokens)

    @property
    def name(self) -> str:
        """How the policy is printed."""
        return f"fixed {self.reserved_tokens}"

    @property
    def exact(self) -> bool:
        """A slot is a slot."""
        return True

    def held_tokens(self, n_tokens: Num) -> Num:
        """Return the slot, whatever the length."""
        return n_tokens * 0.0 + self.reserved_tokens

    def useful_tokens(self, n_tokens: Num) -> Num:
        """Return all tokens."""
        return n_tokens

    def allocator(self, capacity_bytes: int, *, bytes_per_token: int) -> FixedSlots:
        """Return slots in a pool."""
        return FixedSlots(capacity_bytes, slot_bytes=self.reserved_tokens * bytes_per_token)


@dataclass(frozen=True, slots=True)
class Paged:
    """Blocks of `block_tokens`, as paged attention has them."""

    block_tokens: int

    def __post_init__(self) -> None:
        _whole("paged", block_tokens=self.block_tokens)

    @property
    def name(self) -> str:
        """How the policy is printed."""
        return f"paged {self.block_tokens}"

    @property
    def exact(self) -> bool:
        """Blocks are equal: any will do."""
        return True

    def held_tokens(self, n_tokens: Num) -> Num:
        """Return whole blocks.

        >>> Paged(16).held_tokens(17.0)
        32.0
        """
        return -(-n_tokens // self.block_tokens) * self.block_tokens

    def useful_tokens(self, n_tokens: Num) -> Num:
        """Return all tokens."""
        return n_tokens

    def allocator(self, capacity_bytes: int, *, bytes_per_token: int) -> PagedBlocks:
        """Return blocks in a pool."""
        return PagedBlocks(capacity_bytes, block_bytes=self.block_tokens * bytes_per_token)


@dataclass(frozen=True, slots=True)
class Window:
    """Blocks of the last `window_tokens`; what falls out of the window is released block by block."""

    window_tokens: int
    block_tokens: int

    def __post_init__(self) -> None:
        _whole("window", window_tokens=self.window_tokens, block_tokens=self.block_tokens)

    @property
    def name(self) -> str:
        """How the policy is printed."""
        return f"window {self.window_tokens}, blocks of {self.block_tokens}"

    @property
    def exact(self) -> bool:
        """Blocks are equal: any will do."""
        return True

    def held_tokens(self, n_tokens: Num) -> Num:
        """Return whole blocks that still hold a token of the window.

        >>> Window(100, 16).held_tokens(50.0), Window(100, 16).held_tokens(1000.0)
        (64.0, 112.0)
        """
        before = np.maximum(n_tokens - self.window_tokens, 0.0)
        held = (-(-n_tokens // self.block_tokens) - before // self.block_tokens) * self.block_tokens
        return held if isinstance(held, np.ndarray) else float(held)

    def useful_tokens(self, n_tokens: Num) -> Num:
        """Return the tokens of the window."""
        useful = np.minimum(n_tokens, float(self.window_tokens))
        return useful if isinstance(useful, np.ndarray) else float(useful)

    def allocator(self, capacity_bytes: int, *, bytes_per_token: int) -> WindowBlocks:
        """Return blocks in a pool."""
        return WindowBlocks(
            capacity_bytes,
            block_bytes=self.block_tokens * bytes_per_token,
            window_bytes=self.window_tokens * bytes_per_token,
        )


@dataclass(frozen=True, slots=True)
class BestFit:
    """One contiguous piece for each sequence from a caching allocator.

    `held_tokens` is the least that it holds: rests too small to be split off stay with the piece and come on top.
    """

    rules: CachingRules
    bytes_per_token: int

    @property
    def name(self) -> str:
        """How the policy is printed."""
        return f"best fit ({self.rules.name})"

    @property
    def exact(self) -> bool:
        """What is held depends on the pieces that are there."""
        return False

    def held_tokens(self, n_tokens: Num) -> Num:
        """Return the request rounded up, in tokens."""
        step = self.rules.round.value
        return -(-n_tokens * self.bytes_per_token // step) * step / self.bytes_per_token

    def useful_tokens(self, n_tokens: Num) -> Num:
        """Return all tokens."""
        return n_tokens

    def allocator(self, capacity_bytes: int, *, bytes_per_token: int) -> BestFitSegments:
        """Return a caching allocator over a pool."""
        if bytes_per_token != self.bytes_per_token:
            raise SpecError(
                "the policy was made for other caches",
                got=f"{bytes_per_token} bytes a token",
                expected=f"{self.bytes_per_token}",
            )
        return BestFitSegments(capacity_bytes, self.rules)
