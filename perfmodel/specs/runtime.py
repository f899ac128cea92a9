"""What the software between model and hardware does: launches, host time, fusion, memory, scheduler defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import Figure, Spec
from perfmodel.specs.step_scatter import StepScatter
from perfmodel.units import Bytes, Frac, Seconds

__all__ = ["ActivationModel", "Fusion", "HostTime", "LargeDevice", "MemoryProfile", "Runtime", "SchedulerDefaults"]

Fusion = Literal[
    "qkv", "gate_up", "activation", "add_norm", "rope_kv_write", "flash_attention", "moe_grouped", "quantise_norm"
]


class HostTime(Figure):
    """A host-side time with the relative standard deviation that is honest for it."""

    value: Seconds
    rel_sd: Annotated[float, Field(ge=0, le=3)] = 0.3


class ActivationModel(Spec):
    """Peak of temporary memory in one step, bytes = max(token part, logits part) + constant.

    Token part: tokens x element bytes x max(FFN part, attention part) of the widest layer, where
    FFN part = ffn_copies x MLP width of a rank + (hidden_copies + collective_copies if tp > 1) x d_model
    and attention part = attention_copies x (query, key, value and output width of a rank) + the same d_model copies.
    A mixture of experts has top_k expert widths for each token and the gathered expert inputs or outputs besides, for
    at most expert_chunk_tokens at once. Logits part: sequences x whole vocabulary x logits_bytes, on ranks that sample.
    """

    hidden_copies: Annotated[float, Field(ge=0)]
    ffn_copies: Annotated[float, Field(ge=0)]
    logits_bytes: Annotated[float, Field(ge=0)]
    """Bytes that sampling takes for each sequence and vocabulary entry (logits, their sort, indices, probabilities)."""
    attention_copies: Annotated[float, Field(ge=0)] = 0.0
    collective_copies: Annotated[float, Field(ge=0)] = 0.0
    """Further copies of d_model where an all-reduce writes to a new buffer."""
    expert_chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens that a fused expert kernel works on at once; None: all."""
    sampling: Literal["first_rank", "all_ranks"] = "all_ranks"
    """Which tensor-parallel ranks of the last stage hold whole logits and sample."""
    constant: Bytes = 0.0


