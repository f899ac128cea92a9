"""A grid of questions: what is a name or a layout is looped over, what is a number runs as an array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.estimate import band_factor
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Case, Question, case_of
from perfmodel.step.sweep import Floats, sweep_totals
from perfmodel.step.variation import variations
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_rules import step_limits
from perfmodel.work.memory_search import concurrency_at, does_not_fit
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["Block", "Grid", "GridPiece", "grid_of", "grid_pieces", "piece_block", "swept", "token_budgets"]

_NUMERIC = ("batch", "input_tokens", "output_tokens")
MOST_ROWS = 50_000_000


@dataclass(frozen=True, slots=True)
class Grid:
    """A question, its axes of names and layouts, and its axes of numbers."""

    question: Question
    named: Mapping[str, tuple[str, ...]]
    numeric: Mapping[str, Floats]

    @property
    def n_rows(self) -> int:
        """Rows of the whole grid."""
        return prod(len(v) for v in self.named.values()) * prod(len(v) for v in self.numeric.values())


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that share a setup: the names they share, columns of numbers, and an error where none can be given.

    `fits` is 0 where the whole batch cannot run at once, for lack of KV cache or by max_num_seqs. `exit_code` is what
    the error would return had it been the only question: 1 does not fit, 2 wrong question.
    """

    names: Mapping[str, str]
    columns: Mapping[str, Floats]
    error: str = ""
    exit_code: int = 0


def grid_of(question: Question, axes: Mapping[str, tuple[str, ...]]) -> Grid:
    """Return the grid of a question; raises SpecError for numbers that make no workload or for too many rows."""
    numeric: dict[str, Floats] = {}
    for name in _NUMERIC:
        if name not in axes:
            continue
        try:
            values = np.array([float(text) for text in axes[name]])
        except ValueError as error:
            raise SpecError(f"axis {name} holds something else than numbers", got=", ".join(axes[name][:5])) from error
        if not np.all(np.isfinite(values) & (values >= 1) & (values == np.floor(values))):
            raise SpecError(
                f"axis {name} cannot be used", got=", ".join(axes[name][:8]), expected="whole numbers of at least 1"
            )
        numeric[name] = values
    grid = Grid(question, {name: values for name, values in axes.items() if name not in _NUMERIC}, numeric)
    if grid.n_rows > MOST_ROWS:
        raise SpecError("the grid is too large", got=f"{grid.n_rows} rows", expected=f"at most {MOST_ROWS}")
    return grid


