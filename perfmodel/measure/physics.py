"""Measurements against physics: no decode step faster than its weights, no matmul above the peak.

A row beyond its bound is reported and can be marked suspect. It is never dropped in silence: the fault may lie in a
catalogue entry, in a wrong device, or in a condition that the row does not state (speculation, a prefix cache).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.measure.csv_io import read_table
from perfmodel.measure.floors import DeviceFloor, Floors, ModelFloor, beyond_cache, element_bytes
from perfmodel.measure.schema import KINDS, USABLE
from perfmodel.measure.table import Table, near
from perfmodel.measure.text import listed
from perfmodel.specs.catalogue import Catalogue

__all__ = [
    "SLACK_FRAC",
    "Finding",
    "PhysicsReport",
    "checked_table",
    "implied_prefill_finding",
    "physics_notes",
    "physics_report",
    "with_suspects",
]

Array = NDArray[np.float64]
SLACK_FRAC: Final = 0.05
"""Share by which a row may beat its bound before it is reported: rounded figures and timer ticks."""
_MOST_NOTED: Final = 3
_OTHER_UNIT: Final = 100.0
"""A row that beats its bound so many times was hardly written in base units."""

_MLA_LATENT: Final = 576
"""Elements that a token leaves in the cache of a layer: 512 + 64 in every MLA model so far."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that is too good to be true: `factor` says how many times it beats the bound."""

    row_id: str
    kind: str
    metric: str
    bound: str
    value: float
    limit: float
    factor: float
    hint: str = ""
    row: int = -1
    """Position in the table."""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        better = f"{self.factor:.3g} x better than {self.bound} allows"
        return f"{self.row_id}: {self.metric} {self.value:.4g} is {better}{hint}"


@dataclass(frozen=True, slots=True)
class PhysicsReport:
    """Findings, and what could not be checked: `n_checked` rows had a bound."""

    findings: tuple[Finding, ...]
    n_rows: int
    n_checked: int
    unknown_devices: tuple[str, ...]
    unknown_models: tuple[str, ...]
    usable: tuple[Finding, ...] = ()
    """The findings about rows that a fit would take: their status is ok or inferred."""


@dataclass(frozen=True)
class _Group:
    """Rows that share device, model and types; numbers by column."""

    table: Table
    device: DeviceFloor
    model: ModelFloor | None
    words: Mapping[str, str]
    positions: NDArray[Any]

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self.table[name], dtype=np.float64)

    def or_one(self, name: str) -> Array:
        """Return a column with 1 where it is not stated."""
        values = self[name]
        return np.where(np.isnan(values), 1.0, values)

    @property
    def n_devices(self) -> Array:
        """Devices that took part: as stated or as the parallel sizes multiply up, whichever is more."""
        product = self.or_one("tp") * self.or_one("pp") * self.or_one("dp")
        return np.maximum(np.maximum(self.or_one("n_devices"), product), self.or_one("ep"))

    @property
    def flop_per_s(self) -> float:
        """Highest rate of one device for what these rows compute in."""
        own = self.words["compute_dtype"]
        dtypes = (*((own,) if own else ()), *(self.model.compute_dtypes if self.model is not None else ()))
        return self.device.flop_per_s(*dtypes) if dtypes else self.device.flop_per_s()

    @property
    def kv_bytes(self) -> float:
        """Bytes of a cache element: the fewest that the row allows."""
        compute = element_bytes(self.words["compute_dtype"], 1.0)
        return element_bytes(self.words["kv_dtype"], min(compute, 2.0))


Bounds = list[tuple[str, Array]]
"""Least times in seconds by name; NaN where a row does not state enough."""


def _gemm(g: _Group) -> Bounds:
    work = 2.0 * g["m"] * g["n"] * g["k"] * g.or_one("batch")
    size = element_bytes(g.words["compute_dtype"], 0.5)
    weight = {"w8a8": 1.0, "none": size, "": size}.get(g.words["quantization"], min(size, 0.5))
    traffic = g.or_one("batch") * g["n"] * g["k"] * min(size, weight)
    read = beyond_cache(traffic, g.device.cache_bytes) / g.device.bytes_per_s
    return [("the dense peak", work / g.flop_per_s), ("reading its weights", np.asarray(read))]


