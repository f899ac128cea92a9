"""Start-up time and bandwidth share of one kind of link, fitted to collective measurements with the simulator's law.

How the rows and the prior are weighed is said in `damped`. Message sizes are left out in turn, all groups of one size
together, to state the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.network import NetworkPrices
from perfmodel.errors import FitError, InfeasibleError
from perfmodel.fit.damped import Floats, Search, covered_rows, scatter_of, solved
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import LARGEST_SD, CalibratedDevice, Calibration, Coef, CollectiveFit, FitRecord
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.rules import FittingRules
from perfmodel.specs.system import System
from perfmodel.work.kernel import Collective, Message

__all__ = ["CollectiveRows", "FittedCollective", "collective_rows", "fitted_collective"]

LEAST_ROWS: Final = 12
N_SIZE_FOLDS: Final = 6
_OPS: Final[tuple[Collective, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_KIND_OF_LINK: Final = {"nvswitch": "nvlink", "nvlink": "nvlink", "hccs": "hccs", "ub": "ub", "pcie": "pcie-p2p"}
"""What a table calls a fabric, and the kind of link that a system file calls it."""
_RING: Final = ("start_s", "hop_s", "bandwidth_frac", "pair_excess", "knee")
"""What is fitted for a library that sends round a ring; with in-switch addition also switch_frac."""
_DIRECT: Final = ("start_s", "peer_s", "bandwidth_frac", "one_shot_frac", "second_shot_s", "knee")
"""What is fitted for the all-reduce kernels of an engine, which read all peers at once."""
_LIBRARIES: Final = ("nccl", "hccl", "rccl")


@dataclass(frozen=True, slots=True)
class CollectiveRows:
    """Collectives over one kind of link on one device under one runtime, size by size."""

    device: Device
    runtime: str
    kind: str
    systems: tuple[System | None, ...]
    ops: tuple[Collective, ...]
    n_devices: tuple[int, ...]
    group: NDArray[np.intp]
    """For each row, which of the groups above (operation and number of devices) it belongs to."""
    n_bytes: Floats
    time_s: Floats
    ids: NDArray[np.str_]

    def selected(self, mask: NDArray[np.bool_]) -> CollectiveRows:
        """Return the rows for which the mask is true."""
        return replace(
            self, group=self.group[mask], n_bytes=self.n_bytes[mask], time_s=self.time_s[mask], ids=self.ids[mask]
        )


@dataclass(frozen=True, slots=True)
class FittedCollective:
    """A fit of one kind of link, how it was made, and its errors on groups left out."""

    kind: str
    fit: CollectiveFit
    record: FitRecord
    left_out_errors: Floats
    left_out_covered: NDArray[np.bool_]
    prior_errors: Floats
    """The same with the prior's coefficients, which have seen none of the rows."""


def collective_rows(table: Table, device: Device, catalogue: Catalogue) -> Iterator[CollectiveRows]:
    """Yield the collectives of a device by runtime and kind of link, without eager launches and unknown fabrics."""
    usable = (table["kind"] == "collective") & (table["metric"] == "time_s") & (table["device"] == device.name)
    usable &= np.isin(table["op"], _OPS) & (table["n_devices"] > 1)
    usable &= (table["value"] > 0) & (table["message_bytes"] > 0)
    usable &= np.isin(table["link"], list(_KIND_OF_LINK)) & (table["variant"] != "eager")
    found = table.selected(usable)
    for runtime in sorted(set(found["runtime"])):
        of_runtime = found.selected(found["runtime"] == runtime)
        for link in sorted(set(of_runtime["link"])):
            part = of_runtime.selected(of_runtime["link"] == link)
            labels = [(op, int(n)) for op, n in zip(part["op"], part["n_devices"], strict=True)]
            groups = sorted(set(labels))
            systems = tuple(catalogue.usual_system(device, n) for _, n in groups)
            if any(s is None or s.fabrics[0].kind != _KIND_OF_LINK[link] for s in systems):
                continue
            yield CollectiveRows(
                device, runtime, _KIND_OF_LINK[link], systems, tuple(op for op, _ in groups),
                tuple(n for _, n in groups), np.array([groups.index(label) for label in labels], dtype=np.intp),
                part["message_bytes"], part["value"], part["id"].astype(str),
            )  # fmt: skip


