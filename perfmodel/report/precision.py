"""Precision to read: rounding of rotary embedding, drift with depth, and quality beside speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.fit.drift import Crossing
from perfmodel.step.rotary import RotaryFallback
from perfmodel.units import GB, time_text
from perfmodel.validate.quality import QualityPoint
from perfmodel.work.precision import (
    angle_error_rad,
    exact_positions,
    index_positions,
    rotation_error_bound_frac,
    rotation_error_rms_frac,
    rounding_mean_frac,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "crossing_rows",
    "drift_document",
    "drift_tables",
    "quality_rows",
    "quality_tables",
    "rounding_rows",
    "rounding_tables",
]


def rounding_rows(dtypes: Sequence[str], positions: Sequence[float]) -> list[dict[str, Any]]:
    """Return one row a format and position: errors of rounding, of a rotation, and of an angle held in the format."""
    return [
        {
            "dtype": dtype,
            "position_tokens": position,
            "rounding_mean_frac": rounding_mean_frac(dtype),
            "rotation_rms_frac": rotation_error_rms_frac(dtype),
            "rotation_bound_frac": rotation_error_bound_frac(dtype),
            "angle_error_rad": float(angle_error_rad(position, 1.0, dtype)),
            "exact_positions": exact_positions(dtype),
        }
        for dtype in dtypes
        for position in positions
    ]


def rounding_tables(dtypes: Sequence[str], positions: Sequence[float]) -> Iterator[RenderableType]:
    """Yield what each format rounds, how far an angle held in it is off, and how far whole numbers count."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, title="Rotation with an exact angle, relative to the pair", title_justify="left")
    for name in ("format", "one rounding, mean", "rotation, rms", "rotation, at most", "whole positions up to"):
        table.add_column(name, justify="left" if name == "format" else "right")
    for dtype in dtypes:
        sizes = (rounding_mean_frac(dtype), rotation_error_rms_frac(dtype), rotation_error_bound_frac(dtype))
        table.add_row(dtype, *(f"{100 * size:.3g} %" for size in sizes), f"{exact_positions(dtype):,.0f}")
    yield table
    angles = Table(
        box=box.SIMPLE, title="Angle held in the format, fastest pair: radians off at most", title_justify="left"
    )
    angles.add_column("position", justify="right")
    for dtype in dtypes:
        angles.add_column(dtype, justify="right")
    for position in positions:
        errors = (float(angle_error_rad(position, 1.0, dtype)) for dtype in dtypes)
        angles.add_row(f"{position:,.0f}", *(f"{e:.3g}" if e < math.pi else "any" for e in errors))
    yield angles
    counts = ", ".join(
        f"{'signed ' if signed else ''}{bits} bits {index_positions(bits, signed=signed):,.0f}"
        for bits, signed in ((16, True), (16, False), (32, True))
    )
    yield Text(f"Positions that an index counts: {counts}. Depth does not enter: each layer rotates anew.")


def crossing_rows(found: Sequence[Crossing]) -> list[dict[str, Any]]:
    """Return one row a law: parameters, agreement and the depth at which it reaches the threshold, null if never."""
    return [
        {
            "law": c.law.name,
            "formula": c.law.formula,
            **dict(zip(c.law.names, (float(v) for v in c.result.values), strict=True)),
            "rmse": float(c.result.errors.rmse),
            "depth_layers": c.depth_layers if math.isfinite(c.depth_layers) else None,
        }
        for c in found
    ]


def drift_document(
    found: Sequence[Crossing], threshold: float, costs: Sequence[tuple[str, RotaryFallback, float]]
) -> dict[str, Any]:
    """Return crossings and costs as plain data with stable keys."""
    return {
        "threshold": threshold,
        "laws": crossing_rows(found),
        "fallback": [
            {
                "step": name,
                "n_layers": cost.n_layers,
                "step_s": step_s,
                "fused_extra_s": float(cost.fused_extra_s),
                "apart_extra_s": float(cost.apart_extra_s),
            }
            for name, cost, step_s in costs
        ],
    }


def drift_tables(
    found: Sequence[Crossing], threshold: float, costs: Sequence[tuple[str, RotaryFallback, float]]
) -> Iterator[RenderableType]:
    """Yield where each law reaches the threshold, and what fp32 costs from the earliest of these layers on."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, title=f"Layer at which the error reaches {threshold:g}", title_justify="left")
    for name in ("law", "parameters", "layer"):
        table.add_column(name, justify="right" if name == "layer" else "left")
    for c in found:
        values = ", ".join(f"{n} {v:.4g}" for n, v in zip(c.law.names, c.result.values, strict=True))
        table.add_row(c.law.formula, values, f"{c.depth_layers:.1f}" if math.isfinite(c.depth_layers) else "never")
    yield table
    n_points = found[0].result.data.n
    yield Text(
        f"{n_points} points: laws with as many parameters pass through them and say nothing of their own error."
        if n_points <= 2
        else f"{n_points} points"
    )
    for name, cost, step_s in costs:
        extras = [float(extra) for extra in (cost.fused_extra_s, cost.apart_extra_s)]
        fused, apart = (f"{time_text(extra)} ({100 * extra / step_s:.2g} %)" for extra in extras)
        yield Text(
            f"{name} of {time_text(step_s)}: fp32 in {cost.n_layers} layers adds {fused} inside of the same kernels, "
            f"{apart} with casts of their own"
        )


def quality_rows(points: Sequence[QualityPoint]) -> list[dict[str, Any]]:
    """Return one flat row a point in base units."""
    return [
        {
            "file": p.score.file,
            "model": p.score.model,
            "quantization": p.score.scheme,
            "score": p.score.op,
            "value": p.score.value,
            "stderr": p.score.stderr if math.isfinite(p.score.stderr) else None,
            "output_tokens_per_s": p.output_tokens_per_s.value,
            "output_tokens_per_s_low": p.output_tokens_per_s.low,
            "output_tokens_per_s_high": p.output_tokens_per_s.high,
            "ttft_s": p.ttft_s.value,
            "weight_bytes": p.weight_bytes,
            "kv_tokens": p.kv_tokens,
            "on_front": p.on_front,
        }
        for p in points
    ]


def quality_tables(points: Sequence[QualityPoint], *, load: str) -> Iterator[RenderableType]:
    """Yield the table of scores beside speed and memory."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    score = points[0].score
    side = "lower is better" if score.lower_is_better else "higher is better"
    table = Table(box=box.SIMPLE, title=f"{score.op} ({side}); {load}", title_justify="left")
    for name in ("model", "weights", "score", "tokens/s", "80 % band", "TTFT", "weights GB", "KV tokens", ""):
        table.add_column(name, justify="left" if name in ("model", "weights", "") else "right")
    for p in points:
        error = f" +- {p.score.stderr:.2g}" if math.isfinite(p.score.stderr) else ""
        speed = p.output_tokens_per_s
        table.add_row(
            p.score.model,
            p.score.scheme,
            f"{p.score.value:.4g}{error}",
            f"{speed.value:,.0f}",
            f"{speed.low:,.0f} .. {speed.high:,.0f}",
            time_text(p.ttft_s.value),
            f"{p.weight_bytes / GB:.2f}",
            f"{p.kv_tokens:,}",
            "front" if p.on_front else "",
        )
    yield table
    yield Text("front: no other row is at least as good in score and speed")
