"""Which importer reads which file, and how a file is recognised."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from perfmodel.errors import MeasurementError, UnknownNameError
from perfmodel.measure.importers import (
    aiperf,
    aisbench,
    bench_block,
    chrome_trace,
    collective_tests,
    llama_bench,
    lm_eval,
    msprof,
    nvbandwidth,
    operator_database,
    operator_json,
    pasted_table,
    request_traces,
    sglang_bench,
    startup_log,
    topology,
    vllm_bench,
)
from perfmodel.measure.importers.base import Context, Imported, context_from
from perfmodel.measure.text import file_text

__all__ = ["FORMATS", "Format", "detect", "import_file", "import_text"]


class Parser(Protocol):
    """What every importer offers."""

    def __call__(self, text: str, *, context: Context) -> Imported:
        """Return what the text holds."""


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format: what it is, how to read it, and how to tell that a file is one (text, file name)."""

    title: str
    parse: Parser
    matches: Callable[[str, str], bool]


_SAMPLE_CHARS: Final = 200_000


def _has(pattern: str, flags: int = re.IGNORECASE) -> Callable[[str, str], bool]:
    compiled = re.compile(pattern, flags)
    return lambda text, name: bool(compiled.search(text))  # noqa: ARG005


def _json(*patterns: str) -> Callable[[str, str], bool]:
    compiled = [re.compile(pattern) for pattern in patterns]
    return lambda text, name: text.lstrip()[:1] in ("{", "[") and all(p.search(text) for p in compiled)  # noqa: ARG005


def _header(pattern: str) -> Callable[[str, str], bool]:
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda text, name: bool(compiled.search(text.lstrip().split("\n", 1)[0]))  # noqa: ARG005


def _is_pasted(text: str, name: str) -> bool:
    del name
    for line in text.splitlines()[:12]:
        cells = re.split(r"[,\t|│┃;，]", line)
        if sum(1 for cell in cells if cell.strip() and pasted_table.column_meaning(cell)[0]) >= 2:
            return True
    return any(mark in text for mark in "|│┃") and _meanings(text) >= 3


def _meanings(text: str) -> int:
    words = [re.split(r"[|│┃]", line.strip().strip("|│┃"))[0] for line in text.splitlines()[:80]]
    return sum(1 for word in words if word.strip() and pasted_table.column_meaning(word)[0])


_ANY_CASE: Final = re.MULTILINE | re.IGNORECASE
_TOPOLOGY: Final = r"^\s*(\x1b\[4m)?(GPU|NPU|Phy-ID)\d+\s+.*\b(GPU|NPU|Phy-ID|X\b|HCCS|NV)"
_BLOCK: Final = (
    r"serving benchmark result|^\W*(mean|median|p99) (ttft|tpot|itl)[^:|,]*:|^\W*total token throughput[^:|,]*:"
)
_LOG: Final = (
    r"KV cache size: |# (GPU|cuda|NPU|npu) blocks|KV Cache is allocated|model weights tak|"
    r"[Mm]odel (loading|weights) took|Available KV cache|Load weight end|Memory profiling results"
)
_OPERATOR_KEYS: Final = r'(?i)"(op[ _]?name|op[ _]?type|kernel[ _]?name|operator[ _]?name)"'
_SGLANG_KEYS: Final = r'"(total_throughput|mean_e2e_latency_ms|random_input_len|total_output_tokens_retokenized)"'
_VLLM_KEYS: Final = r'"(\w+_ttft_ms|output_throughput|request_throughput)"'


