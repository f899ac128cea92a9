"""Shared flags laid onto commands, and the question that they add up to.

A command declares its own parameters and takes the shared ones through `@asking`: they come as one `Question`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from perfmodel.cli.flags import DEFAULTS, FORMATS, SHARED, one_format, read_values
from perfmodel.errors import SpecError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.question import Question

__all__ = ["asking", "catalogue_of"]

_SUBJECT = ("model", "hardware")
"""What a question is about, also where a command takes it in a way of its own; other flags it takes are its alone."""


def catalogue_of(folders: list[Path] | None) -> Catalogue:
    """Return the catalogue with the user's folders first."""
    return Catalogue.standard(tuple(folders or ()))


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the shared flags added; it receives them as `question` and `catalogue`."""
    own = inspect.signature(command, eval_str=True)
    taken = {name: p for name, p in own.parameters.items() if name not in ("question", "catalogue")}
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=DEFAULTS.get(name), annotation=annotation
        )
        for name, annotation in SHARED.items()
        if name not in taken
    ]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        kept = {name: values[name] for name in taken}
        one_format(**{name: kept[name] for name in FORMATS if name in kept})
        read = {name: values[name] for name in SHARED if name not in taken or name in _SUBJECT}
        flags = read_values({name: read.get(name) for name in SHARED})
        command(**kept, question=_question(flags), catalogue=catalogue_of(flags["catalog"]))

    required = [p for p in taken.values() if p.default is p.empty]
    own_flags = [p for p in taken.values() if p.default is not p.empty]
    signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in (*required, *shared, *own_flags)])
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return wrapped


def _question(flags: dict[str, Any]) -> Question:
    pasted = _pasted(flags["launch"]) if flags["launch"] is not None else Deployment()
    model, hardware = flags["model"], flags["hardware"]
    if flags["launch"] is not None and hardware is None and model is not None:
        model, hardware = None, model
    if hardware is None:
        raise SpecError(
            "no hardware is named" if model or pasted.model else "no model and no hardware are named",
            expected="MODEL HARDWARE, or HARDWARE with --from a launch line",
            cure="`perfmodel hardware list` and `perfmodel models list` show what there is.",
        )
    return Question(
        model=model,
        hardware=hardware,
        deployment=_deployment(pasted, flags),
        n_devices=flags["devices"],
        stage_layers=_whole_numbers("--pp-partition", flags["stage_layers"]),
        batch=flags["batch"],
        input_tokens=flags["isl"],
        output_tokens=flags["osl"],
        runtime=flags["runtime"],
        calibration=flags["calibration"],
        acceptance_length=flags["acceptance_length"],
        used_by_others_bytes=float(flags["used_by_others"] or 0),
    )


def _pasted(text: str) -> Deployment:
    from perfmodel.specs.launch_line import deployment_from

    return deployment_from(text)


def _deployment(pasted: Deployment, flags: dict[str, Any]) -> Deployment:
    """Return the pasted deployment with the flags given beside it laid over."""
    given = {
        **{name: flags[name] for name in ("tp", "pp", "dp", "ep", "dcp", "dtype", "quantization", "kv_cache_dtype")},
        **{
            name: flags[name] for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill")
        },
        "gpu_memory_utilization": flags["gpu_memory_utilization"],
        "enable_expert_parallel": flags["expert_parallel"] or None,
        "block_tokens": flags["block_size"],
        "kv_cache_memory_bytes": flags["kv_cache_memory"],
        "num_gpu_blocks_override": flags["num_gpu_blocks"],
        "enforce_eager": flags["enforce_eager"] or None,
        "cpu_offload_gib": flags["cpu_offload_gb"],
        "swap_space_gib": flags["swap_space"],
        "speculative_tokens": flags["speculative_tokens"],
    }
    return replace(pasted, **{name: value for name, value in given.items() if value is not None})


def _whole_numbers(flag: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise SpecError(
            "a flag cannot be used", where=flag, got=repr(text), expected="whole numbers parted by commas"
        ) from error
