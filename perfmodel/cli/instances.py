"""`perfmodel instances`: how many copies should share a device."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.values import choice, number
from perfmodel.cost.contention import Sharing
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.report.answer import explanation, explanation_document, setup_document, setup_text
from perfmodel.report.instances import instances_document, instances_rows, instances_tables
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.report.picture import checked_picture
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.model import FixedWork
from perfmodel.step.instances import InstanceRow, best_instances, fixed_work_demand, fixed_work_rows, instance_rows
from perfmodel.step.question import Question, case_of
from perfmodel.units import GIB, KILO

__all__ = ["instances"]

_SHARINGS = {"interleaved": "interleaved", "time-sliced": "time_sliced", "partitioned": "partitioned"}
_LATENCIES = {"e2e": "cycle_s", "ttft": "ttft_s", "tpot": "tpot_s"}
_MOST = 256
_ASSUMED = {
    "interleaved": "kernels of all instances interleave freely on the device",
    "time_sliced": "one instance has the device at a time, and its gaps between kernels are lost",
    "partitioned": "cores and bandwidth are cut into equal parts",
}


@asking
def instances(
    *,
    question: Question,
    catalogue: Catalogue,
    counts: Annotated[
        str, typer.Option("--instances", help="Numbers to try: 1..16, or the largest.", metavar="N")
    ] = "1..8",
    sharing: Annotated[str, typer.Option("--sharing", help="interleaved, time-sliced or partitioned.")] = "interleaved",
    latency_limit: Annotated[
        str | None, typer.Option("--latency-limit", help="Most that a latency may be, in ms.", metavar="MS")
    ] = None,
    latency_of: Annotated[str, typer.Option("--latency-of", help="e2e, ttft or tpot.")] = "e2e",
    n_pixels: Annotated[
        str,
        typer.Option("--image-pixels", help="Pixels of the JPEG that media units decode for each sample.", metavar="N"),
    ] = "0",
    instance_gib: Annotated[
        str | None,
        typer.Option(
            "--instance-gib", help="Memory of one instance of a network of fixed work, GiB; 1 without it.", metavar="X"
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the tree of the best number's cycle.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture of throughput and speed.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Share devices among equal instances: latency, throughput and memory against their number, and the best one.

    --batch is that of one instance. Instances stand evenly on the devices (-n), and the fullest device counts. The
    cycle is a batch of requests from its first prompt to its last token, or one batch of samples.

    ```
    perfmodel instances qwen2.5-1.5b ascend-910b2 --batch 4 --instances 1..8
    perfmodel instances llama-3.1-8b a100-80gb-sxm --batch 8 \\
        --sharing time-sliced
    perfmodel instances llama-3.1-8b a100-80gb-sxm --latency-limit 25 \\
        --latency-of tpot
    perfmodel instances resnet-50 ascend-910b2 -n 8 --batch 16 \\
        --instances 1..16 --image-pixels 187500 --plot instances.png
    ```
    """
    n_most, checked = _most(counts), checked_picture(plot)
    kind = cast(Sharing, _SHARINGS[choice("--sharing", sharing, _SHARINGS)])
    of = _LATENCIES[choice("--latency-of", latency_of, _LATENCIES)]
    limit_s = None if latency_limit is None else number("--latency-limit", latency_limit, low=1e-6, high=1e12) / KILO
    pixels = number("--image-pixels", n_pixels, low=0, high=1e12)
    fixed = catalogue.fixed_work(question.model) if question.model else None
    if fixed is not None:
        if of != "cycle_s":
            raise SpecError("samples have no tokens", where="--latency-of", got=latency_of, expected="e2e")
        size = number("--instance-gib", "1" if instance_gib is None else instance_gib, low=0, high=1e6) * GIB
        rows, title, head, notes = _fixed(catalogue, question, fixed, n_most, kind, pixels, size)
        items, warnings = "samples", []
    else:
        if pixels:
            raise SpecError("a language model has no images to decode", where="--image-pixels", got=n_pixels)
        if instance_gib is not None:
            raise SpecError("the memory of a language model is computed", where="--instance-gib", got=instance_gib)
        case = case_of(catalogue, replace(question, batch=question.batch or question.deployment.max_concurrency))
        rows = instance_rows(case, n_most, sharing=kind)
        title = f"{setup_text(case)}; each instance a batch of {case.workload.batch:g}; {sharing}"
        head = setup_document(case) | {"n_groups": case.n_replicas, "batch_per_instance": case.workload.batch}
        notes, warnings, items = list(case.assumed), list(case.warnings), "tokens"
    notes += [_ASSUMED[kind], "instances spread evenly over the devices; the fullest one sets the latency"]
    head |= {"sharing": kind, "latency_limit_s": limit_s, "latency_of": of}
    best = best_instances(rows, limit_s=limit_s, of=of)
    if checked is not None:
        from perfmodel.report.instances_plot import save_instances

        save_instances(rows, best, checked, title=title, items=items)
    explained = (best or rows[0]).tree
    if as_json:
        document = instances_document(rows, best, head=head, assumed=notes, warnings=warnings)
        print(json_text(document | ({"explanation": explanation_document(explained)} if explain else {})))
    elif as_csv:
        print(csv_text(instances_rows(rows)), end="")
    else:
        shown(*instances_tables(rows, best, title=title, items=items, assumed=notes, warnings=warnings))
        if explain:
            shown(*explanation((explained,)))
    if best is None:
        raise InfeasibleError(
            "no number of instances fits within the limit",
            got=f"1 to {n_most}",
            expected="memory for one, and a latency within --latency-limit",
        )
    if checked is not None and not (as_json or as_csv):
        print(f"wrote {checked}", file=sys.stderr)


def _most(text: str) -> int:
    low, dots, high = text.partition("..")
    if dots and low.strip() != "1":
        raise SpecError("a flag cannot be used", where="--instances", got=repr(text), expected="1..N, or N")
    value = number("--instances", high if dots else low, low=1, high=_MOST)
    if value != int(value):
        raise SpecError("a flag cannot be used", where="--instances", got=repr(text), expected="a whole number")
    return int(value)


def _fixed(
    catalogue: Catalogue, question: Question, work: FixedWork, n_most: int, sharing: Sharing, pixels: float, size: float
) -> tuple[tuple[InstanceRow, ...], str, dict[str, Any], list[str]]:
    """Return rows, title, document head and assumptions for a network of fixed work."""
    hardware = catalogue.hardware(question.hardware)
    n_devices = int(question.n_devices or hardware.n_devices or 1)
    batch = float(question.batch or 1)
    calibration = catalogue.calibration_for(question.calibration, [hardware.device], question.runtime or "none")
    demand = fixed_work_demand(work, calibration.for_device(hardware.device), batch=batch, n_pixels=pixels)
    rows = fixed_work_rows(
        demand, hardware.device, n_most, batch=batch, instance_bytes=size, n_devices=n_devices, sharing=sharing
    )
    title = f"{question.model} on {n_devices} x {hardware.device.name}; each instance a batch of {batch:g}"
    head = {
        "model": question.model,
        "device": hardware.device.name,
        "n_devices": n_devices,
        "batch_per_instance": batch,
    }
    notes = [f"{size / GIB:g} GiB for each instance", "no host time; the network as one kernel in fp16"]
    notes.append("weights stay in the last cache as far as those of all instances fit")
    if not pixels:
        notes.append("images are there already decoded")
    return rows, title, head, notes
