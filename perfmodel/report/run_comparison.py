"""Serving runs side by side: measured against simulated, or before against after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Imported
from perfmodel.measure.serving_run import ServingRun
from perfmodel.report.comparison import change_text
from perfmodel.report.notes import rate
from perfmodel.units import time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["named_runs", "run_comparison_document", "run_comparison_rows", "run_comparison_tables"]

_STATS: Final = ("mean", "p50", "p90", "p95", "p99")
_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
_ALIKE_FRAC: Final = 0.02
"""Difference in load from which two runs are not the same experiment."""


def named_runs(files: Sequence[tuple[str, Imported]]) -> dict[str, ServingRun]:
    """Return every run of some files by name; raises MeasurementError for a file that holds none."""
    found: dict[str, ServingRun] = {}
    for name, imported in files:
        if not imported.runs:
            raise MeasurementError(
                f"{name} holds no serving run",
                got=f"a file of format {imported.format}",
                expected="a result of a serving benchmark: vllm bench serve, SGLang, genai-perf, evalscope, ...",
            )
        for i, run in enumerate(imported.runs):
            label = name if len(imported.runs) == 1 else f"{name} #{i + 1}"
            while label in found:
                label += "'"
            found[label] = run
    return found


def _figures(run: ServingRun) -> dict[str, float]:
    """Return the figures of a run by name, in base units, as far as it states them."""
    outputs = run.output_tokens_per_s
    if outputs is None and run.total_output_tokens and run.duration_s:
        outputs = run.total_output_tokens / run.duration_s
    rates = {"requests_per_s": run.finished_per_s, "output_tokens_per_s": outputs, "duration_s": run.duration_s}
    times = {f"{name}_s_{stat}": run.latency_s.get((name, stat)) for name in _LATENCIES for stat in _STATS}
    return {name: value for name, value in {**rates, **times}.items() if value is not None}


def run_comparison_rows(runs: dict[str, ServingRun]) -> list[dict[str, Any]]:
    """Return a row for each figure that at least two runs state: each run's value, and its ratio to the first."""
    names, figures = list(runs), [_figures(run) for run in runs.values()]
    rows = []
    for figure in dict.fromkeys(name for found in figures for name in found):
        values = [found.get(figure) for found in figures]
        if sum(value is not None for value in values) < 2:
            continue
        base = values[0]
        row: dict[str, Any] = {"figure": figure, **dict(zip(names, values, strict=True))}
        for name, value in zip(names[1:], values[1:], strict=True):
            row[f"{name} / {names[0]}"] = value / base if value is not None and base else None
        rows.append(row)
    return rows


def load_differences(runs: dict[str, ServingRun]) -> list[str]:
    """Return what keeps the runs from being the same experiment, as sentences."""
    (first_name, first), *others = runs.items()
    loads: dict[str, Callable[[ServingRun], float | None]] = {
        "requests": lambda run: run.n_asked,
        "input tokens a request": lambda run: run.mean_input_tokens,
        "output tokens a request": lambda run: run.mean_output_tokens,
        "requests/s sent": lambda run: run.request_rate_per_s,
        "requests in flight at most": lambda run: run.max_concurrency,
    }
    lines = []
    for name, run in others:
        for what, of in loads.items():
            here, there = of(first), of(run)
            if here is None or there is None or here == there:
                continue
            if not here or abs(there / here - 1) > _ALIKE_FRAC:
                lines.append(f"{what}: {here:g} in {first_name}, {there:g} in {name}")
    return lines


def run_comparison_document(runs: dict[str, ServingRun]) -> dict[str, Any]:
    """Return the comparison with stable keys in base units."""
    figures = {name: _figures(run) for name, run in runs.items()}
    return {"runs": figures, "figures": run_comparison_rows(runs), "differences": load_differences(runs)}


def run_comparison_tables(runs: dict[str, ServingRun]) -> Iterator[RenderableType]:
    """Yield what `compare-runs` prints: a line for each figure, then how the loads differ."""
    from rich.table import Table
    from rich.text import Text

    names = list(runs)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for i, name in enumerate(names):
        table.add_column(name, justify="right", overflow="fold")
        if i:
            table.add_column("change", justify="right", no_wrap=True)
    for row in run_comparison_rows(runs):
        cells = [_label(row["figure"])]
        for i, name in enumerate(names):
            value = row[name]
            cells.append("-" if value is None else _value_text(row["figure"], value))
            if i:
                ratio = row[f"{name} / {names[0]}"]
                cells.append("-" if ratio is None else change_text(ratio - 1))
        table.add_row(*cells)
    yield table
    for line in load_differences(runs):
        yield Text(f"Not the same load. {line}", style="yellow")


def _label(figure: str) -> str:
    name, _, stat = figure.partition("_s_")
    if stat in _STATS:
        return f"{name.upper()} {stat}"
    return {"requests_per_s": "Requests/s", "output_tokens_per_s": "Output tokens/s", "duration_s": "Duration"}[figure]


def _value_text(figure: str, value: float) -> str:
    return rate(value) if figure.endswith("_per_s") else time_text(value)
