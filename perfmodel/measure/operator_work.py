"""Operator measurements as work: the rows that one kernel law prices, with the counts that it prices.

The counts come from the same classes that the step model uses, so that a coefficient fitted here means the same there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.measure.expert_loads import power_law_loads
from perfmodel.measure.table import Table
from perfmodel.specs.setup import KV_ELEMENT_BYTES
from perfmodel.work.attention import LatentCore, SoftmaxCore
from perfmodel.work.kernel import Slice, Work
from perfmodel.work.matmul import QUANTISED_SHARE

__all__ = ["OperatorRows", "operator_rows", "pooled"]

Floats = NDArray[np.float64]

_SCHEME_KERNEL: Final = {
    "none": "16bit", "": "16bit", "fp8": "fp8", "fp8-block": "fp8/block", "w8a8": "int8", "nvfp4": "fp4",
    "int8-weight-only": "weight_only_int8", "int4-weight-only": "weight_only_int4", "awq-int4-g128": "weight_only_int4",
}  # fmt: skip
_MXFP4_KERNEL: Final = {"fp8": "fp8/mxfp4"}
"""MXFP4 weights are expanded to what the activations are in: 16 bits (weight only), or FP8."""
_STORED_BYTES: Final = {
    "int8-weight-only": 1.0, "int4-weight-only": 0.53, "awq-int4-g128": 0.53, "mxfp4": 0.53125, "nvfp4": 0.5625,
}  # fmt: skip
"""Bytes of a stored weight with its scales, where they are not those of the multiplication."""
_ELEMENT_BYTES: Final = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.53}
_ELEMENTWISE_PASSES: Final = {
    "rmsnorm": 2.0, "input_layernorm": 2.0, "post_attention_layernorm": 2.0, "layernorm": 4.0, "final_layernorm": 4.0,
    "add": 3.0, "mlp_act": 3.0, "act_fn": 3.0, "gelu": 2.0, "softmax": 2.0, "rotary_emb": 2.5, "rope": 2.5,
}  # fmt: skip
"""Reads and writes of [tokens, width] that an operator must do at least; vLLM's norms add the residual as well. A
look-up of embeddings is no stream and has no entry."""
_ELEMENTWISE_FAMILY: Final = {
    "rmsnorm": "norm", "input_layernorm": "norm", "post_attention_layernorm": "norm", "layernorm": "norm",
    "final_layernorm": "norm", "mlp_act": "activation", "act_fn": "activation", "gelu": "activation",
    "rotary_emb": "rope", "rope": "rope",
}  # fmt: skip
"""Kernels that work a row in one thread block, by family; the others stream."""
_FLOP_PER_ELEMENT: Final = {"norm": 6.0, "activation": 6.0, "rope": 3.0, "": 1.0}
"""As counted in a step (`work/graph.py`)."""
_POWER_LAW: Final = "routing_power_law_"


_KEYS: Final = ("kind", "device", "runtime", "compute_dtype", "quantization", "kv_dtype", "op")


class OperatorRows(NamedTuple):
    """Rows of one kernel class on one device under one runtime: counts and measured times, row by row.

    `groups` names the shape that a row belongs to: rows of one shape are left out together when a fit is tested.
    """

    device: str
    runtime: str
    kernel: str
    work: Work
    time_s: Floats
    groups: NDArray[np.str_]
    ids: NDArray[np.str_]
    quantization: str = ""
    kv_dtype: str = ""
    op: str = ""

    def selected(self, mask: NDArray[np.bool_]) -> OperatorRows:
        """Return the rows for which the mask is true."""
        counts = {name: value[mask] for name, value in self.work._asdict().items() if isinstance(value, np.ndarray)}
        return self._replace(
            work=self.work._replace(**counts),  # type: ignore[arg-type]
            time_s=self.time_s[mask],
            groups=self.groups[mask],
            ids=self.ids[mask],
        )


def pooled(parts: Sequence[OperatorRows]) -> OperatorRows:
    """Return rows of one kernel class under several runtimes or routings as one; all count in the same fields."""
    if len(parts) == 1:
        return parts[0]
    first, n_rows = parts[0], [len(part.time_s) for part in parts]
    counts = {
        name: np.concatenate(
            [
                np.broadcast_to(np.asarray(getattr(part.work, name), dtype=np.float64), n)
                for part, n in zip(parts, n_rows, strict=True)
            ]
        )
        for name, value in first.work._asdict().items()
        if isinstance(value, np.ndarray)
    }
    return OperatorRows(
        first.device,
        " + ".join(dict.fromkeys(part.runtime for part in parts)),
        first.kernel,
        first.work._replace(**counts),  # type: ignore[arg-type]
        np.concatenate([part.time_s for part in parts]),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.ids for part in parts]),
        " + ".join(dict.fromkeys(part.quantization for part in parts)),
        " + ".join(dict.fromkeys(part.kv_dtype for part in parts)),
        " + ".join(dict.fromkeys(part.op for part in parts)),
    )


def operator_rows(table: Table) -> Iterator[OperatorRows]:
    """Yield the operator rows of a table, kernel class by kernel class; rows without a kernel law are left out."""
    timed = table.selected((table["metric"] == "time_s") & (table["value"] > 0))
    keys = zip(*(timed[name] for name in _KEYS), strict=True)
    members: dict[tuple[str, ...], list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault((*key[:-1], _family_of(key[0], key[-1])), []).append(i)
    for _, here in sorted(members.items()):
        mask = np.zeros(len(timed), dtype=bool)
        mask[here] = True
        found = _works(timed.selected(mask))
        if found is not None:
            yield found


def _family_of(kind: str, op: str) -> str:
    """Return what of an operator's name tells its kernel class apart."""
    if kind == "gemm":
        return ""
    return _ELEMENTWISE_FAMILY.get(op, "") if kind == "elementwise" else op