def _attention(g: _Group) -> Bounds:
    context, query, batch = g["context_tokens"], g["query_tokens"], g["batch"]
    pairs = query * (context + query / 2.0)
    work = 4.0 * batch * pairs * g["n_heads"] * g["head_dim"]
    traffic = 2.0 * batch * context * g["n_kv_heads"] * g["head_dim"] * g.kv_bytes
    windowed = "window" in g.words["variant"] or "sliding" in g.words["variant"]
    read = np.asarray(beyond_cache(traffic, g.device.cache_bytes)) / g.device.bytes_per_s
    return [] if windowed else [("the dense peak", work / g.flop_per_s), ("reading its cache", read)]


def _mla(g: _Group) -> Bounds:
    traffic = g["batch"] * g["context_tokens"] * (_MLA_LATENT * g.kv_bytes)
    return [("reading its cache", np.asarray(beyond_cache(traffic, g.device.cache_bytes)) / g.device.bytes_per_s)]


def _moe(g: _Group) -> Bounds:
    ep = g["ep"]  # not stated: n_experts may be those of one device, and the work is then not known
    is_known = (ep == 1.0) | ((ep > 1.0) & (g.words["op"] == "balanced"))
    chosen = np.where(is_known, g["top_k"] / ep, np.nan)
    work = 6.0 * g["query_tokens"] * chosen * g["hidden"] * g["intermediate"]
    return [("the dense peak", work / g.flop_per_s)]


def _collective(g: _Group) -> Bounds:
    link, n = g.device.link_bytes_per_s, g["n_devices"]
    sent = (n - 1.0) / n
    factors: dict[str, Array] = {"all_reduce": np.ones(len(n)), "all_gather": sent, "reduce_scatter": sent}
    factor = factors.get(g.words["op"])
    if link is None or factor is None:
        return []
    return [("the links of a device", np.where(n > 1, factor * g["message_bytes"] / link, np.nan))]


def _step_s(g: _Group, batch: Array, context: Array) -> Array:
    """Return the least time of a decode step: weights and cache over all devices, or its flop."""
    if g.model is None:
        return np.full(len(g.table), np.nan)
    cached = np.where(np.isnan(context), 0.0, context)
    traffic = g.model.step_weight_bytes + batch * np.asarray(g.model.kv_read_bytes(cached, g.kv_bytes))
    read = np.asarray(beyond_cache(traffic / g.n_devices, g.device.cache_bytes)) / g.device.bytes_per_s
    return np.maximum(read, g.model.flop_per_token * batch / (g.flop_per_s * g.n_devices))


def _prefill_s(g: _Group, n_tokens: Array) -> Array:
    """Return the least time to read prompts."""
    if g.model is None:
        return np.full(len(g.table), np.nan)
    return g.model.flop_per_token * n_tokens / (g.flop_per_s * g.n_devices)


def _decode_step(g: _Group) -> Bounds:
    return [("reading its weights and cache", _step_s(g, g["batch"], g["context_tokens"]))]


def _prefill_step(g: _Group) -> Bounds:
    return [("the dense peak", _prefill_s(g, g["batch"] * g["input_tokens"]))]


def _generate_s(g: _Group) -> Array:
    steps = np.maximum(g["output_tokens"] - 1.0, 0.0)
    return _prefill_s(g, g["batch"] * g["input_tokens"]) + steps * _step_s(g, g["batch"], g["input_tokens"])


def _generate(g: _Group) -> Bounds:
    least = _generate_s(g)
    return [("prefill at the peak and decode at full bandwidth", least)]


def _serve(g: _Group) -> Bounds:
    metric = g.words["metric"]
    one = np.ones(len(g.table))
    if metric in ("tpot_s", "itl_s"):
        return [("reading its weights once a token", _step_s(g, one, 0.0 * one))]
    if metric == "ttft_s":
        return [("the dense peak", _prefill_s(g, g["input_tokens"]))]
    if metric == "e2e_s":
        return [("prefill at the peak and decode at full bandwidth", _prefill_s(g, g["input_tokens"]))]
    per_request = _prefill_s(g, g["input_tokens"] + g["output_tokens"])
    return [("the dense peak", per_request)]


