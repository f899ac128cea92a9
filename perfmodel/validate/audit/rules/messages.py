"""Checks of collectives: sizes of messages, their share of a step, and rows that do not fill whole units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from perfmodel.cost.grouping import share_after
from perfmodel.step.head_groups import grouping_rows
from perfmodel.units import MIB
from perfmodel.validate.audit.base import Check, Desk, Ref
from perfmodel.validate.audit.verdict import Finding, Verdict, graded
from perfmodel.work.head_groups import row_useful_frac, tokens_behind
from perfmodel.work.kernel import Slice

__all__ = ["CommunicationShare", "MessageSize", "RowPadding", "ShareGrowth"]

_MOST_GROUPS: Final = 4096
_UNITS_BYTES: Final = (32, 64, 128, 256, 512)
_WIDTHS: Final = (40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 256)
"""Widths of a head in public models."""


class MessageSize(Check):
    """Bytes of a message that carries rows of some heads for some tokens."""

    kind: Literal["message_size"]
    n_heads: Ref
    d_head: Ref
    width: Ref
    element_bytes: Annotated[float, Field(gt=0)] = 2.0
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the tokens behind the message: as the whole output of a layer, and as a slice of these heads."""
        stated = desk.value(self.figure)
        heads, d_head, width = (desk.value(ref) for ref in (self.n_heads, self.d_head, self.width))
        lines = []
        for name, n_bytes in (("MB", stated), ("MiB", stated / 1e6 * MIB)):
            whole, part = (
                float(tokens_behind(n_bytes, d_row=row, element_bytes=self.element_bytes))
                for row in (width, heads * d_head)
            )
            lines.append(
                f"read as {name}: {whole:,.4g} tokens of the whole width, {part:,.4g} of a slice of {heads:g} heads"
            )
        yield Finding(
            check=self.kind,
            verdict=Verdict.PLAUSIBLE,
            reason=f"{'; '.join(lines)}; however heads are grouped, tokens x width are added up; not stated: tokens",
            name=self.figure.rpartition(".")[2],
            stated=stated,
            working=(
                f"the whole output: tokens x {width:g} x {self.element_bytes:g} bytes",
                f"a slice of heads: tokens x {heads:g} x {d_head:g} x {self.element_bytes:g} bytes",
            ),
        )


class ShareGrowth(Check):
    """A share of communication that follows from another one as messages grow: `figure` from `before`."""

    kind: Literal["share_growth"]
    before: Ref
    size_before: Ref
    size_after: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the share that messages of the other size take, at constant bandwidth beside an unchanged rest."""
        before, stated = desk.printed(self.before), desk.printed(self.figure)
        ratio = desk.value(self.size_after) / desk.value(self.size_before)
        ends = [before.value + side * 0.5 * before.resolution for side in (-1.0, 0.0, 1.0)]
        low, model, high = (float(share_after(share, ratio)) for share in ends)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated.value,
            model=model,
            low=low - 0.5 * stated.resolution,
            high=high + 0.5 * stated.resolution,
            inside=f"messages {ratio:g} times as large, as many of them, take {100 * model:.3g} % of the step",
            cause=f"messages {ratio:g} times as large take {100 * model:.3g} % of the step",
            working=(f"{before.value:g} x {ratio:g} / (1 + {before.value:g} x ({ratio:g} - 1)) = {100 * model:.4g} %",),
        )


class CommunicationShare(Check):
    """Share of a prefill step that messages take, with the all-reduce behind attention cut into groups."""

    kind: Literal["communication_share"]
    setups: Annotated[tuple[str, ...], Field(min_length=1)]
    n_groups: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the share's place among the set-ups."""
        stated, groups = desk.value(self.figure), desk.count(self.n_groups, most=_MOST_GROUPS)
        shares, working = [], []
        for name in self.setups:
            case = desk.case(name)
            work = case.workload
            one = Slice("prefill", work.batch, work.input_tokens, 1.0, work.input_tokens)
            rows = grouping_rows(case.engine, (one,), (1, groups))
            shares.append(rows[1].exposed_frac)
            where = case.setup.system.title if case.setup.system else case.setup.devices[0].title
            working.append(
                f"{case.setup.model.title} on {where}, {work.input_tokens:g} tokens: "
                f"{100 * rows[0].exposed_frac:.3g} % with one message, {100 * rows[1].exposed_frac:.3g} % with {groups}"
            )
        low, high = min(shares), max(shares)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=low,
            low=low,
            high=high,
            least=0.0,
            most=1.0,
            inside=f"between the set-ups: {100 * low:.3g} to {100 * high:.3g} %",
            cause=f"{100 * low:.3g} to {100 * high:.3g} % on the set-ups; more groups mean more starts, as many bytes: "
            "the share does not fall with them",
            bound="more than all of the step",
            unstated="model, system and tokens",
            working=tuple(working),
        )


class RowPadding(Check):
    """Throughput that is lost where rows do not fill whole units: memory lines, or words of a link."""

    kind: Literal["row_padding"]
    d_head: Ref
    element_bytes: Annotated[float, Field(gt=0)] = 2.0
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the loss of the stated width, and widths of public models whose padding gives the figure."""
        stated = desk.printed(self.figure)
        own = [self._loss(desk.value(self.d_head), unit) for unit in _UNITS_BYTES]
        giving = [
            f"{width} in units of {unit} bytes"
            for width in _WIDTHS
            for unit in _UNITS_BYTES
            if abs(self._loss(width, unit) - stated.value) <= stated.resolution
        ]
        width = desk.value(self.d_head)
        fitting = [unit for unit, loss in zip(_UNITS_BYTES, own, strict=True) if loss == 0.0]
        fills = f"a width of {width:g} fills units of up to {max(fitting)} bytes" if fitting else "no unit is filled"
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated.value,
            model=min(own),
            low=0.0,
            high=0.0,
            most=1.0,
            inside="nothing is lost",
            cause=f"{fills}; the loss is that of a head {' or '.join(giving[:2])}" if giving else fills,
            bound="more than everything",
            unstated="the width that is not aligned",
            working=tuple(
                f"units of {unit} bytes: {100 * loss:.3g} % lost" for unit, loss in zip(_UNITS_BYTES, own, strict=True)
            ),
        )

    def _loss(self, width: float, unit: int) -> float:
        return 1.0 - float(row_useful_frac(d_row=width, element_bytes=self.element_bytes, unit_bytes=float(unit)))
