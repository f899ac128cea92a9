"""Speed of the KV allocators: a million sequences of 20,000 to 32,000 tokens pass through a pool of 200 GiB."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from perfmodel.serving.churn import simulated_fragmentation
from perfmodel.serving.kv_policy import BestFit, Fixed, KvPolicy, Paged, Window
from perfmodel.serving.lengths import uniform
from perfmodel.specs.catalogue import Catalogue, builtin_home

N, MOST_S, TOKEN = 1_000_000, 10.0, 131_072
RULES = Catalogue((builtin_home(),)).allocator("pytorch")
POLICIES = (Fixed(32_000), Paged(16), Window(4096, 128), BestFit(RULES, TOKEN))


def simulated_s(policy: KvPolicy) -> float:
    """Return the processor time of a million allocations and as many releases."""
    rng = np.random.default_rng(0)
    lengths = uniform(20_000, 32_000).drawn(N, rng)
    pool = policy.allocator(200 * 2**30, bytes_per_token=TOKEN)
    start = time.process_time()
    found = simulated_fragmentation(pool, lengths, bytes_per_token=TOKEN, rng=rng)
    assert found.n_allocations == N
    return time.process_time() - start


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_a_million_allocations(benchmark: Any, policy: KvPolicy) -> None:
    assert benchmark.pedantic(simulated_s, (policy,), rounds=1) < MOST_S
