"""`perfmodel issue`: a short instruction sequence on the pipes of a core, and what a change of IPC does to a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names, model_names
from perfmodel.cli.options import catalogue_of
from perfmodel.cli.values import number, whole_number

__all__ = ["issue"]


def issue(
    hardware: Annotated[
        str,
        typer.Argument(help="Device whose core to run on.", metavar="DEVICE", autocompletion=hardware_names),
    ],
    program: Annotated[
        str | None, typer.Argument(help="`op target, source, ...` parted by `;`, or a file.", metavar="PROGRAM")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="fp16, fp32, int8, ...")] = "fp16",
    elements: Annotated[str, typer.Option("--elements", help="Elements of a call that says none.")] = "128",
    iterations: Annotated[str, typer.Option("--iterations", help="How often the program runs, as a loop.")] = "1",
    forwarding: Annotated[
        bool, typer.Option("--forwarding", help="Hand results on before they are written back.")
    ] = False,
    width: Annotated[str | None, typer.Option("--width", help="Instructions started a cycle.", metavar="N")] = None,
    latency: Annotated[
        list[str] | None, typer.Option("--latency", help="op=cycles: another latency; repeat.", metavar="OP=N")
    ] = None,
    ipc: Annotated[
        str | None, typer.Option("--ipc", help="before,after: what that change does to a time.", metavar="X,Y")
    ] = None,
    issue_share: Annotated[
        str, typer.Option("--issue-share", help="With --ipc: share of the time that issue bounds.")
    ] = "1",
    longer: Annotated[
        str | None,
        typer.Option("--longer", help="With --ipc: a stated change of time, 1.12 for +112 %.", metavar="X"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="With --ipc: stretch this model's TTFT and TPOT.",
            metavar="MODEL",
            autocompletion=model_names,
        ),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", "-b", help="With --model: sequences in flight.")] = "1",
    isl: Annotated[str, typer.Option("--isl", help="With --model: input tokens.")] = "512",
    osl: Annotated[str, typer.Option("--osl", help="With --model: output tokens.")] = "128",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Run a short instruction sequence on the pipes of a core: cycles, IPC and what each instruction waits for.

    Pipes start instructions in order and work beside each other. Latencies, pipes and issue width are those of the
    device's class of cores (`hardware/cores/`).

    ```
    perfmodel issue ascend-910b2 "vadd c, a, b; vmul d, c, b; vdiv e, d, a"
    perfmodel issue ascend-910b2 chain.txt --dtype fp32 --iterations 100 \\
        --forwarding
    perfmodel issue ascend-910b2 --ipc 3.8,1.9 --longer 1.12
    perfmodel issue ascend-910b2 --ipc 3.8,1.9 \\
        --model deepseek-r1-distill-qwen-7b --isl 2048
    ```
    """
    from perfmodel.errors import SpecError

    one_format(as_json=as_json, as_csv=as_csv)
    if model is not None and ipc is None:
        raise SpecError("a model is named, but no change", got="--model", expected="--ipc before,after beside it")
    if program is None and ipc is None:
        raise SpecError("there is nothing to run", expected="a PROGRAM or --ipc before,after")
    if as_csv and program is None:
        raise SpecError("there is no table to print", got="--csv", expected="a PROGRAM, or --json")
    load = {
        name: whole_number(f"--{name}", text, low=1, high=10**7)
        for name, text in (("batch", batch), ("isl", isl), ("osl", osl))
    }
    document: dict[str, object] = {}
    table: list[dict[str, Any]] = []
    texts: list[Callable[[], None]] = []  # shown at the end, so that a fault leaves no half of an answer
    if program is not None:
        document, table, text = _run(
            hardware, program, dtype, elements, iterations, forwarding, width, latency, catalog
        )
        texts.append(text)
    if ipc is not None:
        document["change"], text = _change(ipc, issue_share, longer)
        texts.append(text)
    if ipc is not None and model is not None:
        document["times"], text = _times(hardware, model, ipc, load, catalog)
        texts.append(text)
    from perfmodel.report.output import csv_text, json_text

    if as_json:
        print(json_text(document))
    elif as_csv:
        print(csv_text(table), end="")
    else:
        for show in texts:
            show()


