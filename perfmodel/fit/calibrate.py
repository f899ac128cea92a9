"""A calibration of one device from measurement tables: which rows count for which kernel class, fitted and written.

Rows of a class come from the first family of runtimes that has enough of them (all versions together); a calibration
for one engine takes that engine's rows only. A fit is used where it is nearer to rows left out than the prior is;
otherwise the prior's coefficients stay, with the scatter that the rows have around them, and the record says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.errors import CalibrationError, FitError
from perfmodel.fit.collective_fit import CollectiveRows, FittedCollective, collective_rows, fitted_collective
from perfmodel.fit.damped import scatter_of
from perfmodel.fit.kernel_fit import LEAST_ROWS, FittedKernel, fitted_kernel
from perfmodel.measure.operator_work import OperatorRows, operator_rows, pooled
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import (
    LARGEST_SD,
    Calibration,
    Coef,
    CollectiveFit,
    FitRecord,
    KernelFit,
    coarser_classes,
)
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.files import yaml_text
from perfmodel.specs.rules import TransferRule

__all__ = [
    "PRIOR_STAYS",
    "Calibrated",
    "base_of",
    "calibration_from",
    "calibration_text",
    "chosen_rows",
    "transferred",
    "written_calibration",
]

Families = tuple[str, ...]

PRIOR_STAYS: Final = (
    "the coefficients of the prior stay: they are nearer to these rows than the fit is to rows left out"
)
PLENTY_OF_ROWS: Final = 25
"""A family of runtimes with fewer rows is taken only where none has that many."""
ENOUGH_UNDIVIDED: Final = 48
"""With so many mixture-of-experts rows on one rank, rows of ranks that share the experts are left to validation."""
_RATES: Final = ("launch_s", "compute_frac", "memory_frac", "cache_speedup", "quantise_frac")

_FAMILIES: Final[tuple[Families, ...]] = (("vllm",), ("cann",), ("sglang",), ("trtllm",), ("kernel",), ())
"""Order of preference; several families in one entry are pooled; the last entry takes whatever there is."""
_FAMILIES_OF: Final[Mapping[str, tuple[Families, ...]]] = {
    # one library of matmuls behind all runtimes; kernel tables without graphs come second
    "matmul/16bit": (("vllm", "sglang", "trtllm"), ("cann",), ("kernel",), ()),
    # quantised matmuls of vLLM: rows scatter by a factor, those of the others follow the law
    "matmul/fp8": (("trtllm",), ("sglang",), ("vllm",), ("cann",), ()),
    "matmul/fp8/block": (("sglang",), ("trtllm",), ("vllm",), ()),
    "matmul/fp4": (("vllm",), ("sglang",), ("trtllm",), ()),
    # routing of TensorRT-LLM's tables follows its stated power law, that of the others only in part
    "moe/16bit": (("trtllm",), ("vllm",), ("cann",), ("sglang",)),
    "moe/fp8": (("trtllm",), ("sglang",), ("vllm",)),
    "attention/prefill": (("trtllm",), ("vllm",), ("cann",), ("sglang",), ()),
    "mla/decode": (("sglang", "trtllm"), ("vllm",), ("cann",), ()),
    "mla/prefill": (("trtllm",), ("sglang",), ("vllm",), ("cann",), ()),
    # SGLang's kernel for a narrow latent cache expands it first
    "mla/decode/kv8": (("trtllm",), ("sglang",), ("vllm",)),
    "elementwise": (("vllm",), ("kernel",), ("cann",), ()),
    "collective": (("nccl",), ("hccl",), ()),
}
_FAMILIES_OF_ENGINE: Final[Mapping[str, Families]] = {"tensorrt-llm": ("trtllm",), "cann": ("cann",)}
_OPERATORS: Final = ("gemm", "attention", "mla_attention", "moe_ffn", "elementwise")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration and the fits behind it, used or not."""

    calibration: Calibration
    kernels: tuple[FittedKernel, ...]
    collectives: tuple[FittedCollective, ...]


