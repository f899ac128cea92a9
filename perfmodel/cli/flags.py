"""The flags that several commands share, spelled as in vLLM and SGLang, and how their values are read.

Values arrive as text and are read here, so that every command answers a bad one alike: which flag, got, expected, cure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from perfmodel.cli.names import calibration_names, hardware_names, model_names, runtime_names, scheme_names
from perfmodel.errors import Fault, SpecError

__all__ = [
    "ALIASES",
    "DEFAULTS",
    "FORMATS",
    "SHARED",
    "Calibrated",
    "CatalogFolders",
    "Csv",
    "Json",
    "Markdown",
    "Scheduler",
    "Workers",
    "canonical",
    "one_format",
    "read_values",
]

_GLUED = re.compile(r"^-(tp|pp|dp|ep|dcp)=?(\d+)$")

_ASKED, _LOAD, _LAYOUT, _ENGINE, _WHERE = "Options", "Workload", "Layout", "Engine flags", "Catalogue"

CatalogFolders = Annotated[
    list[Path] | None,
    typer.Option("--catalog", help="Folder with your own hardware/ and models/.", metavar="DIR"),
]
Calibrated = Annotated[
    str,
    typer.Option(
        "--calibration",
        help="auto (fits where there are any), prior, ideal (datasheet), hard-bound, or a file.",
        autocompletion=calibration_names,
        metavar="TEXT",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        help="Dask scheduler, tcp://host:8786, or local for a cluster on this machine.",
        metavar="ADDRESS",
    ),
]
Workers = Annotated[str | None, typer.Option("--workers", help="Processes on this machine.", metavar="N")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys in base units.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Markdown = Annotated[bool, typer.Option("--markdown", "--md", help="Print a Markdown table to paste.")]
FORMATS: Final = {"as_json": "--json", "as_csv": "--csv", "as_markdown": "--markdown"}


class _Reading(NamedTuple):
    """How the text of a flag is read: the kind of value, the field of a deployment whose limits hold, the spelling."""

    kind: str
    field: str
    spelling: str


_READINGS: Final[dict[str, _Reading]] = {}

ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "--enable-chunked-prefill": ("--chunked-prefill", "on"),
    "--no-enable-chunked-prefill": ("--chunked-prefill", "off"),
    "--enable-prefix-caching": ("--prefix-caching", "on"),
    "--no-enable-prefix-caching": ("--prefix-caching", "off"),
    "--scheduling-policy": ("--order",),
    "--random-prefix-len": ("--prefix-len",),
}
"""Further spellings of a flag, as engines and load generators have them, with the words that they stand for."""


def _flag(kind: Any, panel: str, help_text: str, *spellings: str, **more: Any) -> Any:
    """Return the annotation of one flag; spellings after the first long one are understood, and named in its help."""
    shown = spellings[: 1 + next(i for i, s in enumerate(spellings) if s.startswith("--"))]
    others = spellings[len(shown) :]
    ALIASES.update(dict.fromkeys(others, (shown[-1],)))
    also = f" Also {', '.join(others)}." if others else ""
    return Annotated[kind, typer.Option(*shown, help=help_text + also, rich_help_panel=panel, **more)]


def _read(name: str, kind: str, field: str, panel: str, help_text: str, *spellings: str) -> Any:
    """Return the annotation of a flag whose text is read as a number: counts, tokens (32k), bytes (20GiB), number."""
    _READINGS[name] = _Reading(kind, field, next(s for s in spellings if s.startswith("--")))
    metavar = {"bytes": "SIZE", "tokens": "N", "count": "N", "on": "on|off"}.get(kind, "X")
    return _flag(str | None, panel, help_text, *spellings, metavar=metavar)


def _text(panel: str, help_text: str, *spellings: str, **more: Any) -> Any:
    return _flag(str | None, panel, help_text, *spellings, metavar="TEXT", **more)


def canonical(words: Sequence[str]) -> list[str]:
    """Return the arguments with every flag in its first spelling: other names, underscores, `-tp8`.

    >>> canonical(["-tp8", "--max_model_len=4k", "--random-input-len", "512"])
    ['-tp', '8', '--max-model-len=4k', '--isl', '512']
    """
    found: list[str] = []
    for word in words:
        if match := _GLUED.match(word):
            found += [f"-{match[1]}", match[2]]
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            first, *rest = ALIASES.get(name, (name,))
            found += [f"{first}{equals}{value}", *rest]
        else:
            found.append(word)
    return found


SHARED: Final[dict[str, Any]] = {
    "model": Annotated[
        str | None,
        typer.Argument(
            help="Model name, Hugging Face id, or a config.json (file or folder).",
            autocompletion=model_names,
            metavar="MODEL",
        ),
    ],
    "hardware": Annotated[
        str | None,
        typer.Argument(
            help="Device or system name; 8xh200-sxm for eight; a,b for one device per pipeline stage.",
            autocompletion=hardware_names,
            metavar="HARDWARE",
        ),
    ],
    "launch": _text(
        _ASKED, "A pasted launch line (vllm serve, sglang), a file that holds one, or a MindIE config.json.", "--from"
    ),
    "batch": _read(
        "batch", "count", "max_concurrency", _LOAD, "Sequences in flight.", "-b", "--batch", "--max-concurrency"
    ),
    "isl": _read("isl", "tokens", "input_tokens", _LOAD, "Input tokens.", "--isl", "--input-len", "--random-input-len"),
    "osl": _read(
        "osl", "tokens", "output_tokens", _LOAD, "Output tokens.", "--osl", "--output-len", "--random-output-len"
    ),
    "devices": _read("devices", "count", "world_size", _LAYOUT, "Devices in all, wired as usual.", "-n", "--devices"),
    "tp": _read(
        "tp", "count", "tp", _LAYOUT, "Tensor parallel size.", "-tp", "--tp", "--tp-size", "--tensor-parallel-size"
    ),
    "pp": _read(
        "pp", "count", "pp", _LAYOUT, "Pipeline stages.", "-pp", "--pp", "--pp-size", "--pipeline-parallel-size"
    ),
    "dp": _read(
        "dp", "count", "dp", _LAYOUT, "Data parallel size.", "-dp", "--dp", "--dp-size", "--data-parallel-size"
    ),
    "ep": _read("ep", "count", "ep", _LAYOUT, "Groups that the experts are spread over.", "-ep", "--ep", "--ep-size"),
    "dcp": _read(
        "dcp",
        "count",
        "dcp",
        _LAYOUT,
        "Ranks that cut one KV cache.",
        "-dcp",
        "--dcp",
        "--decode-context-parallel-size",
    ),
    "expert_parallel": _flag(bool, _LAYOUT, "Spread experts over tp x dp ranks.", "--enable-expert-parallel"),
    "stage_layers": _text(_LAYOUT, "Layers of each stage, e.g. 16,32.", "--pp-partition", "--stage-layers"),
    "dtype": _text(_ENGINE, "auto, bf16, fp16, fp32.", "--dtype"),
    "quantization": _text(
        _ENGINE,
        "Weights: none, fp8, w8a8, awq-int4-g128, ...; the checkpoint's own without it.",
        "-q",
        "--quantization",
        autocompletion=scheme_names,
    ),
    "kv_cache_dtype": _text(_ENGINE, "auto, fp8, int8, ...", "--kv-cache-dtype"),
    "runtime": _text(_ENGINE, "Engine and version, e.g. vllm-0.11.", "--runtime", autocompletion=runtime_names),
    "max_model_len": _read(
        "max_model_len", "tokens", "max_model_len", _ENGINE, "Context limit.", "--max-model-len", "--context-length"
    ),
    "max_num_seqs": _read(
        "max_num_seqs",
        "count",
        "max_num_seqs",
        _ENGINE,
        "Sequences of a step.",
        "--max-num-seqs",
        "--max-running-requests",
    ),
    "max_num_batched_tokens": _read(
        "max_num_batched_tokens",
        "tokens",
        "max_num_batched_tokens",
        _ENGINE,
        "Tokens of a step.",
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
    ),
    "chunked_prefill": _read(
        "chunked_prefill",
        "on",
        "chunked_prefill",
        _ENGINE,
        "Cut prompts over steps. Also --enable-chunked-prefill, --no-enable-chunked-prefill.",
        "--chunked-prefill",
    ),
    "gpu_memory_utilization": _read(
        "gpu_memory_utilization",
        "number",
        "gpu_memory_utilization",
        _ENGINE,
        "Share of device memory, 0 to 1.",
        "--gpu-memory-utilization",
        "--mem-fraction-static",
    ),
    "block_size": _read("block_size", "count", "block_tokens", _ENGINE, "Tokens of a KV block.", "--block-size"),
    "kv_cache_memory": _read(
        "kv_cache_memory",
        "bytes",
        "kv_cache_memory_bytes",
        _ENGINE,
        "KV pool of a rank, e.g. 20GiB.",
        "--kv-cache-memory-bytes",
    ),
    "num_gpu_blocks": _read(
        "num_gpu_blocks", "count", "num_gpu_blocks_override", _ENGINE, "KV blocks, fixed.", "--num-gpu-blocks-override"
    ),
    "enforce_eager": _flag(bool, _ENGINE, "No captured graphs.", "--enforce-eager"),
    "cpu_offload_gb": _read(
        "cpu_offload_gb",
        "number",
        "cpu_offload_gib",
        _ENGINE,
        "GiB of weights a rank leaves with the host.",
        "--cpu-offload-gb",
    ),
    "swap_space": _read(
        "swap_space", "number", "swap_space_gib", _ENGINE, "GiB of host memory for swapped KV blocks.", "--swap-space"
    ),
    "speculative_tokens": _read(
        "speculative_tokens",
        "count",
        "speculative_tokens",
        _ENGINE,
        "Tokens drafted a step.",
        "--speculative-tokens",
        "--speculative-num-steps",
    ),
    "acceptance_length": _read(
        "acceptance_length", "number", "", _ENGINE, "Tokens that a speculative step yields.", "--acceptance-length"
    ),
    "used_by_others": _read(
        "used_by_others", "bytes", "", _ENGINE, "Device memory that others hold, e.g. 18.9GiB.", "--used-by-others"
    ),
    "calibration": _flag(
        str,
        _WHERE,
        "auto (fits where there are any), prior, ideal (datasheet), hard-bound, or a file.",
        "--calibration",
        autocompletion=calibration_names,
        metavar="TEXT",
    ),
    "catalog": _flag(
        list[Path] | None, _WHERE, "Folder with your own hardware/ and models/.", "--catalog", metavar="DIR"
    ),
}
"""Every shared flag, in the order of --help."""

DEFAULTS: Final[dict[str, Any]] = {"expert_parallel": False, "enforce_eager": False, "calibration": "auto"}


def read_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags with texts read as numbers; raises SpecError with the fault of every flag that is none."""
    values, faults = dict(flags), []
    for name, reading in _READINGS.items():
        if values.get(name) is None:
            continue
        value = _value(reading, values[name])
        if isinstance(value, Fault):
            faults.append(replace(value, where=reading.spelling))
        values[name] = value
    if faults:
        raise SpecError("a flag cannot be used", faults=faults)
    return values


def _value(reading: _Reading, text: str) -> Any:
    from perfmodel.specs.launch.values import read

    if reading.kind == "bytes":
        text = text.strip()
        return 0 if text in ("0", "0GiB") and not reading.field else read(reading.field, "bytes", text)
    return read(reading.field, reading.kind, text)  # type: ignore[arg-type]


def one_format(**asked: bool) -> None:
    """Check that at most one way to print is asked for; raises SpecError."""
    named = [FORMATS[name] for name, is_asked in asked.items() if is_asked and name in FORMATS]
    if len(named) > 1:
        raise SpecError("two formats are asked for", got=" and ".join(named), expected="one of them")
