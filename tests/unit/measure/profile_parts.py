"""Profiles in the true formats, written by us: a transformer on two streams as msprof tables it, and a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.cost.kernel import KernelPrices
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.roofline_gap import GapPrices
from perfmodel.specs.catalogue import Catalogue

HEADER = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),"
    "Task Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aiv_time(us),"
    "aiv_total_cycles"
)


class Op(NamedTuple):
    """One line of the table; times in microseconds."""

    type: str
    start: float
    duration: float
    stream: int = 2
    inputs: str = ""
    outputs: str = ""
    dtypes: str = ""
    out_dtypes: str = ""
    name: str = ""


def table(ops: Sequence[Op]) -> str:
    """Return op_summary_*.csv."""
    lines = [HEADER]
    for i, op in enumerate(ops):
        core = "HCCL" if op.type.startswith("hcom") else "AI_CORE"
        shapes, outs = (f'"{text}"' if text else "N/A" for text in (op.inputs, op.outputs))
        lines.append(
            f"0,4294967295,{i},{op.stream},{op.name or f'{op.type}_{i}'},{op.type},dynamic,{core},{op.start},"
            f"{op.duration},0.4,24,0,NO,{shapes},{op.dtypes or 'N/A'},ND,{outs},{op.out_dtypes or 'N/A'},ND,N/A,"
            f"{op.duration},1,0,0"
        )
    return "\n".join(lines) + "\n"


def transformer(n_layers: int = 8, n_tokens: int = 512, epoch: float = 0.0) -> list[Op]:
    """Return layers of a transformer: compute on stream 2, which waits for two all-reduces a layer on stream 5."""
    ops: list[Op] = []
    now = epoch
    t = n_tokens

    def run(kind: str, us: float, inputs: str, outputs: str, gap: float = 1.0, dtypes: str = "DT_BF16") -> None:
        nonlocal now
        n_in, n_out = inputs.count(";") + 1, outputs.count(";") + 1
        ops.append(
            Op(kind, now + gap, us, 2, inputs, outputs, ";".join([dtypes] * n_in), ";".join(["DT_BF16"] * n_out))
        )
        now = now + gap + us

    for _ in range(n_layers):
        run("RmsNorm", 11.0, f"{t},4096;4096", f"{t},4096")
        run("MatMulV2", 178.0, f"{t},4096;4096,12288", f"{t},12288")
        run("RotaryMul", 15.0, f"{t},4096;{t},128", f"{t},4096")
        run("FusedInferAttentionScore", 96.0, f"{t},4096;{t},4096;{t},4096", f"{t},4096")
        run("MatMulV2", 66.0, f"{t},4096;4096,4096", f"{t},4096")
        ops.append(Op("hcom_allReduce_", now + 4.0, 52.0, 5))
        now += 4.0 + 52.0
        run("AddRmsNorm", 13.0, f"{t},4096;{t},4096;4096", f"{t},4096;{t},4096", gap=3.0)
        run("MatMulV2", 330.0, f"{t},4096;4096,22016", f"{t},22016")
        run("Cast", 41.0, f"{t},22016", f"{t},22016")
        run("SwiGlu", 27.0, f"{t},22016", f"{t},11008")
        run("MatMulV2", 165.0, f"{t},11008;11008,4096", f"{t},4096")
        ops.append(Op("hcom_allReduce_", now + 4.0, 52.0, 5))
        now += 4.0 + 55.0
    return ops


def written(folder: Path, name: str, text: str) -> Path:
    """Return the path of a file with that text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def trace(events: Sequence[dict[str, Any]]) -> str:
    """Return a Chrome trace as torch_npu writes it."""
    rows = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "Ascend Hardware"}}]
    return json.dumps({"traceEvents": [*rows, *events]})


def span(name: str, ts: float, dur: float, tid: int = 2) -> dict[str, Any]:
    """Return an event that ran on the device."""
    return {"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {"Task Type": "AI_CORE"}}


def op(kind: str, start: float, duration: float, stream: str = "1", **more: Any) -> OperatorTiming:
    """Return an operator; times in microseconds."""
    return OperatorTiming(
        name=f"{kind}_{start:g}", type=kind, start_s=start / 1e6, duration_s=duration / 1e6, stream=stream, **more
    )


def prices(catalogue: Catalogue, device: str = "ascend-910b2") -> GapPrices:
    own = catalogue.device(device)
    names = ("ideal", "hard-bound", "prior")
    return GapPrices(*(KernelPrices(catalogue.calibration(name).for_device(own)) for name in names))
