"""Work and messages cut into groups: while one group's message is sent, the next group is computed.

    one after the other   g (c + m)
    overlapped            c + (g - 1) max(c, m) + m

with c and m the compute and the message of one group. More groups hide more of the message, and pay its start and the
launches g times. Sending is taken to need no core: where it does, the truth lies between the two.
"""

from __future__ import annotations

from perfmodel.errors import SpecError
from perfmodel.estimate import TINY, Estimate, Num, repeated, slowest, total

__all__ = ["grouped_time", "share_after", "time_ratio_behind"]


def grouped_time(name: str, compute: Estimate, message: Estimate, n_groups: int, *, overlap: bool = True) -> Estimate:
    """Return the time of all groups, given compute and message of one.

    >>> from perfmodel.estimate import Bound, leaf
    >>> c, m = leaf("c", 2.0, bound=Bound.COMPUTE), leaf("m", 3.0, bound=Bound.LINK)
    >>> grouped_time("g", c, m, 4).value, grouped_time("g", c, m, 4, overlap=False).value
    (14.0, 20.0)
    """
    if n_groups < 1:
        raise SpecError("the work cannot be grouped", got=f"{n_groups} groups", expected="at least 1")
    if n_groups == 1:
        return total(name, (compute, message))
    if not overlap:
        return repeated(name, total("group", (compute, message)), float(n_groups))
    beside = repeated("groups_side_by_side", slowest("beside", (compute, message)), float(n_groups - 1))
    return total(name, (compute, beside, message))


def share_after(share_frac: Num, time_ratio_frac: Num) -> Num:
    """Return the share of a part in the whole once it takes `time_ratio_frac` times as long and the rest stays.

    Doubling what takes 18 % gives 0.36 / 1.18 = 30.5 %.

    >>> round(share_after(0.18, 2.0), 4)
    0.3051
    """
    grown = share_frac * time_ratio_frac
    return grown / (1.0 - share_frac + grown)


def time_ratio_behind(share_before_frac: Num, share_after_frac: Num) -> Num:
    """Return by how much a part must have grown, the rest unchanged, for its share to go from one to the other.

    >>> round(time_ratio_behind(0.18, 0.31), 4)
    2.0467
    """
    before = share_before_frac / (1.0 - share_before_frac + TINY)
    return share_after_frac / (1.0 - share_after_frac + TINY) / (before + TINY)
