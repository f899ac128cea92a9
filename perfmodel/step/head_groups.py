"""The all-reduce behind attention cut into groups: message sizes, time, share of the step, and which number is best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.cost.grouping import grouped_time
from perfmodel.errors import SpecError
from perfmodel.estimate import Bound, Estimate, bound_shares, repeated, slowest, total
from perfmodel.step.step import Engine, StagePrices
from perfmodel.work.head_groups import Split, group_message, group_work
from perfmodel.work.kernel import Message, Section, Slice, Work

__all__ = ["GroupingRow", "best_grouping", "grouped_step", "grouping_rows"]

_REDUCED = "attention_all_reduce"


@dataclass(frozen=True, slots=True)
class GroupingRow:
    """One way to cut the all-reduce behind attention; per-layer figures are those of the first kind of layer.

    `exposed_frac` is the share of the step that would go without any message: those behind attention as far as they are
    not hidden, all others, and what cutting costs.
    """

    n_groups: int
    message_bytes: float
    padded_bytes: float
    n_messages: int
    message_s: float
    compute_s: float
    layer_s: float
    exposed_s: float
    step_s: float
    exposed_frac: float
    bus_bytes_per_s: float
    tree: Estimate


def grouped_step(
    engine: Engine,
    slices: Sequence[Slice],
    n_groups: int,
    *,
    split: Split = "columns",
    unit_bytes: float = 0.0,
    overlap: bool = True,
) -> Estimate:
    """Return the time of one step of the first stage with the all-reduce behind attention cut into groups.

    One group without padding is the step model exactly.
    """
    stage = engine.stages[0]
    parts = []
    for section in engine.sections(stage, slices):
        items = tuple(_items(stage, section, n_groups, split, unit_bytes, overlap=overlap))
        once = total(section.name, items) if len(items) > 1 else items[0]
        parts.append(
            once if section.n_times == 1.0 else repeated(f"{section.n_times:g} x {section.name}", once, section.n_times)
        )
    device = total("device", tuple(parts))
    on_device, *rest = engine.stage_step(stage, slices).parts
    if on_device.name == "device_beside_host":
        device = slowest("device_beside_host", (device, on_device.parts[1]))
    return total("step", (device, *rest))


def _items(
    stage: StagePrices, section: Section, n_groups: int, split: Split, unit_bytes: float, *, overlap: bool
) -> Iterator[Estimate]:
    """Yield the times of a section's items, projection and all-reduce behind attention as one."""
    items = section.items
    for item, then in zip(items, (*items[1:], None), strict=True):
        if isinstance(item, Work) and isinstance(then, Message) and then.name == _REDUCED:
            compute = stage.item_time(group_work(item, then.n_bytes, n_groups, split=split))
            message = stage.item_time(group_message(then, n_groups, split=split, unit_bytes=unit_bytes))
            yield grouped_time("output_and_all_reduce", compute, message, n_groups, overlap=overlap)
        elif not (isinstance(item, Message) and item.name == _REDUCED):
            yield stage.item_time(item)


def grouping_rows(
    engine: Engine,
    slices: Sequence[Slice],
    groups: Sequence[int],
    *,
    split: Split = "columns",
    unit_bytes: float = 0.0,
    overlap: bool = True,
) -> tuple[GroupingRow, ...]:
    """Return a row for each number of groups; raises SpecError where the ranks exchange nothing behind attention."""
    stage = engine.stages[0]
    found = [
        (section.n_times, item, then)
        for section in engine.sections(stage, slices)
        for item, then in zip(section.items, section.items[1:], strict=False)
        if isinstance(item, Work) and isinstance(then, Message) and then.name == _REDUCED
    ]
    if not found or len(engine.stages) > 1:
        raise SpecError(
            "there is no all-reduce behind attention to be cut",
            got=f"tp {engine.setup.layout.tp}, pp {engine.setup.layout.pp}",
            expected="tp of at least 2 and pp 1",
            cure="Give -tp 2 or more.",
        )
    n_layers = sum(n_times for n_times, _, _ in found)
    _, work, whole = found[0]
    plain = engine.stage_step(stage, slices)
    without_s = float(plain.value) * (1.0 - float(bound_shares(plain).get(Bound.LINK, 0.0)))
    rows = []
    for n_groups in groups:
        tree = grouped_step(engine, slices, n_groups, split=split, unit_bytes=unit_bytes, overlap=overlap)
        part = group_message(whole, n_groups, split=split)
        padded = group_message(whole, n_groups, split=split, unit_bytes=unit_bytes)
        compute = stage.item_time(group_work(work, whole.n_bytes, n_groups, split=split))
        message = stage.item_time(padded)
        both = grouped_time("layer", compute, message, n_groups, overlap=overlap)
        alone = float(stage.item_time(group_work(work, whole.n_bytes, 1)).value)
        ring = 2.0 * (whole.n_ranks - 1) / whole.n_ranks
        rows.append(
            GroupingRow(
                n_groups=n_groups,
                message_bytes=float(part.n_bytes),
                padded_bytes=float(padded.n_bytes),
                n_messages=int(n_layers) * n_groups,
                message_s=float(message.value),
                compute_s=float(compute.value),
                layer_s=float(both.value),
                exposed_s=float(both.value) - alone,
                step_s=float(tree.value),
                exposed_frac=1.0 - without_s / float(tree.value),
                bus_bytes_per_s=float(part.n_bytes) * ring / float(message.value),
                tree=tree,
            )
        )
    return tuple(rows)


def best_grouping(rows: Sequence[GroupingRow]) -> GroupingRow:
    """Return the row of the shortest step; of equal ones the first."""
    return min(rows, key=lambda row: row.step_s)