def _family(runtime: str) -> str:
    return runtime.split("-")[0]


def _with_tile(fit: KernelFit, kernel: str, device: Device) -> KernelFit:
    """Return the prior with the rows of a tile of fused attention: 64 on consumer chips, 128 on others."""
    if "/prefill" not in kernel or kernel.startswith("linear"):
        return fit
    is_small = device.market in ("geforce", "workstation") and device.vendor == "nvidia"
    tile = Coef(value=64.0 if is_small else 128.0, note="query rows of a tile (FlashAttention)")
    return fit.model_copy(update={"min_rows": tile})


def base_of(prior: Calibration, kernel: str, device: Device) -> KernelFit:
    """Return the prior's coefficients for a kernel class on a device."""
    kernels = dict(prior.kernels)
    for override in prior.overrides:
        if override.when.holds_for(device):
            kernels |= override.kernels
    for key in coarser_classes(kernel):
        if key in kernels:
            return _with_tile(kernels[key], kernel, device)
    raise CalibrationError(f"calibration {prior.name} has no coefficients for {kernel}", where=device.name)


def _choices(kernel: str, engine: str) -> tuple[Families, ...]:
    if engine:
        return (_FAMILIES_OF_ENGINE.get(engine, (engine,)),)
    return next((_FAMILIES_OF[key] for key in coarser_classes(kernel) if key in _FAMILIES_OF), _FAMILIES)


def chosen_rows(tables: Iterable[Table], device: Device, engine: str = "") -> dict[str, OperatorRows]:
    """Return the rows that each kernel class is fitted to, by name of the class."""
    by_kernel: dict[str, list[OperatorRows]] = {}
    alone: dict[str, list[OperatorRows]] = {}
    for table in tables:
        usable = table.where(kind=_OPERATORS, device=device.name)
        for rows in operator_rows(usable):
            by_kernel.setdefault(rows.kernel, []).append(rows)
        on_one_rank = usable.selected((usable["kind"] == "moe_ffn") & ~(usable["ep"] > 1))
        for rows in operator_rows(on_one_rank):
            alone.setdefault(rows.kernel, []).append(rows)
    found = {}
    for kernel, parts in sorted(by_kernel.items()):
        kept = _preferred(parts, alone.get(kernel, []), _choices(kernel, engine))
        if kept:
            found[kernel] = pooled(kept)
    return found


def _preferred(
    parts: Sequence[OperatorRows], undivided: Sequence[OperatorRows], choices: Sequence[Families]
) -> list[OperatorRows]:
    """Return the rows of the first families with plenty of them, else of the first with enough, else none."""
    for least in (PLENTY_OF_ROWS, LEAST_ROWS):
        for families in choices:
            kept, on_one_rank = _of_families(parts, families), _of_families(undivided, families)
            if _n_rows(on_one_rank) >= ENOUGH_UNDIVIDED:
                kept = on_one_rank
            if _n_rows(kept) >= least:
                return kept
    return []


def _n_rows(parts: Sequence[OperatorRows]) -> int:
    return sum(len(rows.time_s) for rows in parts)


def _of_families(parts: Sequence[OperatorRows], families: Families) -> list[OperatorRows]:
    return [rows for rows in parts if not families or _family(rows.runtime) in families]


