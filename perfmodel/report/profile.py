"""What a profile says, as tables and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfmodel.report.grid import plain_grid
from perfmodel.report.notes import count, rate
from perfmodel.units import bandwidth_text, rate_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfmodel.measure.profiling.answer import ProfileAnswer

__all__ = ["profile_document", "profile_parts", "share_rows"]


def share_rows(answer: ProfileAnswer) -> list[dict[str, Any]]:
    """Return a row for each type of operator."""
    on_path = _on_path(answer)
    return [
        {**one._asdict(), "critical_path_s": on_path.get(one.type, 0.0) if on_path is not None else None}
        for one in answer.operators
    ]


def _on_path(answer: ProfileAnswer) -> dict[str, float] | None:
    """Return the time of each type on the critical path, None without one."""
    if answer.timeline is None:
        return None
    found: dict[str, float] = {}
    for i in answer.timeline.critical_path.positions:
        o = answer.timeline.operators[i]
        found[o.type or o.name] = found.get(o.type or o.name, 0.0) + o.duration_s
    return found


def profile_document(answer: ProfileAnswer) -> dict[str, Any]:
    """Return the answer as plain data with stable keys in base units."""
    line = answer.timeline
    return {
        "file": answer.profile.name,
        "formats": list(answer.profile.formats),
        "n_operators": len(answer.profile.operators),
        "total_s": answer.profile.total_s,
        "operators": share_rows(answer),
        "streams": [one._asdict() for one in answer.streams],
        "untestable": answer.untestable,
        "span_s": line.span_s if line else None,
        "critical_path_s": line.critical_path.length_s if line else None,
        "critical_path": [
            {"name": o.name, "type": o.type, "stream": o.stream, "start_s": o.start_s, "duration_s": o.duration_s}
            for o in (line.operators[i] for i in line.critical_path.positions)
        ]
        if line
        else None,
        "n_inferred_waits": line.n_inferred if line else None,
        "what_if": [{**one._asdict(), "saved_s": one.saved_s, "speedup": one.speedup} for one in answer.what_ifs],
        "device": answer.device,
        "gaps": [
            {
                **one._asdict(),
                "bound": one.bound.value,
                "roof_frac": one.roof_frac,
                "gap_s": one.gap_s,
                "beats_hard_bound": one.beats_hard_bound,
            }
            for one in answer.gaps.gaps
        ]
        if answer.gaps
        else None,
        "n_without_shapes": answer.gaps.n_untestable if answer.gaps else None,
        "suggestions": [one._asdict() for one in answer.suggestions],
        "warnings": list(answer.profile.warnings),
        "assumed": list(answer.assumed),
    }


def profile_parts(answer: ProfileAnswer, *, n_rows: int) -> Iterator[RenderableType]:
    """Yield the tables of a profile, one under the other; at most `n_rows` lines each."""
    from rich.text import Text

    profile, line = answer.profile, answer.timeline
    yield Text(
        f"{profile.name}: {_operators(sum(o.n_calls for o in profile.operators))}, "
        f"{time_text(profile.total_s)} added up",
        style="bold",
    )
    yield from _shares(answer, n_rows)
    yield from _streams(answer)
    if line is not None:
        path = line.critical_path
        yield Text(
            f"Run {time_text(line.span_s)}; critical path {time_text(path.length_s)} over {count(len(path.positions))} "
            f"operators, {time_text(max(0.0, line.span_s - path.length_s))} of launches, host and waits beside it."
        )
    else:
        yield Text(f"Critical path and exposed time: not testable, {answer.untestable}.", style="yellow")
    for one in answer.what_ifs:
        yield Text(
            f"If {one.words} ran {one.factor:g} times as fast: {time_text(one.before_s)} -> {time_text(one.after_s)}, "
            f"{one.speedup:.3f} times as fast, {time_text(one.saved_s)} saved of {time_text(one.matched_s)} matched."
        )
    yield from _gaps(answer, n_rows)
    yield from _suggested(answer, n_rows)
    for text in answer.assumed:
        yield Text(f"Assumed: {text}", style="dim")
    for text in profile.warnings[:n_rows]:
        yield Text(f"Note: {text}", style="yellow")


def _operators(n: int) -> str:
    return f"{count(n)} operator{'s' * (n != 1)}"


def _shares(answer: ProfileAnswer, n_rows: int) -> Iterator[RenderableType]:
    on_path = _on_path(answer)
    rows = [
        (
            one.type,
            one.family,
            count(one.n_calls),
            time_text(one.total_s),
            time_text(one.mean_s),
            f"{one.share:.1%}",
            "-" if one.exposed_s is None or on_path is None else time_text(one.exposed_s),
            "-" if on_path is None else time_text(on_path.get(one.type, 0.0)),
        )
        for one in answer.operators[:n_rows]
    ]
    rest = answer.operators[n_rows:]
    if rest:
        total = sum(one.total_s for one in rest)
        share = sum(one.share for one in rest)
        rows.append((f"{len(rest)} more", "", "", time_text(total), "", f"{share:.1%}", "", ""))
    yield plain_grid(
        ("operator", "kind", "calls", "total", "mean", "share", "exposed", "on critical path"), rows, n_left=2
    )


def _streams(answer: ProfileAnswer) -> Iterator[RenderableType]:
    if len(answer.streams) < 2:
        return
    several = len({one.device for one in answer.streams}) > 1
    rows = (
        (
            f"{one.device} " * several + f"stream {one.stream or '?'}",
            count(one.n_calls),
            time_text(one.total_s),
            f"{one.share:.1%}",
            "-" if one.span_s is None else time_text(one.span_s),
        )
        for one in answer.streams
    )
    yield plain_grid(("stream", "calls", "busy", "share", "first start to last end"), rows)


def _gaps(answer: ProfileAnswer, n_rows: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if answer.gaps is None:
        return
    rows = (
        (
            one.type,
            one.shapes if len(one.shapes) <= 28 else f"{one.shapes[:26]}..",
            count(one.n_calls),
            time_text(one.mean_s),
            time_text(one.bound_s),
            time_text(one.predicted_s),
            f"{one.roof_frac:.0%}",
            rate_text(one.flop / one.mean_s),
            bandwidth_text(one.n_bytes / one.mean_s),
            time_text(one.gap_s),
        )
        for one in answer.gaps.gaps[:n_rows]
    )
    headers = ("operator", "shapes", "calls", "mean", "roofline", "predicted", "of roof", "rate", "bytes", "gap")
    if answer.gaps.gaps:
        yield plain_grid(headers, rows, title=f"Against the roofline of {answer.device}", n_left=2)
    beating = [one for one in answer.gaps.gaps if one.beats_hard_bound]
    if beating:
        names = ", ".join(f"{one.type} {one.shapes}" for one in beating[:3])
        yield Text(
            f"{len(beating)} kinds take less time than the device allows ({names}): their shapes or times are wrong.",
            style="yellow",
        )
    rest = answer.gaps.n_untestable
    if rest:
        yield Text(
            f"{_operators(rest)} ({time_text(answer.gaps.untestable_s)}) without shapes that say what was computed.",
            style="dim",
        )


def _suggested(answer: ProfileAnswer, n_rows: int) -> Iterator[RenderableType]:
    if not answer.suggestions:
        return
    rows = (
        (one.advice, one.example, rate(one.n_places), time_text(one.saves_at_most_s))
        for one in answer.suggestions[:n_rows]
    )
    yield plain_grid(("suggestion", "first at", "places", "saves at most"), rows, n_left=2)
