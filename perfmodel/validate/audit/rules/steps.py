"""Checks of what happens around the kernels of a step: fusion, dispatch, idle cores, workspace, page walks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from perfmodel.cost.translation import page_walk_share
from perfmodel.estimate import Num
from perfmodel.step.dispatch import Dispatch, dispatch, workspace_growth_frac
from perfmodel.step.fusion import Fusion, FusionSide, chain_size, fusions, total_time
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.step.step import Engine
from perfmodel.units import GB, bandwidth_text, bytes_text, time_text
from perfmodel.validate.audit.base import Check, Desk, Ref
from perfmodel.validate.audit.verdict import Finding, Verdict, graded
from perfmodel.work.tiling import Tile

__all__ = ["CoreUse", "DispatchTime", "FusionGain", "FusionMemory", "FusionPasses", "PageWalks", "Workspace"]

_MOST_TOKENS: Final = 2.0**30
_N_SIZES: Final = 4000
Setups = Annotated[tuple[str, ...], Field(min_length=1)]


def _engine(desk: Desk, setup: str) -> Engine:
    """Return the priced engine of a set-up, built once."""
    key = f"engine {setup}"
    if key not in desk.kept:
        desk.kept[key] = desk.case(setup).engine
    found: Engine = desk.kept[key]
    return found


def _fusions(desk: Desk, setup: str, chain: str, n_tokens: Num | None = None) -> tuple[Fusion, ...]:
    work = desk.case(setup).workload
    n_seqs = work.batch if n_tokens is None else n_tokens / work.input_tokens
    size = chain_size(phase="prefill", n_seqs=n_seqs, input_tokens=work.input_tokens)
    return fusions(_engine(desk, setup), size, phase="prefill", names=(chain,))


class FusionGain(Check):
    """Times of a chain of operators before and after it was fused, on set-ups that it may have been."""

    kind: Literal["fusion_gain"]
    setups: Setups
    chain: str
    before: Ref
    after: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the ratio's place among those of the set-ups, and the tokens at which the first time is reached."""
        before, after = desk.value(self.before), desk.value(self.after)
        ratios, limits, working = [], [], []
        for name in self.setups:
            # far above all launches, so that bytes decide: the size is not stated
            parts = _fusions(desk, name, self.chain, 2.0**20)
            title = desk.case(name).setup.model.title
            ratio = float(total_time(parts, fused=False).value) / float(total_time(parts, fused=True).value)
            ratios.append(ratio)
            limits.append(max(float(p.time_ratio_limit) for p in parts))
            working.append(f"{title}: {ratio:.3g} times, at most {limits[-1]:.3g} ({self._size(desk, name, before)})")
        yield graded(
            self.kind,
            "gain",
            stated=before / after,
            model=sum(ratios) / len(ratios),
            low=min(ratios),
            high=max(ratios),
            most=max(limits),
            inside="the gain of the model",
            cause=f"fusing gives {min(ratios):.3g} to {max(ratios):.3g} times where bytes decide; less is what a fused "
            "kernel of lower bandwidth, or one that keeps some passes, would give",
            bound=f"no fusion of this chain gives more than {max(limits):.3g} times",
            unstated="model and size",
            working=tuple(working),
        )

    def _size(self, desk: Desk, setup: str, target_s: float) -> str:
        tokens = np.geomspace(1.0, _MOST_TOKENS, _N_SIZES)
        times = np.asarray(total_time(_fusions(desk, setup, self.chain, tokens), fused=False).value)
        if not times[0] <= target_s <= times[-1]:
            return f"no step takes {time_text(target_s)}"
        return f"{time_text(target_s)} are {float(np.interp(target_s, times, tokens)):,.0f} tokens in one step"


