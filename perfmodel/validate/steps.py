"""Predictions for rows of steps and of static generation: one engine for each setup, arrays over batch and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.estimate import Num, ceiling, smaller
from perfmodel.measure.table import Table
from perfmodel.specs.deployment import Deployment
from perfmodel.step.grid import token_budgets
from perfmodel.step.question import Case, Question, case_of
from perfmodel.step.request import prefill_slice, request_estimate
from perfmodel.validate.parts import Found, Parts, Positions, found_of, grouped, refused
from perfmodel.validate.wiring import wired_system
from perfmodel.work.kernel import Slice
from perfmodel.work.memory import memory_plan

__all__ = ["SETUP_COLUMNS", "STEP_KINDS", "case_of_row", "step_predictions"]

STEP_KINDS: Final = ("prefill_step", "decode_step", "generate")
SETUP_COLUMNS: Final = (
    "device", "n_devices", "link", "model", "runtime", "compute_dtype", "quantization", "kv_dtype",
    "tp", "pp", "ep", "dp",
)  # fmt: skip
_HELD: Final = ("bf16", "fp16", "fp32")


def case_of_row(parts: Parts, words: dict[str, str], length: int = 2) -> tuple[Case, str]:
    """Return the case behind the setup columns of a row, and a remark; raises PerfmodelError where there is none."""
    match = parts.runtime(words["runtime"]) if words["runtime"] else None
    if match is not None and not match.name:
        raise SpecError(match.remark)
    tp, pp, ep, dp = (int(float(words[name])) if words[name] else None for name in ("tp", "pp", "ep", "dp"))
    n_devices = int(float(words["n_devices"])) if words["n_devices"] else None
    stated = [size for size in (tp, pp, dp) if size is not None]
    own = n_devices if not stated else int(np.prod(stated))
    device = parts.catalogue.device(words["device"])
    system = wired_system(parts.catalogue, device, own or 1, words["link"])
    dtype, scheme = words["compute_dtype"], words["quantization"] or None
    if scheme is None and dtype in ("fp8", "int8", "int4", "fp4"):
        scheme = {"int8": "w8a8", "fp4": "nvfp4"}.get(dtype, dtype)
    question = Question(
        hardware=system.name if system is not None else device.name,
        model=words["model"],
        n_devices=own or 1,
        deployment=Deployment(
            quantization=scheme,
            dtype=dtype if dtype in _HELD else None,
            kv_cache_dtype=words["kv_dtype"] or None,
            tp=tp,
            pp=pp,
            ep=ep,
            dp=dp,
        ),
        runtime=match.name if match is not None else None,
        batch=1.0,
        input_tokens=float(max(1, length - 1)),
        output_tokens=1.0,
        calibration=parts.calibration,
    )
    return case_of(parts.catalogue, question), match.remark if match is not None else "no runtime stated"


def step_predictions(parts: Parts, table: Table, at: Positions) -> Iterator[Found]:
    """Yield predictions of the steps and generations at `at`, setup by setup."""
    for words, here in grouped(table, at, ("kind", "metric", "variant", *SETUP_COLUMNS)):
        try:
            case, remark = case_of_row(parts, words)
            needed, held = _needed_share(case, table, here), "a device cannot hold it"
            for row, share in zip(here[needed > 1.0], needed[needed > 1.0], strict=True):
                yield refused(np.array([row]), f"{held}: weights and cache take {share:.3g} times its memory")
            if (kept := here[~(needed > 1.0)]).size:
                yield _predicted(case, table, kept, words, remark)
        except PerfmodelError as error:
            yield refused(here, str(error))


def _needed_share(case: Case, table: Table, here: Positions) -> NDArray[np.float64]:
    """Return what weights and cache take of the whole memory of the fullest device, row by row: above 1 none can run.

    The cache is that of all sequences at their shortest: before the step, or with the prompt alone.
    """
    plan, tokens = memory_plan(case.memory), np.nan_to_num(table["context_tokens"][here])
    tokens = np.maximum(tokens, np.nan_to_num(table["input_tokens"][here]))
    per_rank = np.nan_to_num(table["batch"][here], posinf=0.0) / case.n_replicas / case.setup.layout.dp
    weights = max(rank.weights_on_device_bytes / rank.total_bytes for rank in plan.ranks)
    least_bytes = min(rank.total_bytes for rank in plan.ranks)
    held = [np.asarray(stage.footprint.held_bytes(tokens)) * per_rank / least_bytes for stage in plan.stages]
    return np.asarray(weights + np.max(held, axis=0), dtype=np.float64)


def _predicted(case: Case, table: Table, here: Positions, words: dict[str, str], remark: str) -> Found:
    engine, name = case.engine, case.calibration.name
    layout = case.setup.layout
    batch = np.asarray(table["batch"][here], dtype=np.float64) / case.n_replicas
    if not np.all(np.isfinite(batch)):
        return refused(here, "a static batch is needed, and batch is not finite")
    per_rank: Num = ceiling(batch / float(layout.dp))
    if words["kind"] == "prefill_step":
        if words["variant"] == "gemv":
            return refused(here, "GEMV kernels read a prompt token by token, and no law prices that")
        one = prefill_slice(per_rank, table["input_tokens"][here], n_steps=1.0)
        return found_of(here, engine.pipelined("prefill", (one,), n_steps=1.0), name, remark)
    if words["kind"] == "decode_step":
        n_microbatches = smaller(per_rank, float(layout.pp))
        seen = table["context_tokens"][here] + 1.0
        one = Slice("decode", ceiling(per_rank / n_microbatches), 1.0, seen, seen)
        return found_of(here, engine.step("decode", (one,), n_microbatches=n_microbatches), name, remark)
    prompt, output = table["input_tokens"][here], table["output_tokens"][here]
    budgets = token_budgets(_unlimited(case), prompt + output)
    request = request_estimate(
        engine,
        batch=batch,
        input_tokens=prompt,
        output_tokens=output,
        token_budget=budgets,
    )
    amount = batch * case.n_replicas * output if words["metric"] == "output_tokens_per_s" else None
    return found_of(here, request.e2e, name, remark, rate_of=amount)


def _unlimited(case: Case) -> Case:
    """Return the case without limits of its own: each row is set to just its length."""
    return replace(case, memory=case.memory.with_options(max_model_len=None, max_num_batched_tokens=None))
