"""`perfmodel profile`: what operator timings say, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.flags import Calibrated, CatalogFolders, Csv, Json, number, one_format
from perfmodel.cli.names import hardware_names

if TYPE_CHECKING:
    from perfmodel.measure.profiling.roofline_gap import GapPrices

__all__ = ["profile"]


def profile(
    files: Annotated[
        list[Path], typer.Argument(help="op_summary, kernel_details, op_statistic, operator lists, traces.")
    ],
    device: Annotated[
        str | None,
        typer.Option("--device", help="Device by name, for the roofline.", autocompletion=hardware_names),
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option("--if", help="How much faster operators would be.", metavar="TYPE=1.3x|30%")
    ] = None,
    handover: Annotated[
        str,
        typer.Option(
            "--handover", help="Microseconds within which a start counts as waiting for another stream; 0: never."
        ),
    ] = "20",
    plot: Annotated[Path | None, typer.Option("--plot", help="Heat map: .png, .svg or .pdf.")] = None,
    form: Annotated[str | None, typer.Option("--format", help="Format of the files; recognised without it.")] = None,
    top: Annotated[str, typer.Option("--top", help="Lines of each table.", metavar="N")] = "20",
    runtime: Annotated[str, typer.Option("--runtime", help="Engine whose fits predict, e.g. vllm-0.11.")] = "",
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Read a profile: shares by operator and stream, critical path, what-if, gaps to the roofline, suggestions.

    ```
    perfmodel profile op_summary_0.csv --device ascend-910b2 --plot heat.png
    perfmodel profile kernel_details.csv --if MatMul=1.3x --if Softmax=2x
    perfmodel profile trace_view.json --handover 0 --json
    ```
    """
    from perfmodel.measure.profiling.profile_file import read_profile
    from perfmodel.measure.profiling.roofline_gap import roofline_gaps
    from perfmodel.measure.profiling.shares import operator_shares, stream_shares
    from perfmodel.measure.profiling.suggest import suggestions
    from perfmodel.measure.profiling.timeline import factor_of, timeline_of
    from perfmodel.measure.profiling.timeline import what_if as what_if_of
    from perfmodel.report.picture import checked_picture
    from perfmodel.report.profile import ProfileAnswer, profile_document, profile_parts, share_rows

    one_format(as_json=as_json, as_csv=as_csv)
    checked_picture(plot)
    asked = [factor_of(text) for text in what_if or ()]
    handover_s = number("--handover", handover, low=0.0, high=1e6) / 1e6
    n_rows = int(number("--top", top, low=1, high=10_000))
    prices = _prices(device, calibration, runtime, catalog) if device is not None else None
    found = read_profile(files, form)
    line = None if found.untestable else timeline_of(found, handover_s=handover_s or None)
    assumed = []
    if line is not None and line.n_inferred:
        assumed.append(
            f"{line.n_inferred} waits between streams, where an operator starts within {handover_s * 1e6:g} us after "
            "one of another stream while its own was idle"
        )
    if line is None and asked:
        assumed.append("operators run one after the other (what-if by Amdahl's law)")
    own = prices.ideal.device.device if prices is not None else None
    answer = ProfileAnswer(
        profile=found,
        operators=operator_shares(found),
        streams=stream_shares(found),
        timeline=line,
        untestable=found.untestable,
        what_ifs=[what_if_of(found, words, factor, timeline=line) for words, factor in asked],
        gaps=roofline_gaps(found, prices) if prices is not None else None,
        suggestions=suggestions(
            found,
            timeline=line,
            cache_bytes=own.last_cache_bytes if own is not None else 0.0,
            dram_bytes_per_s=own.dram_bytes_per_s if own is not None else 0.0,
        ),
        device=own.title if own is not None else "",
        assumed=assumed,
    )
    from perfmodel.report.output import csv_text, json_text, shown

    if as_json:
        print(json_text(profile_document(answer)))
    elif as_csv:
        print(csv_text(share_rows(answer)), end="")
    else:
        shown(*profile_parts(answer, n_rows=n_rows))
    if plot is not None:
        import sys

        from perfmodel.report.heat_map import save_heat_map

        print(f"wrote {save_heat_map(found, plot, title=found.name)}", file=sys.stderr)


def _prices(device: str, calibration: str, runtime: str, folders: list[Path] | None) -> GapPrices:
    """Return the prices of a device by the datasheet, by the hard bound and by its calibration."""
    from perfmodel.cli.options import catalogue_of
    from perfmodel.cost.kernel import KernelPrices
    from perfmodel.measure.profiling.roofline_gap import GapPrices

    catalogue = catalogue_of(folders)
    own = catalogue.hardware(device).device
    engine = catalogue.runtime(runtime).engine if runtime else ""
    fitted = catalogue.calibration_for(calibration, (own,), engine, runtime)
    ideal, bound = catalogue.calibration("ideal"), catalogue.calibration("hard-bound")
    return GapPrices(*(KernelPrices(one.for_device(own)) for one in (ideal, bound, fitted)))
