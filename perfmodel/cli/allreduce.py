"""`perfmodel allreduce`: the message behind attention, cut by groups of heads."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.values import choice, number, whole, wholes
from perfmodel.errors import SpecError
from perfmodel.report.answer import explanation, explanation_document, setup_document, setup_text
from perfmodel.report.head_groups import grouping_document, grouping_rows_flat, grouping_tables
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.fitting import unfit_remarks
from perfmodel.step.head_groups import best_grouping, grouping_rows
from perfmodel.step.question import Case, Question, case_of
from perfmodel.work.head_groups import Split
from perfmodel.work.kernel import Slice

__all__ = ["allreduce"]

_SPLITS = ("columns", "heads")
_PHASES = ("prefill", "decode")
_MOST_GROUPS = 4096
_LEAST_SHARE = 0.01


@asking
def allreduce(
    *,
    question: Question,
    catalogue: Catalogue,
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Tokens of the step; batch x isl without it.", metavar="N")
    ] = None,
    head_groups: Annotated[
        str, typer.Option("--head-groups", help="Numbers of groups to compare, e.g. 1,2,4.", metavar="N,N")
    ] = "1,2,4,8",
    split: Annotated[
        str,
        typer.Option("--split", help="columns: each message a part of the output; heads: partial sums of all of it."),
    ] = "columns",
    phase: Annotated[
        str, typer.Option("--phase", help="prefill (of --batch prompts), or decode at --isl.")
    ] = "prefill",
    align: Annotated[
        str | None,
        typer.Option("--align", help="Bytes that each rank's share is rounded up to; the line of the L2 without it."),
    ] = None,
    no_overlap: Annotated[
        bool, typer.Option("--no-overlap", help="Nothing is computed while a message is sent.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print the tree of the best number's step.")] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Cut the all-reduce behind attention into groups: sizes, padding, time, share of the step, and the best number.

    More groups hide more of the message behind the projection of the next group, and pay its start more often.

    ```
    perfmodel allreduce llama-3.1-8b dgx-a100 -tp 4 --tokens 4096 \\
        --head-groups 1,2,4
    perfmodel allreduce llama-3.1-70b atlas-800i-a2 -tp 8 --tokens 8192
    perfmodel allreduce llama-3.1-8b dgx-a100 -tp 4 --phase decode --tokens 32 \\
        --isl 2048
    ```
    """
    groups = wholes("--head-groups", head_groups, high=_MOST_GROUPS)
    n_tokens = whole("--tokens", tokens)
    case = case_of(catalogue, question)
    unit = _unit_bytes(case, align)
    one = _slice(case, n_tokens, choice("--phase", phase, _PHASES))
    cut = cast(Split, choice("--split", split, _SPLITS))
    rows = grouping_rows(case.engine, (one,), groups, split=cut, unit_bytes=unit, overlap=not no_overlap)
    count = float(one.n_tokens)
    notes = [*case.assumed, *unfit_remarks(case)]
    notes += [f"shares of {unit:g} bytes" if unit else "no alignment: the device file states no line"]
    notes.append(
        "messages wait for the projection" if no_overlap else "a message is sent while the next group is computed"
    )
    if as_json:
        head = setup_document(case) | {"phase": phase, "n_tokens": count, "split": split, "align_bytes": unit}
        document = grouping_document(rows, head=head, assumed=notes, warnings=case.warnings)
        tree = explanation_document(best_grouping(rows).tree)
        print(json_text(document | ({"explanation": tree} if explain else {})))
    elif as_csv:
        print(csv_text(grouping_rows_flat(rows)), end="")
    else:
        title = f"{setup_text(case)}; all-reduce behind attention, {phase} of {count:g} tokens, cut by {split}"
        shown(*grouping_tables(rows, title=title, assumed=notes, warnings=case.warnings))
        if explain:
            shown(*explanation((best_grouping(rows).tree,), least_share=_LEAST_SHARE))


def _unit_bytes(case: Case, text: str | None) -> float:
    if text is not None:
        return number("--align", text, low=0, high=2**30)
    level = case.setup.devices[0].level("l2")
    return level.line_bytes.value if level is not None and level.line_bytes is not None else 0.0


def _slice(case: Case, n_tokens: int | None, phase: str) -> Slice:
    work = case.workload
    if phase == "decode":
        n_seqs = float(n_tokens if n_tokens is not None else work.batch)
        return Slice("decode", n_seqs, 1.0, work.input_tokens + 1.0, work.input_tokens + 1.0)
    length = work.input_tokens if n_tokens is None else n_tokens / work.batch
    if length < 1:
        raise SpecError("a prompt has less than a token", got=f"{n_tokens} tokens for {work.batch:g} prompts")
    return Slice("prefill", work.batch, length, 1.0, length)
