"""A deployment as the performance part of a MindIE service configuration (config.json)."""

from __future__ import annotations

from typing import Any

from perfmodel.specs.deployment import Deployment
from perfmodel.units import GIB

__all__ = ["mindie_config"]


def mindie_config(deployment: Deployment) -> dict[str, Any]:
    """Return the BackendConfig that a deployment states, with MindIE's own keys; what it does not state is left out.

    Source: the MindIE service documents; `deployment_from` reads it back to the same figures.

    >>> mindie_config(Deployment(tp=2, max_model_len=4096))["BackendConfig"]["npuDeviceIds"]
    [[0, 1]]
    """
    d = deployment
    world_size = d.world_size or (d.tp or 1) * (d.pp or 1) * (d.dp or 1)
    model = {
        "modelName": d.served_model_name,
        "modelWeightPath": d.model,
        "worldSize": world_size,
        "npuMemSize": -1 if d.npu_memory_bytes is None else d.npu_memory_bytes / GIB,
        "tp": d.tp,
        "pp": d.pp,
        "dp": d.dp,
        "moe_ep": d.ep,
        "moe_tp": d.moe_tp,
    }
    schedule = {
        "templateType": "Mix" if d.chunked_prefill else "Standard",
        "cacheBlockSize": d.block_tokens,
        "maxPrefillBatchSize": d.max_prefill_batch,
        "maxPrefillTokens": d.max_num_batched_tokens,
        "maxBatchSize": d.max_num_seqs,
        "maxIterTimes": d.max_output_tokens,
    }
    deploy = {
        "maxSeqLen": d.max_model_len,
        "maxInputTokenLen": d.max_input_tokens,
        "ModelConfig": [_stated(model)],
    }
    return {
        "BackendConfig": {
            "npuDeviceIds": [list(range(world_size))],
            "ModelDeployConfig": _stated(deploy),
            "ScheduleConfig": _stated(schedule),
        }
    }


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
