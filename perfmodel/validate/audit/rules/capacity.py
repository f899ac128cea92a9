"""Checks of what a replica can serve, and of an autoscaler's target against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from perfmodel.plan.autoscale import Autoscaler, batches_up_to, replica_capacity
from perfmodel.step.request import request_estimate
from perfmodel.validate.audit.base import Check, Desk, Ref
from perfmodel.validate.audit.rules.serving import times_text
from perfmodel.validate.audit.verdict import Finding, graded

__all__ = ["Capacity", "ScalesWith"]

_MOST_REPLICAS: Final = 1_000_000


class Capacity(Check):
    """Requests per second that one replica is said to serve."""

    kind: Literal["capacity"]
    setup: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the rate's place against the best batch, and the prompt length at which it could be reached."""
        yield _capacity_finding(self.kind, desk, self.setup, self.figure)


class ScalesWith(Check):
    """A horizontal autoscaler on requests per second of one replica: target, least and most replicas."""

    kind: Literal["autoscaler"]
    setup: str
    target: Ref
    min_replicas: Ref
    max_replicas: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the target's place against what a replica can serve, and where the count of replicas settles."""
        finding = _capacity_finding(self.kind, desk, self.setup, self.target)
        hpa = Autoscaler(
            min_replicas=desk.count(self.min_replicas, most=_MOST_REPLICAS),
            max_replicas=desk.count(self.max_replicas, most=_MOST_REPLICAS),
            target_requests_per_s=desk.value(self.target),
        )
        carried = hpa.carried(capacity_requests_per_s=finding.model)
        full = hpa.max_replicas * finding.model
        settles = (
            f"replicas of {finding.model:,.3g} requests/s never show {hpa.target_requests_per_s:g}: the count stays at "
            f"{hpa.min_replicas}, which carry {carried:,.3g} requests/s; {hpa.max_replicas} would carry {full:,.3g}"
            if carried < full
            else f"all {hpa.max_replicas} replicas come, and carry {full:,.3g} requests/s"
        )
        yield replace(finding, working=(*finding.working, settles))


def _capacity_finding(check: str, desk: Desk, setup: str, figure: Ref) -> Finding:
    """Return where a rate of requests stands against what one replica serves at its best batch."""
    case, stated = desk.case(setup), desk.value(figure)
    found = replica_capacity(case)
    best = found.requests_per_s
    # every prompt has to be read once, whatever the batch and the scheduler
    prompts_only = desk.case(setup, calibration="hard-bound", output_tokens=1)
    bound = replica_capacity(prompts_only).requests_per_s.value
    lengths = batches_up_to(case.workload.input_tokens)
    shorter = request_estimate(
        case.engine,
        batch=batches_up_to(found.most_batch)[:, None],
        input_tokens=lengths,
        output_tokens=1.0,
        token_budget=float(desk.answer(setup).memory.limits.max_num_batched_tokens),
    )
    fitting = lengths[np.asarray(shorter.requests_per_s).max(axis=0) >= stated]
    fits = (
        f"requests of at most {fitting[-1]:g} prompt tokens and one token of answer would reach it"
        if len(fitting)
        else "not even requests of one token in and one out would reach it"
    )
    return graded(
        check,
        figure.rpartition(".")[2],
        stated=stated,
        model=best.value,
        low=best.low,
        high=best.high,
        most=bound,
        inside="inside the model's band",
        cause=f"{times_text(stated, best.value)} the model; {fits}",
        bound=f"above the hard bound of {bound:,.3g} requests/s, which reading these prompts alone allows; {fits}",
        working=(f"best at batch {found.batch}: {best.value:,.3g} requests/s; hard bound {bound:,.3g}", fits),
    )
