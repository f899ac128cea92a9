"""Predictions for rows of single kernels and single collectives: one array for each kernel class or fabric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

import numpy as np

from perfmodel.cost.kernel import KernelPrices
from perfmodel.cost.network import NetworkPrices
from perfmodel.errors import PerfmodelError
from perfmodel.measure.operator_work import operator_rows
from perfmodel.measure.table import Table
from perfmodel.validate.parts import Found, Parts, Positions, found_of, grouped, refused
from perfmodel.validate.wiring import wired_system
from perfmodel.work.kernel import Collective, Message

__all__ = ["OPERATOR_KINDS", "collective_predictions", "operator_predictions"]

OPERATOR_KINDS: Final = ("gemm", "attention", "mla_attention", "moe_ffn", "elementwise")
_OPS: Final = {
    **{op: op for op in get_args(Collective)},
    "send_recv": "point_to_point", "sendrecv": "point_to_point", "p2p": "point_to_point", "alltoall": "all_to_all",
    "ep_dispatch": "all_to_all", "ep_combine": "all_to_all", "ep_dispatch_fp8": "all_to_all",
    "ep_combine_bf16": "all_to_all",
}  # fmt: skip


def operator_predictions(parts: Parts, table: Table, at: Positions) -> Iterator[Found]:
    """Yield predictions of the kernels at `at`, class by class; what no kernel law counts is refused last."""
    asked = table.selected(at)
    numbered = {
        **asked.columns,
        "id": np.array([*map(str, at), None], dtype=object)[:-1],
        "metric": np.full(len(at), "time_s", dtype=object),
        "value": np.ones(len(at)),
    }
    left = np.ones(len(table), dtype=bool)
    for rows in operator_rows(Table(numbered, len(at))):
        here = rows.ids.astype(np.intp)
        if not len(here):
            continue
        left[here] = False
        try:
            device = parts.catalogue.device(rows.device)
            calibration = parts.coefficients(device, parts.engine(rows.runtime))
            tree = KernelPrices(calibration.for_device(device)).time(rows.work)
        except PerfmodelError as error:
            yield refused(here, str(error))
            continue
        yield found_of(here, tree, calibration.name)
    for words, here in grouped(table, at[left[at]], ("kind", "op", "compute_dtype", "quantization")):
        stated = ", ".join(f"{name} {word}" for name, word in words.items() if word and name != "kind")
        yield refused(here, f"no kernel law counts {words['kind']} rows with {stated or 'these columns'}")


def collective_predictions(parts: Parts, table: Table, at: Positions) -> Iterator[Found]:
    """Yield predictions of the collectives at `at`, fabric by fabric."""
    for words, here in grouped(table, at, ("device", "n_devices", "link", "op", "runtime", "variant")):
        if words["variant"] == "eager":
            yield refused(
                here, "launched eagerly: the host time of the launch hides the collective, and no law prices it"
            )
            continue
        op = _OPS.get(words["op"])
        if op is None:
            yield refused(here, f"no law for a collective {words['op']!r}: {', '.join(sorted(_OPS))} are known")
            continue
        n = int(float(words["n_devices"]))
        try:
            device = parts.catalogue.device(words["device"])
            calibration = parts.coefficients(device, parts.engine(words["runtime"]))
            system = wired_system(parts.catalogue, device, n, words["link"])
            prices = NetworkPrices(system, calibration.for_device(device))
            ranks = 2 if op == "point_to_point" else n
            tree = prices.time(Message(op, op, table["message_bytes"][here], ranks))
        except PerfmodelError as error:
            yield refused(here, str(error))
            continue
        remark = f"wired as {system.name}" if system is not None else ""
        yield found_of(here, tree, calibration.name, remark)
