"""Flags that several commands share, spelled as in vLLM and SGLang, and the question that they add up to.

A command declares its own parameters and takes the shared ones through `@asking`: they come as one `Question`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perfmodel.cli.names import calibration_names, hardware_names, model_names, runtime_names, scheme_names
from perfmodel.errors import SpecError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.launch_line import deployment_from
from perfmodel.step.question import Question
from perfmodel.units import quantity

__all__ = ["asking", "catalogue_of"]

_LAYOUT, _ENGINE, _LOAD, _WHERE = "Layout", "Engine flags", "Workload", "Catalogue"


def _flag(kind: Any, panel: str, help_text: str, *spellings: str, **more: Any) -> Any:
    """Return the annotation of one flag."""
    return Annotated[kind, typer.Option(*spellings, help=help_text, rich_help_panel=panel, **more)]


def _size(panel: str, help_text: str, *spellings: str) -> Any:
    """Return the annotation of a flag that takes a whole number of at least 1."""
    return _flag(int | None, panel, help_text, *spellings, min=1)


def _text(panel: str, help_text: str, *spellings: str, **more: Any) -> Any:
    return _flag(str | None, panel, help_text, *spellings, **more)


def _number(panel: str, help_text: str, *spellings: str) -> Any:
    return _flag(float | None, panel, help_text, *spellings)


_SHARED: Final[dict[str, Any]] = {
    "model": Annotated[
        str | None,
        typer.Argument(
            help="Model name, Hugging Face id, or a config.json (file or folder).", autocompletion=model_names
        ),
    ],
    "hardware": Annotated[
        str | None,
        typer.Argument(
            help="Device or system name; 8xh200-sxm for eight; a,b for one device per pipeline stage.",
            autocompletion=hardware_names,
        ),
    ],
    "launch": Annotated[
        str | None,
        typer.Option(
            "--from", help="A pasted launch line (vllm serve, sglang), a file that holds one, or a MindIE config.json."
        ),
    ],
    "batch": _number(_LOAD, "Sequences in flight.", "--batch", "-b", "--max-concurrency"),
    "isl": _number(_LOAD, "Input tokens of a request.", "--isl", "--input-len", "--random-input-len"),
    "osl": _number(_LOAD, "Output tokens of a request.", "--osl", "--output-len", "--random-output-len"),
    "devices": _size(_LAYOUT, "Devices in all; wired as this device usually is.", "--devices", "-n"),
    "tp": _size(_LAYOUT, "Tensor parallel size.", "-tp", "--tp", "--tp-size", "--tensor-parallel-size"),
    "pp": _size(_LAYOUT, "Pipeline stages.", "-pp", "--pp", "--pp-size", "--pipeline-parallel-size"),
    "dp": _size(_LAYOUT, "Data parallel size.", "-dp", "--dp", "--dp-size", "--data-parallel-size"),
    "ep": _size(_LAYOUT, "Groups that the experts are spread over.", "-ep", "--ep", "--ep-size"),
    "dcp": _size(_LAYOUT, "Ranks that one KV cache is cut over.", "-dcp", "--dcp", "--decode-context-parallel-size"),
    "expert_parallel": _flag(bool, _LAYOUT, "Spread experts over tp x dp ranks.", "--enable-expert-parallel"),
    "stage_layers": _text(_LAYOUT, "Layers of each stage, e.g. 16,32.", "--pp-partition", "--stage-layers"),
    "dtype": _text(_ENGINE, "auto, bf16, fp16, fp32.", "--dtype"),
    "quantization": _text(
        _ENGINE, "Weight scheme: awq-int4-g128, fp8, w8a8, ...", "--quantization", "-q", autocompletion=scheme_names
    ),
    "kv_cache_dtype": _text(_ENGINE, "auto, fp8, int8, ...", "--kv-cache-dtype"),
    "runtime": _text(_ENGINE, "Engine and version.", "--runtime", autocompletion=runtime_names),
    "max_model_len": _size(_ENGINE, "Context limit in tokens.", "--max-model-len", "--context-length"),
    "max_num_seqs": _size(_ENGINE, "Sequences that a step may hold.", "--max-num-seqs", "--max-running-requests"),
    "max_num_batched_tokens": _size(
        _ENGINE, "Tokens that a step may hold.", "--max-num-batched-tokens", "--chunked-prefill-size"
    ),
    "chunked_prefill": _flag(
        bool | None, _ENGINE, "Cut prompts over steps.", "--enable-chunked-prefill/--no-enable-chunked-prefill"
    ),
    "gpu_memory_utilization": _number(
        _ENGINE, "Share of device memory for the engine.", "--gpu-memory-utilization", "--mem-fraction-static"
    ),
    "block_size": _size(_ENGINE, "Tokens of a KV block.", "--block-size"),
    "kv_cache_memory": _text(_ENGINE, "KV pool of a rank, e.g. 20GiB.", "--kv-cache-memory-bytes"),
    "num_gpu_blocks": _size(_ENGINE, "KV blocks, fixed.", "--num-gpu-blocks-override"),
    "enforce_eager": _flag(bool, _ENGINE, "No captured graphs.", "--enforce-eager"),
    "cpu_offload_gb": _number(_ENGINE, "GiB of weights a rank leaves with the host.", "--cpu-offload-gb"),
    "swap_space": _number(_ENGINE, "GiB of host memory for swapped KV blocks.", "--swap-space"),
    "speculative_tokens": _size(_ENGINE, "Tokens drafted a step.", "--speculative-tokens", "--speculative-num-steps"),
    "acceptance_length": _number(_ENGINE, "Tokens that a speculative step yields.", "--acceptance-length"),
    "used_by_others": _text(_ENGINE, "Device memory that other processes hold, e.g. 18.9GiB.", "--used-by-others"),
    "calibration": _flag(
        str,
        _WHERE,
        "prior, ideal (datasheet), hard-bound, or a calibration file.",
        "--calibration",
        autocompletion=calibration_names,
    ),
    "catalog": _flag(list[Path] | None, _WHERE, "Folder with your own hardware/ and models/.", "--catalog"),
}
"""Every shared flag, in the order of --help."""

_DEFAULTS: Final[dict[str, Any]] = {"expert_parallel": False, "enforce_eager": False, "calibration": "prior"}


def catalogue_of(folders: list[Path] | None) -> Catalogue:
    """Return the catalogue with the user's folders first."""
    return Catalogue.standard(tuple(folders or ()))


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the shared flags added; it receives them as `question` and `catalogue`."""
    own = inspect.signature(command, eval_str=True)
    taken = {name: p for name, p in own.parameters.items() if name not in ("question", "catalogue")}
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=_DEFAULTS.get(name), annotation=annotation
        )
        for name, annotation in _SHARED.items()
        if name not in taken
    ]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        kept = {name: values[name] for name in taken}
        flags = {name: values[name] for name in _SHARED if name in values}
        command(**kept, question=_question(flags), catalogue=catalogue_of(flags["catalog"]))

    signature = inspect.Signature([*shared, *taken.values()])
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return wrapped


def _question(flags: dict[str, Any]) -> Question:
    pasted = deployment_from(flags["launch"]) if flags["launch"] else Deployment()
    model, hardware = flags["model"], flags["hardware"]
    if flags["launch"] and hardware is None and model is not None:
        model, hardware = None, model
    if hardware is None:
        raise SpecError(
            "no hardware is named",
            expected="MODEL HARDWARE, or HARDWARE with --from a launch line",
            cure="`perfmodel hardware list` shows what there is.",
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
        used_by_others_bytes=quantity(flags["used_by_others"], "bytes") if flags["used_by_others"] else 0.0,
    )


def _deployment(pasted: Deployment, flags: dict[str, Any]) -> Deployment:
    """Return the pasted deployment with the flags given beside it laid over."""
    kv_memory = flags["kv_cache_memory"]
    given = {
        **{name: flags[name] for name in ("tp", "pp", "dp", "ep", "dcp", "dtype", "quantization", "kv_cache_dtype")},
        **{
            name: flags[name] for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "chunked_prefill")
        },
        "gpu_memory_utilization": flags["gpu_memory_utilization"],
        "enable_expert_parallel": flags["expert_parallel"] or None,
        "block_tokens": flags["block_size"],
        "kv_cache_memory_bytes": int(quantity(kv_memory, "bytes")) if kv_memory else None,
        "num_gpu_blocks_override": flags["num_gpu_blocks"],
        "enforce_eager": flags["enforce_eager"] or None,
        "cpu_offload_gib": flags["cpu_offload_gb"],
        "swap_space_gib": flags["swap_space"],
        "speculative_tokens": flags["speculative_tokens"],
    }
    return replace(pasted, **{name: value for name, value in given.items() if value is not None})


def _whole_numbers(flag: str, text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise SpecError(f"{flag} cannot be read", got=repr(text), expected="whole numbers parted by commas") from error
