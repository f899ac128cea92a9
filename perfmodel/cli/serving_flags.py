"""The flags of a simulation that say how the engine schedules and what several replicas are to each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from perfmodel.cli.groups import FlagGroup, flag, refuse_unused
from perfmodel.cli.values import choice, given, number, numbers, whole
from perfmodel.errors import SpecError
from perfmodel.serving.fleet_setup import Failure
from perfmodel.serving.options import ServingOptions
from perfmodel.serving.queues import ORDERS
from perfmodel.serving.records import NEVER
from perfmodel.serving.routing import ROUTINGS
from perfmodel.serving.scheduler import BatchWindow
from perfmodel.units import GB, MEGA, NS_PER_S

__all__ = ["SERVING"]

_SCHEDULER, _REPLICAS = "Scheduler", "Replicas"
_FAILURE = re.compile(r"(\d+)@([0-9.eE+-]+?)(?:\+([0-9.eE-]+))?")
_MOST_S: Final = 1e8

_FLAGS: Final[Mapping[str, tuple[Any, Any]]] = {
    "order": flag(
        _SCHEDULER,
        "fcfs, sjf (shortest first, lengths known) or priority. Also --scheduling-policy.",
        "--order",
        metavar="TEXT",
        default="fcfs",
    ),
    "prefix_caching": flag(
        _SCHEDULER,
        "Prompts find what others have read; as the engine does without it. Also --enable-prefix-caching, "
        "--no-enable-prefix-caching.",
        "--prefix-caching",
        metavar="on|off",
    ),
    "preemption_mode": flag(
        _SCHEDULER,
        "recompute, or swap to the host memory of --swap-space.",
        "--preemption-mode",
        metavar="TEXT",
        default="recompute",
    ),
    "max_queue_delay": flag(
        _SCHEDULER,
        "Longest time that a request waits for others to be batched with.",
        "--max-queue-delay",
        metavar="MS",
    ),
    "preferred_batch": flag(
        _SCHEDULER,
        "Requests for which a batch waits no longer: max-num-seqs without.",
        "--preferred-batch",
        metavar="N",
    ),
    "routing": flag(
        _REPLICAS, f"Among replicas: {', '.join(ROUTINGS)}.", "--routing", metavar="TEXT", default="round-robin"
    ),
    "prefill_replicas": flag(
        _REPLICAS, "Replicas that only read prompts, each like the one named.", "--prefill-replicas", metavar="N"
    ),
    "decode_replicas": flag(_REPLICAS, "Replicas that only decode.", "--decode-replicas", metavar="N"),
    "kv_link_bandwidth": flag(
        _REPLICAS,
        "Of a rank's way from prefill to decode; the system's without.",
        "--kv-link-bandwidth",
        metavar="GB/S",
    ),
    "kv_link_latency": flag(_REPLICAS, "Latency of that way.", "--kv-link-latency", metavar="US"),
    "separate_ranks": flag(
        _REPLICAS,
        "Data-parallel ranks have KV pools of their own and wait for the busiest, rather than share evenly.",
        "--separate-ranks",
        default=False,
    ),
    "instances_per_device": flag(_REPLICAS, "Instances that share each device.", "--instances-per-device", metavar="N"),
    "slowdowns": flag(
        _REPLICAS,
        "How much longer steps of 1, 2, ... instances at once take, e.g. 1,1.7; from the contention model without.",
        "--slowdowns",
        metavar="X,..",
    ),
    "fail": flag(
        _REPLICAS,
        "Failures, as replica@second+seconds until it is back, e.g. 0@60+30; without the last part it stays away.",
        "--fail",
        metavar="R@S+S,..",
    ),
    "on_failure": flag(
        _REPLICAS, "retry or lose the requests of a failed replica.", "--on-failure", metavar="TEXT", default="retry"
    ),
}


def _options(flags: Mapping[str, Any]) -> ServingOptions:
    choice("--order", flags["order"], ORDERS)
    choice("--routing", flags["routing"], tuple(ROUTINGS))
    mode = choice("--preemption-mode", flags["preemption_mode"], ("recompute", "swap"))
    caching = flags["prefix_caching"]
    if caching is not None:
        caching = choice("--prefix-caching", caching, ("on", "off")) == "on"
    apart = flags["prefill_replicas"] is not None
    links = ("kv_link_bandwidth", "kv_link_latency")
    refuse_unused(SERVING, flags, links, used=apart, beside="--prefill-replicas and --decode-replicas")
    refuse_unused(SERVING, flags, ("on_failure",), used=bool(flags["fail"]), beside="--fail")
    shared = flags["instances_per_device"] is not None
    refuse_unused(SERVING, flags, ("slowdowns",), used=shared, beside="--instances-per-device")
    bandwidth = given("--kv-link-bandwidth", flags["kv_link_bandwidth"], low=1e-6, high=1e6)
    latency = given("--kv-link-latency", flags["kv_link_latency"], low=0.0, high=1e9)
    return ServingOptions(
        order=flags["order"],
        routing=flags["routing"],
        prefix_cache=caching,
        swaps=mode == "swap",
        window=_window(flags["max_queue_delay"], flags["preferred_batch"]),
        n_prefill=whole("--prefill-replicas", flags["prefill_replicas"]) or 0,
        n_decode=whole("--decode-replicas", flags["decode_replicas"]) or 0,
        link_bytes_per_s=None if bandwidth is None else bandwidth * GB,
        link_latency_s=None if latency is None else latency / MEGA,
        failures=_failures(flags["fail"], choice("--on-failure", flags["on_failure"], ("retry", "lose"))),
        separate_ranks=flags["separate_ranks"],
        n_instances=whole("--instances-per-device", flags["instances_per_device"]) or 1,
        slowdowns=tuple(numbers("--slowdowns", flags["slowdowns"], low=1.0, high=1e6)),
    )


def _window(delay_ms: str | None, preferred: str | None) -> BatchWindow | None:
    if delay_ms is None and preferred is None:
        return None
    if delay_ms is None:
        raise SpecError("a batch has no window", where="--preferred-batch", cure="Give --max-queue-delay too.")
    delay_ns = round(number("--max-queue-delay", delay_ms, low=0.0, high=1e3 * _MOST_S) / 1e3 * NS_PER_S)
    return BatchWindow(delay_ns=delay_ns, preferred=whole("--preferred-batch", preferred) or NEVER)


def _failures(text: str | None, then: str) -> tuple[Failure, ...]:
    found = []
    for part in text.split(",") if text else ():
        match = _FAILURE.fullmatch(part.strip())
        if match is None:
            raise SpecError(
                "a flag cannot be used",
                where="--fail",
                got=repr(part),
                expected="replica@second, or replica@second+seconds",
            )
        at_s = number("--fail", match[2], low=0.0, high=_MOST_S)
        back_ns = NEVER
        if match[3] is not None:
            back_ns = round((at_s + number("--fail", match[3], low=1e-9, high=_MOST_S)) * NS_PER_S)
        chosen: Literal["retry", "lose"] = "retry" if then == "retry" else "lose"
        found.append(Failure(replica=int(match[1]), at_ns=round(at_s * NS_PER_S), back_ns=back_ns, then=chosen))
    return tuple(found)


SERVING: Final = FlagGroup(_FLAGS, _options)