_BOUNDS: Final[Mapping[str, Callable[[_Group], Bounds]]] = {
    "gemm": _gemm, "attention": _attention, "mla_attention": _mla, "moe_ffn": _moe, "collective": _collective,
    "decode_step": _decode_step, "prefill_step": _prefill_step, "generate": _generate, "serve": _serve,
}  # fmt: skip
_HINTS: Final = {
    "serve": "unless several tokens come a step, or a prefix cache served the prompt",
    "decode_step": "unless several tokens come a step",
    "gemm": "or the operands stayed in the cache",
}


def _times(g: _Group) -> Array:
    """Return what was measured as the time of what the bounds speak of."""
    metric, value = g.words["metric"], g["value"]
    if metric == "output_tokens_per_s":
        tokens = g["output_tokens"] * (g["batch"] if g.words["kind"] == "generate" else 1.0)
        return tokens / value
    return 1.0 / value if metric == "requests_per_s" else value


def _time_findings(g: _Group, slack_frac: float) -> tuple[list[Finding], NDArray[np.bool_]]:
    measured = _times(g)
    checked = np.zeros(len(g.table), dtype=bool)
    found: dict[int, Finding] = {}
    for bound, least in _BOUNDS[g.words["kind"]](g):
        with np.errstate(invalid="ignore", divide="ignore"):
            known = np.isfinite(least) & np.isfinite(measured)
            beaten = known & (measured < least * (1.0 - slack_frac))
        checked |= known
        for i in np.flatnonzero(beaten):
            factor = float(least[i] / measured[i])
            if i not in found or factor > found[int(i)].factor:
                found[int(i)] = _finding(g, int(i), bound, factor)
    return list(found.values()), checked


def _finding(g: _Group, i: int, bound: str, factor: float) -> Finding:
    metric, kind, value = g.words["metric"], g.words["kind"], float(g["value"][i])
    limit = value * factor if metric.endswith("_s") and "per_s" not in metric else value / factor
    hint = _HINTS.get(kind, "")
    return Finding(str(g.table["id"][i]), kind, metric, bound, value, limit, factor, hint, int(g.positions[i]))


def _size_findings(g: _Group, slack_frac: float) -> tuple[list[Finding], NDArray[np.bool_]]:
    """Return findings of kinds that measure no time: bandwidths and memory."""
    value, kind, op, metric = g["value"], g.words["kind"], g.words["op"], g.words["metric"]
    limit: Array | None = None
    bound, at_most = "", True
    if kind == "bandwidth" and op.startswith("hbm"):
        limit, bound = np.full(len(value), g.device.bytes_per_s), "the nominal bandwidth"
    elif kind == "memory" and g.model is not None:
        if op in ("weights", "peak") and metric == "bytes" and g.model.total_weight_bytes is not None:
            ranks = np.maximum(g.n_devices, 1.0)
            limit, bound, at_most = g.model.total_weight_bytes / ranks, "the size of its weights", False
        elif metric == "kv_tokens" and (footprint := g.model.footprint(g.kv_bytes)) is not None:
            each = max(footprint.bytes_per_token, 1.0)
            limit, bound = g.n_devices * g.device.device.usable_memory.value / each, "the memory of the devices"
    if limit is None:
        return [], np.zeros(len(value), dtype=bool)
    factor = value / limit if at_most else limit / np.maximum(value, 1.0)
    rows = np.flatnonzero(factor > (1.0 + slack_frac if at_most else 1.0 + 2 * slack_frac))
    ids = g.table["id"]
    found = [
        Finding(
            str(ids[i]),
            kind,
            metric,
            bound,
            float(value[i]),
            float(limit[i]),
            float(factor[i]),
            "",
            int(g.positions[i]),
        )
        for i in rows
    ]
    return found, np.ones(len(value), dtype=bool)


_KEYS: Final = ("kind", "metric", "device", "model", "quantization", "compute_dtype", "kv_dtype", "op", "variant")


def _groups(table: Table) -> list[tuple[dict[str, str], NDArray[Any]]]:
    columns = [table[name] for name in _KEYS]
    positions: dict[tuple[str, ...], list[int]] = {}
    for i, key in enumerate(zip(*columns, strict=True)):
        positions.setdefault(key, []).append(i)
    return [(dict(zip(_KEYS, key, strict=True)), np.array(rows)) for key, rows in positions.items()]


