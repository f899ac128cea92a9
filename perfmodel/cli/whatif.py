"""`perfmodel whatif`: variations side by side."""

from __future__ import annotations

from math import prod
from typing import Annotated

import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.cli.flags import Csv, Json, Markdown
from perfmodel.cli.options import asking
from perfmodel.errors import InfeasibleError, PerfmodelError, SpecError
from perfmodel.report.comparison import Variation, comparison_document, comparison_rows, comparison_tables
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Question, case_of
from perfmodel.step.variation import parsed_axes, variations

__all__ = ["whatif"]

_MOST = 64


@asking
def whatif(
    *,
    question: Question,
    catalogue: Catalogue,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", help="name=value,value: an axis; repeat for more.", metavar="NAME=VALUES"),
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    as_markdown: Markdown = False,
) -> None:
    """Compare variations: times, rates and memory with changes in percent, the best marked and explained.

    MODEL and HARDWARE are named in any case; axes replace them. A variation that does not fit is listed with the
    reason. Exit code 1 when none works.

    ```
    perfmodel whatif llama-3.1-8b ascend-910b3 --vary quantization=none,w8a8 \\
        --batch 16 --isl 2048 --osl 256
    perfmodel whatif qwen3-32b a100-80gb-sxm --vary tp=1,2,4 \\
        --vary kv_cache_dtype=auto,fp8 --batch 32
    perfmodel whatif deepseek-v3 8xh200-sxm --batch 64 --markdown \\
        --vary hardware=8xh200-sxm,8xh20,16xascend-910c-die
    ```

    Axes: hardware, model, quantization, kv_cache_dtype, tp, pp, dp, ep, batch, isl, osl, runtime, calibration,
    max_model_len, gpu_memory_utilization, and every other flag.
    """
    if not vary:
        raise SpecError(
            "nothing to vary", expected="--vary name=value,value", cure="For one answer use `perfmodel estimate`."
        )
    axes = parsed_axes(vary)
    n_combinations = prod(len(values) for values in axes.values())
    if not 1 <= n_combinations <= _MOST:
        raise SpecError(
            "too many variations to compare",
            got=str(n_combinations),
            expected=f"at most {_MOST}",
            cure="Use `perfmodel sweep`.",
        )
    schemes = remedy_schemes(catalogue)
    found: list[Variation] = []
    for changes, changed in variations(question, axes):
        try:
            found.append((changes, answer_to(case_of(catalogue, changed), schemes=schemes)))
        except PerfmodelError as error:
            found.append((changes, error))
    errors = [answer for _, answer in found if isinstance(answer, PerfmodelError)]
    if len(errors) == len(found) and not any(isinstance(e, InfeasibleError) for e in errors):
        raise errors[0]
    if as_json:
        print(json_text(comparison_document(found)))
    elif as_csv:
        print(csv_text(comparison_rows(found)), end="")
    elif as_markdown:
        from perfmodel.report.markdown import comparison_markdown

        print(comparison_markdown(found))
    else:
        shown(*comparison_tables(found))
    if len(errors) == len(found):
        raise InfeasibleError("no variation works")
