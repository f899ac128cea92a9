"""How a candidate is started: a launch line, or a MindIE configuration, of each replica."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.plan.space import Candidate
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.launch.mindie_config import mindie_config
from perfmodel.specs.launch.render import launch_line

__all__ = ["Launch", "launch_of"]

_ONLINE: Final = {"fp8": "fp8"}
"""Schemes that an engine makes of a 16-bit checkpoint while it loads, with the value of --quantization."""
_ASCEND: Final = re.compile(r"w8a8-ascend.*")


@dataclass(frozen=True, slots=True)
class Launch:
    """What starts one replica: `text` is a shell line, or JSON for `file`; `notes` say what else is needed."""

    text: str
    file: str
    notes: tuple[str, ...]
    deployment: Deployment

    @property
    def shown(self) -> str:
        """The text with one flag a line, which a shell reads alike."""
        return self.text if self.file else self.text.replace(" --", " \\\n    --")


def launch_of(catalogue: Catalogue, candidate: Candidate) -> Launch:
    """Return how one replica of a candidate is started, with every limit that the prediction counts on."""
    case, plan, cut = candidate.case, candidate.plan, candidate.cut
    runtime, scheme = case.setup.runtime, case.setup.scheme.name
    headers: Mapping[str, Mapping[str, object]] = dict(catalogue.headers("model"))
    model = str(headers.get(case.setup.model.name, {}).get("hf_id") or candidate.family.model)
    own = catalogue.model(candidate.family.model).scheme
    notes = []
    quantization = None
    if candidate.family.quantization != own:
        if _ASCEND.fullmatch(candidate.family.quantization):
            quantization = None if runtime.engine == "mindie" else "ascend"
        else:
            quantization = _ONLINE.get(candidate.family.quantization)
        if quantization != "fp8":
            notes.append(f"needs a checkpoint whose weights are quantised as {scheme}: give its path as the model")
        notes.append(f"{scheme} weights change answers: check the quality, which no figure here counts")
    kv = candidate.family.kv_cache_dtype
    deployment = Deployment(
        model=model,
        engine="mindie" if runtime.engine == "mindie" else "sglang" if runtime.engine == "sglang" else "vllm",
        tp=cut.tp,
        pp=cut.pp if cut.pp > 1 else None,
        dp=cut.dp if cut.dp > 1 else None,
        ep=cut.ep if cut.ep > 1 and runtime.engine in ("mindie", "sglang") else None,
        enable_expert_parallel=True if cut.ep > 1 and runtime.engine not in ("mindie", "sglang") else None,
        max_model_len=plan.limits.max_model_len,
        max_num_seqs=plan.limits.max_num_seqs,
        max_num_batched_tokens=plan.limits.max_num_batched_tokens,
        gpu_memory_utilization=None if runtime.engine == "mindie" else plan.tightest.utilization,
        quantization=quantization,
        kv_cache_dtype=None if kv == "auto" else kv,
    )
    if runtime.engine == "mindie":
        text, file = json.dumps(mindie_config(deployment), indent=2), "config.json"
    else:
        text, file = launch_line(deployment), ""
    if runtime.engine not in ("vllm", "vllm-ascend", "sglang", "mindie"):
        notes.append(f"{runtime.title} has no launch line here: these are its limits as vLLM spells them")
    return Launch(text, file, tuple(notes), deployment)