class MemoryProfile(Spec):
    """How the engine divides a device's memory.

    vllm-v0, vllm-v1: utilisation x total - weights - activation - non-torch (- graphs).
    sglang: (total - non-torch) x static fraction - weights; activation and graphs live in the rest.
    mindie: an explicit KV size, or (free x fraction) after loading; free-fraction: the same without a size.
    plain: no pool, the cache grows as it is used.
    """

    accounting: Literal["vllm-v0", "vllm-v1", "sglang", "mindie", "free-fraction", "plain"]
    default_utilization: Frac = 0.9
    non_torch: Bytes = 0.0
    """Context, libraries and communicator buffers that the engine cannot use, at one device."""
    non_torch_per_peer: Bytes = 0.0
    """What each further tensor-parallel peer adds."""
    graphs: Bytes = 0.0
    graphs_in_budget: bool = False
    """Whether graph memory is subtracted before the KV pool is sized."""
    swa_full_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Engine keeps two pools: tokens of the sliding-window pool over tokens of the full pool; None: one pool."""
    activation: ActivationModel
    source: str
    note: str = ""


class LargeDevice(Spec):
    """Scheduler defaults that the engine takes on devices with more memory than `above`."""

    above: Bytes
    not_families: tuple[str, ...] = ()
    """Device families that keep the ordinary defaults whatever their size."""
    max_num_seqs: Annotated[int, Field(ge=1)]
    max_num_batched_tokens: Annotated[int, Field(ge=1)]


class SchedulerDefaults(Spec):
    max_num_seqs: Annotated[int, Field(ge=1)]
    max_num_batched_tokens: Annotated[int, Field(ge=1)]
    """Token budget of a step (with chunked prefill), or the least prompt budget without it."""
    chunked_prefill: bool
    chunked_prefill_above_tokens: int | None = None
    """The engine turns chunked prefill on by itself when the context limit is beyond this."""
    chunk_tokens: Annotated[int, Field(ge=1)] | None = None
    """Token budget of a step once chunked prefill is on; None: max_num_batched_tokens."""
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    """Context limit where the user gives none; None: what the model was trained for."""
    reserves_prompt: bool = False
    """A prompt that is cut over steps is admitted only where all of it has room."""
    large_device: LargeDevice | None = None


class Runtime(Spec):
    """One engine, by version. Each figure's `source` is a key of `sources`."""

    kind: Literal["runtime"] = "runtime"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    engine: Literal["vllm", "vllm-ascend", "sglang", "tensorrt-llm", "mindie", "pytorch", "gpt-fast", "cann", "ideal"]
    names: tuple[str, ...] = ()
    sources: dict[str, str]
    decode_graphs: bool
    """Decode steps are replayed from a captured graph; otherwise the host launches each kernel."""
    graph_max_batch: int | None = None
    prefill_graphs: bool = False
    fused: tuple[Fusion, ...] = ()
    block_tokens: Annotated[int, Field(ge=1)] = 16
    host_per_step: HostTime
    host_per_layer: HostTime
    host_per_sequence: HostTime
    host_launch: HostTime
    """Host time to launch one kernel when no graph is replayed."""
    eager_host_per_layer: HostTime | None = None
    """Takes the place of `host_per_layer` where no graph is captured (--enforce-eager); None: it stays."""
    host_per_message: HostTime | None = None
    """What each collective waits beyond its own time: ranks that arrive late, hand-over between streams."""
    launch_shown_frac: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a kernel's start and serial chain, as kernel tables have them, that is left in a step: engines let the
    next kernel begin and fetch its weights while its predecessor ends (programmatic dependent launch), and fuse small
    kernels that are counted apart."""
    launch_shown_families: tuple[str, ...] = ("hopper", "blackwell")
    """Device families that can: compute capability 9.0 and up (CUDA C++ Programming Guide, programmatic dependent
    launch). Elsewhere every start shows."""
    host_first_token: HostTime | None = None
    """What a request spends outside of steps until its first token is with the client: the way in (HTTP, tokens of the
    prompt, hand-over to the scheduler) and the way out."""
    host_first_token_per_sequence: HostTime | None = None
    """What each request in flight adds to that: the front end and the client serve the tokens of all in turn."""
    n_poll_steps: Annotated[float, Field(ge=0)] = 1.0
    """The scheduler looks for new requests once in so many steps: a request waits for half of them."""
    gqa_reread_frac: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Share of the further query heads of a group for which decode attention reads their KV head once more: 0 for
    kernels that work on a whole group at once, 1 for those of one query head each (before caches), more where keys and
    values are expanded to all heads in memory first: each copy is a write and a read."""
    weight_only_accumulate: Literal["fp32", "fp16"] = "fp32"
    """What matmuls with expanded weights add up in: some kernels take fp16, which GeForce cards do twice as fast."""
    latent_cache: bool = True
    """MLA models keep the latent; otherwise the expanded heads."""
    expanded_head: Annotated[int, Field(ge=1)] | None = None
    """Elements that keys and values of an expanded MLA head are each padded to; None: their own widths."""
    windowed_cache: bool = True
    """Sliding-window layers release what left the window; otherwise they keep every token."""
    scheduler: SchedulerDefaults
    memory: MemoryProfile
    step_scatter: StepScatter = StepScatter()
    """Scatter of measured whole steps under this engine; where a phase has none, that of the calibration counts."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sources_exist(self) -> Runtime:
        times = (
            self.host_per_step,
            self.host_per_layer,
            self.host_per_sequence,
            self.host_launch,
            self.eager_host_per_layer,
            self.host_per_message,
            self.host_first_token,
            self.host_first_token_per_sequence,
        )
        scatters = (self.step_scatter.prefill, self.step_scatter.decode)
        missing = sorted({f.source for f in (*times, *scatters) if f is not None} | {self.memory.source})
        missing = [key for key in missing if key not in self.sources]
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        return self
