"""Launch lines as people paste them, with what each states."""

from __future__ import annotations

from typing import Any

INF = float("inf")

LINES: list[tuple[str, str, dict[str, Any]]] = [
    ("model only", "vllm serve Qwen/Qwen3-8B", {"model": "Qwen/Qwen3-8B", "engine": "vllm"}),
    (
        "backslashes, host and port",
        """vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-32B \\
            --host 0.0.0.0 --port 18000 --dtype bfloat16 \\
            --tensor-parallel-size 4 --max-model-len 49152 \\
            --gpu-memory-utilization 0.90""",
        {
            "model": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
            "tp": 4,
            "max_model_len": 49152,
            "gpu_memory_utilization": 0.9,
            "dtype": "bfloat16",
            "ignored": ("--host", "--port"),
            "unknown": (),
        },
    ),
    (
        "MTP and expert parallelism",
        """vllm serve deepseek-ai/DeepSeek-R1 \\
        --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}' \\
        -dp 8 \\
        --enable-expert-parallel""",
        {"dp": 8, "enable_expert_parallel": True, "speculative_tokens": 1, "speculative_method": "mtp", "tp": None},
    ),
    (
        "equals signs, underscores, negated switches, graphs",
        (
            "vllm serve /data/model --trust-remote-code --pipeline-parallel-size=4 --tensor_parallel_size=4 "
            "--max-model-len 8192 --disable-cascade-attn --no-enable-prefix-caching --no-enable_chunked_prefill "
            """--compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY", "level": 0}'"""
        ),
        {
            "tp": 4,
            "pp": 4,
            "prefix_caching": False,
            "chunked_prefill": False,
            "enforce_eager": None,
            "ignored": ("--trust-remote-code", "--disable-cascade-attn", "--compilation-config"),
        },
    ),
    ("short, glued", "vllm serve m -tp8 -pp=2 -dcp 4 -q awq -O3", {"tp": 8, "pp": 2, "dcp": 4, "quantization": "awq"}),
    (
        "old server module",
        (
            "CUDA_VISIBLE_DEVICES=0,1 nohup python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-8B "
            "--swap-space 4 --enforce-eager --block-size 16 --disable-log-requests > server.log 2>&1 &"
        ),
        {
            "engine": "vllm",
            "model": "meta-llama/Llama-8B",
            "swap_space_gib": 4.0,
            "enforce_eager": True,
            "block_tokens": 16,
            "environment": {"CUDA_VISIBLE_DEVICES": "0,1"},
            "unknown": (),
        },
    ),
    (
        "docker run of the server image",
        """docker run --runtime nvidia --gpus all \\
            -v ~/.cache/huggingface:/home/user/.cache/huggingface \\
            --env "HF_HUB_OFFLINE=1" -e HUGGING_FACE_HUB_TOKEN=hf_abc -p 8000:8000 --ipc=host \\
            vllm/vllm-openai:latest \\
            --model Qwen/Qwen2.5-Coder-0.5B-Instruct --max_model_len 1024 --api_key "EMPTY" """,
        {
            "engine": "vllm",
            "model": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            "max_model_len": 1024,
            "environment": {"HF_HUB_OFFLINE": "1", "HUGGING_FACE_HUB_TOKEN": "***"},
            "ignored": ("--api-key",),
        },
    ),
    (
        "docker with quoted device list and short switches",
        """docker run -it --name v0 --rm --gpus='"device=0"' --ulimit memlock=-1 -v $(pwd):/models
           -e NCCL_P2P_DISABLE=1 vllm/vllm-openai:v0.7.2 --model /models/vllm-11 --quantization bitsandbytes""",
        {"model": "/models/vllm-11", "quantization": "bitsandbytes", "environment": {"NCCL_P2P_DISABLE": "1"}},
    ),
    (
        "docker with the command inside",
        (
            "docker run --gpus all --shm-size 32g -p 30000:30000 lmsysorg/sglang:latest "
            "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp-size 2 --port 30000"
        ),
        {"engine": "sglang", "model": "meta-llama/Llama-3.1-8B-Instruct", "tp": 2},
    ),
    (
        "docker, a shell and a script in quotes",
        """docker run -d --network host quay.io/ascend/vllm-ascend:v0.9.1 \
            bash -lc "cd /w && vllm serve Qwen/Qwen3-32B -tp 4" """,
        {"engine": "vllm", "model": "Qwen/Qwen3-32B", "tp": 4},
    ),
    (
        "image with the model as its first word",
        "podman run --device nvidia.com/gpu=all vllm/vllm-openai:v0.11.0 Qwen/Qwen3-8B --max-num-seqs 64",
        {"model": "Qwen/Qwen3-8B", "max_num_seqs": 64},
    ),
    (
        "SGLang with DP attention",
        (
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 16 --enable-dp-attention "
            "--ep-size 16 --mem-fraction-static 0.85 --context-length 65536 --max-running-requests 512 "
            "--max-total-tokens 400000 --chunked-prefill-size 8192 --stream-interval 5 --nnodes 2 --node-rank 0"
        ),
        {
            "engine": "sglang",
            "tp": 16,
            "dp": 16,
            "ep": 16,
            "dp_attention": True,
            "gpu_memory_utilization": 0.85,
            "max_model_len": 65536,
            "max_num_seqs": 512,
            "max_total_tokens": 400000,
            "max_num_batched_tokens": 8192,
            "ignored": ("--stream-interval", "--nnodes", "--node-rank"),
            "unknown": (),
        },
    ),
    (
        "SGLang speculation",
        (
            "python -m sglang.launch_server --model-path /models/Kimi-K2 --tp-size 8 --speculative-algorithm EAGLE3 "
            "--speculative-draft-model-path /models/eagle --speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 4 --disable-radix-cache --disable-cuda-graph --page-size 64"
        ),
        {
            "speculative_tokens": 3,
            "speculative_method": "eagle3",
            "prefix_caching": False,
            "enforce_eager": True,
            "block_tokens": 64,
        },
    ),
    (
        "SGLang with draft tokens alone, and chunking off",
        "sglang serve --model m --speculative-algo NEXTN --speculative-num-draft-tokens 4 --chunked-prefill-size -1",
        {
            "speculative_tokens": 3,
            "speculative_method": "mtp",
            "chunked_prefill": False,
            "max_num_batched_tokens": None,
        },
    ),
    (
        "Ascend script",
        """#!/bin/bash
        # it's a script for two nodes
        export HCCL_OP_EXPANSION_MODE=AIV
        export HCCL_BUFFSIZE=1024 OMP_NUM_THREADS=1
        MODEL=/home/user/weights/DeepSeek-R1-W8A8
        TP=8
        source /usr/local/Ascend/set_env.sh
        VLLM_USE_V1=1 vllm serve "$MODEL" \\
          --tensor-parallel-size $TP \\
          --data-parallel-size ${DP:-2} --quantization ascend \\
          # --enforce-eager \\
          --max-num-batched-tokens 8K \\
          --additional-config '{"enable_weight_nz_layout": true}'
        """,
        {
            "model": "/home/user/weights/DeepSeek-R1-W8A8",
            "tp": 8,
            "dp": 2,
            "quantization": "ascend",
            "max_num_batched_tokens": 8192,
            "enforce_eager": None,
            "environment": {
                "HCCL_OP_EXPANSION_MODE": "AIV",
                "HCCL_BUFFSIZE": "1024",
                "OMP_NUM_THREADS": "1",
                "VLLM_USE_V1": "1",
            },
            "ignored": ("--additional-config",),
        },
    ),
    (
        "prompt and continuation prompts",
        "(base) user@node-3:~/run$ vllm serve m \\\n> --tp 2 \\\n> --kv-cache-dtype fp8_e5m2",
        {"model": "m", "tp": 2, "kv_cache_dtype": "fp8_e5m2"},
    ),
    ("dollar prompt", "$ vllm serve m --tp 2", {"model": "m", "tp": 2}),
    ("notebook", "!vllm serve m --tp 2", {"model": "m", "tp": 2}),
    ("lost backslashes", "vllm serve m\n  --tp 2\n  --pp 3\n", {"model": "m", "tp": 2, "pp": 3}),
    ("dashes and quotes of a word processor", "vllm serve m —tp 2 –-dtype “float16”", {"tp": 2, "dtype": "float16"}),
    (
        "two KV sizes and a block count",
        "vllm serve m --kv-cache-memory-bytes 16G --num-gpu-blocks-override 2048 --cpu-offload-gb 10.5",
        {"kv_cache_memory_bytes": 16 * 2**30, "num_gpu_blocks_override": 2048, "cpu_offload_gib": 10.5},
    ),
    ("small and capital k", "vllm serve m --max-model-len 25.6k", {"max_model_len": 25600}),
    ("capital K", "vllm serve m --max-model-len 64K", {"max_model_len": 65536}),
    ("longest that fits", "vllm serve m --max-model-len auto --dtype None", {"max_model_len": None, "dtype": None}),
    (
        "switches with a value",
        "vllm serve m --enable-prefix-caching true --enable-chunked-prefill=False --enforce-eager Qwen",
        {"prefix_caching": True, "chunked_prefill": False, "enforce_eager": True, "unknown": ("Qwen",)},
    ),
    ("no graphs", """vllm serve m -O '{"cudagraph_mode":"NONE"}'""", {"enforce_eager": True}),
    (
        "dotted",
        "vllm serve m --speculative-config.num_speculative_tokens 2 -O.cudagraph_mode=NONE",
        {"speculative_tokens": 2},
    ),
    (
        "unknown flags swallow their values",
        "vllm serve m --new-thing 5 --other-thing=x --fancy a b c --tp 2 --lora-modules a=b c=d",
        {"tp": 2, "unknown": ("--new-thing", "--other-thing", "--fancy"), "ignored": ("--lora-modules",)},
    ),
    ("config file", "vllm serve m --config run.yaml", {"model": "m", "unknown": ("--config",)}),
    (
        "bench",
        (
            "vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --model Qwen/Qwen2.5-7B-Instruct "
            "--dataset-name random --random-input-len 1024 --random-output-len 128 --num-prompts 160 "
            "--max-concurrency 32 --request-rate inf --ignore-eos --percentile-metrics ttft,tpot,itl,e2el"
        ),
        {
            "engine": None,
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "input_tokens": 1024,
            "output_tokens": 128,
            "num_prompts": 160,
            "max_concurrency": 32,
            "request_rate": INF,
            "unknown": (),
        },
    ),
    (
        "abbreviated bench script",
        "python benchmark_serving.py --model m --random-input 128 --random-output 64 --num-prompt 8 --request-rate 2.5",
        {"input_tokens": 128, "output_tokens": 64, "num_prompts": 8, "request_rate": 2.5},
    ),
    (
        "server and bench together",
        "vllm serve /data/x -tp 2 &\nsleep 60\nvllm bench serve --model served --num-prompts 10 --request-rate 4",
        {"model": "/data/x", "tp": 2, "num_prompts": 10, "request_rate": 4.0, "engine": "vllm"},
    ),
    (
        "notes in Markdown",
        "# Notes\n\nIt's the box we don't use. Run `vllm serve Qwen/Qwen3-8B --tp 2`, wait, don't stop.\n",
        {"model": "Qwen/Qwen3-8B", "tp": 2},
    ),
    (
        "only in a comment",
        "# usage:\n#   vllm serve Qwen/Qwen3-8B \\\n#     --tp 2\n",
        {"model": "Qwen/Qwen3-8B", "tp": 2},
    ),
    ("flags alone", "--tp 8 --max-model-len 32k", {"tp": 8, "max_model_len": 32000, "engine": None}),
    ("placeholder", "vllm serve <your_model_path> --served-model-name <name> --tp 8", {"model": None, "tp": 8}),
    (
        "compose, folded",
        """services:
  vllm-server:
    image: vllm/vllm-openai:latest
    environment:
      - CUDA_VISIBLE_DEVICES=1 # second card
      - "HF_TOKEN=abc"
    ipc: host
    command: >
      --model ${MODEL:-Infermatic/Llama-3.3-70B-Instruct-FP8-Dynamic}
      --tensor-parallel-size ${TENSOR_PARALLEL_SIZE:-2}
      --gpu-memory-utilization 0.95
      --disable-log-requests
  web:
    image: ghcr.io/open-webui/open-webui:main
    command: ["bash", "start.sh"]
""",
        {
            "engine": "vllm",
            "model": "Infermatic/Llama-3.3-70B-Instruct-FP8-Dynamic",
            "tp": 2,
            "gpu_memory_utilization": 0.95,
            "environment": {"CUDA_VISIBLE_DEVICES": "1", "HF_TOKEN": "***"},
        },
    ),
    (
        "compose, a list",
        """    command:
      - --model
      - "Qwen/Qwen3-8B"
      - --tensor-parallel-size=2
      - "--max-model-len 32768"
      # - --enforce-eager
      - --speculative-config
      - '{"method": "ngram", "num_speculative_tokens": 4}'
    ports:
      - "8000:8000"
""",
        {"model": "Qwen/Qwen3-8B", "tp": 2, "max_model_len": 32768, "speculative_tokens": 4, "enforce_eager": None},
    ),
    (
        "compose, flow list",
        """command: ["python3", "-m", "sglang.launch_server", "--model-path", 'Qwen/Qwen3-8B',
          "--tp", "2"]""",
        {"engine": "sglang", "model": "Qwen/Qwen3-8B", "tp": 2},
    ),
    (
        "pod with a shell",
        """    containers:
    - name: vllm
      image: vllm/vllm-openai:latest
      command: ["/bin/sh", "-c"]
      args: [
        "vllm serve mistralai/Mistral-7B --trust-remote-code --enable-chunked-prefill --max_num_batched_tokens 1024"
      ]
""",
        {"model": "mistralai/Mistral-7B", "chunked_prefill": True, "max_num_batched_tokens": 1024},
    ),
    ("bare list", "- --model=m\n- --tp=2\n", {"model": "m", "tp": 2}),
    (
        "engine's YAML",
        "model: meta-llama/Llama-3.1-8B\nhost: 127.0.0.1\ntensor-parallel-size: 2\nenforce-eager: false\n",
        {"model": "meta-llama/Llama-3.1-8B", "tp": 2, "enforce_eager": False, "ignored": ("--host",)},
    ),
    ("arguments as JSON", '{"model": "m", "tensor_parallel_size": 4, "enable_prefix_caching": true}', {"tp": 4}),
]
