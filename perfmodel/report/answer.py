"""An answer as a document with stable keys, as tables, and as an explained tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.estimate import Bound, Estimate, Num, Rule, leaf_shares, shares
from perfmodel.report.memory import host_text, memory_document, pool_text
from perfmodel.report.notes import note_parts, rate
from perfmodel.sources import citation
from perfmodel.step.answer import Answer, Figure
from perfmodel.step.question import Case
from perfmodel.units import bandwidth_text, bytes_text, count_text, rate_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree

__all__ = [
    "answer_document",
    "answer_tables",
    "bound_text",
    "explanation",
    "explanation_document",
    "figure_text",
    "headline",
    "limits_text",
    "setup_document",
    "setup_text",
]

_ROWS: tuple[tuple[str, str, str], ...] = (
    ("ttft_s", "TTFT (all prompts read)", "time"),
    ("tpot_s", "TPOT", "time"),
    ("e2e_s", "End to end", "time"),
    ("output_tokens_per_s", "Output tokens/s (whole run)", "number"),
    ("decode_tokens_per_s", "Output tokens/s (decode only)", "number"),
    ("output_tokens_per_s_per_device", "Output tokens/s per device", "number"),
    ("requests_per_s", "Requests/s", "number"),
    ("prefill_mfu_frac", "MFU in prefill", "percent"),
    ("decode_mbu_frac", "MBU in decode", "percent"),
    ("decode_mfu_frac", "MFU in decode", "percent"),
    ("energy_j_per_output_token", "Energy per output token", "joule"),
)
_MEANING: Mapping[Bound, str] = {
    Bound.COMPUTE: "arithmetic",
    Bound.WEIGHT_READ: "reading weights from memory",
    Bound.KV_READ: "reading the KV cache",
    Bound.ACTIVATION_IO: "moving activations",
    Bound.LAUNCH: "starting kernels",
    Bound.HOST: "host software between kernels",
    Bound.LINK: "messages between devices",
    Bound.ISSUE: "issuing instructions",
    Bound.KV_CAPACITY: "room in the KV cache",
    Bound.MAX_NUM_SEQS: "the limit of running sequences",
    Bound.TOKEN_BUDGET: "the token budget of a step",
    Bound.ARRIVAL_RATE: "the rate at which requests arrive",
}


def bound_text(bound: Bound) -> str:
    """Return what a bound means, in words."""
    return _MEANING[bound]


def setup_document(case: Case) -> dict[str, Any]:
    """Return who and what a case is about."""
    layout = case.setup.layout
    return {
        "model": case.setup.model.name,
        "hardware": [device.name for device in case.setup.devices],
        "system": case.setup.system.name if case.setup.system else None,
        "n_devices": case.n_devices,
        "n_replicas": case.n_replicas,
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": layout.ep,
        "runtime": case.setup.runtime.name,
        "quantization": case.setup.scheme.name,
        "dtype": case.setup.dtype,
        "kv_cache_dtype": case.setup.kv_dtype,
    }


def answer_document(answer: Answer) -> dict[str, Any]:
    """Return the answer with stable keys in base units; each figure with `_low` and `_high` (80 % band)."""
    work = answer.case.workload
    document = setup_document(answer.case) | {
        "batch": work.batch,
        "batch_running": answer.workload.batch,
        "input_tokens": work.input_tokens,
        "output_tokens": work.output_tokens,
        "calibration": answer.case.calibration.name,
    }
    for name, figure in answer.figures.items():
        document[name] = figure.value
        if not name.endswith("_floor_s"):
            document[f"{name}_low"], document[f"{name}_high"] = figure.low, figure.high
    document["bound"] = answer.bound.value
    document["runner_up"] = answer.bounds["e2e"][1][0].value if len(answer.bounds["e2e"]) > 1 else None
    for name in ("ttft", "tpot"):
        document[f"{name}_bound"] = answer.bounds[name][0][0].value
    document["bound_shares"] = {n: {b.value: share for b, share in ranked} for n, ranked in answer.bounds.items()}
    document["memory"] = memory_document(answer.memory)
    document["assumed"], document["warnings"] = list(answer.assumed), list(answer.warnings)
    return document


def figure_text(figure: Figure, kind: str) -> tuple[str, str]:
    """Return a figure's value and band as text with units."""

    def text(value: float) -> str:
        if kind == "time":
            return time_text(value)
        if kind == "percent":
            return f"{100 * value:.3g} %"
        return rate(value) + (" J" if kind == "joule" else "")

    return text(figure.value), f"{text(figure.low)} .. {text(figure.high)}"


