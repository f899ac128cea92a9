"""`perfmodel sensitivity`: which figures matter, what would have to be true, and where a choice pays."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.values import choice, given, number, seconds, words
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.plan.breakeven import BreakEven, break_even_instance, break_even_quantization, break_even_tp
from perfmodel.plan.inverse import needed_for
from perfmodel.plan.knobs import Knob, Scene, knobs_of, together
from perfmodel.plan.prices import price_of, usd_per_hour
from perfmodel.plan.sensitivity import effects, outputs, steady_of
from perfmodel.report.answer import setup_text
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.report.picture import checked_picture
from perfmodel.report.sensitivity import SensitivityView, sensitivity_document, sensitivity_rows, sensitivity_tables
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.catalogue_kept import KeptCatalogue
from perfmodel.step.question import Question, case_of

__all__ = ["sensitivity"]

_NAMES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "e2e": "e2e_s",
    "throughput": "output_tokens_per_s",
    "capacity": "capacity_requests_per_s",
    "kv": "kv_tokens",
    "cost": "usd_per_million_tokens",
}
_LEAST = 0.01
"""Figures of a smaller elasticity are not asked what they would have to be."""
_ASKED_BACK = ("hardware", "calibration", "runtime", "price", "workload")


@asking
def sensitivity(
    *,
    question: Question,
    catalogue: Catalogue,
    request_rate: Annotated[
        str | None, typer.Option("--request-rate", help="Requests per second instead of users.", metavar="X")
    ] = None,
    of: Annotated[str, typer.Option("--of", help=f"What is looked at: {', '.join(_NAMES)}.")] = "tpot",
    change: Annotated[
        str, typer.Option("--change", help="Share by which each figure is changed.", metavar="X")
    ] = "0.1",
    price: Annotated[
        str | None, typer.Option("--price", help="Price of a device, e.g. 2.5/h; of its file without.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Value to reach, e.g. 40ms: what would have to be true?")
    ] = None,
    versus: Annotated[
        str | None, typer.Option("--versus", help="Other hardware whose value is to be reached.", metavar="HARDWARE")
    ] = None,
    break_even: Annotated[
        str | None, typer.Option("--break-even", help="tp, replicas, quantization=SCHEME; several by commas.")
    ] = None,
    ttft: Annotated[str | None, typer.Option("--ttft", help="Target of --break-even replicas, e.g. 1s.")] = None,
    tpot: Annotated[str | None, typer.Option("--tpot", help="Target of --break-even replicas, e.g. 50ms.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Tornado: .png, .svg or .pdf.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Turn every figure of hardware, runtime, calibration, model and workload, and see what it does in steady state.

    Elasticity: percent of change for one percent of the figure. --batch gives the users.

    ```
    perfmodel sensitivity llama-3.1-8b a100-80gb-sxm -b 32 --isl 1024 \\
        --osl 256 --plot tornado.png
    perfmodel sensitivity qwen3-32b 4xascend-910b3 -b 32 --isl 2000 --osl 500 \\
        --versus 4xa100-80gb-sxm
    perfmodel sensitivity qwen3-32b 4xa100-80gb-sxm -b 16 --target 20ms \\
        --break-even tp,replicas,quantization=awq-int4-g128 --tpot 50ms
    ```
    """
    checked_picture(plot)
    if target is not None and versus is not None:
        raise SpecError("two targets are given", got="--target and --versus", expected="one of them")
    change_frac = number("--change", change, low=1e-3, high=0.9)
    kept = KeptCatalogue.of(catalogue)
    rate = given("--request-rate", request_rate, low=1e-6, high=1e9)
    scene = _scene(kept, question, rate, price)
    output = _NAMES[choice("--of", of, _NAMES)]
    here = outputs(scene)
    if output not in here:
        cure = "Give --price 2.5/h." if of == "cost" else "Give --request-rate."
        raise SpecError(f"there is no {of} here", where="--of", cure=cure)
    if not np.isfinite(here[output]).all():
        limit = float(np.max(here["capacity_requests_per_s"]))
        raise InfeasibleError(
            f"there is no {of} of a queue that grows",
            got=f"{rate:g} requests/s",
            expected=f"below {limit:.4g} requests/s",
            cure="Lower the rate, or look at --of capacity.",
        )
    knobs = knobs_of(scene, (steady_of(scene).one.ttft, steady_of(scene).one.e2e))
    with progress("figures", len(knobs)) as advance:
        found = effects(scene, change_frac=change_frac, knobs=knobs, told=advance)
    view = SensitivityView(scene, output, change_frac, found)
    aim, aimed_at = _target(kept, question, output, target, versus, rate, price)
    if aim is not None:
        asked = [e.knob for e in view.ordered if e.knob.kind in _ASKED_BACK and not e.knob.is_whole]
        asked = [k for k in asked if any(e.knob is k and abs(float(e.elasticity[output])) > _LEAST for e in found)]
        asked.append(_all_rates(asked))
        view = replace(
            view, needed=tuple(needed_for(scene, k, output, aim) for k in asked), target=aim, target_words=aimed_at
        )
    view = replace(
        view, break_evens=_break_evens(kept, question, break_even, seconds("--ttft", ttft), seconds("--tpot", tpot))
    )
    if plot is not None:
        from perfmodel.report.sensitivity_plot import save_tornado

        print(f"wrote {save_tornado(view, plot, title=setup_text(scene.case))}", file=sys.stderr)
    if as_json:
        print(json_text(sensitivity_document(view)))
    elif as_csv:
        print(csv_text(sensitivity_rows(view)), end="")
    else:
        shown(*sensitivity_tables(view))


