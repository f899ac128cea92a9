"""The accuracy page: error tables, errors on left-out rows, and stories of the worst groups, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from perfmodel.errors import PerfmodelError
from perfmodel.report.validation import accuracy_markdown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.accuracy import GroupError, error_table
from perfmodel.validate.datasheet_only import left_out_devices
from perfmodel.validate.host_cases import HOST_CASES
from perfmodel.validate.host_fit import HostFit, host_fit
from perfmodel.validate.predict import Predictions
from perfmodel.validate.residuals import trends
from perfmodel.validate.step_scatter import OTHERS, fitted_scatters, step_errors
from perfmodel.validate.stories import read_stories

__all__ = ["accuracy_page"]

_WORST_MEDIAN: Final = 0.10
_LEAST_ROWS: Final = 5
_MOST_STORIES: Final = 30
_DETAIL: Final = ("kind", "device", "runtime")
_HEAD: Final = """# Accuracy

Written by `perfmodel validate --write docs/accuracy.md`; do not edit. Errors are |predicted / measured - 1|, bias is
the median of predicted / measured - 1, "in band" the share of rows inside their 80 % band (80 % is right, more is too
wide), "band" the median half-width. Rows of status ok and inferred of the shipped tables. Most kernels and host times
were fitted on rows of these tables, so that the first two sections show agreement; errors on rows that a fit had not
seen follow below.
"""
_HOST_NOTE: Final = """Each model (or device) in turn is left out of the fit of the host times and of the reads that
grouped-query attention repeats, then predicted. With two models, one of them with grouped queries, the share of
repeated reads cannot be seen when that one is left out.
"""
_SCATTER_NOTE: Final = """What measured steps scatter beyond the errors of the coefficients of their kernels and
host times: a factor common to a step, in the files of the runtimes (`step_scatter`), and in the prior for runtimes
without enough rows. "Left out" is the coverage of 80 % bands on models (or on the whole runtime, where the scatter is
that of others) that the scatter was not found on.
"""
_DEVICE_NOTE: Final = """Each measured device predicted as if nobody had measured it: without its fits, without classes
of the prior that it alone stands for (GeForce, Ascend), and with host times fitted on other devices where a runtime was
measured on several. That is what to expect of a device of which only the datasheet is known.
"""


def accuracy_page(found: Predictions, catalogue: Catalogue) -> str:
    """Return the whole page."""
    detail = error_table(found, _DETAIL)
    parts = [
        _HEAD,
        "## By kind\n",
        accuracy_markdown(error_table(found, ("kind",))),
        "\n## By kind, device and software\n",
        accuracy_markdown(detail),
        "\n## Left out: host times of runtimes\n",
        _HOST_NOTE,
        "\n".join(_host_lines(found, catalogue)),
        "\n## Left out: bands of whole steps\n",
        _SCATTER_NOTE,
        "\n".join(_scatter_lines(found, catalogue)),
        "\n## Left out: whole devices\n",
        _DEVICE_NOTE,
        "\n".join(_device_lines(found, catalogue)),
        "\n## Left out: kernels\n",
        "Errors on whole shapes left out, as each calibration file records them.\n",
        "\n".join(_kernel_lines(catalogue)),
        "\n## Stories of the worst groups\n",
        f"Groups of at least {_LEAST_ROWS} rows with a median error above {100 * _WORST_MEDIAN:.0f} %, and why.\n",
        "\n".join(_stories(found, detail, catalogue)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "-"


def _spread(error: np.ndarray) -> str:
    known = np.abs(error[np.isfinite(error)])
    return f"{_percent(float(np.median(known)))} / {_percent(float(np.percentile(known, 90)))}" if len(known) else "-"


def _host_lines(found: Predictions, catalogue: Catalogue) -> Iterator[str]:
    yield "| runtime | devices | rows | fitted | own rows (median / P90) | model left out | device left out |"
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: |"
    for case in HOST_CASES:
        rows = case.rows(found.table)
        try:
            by_model = host_fit(rows, catalogue, case.profile, parameters=case.parameters)
            by_device = (
                host_fit(rows, catalogue, case.profile, parameters=case.parameters, group="device")
                if len(case.devices) > 1
                else None
            )
        except PerfmodelError:
            continue
        device = _spread(by_device.left_out) if by_device else "-"
        name = f"{case.profile}{' (one device)' if case.single_device else ''} | {', '.join(case.devices)}"
        errors = f"{_spread(by_model.error)} | {_spread(by_model.left_out)} | {device}"
        yield f"| {name} | {len(by_model.error)} | {_values(by_model)} | {errors} |"


def _values(fit: HostFit) -> str:
    texts = []
    for name, value in fit.values.items():
        if name.startswith("host"):
            texts.append(f"{name.removeprefix('host_').replace('_', ' ')} {1e6 * value:.0f} us")
        else:
            texts.append(f"{name.removesuffix('_frac').replace('_', ' ')} {value:.2f}")
    return ", ".join(texts)


def _scatter_lines(found: Predictions, catalogue: Catalogue) -> Iterator[str]:
    """Yield scatter and coverage by runtime and phase, then the coverage of each kind of row over all runtimes."""
    errors = step_errors(found.table, catalogue)
    held = np.zeros(len(errors.kind), dtype=bool)
    yield "| runtime | phase | rows | models | scatter | from | in band without it | in band, left out |"
    yield "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |"
    for fit in fitted_scatters(errors) if len(held) else ():
        if fit.runtime != OTHERS:
            held[fit.left_out] = fit.left_out_covered
        covered = f"{100 * fit.covered_before_frac:.0f} % | {100 * float(np.mean(fit.left_out_covered)):.0f} %"
        origin = "its rows" if fit.is_own else "other runtimes"
        name = fit.runtime or "any other"
        yield f"| {name} | {fit.phase} | {fit.n_rows} | {fit.n_models} | {_percent(fit.value)} | {origin} | {covered} |"
    yield ""
    parts = [f"{kind} {100 * float(np.mean(held[errors.kind == kind])):.0f} %" for kind in sorted(set(errors.kind))]
    yield f"Rows left out that lie in their band: {', '.join(parts)}."


def _device_lines(found: Predictions, catalogue: Catalogue) -> Iterator[str]:
    yield "| device | kernels: rows | median / P90 | in band | steps: rows | median / P90 | in band |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    listed = list(left_out_devices(found.table, catalogue))
    for one in listed:
        yield _device_line(one.device, one.kernel_error, one.kernel_covered, one.step_error, one.step_covered)
    if listed:
        names = ("kernel_error", "kernel_covered", "step_error", "step_covered")
        yield _device_line("all", *(np.concatenate([getattr(one, name) for one in listed]) for name in names))


def _device_line(name: str, *columns: np.ndarray) -> str:
    cells = [
        f"{len(error)} | {_spread(error)} | {f'{100 * float(np.mean(held)):.0f} %' if len(held) else '-'}"
        for error, held in zip(columns[::2], columns[1::2], strict=True)
    ]
    return f"| {name} | {' | '.join(cells)} |"


def _kernel_lines(catalogue: Catalogue) -> Iterator[str]:
    yield "| calibration | kernel class | fitted on | rows | groups | median / P90, groups left out | in band |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    held: dict[str, list[tuple[int, float]]] = {}
    for name in catalogue.paths("calibration"):
        for kernel, record in catalogue.calibration(name).fits.items():
            covered = record.left_out_covered_frac
            if covered is not None:
                held.setdefault(kernel.split("/")[0], []).append((record.n_rows, covered))
            yield (
                f"| {name} | {kernel} | {record.runtime} | {record.n_rows} | {record.n_groups} "
                f"| {_percent(record.left_out_median_frac)} / {_percent(record.left_out_p90_frac)} "
                f"| {'-' if covered is None else f'{100 * covered:.0f} %'} |"
            )
    yield ""
    totals = ((kind, sum(n for n, _ in parts), sum(n * c for n, c in parts)) for kind, parts in held.items())
    shares = (f"{kind} {100 * n_held / n:.0f} %" for kind, n, n_held in totals)
    yield f"Rows left out that lie in their 80 % band, by kind of kernel or link: {', '.join(shares)}."


def _stories(found: Predictions, groups: Sequence[GroupError], catalogue: Catalogue) -> Iterator[str]:
    stories = read_stories(catalogue)
    worst = [g for g in groups if g.n >= _LEAST_ROWS and g.median_frac > _WORST_MEDIAN]
    worst.sort(key=lambda g: -g.median_frac)
    for group in worst[:_MOST_STORIES]:
        mask = np.ones(len(found.table), dtype=bool)
        for name, word in group.words.items():
            mask &= found.table[name] == word
        figures = f"{group.n} rows, {_percent(group.median_frac)} / {_percent(group.p90_frac)}"
        yield f"**{', '.join(group.words.values())}** ({figures}, bias {100 * group.bias_frac:+.0f} %)."
        story = stories.about(group.words)
        yield f"{story.text.strip()} (Cause: {story.cause}.)" if story else "Not explained."
        seen = [
            f"with {t.column} (rank correlation {t.correlation:+.2f}; median {100 * t.low_frac:+.0f} % in the lowest "
            f"third, {100 * t.high_frac:+.0f} % in the highest)"
            for t in trends(found.selected(mask))
        ]
        if seen:
            yield f"Errors go {'; '.join(seen)}."
        yield ""
    if len(worst) > _MOST_STORIES:
        yield f"{len(worst) - _MOST_STORIES} further groups are in the table above."