class FusionMemory(Check):
    """Memory before and after a chain of operators was fused."""

    kind: Literal["fusion_memory"]
    setups: Setups
    chain: str
    before: Ref
    after: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the share of live memory that fusing frees at its peak."""
        before, after = desk.value(self.before), desk.value(self.after)
        freed, kept, working = [], [], []
        for name in self.setups:
            parts = _fusions(desk, name, self.chain)
            freed.append(max(float(p.saved_live_bytes / p.before.peak_live_bytes) for p in parts))
            kept.append(max(1.0 - float(_unreleased(p.after) / _unreleased(p.before)) for p in parts))
            working.append(
                f"{desk.case(name).setup.model.title}: {100 * freed[-1]:.3g} % of the peak of live tensors, "
                f"{100 * kept[-1]:.3g} % where nothing is released before the end"
            )
        least = f"{100 * max(freed):.2g} %" if max(freed) > 0 else "nothing"
        yield graded(
            self.kind,
            "freed_frac",
            stated=1.0 - after / before,
            model=max(freed),
            low=min(freed),
            high=max(freed),
            inside="what fusing frees at the peak",
            cause=f"fusing this chain frees {least} at the peak of its live tensors, and "
            f"{100 * min(kept):.2g} to {100 * max(kept):.2g} % of them where nothing is released before the end; the "
            f"{(before - after) / GB:.2g} GB come from elsewhere",
            unstated="model and size",
            working=tuple(working),
        )


def _unreleased(side: FusionSide) -> Num:
    return side.chain.unreleased_bytes


class FusionPasses(Check):
    """Accesses to global memory of one buffer of a chain, before and after it was fused."""

    kind: Literal["fusion_passes"]
    setup: str
    chain: str
    before: Ref
    after: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the most kernels that touch one buffer of the chain apart, and those of the fused one."""
        part = _fusions(desk, self.setup, self.chain)[0]
        sides = (part.before.chain, part.after.chain)
        apart = {buffer.name: sides[0].passes(buffer.name) for buffer in sides[0].buffers}
        name = max(apart, key=lambda buffer: apart[buffer])
        kept = {buffer.name for buffer in sides[1].buffers}
        fused = sides[1].passes(name) if name in kept else 0
        stated = (desk.value(self.before), desk.value(self.after))
        agrees = stated == (apart[name], max(fused, 1))
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if agrees else Verdict.PLAUSIBLE,
            reason=f"in the model {name} goes through {apart[name]} kernels apart and {max(fused, 1)} fused",
            name=self.before.rpartition(".")[2],
            stated=stated[0],
            model=float(apart[name]),
            low=float(apart[name]),
            high=float(apart[name]),
            working=(f"kernels apart: {', '.join(o.name for o in sides[0].operators)}",),
        )


def _dispatch(desk: Desk, setup: str, phase: str, batch: float) -> Dispatch:
    case = desk.case(setup)
    device, work = case.setup.devices[0], case.workload
    tiling = desk.catalogue.core_of(device).tiling
    one = (
        prefill_slice(batch, work.input_tokens, n_steps=1.0)
        if phase == "prefill"
        else decode_slice(batch, work.input_tokens, work.output_tokens)
    )
    return dispatch(
        _engine(desk, setup),
        (one,),
        Tile(tiling.tile_m.value, tiling.tile_n.value, tiling.attention_rows.value),
        desk.catalogue.scheduling_of(device).translation,
    )


class CoreUse(Check):
    """Share of core time in use in a step of a phase, on set-ups that it may have been."""

    kind: Literal["core_use"]
    setups: Setups
    phase: Literal["prefill", "decode"]
    batch: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the share's place between those of the set-ups, idle time of the device counted or not."""
        stated, batch = desk.value(self.figure), desk.value(self.batch)
        shares, working = [], []
        for name in self.setups:
            found = _dispatch(desk, name, self.phase, batch)
            busy, whole = float(found.core_frac), float(found.core_frac_of_step)
            shares += [busy, whole]
            setup = desk.case(name).setup
            working.append(
                f"{setup.model.title} under {setup.runtime.name}: {100 * busy:.3g} % while kernels run, "
                f"{100 * whole:.3g} % of the step"
            )
        low, high = min(shares), max(shares)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=math.sqrt(low * high),
            low=low,
            high=high,
            most=1.0,
            inside=f"between the set-ups: {100 * low:.3g} to {100 * high:.3g} %",
            cause=f"the set-ups have {100 * low:.3g} to {100 * high:.3g} %; another model, length or launch mode",
            bound="more than all of the time",
            unstated="model and length",
            working=tuple(working),
        )