def _all_rates(knobs: list[Knob]) -> Knob:
    """Return peaks and bandwidths of the hardware as one knob: a faster device of the same kind."""
    rates = [k for k in knobs if k.kind == "hardware" and (".rates[" in k.name or "bandwidth" in k.name)]
    return together(f"together: {', '.join(k.name for k in rates)}", rates)


def _scene(catalogue: Catalogue, question: Question, rate: float | None, price: str | None) -> Scene:
    case = case_of(catalogue, question)
    work = case.workload
    own = price_of(case.setup.devices[0], {}).value_usd_per_hour
    return Scene(
        case=case,
        concurrency=work.batch if rate is None else None,
        requests_per_s=rate,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        usd_per_device_hour=own if price is None else usd_per_hour(price, where="--price"),
    )


def _target(
    catalogue: Catalogue,
    question: Question,
    output: str,
    target: str | None,
    versus: str | None,
    rate: float | None,
    price: str | None,
) -> tuple[float | None, str]:
    if versus is not None:
        other = _scene(catalogue, replace(question, hardware=versus, runtime=None), rate, price)
        found = outputs(other)
        if output not in found:
            raise SpecError(f"no such figure of {versus}", where="--versus", cure="Its price is not known.")
        value = float(np.atleast_1d(found[output])[0])
        return value, f", as {setup_text(other.case)} has"
    if target is None:
        return None, ""
    if output in ("ttft_s", "tpot_s", "e2e_s"):
        return seconds("--target", target), ""
    return number("--target", target, low=1e-12, high=1e18), ""


def _break_evens(
    catalogue: Catalogue, question: Question, text: str | None, ttft_s: float | None, tpot_s: float | None
) -> tuple[BreakEven, ...]:
    found: list[BreakEven] = []
    for part in words(text):
        name, _, scheme = part.partition("=")
        if name == "tp":
            found += break_even_tp(catalogue, question)
        elif name == "replicas":
            found += break_even_instance(catalogue, question, most_tpot_s=tpot_s, most_ttft_s=ttft_s)
        elif name == "quantization" and scheme:
            found += break_even_quantization(catalogue, question, scheme)
        else:
            expected = "tp, replicas or quantization=SCHEME"
            raise SpecError("a flag cannot be used", where="--break-even", got=repr(part), expected=expected)
    return tuple(found)
