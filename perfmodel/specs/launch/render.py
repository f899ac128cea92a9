"""A deployment as text again: a vLLM or SGLang launch line, and the load generator's line."""

from __future__ import annotations

import json
import shlex
from typing import Final, Literal

from perfmodel.errors import SpecError
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.launch.flags import BENCH_FIELDS, FLAGS

__all__ = ["bench_line", "launch_line", "unwritten"]

Server = Literal["vllm", "sglang"]

_START: Final = {"vllm": "vllm serve", "sglang": "python3 -m sglang.launch_server"}


def launch_line(deployment: Deployment, engine: Server | None = None) -> str:
    """Return the deployment as the line that starts it; `engine` None takes the deployment's own, else vLLM.

    What the engine has no flag for is left out: `unwritten` names it. Raises SpecError for MindIE, which has no line.

    >>> launch_line(Deployment(model="Qwen/Qwen3-8B", tp=2, max_model_len=32768))
    'vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768'
    """
    server = _server(deployment, engine)
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(deployment.environment.items())]
    words.append(_START[server])
    if deployment.model is not None:
        words += ["--model-path"] * (server == "sglang") + [shlex.quote(deployment.model)]
    written = _written(deployment, server)
    words += [part for name, part in written.items() if name != "model" and part]
    return " ".join(words)


def bench_line(deployment: Deployment) -> str:
    """Return the load that the deployment states as a `vllm bench serve` line.

    >>> bench_line(Deployment(num_prompts=100, request_rate=float("inf")))
    'vllm bench serve --dataset-name random --num-prompts 100 --request-rate inf'
    """
    words = ["vllm bench serve"]
    words += ["--model", shlex.quote(deployment.model)] if deployment.model is not None else []
    words.append("--dataset-name random")
    for flag in FLAGS:
        value = getattr(deployment, flag.field)
        if flag.field in BENCH_FIELDS and value is not None:
            words += [flag.vllm, f"{value:g}" if value == float("inf") else repr(value)]
    return " ".join(words)


def unwritten(deployment: Deployment, engine: Server | None = None) -> tuple[str, ...]:
    """Return the stated fields that the engine's launch line has no flag for.

    >>> unwritten(Deployment(tp=2, swap_space_gib=4.0), "sglang")
    ('swap_space_gib',)
    """
    written = _written(deployment, _server(deployment, engine))
    own = ("engine", *BENCH_FIELDS)
    return tuple(name for name in deployment.stated if name not in written and name not in own)


def _server(deployment: Deployment, engine: Server | None) -> Server:
    server = engine or deployment.engine or "vllm"
    if server not in _START:
        raise SpecError(
            "no launch line can be written",
            where="engine",
            got=repr(server),
            expected="vllm or sglang",
            cure="MindIE is started from its config.json.",
        )
    return "sglang" if server == "sglang" else "vllm"


def _written(deployment: Deployment, server: Server) -> dict[str, str]:
    """Return the text of each field that the engine has a flag for, by field."""
    found: dict[str, str] = {}
    for flag in FLAGS:
        name = flag.vllm if server == "vllm" else flag.sglang
        value = getattr(deployment, flag.field)
        if not name or value is None or flag.field in BENCH_FIELDS:
            continue
        if flag.kind in ("on", "off"):
            if value == (flag.kind == "on"):
                found[flag.field] = name
            elif flag.kind == "on" and server == "vllm" and flag.field not in found:
                found[flag.field] = f"--no-{name[2:]}"
        elif isinstance(value, str):
            found[flag.field] = f"{name} {shlex.quote(value)}"
        else:
            found[flag.field] = f"{name} {value!r}"
    if server == "vllm":
        _vllm_speculation(deployment, found)
    else:
        _sglang_quirks(deployment, found)
    return found


def _vllm_speculation(deployment: Deployment, found: dict[str, str]) -> None:
    """Write speculation as vLLM does: one JSON value."""
    method, n_tokens = deployment.speculative_method, deployment.speculative_tokens
    names = {"method": method, "num_speculative_tokens": n_tokens}
    config = {name: value for name, value in names.items() if value is not None}
    if config:
        text = f"--speculative-config {shlex.quote(json.dumps(config, ensure_ascii=False))}"
        found.update({"speculative_tokens": text} if n_tokens is not None else {})
        found.update({"speculative_method": "" if n_tokens is not None else text} if method is not None else {})


def _sglang_quirks(deployment: Deployment, found: dict[str, str]) -> None:
    """Write what SGLang says otherwise: no chunking is a size of -1, MTP is NEXTN, algorithms are in capitals."""
    if deployment.chunked_prefill is False:
        found.pop("max_num_batched_tokens", None)
        found["chunked_prefill"] = "--chunked-prefill-size -1"
    method = deployment.speculative_method
    if method is not None:
        name = "NEXTN" if method.endswith("mtp") else method.upper()
        found["speculative_method"] = f"--speculative-algorithm {shlex.quote(name)}"
