"""A what-if question in names and numbers, and the case that the catalogue makes of it.

Nothing is filled in silently: every default that was taken is listed in `assumed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from perfmodel.errors import Fault, SpecError, UnknownNameError
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue import Catalogue, Hardware, ModelChoice
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import MoeFfn
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.setup import KV_ELEMENT_BYTES, Setup, Speculation
from perfmodel.specs.system import System
from perfmodel.specs.usual import UsualValues
from perfmodel.step.step import Engine
from perfmodel.units import GIB
from perfmodel.work.kv import KvLayout
from perfmodel.work.memory_rules import MemoryOptions
from perfmodel.work.memory_types import MemoryCase

__all__ = ["Case", "Question", "Workload", "case_of"]

_USUAL_RUNTIME: Final[Mapping[str, str]] = {"vllm": "vllm-0.11", "sglang": "sglang-0.5", "mindie": "mindie-2.1"}
MOST_DEVICES: Final = 10**6
_LOADERS: Final[Mapping[str, str]] = {
    "auto": "none",
    "awq-marlin": "awq-int4-g128",
    "gptq-marlin": "gptq-int4-g128",
    "marlin": "marlin-int4-g128",
    "moe-wna16": "marlin-int4-g128",
    "compressed-tensors": "marlin-int4-g128",
    "bitsandbytes": "bnb-nf4",
    "gguf": "q4_k_m",
    "modelopt": "fp8-static",
    "modelopt-fp4": "nvfp4",
    "ptpc-fp8": "fp8-channel",
    "fbgemm-fp8": "fp8-channel",
    "w8a8-fp8": "fp8-channel",
    "w8a8-int8": "w8a8",
    "ascend": "w8a8-ascend",
}
"""Values of an engine's --quantization that name a loader, with the scheme of most checkpoints that it loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody asks: names, a deployment as far as stated, and a workload as far as stated.

    `hardware` may name several devices, one a pipeline stage, parted by commas. `n_devices` counts what the hardware
    name means (packages, cards). `acceptance_length` counts all tokens that a speculative step yields.
    """

    hardware: str
    model: str | None = None
    deployment: Deployment = field(default_factory=Deployment)
    n_devices: int | None = None
    stage_layers: tuple[int, ...] = ()
    batch: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    runtime: str | None = None
    calibration: str = "auto"
    acceptance_length: float | None = None
    used_by_others_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Equal requests in flight at once, over all replicas."""

    batch: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Case:
    """A question with everything looked up and settled. `n_replicas` whole copies share the batch."""

    setup: Setup
    calibration: Calibration
    workload: Workload
    memory: MemoryCase
    n_replicas: int
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    usual: UsualValues

    @property
    def engine(self) -> Engine:
        """The priced setup."""
        return Engine(self.setup, self.calibration)

    @property
    def n_devices(self) -> int:
        """Devices of all replicas."""
        return self.setup.layout.n_devices * self.n_replicas


def case_of(catalogue: Catalogue, question: Question) -> Case:
    """Return the case behind a question; raises PerfmodelError that says what is wrong with it."""
    stated = question.deployment
    assumed: list[str] = []
    name = question.model or stated.model
    if name is None:
        raise SpecError("no model is named", expected="a model name or a config.json")
    names = (name, *stated.model_names) if question.model is None else (name,)
    choice = _first_known(catalogue, names)
    hardware = [catalogue.hardware(part) for part in question.hardware.split(",")]
    usual = catalogue.usual_values()
    runtime = _runtime(catalogue, question, hardware[0].device, assumed)
    is_moe = any(isinstance(layer.ffn, MoeFfn) for layer in choice.model.layers)
    layout, n_replicas = _layout(question, hardware, is_moe, assumed)
    scheme_name = _scheme_name(stated.quantization, choice.scheme, assumed)
    system = _system(catalogue, hardware, layout.n_devices * n_replicas, assumed)
    setup = Setup(
        model=choice.model,
        scheme=catalogue.scheme(scheme_name),
        layout=layout,
        runtime=_with_flags(runtime, stated),
        devices=tuple(h.device for h in hardware),
        system=system,
        dtype=stated.dtype or "auto",
        kv_dtype=stated.kv_cache_dtype or "auto",
        speculation=_speculation(question, usual, assumed),
        offload_bytes=(stated.cpu_offload_gib or 0.0) * GIB,
    ).resolved()
    workload = _workload(question, choice.model.max_position_tokens, assumed)
    memory = _memory_case(question, setup)
    warnings = (
        *choice.remarks,
        *_without_effect(stated, is_moe),
        *stated.notes,
        *(f"flag {flag} is not known and has no effect" for flag in stated.unknown),
    )
    engine, version = setup.runtime.engine, setup.runtime.name
    calibration = catalogue.calibration_for(question.calibration, setup.devices, engine, version)
    return Case(setup, calibration, workload, memory, n_replicas, (*assumed, *setup.assumed), warnings, usual)


