"""Predicted beside stated: rows and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.report.notes import rate
from perfmodel.specs.stated import StatedDocument, StatedRun
from perfmodel.step.answer import Answer
from perfmodel.units import GB, bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Found", "stated_rows", "stated_tables"]


class Found(NamedTuple):
    """A stated run at one batch with the answer to it, or the reason why there is none."""

    run: StatedRun
    batch: int
    answer: Answer | Exception


def stated_rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return one flat row a run: stated and predicted figures in base units, and the bound."""
    rows = []
    for run, batch, answer in found:
        row: dict[str, Any] = {"name": run.name, "model": run.model, "hardware": run.hardware, "batch": batch}
        row |= {f"stated_{key}": value for key, value in run.stated.model_dump().items()}
        if isinstance(answer, Answer):
            for key in ("output_tokens_per_s", "ttft_s", "tpot_s"):
                figure = answer.figures[key]
                row |= {key: figure.value, f"{key}_low": figure.low, f"{key}_high": figure.high}
            row |= {"bound": answer.bound.value, "tpot_bound": answer.bounds["tpot"][0][0].value, "error": ""}
            row["weight_bytes_per_rank"] = answer.memory.tightest.weights_on_device_bytes
        else:
            row["error"] = str(answer)
        rows.append(row)
    return rows


def stated_tables(found: Sequence[Found], document: StatedDocument) -> Iterator[RenderableType]:
    """Yield the table, then what does not fit and why, then how the stated figures are read."""
    from rich.table import Table
    from rich.text import Text

    yield Text(f"{document.title}: {document.input_tokens} tokens in, {document.output_tokens} out", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("set-up", "batch", "tok/s stated", "predicted", "80 % band", "TTFT stated", "predicted", "bound by"):
        table.add_column(name, justify="left" if name in ("set-up", "bound by") else "right", no_wrap=True)
    for run, batch, answer in found:
        stated = run.stated
        cells = [run.name, str(batch), f"{stated.output_tokens_per_s:g}" if stated.output_tokens_per_s else "-"]
        if isinstance(answer, Answer):
            speed, ttft = answer.figures["output_tokens_per_s"], answer.figures["ttft_s"]
            table.add_row(
                *cells,
                rate(speed.value),
                f"{rate(speed.low)} .. {rate(speed.high)}",
                time_text(stated.ttft_s) if stated.ttft_s else "-",
                time_text(ttft.value),
                answer.bounds["tpot"][0][0].value,
            )
        else:
            table.add_row(*cells, "does not fit", "", "", "", "memory")
    yield table
    for run, batch, answer in found:
        if batch != run.batches[0]:
            continue
        if isinstance(answer, Exception):
            lines = (line for line in str(answer).split("\n") if not line.startswith("  assumed"))
            yield Text(f"{run.name}: " + "\n".join(lines), style="yellow")
        elif run.stated.memory_bytes:
            yield Text(f"{run.name}: {_memory_sentence(answer, run.stated.memory_bytes)}")
    yield Text(f"Stated figures: {document.source}. {document.how_to_read}", style="dim")


def _memory_sentence(answer: Answer, stated_bytes: float) -> str:
    rank = answer.memory.tightest
    return (
        f"stated memory {stated_bytes / GB:.3g} GB; the engine takes its whole budget of "
        f"{bytes_text(rank.budget_bytes)} ({rank.utilization:g} of the device), of which weights are "
        f"{bytes_text(rank.weights_on_device_bytes)}"
    )
