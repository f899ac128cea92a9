"""Checks of instances that share devices: their speed, and where a resource is said to become scarce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from perfmodel.cost.contention import InstanceDemand, contended, instances_per_device
from perfmodel.step.instances import fixed_work_demand
from perfmodel.validate.audit.base import Check, Desk, MissingError, Ref, paired
from perfmodel.validate.audit.verdict import Finding, Verdict, graded

__all__ = ["InstanceSpeed", "Knee"]

_MOST_INSTANCES: Final = 1024


class InstanceSpeed(Check):
    """Rate of one of n instances of a network of fixed work, beside that of one alone."""

    kind: Literal["instance_speed"]
    network: str
    device: str
    batch: Annotated[int, Field(ge=1)] = 16
    n_instances: Ref
    n_devices: Ref
    rate: Ref
    alone: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the speed's place between all on one device and spread evenly over all of them."""
        demand = self._demand(desk)
        n, devices = (
            desk.count(self.n_instances, most=_MOST_INSTANCES),
            desk.count(self.n_devices, most=_MOST_INSTANCES),
        )
        here = instances_per_device(n, devices)
        packed, even = (float(contended(demand, count).speed_frac) for count in (n, here))
        speed = desk.value(self.rate) / desk.value(self.alone)
        yield graded(
            self.kind,
            "speed_frac",
            stated=speed,
            model=even,
            low=packed,
            high=even,
            most=1.0 + 1e-9,
            inside=f"between all {n} on one device ({100 * packed:.3g} %) and {here} on each ({100 * even:.3g} %)",
            cause=f"faster than the model with {here} on each device ({100 * even:.3g} %): instances idle at times"
            if speed > even
            else f"slower than the model with all {n} on one device ({100 * packed:.3g} %)",
            bound="faster beside others than alone",
            unstated="placement and batch",
            working=(
                f"rate {desk.value(self.rate):g} over {desk.value(self.alone):g} alone = {100 * speed:.3g} %",
                f"{self.network} at batch {self.batch} on {desk.device(self.device).title}",
                f"one alone keeps its busiest resource busy {100 * float(demand.busiest_s / demand.cycle_s):.0f} %",
            ),
        )

    def _demand(self, desk: Desk) -> InstanceDemand:
        work = desk.catalogue.fixed_work(self.network)
        if work is None:
            raise MissingError(f"{self.network} is no network of fixed work in the catalogue")
        device = desk.device(self.device)
        calibrated = desk.catalogue.calibration_for("auto", [device], "").for_device(device)
        return fixed_work_demand(work, calibrated, batch=float(self.batch))


class Knee(Check):
    """A number of instances beyond which a resource is said to be scarce, against the rates of each number."""

    kind: Literal["knee"]
    n_instances: Annotated[tuple[Ref, ...], Field(min_length=3)]
    rates: Annotated[tuple[Ref, ...], Field(min_length=3)]
    knee: Ref

    @model_validator(mode="after")
    def _points_pair(self) -> Knee:
        paired(n_instances=self.n_instances, rates=self.rates)
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether a further instance costs ever more beyond the knee, as a resource that fills makes it.

        The cycle of one is 1 / rate. With fixed demands the cost of a further instance never falls, and is least before
        the scarce resource is full (mean values of a closed network).
        """
        n = np.array([desk.value(ref) for ref in self.n_instances])
        cycles = desk.value(self.rates[0]) / np.array([desk.value(ref) for ref in self.rates])
        costs = np.diff(cycles) / np.diff(n)
        knee = desk.value(self.knee)
        falls = bool((np.diff(costs) < 0.0).any())
        beyond = [cost for cost, start in zip(costs, n[:-1], strict=True) if start >= knee]
        listed = ", ".join(
            f"{100 * cost:.1f} % from {a:g} to {b:g}" for cost, a, b in zip(costs, n[:-1], n[1:], strict=True)
        )
        yield Finding(
            check=self.kind,
            verdict=Verdict.CONTRADICTS_ITSELF if falls else Verdict.REPRODUCED,
            reason=f"by its own rates a further instance costs {listed} of one's cycle: "
            + ("less at the end, where a full resource would make it cost more" if falls else "ever more"),
            name=self.knee.rpartition(".")[2],
            stated=knee,
            working=(listed, f"intervals beyond {knee:g}: {len(beyond)}"),
        )
