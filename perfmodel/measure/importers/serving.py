"""A serving benchmark as measurements: its rows, its derived figures, and reasons to distrust it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from perfmodel.errors import MeasurementError, SpecError, UnknownNameError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.physics import implied_prefill_finding
from perfmodel.measure.row import Row
from perfmodel.measure.serving_run import ServingRun, share_of
from perfmodel.specs.catalogue import Catalogue

__all__ = ["imported_serving", "model_and_scheme", "serving_doubts", "serving_facts"]

METRICS: Final = ("ttft", "tpot", "itl", "e2e")
_NAME: Final = re.compile(r"(?:[\w.+-]{1,80}/)?[\w.+-]{1,80}(?<!\.json)(?<!\.yaml)")
_LITTLE_SLACK: Final = 0.05
_LITTLE_IDLE: Final = 0.5
_IDENTITY_SLACK: Final = 0.02


def serving_facts(run: ServingRun) -> dict[str, Any]:
    """Return derived figures of a run by name, without those that the file does not allow."""
    tpot, itl = run.latency_s.get(("tpot", "mean")), run.latency_s.get(("itl", "mean"))
    drafts = run.n_drafts
    facts: dict[str, Any] = {
        "success_frac": run.success_frac,
        "mean_input_tokens": run.mean_input_tokens,
        "mean_output_tokens": run.mean_output_tokens,
        "little_concurrency": run.little_concurrency,
        "implied_prefill_tokens_per_s": run.implied_prefill_tokens_per_s,
        "output_tokens_per_s": run.output_tokens_per_s or share_of(run.total_output_tokens, run.duration_s),
        "itl_over_tpot": share_of(itl, tpot),
        "draft_tokens_per_step": share_of(run.n_draft_tokens, drafts),
        "acceptance_frac": share_of(run.n_accepted_tokens, run.n_draft_tokens) or run.acceptance_frac,
        "acceptance_length": _acceptance_length(run),
        "drafts_plus_accepted": None
        if drafts is None or run.n_accepted_tokens is None
        else drafts + run.n_accepted_tokens,
        "peak_concurrency": run.peak_concurrency,
        "duration_s": run.duration_s,
        "completed": run.completed,
        "n_prompts": run.n_asked,
        "model": run.model or None,
        **run.extra,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _acceptance_length(run: ServingRun) -> float | None:
    """Return tokens gained per verified step: accepted drafts and the one that the model adds itself."""
    accepted = share_of(run.n_accepted_tokens, run.n_drafts)
    return run.acceptance_length if accepted is None else 1.0 + accepted


def serving_doubts(run: ServingRun, *, min_success_frac: float = 0.95) -> tuple[list[str], list[str]]:
    """Return (reasons why the run must not be fitted, warnings)."""
    return [*_broken(run, min_success_frac)], [*_odd(run)]


def _broken(run: ServingRun, min_success_frac: float) -> list[str]:
    reasons = []
    if run.success_frac is not None and run.success_frac < min_success_frac:
        share = f"{run.success_frac:.0%}" if run.n_asked is None else f"{run.completed:g} of {run.n_asked:g}"
        reasons.append(f"only {share} requests succeeded; rates and times describe a server that failed")
    if run.completed == 0:
        reasons.append("no request succeeded")
    ttft = run.latency_s.get(("ttft", "mean"))
    if ttft is not None and ttft <= 0 and run.completed:
        speed = run.implied_prefill_tokens_per_s
        implied = f" ({speed:,.0f} prompt tokens/s implied)" if speed else ""
        reasons.append(
            f"time to first token is zero{implied}: inputs over the server limit were rejected, client counted them"
        )
    if run.retokenized_output_tokens == 0 and run.total_output_tokens:
        reasons.append(
            "no output was left after re-tokenising: the server sent no text, client counted requested lengths"
        )
    return reasons


def _impossible(run: ServingRun, context: Context) -> list[str]:
    """Return what physics says against the run, where device and model are known."""
    rate = run.implied_prefill_tokens_per_s
    device = context.device or str(run.stated.get("device", ""))
    name, scheme = model_and_scheme(run.model) if run.model else ("", "")
    if not rate or not device or not (context.model or name):
        return []
    stated = {**run.stated, **context.cells()}
    sizes = [float(stated.get(size) or 1) for size in ("tp", "pp", "dp")]
    n_devices = max(float(stated.get("n_devices") or 1), math.prod(sizes))
    finding = implied_prefill_finding(
        rate,
        device=device,
        model=context.model or name,
        quantization=context.quantization or scheme,
        catalogue=Catalogue.standard(),
        n_devices=int(n_devices),
    )
    if finding is None:
        return []
    return [f"{rate:,.0f} prompt tokens/s are {finding.factor:.1f} times what {device} can compute: {finding.hint}"]


def _odd(run: ServingRun) -> list[str]:
    warnings = [*_length_doubts(run), *_little_doubts(run), *_identity_doubts(run)]
    itl, tpot = run.latency_s.get(("itl", "mean")), run.latency_s.get(("tpot", "mean"))
    if itl and tpot and itl > 1.3 * tpot:
        length = _acceptance_length(run)
        why = (
            f"{length:.2f} tokens come per step"
            if length
            else "several tokens arrive together (speculation, or chunked streaming)"
        )
        warnings.append(
            f"time between tokens as seen (ITL) is {itl / tpot:.2f} x TPOT: {why}; compare predictions with TPOT"
        )
    if run.speculates:
        warnings.append("speculative decoding was on: TPOT is not the time of one decode step")
    if run.n_prompts and run.max_concurrency and run.n_prompts < 2 * run.max_concurrency:
        warnings.append("fewer than two requests per slot: start and end of the run weigh heavily")
    return warnings


def _length_doubts(run: ServingRun) -> list[str]:
    pairs = (
        ("input", run.mean_input_tokens, run.requested_input_tokens),
        ("output", run.mean_output_tokens, run.requested_output_tokens),
    )
    return [
        f"{side} tokens per request are {real:.0f}, not the {asked:.0f} that were requested: the real ones are used"
        for side, real, asked in pairs
        if real and asked and abs(real / asked - 1) > 0.05
    ]


def _little_doubts(run: ServingRun) -> list[str]:
    little, limit = run.little_concurrency, run.max_concurrency
    if little is None or not limit or not math.isfinite(limit):
        return []
    if little > limit * (1 + _LITTLE_SLACK):
        return [
            f"Little's law gives {little:.1f} requests in flight, over the limit of {limit:g}: the figures disagree"
        ]
    if little < limit * _LITTLE_IDLE and run.request_rate_per_s == math.inf:
        return [f"Little's law gives {little:.1f} requests in flight on average, far below the limit of {limit:g}"]
    return []


def _identity_doubts(run: ServingRun) -> list[str]:
    computed = share_of(run.total_output_tokens, run.duration_s)
    if computed and run.output_tokens_per_s and abs(computed / run.output_tokens_per_s - 1) > _IDENTITY_SLACK:
        printed = run.output_tokens_per_s
        return [f"output throughput is printed as {printed:.1f} tokens/s, tokens over duration give {computed:.1f}"]
    return []


def model_and_scheme(word: str) -> tuple[str, str]:
    """Return (catalogue name, weight scheme) of what a tool calls a model; the path's tail where it is not known.

    >>> model_and_scheme("/data/weights/Qwen2.5-7B-Instruct-AWQ/")
    ('qwen2.5-7b', 'awq-int4-g128')
    """
    cached = re.search(r"models--([^/\\]+?)--([^/\\]+)", word)
    parts = [part for part in re.split(r"[/\\]", word.strip()) if part]
    tail = cached[2] if cached else (parts[-1] if parts else "")
    catalogue = Catalogue.standard()
    for candidate in dict.fromkeys((*("/".join(parts[-2:]),) * (len(parts) > 1), tail)):
        if _NAME.fullmatch(candidate) and not Path(candidate).exists():  # a name, never a file of this machine
            try:
                choice = catalogue.model(candidate)
            except (UnknownNameError, SpecError):
                continue
            return choice.model.name, choice.scheme
    return tail.lower(), ""


def _finite(run: ServingRun) -> ServingRun:
    """Return a run without figures that no tool measures: infinite or negative ones. A load may be without limit."""
    unlimited = ("request_rate_per_s", "max_concurrency")
    numbers = {f.name: getattr(run, f.name) for f in fields(run)}
    dropped: dict[str, Any] = {
        name: None
        for name, value in numbers.items()
        if isinstance(value, float) and (value < 0 or (math.isinf(value) and name not in unlimited))
    }
    latency = {key: value for key, value in run.latency_s.items() if math.isfinite(value)}
    return replace(run, latency_s=latency, **dropped)


def _load(run: ServingRun, context: Context) -> dict[str, float]:
    """Return concurrency and rate as the table holds them: an infinite rate needs no mention beside a concurrency."""
    load: dict[str, float] = {}
    batch = context.batch if context.batch is not None else run.max_concurrency
    if batch:
        load["batch"] = batch
    rate = run.request_rate_per_s
    if rate is not None and (math.isfinite(rate) or not batch):
        load["request_rate_per_s"] = rate
    return load


def _run_rows(run: ServingRun, context: Context, *, status: str, note: str) -> list[Row]:
    name, scheme = model_and_scheme(run.model) if run.model else ("", "")
    named = context.filled(model=name, quantization=scheme, runtime=run.runtime, **run.stated)
    cells = {**named.cells(), **_load(run, context)}
    cells.setdefault("input_tokens", run.mean_input_tokens)
    cells.setdefault("output_tokens", run.mean_output_tokens)
    base = Row(kind="serve", status=status, note=note, **cells)
    rows = []
    std = {metric: run.latency_s.get((metric, "std")) for metric in METRICS}
    for (metric, stat), value in run.latency_s.items():
        if metric in METRICS and stat != "std" and value > 0:
            spread = std[metric] if stat == "mean" and run.completed else None
            error = spread / math.sqrt(run.completed) if spread and run.completed else None
            op = "" if stat == "mean" else stat
            rows.append(base.with_columns(metric=f"{metric}_s", value=value, op=op, stderr=error))
    rates = {
        "output_tokens_per_s": share_of(run.total_output_tokens, run.duration_s) or run.output_tokens_per_s,
        "requests_per_s": run.finished_per_s,
    }
    rows += [base.with_columns(metric=metric, value=value) for metric, value in rates.items() if value and value > 0]
    if run.speculates:
        length = _acceptance_length(run)
        rows += [base.with_columns(kind="counter", op="acceptance_length", metric="1", value=length)] if length else []
    return rows


def _another_model(run: ServingRun, context: Context) -> tuple[str, ...]:
    """Return that the run names another model than the one that is stated, where both are named."""
    if not run.model or not context.model:
        return ()
    (own, _), (stated, _) = model_and_scheme(run.model), model_and_scheme(context.model)
    return () if own == stated else (f"the file says that {own} was served; {stated}, which is stated, counts",)


def imported_serving(runs: Sequence[ServingRun], context: Context, format_name: str) -> Imported:
    """Return several runs as measurements; a run that must not be fitted has status invalid and says why."""
    rows: list[Row] = []
    warnings: list[str] = []
    facts: list[dict[str, Any]] = []
    usable = True
    for i, run in enumerate(map(_finite, runs)):
        broken, odd = serving_doubts(run, min_success_frac=context.min_success_frac)
        broken += _impossible(run, context)
        odd += _another_model(run, context)
        label = f"run {i + 1}: " if len(runs) > 1 else ""
        warnings += [f"{label}{sentence}" for sentence in (*broken, *odd)]
        usable &= not broken
        status = "invalid" if broken else ("suspect" if run.speculates else "ok")
        rows += _run_rows(run, context, status=status, note="; ".join((*broken, *odd)))
        facts.append({**serving_facts(run), "usable_for_fit": not broken})
    if not rows and usable:
        raise MeasurementError(
            f"{context.name} holds no result", got="no latency and no throughput", expected="a finished benchmark run"
        )
    merged = {**(facts[0] if len(facts) == 1 else {}), "runs": tuple(facts)}
    named = named_rows(rows, context, format_name)
    return Imported(
        format=format_name,
        rows=named,
        runs=tuple(map(_finite, runs)),
        facts=merged,
        warnings=tuple(warnings),
        usable_for_fit=usable,
    )
