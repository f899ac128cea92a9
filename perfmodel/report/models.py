"""Models as rows, documents and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfmodelError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.model import Model
from perfmodel.units import bytes_text, count_text
from perfmodel.work.kv import kv_footprint
from perfmodel.work.params import param_counts
from perfmodel.work.storage import total_weight_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["model_document", "model_rows", "model_table", "model_tables"]


def model_rows(catalogue: Catalogue, pattern: str = "") -> list[dict[str, Any]]:
    """Return one row a model whose name holds `pattern`."""
    rows = []
    for name in catalogue.paths("model"):
        if pattern not in name or catalogue.fixed_work(name) is not None:
            continue
        model = catalogue.model(name).model
        counts, kv = param_counts(model), kv_footprint(model)
        rows.append(
            {
                "name": name,
                "n_params": counts.total,
                "n_active_params": counts.active_excl_input_embedding,
                "n_layers": model.n_layers,
                "attention": "+".join(dict.fromkeys(layer.attention.kind for layer in model.layers)),
                "feed_forward": "+".join(dict.fromkeys(layer.ffn.kind for layer in model.layers)),
                "kv_bytes_per_token_16bit": kv.growth_bytes_per_token + kv.window_bytes_per_token,
                "state_bytes_per_sequence": kv.state_bytes_per_sequence,
                "max_position_tokens": model.max_position_tokens,
                "weight_scheme": model.weight_scheme,
            }
        )
    return rows


def model_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the list as a table."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in (
        "name",
        "parameters",
        "active",
        "layers",
        "attention",
        "feed-forward",
        "KV/token",
        "context",
        "weights",
    ):
        table.add_column(
            column,
            justify="left" if column in ("name", "attention", "feed-forward", "weights") else "right",
            no_wrap=column == "name",
        )
    for row in rows:
        table.add_row(
            row["name"],
            count_text(row["n_params"]),
            count_text(row["n_active_params"]),
            str(row["n_layers"]),
            row["attention"],
            row["feed_forward"],
            bytes_text(row["kv_bytes_per_token_16bit"]),
            str(row["max_position_tokens"] or "-"),
            "16-bit" if row["weight_scheme"] == "none" else row["weight_scheme"],
        )
    return table


def model_document(catalogue: Catalogue, name: str) -> dict[str, Any]:
    """Return a model in full: normal form, counts by part and convention, cache, weight bytes by scheme."""
    choice = catalogue.model(name)
    model, counts, kv = choice.model, param_counts(choice.model), kv_footprint(choice.model)
    return {
        "name": model.name,
        "title": model.title,
        "n_params": counts.total,
        "n_params_with_mtp": counts.with_mtp,
        "n_params_by_part": dict(counts.by_part),
        "n_active_params_incl_embedding": counts.active_incl_embedding,
        "n_active_params_excl_input_embedding": counts.active_excl_input_embedding,
        "n_active_params_excl_embedding_and_head": counts.active_excl_embed_and_head,
        "published": model.published.model_dump(),
        "kv_bytes_per_token_16bit": kv.growth_bytes_per_token + kv.window_bytes_per_token,
        "kv_windows": [{"bytes_per_token": b, "tokens": n} for b, n in kv.windows],
        "state_bytes_per_sequence": kv.state_bytes_per_sequence,
        "weight_bytes": _weight_bytes(catalogue, model, choice.scheme),
        "layers": [{"n": n, **layer.model_dump()} for layer, n in model.layer_counts()],
        "max_position_tokens": model.max_position_tokens,
        "weight_scheme": choice.scheme,
        "sources": list(model.sources),
        "notes": list(model.notes),
        "warnings": list(choice.remarks),
    }


def _weight_bytes(catalogue: Catalogue, model: Model, own: str) -> dict[str, float]:
    result = {}
    for name in dict.fromkeys((own, "none", "fp8", "w8a8", "awq-int4-g128", "q4_k_m")):
        try:
            result[name] = total_weight_bytes(model, catalogue.scheme(name))
        except PerfmodelError:
            continue
    return result


def model_tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield what `models show` prints."""
    from rich.table import Table
    from rich.text import Text

    yield Text(f"{document['title'] or document['name']} ({document['name']})", style="bold")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    published = document["published"]["n_params"]
    same = "" if published is None else f"published {published:,}, difference {document['n_params'] - published:+,}"
    table.add_row("parameters", f"{document['n_params']:,}", same)
    if document["n_params_with_mtp"] != document["n_params"]:
        table.add_row("with MTP modules", f"{document['n_params_with_mtp']:,}", "")
    for part, n in document["n_params_by_part"].items():
        table.add_row(f"  {part}", f"{n:,}", "")
    table.add_row(
        "active, all counted", f"{document['n_active_params_incl_embedding']:,}", document["published"]["active"]
    )
    table.add_row(
        "active, without input embedding",
        f"{document['n_active_params_excl_input_embedding']:,}",
        "what a token multiplies with",
    )
    table.add_row("active, without embedding and head", f"{document['n_active_params_excl_embedding_and_head']:,}", "")
    longest = document["max_position_tokens"]
    table.add_row("longest context", f"{longest:,}" if longest else "not stated", "tokens" if longest else "")
    table.add_row("KV bytes a token (16 bit)", f"{document['kv_bytes_per_token_16bit']:,g}", "")
    for window in document["kv_windows"]:
        table.add_row("  of which in a window", f"{window['bytes_per_token']:,g}", f"of {window['tokens']:g} tokens")
    if document["state_bytes_per_sequence"]:
        table.add_row("state of a sequence", bytes_text(document["state_bytes_per_sequence"]), "")
    for name, size in document["weight_bytes"].items():
        own = "as the checkpoint states" if name == document["weight_scheme"] else ""
        table.add_row(f"weights as {'16 bit' if name == 'none' else name}", bytes_text(size), own)
    yield table
    for layer in document["layers"]:
        yield Text(f"{layer['n']} x {layer['attention']['kind']} attention + {layer['ffn']['kind']} feed-forward")
    if document["published"]["difference_explained"]:
        yield Text(f"Difference: {document['published']['difference_explained']}")
    for line in (
        *(f"Source: {s}" for s in document["sources"]),
        *document["notes"],
        *(f"Note: {w}" for w in document["warnings"]),
    ):
        yield Text(line)
