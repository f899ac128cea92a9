"""Variations side by side: what changes by how much, which is best and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.estimate import Bound
from perfmodel.report.answer import bound_text
from perfmodel.step.answer import Answer
from perfmodel.units import bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Variation", "best_of", "comparison_rows", "comparison_tables"]

Variation = tuple[Mapping[str, str], "Answer | Exception"]


def best_of(variations: Sequence[Variation]) -> int | None:
    """Return the index of the variation with the most output tokens/s per device; None where none works."""
    rates = {
        i: a.figures["output_tokens_per_s_per_device"].value
        for i, (_, a) in enumerate(variations)
        if isinstance(a, Answer)
    }
    return max(rates, key=lambda i: rates[i]) if rates else None


def comparison_rows(variations: Sequence[Variation]) -> list[dict[str, Any]]:
    """Return one flat row a variation, with changes against the first that works."""
    base = next((a for _, a in variations if isinstance(a, Answer)), None)
    best = best_of(variations)
    rows = []
    for i, (changes, answer) in enumerate(variations):
        row: dict[str, Any] = dict(changes)
        if isinstance(answer, Answer) and base is not None:
            for key in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "output_tokens_per_s_per_device"):
                own, first = answer.figures[key], base.figures[key]
                row |= {key: own.value, f"{key}_low": own.low, f"{key}_high": own.high}
                row[f"{key}_change_frac"] = own.value / first.value - 1.0
            row |= {
                "n_devices": answer.case.n_devices,
                "batch_running": answer.workload.batch,
                "bound": answer.bound.value,
                "weight_bytes_per_rank": answer.memory.tightest.weights_on_device_bytes,
                "kv_tokens": answer.memory.kv_tokens,
                "best": i == best,
                "error": "",
            }
        else:
            row["error"] = str(answer).replace("\n", " ").strip()
        rows.append(row)
    return rows


def comparison_tables(variations: Sequence[Variation]) -> Iterator[RenderableType]:
    """Yield the table of variations, then a sentence on the best."""
    from rich.table import Table
    from rich.text import Text

    rows, best = comparison_rows(variations), best_of(variations)
    axes = list(variations[0][0])
    table = Table(box=None, pad_edge=False)
    for name in axes:
        table.add_column(name)
    for name in ("TTFT", "TPOT", "tokens/s", "per device", "80 % band", "weights/rank", "KV tokens", "bound by", ""):
        table.add_column(name, justify="left" if name in ("", "bound by") else "right")
    for i, row in enumerate(rows):
        cells = [str(row[name]) for name in axes]
        if row["error"]:
            table.add_row(*cells, *[""] * 7, "", Text(f"no: {row['error'].split('.')[0][:90]}"))
            continue
        low, high = row["output_tokens_per_s_low"], row["output_tokens_per_s_high"]
        table.add_row(
            *cells,
            f"{time_text(row['ttft_s'])} {_change(row['ttft_s_change_frac'])}",
            f"{time_text(row['tpot_s'])} {_change(row['tpot_s_change_frac'])}",
            f"{row['output_tokens_per_s']:.4g} {_change(row['output_tokens_per_s_change_frac'])}",
            f"{row['output_tokens_per_s_per_device']:.4g}",
            f"{low:.3g}..{high:.3g}",
            bytes_text(row["weight_bytes_per_rank"]),
            str(row["kv_tokens"]),
            row["bound"],
            "<- best per device" if i == best and len(rows) > 1 else "",
        )
    yield table
    if best is not None:
        yield Text(_reason(variations, best))


def _change(frac: float) -> str:
    return "" if abs(frac) < 5e-4 else f"({100 * frac:+.0f} %)"


def _reason(variations: Sequence[Variation], best: int) -> str:
    """Return why the best beats the runner-up: the bound whose time per token shrinks most."""
    works = [(i, a) for i, (_, a) in enumerate(variations) if isinstance(a, Answer)]
    if len(works) < 2:
        return "Only one variation works."
    winner = next(a for i, a in works if i == best)
    rivals = [a for i, a in works if i != best]
    second = max(rivals, key=lambda a: a.figures["output_tokens_per_s_per_device"].value)
    spent = [_device_s_per_token(a) for a in (winner, second)]
    saved = {bound: spent[1].get(bound, 0.0) - spent[0].get(bound, 0.0) for bound in {*spent[0], *spent[1]}}
    most = max(saved, key=lambda bound: saved[bound])
    own, other = (a.figures["output_tokens_per_s_per_device"] for a in (winner, second))
    sure = "the bands do not overlap" if own.low > other.high else "the bands overlap, so this is likely, not sure"
    name = ", ".join(f"{k}={v}" for k, v in variations[best][0].items())
    return (
        f"Best per device: {name}, {100 * (own.value / other.value - 1):.0f} % ahead of the next; it saves most on "
        f"{bound_text(most)} ({time_text(max(saved[most], 0.0))} of device time a token); {sure}."
    )


def _device_s_per_token(answer: Answer) -> dict[Bound, float]:
    per_token = 1.0 / answer.figures["output_tokens_per_s_per_device"].value
    return {bound: share * per_token for bound, share in answer.bounds["e2e"] if share < 1.0}
