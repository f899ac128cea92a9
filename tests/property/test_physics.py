"""Laws of nature over models, layouts, devices and calibrations: one formula for any shape, monotone, bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.estimate import Bound, bound_shares
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.setup import Speculation
from perfmodel.specs.system import System
from perfmodel.step.request import RequestEstimate, request_estimate
from perfmodel.step.step import Engine

EngineOf = Callable[..., Engine]

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", "device": "a100-80gb-sxm"},
    "dense_tp4": {"model": "llama-3.1-70b", "device": "h100-sxm", "layout": Layout(tp=4)},
    "dense_pp4": {"model": "llama-3.1-8b", "device": "a100-80gb-sxm", "layout": Layout(pp=4)},
    "dense_tp2_pp2": {"model": "llama-3.1-8b", "device": "rtx-4090", "layout": Layout(tp=2, pp=2)},
    "mha_eager": {"model": "llama-2-7b", "device": "a100-80gb-sxm", "runtime": "pytorch-eager"},
    "awq": {"model": "qwen2.5-7b", "device": "rtx-4090", "scheme": "awq-int4-g128", "runtime": "vllm-eager"},
    "fp8": {"model": "llama-3.1-8b", "device": "h100-sxm", "scheme": "fp8", "kv_dtype": "fp8"},
    "w8a8_ascend": {"model": "llama-3.1-8b", "device": "ascend-910b3", "scheme": "w8a8", "runtime": "vllm-ascend-0.18"},
    "speculative": {"model": "llama-3.1-8b", "device": "a100-80gb-sxm", "speculation": Speculation(3, 2.5)},
    "mla_lite": {"model": "deepseek-v2-lite", "device": "ascend-910b2", "layout": Layout(tp=2)},
    "mla_expanded": {"model": "deepseek-v2-lite", "device": "a100-80gb-sxm", "runtime": "pytorch-eager"},
    "mla_tp8": {"model": "deepseek-v3", "device": "h200-sxm", "layout": Layout(tp=8)},
    "mla_ep8": {"model": "deepseek-v3", "device": "h200-sxm", "layout": Layout(tp=8, ep=8)},
    "mla_dp8_ep8": {"model": "deepseek-v3", "device": "h200-sxm", "layout": Layout(dp=8, ep=8)},
    "mla_dcp8": {"model": "deepseek-v3", "device": "h200-sxm", "layout": Layout(tp=8, dcp=8)},
    "mla_mtp": {
        "model": "deepseek-v3", "device": "h200-sxm", "layout": Layout(tp=8), "speculation": Speculation(1, 1.7),
    },
    "sparse_mla": {"model": "deepseek-v3.2", "device": "h200-sxm", "layout": Layout(tp=8)},
    "compressed": {"model": "deepseek-v4-flash", "device": "h200-sxm", "layout": Layout(tp=4)},
    "moe_tp2": {"model": "mixtral-8x7b", "device": "a100-80gb-sxm", "layout": Layout(tp=2)},
    "moe_tp4_dp2_ep8": {"model": "qwen3-235b-a22b", "device": "h100-sxm", "layout": Layout(tp=4, dp=2, ep=8)},
    "moe_dp2": {"model": "qwen3-30b-a3b", "device": "h100-sxm", "layout": Layout(dp=2)},
    "sliding_moe": {"model": "gpt-oss-20b", "device": "h100-sxm"},
    "sliding": {"model": "gemma-3-27b", "device": "h100-sxm"},
    "hybrid": {"model": "qwen3-next-80b-a3b", "device": "h100-sxm", "layout": Layout(tp=2)},
    "lightning": {"model": "minimax-m1", "device": "h200-sxm", "layout": Layout(tp=8)},
    "two_levels": {
        "model": "llama-3.1-70b", "device": "ascend-910c-die", "layout": Layout(tp=8), "runtime": "vllm-ascend-0.18",
    },
}  # fmt: skip
CALIBRATIONS = ("hard-bound", "ideal", "prior")
BUDGET = 8192.0


def engine(engine_of: EngineOf, name: str, calibration: str = "prior", **changes: Any) -> Engine:
    made = DEPLOYMENTS[name] | changes
    return engine_of(made.pop("model"), made.pop("device"), calibration=calibration, **made)


def asked(of: Engine, batch: Any, isl: Any, osl: Any, budget: float = BUDGET) -> RequestEstimate:
    return request_estimate(of, batch=batch, input_tokens=isl, output_tokens=osl, token_budget=budget)


def columns(found: RequestEstimate) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    return {name: np.asarray(getattr(found, name).value) for name in ("ttft", "tpot", "e2e")}


CUT_GAIN = 0.01
"""What one more token may save: it cuts prompts into one more, smaller step, whose activations fit the last cache."""


def never_falls(values: np.ndarray[Any, np.dtype[np.float64]], n_steps: Any = 1.0) -> bool:
    """Say whether values never fall, but for `CUT_GAIN` where the number of steps changes."""
    is_cut = np.diff(np.broadcast_to(np.asarray(n_steps, np.float64), values.shape)) > 0
    return bool(np.all(np.diff(values) >= -np.where(is_cut, CUT_GAIN, 1e-12) * values[:-1]))


# --- one formula -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_one_row_is_a_row_of_many(engine_of: EngineOf, name: str, calibration: str) -> None:
    rng = np.random.default_rng(11)
    batch, isl, osl = (np.floor(np.exp(rng.uniform(0, np.log(top), 12))) for top in (600, 60_000, 4000))
    osl[0] = isl[1] = batch[2] = 1.0
    of = engine(engine_of, name, calibration)
    many = columns(asked(of, batch, isl, osl))
    for row in range(len(batch)):
        one = columns(asked(of, batch[row].item(), isl[row].item(), osl[row].item()))
        for key, value in one.items():
            assert value == pytest.approx(np.broadcast_to(many[key], batch.shape)[row], rel=1e-12)
            assert 0 < value < 1e6


# --- monotone in what is asked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_time_never_falls_with_what_is_asked(engine_of: EngineOf, name: str, calibration: str) -> None:
    """The bound credits the cache once a step, so that it is compared where one step reads all prompts."""
    of = engine(engine_of, name, calibration)
    budget = 1e9 if calibration == "hard-bound" else BUDGET
    for batch, isl, osl in ((1.0, 1000.0, 100.0), (37.0, 3000.0, 500.0), (1.0, 20_000.0, 10.0)):
        for found in (
            asked(of, np.arange(1.0, 400.0), isl, osl, budget),
            asked(of, batch, np.unique(np.floor(np.geomspace(1, 60_000, 400))), osl, budget),
            asked(of, batch, np.arange(8000.0, 8400.0), osl, budget),
            asked(of, batch, isl, np.unique(np.floor(np.geomspace(1, 9000, 200))), budget),
        ):
            for key, values in columns(found).items():
                assert values.ndim == 0 or never_falls(values, found.n_prefill_steps), key


@given(
    st.sampled_from(sorted(DEPLOYMENTS)), st.integers(1, 300), st.integers(1, 30_000), st.integers(1, 3000),
    st.integers(0, 300), st.integers(0, 30_000), st.integers(0, 3000),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_more_of_everything_never_takes_less(
    engine_of: EngineOf, name: str, batch: int, isl: int, osl: int, more_batch: int, more_isl: int, more_osl: int
) -> None:
    of = engine(engine_of, name)
    less = columns(asked(of, float(batch), float(isl), float(osl)))
    more = columns(asked(of, float(batch + more_batch), float(isl + more_isl), float(osl + more_osl)))
    assert all(more[key] >= less[key] * (1 - 1e-12) for key in less)


@pytest.mark.parametrize("name", ["dense", "mla_lite", "sliding_moe", "hybrid"])
def test_more_layers_take_longer(engine_of: EngineOf, name: str) -> None:
    of = engine(engine_of, name)
    model = of.setup.model
    times = []
    for n in (1, len(model.layers) * 2, model.n_layers, model.n_layers * 2):
        pattern = (model.pattern * 2)[:n]
        setup = of.setup.__class__(
            **{f: getattr(of.setup, f) for f in of.setup.__dataclass_fields__}
            | {"model": model.model_copy(update={"pattern": pattern})}
        )
        times.append(columns(asked(Engine(setup, of.calibration), 4.0, 900.0, 50.0)))
    for key in ("ttft", "tpot", "e2e"):
        values = [float(t[key]) for t in times]
        assert values == sorted(values)
        assert values[0] < values[-1]


# --- monotone in the hardware ----------------------------------------------------------------------------------------


def altered(
    of: Engine, *, memory: float = 1.0, arithmetic: float = 1.0, link: float = 1.0, latency: float = 1.0
) -> Engine:
    """Return the engine on hardware with figures multiplied."""

    def figure(holder: Any, name: str, factor: float) -> Any:
        old = getattr(holder, name)
        return (
            holder
            if old is None
            else holder.model_copy(update={name: old.model_copy(update={"value": old.value * factor})})
        )

    def rates(holder: Any) -> Any:
        if holder is None:
            return None
        return holder.model_copy(
            update={"rates": tuple(r.model_copy(update={"value": r.value * arithmetic}) for r in holder.rates)}
        )

    def device(d: Device) -> Device:
        levels = tuple(figure(level, "bandwidth", memory) for level in d.memory)
        return d.model_copy(update={"memory": levels, "matrix": rates(d.matrix), "vector": rates(d.vector)})

    def system(s: System | None) -> System | None:
        if s is None:
            return None
        fabrics = tuple(figure(figure(f, "bandwidth_per_direction", link), "latency", latency) for f in s.fabrics)
        return s.model_copy(update={"fabrics": fabrics})

    fields = {f: getattr(of.setup, f) for f in of.setup.__dataclass_fields__}
    fields |= {"devices": tuple(device(d) for d in of.setup.devices), "system": system(of.setup.system)}
    return Engine(of.setup.__class__(**fields), of.calibration)


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_better_hardware_is_never_slower(engine_of: EngineOf, name: str, calibration: str) -> None:
    of = engine(engine_of, name, calibration)
    batch = np.array([1.0, 16.0, 256.0])
    base = columns(asked(of, batch, 1500.0, 200.0))
    for changes in ({"memory": 1.5}, {"arithmetic": 1.5}, {"link": 2.0}, {"latency": 0.5}):
        better = columns(asked(altered(of, **changes), batch, 1500.0, 200.0))
        for key, values in better.items():
            assert np.all(values <= base[key] * (1 + 1e-12)), (changes, key)
    doubled = columns(asked(altered(of, memory=2.0, arithmetic=2.0, link=2.0, latency=0.5), batch, 1500.0, 200.0))
    # Small batches may wait for the host alone; reading 256 prompts never does.
    assert doubled["ttft"][-1] < base["ttft"][-1]
    assert all(np.all(doubled[key] >= base[key] / 2 * (1 - 1e-12)) for key in base)


def test_ideal_time_is_inverse_in_all_rates(engine_of: EngineOf) -> None:
    for name in ("dense", "dense_tp4", "mla_ep8", "dense_pp4"):
        of = engine(engine_of, name, "ideal")
        base, double = (columns(asked(e, 8.0, 900.0, 90.0)) for e in (of, altered(of, memory=2, arithmetic=2, link=2)))
        assert all(double[key] == pytest.approx(base[key] / 2, rel=1e-12) for key in base)


# --- bounds ----------------------------------------------------------------------------------------------------------


SHIPPED = Catalogue((builtin_home(),))
DEVICES = [name for name, header in SHIPPED.headers("hardware") if header.get("kind") != "system"]
ROWS = (np.array([1.0, 8.0, 200.0]), np.array([100.0, 2000.0, 9000.0]), np.array([300.0, 20.0, 100.0]))


def bounded(engine_of: EngineOf, *names: str, **options: Any) -> None:
    """Check that nothing beats the hard bound, and a prior never the datasheet."""
    bound, ideal, prior = (columns(asked(engine_of(*names, calibration=c, **options), *ROWS)) for c in CALIBRATIONS)
    for key in ideal:
        assert np.all(bound[key] > 0)
        assert np.all(bound[key] <= ideal[key] * (1 + 1e-12)), key
        assert np.all(ideal[key] <= prior[key] * (1 + 1e-12)), key


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_beats_the_bound_on_any_device(engine_of: EngineOf, device: str) -> None:
    for model in ("llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b"):
        bounded(engine_of, model, device)


@pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
def test_nothing_beats_the_bound_in_any_layout(engine_of: EngineOf, name: str) -> None:
    made = dict(DEPLOYMENTS[name])
    bounded(engine_of, made.pop("model"), made.pop("device"), **made)


@pytest.mark.parametrize(
    ("device", "tp", "system"),
    [
        ("h100-sxm", 8, "hgx-h100"), ("ascend-910c-die", 16, "cloudmatrix384-dies"), ("rtx-4090", 8, "8x-rtx-4090"),
        ("ascend-910b4", 8, "atlas-800i-a2-910b4"), ("v100-sxm", 8, "8x-v100-sxm"), ("gb200", 16, "gb200-nvl72"),
    ],
)  # fmt: skip
def test_nothing_beats_the_bound_over_wires(engine_of: EngineOf, device: str, tp: int, system: str) -> None:
    bounded(engine_of, "llama-3.1-70b", device, layout=Layout(tp=tp), system=system)


def test_the_datasheet_bounds_by_hand(engine_of: EngineOf) -> None:
    """Ideal decode takes at least its weights over the bandwidth, ideal prefill its flop over the peak."""
    of = engine_of("llama-3.1-8b", "a100-80gb-sxm", calibration="ideal")
    found = columns(asked(of, 1.0, 4096.0, 2.0))
    n_read = 8_030_261_248 - 128_256 * 4096
    assert found["tpot"] > 2 * n_read / 2.039e12
    assert found["tpot"] < 1.1 * (2 * n_read / 2.039e12)
    # 6.98e9 weights in layers x 2 flop x 4096 tokens, and half a square of attention.
    flop = 2 * 4096 * 32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336) + 32 * 2 * 32 * 256 * 4096 * 4097 / 2
    assert found["ttft"] > flop / 312e12
    assert found["ttft"] < 1.1 * flop / 312e12


# --- absent things ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "mla_lite", "sliding_moe", "hybrid", "compressed", "sparse_mla", "fp8"])
def test_one_device_has_no_link_share(engine_of: EngineOf, name: str) -> None:
    found = asked(engine(engine_of, name, layout=Layout()), 8.0, 900.0, 90.0)
    assert Bound.LINK not in bound_shares(found.e2e)


def test_fewer_bits_never_take_longer_when_ideal(engine_of: EngineOf) -> None:
    """On the datasheet roofline; a real kernel may lose by expanding weights."""
    for model in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"):
        rows = [
            columns(asked(engine_of(model, "h100-sxm", scheme=scheme, calibration="ideal"), *ROWS))
            for scheme in ("none", "int8-weight-only", "awq-int4-g128")
        ]
        for key in ("ttft", "tpot", "e2e"):
            assert np.all(rows[1][key] <= rows[0][key] * (1 + 1e-12))
            assert np.all(rows[2][key] <= rows[1][key] * (1 + 1e-12))


def test_a_narrower_cache_never_takes_longer(engine_of: EngineOf) -> None:
    wide, narrow = (columns(asked(engine(engine_of, "dense", kv_dtype=kv), *ROWS)) for kv in ("bf16", "fp8"))
    assert all(np.all(narrow[key] <= wide[key]) for key in wide)
    assert np.all(narrow["tpot"] < wide["tpot"])


FITS = [name for name in SHIPPED.paths("calibration") if name not in CALIBRATIONS]


@pytest.mark.parametrize("name", FITS)
def test_no_fit_beats_the_bound(engine_of: EngineOf, catalogue: Catalogue, name: str) -> None:
    """A fit may exceed the datasheet (cards run above their listed clock), but never what the silicon may do."""
    fit = catalogue.calibration(name)
    combined = catalogue.calibration("prior").with_fits([fit])
    for model in ("llama-3.1-8b", "qwen2.5-7b"):
        bound = engine_of(model, fit.device, calibration="hard-bound")
        found, least = columns(asked(Engine(bound.setup, combined), *ROWS)), columns(asked(bound, *ROWS))
        for key in found:
            assert np.all(found[key] >= least[key] * (1 - 1e-12)), key


@pytest.mark.parametrize("name", FITS)
def test_time_never_falls_under_a_fit(engine_of: EngineOf, catalogue: Catalogue, name: str) -> None:
    fit = catalogue.calibration(name)
    combined = catalogue.calibration("prior").with_fits([fit])
    for model in ("llama-3.1-8b", "deepseek-v2-lite"):
        of = Engine(engine_of(model, fit.device).setup, combined)
        for found in (
            asked(of, np.arange(1.0, 300.0), 1000.0, 100.0),
            asked(of, 3.0, np.unique(np.floor(np.geomspace(1, 30_000, 200))), 100.0),
        ):
            for key, values in columns(found).items():
                assert never_falls(values), key
