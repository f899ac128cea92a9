"""Scatter of whole steps: no more than the rows need, and bands that hold what was left out."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.estimate import Z80, Bound, Coefficient, leaf, relative_sd, repeated, total, uncertain
from perfmodel.specs.step_scatter import Scatter, StepScatter
from perfmodel.validate.step_scatter import OTHERS, StepErrors, fitted_scatters


def errors_of(log_error: np.ndarray, rel_sd: float, kind: str = "decode_step", n_models: int = 4) -> StepErrors:
    n = len(log_error)
    words = np.full(n, "x", dtype=object)
    models = np.array([f"m{i % n_models}" for i in range(n)], dtype=object)
    return StepErrors(np.full(n, kind, dtype=object), words, words, models, log_error, np.full(n, rel_sd))


def joined(*parts: StepErrors, profiles: tuple[str, ...]) -> StepErrors:
    names = np.concatenate([np.full(len(p.kind), name, dtype=object) for p, name in zip(parts, profiles, strict=True)])
    columns = ("kind", "device", "model", "log_error", "rel_sd")
    kept = {name: np.concatenate([getattr(p, name) for p in parts]) for name in columns}
    return StepErrors(profile=names, **kept)


def test_rows_within_their_bands_need_no_scatter() -> None:
    needed = errors_of(np.array([0.0, 0.1, -0.1, 0.2]), rel_sd=0.1).needed
    # z x 0.1 = 0.128 holds the first three; the last needs sqrt((0.2 / 1.2816)^2 - 0.1^2) = 0.12
    assert needed[:3].tolist() == [0.0, 0.0, 0.0]
    assert needed[3] == pytest.approx(((0.2 / Z80) ** 2 - 0.01) ** 0.5)


def test_the_scatter_is_what_the_coefficients_do_not_explain() -> None:
    rng = np.random.default_rng(1)
    quiet = errors_of(0.05 * rng.standard_normal(400), rel_sd=0.1)
    noisy = errors_of(0.2 * rng.standard_normal(400), rel_sd=0.1)
    both = joined(quiet, noisy, profiles=("quiet", "noisy"))
    found = {fit.runtime: fit for fit in fitted_scatters(both)}
    assert found["quiet"].value == 0.0
    assert found["noisy"].value == pytest.approx(0.03**0.5, rel=0.15)  # 0.2^2 = 0.1^2 + 0.03
    assert np.mean(found["noisy"].left_out_covered) == pytest.approx(0.8, abs=0.06)
    assert 0.0 < found[OTHERS].value < found["noisy"].value


def test_few_rows_take_the_scatter_of_others() -> None:
    rng = np.random.default_rng(2)
    many = errors_of(0.2 * rng.standard_normal(200), rel_sd=0.05)
    few = errors_of(np.full(4, 1.0), rel_sd=0.05)
    found = {f.runtime: f for f in fitted_scatters(joined(many, few, profiles=("many", "few")))}
    assert not found["few"].is_own
    assert found["few"].value == found[OTHERS].value
    assert not np.any(found["few"].left_out_covered)  # judged by the others alone


def test_an_error_of_the_whole_is_shared_by_its_repeats_and_diluted_by_others() -> None:
    common = (Coefficient("step.scatter", 1.0, 0.2),)
    step = uncertain(total("step", (leaf("a", 3.0, bound=Bound.COMPUTE), leaf("b", 1.0, bound=Bound.HOST))), common)
    assert float(step.value) == 4.0
    assert float(relative_sd(repeated("decode", step, 100.0))) == pytest.approx(0.2)
    # two steps of one key err together; beside an exact part of equal length the error halves
    assert float(relative_sd(total("both", (step, step)))) == pytest.approx(0.2)
    assert float(relative_sd(total("half", (step, leaf("c", 4.0, bound=Bound.LINK))))) == pytest.approx(0.1)
    assert uncertain(step, ()) is step


def test_a_phase_without_scatter_gives_no_coefficient() -> None:
    none = StepScatter(prefill=Scatter(value=0.0, n_rows=9, n_groups=2, source="s"))
    assert none.coefficient("prefill", owner="r", source="") == ()
    assert none.coefficient("decode", owner="r", source="") == ()
    some = StepScatter(decode=Scatter(value=0.1, n_rows=9, n_groups=2, source="s"))
    assert some.coefficient("decode", owner="r", source="t") == (Coefficient("r.decode.scatter", 1.0, 0.1, "t"),)
