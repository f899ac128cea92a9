"""`perfmodel dispatch`: launches, idle cores, workspace and page walks of a step."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.scheduling import TileFlag, tile_of
from perfmodel.cli.values import byte_count, wholes
from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.figures import SizeFigure, TimeFigure
from perfmodel.step.dispatch import dispatch_rows, workspace_growth_frac
from perfmodel.step.fitting import unfit_remarks
from perfmodel.step.question import Question, case_of
from perfmodel.units import bytes_text, quantity

__all__ = ["dispatch"]

_MOST_BATCH = 9_999_999


@asking
def dispatch(
    *,
    question: Question,
    catalogue: Catalogue,
    batches: Annotated[str, typer.Option("--batches", help="Sequences of a step, parted by commas.")] = "1,4,16,64",
    kernels: Annotated[bool, typer.Option("--kernels", help="List every kernel: units, waves, workspace.")] = False,
    tile: TileFlag = None,
    page: Annotated[
        str | None, typer.Option("--page-size", help="Page of large allocations, e.g. 4KiB.", metavar="SIZE")
    ] = None,
    reach: Annotated[
        str | None, typer.Option("--tlb-reach", help="Memory reached without a page walk.", metavar="SIZE")
    ] = None,
    walk: Annotated[str | None, typer.Option("--page-walk", help="Time of a page walk, e.g. 0.5us.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show what handing out a step costs: launches, idle cores, workspace and page walks, by phase and batch.

    A prefill step reads `--isl` tokens of each sequence, a decode step one token at that context. Pages, reach and
    tiles come from `hardware/scheduling/` where no flag states them.

    ```
    perfmodel dispatch llama-2-7b ascend-910b2 --isl 512 --runtime pytorch-eager
    perfmodel dispatch qwen3-8b a100-80gb-sxm --batches 1,8,64 \\
        --page-size 4KiB --csv
    ```
    """
    case = case_of(catalogue, question)
    device, work = case.setup.devices[0], case.workload
    cut = tile_of(tile, catalogue.core_of(device).tiling)
    pages = catalogue.scheduling_of(device).translation
    changes: dict[str, SizeFigure | TimeFigure] = {}
    for name, flag, text in (("page", "--page-size", page), ("reach", "--tlb-reach", reach)):
        if text is not None:
            changes[name] = SizeFigure(value=byte_count(flag, text), source=flag)
    if page is not None and changes["page"].value < 1.0:
        raise SpecError("a flag cannot be used", where="--page-size", got=repr(page), expected="at least a byte")
    if walk is not None:
        changes["walk"] = TimeFigure(value=quantity(walk, "seconds"), source="--page-walk")
    pages = pages.model_copy(update=changes)
    asked = [float(n) for n in wholes("--batches", batches, high=_MOST_BATCH)]
    found = dispatch_rows(case, cut, pages, asked)
    largest = {phase: max(float(d.stream_bytes) for d in found if d.phase == phase) for phase in ("prefill", "decode")}
    growth = float(workspace_growth_frac(largest["prefill"], largest["decode"]))
    from perfmodel.report.scheduling import dispatch_parts

    facts = {
        "model": case.setup.model.name,
        "device": device.name,
        "runtime": case.setup.runtime.name,
        "input_tokens": work.input_tokens,
        "page_bytes": pages.page.value,
        "tlb_reach_bytes": pages.reach.value,
        "page_walk_s": pages.walk.value,
        "two_stream_growth_frac": growth,
    }
    assumed = [
        *case.assumed,
        *unfit_remarks(case, batch=max(asked) * case.n_replicas),
        *_assumed_figures(pages),
        f"kernels cut into {cut.n_rows:g} x {cut.n_columns:g} outputs a core",
    ]
    if as_json:
        listed = [row for one in found for row in one.kernel_rows()]
        rows = [one.as_row() for one in found]
        print(json_text({**facts, "rows": rows, "kernels": listed, "assumed": assumed}))
    elif as_csv:
        print(csv_text(row for one in found for row in (one.kernel_rows() if kernels else [one.as_row()])), end="")
    else:
        remark = (
            f"Prefill and decode in streams of their own need {growth:.0%} more temporary memory than in one "
            f"({bytes_text(largest['prefill'])} and {bytes_text(largest['decode'])} at the largest batch)."
        )
        heading = f"{facts['model']} on {device.title}, {facts['runtime']}; {work.input_tokens:,.0f} input tokens"
        shown(*dispatch_parts(found, heading=heading, remarks=(remark,), assumed=assumed, kernels=kernels))


def _assumed_figures(pages: object) -> list[str]:
    words = {"page": "pages of", "reach": "page walks beyond", "walk": "a page walk"}
    found = []
    for name, word in words.items():
        figure = getattr(pages, name)
        if figure.source == "assumed":
            text = f"{figure.value * 1e6:g} us" if name == "walk" else bytes_text(figure.value)
            found.append(f"{word} {text} (no public figure)")
    return found