def _scheme_name(stated: str | None, own: str, assumed: list[str]) -> str:
    """Return the weight scheme: the one stated, or the checkpoint's own where an engine names but a way to load it."""
    name = (stated or "auto").lower().replace("_", "-")
    usual = _LOADERS.get(name)
    if usual is None:
        return stated or own
    if own != "none":
        assumed.append(f"weights quantised as the checkpoint states: {own}")
        return own
    if name != "auto":
        assumed.append(f"weights quantised as {usual}, as is usual for {stated}")
    return usual


def _without_effect(stated: Deployment, is_moe: bool) -> tuple[str, ...]:
    spread = (stated.ep or 1) > 1 or stated.enable_expert_parallel
    return ("expert parallelism has no effect: the model has no experts",) if spread and not is_moe else ()


def _first_known(catalogue: Catalogue, names: tuple[str, ...]) -> ModelChoice:
    """Return the model of the first name that the catalogue knows; raises the error of the first name."""
    errors: list[UnknownNameError] = []
    for name in names:
        try:
            return catalogue.model(name)
        except UnknownNameError as error:
            errors.append(error)
    raise errors[0]


def _runtime(catalogue: Catalogue, question: Question, device: Device, assumed: list[str]) -> Runtime:
    if question.runtime is not None:
        return catalogue.runtime(question.runtime)
    engine = question.deployment.engine
    name = _USUAL_RUNTIME[engine or "vllm"]
    if device.vendor == "huawei" and engine in (None, "vllm"):
        name = "vllm-ascend-0.18"
    assumed.append(f"runtime {name}")
    return catalogue.runtime(name)


def _with_flags(runtime: Runtime, stated: Deployment) -> Runtime:
    changes: dict[str, object] = {}
    if stated.enforce_eager:
        changes |= {"decode_graphs": False, "host_per_layer": runtime.eager_host_per_layer or runtime.host_per_layer}
    if stated.block_tokens:
        changes["block_tokens"] = stated.block_tokens
    return runtime.model_copy(update=changes) if changes else runtime


def _layout(question: Question, hardware: list[Hardware], is_moe: bool, assumed: list[str]) -> tuple[Layout, int]:
    """Return the layout of one replica and the number of replicas."""
    stated = question.deployment
    n_devices = question.n_devices if question.n_devices is not None else hardware[0].n_devices
    if n_devices is not None and not 1 <= n_devices <= MOST_DEVICES:
        raise SpecError(
            "the number of devices cannot be used",
            where="devices",
            got=str(n_devices),
            expected=f"a whole number from 1 to {MOST_DEVICES}",
        )
    changes: dict[str, int] = {}
    if len(hardware) > 1 and stated.pp is None:
        changes["pp"] = len(hardware)
        assumed.append(f"pipeline of {len(hardware)} stages, one on each device named")
    sizes_stated = any(size is not None for size in (stated.tp, stated.pp, stated.dp))
    if n_devices is not None and n_devices > 1 and not sizes_stated and not changes:
        changes["tp"] = n_devices
        assumed.append(f"tensor parallelism over all {n_devices} devices")
    layout = replace(stated, **changes).layout(moe=is_moe)  # type: ignore[arg-type]
    if question.stage_layers:
        layout = replace(layout, stage_layers=question.stage_layers)
    n_replicas = stated.n_replicas
    if not is_moe and layout.dp > 1:
        layout, n_replicas = replace(layout, dp=1), n_replicas * layout.dp
    if n_devices is not None and layout.n_devices * n_replicas != n_devices:
        if n_devices % layout.n_devices or stated.dp is not None:
            raise SpecError(
                "the layout does not use the devices that were named",
                got=f"{n_devices} devices, layout tp {layout.tp} x pp {layout.pp} x dp {layout.dp * n_replicas}",
                expected=f"{layout.n_devices * n_replicas} devices, or another layout",
            )
        if sizes_stated and question.n_devices is not None:
            n_replicas = n_devices // layout.n_devices
            assumed.append(f"{n_replicas} replicas fill the {n_devices} devices")
        else:
            assumed.append(f"{layout.n_devices * n_replicas} of the {n_devices} devices are used")
    return layout, n_replicas