def calibration_from(
    device: Device,
    tables: Sequence[Table],
    *,
    catalogue: Catalogue,
    engine: str = "",
    leave_out: bool = True,
    advanced: Callable[[str], None] = lambda _: None,
) -> Calibrated:
    """Return the calibration of a device from tables of measurements; `engine` restricts it to that engine's rows.

    Without `leave_out` no error on left-out shapes is found: for checks only. Raises FitError where no table has enough
    rows of any kernel class or link of this device.
    """
    from importlib.metadata import version

    prior, rules = catalogue.calibration("prior"), catalogue.fitting_rules()
    kernels: dict[str, KernelFit] = {}
    collectives: dict[str, CollectiveFit] = {}
    made_kernels, made_links, records = [], [], {}
    for kernel, rows in chosen_rows(tables, device, engine).items():
        advanced(kernel)
        base = base_of(prior, kernel, device)
        made = fitted_kernel(device, rows, base, rules, source="tables", leave_out=leave_out)
        made_kernels.append(made)
        records[kernel], kernels[kernel] = _judged(made), _kept_kernel(made, base)
    for rows_of_link in _chosen_links(tables, device, catalogue, engine):
        advanced(rows_of_link.kind)
        known = prior.collectives.get(rows_of_link.kind) or prior.collectives["any"]
        link = fitted_collective(rows_of_link, known, rules, source="tables", leave_out=leave_out)
        made_links.append(link)
        records[link.kind], collectives[link.kind] = _judged(link), _kept_link(link, known)
    if not records:
        raise FitError(
            f"no table has enough measurements of {device.name}" + (f" under {engine}" if engine else ""),
            got=_found_text(tables, device),
            expected=f"at least {LEAST_ROWS} operator rows of one kernel class, status ok or inferred",
        )
    name = f"{device.name}--{engine}" if engine else device.name
    calibration = Calibration(
        name=name,
        status="fit",
        title=f"Kernels of {device.title}" + (f" under {engine}" if engine else "") + ", fitted to public measurements",
        sources={"tables": "; ".join(_sources(tables, device))},
        kernels=kernels,
        collectives=collectives,
        device=device.name,
        runtime=engine,
        fits=records,
        program_version=version("perfmodel"),
    )
    return Calibrated(calibration, tuple(made_kernels), tuple(made_links))


def _chosen_links(
    tables: Sequence[Table], device: Device, catalogue: Catalogue, engine: str
) -> Iterator[CollectiveRows]:
    found = [rows for table in tables for rows in collective_rows(table.where(), device, catalogue)]
    for kind in sorted({rows.kind for rows in found}):
        for families in _choices("collective", engine):
            kept = [r for r in found if r.kind == kind and (not families or _family(r.runtime) in families)]
            kept = [r for r in kept if len(r.time_s) >= LEAST_ROWS]
            if kept:
                yield max(kept, key=lambda r: len(r.time_s))
                break


def _keeps_prior(made: FittedKernel | FittedCollective) -> bool:
    """Tell whether the prior is nearer to the rows than the fit is to rows left out, by median and by scatter."""
    prior, fit = np.abs(made.prior_errors), np.abs(made.left_out_errors)
    is_narrower = scatter_of(made.prior_errors) < scatter_of(made.left_out_errors)
    return bool(is_narrower and np.median(prior) < np.median(fit))


def _kept_kernel(made: FittedKernel, base: KernelFit) -> KernelFit:
    """Return the fit, or the prior with the scatter that the rows have around it."""
    if not _keeps_prior(made):
        return _rounded(made.fit)
    return _rounded(base.model_copy(update={"scatter": _scatter_around(made)}))


def _kept_link(made: FittedCollective, prior: CollectiveFit) -> CollectiveFit:
    if not _keeps_prior(made):
        return _rounded_link(made.fit)
    return _rounded_link(prior.model_copy(update={"scatter": _scatter_around(made)}))


def _scatter_around(made: FittedKernel | FittedCollective) -> Coef:
    return Coef(value=scatter_of(made.prior_errors), source="tables")


def _judged(made: FittedKernel | FittedCollective) -> FitRecord:
    record = made.record
    rounded = record.model_copy(
        update={
            "left_out_median_frac": _digits(record.left_out_median_frac, 4),
            "left_out_p90_frac": _digits(record.left_out_p90_frac, 4),
            "left_out_covered_frac": _digits(record.left_out_covered_frac or 0.0, 4),
            "ranges": {k: (_digits(a, 6), _digits(b, 6)) for k, (a, b) in record.ranges.items()},
            "log_covariance": tuple(tuple(_digits(c, 6) for c in line) for line in record.log_covariance),
        }
    )
    if not _keeps_prior(made):
        return rounded
    return rounded.model_copy(update={"remarks": (PRIOR_STAYS, *record.remarks)})


