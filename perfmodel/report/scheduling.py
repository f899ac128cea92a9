"""Dispatch by phase and batch, and streams side by side, as tables and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.grid import plain_grid
from perfmodel.report.notes import note_parts, rate
from perfmodel.units import bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfmodel.serving.streams import StreamRun
    from perfmodel.step.dispatch import Dispatch

__all__ = ["dispatch_parts", "stream_parts", "stream_row"]


def dispatch_parts(
    found: Sequence[Dispatch], *, heading: str, remarks: Sequence[str], assumed: Sequence[str], kernels: bool = False
) -> Iterator[RenderableType]:
    """Yield the table of dispatch by phase and batch (and of kernels where asked), remarks, then what was assumed."""
    from rich.text import Text

    yield Text(heading, style="bold")
    rows = (
        (
            one.phase,
            f"{float(one.n_seqs):g}",
            f"{float(one.n_kernels):,.0f}",
            "graph" if one.is_replayed else time_text(float(one.launch_s)),
            "-" if one.is_replayed else time_text(float(one.dispatch_s)),
            time_text(float(one.device_s)),
            time_text(float(one.step_s)),
            f"{float(one.core_frac):.0%}",
            f"{float(one.core_frac_of_step):.0%}",
            bytes_text(float(one.activation_bytes)),
            bytes_text(float(one.workspace_bytes)),
            f"{float(one.page_walk_frac):.1%}",
        )
        for one in found
    )
    headers = (
        "phase", "batch", "kernels", "launch", "launches", "device", "step", "cores", "of step", "activations",
        "workspace", "walks",
    )  # fmt: skip
    yield plain_grid(headers, rows)
    yield Text(
        "Launch: host time of one kernel; launches: of all, beside the device. Cores: their time in use while kernels "
        "run; of step: with the wait for the host. Walks: page walks over the time on the device.",
        style="dim",
    )
    for one in found if kernels else ():
        yield _kernels(one)
    for remark in remarks:
        yield Text(remark)
    yield from note_parts(assumed, ())


def _kernels(one: Dispatch) -> RenderableType:
    rows = (
        (
            run.name,
            f"{run.n_times:g}",
            time_text(float(run.time_s)),
            f"{float(run.cut.n_units):,.0f}",
            f"{float(run.cut.n_waves):,.0f}",
            f"{float(run.cut.core_frac):.0%}",
            bytes_text(float(run.cut.workspace_bytes)),
        )
        for run in one.runs
    )
    headers = ("kernel", "times", "time", "units", "waves", "cores", "workspace")
    return plain_grid(headers, rows, title=f"{one.phase}, batch {float(one.n_seqs):g}")


def _percentile(values: Any, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None


def stream_row(run: StreamRun, *, batch: float, input_tokens: float) -> dict[str, Any]:
    """Return what a policy gives as a row with stable keys; None where nothing finished."""
    return {
        "policy": run.policy,
        "tpot_mean_s": float(run.decode_step_s.mean()) if len(run.decode_step_s) else None,
        "tpot_p50_s": _percentile(run.decode_step_s, 50),
        "tpot_p99_s": _percentile(run.decode_step_s, 99),
        "decode_tokens_per_s": run.decode_steps_per_s * batch,
        "ttft_mean_s": float(run.prefill_s.mean()) if len(run.prefill_s) else None,
        "ttft_p99_s": _percentile(run.prefill_s, 99),
        "prefill_tokens_per_s": run.prefills_per_s * input_tokens,
        "core_frac": run.core_frac,
        "n_waiting": run.n_waiting,
    }


def _time(value: float | None) -> str:
    return "-" if value is None else time_text(value)


def stream_parts(
    rows: Sequence[Mapping[str, Any]], *, heading: str, remarks: Sequence[str], assumed: Sequence[str]
) -> Iterator[RenderableType]:
    """Yield the table of policies, remarks, then what was assumed."""
    from rich.text import Text

    yield Text(heading, style="bold")
    cells = (
        (
            str(row["policy"]),
            _time(row["tpot_mean_s"]),
            _time(row["tpot_p50_s"]),
            _time(row["tpot_p99_s"]),
            rate(row["decode_tokens_per_s"]),
            _time(row["ttft_mean_s"]),
            _time(row["ttft_p99_s"]),
            rate(row["prefill_tokens_per_s"]),
            f"{row['core_frac']:.0%}",
            str(row["n_waiting"]),
        )
        for row in rows
    )
    headers = (
        "policy", "TPOT", "p50", "p99", "decode tok/s", "TTFT", "TTFT p99", "prompt tok/s", "cores", "waiting",
    )  # fmt: skip
    yield plain_grid(headers, cells)
    for remark in remarks:
        yield Text(remark)
    yield from note_parts(assumed, ())
