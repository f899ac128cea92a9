"""The load that a client put on a deployment, as far as its result tells, and the traffic that repeats it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.serving_run import ServingRun
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.traffic import Traffic

__all__ = ["Load", "load_of"]

_WAVES: Final = 10
"""Requests for each slot of a closed loop where the result does not tell how many were sent."""
_MOST_REQUESTS: Final = 5000
"""Requests of the repeated run: beyond that only its length grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one mean length. `requests_per_s` None: all at once, held back by `max_in_flight` alone."""

    n_requests: int
    input_tokens: int
    output_tokens: int
    requests_per_s: float | None = None
    burstiness: float = 1.0
    max_in_flight: int | None = None
    assumed: tuple[str, ...] = ()

    def trace(self, *, seed: int = 0) -> Trace:
        """Return traffic that repeats the load."""
        return Traffic(
            n_requests=self.n_requests,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            requests_per_s=self.requests_per_s,
            burstiness=self.burstiness,
            max_in_flight=self.max_in_flight,
            seed=seed,
        ).trace()


def load_of(run: ServingRun, *, input_tokens: float | None = None, output_tokens: float | None = None) -> Load:
    """Return the load behind a result; lengths are taken as given where the result does not hold them.

    Raises MeasurementError where the lengths are unknown.
    """
    assumed: list[str] = []
    inputs, outputs = run.mean_input_tokens or input_tokens, run.mean_output_tokens or output_tokens
    lacking = [name for name, tokens in (("--isl", inputs), ("--osl", outputs)) if not tokens]
    if not inputs or not outputs:
        raise MeasurementError(
            "the result does not say how long its requests are", expected=" and ".join(lacking), cure="State them."
        )
    users = int(run.max_concurrency) if run.max_concurrency and isfinite(run.max_concurrency) else None
    rate = run.request_rate_per_s
    if rate is not None and not isfinite(rate):
        rate = None
    if rate is None and users is None and run.request_rate_per_s is None:
        assumed.append("all requests sent at once (the result names neither a rate nor a concurrency)")
    n = int(run.n_asked or run.completed or 0)
    if not n:
        n = _WAVES * (users or 100)
        assumed.append(f"{n} requests (the result does not say how many)")
    if n > _MOST_REQUESTS:
        assumed.append(f"the first {_MOST_REQUESTS} of {n} requests repeated")
        n = _MOST_REQUESTS
    return Load(
        n_requests=n,
        input_tokens=max(1, round(inputs)),
        output_tokens=max(1, round(outputs)),
        requests_per_s=rate or None,
        burstiness=_burstiness(run.extra.get("burstiness")),
        max_in_flight=users,
        assumed=tuple(assumed),
    )


def _burstiness(stated: Any) -> float:
    return float(stated) if isinstance(stated, (int, float)) and isfinite(stated) and stated > 0 else 1.0
