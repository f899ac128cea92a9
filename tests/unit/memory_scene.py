"""Cards, towers of layers and cases for the tests of memory accounting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from perfmodel.specs.device import Device
from perfmodel.specs.formats import Format
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import (
    DenseFfn,
    LatentAttention,
    Layer,
    LinearAttention,
    Model,
    MoeFfn,
    SoftmaxAttention,
)
from perfmodel.specs.quantization import Scheme
from perfmodel.specs.runtime import Runtime
from perfmodel.units import GIB
from perfmodel.work.memory_rules import (
    MemoryOptions,
)
from perfmodel.work.memory_types import MemoryCase

RUNTIMES = sorted((Path(__file__).resolve().parents[2] / "hardware" / "runtimes").glob("*.yaml"))
PLAIN = Scheme(name="none", weight_dtype="16bit", compute="16bit", kernel="16bit", sources=("definition",))
HALF = Scheme(
    name="eight",
    weight_dtype="fp8",
    compute="fp8",
    kernel="fp8",
    weight=Format(element_bits=8),
    sources=("definition",),
)


def load(name: str) -> Runtime:
    path = next(p for p in RUNTIMES if p.stem == name)
    return Runtime.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


VLLM = load("vllm-0.11")
V0 = load("vllm-0.7.3")
ALL = [load(path.stem) for path in RUNTIMES]


def card(gib: float = 24.0, *, name: str = "card", family: str = "ada") -> Device:
    """Return a device that has memory and little else."""
    size = {"value": gib * GIB, "source": "s"}
    return Device.model_validate(
        {
            "name": name,
            "title": name,
            "vendor": "nvidia",
            "family": family,
            "sources": {"s": "made up for the test"},
            "vector": {
                "core": "SM",
                "n_cores": {"value": 1, "source": "s"},
                "rates": [{"dtype": "fp32", "value": 1e12, "source": "s"}],
            },
            "memory": [{"level": "dram", "capacity": size, "bandwidth": {"value": 1e12, "source": "s"}}],
            "usable_memory": size,
        }
    )


def softmax(window: int | None = None, n_kv_heads: int = 8) -> SoftmaxAttention:
    return SoftmaxAttention(n_heads=32, n_kv_heads=n_kv_heads, d_head=128, window_tokens=window)


def tower(*layers: Layer, pattern: tuple[int, ...] | None = None, position: int | None = 131072) -> Model:
    return Model(
        name="tower",
        d_model=4096,
        vocab_size=32000,
        max_position_tokens=position,
        layers=layers,
        pattern=pattern or (0,) * 32,
    )


DENSE = DenseFfn(d_ff=11008)
UNIFORM = tower(Layer(attention=softmax(), ffn=DENSE))
WINDOWED = tower(Layer(attention=softmax(), ffn=DENSE), Layer(attention=softmax(1024), ffn=DENSE), pattern=(0, 1) * 16)
STATEFUL = tower(
    Layer(attention=softmax(), ffn=DENSE),
    Layer(
        attention=LinearAttention(variant="gated_deltanet", n_key_heads=16, n_value_heads=32, d_key=128, d_value=128),
        ffn=DENSE,
    ),
    pattern=(1, 1, 1, 0) * 8,
)
LATENT = tower(
    Layer(
        attention=LatentAttention(n_heads=32, kv_lora_rank=512, d_nope=128, d_rope=64, d_value=128),
        ffn=MoeFfn(n_experts=64, top_k=6, d_expert=1024, d_shared=2048),
    )
)
MODELS = [UNIFORM, WINDOWED, STATEFUL, LATENT]


def case(
    model: Model = UNIFORM, runtime: Runtime = VLLM, *, gib: float = 24.0, layout: Layout | None = None, **options: Any
) -> MemoryCase:
    options.setdefault("max_model_len", 4096)
    return MemoryCase(model, PLAIN, layout or Layout(), runtime, (card(gib),), MemoryOptions(**options))
