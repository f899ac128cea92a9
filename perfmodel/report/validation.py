"""Validation to read and to look at: an error table, the same as data, and parity and residual plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.validate.accuracy import GroupError
from perfmodel.validate.predict import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable

__all__ = ["accuracy_documents", "accuracy_markdown", "accuracy_table", "saved_figure", "validation_figure"]

_COLOURS: Final = (
    "#1b4965", "#c8553d", "#5b8c5a", "#8f6bb3", "#d9a441", "#3d7ea6", "#7a7a7a", "#b0476e", "#2f9e8f",
)  # fmt: skip
_SPREAD: Final = 4.0
"""Residuals are drawn up to this factor; what lies beyond is drawn at the edge."""
_WORDS_WIDTH: Final = 16
"""Columns that the figures leave to the words on a terminal of 80: long words fold, and not to single letters."""
_HEADINGS: Final = ("rows", "no prediction", "median", "P90", "bias", "in band", "band")


def _percent(value: float, *, signed: bool = False) -> str:
    if not math.isfinite(value):
        return "-"
    digits = 0 if abs(value) >= 0.995 else 1
    return f"{100 * value:{'+' if signed else ''}.{digits}f} %"


def _figures(group: GroupError) -> tuple[str, ...]:
    inside = "-" if math.isnan(group.covered_frac) else f"{100 * group.covered_frac:.0f} %"
    width = "-" if math.isnan(group.half_width_frac) else f"±{100 * group.half_width_frac:.0f} %"
    return (
        str(group.n),
        str(group.n_without or ""),
        _percent(group.median_frac),
        _percent(group.p90_frac),
        _percent(group.bias_frac, signed=True),
        inside,
        width,
    )


def accuracy_table(groups: Sequence[GroupError], title: str = "") -> RichTable:
    """Return the errors as a table for the terminal."""
    from rich import box
    from rich.table import Table as RichTable

    names = list(groups[0].words) if groups else []
    table = RichTable(title=title or None, box=box.SIMPLE, title_justify="left", padding=(0, 1, 0, 0))
    for name in names:
        longest = max(len(group.words[name]) for group in groups)
        table.add_column(name, overflow="fold", min_width=min(longest, _WORDS_WIDTH // len(names)))
    for heading in _HEADINGS:
        table.add_column(heading.replace("no ", "no\n"), justify="right", no_wrap=True)
    for group in groups:
        table.add_row(*(group.words[name] for name in names), *_figures(group))
    return table


def accuracy_documents(groups: Sequence[GroupError]) -> list[dict[str, Any]]:
    """Return the errors as plain data with stable keys; what is not known is null."""
    return [
        {
            **group.words,
            "n": group.n,
            "n_without_prediction": group.n_without,
            **{
                name: value if math.isfinite(value) else None
                for name, value in (
                    ("median_abs_rel_error", group.median_frac),
                    ("p90_abs_rel_error", group.p90_frac),
                    ("bias", group.bias_frac),
                    ("band_coverage", group.covered_frac),
                    ("band_half_width", group.half_width_frac),
                )
            },
        }
        for group in groups
    ]


def accuracy_markdown(groups: Sequence[GroupError]) -> str:
    """Return the errors as a Markdown table."""
    names = list(groups[0].words) if groups else []
    head = [*names, *_HEADINGS]
    lines = [" | ".join(head), " | ".join(["---"] * len(names) + ["---:"] * len(_HEADINGS))]
    lines += [" | ".join([*(group.words[name] for name in names), *_figures(group)]) for group in groups]
    return "\n".join(f"| {line} |" for line in lines)


def validation_figure(found: Predictions, by: str = "kind") -> Figure:
    """Return a figure: predicted against measured, residuals against size, and residuals by group with the spread.

    The two clouds hold the metric of most rows (times, as a rule), the spread by group holds every row.
    """
    from perfmodel.report.style import canvas, plain, titled

    use = np.flatnonzero(np.isfinite(found.error))
    figure = canvas(11.0, 7.6)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.15, 1.0))
    parity, spread = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    residual = figure.add_subplot(grid[1, :])
    labels = np.array([str(word) or "(not stated)" for word in found.table[by]], dtype=object)[use]
    measured, predicted = found.measured[use], found.predicted[use]
    names, counts = np.unique(labels.astype(str), return_counts=True)
    order = [str(name) for name in names[np.argsort(-counts, kind="stable")]]
    _boxes(spread, measured, predicted, labels, order)
    metrics, numbers = np.unique(found.table["metric"][use].astype(str), return_counts=True)
    metric = str(metrics[np.argmax(numbers)]) if len(use) else "value"
    same = found.table["metric"][use] == metric
    drawn = {name: _COLOURS[min(i, len(_COLOURS) - 1)] for i, name in enumerate(order) if (labels[same] == name).any()}
    for axes, draw in ((parity, _parity), (residual, _residuals)):
        draw(axes, measured[same], predicted[same], labels[same], drawn)
        axes.set_xlabel(f"measured {metric}")
    for axes in (parity, spread, residual):
        plain(axes)
    median = float(np.median(np.abs(predicted / measured - 1.0))) if len(use) else math.nan
    inside = float(np.mean(found.covered[use])) if len(use) else math.nan
    title = f"{len(use)} measured rows, median error {_percent(median)}, {_percent(inside)} inside their 80 % band"
    return titled(figure, title)


def _parity(
    axes: Axes, measured: NDArray[Any], predicted: NDArray[Any], labels: NDArray[Any], drawn: dict[str, str]
) -> None:
    for i, (name, colour) in enumerate(drawn.items()):
        mine = labels == name
        label = name if i < len(_COLOURS) - 1 or len(drawn) == len(_COLOURS) else None
        axes.plot(
            measured[mine],
            predicted[mine],
            "o",
            markersize=_mark_size(len(measured)),
            alpha=0.55,
            color=colour,
            label=label,
            mew=0,
            rasterized=True,
        )
    if len(measured):
        ends = _decade(np.concatenate([measured, predicted]))
        axes.plot(ends, ends, color="#333333", linewidth=1.0)
        for factor in (1.25, 1 / 1.25):
            axes.plot(ends, ends * factor, color="#999999", linewidth=0.7, linestyle="--")
        axes.set(xlim=ends, ylim=ends)
    axes.set(xscale="log", yscale="log", ylabel="predicted")
    axes.set_title("parity, dashed: a quarter off", fontsize=9.5, loc="left")
    axes.legend(frameon=False, fontsize=8, markerscale=6.0 / _mark_size(len(measured)), loc="upper left")


def _residuals(
    axes: Axes, measured: NDArray[Any], predicted: NDArray[Any], labels: NDArray[Any], drawn: dict[str, str]
) -> None:
    ratio = np.clip(predicted / measured, 1 / _SPREAD, _SPREAD)
    for name, colour in drawn.items():
        mine = labels == name
        axes.plot(
            measured[mine],
            ratio[mine],
            "o",
            ms=_mark_size(len(measured)),
            alpha=0.5,
            color=colour,
            mew=0,
            rasterized=True,
        )
    axes.axhline(1.0, color="#333333", linewidth=1.0)
    axes.set(xscale="log", yscale="log", ylabel="predicted / measured", ylim=(0.9 / _SPREAD, 1.1 * _SPREAD))
    if len(measured):
        axes.set_xlim(*_decade(measured))
    _ratio_ticks(axes.yaxis)
    axes.set_title(
        f"residuals; what is off by more than {_SPREAD:g} times stands at the edge", fontsize=9.5, loc="left"
    )


def _mark_size(n: int) -> float:
    """Return the size of a point: single ones must be seen, and thousands must not cover each other."""
    return 6.0 if n < 200 else 2.6


def _decade(values: NDArray[Any]) -> NDArray[Any]:
    """Return the ends of a logarithmic axis that holds the values: at least a decade, so that its ticks stand apart."""
    low, high = np.log10(values.min()), np.log10(values.max())
    margin = max(0.5 * (1.0 - (high - low)), 0.03 * (high - low))
    return np.asarray(10.0 ** np.array([low - margin, high + margin]))


def _ratio_ticks(axis: Any) -> None:
    ticks = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
    axis.set_major_locator(_fixed(ticks))
    axis.set_minor_locator(_fixed(()))
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _fixed(ticks: Sequence[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(list(ticks))


def _boxes(
    axes: Axes, measured: NDArray[Any], predicted: NDArray[Any], labels: NDArray[Any], order: Sequence[str]
) -> None:
    """Draw the spread of predicted / measured by group: median, half of the rows, and 80 % of them."""
    shown = list(order)[:14][::-1]
    for at, name in enumerate(shown):
        ratio = np.clip((predicted / measured)[labels == name], 1 / _SPREAD, _SPREAD)
        low, first, middle, third, high = np.percentile(ratio, (10, 25, 50, 75, 90))
        axes.plot([low, high], [at, at], color="#8a9bb0", linewidth=1.4, solid_capstyle="butt")
        axes.plot([first, third], [at, at], color="#1b4965", linewidth=6.0, solid_capstyle="butt")
        axes.plot([middle], [at], "|", color="#ffffff", markersize=7, markeredgewidth=1.6)
    axes.axvline(1.0, color="#c8553d", linewidth=1.0)
    axes.set_xscale("log")
    axes.set_xlim(1 / 2.2, 2.2)
    axes.xaxis.set_major_locator(_fixed((0.5, 0.75, 1.0, 1.5, 2.0)))
    axes.xaxis.set_minor_locator(_fixed(()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(shown)), [f"{name} ({np.count_nonzero(labels == name)})" for name in shown], fontsize=8)
    axes.set_xlabel("predicted / measured")
    axes.set_title("half of the rows (thick) and 80 % of them (thin)", fontsize=9.5, loc="left")


def saved_figure(found: Predictions, path: Path, by: str = "kind") -> Path:
    """Draw the validation figure into a file and return its path; raises SpecError where that cannot be done."""
    from perfmodel.report.picture import saved_picture

    return saved_picture(validation_figure(found, by), path)
