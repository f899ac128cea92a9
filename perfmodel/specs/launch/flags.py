"""The flags of vLLM (server and bench) and SGLang as data: which field each one states, and how its value is written.

Spellings are those of `vllm serve --help` (0.6 to 0.11), `python -m sglang.launch_server --help` (0.3 to 0.5),
`vllm bench serve` and `sglang.bench_serving`. Dashes and underscores are the same; `--no-x` is the opposite of `--x`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

__all__ = ["BENCH_FIELDS", "FLAGS", "IGNORED", "IGNORED_SWITCHES", "SHORT", "SPECIAL", "Flag", "Kind", "by_name"]

Kind = Literal["count", "tokens", "bytes", "number", "text", "lower", "on", "off"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One meaning: the field it states, the kind of value, how vLLM and SGLang spell it, and further spellings.

    The first name of an engine is what a rendered line uses. Kinds `on` and `off` take no value.
    """

    field: str
    kind: Kind
    vllm: str = ""
    sglang: str = ""
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All spellings, without repeats."""
        return tuple(dict.fromkeys(name for name in (self.vllm, self.sglang, *self.others) if name))


FLAGS: Final = (
    Flag("model", "text", "--model", "--model-path"),
    Flag("served_model_name", "text", "--served-model-name", "--served-model-name"),
    Flag("tp", "count", "--tensor-parallel-size", "--tp-size", ("--tp", "-tp")),
    Flag("pp", "count", "--pipeline-parallel-size", "--pp-size", ("--pp", "-pp")),
    Flag("dp", "count", "--data-parallel-size", "--dp-size", ("--dp", "-dp")),
    Flag("ep", "count", "", "--ep-size", ("--ep", "--expert-parallel-size")),
    Flag("dcp", "count", "--decode-context-parallel-size", "", ("-dcp", "--dcp", "--dcp-size")),
    Flag(
        "enable_expert_parallel",
        "on",
        "--enable-expert-parallel",
        "",
        ("-ep", "--enable-ep-moe", "--enable-deepep-moe"),
    ),
    Flag("dp_attention", "on", "", "--enable-dp-attention"),
    Flag("max_model_len", "tokens", "--max-model-len", "--context-length", ("--max-context-len", "--context-len")),
    Flag("max_num_seqs", "count", "--max-num-seqs", "--max-running-requests"),
    Flag("max_num_batched_tokens", "tokens", "--max-num-batched-tokens", "--chunked-prefill-size"),
    Flag("max_prefill_tokens", "tokens", "", "--max-prefill-tokens"),
    Flag("max_total_tokens", "tokens", "", "--max-total-tokens"),
    Flag(
        "gpu_memory_utilization", "number", "--gpu-memory-utilization", "--mem-fraction-static", ("--gpu-memory-util",)
    ),
    Flag("kv_cache_dtype", "text", "--kv-cache-dtype", "--kv-cache-dtype"),
    Flag("kv_cache_memory_bytes", "bytes", "--kv-cache-memory-bytes", "", ("--kv-cache-memory",)),
    Flag("num_gpu_blocks_override", "count", "--num-gpu-blocks-override"),
    Flag("swap_space_gib", "number", "--swap-space"),
    Flag("cpu_offload_gib", "number", "--cpu-offload-gb", "--cpu-offload-gb"),
    Flag("quantization", "text", "--quantization", "--quantization", ("-q",)),
    Flag("dtype", "text", "--dtype", "--dtype"),
    Flag("block_tokens", "count", "--block-size", "--page-size"),
    Flag("chunked_prefill", "on", "--enable-chunked-prefill"),
    Flag("chunked_prefill", "off", "--no-enable-chunked-prefill", "", ("--disable-chunked-prefill",)),
    Flag("prefix_caching", "on", "--enable-prefix-caching"),
    Flag("prefix_caching", "off", "--no-enable-prefix-caching", "--disable-radix-cache"),
    Flag("enforce_eager", "on", "--enforce-eager", "--disable-cuda-graph"),
    Flag("graph_max_batch", "count", "--max-cudagraph-capture-size", "--cuda-graph-max-bs"),
    Flag("speculative_tokens", "count", "", "--speculative-num-steps", ("--num-speculative-tokens",)),
    Flag("speculative_method", "lower", "", "--speculative-algorithm", ("--speculative-algo",)),
    Flag("num_prompts", "count", "--num-prompts", "--num-prompts", ("--num-prompt",)),
    Flag("request_rate", "number", "--request-rate", "--request-rate"),
    Flag("max_concurrency", "count", "--max-concurrency", "--max-concurrency", ("--batch-size",)),
    Flag(
        "input_tokens",
        "tokens",
        "--random-input-len",
        "--random-input-len",
        ("--random-input", "--input-len", "--sonnet-input-len", "--prefix-repetition-suffix-len"),
    ),
    Flag(
        "output_tokens",
        "tokens",
        "--random-output-len",
        "--random-output-len",
        ("--random-output", "--output-len", "--sonnet-output-len", "--sharegpt-output-len", "--hf-output-len"),
    ),
)
"""Every flag that states one field."""

BENCH_FIELDS: Final = ("num_prompts", "request_rate", "max_concurrency", "input_tokens", "output_tokens")
"""What the load generator states, not the server."""

SPECIAL: Final = {
    "--speculative-config": "speculative",
    "-sc": "speculative",
    "--compilation-config": "compilation",
    "-cc": "compilation",
    "-O": "compilation",
    "--optimization-level": "compilation",
    "--speculative-num-draft-tokens": "draft_tokens",
    "--speculative-eagle-topk": "tree_width",
    "--cuda-graph-bs": "graph_batches",
    "--cuda-graph-sizes": "graph_batches",
    "--cudagraph-capture-sizes": "graph_batches",
    "--moe-a2a-backend": "a2a_backend",
    "--config": "config_file",
}
"""Flags whose value says more, or something else, than one field: which reader takes them."""

_SWITCHES: Final = """
    trust-remote-code disable-log-requests disable-log-stats enable-log-requests enable-auto-tool-choice
    allow-credentials enable-log-outputs disable-uvicorn-access-log disable-fastapi-docs
    enable-request-id-headers enable-metrics log-requests enable-server-load-tracking
    enable-prompt-tokens-details return-tokens-as-token-ids disable-frontend-multiprocessing enable-reasoning
    enable-ssl-refresh enable-sleep-mode skip-tokenizer-init worker-use-ray engine-use-ray show-time-cost
    use-v2-block-manager async-scheduling disable-custom-all-reduce disable-cascade-attn enable-dbo enable-eplb
    headless disable-sliding-window disable-async-output-proc disable-hybrid-kv-cache-manager enable-lora
    enable-torch-compile enable-tokenizer-mode enable-p2p-check disable-overlap-schedule enable-mixed-chunk
    enable-dp-lm-head enable-multimodal enable-flashinfer-mla enable-flashinfer-allreduce-fusion
    enable-metrics-for-all-schedulers enable-cache-report is-embedding skip-server-warmup
    disable-shared-experts-fusion enable-nccl-nvls enable-symm-mem enable-two-batch-overlap
    disable-cuda-graph-padding disable-piecewise-cuda-graph enable-hierarchical-cache enable-memory-saver
    enable-dp-lb data-parallel-hybrid-lb data-parallel-external-lb data-parallel-rank-hint calculate-kv-scales
    language-model-only ignore-eos save-result save-detailed append-result disable-tqdm profile
    disable-ignore-eos tokenize-prompt apply-chat-template random-sharegpt return-logprob disable-stream
    flush-cache seed-requests disable-shuffle no-stream no-oversample
