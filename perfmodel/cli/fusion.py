"""`perfmodel fusion`: chains of operators before and after fusing them."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.phase import PhaseFlag, phase_of
from perfmodel.cli.values import whole
from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.fusion import Fusion, chain_size, fusions, tokens_for_time, total_time
from perfmodel.step.question import Question, case_of
from perfmodel.units import quantity, time_text
from perfmodel.work.fusion_chains import CHAINS, ChainSize

__all__ = ["fusion"]


@asking
def fusion(
    *,
    question: Question,
    catalogue: Catalogue,
    chain: Annotated[
        str, typer.Option("--chain", help=f"{', '.join(CHAINS)}, or all; several parted by commas.", metavar="NAME")
    ] = "all",
    phase: PhaseFlag = "prefill",
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="New tokens of the step; batch x isl without it.", metavar="N")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option("--match", help="Find the tokens at which all layers apart take this long, e.g. 40ms."),
    ] = None,
    operators: Annotated[bool, typer.Option("--operators", help="List every kernel of every chain too.")] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare chains of operators apart and fused: kernels, bytes, peak memory and time of one layer.

    ```
    perfmodel fusion llama-2-7b ascend-910b2 --chain kv-write --batch 4 \\
        --isl 2048
    perfmodel fusion deepseek-v3 ascend-910b2 --chain softmax,swiglu \\
        --tokens 4096 --operators
    perfmodel fusion llama-2-7b ascend-910b2 --chain kv-write --match 40ms
    perfmodel fusion qwen3-8b a100-80gb-sxm --phase decode --batch 64 \\
        --isl 4096 --csv
    ```
    """
    if match is not None and tokens is not None:
        raise SpecError("two sizes of the step are asked for", got="--tokens and --match", expected="one of them")
    case = case_of(catalogue, question)
    work, asked_phase, asked = case.workload, phase_of(phase), whole("--tokens", tokens)
    n_seqs = work.batch
    if asked is not None:
        n_seqs = asked / work.input_tokens if asked_phase == "prefill" else float(asked)
    names = () if chain == "all" else tuple(word.strip() for word in chain.split(","))
    engine = case.engine

    def sized(n: float) -> tuple[ChainSize, tuple[Fusion, ...]]:
        own = chain_size(phase=asked_phase, n_seqs=n, input_tokens=work.input_tokens)
        return own, fusions(engine, own, phase=asked_phase, names=names)

    if match is not None:
        per_seq = work.input_tokens if asked_phase == "prefill" else 1.0
        n_seqs = (
            tokens_for_time(
                lambda n: float(total_time(sized(n / per_seq)[1], fused=False).value), quantity(match, "seconds")
            )
            / per_seq
        )
    size, found = sized(n_seqs)
    totals = {side: float(total_time(found, fused=side == "fused").value) for side in ("apart", "fused")}
    from perfmodel.report.fusion import fusion_document, fusion_parts

    facts = {
        "model": case.setup.model.name,
        "device": case.setup.devices[0].name,
        "runtime": case.setup.runtime.name,
        "phase": asked_phase,
        "n_tokens": float(size.n_tokens),
        "all_layers_apart_s": totals["apart"],
        "all_layers_fused_s": totals["fused"],
        "input_tokens": work.input_tokens,
    }
    if as_json:
        print(json_text({**fusion_document(found, facts), "assumed": list(case.assumed)}))
    elif as_csv:
        print(csv_text(one.as_row() for one in found), end="")
    else:
        heading = (
            f"{facts['model']} on {facts['device']}, {facts['runtime']}; {asked_phase} of {size.n_tokens:,.0f} tokens, "
            f"contexts of {work.input_tokens:,.0f}; all layers {time_text(totals['apart'])} apart, "
            f"{time_text(totals['fused'])} fused"
        )
        shown(*fusion_parts(found, heading=heading, assumed=case.assumed, operators=operators))