def _works(part: Table) -> OperatorRows | None:
    kind = str(part["kind"][0])
    builder = {"gemm": _matmul, "attention": _attention, "mla_attention": _latent, "moe_ffn": _experts}.get(kind)
    if kind == "elementwise":
        builder = _elementwise
    if builder is None:
        return None
    made = builder(part)
    if made is None:
        return None
    work, groups = made
    if len(np.unique(groups)) == 1 and kind in ("attention", "mla_attention", "elementwise"):
        groups = _joined(part, "query_tokens", "context_tokens")
    known = np.isfinite(np.broadcast_to(np.asarray(work.n_bytes, dtype=np.float64), len(part)))
    rows = OperatorRows(
        str(part["device"][0]),
        str(part["runtime"][0]),
        work.kernel,
        work,
        part["value"],
        groups,
        part["id"].astype(str),
        str(part["quantization"][0]),
        str(part["kv_dtype"][0]),
        str(part["op"][0]),
    )
    return rows.selected(known)


def _joined(part: Table, *names: str) -> NDArray[np.str_]:
    columns = [part[name].astype(str) for name in names]
    return np.array(["x".join(row) for row in zip(*columns, strict=True)])


def _scheme_kernel(part: Table) -> str | None:
    quantization, dtype = str(part["quantization"][0]), str(part["compute_dtype"][0])
    if quantization in ("none", "") and dtype in ("fp8", "int8", "fp4"):
        return dtype
    if quantization == "mxfp4":
        return _MXFP4_KERNEL.get(dtype, "weight_only_int4")
    return _SCHEME_KERNEL.get(quantization)


def _stored_bytes(part: Table) -> float:
    return _STORED_BYTES.get(str(part["quantization"][0]), _ELEMENT_BYTES[str(part["compute_dtype"][0])])


def _is_quantised(kernel: str) -> bool:
    """Tell whether activations are scaled to what the kernel multiplies in."""
    return kernel.split("/")[0] in ("fp8", "int8", "fp4")


def _matmul(part: Table) -> tuple[Work, NDArray[np.str_]] | None:
    kernel, dtype = _scheme_kernel(part), str(part["compute_dtype"][0])
    if kernel is None or dtype not in _ELEMENT_BYTES:
        return None
    m, n, k = part["m"], part["n"], part["k"]
    stored = _stored_bytes(part)
    quantised = _is_quantised(kernel)
    work = Work(
        "matmul",
        f"matmul/{kernel}",
        dtype,
        flop=2.0 * m * n * k,
        weight_bytes=n * k * stored,
        io_bytes=m * ((1.0 if quantised else 2.0) * k + 2.0 * n),
        n_launches=2.0 if quantised else 1.0,
        rows=m,
        depth=k,
        quantise_bytes=m * k * (2.0 * QUANTISED_SHARE) if quantised else None,
    )
    return work, _joined(part, "n", "k")


def _slice(part: Table, phase: Literal["prefill", "decode"]) -> Slice:
    new, past, batch = part["query_tokens"], np.nan_to_num(part["context_tokens"]), part["batch"]
    if phase == "decode":
        return Slice("decode", batch, 1.0, past + 1.0, past + 1.0)
    return Slice("prefill", batch, new, past + 1.0, past + new, batch * past)