def physics_report(table: Table, catalogue: Catalogue, *, slack_frac: float = SLACK_FRAC) -> PhysicsReport:
    """Return the rows of a table that beat what their device can do, worst first.

    Rows on devices or models that the catalogue lacks are not checked; the report names them.
    """
    floors = Floors(catalogue)
    findings: list[Finding] = []
    n_checked = 0
    for words, rows in _groups(table):
        device = floors.device(words["device"])
        if device is None or words["kind"] not in KINDS:
            continue
        is_bounded = words["kind"] in _BOUNDS or words["kind"] == "memory"
        model = floors.model(words["model"], words["quantization"]) if words["model"] and is_bounded else None
        group = _Group(table.selected(rows), device, model, words, rows)
        check = _time_findings if words["kind"] in _BOUNDS else _size_findings
        with np.errstate(invalid="ignore", divide="ignore"):
            found, checked = check(group, slack_frac)
        findings += found
        n_checked += int(checked.sum())
    worst = tuple(sorted(findings, key=lambda finding: -finding.factor))
    unknown = tuple(sorted(floors.unknown_devices)), tuple(sorted(floors.unknown_models))
    status = table["status"]
    usable = tuple(finding for finding in worst if status[finding.row] in USABLE)
    return PhysicsReport(worst, len(table), n_checked, *unknown, usable)


def with_suspects(table: Table, report: PhysicsReport) -> Table:
    """Return the table with the rows that beat physics marked suspect; rows that are not usable stay as they are."""
    return table.with_status({f.row: ("suspect", f"beats {f.bound} {f.factor:.3g} times") for f in report.usable})


def physics_notes(table: Table, report: PhysicsReport, catalogue: Catalogue) -> tuple[str, ...]:
    """Return what a reader of the table must be told, in sentences: usable rows beyond physics, and unknown names."""
    name, beaten = Path(table.name).name, report.usable
    notes = []
    if beaten:
        shown = "; ".join(str(finding) for finding in beaten[:_MOST_NOTED])
        more = f"; and {len(beaten) - _MOST_NOTED} more" if len(beaten) > _MOST_NOTED else ""
        unit = ". Are all values in base units?" if beaten[0].factor > _OTHER_UNIT else ""
        notes.append(
            f"{name}: {len(beaten)} of {len(table)} rows beat what their device can do and are taken as suspect: "
            f"{shown}{more}{unit}"
        )
    for what, words in (("device", report.unknown_devices), ("model", report.unknown_models)):
        if words:
            n = int(np.count_nonzero(np.isin(table[what], words)))
            known = catalogue.paths("hardware" if what == "device" else "model")
            cure = near(words[0], known) if len(words) == 1 else ""
            notes.append(
                f"{name}: {n} of {len(table)} rows are of a {what} that the catalogue lacks: {listed(words)}"
                + (f" ({cure})" if cure else "")
            )
    return tuple(notes)


def checked_table(
    path: Path | str, catalogue: Catalogue, *, slack_frac: float = SLACK_FRAC, is_question: bool = False
) -> tuple[Table, PhysicsReport]:
    """Return the table in a file with the rows that beat physics marked suspect, and the report about them."""
    table = read_table(path, is_question=is_question)
    report = physics_report(table, catalogue, slack_frac=slack_frac)
    return with_suspects(table, report), report


def implied_prefill_finding(
    prompt_tokens_per_s: float,
    *,
    device: str,
    model: str,
    catalogue: Catalogue,
    n_devices: int = 1,
    quantization: str = "",
) -> Finding | None:
    """Return a finding if prompts cannot have been read at this rate, None if they can or nothing is known.

    A client that counts rejected requests as done reports such rates: 25 million prompt tokens in 33.5 s are 746 k/s.
    """
    floors = Floors(catalogue)
    hardware, work = floors.device(device), floors.model(model, quantization)
    if hardware is None or work is None:
        return None
    limit = hardware.flop_per_s(*work.compute_dtypes) * n_devices / work.flop_per_token
    if prompt_tokens_per_s <= limit * (1.0 + SLACK_FRAC):
        return None
    factor = prompt_tokens_per_s / limit
    hint = "prompts were rejected or came from a prefix cache"
    return Finding("run", "serve", "prompt_tokens_per_s", "the dense peak", prompt_tokens_per_s, limit, factor, hint)
