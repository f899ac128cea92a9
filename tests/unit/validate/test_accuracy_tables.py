"""Error tables, bounds, trends and host fits on data whose errors are known."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from perfmodel.errors import FitError, PerfmodelError, SpecError, UnknownNameError
from perfmodel.measure.row import Row
from perfmodel.measure.table import Table, table_from_rows
from perfmodel.report.validation import accuracy_table, validation_figure
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.accuracy import error_bounds, error_table, exceeded, parsed_groups
from perfmodel.validate.host_fit import host_fit
from perfmodel.validate.parts import HeldCatalogue
from perfmodel.validate.predict import Predictions, predictions
from perfmodel.validate.residuals import rank_correlation, trends
from perfmodel.validate.stories import Stories, read_stories


def gemms(n: int = 30, **more: Any) -> Table:
    shape = {"n": 4096.0, "k": 4096.0, "compute_dtype": "bf16", "metric": "time_s", "value": 1e-4, "source": "made up"}
    return table_from_rows(
        Row(id=f"g{i}", kind="gemm", device="a100-80gb-sxm", runtime="kernel", m=float(i + 1), **{**shape, **more})
        for i in range(n)
    )


def measured_as(found: Predictions, values: np.ndarray) -> Predictions:
    columns = {**found.table.columns, "value": values}
    return replace(found, table=Table(columns, len(found.table)))


def test_known_errors_come_out(catalogue: Catalogue) -> None:
    found = predictions(gemms(), catalogue)
    tenth = measured_as(found, found.predicted / 1.1)
    group = error_table(tenth, ("kind",))[0]
    assert group.n == 30
    assert group.median_frac == pytest.approx(0.1)
    assert group.p90_frac == pytest.approx(0.1)
    assert group.bias_frac == pytest.approx(0.1)
    assert error_table(measured_as(found, found.predicted))[0].covered_frac == 1.0


def test_every_figure_of_the_table_fits_a_terminal_of_80_columns(catalogue: Catalogue) -> None:
    groups = error_table(predictions(gemms(), catalogue), ("kind", "device", "runtime"))
    out = Console(file=StringIO(), width=80)
    out.print(accuracy_table(groups))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "in band" in text
    assert f"±{100 * groups[0].half_width_frac:.0f} %" in text
    assert not any(line.split()[:1] == ["g"] for line in text.splitlines())  # words fold, and not to letters


def test_a_picture_of_few_rows_has_room_around_them(catalogue: Catalogue) -> None:
    found = predictions(gemms(3), catalogue)
    parity, _, residual = validation_figure(measured_as(found, found.predicted * 1.01)).axes
    for low, high in (parity.get_xlim(), parity.get_ylim(), residual.get_xlim()):
        assert high / low >= 10 - 1e-9
    assert parity.lines[0].get_markersize() > 5


def test_rows_without_value_or_prediction_do_not_count_as_right(catalogue: Catalogue) -> None:
    odd = gemms(4, quantization="ternary")
    group = error_table(predictions(odd, catalogue), ())[0]
    assert (group.n, group.n_without) == (0, 4)
    assert np.isnan(group.median_frac)
    found = predictions(gemms(4), catalogue)
    assert error_table(measured_as(found, np.full(4, np.nan)), ()) == ()


def test_bounds(catalogue: Catalogue) -> None:
    found = predictions(gemms(), catalogue)
    tenth = measured_as(found, found.predicted / 1.1)
    assert exceeded(tenth, error_bounds(["gemm=11%,12%"])) == ()
    (text,) = exceeded(tenth, error_bounds(["gemm=0.09"]))
    assert "median 10.0 % exceeds 9 %" in text
    assert "no row" in exceeded(tenth, error_bounds(["decode_step=4%,10%"]))[0]
    with pytest.raises(SpecError, match="cannot be read"):
        error_bounds(["gemm"])
    with pytest.raises(UnknownNameError):
        error_bounds(["gem=4%"])


def test_groups_are_text_columns() -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        parsed_groups("kinds")
    with pytest.raises(UnknownNameError):
        parsed_groups("batch")


def test_a_trend_is_seen_and_noise_is_not(catalogue: Catalogue) -> None:
    found = predictions(gemms(60), catalogue)
    growing = measured_as(found, found.predicted / np.linspace(1.0, 2.0, 60))
    (trend,) = trends(growing)
    assert (trend.column, trend.correlation) == ("m", 1.0)
    assert trend.low_frac < trend.high_frac
    noise = np.random.default_rng(0).uniform(0.9, 1.1, 60)
    assert trends(measured_as(found, found.predicted * noise)) == ()
    assert rank_correlation(np.ones(9), np.arange(9.0)) == 0.0


def steps(catalogue: Catalogue, b_us: float, c_us: float, delta: float) -> Table:
    """Return steps as a vLLM with these host times would take them."""
    profile = catalogue.runtime("vllm-2024")
    changed = profile.model_copy(
        update={
            "host_per_layer": profile.host_per_layer.model_copy(update={"value": b_us * 1e-6}),
            "host_per_sequence": profile.host_per_sequence.model_copy(update={"value": c_us * 1e-6}),
            "host_per_message": None,
            "gqa_reread_frac": delta,
        }
    )
    rows = table_from_rows(
        Row(
            id=f"{model}-{batch}-{context}", kind="decode_step", device="h100-sxm", runtime="vllm-2024", model=model,
            compute_dtype="fp16", batch=batch, context_tokens=context, metric="time_s", value=1.0, source="made up",
        )
        for model in ("llama-2-7b", "llama-3-8b", "qwen2.5-7b")
        for batch in (1.0, 8.0, 32.0)
        for context in (128.0, 2048.0)
    )  # fmt: skip
    found = predictions(rows, HeldCatalogue(catalogue.homes, {"vllm-2024": changed}))
    return Table({**rows.columns, "value": found.predicted}, len(rows))


def test_a_host_fit_recovers_what_it_was_fed(catalogue: Catalogue) -> None:
    names = ("host_per_layer", "host_per_sequence", "gqa_reread_frac")
    fit = host_fit(steps(catalogue, 40.0, 70.0, 0.3), catalogue, "vllm-2024", parameters=names)
    assert fit.values["host_per_layer"] == pytest.approx(40e-6, rel=1e-6)
    assert fit.values["host_per_sequence"] == pytest.approx(70e-6, rel=1e-6)
    assert fit.values["gqa_reread_frac"] == pytest.approx(0.3, rel=1e-6)
    assert np.abs(fit.error).max() < 1e-9
    assert np.abs(fit.left_out).max() < 1e-6
    assert fit.n_groups == 3


def test_host_times_are_never_negative(catalogue: Catalogue) -> None:
    table = steps(catalogue, 0.0, 0.0, 0.0)
    quick = Table({**table.columns, "value": table["value"] * 0.9}, len(table))
    fit = host_fit(quick, catalogue, "vllm-2024")
    assert fit.values == {"host_per_layer": 0.0, "host_per_sequence": 0.0}


def test_a_host_fit_needs_rows_and_known_names(catalogue: Catalogue) -> None:
    table = steps(catalogue, 40.0, 70.0, 0.0)
    with pytest.raises(FitError, match="too few rows"):
        host_fit(table.selected(np.arange(2)), catalogue, "vllm-2024")
    with pytest.raises(UnknownNameError):
        host_fit(table, catalogue, "vllm-2024", parameters=("host_per_month",))
    with pytest.raises(PerfmodelError):
        host_fit(table, catalogue, "no-such-runtime")


def test_shipped_stories_are_read_and_chosen(catalogue: Catalogue) -> None:
    stories = read_stories(catalogue)
    found = stories.about({"kind": "prefill_step", "device": "a100-80gb-sxm", "runtime": "vllm-2023"})
    assert found is not None
    assert "all-reduce" in found.text
    assert stories.about({"kind": "quality", "device": "l4", "runtime": "x"}) is None
    assert read_stories(Catalogue(())) == Stories(kind="validation_stories", stories=())