def _is_llama_bench(text: str, name: str) -> bool:
    markdown = _has(r"\|\s*test\s*\|\s*t/s\s*\|")
    return any(test(text, name) for test in (_json(r'"avg_ts"'), _header("avg_ts"), markdown))


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "request-trace": Format(
            "request trace of Azure, BurstGPT, Mooncake, Bailian, Vidur, ...",
            request_traces.parse,
            lambda text, name: request_traces.is_trace(text),  # noqa: ARG005
        ),
        "lm-eval": Format(
            "results of lm-evaluation-harness",
            lm_eval.parse,
            _json(r'"results"\s*:\s*\{', r'"(n-shot|versions|configs|lm_eval_version)"'),
        ),
        "aiperf-json": Format(
            "genai-perf or aiperf export, JSON",
            aiperf.parse_json,
            _json(r'"(time_to_first_token|request_latency)"\s*:\s*\{', r'"avg"'),
        ),
        "aiperf-csv": Format("genai-perf or aiperf export, CSV", aiperf.parse_csv, _header(r"^metric,\s*avg,")),
        "chrome-trace": Format(
            "Chrome trace of PyTorch, torch_npu or msprof", chrome_trace.parse, _json(r'"ph"\s*:\s*"[XMBEsf]"')
        ),
        "llama-bench": Format("llama-bench, any output", llama_bench.parse, _is_llama_bench),
        "vllm-bench-latency": Format("vllm bench latency, JSON", vllm_bench.parse_latency, _json(r'"avg_latency"')),
        "vllm-bench-throughput": Format(
            "vllm bench throughput, JSON", vllm_bench.parse_throughput, _json(r'"elapsed_time"', r'"num_requests"')
        ),
        "sglang-bench-serving": Format(
            "SGLang bench_serving, JSON lines", sglang_bench.parse, _json(r'"(completed|duration)"', _SGLANG_KEYS)
        ),
        "vllm-bench-serve": Format(
            "vllm bench serve, JSON", vllm_bench.parse_serve, _json(r'"(completed|duration)"', _VLLM_KEYS)
        ),
        "aisbench-json": Format(
            "AISBench totals, JSON", aisbench.parse_json, _json(r'"(Benchmark Duration|Output Token Throughput)"')
        ),
        "operator-json": Format("operator list, JSON", operator_json.parse, _json(_OPERATOR_KEYS)),
        "aisbench-csv": Format(
            "AISBench metrics, CSV", aisbench.parse_csv, _header(r"^performance parameters,|^metric,\s*average,")
        ),
        "mindie-benchmark": Format(
            "MindIE Benchmark, CSV", aisbench.parse_mindie, _header(r"firsttokentime|timeelapsed.*concurrency")
        ),
        "operator-database": Format(
            "operator tables of planning tools, CSV", operator_database.parse, _header(r"average duration\(us\)")
        ),
        "msprof-statistic": Format(
            "msprof op_statistic, CSV",
            msprof.parse_statistic,
            _header(r"op type.*core type.*count.*avg time\(us\)"),
        ),
        "msprof-operators": Format(
            "msprof op_summary or kernel_details, CSV", msprof.parse_operators, _header(r"(task )?duration\(us\)")
        ),
        "topology": Format("nvidia-smi topo -m or npu-smi info -t topo", topology.parse, _has(_TOPOLOGY, re.MULTILINE)),
        "nvbandwidth": Format(
            "nvbandwidth", nvbandwidth.parse, _has(r"bandwidth \(GB/s\)\s*$|nvbandwidth version", _ANY_CASE)
        ),
        "hccl-test": Format("hccl_test", collective_tests.parse_hccl, _has(r"data_size\(bytes\)")),
        "nccl-tests": Format(
            "nccl-tests",
            collective_tests.parse_nccl,
            _has(r"#.*\b(algbw|busbw)\b|avg bus bandwidth|^#\s*nThread", _ANY_CASE),
        ),
        "serving-benchmark-block": Format(
            "printed block of vLLM's or SGLang's serving benchmark", bench_block.parse, _has(_BLOCK, _ANY_CASE)
        ),
        "startup-log": Format("start-up log of vLLM, vllm-ascend or SGLang", startup_log.parse, _has(_LOG, 0)),
        "pasted-table": Format("table of serving results, English or Chinese headers", pasted_table.parse, _is_pasted),
    }
)
"""Every format by name, the most telling first."""


def detect(text: str, filename: str = "") -> str:
    """Return the name of the format that text is in; raises MeasurementError that lists the formats where none fits.

    >>> detect('{"avg_latency": 3.1, "latencies": [3.1]}')
    'vllm-bench-latency'
    """
    sample = text.removeprefix("\ufeff")[:_SAMPLE_CHARS]
    found = next((name for name, form in FORMATS.items() if form.matches(sample, filename)), None)
    if found is None:
        shown = sample.strip()[:60].replace("\n", " ")
        raise MeasurementError(
            f"{filename or 'the text'} is in no format that is known here",
            got=shown or "nothing",
            expected=f"one of {', '.join(FORMATS)}",
            cure="Name the format if you know it.",
        )
    return found


def import_text(text: str, format: str | None = None, **context: Any) -> Imported:  # noqa: A002
    """Return what text in a foreign format holds; `format` None: recognised. Further words are those of Context."""
    stated = context_from(**context)
    name = format or detect(text, stated.file)
    if name not in FORMATS:
        raise UnknownNameError.of("format", name, list(FORMATS))
    return FORMATS[name].parse(text.removeprefix("\ufeff"), context=stated)


def import_file(path: Path | str, format: str | None = None, **context: Any) -> Imported:  # noqa: A002
    """Return what a file in a foreign format holds; see `import_text`.

    AISBench writes a table and totals under one name: with both at hand the two become one run.
    """
    file = Path(path)
    text, stated = file_text(file), {"file": file.name, **context}
    beside = file.with_suffix(".json")
    if (format or detect(text, file.name)) == "aisbench-csv" and beside.is_file():
        return aisbench.parse_pair(text, file_text(beside), context=context_from(**stated))
    return import_text(text, format, **stated)
