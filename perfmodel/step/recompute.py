"""Ways to have the keys and values of cached tokens: kept and read, computed anew, or brought back from the host.

Each way says what it holds in device memory for one token, and how long it takes for `n_tokens` of one sequence over
all layers of a rank. Kept ones are read in every decode step; reading the prompt again and the host link are paid once,
when a sequence comes back. Source of the alternatives: PagedAttention's swapping and recomputation (preemption), and
activation recomputation from stored layer inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from perfmodel.bisection import turn
from perfmodel.cost.host import offload_time
from perfmodel.estimate import TINY, Estimate, Num, repeated, total
from perfmodel.specs.model import LatentAttention, Layer, SoftmaxAttention
from perfmodel.step.request import prefill_slice
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Work
from perfmodel.work.kv import kv_elements_per_token
from perfmodel.work.matmul import matmul_of
from perfmodel.work.tensors import attention_tensors

__all__ = ["KvWay", "break_even_flop_per_byte", "break_even_tokens", "kv_ways"]

_REL_WIDTH: Final = 1e-12
_KEY_VALUE: Final = frozenset({"k_proj", "v_proj", "kv_a_proj"})


class KvWay(NamedTuple):
    """One way: bytes of device memory that a token holds meanwhile, and the time for all tokens.

    `flop_per_token` is the arithmetic of the ways that compute in each step, 0 for the others. `paid` says how often:
    in each decode step, or once when the sequence returns.
    """

    name: str
    paid: Literal["each step", "once"]
    held_bytes_per_token: float
    flop_per_token: float
    n_tokens: Num
    time: Estimate

    @property
    def s_per_token(self) -> Num:
        """Time for one token."""
        return self.time.value / (self.n_tokens + TINY)


def _read(engine: Engine, layer: Layer, n_tokens: Num) -> tuple[float, Work]:
    setup = engine.setup
    held = kv_elements_per_token(layer, tp=setup.layout.tp) * setup.kv_element_bytes
    kernel = "mla/decode" if isinstance(layer.attention, LatentAttention) else "attention/decode"
    return held, Work("read_cache", kernel, setup.dtype, kv_bytes=n_tokens * held)


def _project(engine: Engine, layer: Layer, n_tokens: Num) -> tuple[float, Iterator[Work]]:
    """Return the projections of stored layer inputs to keys and values (to the latent, for MLA)."""
    setup = engine.setup
    own = [t for t in attention_tensors(layer.attention, setup.model.d_model) if t.name in _KEY_VALUE]
    return setup.model.d_model * setup.element_bytes, (matmul_of(t, setup).work(n_tokens) for t in own)


def _expand(engine: Engine, layer: Layer, n_tokens: Num) -> Iterator[Work]:
    """Return the expansion of the latent to the keys and values of all heads."""
    own = next(t for t in attention_tensors(layer.attention, engine.setup.model.d_model) if t.name == "kv_b_proj")
    yield matmul_of(own, engine.setup).work(n_tokens)


def _flop_per_token(works: Iterator[Work]) -> float:
    """Return the arithmetic of works that were counted for one token."""
    return sum(float(work.flop) for work in works)


def break_even_flop_per_byte(ways: Sequence[KvWay]) -> float | None:
    """Return the flop for each byte of memory traffic that a device must do for projecting to beat reading.

    None where stored layer inputs are no smaller than what they give: then projecting never pays. Weights and starts of
    kernels are left out, so that the true figure is higher.
    """
    named = {way.name: way for way in ways}
    kept, inputs = named["keep and read"], named["keep layer inputs, project"]
    saved = kept.held_bytes_per_token - inputs.held_bytes_per_token
    return inputs.flop_per_token / saved if saved > 0.0 else None


def kv_ways(engine: Engine, n_tokens: Num) -> tuple[KvWay, ...]:
    """Return every way for `n_tokens` cached tokens of one sequence on a rank of the first stage.

    Layers without keys and values (linear attention) take no part. The host link is left out where the device file
    lists none.
    """
    setup, stage = engine.setup, engine.stages[0]
    prices = stage.kernels
    layers = [
        (layer, float(n))
        for layer, n in setup.model.layer_counts(0, stage.blueprint.n_layers)
        if isinstance(layer.attention, (SoftmaxAttention, LatentAttention))
    ]
    reads: list[Estimate] = []
    projected: list[Estimate] = []
    expanded: list[Estimate] = []
    held = held_inputs = project_flop = expand_flop = 0.0
    for layer, n in layers:
        own, work = _read(engine, layer, n_tokens)
        inputs, works = _project(engine, layer, n_tokens)
        held, held_inputs = held + n * own, held_inputs + n * inputs
        project_flop += n * _flop_per_token(_project(engine, layer, 1.0)[1])
        reads.append(repeated("read", prices.time(work), n))
        projected.append(repeated("project", total("project", tuple(prices.time(w) for w in works)), n))
        if isinstance(layer.attention, LatentAttention):
            made = total("expand", tuple(prices.time(w) for w in _expand(engine, layer, n_tokens)))
            expanded.append(repeated("expand", made, n))
            expand_flop += n * _flop_per_token(_expand(engine, layer, 1.0))
    ways = [KvWay("keep and read", "each step", held, 0.0, n_tokens, total("read", tuple(reads)))]
    if expanded:
        ways.append(
            KvWay(
                "keep latents, expand", "each step", held, expand_flop, n_tokens, total("expand", (*reads, *expanded))
            )
        )
    ways.append(
        KvWay(
            "keep layer inputs, project",
            "each step",
            held_inputs,
            project_flop,
            n_tokens,
            total("project", tuple(projected)),
        )
    )
    again = tuple(engine.stage_step(one, (prefill_slice(1.0, n_tokens, n_steps=1.0),)) for one in engine.stages)
    ways.append(KvWay("read the prompt again", "once", 0.0, 0.0, n_tokens, total("prefill", again)))
    link = prices.device.device.host_link
    if link is not None:
        frac = prices.device.collective(link.kind).bandwidth
        one = offload_time(held, bytes_per_s=link.bandwidth_per_direction.value, bandwidth_frac=frac)
        ways.append(KvWay("bring back from the host", "once", 0.0, 0.0, n_tokens, repeated("swap", one, n_tokens)))
    return tuple(ways)


def break_even_tokens(
    first: Callable[[float], float], second: Callable[[float], float], *, most_tokens: float
) -> float | None:
    """Return the least number of tokens at which the quicker of two ways changes, None where it never does.

    Both are times over tokens; they are compared at powers of two up to `most_tokens`, and the change between two of
    them is found by bisection.

    >>> round(break_even_tokens(lambda n: 10 + n, lambda n: 2 * n, most_tokens=1000) or 0, 3)
    10.0
    """

    def lead(n_tokens: float) -> float:
        return first(n_tokens) - second(n_tokens)

    grid = [2.0**i for i in range(int(np.log2(most_tokens)) + 1)]
    change = next((pair for pair in pairwise(grid) if (lead(pair[0]) > 0.0) != (lead(pair[1]) > 0.0)), None)
    if change is None:
        return None
    is_behind = lead(change[0]) > 0.0
    return turn(lambda n: (lead(n) > 0.0) == is_behind, *change, rel_width=_REL_WIDTH)[1]