def _system(catalogue: Catalogue, hardware: list[Hardware], n_devices: int, assumed: list[str]) -> System | None:
    first = hardware[0]
    if first.system is not None:
        return first.system
    if n_devices == 1:
        return None
    system = catalogue.usual_system(first.device, n_devices)
    if system is not None:
        fabrics = ", then ".join(f"{f.name} ({f.topology.replace('_', ' ')} of {f.n_devices})" for f in system.fabrics)
        assumed.append(f"devices wired as in {system.title}: {fabrics}")
    return system


def _speculation(question: Question, usual: UsualValues, assumed: list[str]) -> Speculation | None:
    n_draft = question.deployment.speculative_tokens
    if not n_draft:
        if question.acceptance_length is not None:
            raise SpecError("an acceptance length needs drafted tokens", cure="Give --speculative-tokens too.")
        return None
    length = question.acceptance_length
    if length is None:
        p = usual.draft_acceptance_frac.value
        length = (1 - p ** (n_draft + 1)) / (1 - p)
        assumed.append(f"acceptance length {length:.2f} ({p:g} of drafted tokens accepted, one after the other)")
    return Speculation(n_draft, length)


def _workload(question: Question, max_position_tokens: int | None, assumed: list[str]) -> Workload:
    stated = question.deployment
    asked = {
        "batch": (question.batch, stated.max_concurrency, 1.0),
        "input_tokens": (question.input_tokens, stated.input_tokens, 1024.0),
        "output_tokens": (question.output_tokens, stated.output_tokens, 256.0),
    }
    values: dict[str, float] = {}
    faults = []
    for name, (own, flag, usual) in asked.items():
        value = own if own is not None else flag
        if value is None:
            value = usual
            assumed.append(f"{name.replace('_', ' ')} {usual:g} (not stated)")
        if not math.isfinite(value) or value < 1 or value != int(value) or value > 2**40:
            faults.append(Fault(name.replace("_", " "), f"{value:g}", "a whole number of at least 1"))
        values[name] = float(value)
    limit = stated.max_model_len or max_position_tokens
    length = values["input_tokens"] + values["output_tokens"]
    if not faults and limit is not None and length > limit:
        faults.append(
            Fault(
                "context",
                f"{length:g} tokens (input + output)",
                f"at most {limit}, the {'--max-model-len' if stated.max_model_len else 'longest context of the model'}",
                "Shorten the request, or raise --max-model-len if the model allows it.",
            )
        )
    if faults:
        raise SpecError("the workload cannot be served", faults=faults)
    return Workload(**values)


def _memory_case(question: Question, setup: Setup) -> MemoryCase:
    s = question.deployment
    kv_layout: KvLayout = "fp8_ds_mla" if setup.kv_dtype == "fp8_ds_mla" else "plain"
    options = MemoryOptions(
        utilization=s.gpu_memory_utilization,
        max_model_len=s.max_model_len,
        max_num_seqs=s.max_num_seqs,
        max_num_batched_tokens=s.max_num_batched_tokens or s.max_prefill_tokens,
        chunked_prefill=s.chunked_prefill,
        block_tokens=s.block_tokens,
        element_bytes=setup.element_bytes,
        kv_element_bytes=1.0 if kv_layout == "fp8_ds_mla" else KV_ELEMENT_BYTES[setup.kv_dtype],
        kv_layout=kv_layout,
        kv_cache_memory_bytes=s.kv_cache_memory_bytes or s.npu_memory_bytes,
        num_gpu_blocks_override=s.num_gpu_blocks_override,
        max_total_tokens=s.max_total_tokens,
        enforce_eager=s.enforce_eager,
        used_by_others_bytes=question.used_by_others_bytes,
        cpu_offload_bytes=(s.cpu_offload_gib or 0.0) * GIB,
        swap_space_bytes=(s.swap_space_gib or 0.0) * GIB,
        with_mtp=setup.speculation is not None,
    )
    return MemoryCase(setup.model, setup.scheme, setup.layout, setup.runtime, setup.devices, options)