def _digits(value: float, n: int) -> float:
    return float(f"{value:.{n}g}")


def _rounded_coef(coef: Coef | None) -> Coef | None:
    if coef is None:
        return None
    return coef.model_copy(update={"value": _digits(coef.value, 8), "rel_sd": _digits(coef.rel_sd, 5)})


def _rounded(fit: KernelFit) -> KernelFit:
    return fit.model_copy(update={name: _rounded_coef(getattr(fit, name)) for name in type(fit).model_fields})


def _rounded_link(fit: CollectiveFit) -> CollectiveFit:
    return fit.model_copy(update={name: _rounded_coef(getattr(fit, name)) for name in type(fit).model_fields})


def _sources(tables: Sequence[Table], device: Device) -> list[str]:
    """Return where the tables with operators of the device come from: the stated source, else the name of the file."""
    kinds = (*_OPERATORS, "collective")
    used = [table for table in tables if len(table.where(kind=kinds, device=device.name, metric="time_s"))]
    return sorted({table.sidecar.source or Path(table.name).name for table in used})


def _found_text(tables: Sequence[Table], device: Device) -> str:
    n_rows = sum(int((table["device"] == device.name).sum()) for table in tables)
    n_usable = sum(len(table.where(device=device.name)) for table in tables)
    others = sorted({str(name) for table in tables for name in set(table["device"])} - {device.name})
    usable = "" if n_usable == n_rows else f", {n_usable} of them usable"
    return f"{n_rows} rows of it{usable}" + (f"; the tables hold {', '.join(others)}" if others else "")


def transferred(calibration: Calibration, device: Device, rule: TransferRule, *, why: str) -> Calibration:
    """Return a fit carried over to a device that was not measured: shares of its own peaks, with wider uncertainty."""

    def widened(coef: Coef | None) -> Coef | None:
        if coef is None:
            return None
        rel_sd = _digits(min(max(coef.rel_sd * rule.widening, rule.least_rel_sd), LARGEST_SD), 5)
        return coef.model_copy(update={"rel_sd": rel_sd})

    def carried(fit: KernelFit) -> KernelFit:
        scatter = fit.scatter
        wide = scatter.model_copy(update={"value": _digits(scatter.value * rule.widening, 8)}) if scatter else None
        names = (*_RATES, "chain_s", "grouped_start_s")
        return fit.model_copy(update={**{name: widened(getattr(fit, name)) for name in names}, "scatter": wide})

    return calibration.model_copy(
        update={
            "name": device.name,
            "title": f"Kernels of {device.title}, transferred from {calibration.device}: {why}",
            "kernels": {name: carried(fit) for name, fit in calibration.kernels.items()},
            "collectives": {},
            "device": device.name,
            "fits": {},
        }
    )


def calibration_text(calibration: Calibration) -> str:
    """Return a calibration as YAML, without what it leaves empty."""
    return yaml_text(_filled(calibration.model_dump()))


def _filled(node: dict[str, object]) -> dict[str, object]:
    cleared = {key: _filled(value) if isinstance(value, dict) else value for key, value in node.items()}
    return {key: value for key, value in cleared.items() if value not in (None, "", {}, (), [])}


def written_calibration(calibration: Calibration, path: Path, *, force: bool = False) -> Path:
    """Write a calibration to a new file, move it into place and return its path.

    Raises CalibrationError where the file exists and `force` is false, or where it cannot be written.
    """
    if path.exists() and not force:
        raise CalibrationError(f"{path} exists", cure="Give --force to replace it, or -o for another file.")
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(calibration_text(calibration), encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise CalibrationError(f"{path} cannot be written", got=error.strerror or str(error)) from error
    return path