def answer_tables(answer: Answer) -> Iterator[RenderableType]:
    """Yield what `estimate` prints: heading, figures with bands, limits, memory line, assumptions, warnings."""
    from rich.table import Table
    from rich.text import Text

    yield Text(headline(answer), style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("", "predicted", "80 % band", "datasheet floor"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for name, label, kind in _ROWS:
        if name in answer.figures:
            floor = answer.figures.get(name.replace("_s", "_floor_s")) if kind == "time" else None
            table.add_row(label, *figure_text(answer.figures[name], kind), time_text(floor.value) if floor else "")
    yield table
    limits = Table(box=None, pad_edge=False, show_header=False)
    limits.add_column(no_wrap=True)
    limits.add_column()
    for name, label in (("ttft", "TTFT is bound by"), ("tpot", "TPOT is bound by"), ("e2e", "Whole run is bound by")):
        limits.add_row(label, limits_text(answer, name))
    limits.add_row("Memory of a rank", pool_text(answer.memory))
    if "energy_j_per_output_token" not in answer.figures:
        limits.add_row("Energy", f"not known: idle or full power of {answer.case.setup.devices[0].name} is not stated")
    if beside := host_text(answer.memory):
        limits.add_row("Host memory", beside)
    yield limits
    yield from note_parts(answer.assumed, answer.warnings)


def headline(answer: Answer) -> str:
    """Return what an answer is about, in one line."""
    work = answer.workload
    load = f"batch {work.batch:g}, {work.input_tokens:g} in, {work.output_tokens:g} out"
    return f"{setup_text(answer.case)}; {load}; calibration {answer.case.calibration.name}"


def setup_text(case: Case) -> str:
    """Return model, precision, devices, layout and engine of a case in words."""
    d = setup_document(case)
    sizes = [f"{k}{d[k]}" for k in ("tp", "pp", "dp", "ep") if d[k] > 1]
    sizes += [f"as {d['n_replicas']} replicas"] if d["n_replicas"] > 1 else []
    names = list(dict.fromkeys(d["hardware"]))
    mixed = len(names) > 1
    where = " + ".join(d["hardware"]) if mixed else names[0]
    if d["n_devices"] > 1 and not (mixed and len(d["hardware"]) == d["n_devices"]):
        where = f"{d['n_devices']} x ({where})" if mixed else f"{d['n_devices']} x {where}"
    weights = d["dtype"] if d["quantization"] == "none" else d["quantization"]
    what = f"{d['model']} ({weights} weights, {d['kv_cache_dtype']} KV)"
    return f"{what} on {' '.join((where, *sizes))}, {d['runtime']}"


def limits_text(answer: Answer, name: str) -> str:
    """Return what bounds ttft, tpot or e2e, with the runner-up and the third."""
    parts = []
    for bound, share in answer.bounds[name][:3]:
        words = bound_text(bound)
        if bound is Bound.LINK and answer.case.setup.offload_bytes:
            words = "links, over which offloaded weights come from the host"
        parts.append(f"{words} ({bound.value})" + ("" if share >= 1 and bound in _CAPS else f" {_percent(share)}"))
    return ", then ".join(parts)


_CAPS = (Bound.KV_CAPACITY, Bound.MAX_NUM_SEQS)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.005 else "< 1 %"


class _Notes:
    """Sources in order of first use, each with a number that stands in the tree."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, *sources: str) -> str:
        """Return the marks of sources, e.g. " [1][3]"."""
        marks = [self.numbers.setdefault(s, len(self.numbers) + 1) for s in dict.fromkeys(sources) if s]
        return "".join(f" \\[{n}]" for n in marks)


def explanation(trees: Sequence[Estimate], *, least_share: float = 0.005) -> Iterator[RenderableType]:
    """Yield estimates as trees with formulas and inputs, then the sources; parts below `least_share` are folded."""
    from rich.text import Text
    from rich.tree import Tree

    notes = _Notes()
    for root in trees:
        tree = Tree(_node_text(root, 1.0, notes))
        _grow(tree, root, 1.0, least_share, notes)
        yield tree
    for source, number in notes.numbers.items():
        yield Text(f"[{number}] {source}", style="dim")


def _grow(tree: Tree, node: Estimate, share: Num, least_share: float, notes: _Notes) -> None:
    hidden = 0.0
    for part, own in zip(node.parts, shares(node), strict=True):
        part_share = share * own
        if float(part_share) < least_share:
            hidden += float(part_share)
            continue
        _grow(tree.add(_node_text(part, part_share, notes)), part, part_share, least_share, notes)
    if hidden > 0:
        tree.add(f"others: {100 * hidden:.2g} %")


_RULES: Mapping[Rule, str] = {
    Rule.SUM: "sum",
    Rule.MAX: "slowest of",
    Rule.MIN: "quickest of",
    Rule.NORM: "soft maximum of",
    Rule.OVERLAP: "overlap of",
}


def _node_text(node: Estimate, share: Num, notes: _Notes) -> str:
    head = f"{node.name}: {time_text(float(node.value))}  {100 * float(share):.3g} %"
    if node.rule is Rule.REPEAT:
        return f"{head}  = {float(node.parameter):.4g} x"
    if node.rule is Rule.NORM:
        return f"{head}  = {_RULES[node.rule]} (q {float(node.parameter):.2g})"
    if node.rule is not Rule.LEAF:
        return f"{head}  = {_RULES[node.rule]}{_own_errors(node, notes)}"
    inputs = ", ".join(f"{name} {_input_text(name, float(value))}" for name, value in node.inputs)
    marks = notes.mark(citation(node.law.source), *(c.source for c in node.coefficients))
    bound = f" ({node.bound.value})" if node.bound else ""
    return f"{head}{bound}  = {node.law.formula}: {inputs}{marks}"


def _own_errors(node: Estimate, notes: _Notes) -> str:
    """Return what a node errs by as a whole, beside the errors of its parts."""
    size = sum(float(c.rel_sd) ** 2 for c in node.coefficients) ** 0.5
    if size <= 0.0:
        return ""
    return f"; as a whole off by {100 * size:.2g} % (sd){notes.mark(*(c.source for c in node.coefficients))}"


def _input_text(name: str, value: float) -> str:
    if name.endswith("_per_s"):
        return rate_text(value) if "flop" in name else bandwidth_text(value)
    if name.endswith("_s"):
        return time_text(value)
    if "bytes" in name:
        return bytes_text(value)
    return f"{value:.3g}" if value < 1e4 else count_text(value)


def explanation_document(root: Estimate) -> list[dict[str, Any]]:
    """Return the leaves of an estimate with their shares, formulas, inputs and sources."""
    return [
        {
            "name": node.name,
            "bound": node.bound.value if node.bound else None,
            "time_s": float(node.value),
            "share": float(share),
            "formula": node.law.formula,
            "source": citation(node.law.source),
            "inputs": {name: float(value) for name, value in node.inputs},
            "coefficients": [c._asdict() for c in node.coefficients],
        }
        for node, share in leaf_shares(root)
    ]
