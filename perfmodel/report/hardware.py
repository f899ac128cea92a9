"""Devices and systems as rows and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device, Engine, Label
from perfmodel.specs.system import System
from perfmodel.units import bandwidth_text, bytes_text, rate_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["device_tables", "hardware_rows", "hardware_tables", "system_tables"]


def hardware_rows(catalogue: Catalogue, pattern: str = "") -> list[dict[str, Any]]:
    """Return one row a device or system whose name or title holds `pattern`."""
    rows = []
    for name, header in catalogue.headers("hardware"):
        if pattern not in name and pattern not in str(header.get("title", "")).lower():
            continue
        if header.get("kind") == "system":
            rows.append(_system_row(catalogue.system(name)))
        else:
            rows.append(_device_row(catalogue.device(name)))
    return sorted(rows, key=lambda row: (row["kind"], row["name"]))


def _device_row(device: Device) -> dict[str, Any]:
    dtype = "bf16" if device.has_rate("bf16") else "fp16"
    return {
        "kind": "device",
        "name": device.name,
        "title": device.title,
        "dtype": dtype,
        "peak_flop_per_s": device.peak_flop_per_s(dtype) if device.has_rate(dtype) else None,
        "memory_bytes": device.usable_memory.value,
        "bandwidth_bytes_per_s": device.dram_bytes_per_s,
        "tdp_w": device.power.tdp.value if device.power.tdp else None,
    }


def _system_row(system: System) -> dict[str, Any]:
    return {
        "kind": "system",
        "name": system.name,
        "title": system.title,
        "device": system.device,
        "n_devices": system.n_devices,
        "fabrics": ", ".join(f"{f.name} {f.topology} of {f.n_devices}" for f in system.fabrics),
    }


def hardware_tables(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """Yield the devices, then the systems, each as a table; nothing for a kind of which there is none."""
    from rich.table import Table

    devices, systems = (tuple(r for r in rows if r["kind"] == kind) for kind in ("device", "system"))
    if devices:
        table = Table(box=None, pad_edge=False)
        for column in ("device", "title", "16-bit peak", "memory", "bandwidth", "TDP"):
            left = column in ("device", "title")
            table.add_column(
                column, justify="left" if left else "right", no_wrap=True, max_width=46 if column == "title" else None
            )
        for row in devices:
            peak, tdp = row["peak_flop_per_s"], row["tdp_w"]
            table.add_row(
                row["name"],
                row["title"],
                rate_text(peak) if peak else "-",
                bytes_text(row["memory_bytes"]),
                bandwidth_text(row["bandwidth_bytes_per_s"]),
                f"{tdp:g} W" if tdp else "-",
            )
        yield table
    if systems:
        table = Table(box=None, pad_edge=False)
        for column in ("system", "devices", "fabrics, from the inside out"):
            table.add_column(column, no_wrap=column == "system")
        for row in systems:
            table.add_row(row["name"], f"{row['n_devices']} x {row['device']}", row["fabrics"].replace("_", " "))
        yield table


def device_tables(device: Device) -> Iterator[RenderableType]:
    """Yield every figure of a device with its source, then labels, contradictions and notes."""
    from rich.table import Table
    from rich.text import Text

    yield Text(f"{device.title} ({device.name})", style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("figure", "value", "source", "note"):
        table.add_column(column, overflow="fold")
    for name, value, source, note in _device_figures(device):
        table.add_row(name, value, device.sources.get(source, source), note)
    yield table
    yield from _labels(device.labels)
    for c in device.contradictions:
        sides = "; ".join(f"{s.says} ({device.sources.get(s.source, s.source)})" for s in c.statements)
        yield Text(f"Sources disagree on {c.quantity}: {sides}. Chosen: {c.chosen}, since {c.why}", style="yellow")
    for note in device.notes:
        yield Text(f"Note: {note}")


def _device_figures(device: Device) -> Iterator[tuple[str, str, str, str]]:
    for name, engine in (("matrix", device.matrix), ("vector", device.vector)):
        if engine is not None:
            yield from _engine_figures(name, engine)
    for clock, figure in (("boost clock", device.boost_clock), ("maximum clock", device.maximum_clock)):
        if figure is not None:
            yield clock, f"{figure.value / 1e9:.4g} GHz", figure.source, figure.note
    yield (
        "usable memory",
        bytes_text(device.usable_memory.value),
        device.usable_memory.source,
        device.usable_memory.note,
    )
    for level in device.memory:
        where = f"{level.level}{' a core' if level.per_core else ''}"
        if level.capacity:
            yield f"{where} capacity", bytes_text(level.capacity.value), level.capacity.source, level.capacity.note
        if level.bandwidth:
            yield (
                f"{where} bandwidth",
                bandwidth_text(level.bandwidth.value),
                level.bandwidth.source,
                level.bandwidth.note,
            )
    for link in device.links:
        figure_ = link.bandwidth_per_direction
        yield f"{link.name} ({link.kind}), one direction", bandwidth_text(figure_.value), figure_.source, figure_.note
    for unit in device.media:
        figure_of = unit.images_per_s
        yield (
            f"{unit.work.replace('_', ' ')}, images of {unit.n_pixels.value:,.0f} pixels",
            f"{figure_of.value:,.0f}/s",
            figure_of.source,
            figure_of.note,
        )
    for name, time in (
        ("stream", device.launch.stream),
        ("graph", device.launch.graph),
        ("host", device.launch.host_dispatch),
    ):
        if time is not None:
            yield f"kernel launch, {name}", time_text(time.value), time.source, time.note
    for name, power in (("board power", device.power.tdp), ("idle power", device.power.idle)):
        if power is not None:
            yield name, f"{power.value:g} W", power.source, power.note
    for name, price in (
        ("price, low", device.price.low),
        ("price, typical", device.price.typical),
        ("price, high", device.price.high),
    ):
        if price is not None:
            yield name, f"{price.value:g} USD/h", price.source, price.note


def _engine_figures(name: str, engine: Engine) -> Iterator[tuple[str, str, str, str]]:
    yield f"{name} cores ({engine.core})", f"{engine.n_cores.value:g}", engine.n_cores.source, engine.n_cores.note
    for rate in engine.rates:
        accumulate = f", {rate.accumulate} accumulate" if rate.accumulate else ""
        yield f"{name} {rate.dtype}{accumulate}", rate_text(rate.value), rate.source, rate.note


def _labels(labels: Sequence[Label]) -> Iterator[RenderableType]:
    from rich.text import Text

    for label in labels:
        yield Text(f"Beware of the label {label.text!r}: {label.means}", style="yellow")


def system_tables(system: System) -> Iterator[RenderableType]:
    """Yield the fabrics of a system from the inside out, then labels and notes."""
    from rich.table import Table
    from rich.text import Text

    yield Text(f"{system.title} ({system.name}): {system.n_devices} x {system.device}", style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("fabric", "topology", "joins", "one direction", "latency", "class", "source"):
        table.add_column(column, overflow="fold")
    for f in system.fabrics:
        figure = f.bandwidth_per_direction
        source = system.sources.get(figure.source, figure.source)
        table.add_row(
            f"{f.name} ({f.kind})",
            f.topology,
            str(f.n_devices),
            bandwidth_text(figure.value),
            time_text(f.latency.value),
            f.latency_class,
            source,
        )
    yield table
    yield from _labels(system.labels)
    for note in system.notes:
        yield Text(f"Note: {note}")