"""
IGNORED_SWITCHES: Final = frozenset(f"--{name}" for name in _SWITCHES.split())
"""Switches that are known and not modelled."""

_VALUED: Final = """
    host port uds api-key ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs root-path middleware
    allowed-origins allowed-methods allowed-headers lora-modules chat-template chat-template-content-format
    response-role uvicorn-log-level log-level log-level-http log-config-file max-log-len tool-call-parser
    tool-parser-plugin reasoning-parser tokenizer tokenizer-path tokenizer-mode tokenizer-revision revision
    code-revision hf-config-path hf-token hf-overrides task runner convert seed download-dir load-format
    weight-loader-disable-mmap model-loader-extra-config config-format generation-config
    override-generation-config allowed-local-media-path limit-mm-per-prompt mm-processor-kwargs
    mm-processor-cache-gb guided-decoding-backend structured-outputs-config grammar-backend logits-processors
    max-logprobs rope-scaling rope-theta max-seq-len-to-capture distributed-executor-backend
    ray-workers-use-nsight max-parallel-loading-workers device data-parallel-size-local data-parallel-address
    data-parallel-rpc-port data-parallel-rank data-parallel-start-rank data-parallel-backend nnodes node-rank
    master-addr master-port dist-init-addr nccl-port dist-timeout base-gpu-id gpu-id-step api-server-count
    scheduling-policy scheduler-delay-factor preemption-mode num-scheduler-steps schedule-policy
    schedule-conservativeness max-num-partial-prefills max-long-partial-prefills long-prefill-token-threshold
    max-lora-rank max-loras max-cpu-loras lora-dtype kv-transfer-config kv-events-config additional-config
    plugin-config attention-backend attention-config mm-attention-backend prefill-attention-backend
    decode-attention-backend moe-backend sampling-backend moe-runner-backend deepep-mode deepep-config
    eplb-config num-redundant-experts ep-num-redundant-experts ep-dispatch-algorithm moe-dense-tp-size
    init-expert-location all2all-backend expert-placement-strategy disaggregation-mode
    disaggregation-transfer-backend disaggregation-ib-device disaggregation-bootstrap-port stream-interval
    stream-output watchdog-timeout random-seed constrained-json-whitespace-pattern collect-tokens-histogram
    mamba-ssm-dtype mamba-cache-dtype mamba-block-size prefix-caching-hash-algo kv-sharing-fast-prefill
    otlp-traces-endpoint speculative-model speculative-draft-model-path speculative-draft-tensor-parallel-size
    speculative-attention-mode speculative-token-map cuda-graph-backend torch-compile-max-bs
    json-model-override-args preferred-sampling-params hicache-ratio hicache-size hicache-write-policy
    load-balance-method file-storage-path decode-log-interval backend base-url endpoint dataset-name
    dataset-path percentile-metrics metric-percentiles goodput burstiness result-dir result-filename metadata
    label random-range-ratio random-prefix-len random-batch-size header extra-body logprobs temperature top-p
    top-k min-p lora-path ramp-up-strategy ramp-up-start-rps ramp-up-end-rps num-warmups warmup-requests
    num-iters num-iters-warmup ready-check-timeout-sec request-id-prefix extra-request-body output-file
    gsp-num-groups
"""
IGNORED: Final = frozenset(f"--{name}" for name in _VALUED.split())
"""Flags with a value that are known and not modelled."""

SHORT: Final = {
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-asc": "--api-server-count",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-ac": "--attention-config",
}
"""Short names of flags that are known and not modelled."""


@cache
def by_name() -> dict[str, Flag]:
    """Return every spelling with its flag; an `on` flag also gives its `--no-` opposite unless that is listed.

    >>> by_name()["--disable-radix-cache"].field
    'prefix_caching'
    """
    table = {name: flag for flag in FLAGS for name in flag.names}
    for flag in FLAGS:
        if flag.kind == "on":
            for name in flag.names:
                if name.startswith("--"):
                    table.setdefault(f"--no-{name[2:]}", Flag(flag.field, "off", others=(f"--no-{name[2:]}",)))
    return table