def _phase(part: Table) -> Literal["prefill", "decode"] | None:
    op = str(part["op"][0])
    if "module" in op or op == "mixed":
        return None
    return "decode" if bool(np.all(part["query_tokens"] == 1)) else "prefill"


def _kv_bytes(part: Table) -> float:
    return KV_ELEMENT_BYTES.get(str(part["kv_dtype"][0]) or str(part["compute_dtype"][0]), 2.0)


def _attention(part: Table) -> tuple[Work, NDArray[np.str_]] | None:
    phase = _phase(part)
    if phase is None:
        return None
    heads, kv_heads, width = part["n_heads"], part["n_kv_heads"], part["head_dim"]
    kv_heads = np.where(kv_heads == 0, heads, kv_heads)
    core = SoftmaxCore(
        n_heads=heads,
        n_kv_heads=kv_heads,
        d_head=width,
        d_value=width,
        window_tokens=None,
        dtype=str(part["compute_dtype"][0]),
        element_bytes=2.0,
        kv_element_bytes=_kv_bytes(part),
        flash=True,
        dcp=1,
    )
    return next(core.works(_slice(part, phase))), _joined(part, "n_heads", "n_kv_heads", "head_dim")


def _latent(part: Table) -> tuple[Work, NDArray[np.str_]] | None:
    phase = _phase(part)
    if phase is None:
        return None
    core = LatentCore(
        n_heads=part["n_heads"],
        kv_lora_rank=512,
        d_nope=128,
        d_rope=64,
        d_value=128,
        dtype=str(part["compute_dtype"][0]),
        element_bytes=2.0,
        kv_element_bytes=_kv_bytes(part),
        latent_cache=True,
        dcp=1,
        indexer=None,
        top_k=None,
    )
    return next(core.works(_slice(part, phase))), _joined(part, "n_heads", "batch")


def _experts(part: Table) -> tuple[Work, NDArray[np.str_]] | None:
    kernel, dtype = _scheme_kernel(part), str(part["compute_dtype"][0])
    if kernel is None or dtype not in _ELEMENT_BYTES:
        return None
    ep = np.nan_to_num(part["ep"], nan=1.0)
    hidden, width = part["hidden"], part["intermediate"]
    stored = _stored_bytes(part)
    pairs, touched = _loads(part, ep)
    work = Work(
        "experts",
        f"moe/{kernel}",
        dtype,
        flop=pairs * 6.0 * hidden * width,
        weight_bytes=touched * 3.0 * hidden * width * stored,
        io_bytes=pairs * (2.0 * hidden + 3.0 * width) * 2.0,
        n_launches=4.0 if _is_quantised(kernel) else 2.0,
        rows=pairs / touched,
    )
    return work, np.char.add(_joined(part, "hidden", "intermediate", "n_experts", "top_k"), ep.astype(str))


def _loads(part: Table, ep: Floats) -> tuple[Floats, Floats]:
    """Return (pairs, experts touched) of the rank that was timed: by the stated power law, else as if chosen alike."""
    routing, tokens, top_k = str(part["op"][0]), part["query_tokens"], part["top_k"]
    n_experts = part["n_experts"] * ep
    if routing.startswith(_POWER_LAW):
        alpha = float(routing.removeprefix(_POWER_LAW))
        shapes = zip(tokens, n_experts, top_k, ep, strict=True)
        found = [power_law_loads(int(t), int(e), int(k), int(r), alpha) for t, e, k, r in shapes]
        pairs, touched = np.array(found, dtype=np.float64).T
        return np.maximum(pairs, 1e-3), np.maximum(touched, 1e-3)
    pairs = tokens * top_k / ep
    return pairs, part["n_experts"] * (1.0 - (1.0 - top_k / n_experts) ** tokens)


def _elementwise(part: Table) -> tuple[Work, NDArray[np.str_]] | None:
    passes = np.array([_ELEMENTWISE_PASSES.get(op, np.nan) for op in part["op"].astype(str)])
    if np.all(np.isnan(passes)):
        return None
    family = _ELEMENTWISE_FAMILY.get(str(part["op"][0]), "")
    is_gated = (part["op"] == "mlp_act") & np.isfinite(part["intermediate"])
    width = np.where(is_gated, part["intermediate"], part["hidden"])
    per_row = width * _FLOP_PER_ELEMENT[family]
    work = Work(
        "elementwise",
        f"elementwise/{family}" if family else "elementwise",
        "fp32",
        flop=part["query_tokens"] * per_row,
        io_bytes=part["query_tokens"] * width * (2.0 * passes),
        engine="vector",
        unit_flop_per_row=per_row if family else None,
    )
    return work, np.char.add(_joined(part, "op"), width.astype(str))
