"""Fusion before and after, and the ways to have cached keys and values, as tables and documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.grid import plain_grid
from perfmodel.report.notes import count, note_parts
from perfmodel.units import bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfmodel.step.fusion import Fusion, FusionSide
    from perfmodel.step.recompute import KvWay

__all__ = ["fusion_document", "fusion_parts", "operator_rows", "way_document", "way_parts", "way_rows"]


def operator_rows(found: Sequence[Fusion]) -> list[dict[str, Any]]:
    """Return a row for each kernel of each chain, before and after."""
    return [
        {
            "chain": one.name,
            "layer": one.layer,
            "side": side,
            "operator": o.name,
            "read_bytes": float(o.read_bytes),
            "written_bytes": float(o.written_bytes),
            "live_bytes": float(o.live_bytes),
            "flop": float(o.flop),
            "time_s": float(o.time.value),
        }
        for one in found
        for side, half in (("before", one.before), ("after", one.after))
        for o in half.operators
    ]


def fusion_document(found: Sequence[Fusion], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison as plain data with stable keys."""
    return {**asked, "chains": [one.as_row() for one in found], "operators": operator_rows(found)}


def fusion_parts(
    found: Sequence[Fusion], *, heading: str, assumed: Sequence[str], operators: bool
) -> Iterator[RenderableType]:
    """Yield the table of chains (and of their kernels where asked), then how to read it."""
    from rich.text import Text

    yield Text(heading, style="bold")
    rows = (row for one in found for row in _sides(one))
    headers = ("chain", "layers", "", "kernels", "bytes moved", "peak memory", "time", "ratio", "at most")
    yield plain_grid(headers, rows, n_left=3)
    yield Text(
        "Figures are of one layer on one rank. At most: the larger one of the ratios of bytes and of kernels, beyond "
        "which fusing alone cannot go.",
        style="dim",
    )
    if operators:
        for one in found:
            for side, half in (("apart", one.before), ("fused", one.after)):
                yield _operators(f"{one.name}, {one.layer} layer, {side}", half)
    yield from note_parts(assumed, ())


def _sides(one: Fusion) -> Iterator[tuple[str, ...]]:
    """Yield the two lines of a chain."""
    for side, half in (("apart", one.before), ("fused", one.after)):
        is_first = side == "apart"
        yield (
            one.name if is_first else "",
            f"{one.n_times:g} x {one.layer}" if is_first else "",
            side,
            str(half.n_launches),
            bytes_text(float(half.n_bytes)),
            bytes_text(float(half.peak_live_bytes)),
            time_text(float(half.time.value)),
            "" if is_first else f"{float(one.time_ratio):.2f}",
            "" if is_first else f"{float(one.time_ratio_limit):.2f}",
        )


def _operators(title: str, side: FusionSide) -> RenderableType:
    rows = (
        (
            o.name,
            bytes_text(float(o.read_bytes)),
            bytes_text(float(o.written_bytes)),
            bytes_text(float(o.live_bytes)),
            time_text(float(o.time.value)),
        )
        for o in side.operators
    )
    return plain_grid(("kernel", "reads", "writes", "alive", "time on device"), rows, title=title)


def way_rows(ways: Sequence[KvWay]) -> list[dict[str, Any]]:
    """Return a row for each way with stable keys."""
    return [
        {
            "way": way.name,
            "paid": way.paid,
            "n_tokens": float(way.n_tokens),
            "held_bytes_per_token": way.held_bytes_per_token,
            "flop_per_token": way.flop_per_token,
            "time_s": float(way.time.value),
            "s_per_token": float(way.s_per_token),
        }
        for way in ways
    ]


def way_document(ways: Sequence[KvWay], breaks: Mapping[str, float | None], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ways and the break-even points as plain data."""
    return {**asked, "ways": way_rows(ways), "break_even_tokens": dict(breaks)}


def way_parts(
    ways: Sequence[KvWay],
    breaks: Mapping[str, float | None],
    *,
    heading: str,
    remarks: Sequence[str],
    assumed: Sequence[str],
) -> Iterator[RenderableType]:
    """Yield the table of ways, then where the quicker one changes, remarks, and what was assumed."""
    from rich.text import Text

    yield Text(heading, style="bold")
    rows = (
        (
            way.name,
            way.paid,
            bytes_text(way.held_bytes_per_token),
            time_text(float(way.time.value)),
            time_text(float(way.s_per_token)),
        )
        for way in ways
    )
    yield plain_grid(("way", "paid", "held a token", "all tokens", "one token"), rows, n_left=2)
    for names, tokens in breaks.items():
        where = (
            "the same one is quicker at every length" if tokens is None else f"change at {count(round(tokens))} tokens"
        )
        yield Text(f"{names}: {where}")
    for remark in remarks:
        yield Text(remark)
    yield from note_parts(assumed, ())
