"""`perfmodel recompute`: keys and values kept, computed anew, or brought back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.fitting import unfit_remarks
from perfmodel.step.question import Question, case_of
from perfmodel.step.recompute import break_even_flop_per_byte, break_even_tokens, kv_ways

__all__ = ["recompute"]


@asking
def recompute(*, question: Question, catalogue: Catalogue, as_json: Json = False, as_csv: Csv = False) -> None:
    """Compare ways to have the keys and values of a sequence: kept and read, computed anew, or brought back.

    Times are for one sequence of `--isl` tokens over all layers of a rank. Break-even: where the quicker one of two
    ways that are paid equally often changes.

    ```
    perfmodel recompute llama-2-7b ascend-910b2 --isl 2048
    perfmodel recompute deepseek-v3 8xh200-sxm --isl 32768 --json
    ```
    """
    case = case_of(catalogue, question)
    engine, n_tokens = case.engine, case.workload.input_tokens
    ways = kv_ways(engine, n_tokens)
    most = float(case.setup.model.max_position_tokens or 2**17)
    breaks: dict[str, float | None] = {}

    def seconds_of(name: str) -> Callable[[float], float]:
        return lambda n: next(float(way.time.value) for way in kv_ways(engine, n) if way.name == name)

    for paid in ("each step", "once"):
        names = [way.name for way in ways if way.paid == paid]
        for first, second in pairwise(names):
            breaks[f"{first} / {second}"] = break_even_tokens(seconds_of(first), seconds_of(second), most_tokens=most)
    device, assumed = case.setup.devices[0], [*case.assumed, *unfit_remarks(case)]
    needed = break_even_flop_per_byte(ways)
    ridge = device.peak_flop_per_s(case.setup.dtype) / device.dram_bytes_per_s
    from perfmodel.report.fusion import way_document, way_parts, way_rows

    facts = {
        "model": case.setup.model.name,
        "device": device.name,
        "runtime": case.setup.runtime.name,
        "n_tokens": n_tokens,
        "break_even_flop_per_byte": needed,
        "ridge_flop_per_byte": ridge,
    }
    if as_json:
        print(json_text({**way_document(ways, breaks, facts), "assumed": assumed}))
    elif as_csv:
        print(csv_text(way_rows(ways)), end="")
    else:
        heading = f"{facts['model']} on {facts['device']}: {n_tokens:,.0f} cached tokens of one sequence, all layers"
        remark = (
            "Layer inputs are no smaller than the keys and values made from them: projecting never pays."
            if needed is None
            else f"Projecting pays on a device of more than {needed:,.0f} flop a byte; this one does {ridge:,.0f}."
        )
        shown(*way_parts(ways, breaks, heading=heading, remarks=(remark,), assumed=assumed))