class DispatchTime(Check):
    """Time to dispatch a step or an operator."""

    kind: Literal["dispatch_time"]
    setup: str
    phase: Literal["prefill", "decode"]
    batch: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield what a whole step takes, and how many operators the stated time would hand out."""
        stated = desk.value(self.figure)
        found = _dispatch(desk, self.setup, self.phase, desk.value(self.batch))
        device = desk.case(self.setup).setup.devices[0]
        launch = device.launch
        ways = {
            "in a stream": launch.stream,
            "replayed by a graph": launch.graph,
            "by the host, eager": launch.host_dispatch,
        }
        counts = {way: stated / figure.value for way, figure in ways.items() if figure is not None}
        listed = ", ".join(f"{n:.2g} {way}" for way, n in counts.items())
        n_kernels = float(found.n_kernels)
        step = (launch.stream.value if launch.stream else 0.0) * n_kernels
        single = [figure.value for figure in ways.values() if figure is not None]
        low, high = (min(single), max(single)) if single else (math.nan, math.nan)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=launch.stream.value if launch.stream else math.nan,
            low=low,
            high=high,
            inside=f"the time of one operator ({time_text(low)} to {time_text(high)}); a step takes {time_text(step)}",
            cause=f"enough for {listed} operators; a step has {n_kernels:,.0f} and takes {time_text(step)}; what was "
            "timed is not stated",
            unstated="what was timed",
            working=(
                f"public: {', '.join(f'{way} {time_text(f.value)}' for way, f in ways.items() if f is not None)}",
                f"the number of kernels depends neither on the phase nor on the batch: {n_kernels:,.0f} a step",
            ),
        )


class Workspace(Check):
    """Temporary memory that grows where prefill and decode run in streams of their own."""

    kind: Literal["workspace"]
    setups: Setups
    prefill_batch: Ref
    decode_batch: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the growth on the set-ups, and the decode workspace that the figure would mean."""
        stated = desk.value(self.figure)
        growths, working = [], []
        for name in self.setups:
            needs = [
                float(_dispatch(desk, name, phase, desk.value(batch)).stream_bytes)
                for phase, batch in (("prefill", self.prefill_batch), ("decode", self.decode_batch))
            ]
            growths.append(float(workspace_growth_frac(*needs)))
            working.append(
                f"{desk.case(name).setup.model.title}: prefill {bytes_text(needs[0])}, decode {bytes_text(needs[1])}, "
                f"{100 * growths[-1]:.2g} %; the figure would be a decode need of {bytes_text(stated * max(needs))}"
            )
        low, high = min(growths), max(growths)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=math.sqrt(low * high),
            low=low,
            high=high,
            most=1.0,
            inside="the growth of the model",
            cause=f"a second stream adds {100 * low:.2g} to {100 * high:.2g} % at these batches; more means buffers "
            "for a larger decode batch; of what the share is taken is not stated",
            unstated="model and length",
            bound="a second stream adds at most as much again",
            working=tuple(working),
        )


class PageWalks(Check):
    """Share by which page walks lengthen reading from memory."""

    kind: Literal["page_walks"]
    device: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the most that walks can add with the device's pages, and the page size that the figure would mean."""
        stated, device = desk.value(self.figure), desk.device(self.device)
        pages = desk.catalogue.scheduling_of(device).translation
        n_cores = (device.matrix or device.vector).n_cores.value
        rate = device.dram_bytes_per_s

        def added(page_bytes: float) -> float:
            return float(
                page_walk_share(
                    bytes_per_s=rate,
                    page_bytes=page_bytes,
                    walk_s=pages.walk.value,
                    n_walkers=n_cores,
                    missed_frac=1.0,
                )
            )

        most = added(pages.page.value)
        page, walk_s = pages.page.value * most / stated, pages.walk.value * stated / most
        small = added(pages.small_page.value) if pages.small_page is not None else math.nan
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=most,
            low=0.0,
            high=most,
            inside="within what walks of every page add",
            cause=f"with pages of {bytes_text(pages.page.value)} walks add {100 * most:.2g} % at most; "
            f"{100 * stated:.3g} % would be pages of {bytes_text(page)}, or walks of {time_text(walk_s)}",
            working=(
                f"{bandwidth_text(rate)} / {bytes_text(pages.page.value)} x {time_text(pages.walk.value)}",
                f"over {n_cores:g} cores: {100 * most:.3g} %, nothing hidden",
                f"with the smallest pages it would be {small:.3g} times the time",
            ),
        )
