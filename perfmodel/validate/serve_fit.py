"""Numbers of runtime profiles from measured serving at fixed concurrency: least relative errors, in two stages.

From TPOT: `launch_shown_frac` and `host_per_sequence`. From TTFT, these held: `host_first_token` and
`host_first_token_per_sequence`. Predictions are nearly linear in all of them, so that one with a unit more of each says
all there is; the slopes are taken anew at what was found. `host_per_layer` counts as zero: the shown starts of kernels
stand for it. Other numbers of a profile stay as they are.

Rows of one model on one device under one version err together, so that such a group counts as two rows. Versions are
few and groups fewer: each profile is drawn to what all profiles together give, as far as engines differ. Rows for which
the KV cache is the limit are left out: the closed form does not hold for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import FitError
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.runtime import HostTime, Runtime
from perfmodel.validate.host_fit import Slopes, solved
from perfmodel.validate.parts import Floats, HeldCatalogue, Parts
from perfmodel.validate.predict import Predictions, predictions
from perfmodel.validate.serving import KV_NOTE

__all__ = ["FIRST_TOKEN", "SERVE_PROFILES", "STEPS", "StageFit", "own_error", "profiles_of", "serve_fits"]

STEPS: Final = ("launch_shown_frac", "host_per_sequence")
FIRST_TOKEN: Final = ("host_first_token", "host_first_token_per_sequence")
SERVE_PROFILES: Final = (
    "sglang-0.5", "sglang-0.5.10", "tensorrt-llm-1.0", "tensorrt-llm-1.2", "vllm-0.11", "vllm-0.19",
)  # fmt: skip
"""Profiles whose shipped numbers come from serving rows."""
_UNITS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "launch_shown_frac": 0.25,
        "host_per_sequence": 10e-6,
        "host_first_token": 50e-3,
        "host_first_token_per_sequence": 1e-3,
    }
)
_BEGIN: Final[Mapping[str, float]] = MappingProxyType({"launch_shown_frac": 0.5})
_LEAST_SHOWN: Final = 0.02
_ROUNDS: Final = 2
_ROWS_OF_A_GROUP: Final = 2.0
_ENGINES_DIFFER: Final = 1.5
_SHARES_DIFFER: Final = 0.35
"""Relative standard deviations among engines of times and of shares: how strongly a profile is drawn to the others."""
_GROUP: Final = ("model", "device", "quantization", "runtime")


@dataclass(frozen=True, slots=True)
class StageFit:
    """What one metric told of one profile: values with standard errors, and the errors of its rows.

    `left_out` maps a column (model, device, ...) to predicted / measured - 1 of each row by a fit without the rows that
    share its word, NaN where no other row is left.
    """

    profile: str
    metric: str
    values: Mapping[str, float]
    stderr: Mapping[str, float]
    rows: Table
    error: Floats
    left_out: Mapping[str, Floats]


@dataclass(slots=True)
class _Part:
    """The rows of one profile and metric, with the slopes at the values that hold now."""

    profile: Runtime
    rows: Table
    weight: Floats
    values: dict[str, float]
    slopes: Slopes

    def only(self, mask: NDArray[np.bool_]) -> tuple[Slopes, Floats]:
        return self.slopes.rows(mask), self.weight[mask]


def profiles_of(table: Table, catalogue: Catalogue) -> NDArray[np.object_]:
    """Return the name of the runtime profile that prices each row, "" where there is none: its version family."""
    parts = Parts(catalogue)
    return np.array([parts.runtime(name).name for name in table["runtime"]], dtype=object)


def serve_fits(
    table: Table,
    catalogue: Catalogue,
    profiles: Sequence[str] = SERVE_PROFILES,
    *,
    groups: Sequence[str] = ("model", "device"),
) -> tuple[StageFit, ...]:
    """Return both stages of each profile fitted to the closed-loop rows that it prices, profile by profile.

    Raises FitError where a profile has fewer than three rows more than parameters of a metric.
    """
    owner = profiles_of(table, catalogue)
    held = HeldCatalogue(catalogue.homes)
    unknown = dict.fromkeys(FIRST_TOKEN, 0.0)
    first = [_part(table, owner, held, name, "tpot_s", STEPS, unknown) for name in profiles]
    _settled(first, held, STEPS)
    second = [
        _part(table, owner, held, one.profile.name, "ttft_s", FIRST_TOKEN, {n: one.values[n] for n in STEPS})
        for one in first
    ]
    _settled(second, held, FIRST_TOKEN)
    stages = [
        _stage(part, parts, free, groups) for parts, free in ((first, STEPS), (second, FIRST_TOKEN)) for part in parts
    ]
    n = len(first)
    return tuple(stages[i + n * k] for i in range(n) for k in range(2))


def own_error(table: Table, catalogue: Catalogue, metric: str, *, leave_out: str = "batch") -> Floats:
    """Return left-out errors of rows by a fit to the other rows of their own model and device, one column left out.

    For somebody who has measured this model on this device, and asks for another concurrency, width or length. NaN for
    groups of fewer rows than a fit takes.
    """
    rows = table.where(kind="serve", metric=metric)
    owner = profiles_of(rows, catalogue)
    held = HeldCatalogue(catalogue.homes)
    free = STEPS if metric == "tpot_s" else FIRST_TOKEN
    error = np.full(len(rows), np.nan)
    label = np.array(["|".join(words) for words in zip(*(rows[name] for name in _GROUP[:3]), owner, strict=True)])
    for name in np.unique(label):
        at = np.flatnonzero(label == name)
        profile = str(owner[at[0]])
        if len(at) < len(free) + 3 or profile not in SERVE_PROFILES:
            continue
        mine = rows.selected(label == name)
        held_values = {n: getattr(catalogue.runtime(profile), n) for n in STEPS} if metric == "ttft_s" else {}
        plain = {n: v if isinstance(v, float) else v.value for n, v in held_values.items()}
        part = _part(mine, np.full(len(mine), profile, dtype=object), held, profile, metric, free, plain)
        _settled([part], held, free, pooled=False)
        ids = {row: i for i, row in enumerate(part.rows["id"])}
        found = _without(part, [part], part.rows[leave_out].astype(str), free, pooled=False)
        for i in at:
            if rows["id"][i] in ids:
                error[i] = found[ids[rows["id"][i]]]
    return error


def _part(
    table: Table,
    owner: NDArray[np.object_],
    held: HeldCatalogue,
    name: str,
    metric: str,
    free: Sequence[str],
    fixed: Mapping[str, float],
) -> _Part:
    rows = table.selected((owner == name) & (table["kind"] == "serve") & (table["metric"] == metric))
    profile = held.runtime(name)
    values = {**{n: _BEGIN.get(n, 0.0) for n in free}, **fixed}
    first = _found(rows, held, profile, values)
    use = np.isfinite(first.error) & np.array([KV_NOTE not in remark for remark in first.remark], dtype=bool)
    if np.count_nonzero(use) < len(free) + 3:
        got = str(np.count_nonzero(use))
        raise FitError(f"too few rows for {metric} of {name}", got=got, expected=f"{len(free) + 3} or more")
    rows = rows.selected(use)
    words = np.array(["|".join(cells) for cells in zip(*(rows[column] for column in _GROUP), strict=True)])
    _, where, counts = np.unique(words, return_inverse=True, return_counts=True)
    weight = np.sqrt(np.minimum(_ROWS_OF_A_GROUP / counts[where], 1.0))
    return _Part(profile, rows, weight, values, Slopes(np.zeros(len(rows)), np.zeros((len(rows), len(free)))))


def _found(rows: Table, held: HeldCatalogue, profile: Runtime, values: Mapping[str, float]) -> Predictions:
    other = HeldCatalogue(held.homes, {profile.name: _with_values(profile, values)}, shared=held)
    return predictions(rows, other)


def _settled(parts: Sequence[_Part], held: HeldCatalogue, free: Sequence[str], *, pooled: bool = True) -> None:
    """Fit all parts together, then each drawn to the whole, with slopes taken anew at what was found."""
    units = np.array([_UNITS[name] for name in free])
    for _ in range(_ROUNDS):
        for part in parts:
            part.slopes = _slopes(part, held, free, units)
        prior = _prior([part.only(np.ones(len(part.weight), dtype=bool)) for part in parts], free) if pooled else None
        for part in parts:
            found = _bounded(free, solved(part.slopes, weight=part.weight, prior=prior) * units)
            part.values |= dict(zip(free, found.tolist(), strict=True))


def _slopes(part: _Part, held: HeldCatalogue, free: Sequence[str], units: Floats) -> Slopes:
    def ratio(values: Mapping[str, float]) -> Floats:
        found = _found(part.rows, held, part.profile, values)
        return np.asarray(found.predicted / found.measured, dtype=np.float64)

    now = ratio(part.values)
    columns = [
        ratio({**part.values, name: part.values[name] + unit}) - now for name, unit in zip(free, units, strict=True)
    ]
    slopes = np.stack(columns, axis=1)
    at = np.array([part.values[name] for name in free]) / units
    return Slopes(now - slopes @ at, slopes)


def _prior(parts: Sequence[tuple[Slopes, Floats]], free: Sequence[str]) -> tuple[Floats, Floats]:
    """Return what all parts together give, and how far one of them may be from it, in units."""
    whole = Slopes(
        np.concatenate([one.base for one, _ in parts]), np.concatenate([one.slopes for one, _ in parts], axis=0)
    )
    found = solved(whole, weight=np.concatenate([weight for _, weight in parts]))
    differ = np.array([_SHARES_DIFFER if name == "launch_shown_frac" else _ENGINES_DIFFER for name in free])
    return found, np.maximum(differ * found, 0.05)


def _stage(part: _Part, parts: Sequence[_Part], free: Sequence[str], groups: Sequence[str]) -> StageFit:
    units = np.array([_UNITS[name] for name in free])
    at = np.array([part.values[name] for name in free])
    error = part.slopes.base + part.slopes.slopes @ (at / units) - 1.0
    scaled = part.slopes.slopes * part.weight[:, None]
    covariance = np.linalg.pinv(scaled.T @ scaled) * float(np.average(error**2, weights=part.weight**2))
    return StageFit(
        part.profile.name,
        str(part.rows["metric"][0]),
        dict(zip(free, at.tolist(), strict=True)),
        dict(zip(free, (np.sqrt(np.diag(covariance)) * units).tolist(), strict=True)),
        part.rows,
        error,
        {name: _without(part, parts, part.rows[name].astype(str), free, column=name) for name in groups},
    )


def _without(
    part: _Part,
    parts: Sequence[_Part],
    words: NDArray[np.str_],
    free: Sequence[str],
    *,
    column: str = "",
    pooled: bool = True,
) -> Floats:
    """Return the error of each row by a fit without all rows, of any profile, that share its word."""
    units = np.array([_UNITS[name] for name in free])
    error = np.full(len(words), np.nan)
    for word in np.unique(words):
        out = words == word
        if out.all():
            continue
        prior = None
        if pooled:
            prior = _prior([other.only(other.rows[column].astype(str) != word) for other in parts], free)
        rows, weight = part.only(~out)
        found = _bounded(free, solved(rows, weight=weight, prior=prior) * units) / units
        error[out] = part.slopes.base[out] + part.slopes.slopes[out] @ found - 1.0
    return error


def _bounded(free: Sequence[str], values: Floats) -> Floats:
    """Return the values with a shown share between almost nothing and all."""
    is_share = np.array([name == "launch_shown_frac" for name in free])
    return np.where(is_share, np.clip(values, _LEAST_SHOWN, 1.0), values)


def _with_values(profile: Runtime, values: Mapping[str, float]) -> Runtime:
    """Return the profile with fitted numbers in their places; a share may exceed 1 while slopes are taken."""
    changes: dict[str, object] = {"host_per_layer": profile.host_per_layer.model_copy(update={"value": 0.0})}
    for name, value in values.items():
        time: HostTime | None = None if name == "launch_shown_frac" else getattr(profile, name) or profile.host_per_step
        changes[name] = value if time is None else time.model_copy(update={"value": value})
    return profile.model_copy(update=changes)