@dataclass(frozen=True, slots=True)
class GridPiece:
    """Rows of a grid that share a setup: what one worker computes. `is_only`: the grid has no other names."""

    names: Mapping[str, str]
    question: Question
    numeric: Mapping[str, Floats]
    is_only: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of the piece."""
        return prod(len(v) for v in self.numeric.values())


def grid_pieces(grid: Grid, *, most_rows: int | None = None) -> Iterator[GridPiece]:
    """Yield the pieces of a grid in the order of its rows: one a combination of names and layouts.

    With `most_rows` larger ones are cut along the batch, which is the slowest axis, so that the order stays.
    """
    batches = grid.numeric.get("batch")
    n_rows = prod(len(v) for v in grid.numeric.values())
    n_cuts = 1 if most_rows is None or batches is None else min(len(batches), -(-n_rows // most_rows))
    for names, question in variations(grid.question, grid.named):
        if batches is None or n_cuts == 1:
            yield GridPiece(names, question, grid.numeric, not grid.named)
            continue
        for part in np.array_split(batches, n_cuts):
            yield GridPiece(names, question, {**grid.numeric, "batch": part}, not grid.named)


def piece_block(catalogue: Catalogue, piece: GridPiece, on_rows_done: Callable[[int], None] | None = None) -> Block:
    """Return the rows of a piece; a combination that cannot be says why in `error`, unless it is the only one."""
    try:
        return _block(catalogue, piece.names, piece.question, piece.numeric, on_rows_done)
    except PerfmodelError as error:
        if piece.is_only:
            raise
        if on_rows_done is not None:
            on_rows_done(piece.n_rows)
        return Block(piece.names, {}, "; ".join(str(error).split("\n  ")), error.exit_code)


def swept(catalogue: Catalogue, grid: Grid, on_rows_done: Callable[[int], None] | None = None) -> Iterator[Block]:
    """Yield one block a combination of names and layouts, in the order of the axes."""
    for piece in grid_pieces(grid):
        yield piece_block(catalogue, piece, on_rows_done)


def _block(
    catalogue: Catalogue,
    names: Mapping[str, str],
    question: Question,
    numeric: Mapping[str, Floats],
    on_rows_done: Callable[[int], None] | None,
) -> Block:
    largest = {name: float(values.max()) for name, values in numeric.items()}
    case = case_of(catalogue, replace(question, **largest))  # type: ignore[arg-type]
    work = case.workload
    axes = [numeric.get(name, np.array([getattr(work, name)])) for name in _NUMERIC]
    batch, input_tokens, output_tokens = (m.ravel() for m in np.meshgrid(*axes, indexing="ij"))
    length = input_tokens + output_tokens
    stated = case
    case, plan = _started(case, float(length.max()), float(length.min()))
    totals = sweep_totals(
        case.engine,
        batch=batch / case.n_replicas,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        token_budget=token_budgets(stated, length),
        on_rows_done=on_rows_done,
    )
    columns = {"batch": batch, "input_tokens": input_tokens, "output_tokens": output_tokens}
    for name, sd in (("ttft_s", "ttft_sd"), ("tpot_s", "tpot_sd"), ("e2e_s", "e2e_sd")):
        factor = band_factor(getattr(totals, sd))
        value = getattr(totals, name)
        columns |= {name: value, f"{name}_low": value / factor, f"{name}_high": value * factor}
    rate = totals.output_tokens_per_s * case.n_replicas
    factor = band_factor(totals.e2e_sd)
    columns |= {
        "output_tokens_per_s": rate,
        "output_tokens_per_s_low": rate / factor,
        "output_tokens_per_s_high": rate * factor,
        "output_tokens_per_s_per_device": rate / case.n_devices,
        "n_devices": np.full_like(batch, case.n_devices),
        "fits": _fits(case, plan, batch, length),
    }
    return Block(names, columns)


def token_budgets(case: Case, length_tokens: Floats) -> Floats:
    """Return the prompt tokens that one step may hold for each length of input + output.

    Where no context limit is stated it follows the length, as in the single answer; engines that do not cut prompts
    then allow steps of at least that many tokens.
    """
    setup, options = case.setup, case.memory.options

    def budget(n_tokens: float) -> float:
        own = replace(options, max_model_len=options.max_model_len or max(1, int(n_tokens)))
        return float(step_limits(setup.model, setup.runtime, own, setup.devices[0]).max_num_batched_tokens)

    lengths, where = np.unique(length_tokens, return_inverse=True)
    budgets: Floats = np.array([budget(float(n)) for n in lengths])[where]
    return budgets


def _started(case: Case, longest: float, shortest: float) -> tuple[Case, MemoryPlan]:
    """Return the case with a context limit of the longest row (or the shortest, if only that starts) and its plan.

    Raises InfeasibleError where the engine starts for no row.
    """
    for length in (longest, shortest):
        changed = case
        if case.memory.options.max_model_len is None:
            changed = replace(case, memory=case.memory.with_options(max_model_len=int(length)))
        plan = memory_plan(changed.memory)
        if plan.starts:
            break
    else:
        raise does_not_fit(changed.memory, plan)
    return changed, plan


def _fits(case: Case, plan: MemoryPlan, batch: Floats, length: Floats) -> Floats:
    """Return 1 where the whole batch runs at once: the KV cache holds it at full length, and max_num_seqs allows it."""
    lengths, where = np.unique(length, return_inverse=True)
    held = np.floor([concurrency_at(plan, float(n)) for n in lengths])
    n_pools = plan.n_pools * case.n_replicas
    fits: Floats = (np.minimum(held[where], plan.limits.max_num_seqs) * n_pools >= batch).astype(np.float64)
    return fits