def _names(rows: CollectiveRows) -> tuple[str, ...]:
    """Return the parameters of the form that the software of the rows has."""
    if not rows.runtime.startswith(_LIBRARIES):
        return _DIRECT
    adds_in_switch = any(
        op == "all_reduce" and n > 2 and system is not None and system.fabrics[0].reduces_in_switch
        for op, n, system in zip(rows.ops, rows.n_devices, rows.systems, strict=True)
    )
    return (*_RING, "switch_frac") if adds_in_switch else _RING


def _fit_of(names: tuple[str, ...], logs: Floats) -> CollectiveFit:
    return CollectiveFit(**{name: Coef(value=float(v)) for name, v in zip(names, np.exp(logs), strict=True)})


def _predicted(rows: CollectiveRows, fit: CollectiveFit) -> Floats:
    bare = Calibration(name="fit", status="fit")
    calibrated = CalibratedDevice(rows.device, bare, "fit", {}, {rows.kind: fit})
    times = np.zeros(len(rows.time_s))
    for i in np.unique(rows.group):
        mask = rows.group == i
        message = Message("collective", rows.ops[i], rows.n_bytes[mask], rows.n_devices[i])
        times[mask] = NetworkPrices(rows.systems[i], calibrated).time(message).value
    return times


def _solved(rows: CollectiveRows, centre: Floats, rules: FittingRules) -> tuple[Floats, Floats]:
    names = _names(rows)
    known = [rules.collectives[name] for name in names]
    low, high = np.log([(rule.low, rule.high) for rule in known]).T
    search = Search(centre, np.array([rule.log_sd for rule in known]), low, high, margin=1e-3)
    return solved(lambda logs: _predicted(rows, _fit_of(names, logs)), rows.time_s, centre, search)


def _folds(rows: CollectiveRows) -> NDArray[np.intp]:
    """Return the fold of each row: message sizes are left out, all groups of one size together."""
    _, of_row = np.unique(rows.n_bytes, return_inverse=True)
    return np.asarray(of_row % N_SIZE_FOLDS, dtype=np.intp)


def fitted_collective(
    rows: CollectiveRows, prior: CollectiveFit, rules: FittingRules, *, source: str, leave_out: bool = True
) -> FittedCollective:
    """Return the fitted coefficients of one kind of link; raises FitError where there are too few rows.

    Without `leave_out` the errors are those of the rows fitted: quicker, and too good.
    """
    n_rows = len(rows.time_s)
    if n_rows < LEAST_ROWS:
        raise FitError(
            f"{rows.kind} on {rows.device.name}: too few rows to fit",
            got=str(n_rows),
            expected=f"at least {LEAST_ROWS}",
        )
    names = _names(rows)
    centre = np.log(
        [prior.start_s.value if name == "start_s" else rules.collectives[name].centre or 1.0 for name in names]
    )
    try:
        logs, covariance = _solved(rows, centre, rules)
    except InfeasibleError as error:
        raise FitError(f"{rows.kind} on {rows.device.name}: {error}") from error
    fold_of, errors = _folds(rows), _predicted(rows, _fit_of(names, logs)) / rows.time_s - 1.0
    for fold in np.unique(fold_of) if leave_out else ():
        out = fold_of == fold
        left, _ = _solved(rows.selected(~out), centre, rules)
        errors[out] = _predicted(rows.selected(out), _fit_of(names, left)) / rows.time_s[out] - 1.0
    covered = covered_rows(errors, fold_of)
    sds = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    coefs = {
        name: Coef(value=float(np.exp(log)), rel_sd=float(min(sd, LARGEST_SD)), source=source)
        for name, log, sd in zip(names, logs, sds, strict=True)
    }
    lines = sorted(f"{row_id},{time:.9g}" for row_id, time in zip(rows.ids, rows.time_s, strict=True))
    record = FitRecord(
        runtime=rows.runtime,
        n_rows=n_rows,
        n_groups=len(rows.ops),
        left_out_median_frac=float(np.median(np.abs(errors))),
        left_out_p90_frac=float(np.quantile(np.abs(errors), 0.9)),
        left_out_covered_frac=float(np.mean(covered)),
        data_sha256=sha256("\n".join(lines).encode()).hexdigest(),
        ranges={"message_bytes": (float(rows.n_bytes.min()), float(rows.n_bytes.max()))},
        parameters=names,
        log_covariance=tuple(tuple(float(c) for c in line) for line in covariance),
    )
    fit = CollectiveFit(**coefs, scatter=Coef(value=scatter_of(errors), source=source))
    prior_errors = _predicted(rows, prior) / rows.time_s - 1.0
    return FittedCollective(rows.kind, fit, record, errors, covered, prior_errors)
