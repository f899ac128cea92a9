"""What address translation costs: walks of the page table for pages that the translation buffer does not cover.

    walks      = bytes / page x missed          missed = max(1 - reach / working set, 0)
    time added = walks x walk_s / n_walkers     n_walkers cores walk beside each other

A buffer with random replacement over a working set that is read round and round keeps `reach` of it; with strict
least-recently-used replacement everything misses once the set is larger, so that `missed` is a lower bound beyond the
reach. Nothing of a walk is taken to be hidden by prefetching: an upper bound. Between the two stands the hardware.
Source: the hit rate of a random-replacement cache under cyclic reads.
"""

from __future__ import annotations

from perfmodel.estimate import TINY, Bound, Estimate, Law, Num, larger, leaf

__all__ = ["missed_frac", "page_walk_share", "page_walk_time"]

WALK = Law("bytes / page_bytes x missed_frac x walk_s / n_walkers", "hit rate under cyclic reads")


def missed_frac(*, working_set_bytes: Num, reach_bytes: Num) -> Num:
    """Return the share of pages whose translation is not held; 0 while the working set is within reach.

    >>> missed_frac(working_set_bytes=8.0, reach_bytes=2.0), missed_frac(working_set_bytes=1.0, reach_bytes=2.0)
    (0.75, 0.0)
    """
    return larger(1.0 - reach_bytes / (working_set_bytes + TINY), 0.0)


def page_walk_time(
    *, n_bytes: Num, working_set_bytes: Num, page_bytes: Num, reach_bytes: Num, walk_s: Num, n_walkers: Num
) -> Estimate:
    """Return the time that walks add to reading `n_bytes` of a working set that is read over and over."""
    missed = missed_frac(working_set_bytes=working_set_bytes, reach_bytes=reach_bytes)
    return leaf(
        "page_walks",
        n_bytes / page_bytes * missed * walk_s / n_walkers,
        bound=Bound.WEIGHT_READ,
        law=WALK,
        inputs=(
            ("bytes", n_bytes),
            ("page_bytes", page_bytes),
            ("missed_frac", missed),
            ("walk_s", walk_s),
            ("n_walkers", n_walkers),
        ),
    )


def page_walk_share(*, bytes_per_s: Num, page_bytes: Num, walk_s: Num, n_walkers: Num, missed_frac: Num) -> Num:
    """Return what walks add to the time of streaming from memory, as a share of it.

    2 MiB pages, 24 cores, half a microsecond a walk at 1.6 TB/s:

    >>> round(page_walk_share(bytes_per_s=1.6e12, page_bytes=2.0**21, walk_s=5e-7, n_walkers=24.0, missed_frac=1.0), 4)
    0.0159
    """
    return missed_frac * walk_s * bytes_per_s / (page_bytes * n_walkers)