def _run(
    hardware: str, program: str, dtype: str, elements: str, iterations: str, forwarding: bool, width: str | None,
    latency: list[str] | None, catalog: list[Path] | None,
) -> tuple[dict[str, object], list[dict[str, Any]], Callable[[], None]]:  # fmt: skip
    """Return the run as a document, its rows, and what shows it."""
    from perfmodel.cost.issue import machine_of, pipeline_run, program_of
    from perfmodel.report.issue import pipeline_document, pipeline_rows, pipeline_tables
    from perfmodel.report.output import shown

    catalogue = catalogue_of(catalog)
    device = catalogue.hardware(hardware).device
    core = catalogue.core_of(device)
    machine = machine_of(
        core,
        dtype=dtype,
        width=None if width is None else whole_number("--width", width, low=1, high=64),
        has_forwarding=forwarding,
        latency_cycles=_latencies(latency or []),
    )
    calls = program_of(_text(program), n_elements=number("--elements", elements, low=1, high=1e9))
    n_iterations = whole_number("--iterations", iterations, low=1, high=1_000_000 // len(calls))
    run = pipeline_run(calls, machine, n_iterations=n_iterations)
    clock_hz = device.boost_clock.value if device.boost_clock is not None else None
    named = f"{core.title}, {dtype}, {'with' if forwarding else 'no'} forwarding, at most {machine.width} a cycle"
    show = partial(shown, *pipeline_tables(run, core=named, clock_hz=clock_hz))
    return pipeline_document(run, core=core.name, clock_hz=clock_hz), pipeline_rows(run), show


def _text(program: str) -> str:
    """Return the program itself, or what stands in the file of that name."""
    from perfmodel.specs.files import read_text

    is_name = program and not any(sign in program for sign in " ;,\n")
    return read_text(Path(program)) if is_name else program


def _latencies(texts: list[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        op, _, cycles = text.partition("=")
        found[op.strip()] = number("--latency", cycles.strip(), low=0, high=1e6)
    return found


def _ipc(text: str) -> tuple[float, float]:
    """Return (before, after) of `3.8,1.9`; raises SpecError."""
    from perfmodel.errors import SpecError

    parts = text.split(",")
    if len(parts) != 2:
        raise SpecError("a flag cannot be used", where="--ipc", got=repr(text), expected="before,after, as in 3.8,1.9")
    before, after = (number("--ipc", part, low=1e-6, high=1e6) for part in parts)
    if before == after:
        raise SpecError("the IPC does not change", where="--ipc", got=repr(text), expected="two different values")
    return before, after


def _change(ipc: str, issue_share: str, longer: str | None) -> tuple[dict[str, float | None], Callable[[], None]]:
    """Return what a change of IPC does to a time, and what shows it."""
    from perfmodel.report.issue import change_document, change_text

    before, after = _ipc(ipc)
    change = change_document(
        before,
        after,
        bound_share=number("--issue-share", issue_share, low=1e-9, high=1),
        longer_frac=None if longer is None else number("--longer", longer, low=-1, high=1e6),
    )
    return change, partial(print, "\n".join(change_text(change)))


def _times(
    hardware: str, model: str, ipc: str, load: dict[str, int], catalog: list[Path] | None
) -> tuple[dict[str, dict[str, float]], Callable[[], None]]:
    """Return what the change does at most to TTFT and TPOT, as all work of cores stretches, and what shows it."""
    from perfmodel.api import estimate
    from perfmodel.report.issue import stretched_documents, stretched_text

    before, after = _ipc(ipc)
    answer = estimate(model, hardware, catalogue=catalogue_of(catalog), **load)
    found = stretched_documents(
        {"ttft": answer.request.ttft, "tpot": answer.request.tpot}, before_ipc=before, after_ipc=after
    )
    return found, partial(print, "\n".join(stretched_text(found)))
