"""A calibration as people read it: kernel classes with coefficients and errors; measurements worth making."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from perfmodel.fit.calibrate import PRIOR_STAYS, Calibrated
from perfmodel.fit.suggest import Suggestion
from perfmodel.specs.calibration import Calibration, Coef
from perfmodel.units import time_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = ["calibration_document", "calibration_tables", "suggestion_document", "suggestion_table"]

_SHAPE: Final = (
    "batch", "query_tokens", "context_tokens", "m", "n", "k", "n_heads", "n_kv_heads", "head_dim", "hidden",
    "intermediate", "n_experts", "top_k",
)  # fmt: skip


def _coefficients(calibration: Calibration, name: str) -> dict[str, Coef]:
    fit = calibration.kernels.get(name) or calibration.collectives.get(name)
    if fit is None or PRIOR_STAYS in calibration.fits[name].remarks:
        return {}
    fitted = calibration.fits[name].parameters
    return {p: coef for p in fitted if isinstance(coef := getattr(fit, p, None), Coef)}


def _coefficient_text(name: str, coef: Coef) -> str:
    value = time_text(coef.value) if name.endswith("_s") else f"{coef.value:.3g}"
    return f"{name.removesuffix('_s').removesuffix('_frac')} {value} ±{100 * coef.rel_sd:.0f} %"


def calibration_tables(calibrated: Calibrated) -> list[RichTable]:
    """Return the table of kernel classes and links, and one of remarks where there are any."""
    from rich.table import Table as RichTable

    calibration = calibrated.calibration
    table = RichTable(title=calibration.title, title_justify="left")
    for column in ("class", "rows", "shapes", "left-out median", "P90", "coefficients"):
        table.add_column(column, justify="left" if column in ("class", "coefficients") else "right")
    notes = RichTable("class", "remark", title="Remarks", title_justify="left")
    for name, record in calibration.fits.items():
        coefs = _coefficients(calibration, name)
        text = ", ".join(_coefficient_text(p, c) for p, c in coefs.items()) or "prior kept"
        table.add_row(
            name, str(record.n_rows), str(record.n_groups), f"{100 * record.left_out_median_frac:.1f} %",
            f"{100 * record.left_out_p90_frac:.1f} %", text,
        )  # fmt: skip
        for remark in record.remarks:
            notes.add_row(name, remark)
    return [table, notes] if notes.row_count else [table]


def calibration_document(calibrated: Calibrated) -> dict[str, Any]:
    """Return a calibration with its fits as data."""
    calibration = calibrated.calibration
    return {
        "device": calibration.device,
        "engine": calibration.runtime,
        "name": calibration.name,
        "program_version": calibration.program_version,
        "classes": [
            {
                "class": name,
                "used": bool(_coefficients(calibration, name)),
                "coefficients": {
                    p: {"value": c.value, "rel_sd": c.rel_sd} for p, c in _coefficients(calibration, name).items()
                },
                **record.model_dump(mode="json"),
            }
            for name, record in calibration.fits.items()
        ],
    }


def _shape(suggestion: Suggestion) -> dict[str, Any]:
    cells = suggestion.row.cells()
    return {name: cells[name] for name in _SHAPE if name in cells}


def suggestion_table(device: str, listed: Sequence[Suggestion]) -> RichTable:
    """Return the measurements worth making, most telling first."""
    from rich.table import Table as RichTable

    table = RichTable(title=f"Measurements that would tell most about {device}", title_justify="left")
    for column in ("class", "shape", "expected", "uncertain by", "then"):
        table.add_column(column, justify="left" if column in ("class", "shape") else "right")
    for one in listed:
        dtype = one.row.compute_dtype
        shape = ", ".join(f"{name} {value:g}" for name, value in _shape(one).items())
        table.add_row(
            one.kernel, f"{dtype}: {shape}", time_text(one.expected_s), f"±{100 * one.sd_before:.0f} %",
            f"±{100 * one.sd_after:.0f} %",
        )  # fmt: skip
    return table


def suggestion_document(device: str, listed: Sequence[Suggestion]) -> dict[str, Any]:
    """Return the measurements worth making as data."""
    return {
        "device": device,
        "suggestions": [
            {
                "class": one.kernel,
                "kind": one.row.kind,
                "compute_dtype": one.row.compute_dtype,
                **_shape(one),
                "expected_s": one.expected_s,
                "rel_sd_before": one.sd_before,
                "rel_sd_after": one.sd_after,
            }
            for one in listed
        ],
    }
