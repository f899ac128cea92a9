"""A diagnosis as tables and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from perfmodel.estimate import Bound
from perfmodel.report.answer import bound_text, setup_document, setup_text
from perfmodel.report.comparison import change_text
from perfmodel.report.notes import count, note_parts, rate
from perfmodel.report.serving import serving_warnings
from perfmodel.units import time_text
from perfmodel.validate.diagnosis.startup import Started
from perfmodel.validate.diagnosis.verdict import Compared, Diagnosis

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["diagnosis_document", "diagnosis_tables"]

_SHOWN_EFFECTS: Final = 6
_LABELS: Final = {"requests_per_s": "Requests/s", "output_tokens_per_s": "Output tokens/s"}


def _label(figure: str) -> str:
    name, _, stat = figure.partition("_s_")
    return _LABELS.get(figure) or f"{name.upper()} {stat}"


def _text(figure: str, value: float) -> str:
    return rate(value) if figure.endswith("_per_s") else time_text(value)


def diagnosis_document(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis with stable keys in base units."""
    load, expected = found.load, found.expected
    usage = expected.result.usage
    return setup_document(expected.serving.case) | {
        "calibration": expected.serving.case.calibration.name,
        "load": {
            "n_requests": load.n_requests,
            "input_tokens": load.input_tokens,
            "output_tokens": load.output_tokens,
            "request_rate_per_s": load.requests_per_s,
            "max_concurrency": load.max_in_flight,
        },
        "figures": {
            name: {
                "measured": one.measured,
                "expected": one.expected.value,
                "expected_low": one.expected.low,
                "expected_high": one.expected.high,
                "inside": one.is_inside,
            }
            for name, one in found.compared.items()
        },
        "is_normal": found.is_normal,
        "is_explained": found.is_explained,
        "binding": found.binding.value,
        "limit_shares": dict(usage.limit_shares),
        "step_bounds": {bound.value: share for bound, share in expected.step_bounds.items()},
        "explanations": [
            {
                "setting": s.change.text,
                "distance": s.distance,
                "figures": {n: c.expected.value for n, c in s.compared.items()},
            }
            for s in found.explanations
        ],
        "changes": [
            {
                "change": effect.change.text,
                "e2e_ratio": effect.e2e_ratio,
                "throughput_ratio": effect.throughput_ratio,
                "figures": dict(effect.figures),
            }
            for effect in found.effects
        ],
        "impossible_changes": [{"change": change, "reason": reason} for change, reason in found.impossible],
        "assumed": [*load.assumed, *expected.serving.assumed],
        "warnings": serving_warnings(expected.serving, expected.result),
    }


def diagnosis_tables(found: Diagnosis, *, name: str, started: Started | None) -> Iterator[RenderableType]:
    """Yield what `diagnose` prints of one run: measured against expected, the limit, the verdict, what would help."""
    from rich.table import Table
    from rich.text import Text

    case, load = found.expected.serving.case, found.load
    yield Text(f"{name}: {setup_text(case)}; {_load_text(found)}; calibration {case.calibration.name}", style="bold")
    table = Table(box=None, pad_edge=False)
    for column, justify in (
        ("", "left"),
        ("measured", "right"),
        ("expected", "right"),
        ("80 % band", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for figure, one in found.compared.items():
        band = f"{_text(figure, one.expected.low)} .. {_text(figure, one.expected.high)}"
        table.add_row(
            _label(figure), _text(figure, one.measured), _text(figure, one.expected.value), band, _verdict(one)
        )
    yield table
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column()
    facts.add_row("Limit", _limit_text(found))
    facts.add_row("Steps spend", _steps_text(found))
    facts.add_row("Verdict", _verdict_text(found))
    yield facts
    yield from _effect_parts(found)
    assumed = [*load.assumed, *found.expected.serving.assumed]
    if started is not None:
        assumed += [f"{text} (from the start-up log)" for text in started.taken]
    yield from note_parts(assumed, serving_warnings(found.expected.serving, found.expected.result))


def _load_text(found: Diagnosis) -> str:
    load = found.load
    sent = "all at once" if load.requests_per_s is None else f"{load.requests_per_s:g} requests/s"
    most = "" if load.max_in_flight is None else f", at most {load.max_in_flight} in flight"
    lengths = f"{count(load.input_tokens)} in, {count(load.output_tokens)} out"
    return f"{count(load.n_requests)} requests, {lengths}, {sent}{most}"


def _verdict(one: Compared) -> str:
    return "inside" if one.is_inside else f"{one.ratio:.3g} x expected"


def _limit_text(found: Diagnosis) -> str:
    waits = found.expected.result.usage.limit_shares
    binding = found.binding
    if binding is Bound.ARRIVAL_RATE:
        idle = 1.0 - found.expected.result.usage.busy_frac
        who = "the client keeps no more in flight" if found.load.max_in_flight else "requests come no faster"
        return f"the load ({binding.value}): {who}; nothing waits, the engine idles {100 * idle:.3g} % of the time"
    if binding.value in waits:
        share = waits[binding.value]
        return f"{bound_text(binding)} ({binding.value}): requests wait for it {100 * share:.3g} % of the time"
    waited = max((k for k in waits if k != "arrival_rate"), key=lambda k: waits[k])
    share = waits[waited]
    queue = (
        f"; requests wait for {waited} {100 * share:.3g} % of the time, but more of it would not help"
        if share > 0.01
        else ""
    )
    return f"{bound_text(binding)} ({binding.value}){queue}"


def _steps_text(found: Diagnosis) -> str:
    top = list(found.expected.step_bounds.items())[:3]
    return ", ".join(f"{100 * share:.3g} % {bound_text(bound)} ({bound.value})" for bound, share in top)


def _verdict_text(found: Diagnosis) -> str:
    if found.is_normal:
        return "normal: the means lie in the band"
    if found.explanations:
        best = found.explanations[0]
        also = (
            f" (also possible: {'; '.join(s.change.text for s in found.explanations[1:3])})"
            if len(found.explanations) > 1
            else ""
        )
        return f"not as stated, but explained by {best.change.text}, which was not stated{also}"
    outside = [f"{_label(n)} {one.ratio:.3g} times" for n, one in found.compared.items() if not one.is_inside]
    return f"not explained: {', '.join(outside[:4])} what is expected, and no setting that was tried accounts for it"


def _change(ratio: float) -> str:
    return change_text(ratio - 1) or "same"


def _effect_parts(found: Diagnosis) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if not found.effects:
        return
    best = found.effects[0]
    table = Table(box=None, pad_edge=False)
    columns = ("with this change (predicted)", "output tokens/s", "TTFT mean", "TPOT mean", "end to end", "throughput")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for effect in found.effects[:_SHOWN_EFFECTS]:
        figures = effect.figures
        cells = [rate(figures["output_tokens_per_s"])]
        cells += ["-" if key not in figures else time_text(figures[key]) for key in ("ttft_s_mean", "tpot_s_mean")]
        table.add_row(
            effect.change.text, *cells, *(_change(ratio) for ratio in (effect.e2e_ratio, effect.throughput_ratio))
        )
    yield table
    if best.e2e_ratio <= 1 - found.expected.repeat_frac:
        gain = f"end to end {_change(best.e2e_ratio)}, throughput {_change(best.throughput_ratio)}"
        yield Text(f"Change first: {best.change.text} ({gain})", style="bold")
    else:
        yield Text("No flag that was tried shortens the requests by more than the scatter of runs.", style="bold")
    for change, reason in found.impossible:
        yield Text(f"Not possible: {change}: {reason}", style="dim")
