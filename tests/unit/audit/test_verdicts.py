"""The rules of the audit on made-up claims: a verdict follows from the figure's place and from nothing else."""

from __future__ import annotations

from typing import get_args

import pytest

from perfmodel.errors import SpecError
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.validate.audit.claims import AnyCheck
from perfmodel.validate.audit.run import audit, read_claims, shipped_claims, template_text
from perfmodel.validate.audit.verdict import Verdict, gravest, kindest
from tests.unit.audit.claims_parts import CARD, claim, document, judged, only

REPRODUCED, PLAUSIBLE, ITSELF = Verdict.REPRODUCED, Verdict.PLAUSIBLE, Verdict.CONTRADICTS_ITSELF
PHYSICS, PUBLIC, UNKNOWN = Verdict.CONTRADICTS_PHYSICS, Verdict.CONTRADICTS_SPECIFICATION, Verdict.NOT_TESTABLE


def test_a_contradiction_outweighs_and_the_untestable_does_not() -> None:
    assert gravest([REPRODUCED, PHYSICS, PUBLIC]) is PHYSICS
    assert gravest([REPRODUCED, UNKNOWN]) is REPRODUCED
    assert gravest([UNKNOWN, UNKNOWN]) is UNKNOWN
    assert kindest([PHYSICS, PLAUSIBLE, UNKNOWN]) is PLAUSIBLE


def test_the_verdict_on_a_rate_goes_from_band_to_physics_as_the_rate_grows(catalogue: Catalogue) -> None:
    check = {"kind": "throughput", "setup": "card", "figure": "output_tokens_per_s"}
    first = only(catalogue, check, output_tokens_per_s=100)
    rates = (0.5 * first.low, first.model, 1.02 * first.high, 10.0 * first.high)
    order = [only(catalogue, check, output_tokens_per_s=round(rate, 1)).verdict for rate in rates]
    assert order == [PLAUSIBLE, REPRODUCED, PLAUSIBLE, PHYSICS]


def test_what_the_model_says_of_a_claim_does_not_depend_on_the_claim(catalogue: Catalogue) -> None:
    for kind, figure, values in (
        ("throughput", "output_tokens_per_s", (100, 900, 9e5)),
        ("ttft", "ttft_s", ("1 ms", "1 s", "1 min")),
        ("memory_peak", "memory_bytes", ("20 GB", "77 GB", "90 GB")),
        ("capacity", "requests_per_s", (1, 9, 9000)),
    ):
        found = [only(catalogue, {"kind": kind, "setup": "card", "figure": figure}, **{figure: v}) for v in values]
        assert len({(f.model, f.high) for f in found}) == 1 or kind == "memory_peak"
        assert len({f.model for f in found}) == 1


def test_a_first_token_before_the_prompt_can_be_read_breaks_physics(catalogue: Catalogue) -> None:
    """2 x 8.03e9 x 1024 flop at 312 Tflop/s are 53 ms; without the 1.05e9 of the two tables 46 ms."""
    check = {"kind": "ttft", "setup": "card", "figure": "ttft_s"}
    assert only(catalogue, check, ttft_s="40 ms").verdict is PHYSICS
    assert only(catalogue, check, ttft_s="400 ms").verdict is PLAUSIBLE


def test_memory_of_an_engine_that_reserves_a_share(catalogue: Catalogue) -> None:
    """0.9 x 79.25 GiB = 76.58 GB; weights of 8.03e9 x 2 bytes = 16.06 GB; the device has 85.09 GB."""
    check = {"kind": "memory_peak", "setup": "card", "figure": "memory_bytes"}
    expected = {"77.0 GB": REPRODUCED, "30.0 GB": ITSELF, "15.0 GB": PHYSICS, "90.0 GB": PHYSICS}
    assert {size: only(catalogue, check, memory_bytes=size).verdict for size in expected} == expected


def test_memory_of_an_engine_that_takes_what_it_needs(catalogue: Catalogue) -> None:
    """Plain PyTorch reserves no share: weights of 16.06 GB and what the load needs up to the whole budget."""
    setups = {"plain": {**CARD, "runtime": "pytorch-eager"}}
    check = {"kind": "memory_peak", "setup": "plain", "figure": "memory_bytes"}

    def of(size: str) -> Verdict:
        return judged(catalogue, claim(check, figures={"memory_bytes": size}), setups=setups).verdict

    assert {size: of(size) for size in ("15.0 GB", "16.1 GB", "30.0 GB", "90.0 GB")} == {
        "15.0 GB": PHYSICS,
        "16.1 GB": PLAUSIBLE,
        "30.0 GB": REPRODUCED,
        "90.0 GB": PHYSICS,
    }


def test_a_formula_is_judged_by_the_digits_printed(catalogue: Catalogue) -> None:
    """184.2 / 116.8 - 1 = 0.5771: 0.57 and 0.58 both follow from it (cut and rounded), 0.55 does not."""
    check = {"kind": "arithmetic", "figure": "gain_frac", "formula": "a / b - 1", "inputs": {"a": "a", "b": "b"}}
    found = {g: only(catalogue, check, gain_frac=g, a=184.2, b=116.8).verdict for g in (0.57, 0.58, 0.55)}
    assert found == {0.57: REPRODUCED, 0.58: REPRODUCED, 0.55: ITSELF}
    assert only(catalogue, check, gain_frac=0.5, a=1, b=0).verdict is not REPRODUCED


def test_limits_hold_at_the_edge(catalogue: Catalogue) -> None:
    most = {"kind": "limit", "figure": "a", "at_most": "b", "inputs": {"b": "b"}}
    least = {"kind": "limit", "figure": "a", "at_least": "b", "inputs": {"b": "b"}}
    assert only(catalogue, most, a=2.0, b=2.0).verdict is REPRODUCED
    assert only(catalogue, most, a=2.2, b=2.0).verdict is ITSELF
    assert only(catalogue, least, a=1.8, b=2.0).verdict is ITSELF


def test_shares_must_mean_one_whole(catalogue: Catalogue) -> None:
    """127.4 / 0.38 = 335.3 and 42.1 / 0.13 = 323.8: within the digits of the shares one whole. 42.1 / 0.20 is not."""
    part = [{"value": "a_s", "share": "a_frac"}, {"value": "b_s", "share": "b_frac"}]
    figures = {"a_s": "127.4 ms", "a_frac": 0.38, "b_s": "42.1 ms"}
    assert only(catalogue, {"kind": "shares", "parts": part}, **figures, b_frac=0.13).verdict is REPRODUCED
    assert only(catalogue, {"kind": "shares", "parts": part}, **figures, b_frac=0.20).verdict is ITSELF


def test_same_figures_and_what_may_part_them(catalogue: Catalogue) -> None:
    check = {"kind": "same", "values": ["a", "b"], "means": "one thing"}
    assert only(catalogue, check, a=3.27, b=3.27).verdict is REPRODUCED
    assert only(catalogue, check, a=3.8, b=3.27).verdict is ITSELF
    assert only(catalogue, {**check, "conditions": "another program"}, a=3.8, b=3.27).verdict is PLAUSIBLE


def test_specifications_of_devices_models_and_facts(catalogue: Catalogue) -> None:
    def spec(of: str, quantity: str, **figure: object) -> Verdict:
        (name,) = figure
        return only(catalogue, {"kind": "spec", "of": of, "quantity": quantity, "figure": name}, **figure).verdict

    assert spec("ascend-910b2", "dram_bytes_per_s", x_bytes_per_s="1.6 TB/s") is REPRODUCED
    assert spec("ascend-910b2", "dram_bytes_per_s", x_bytes_per_s="1638 GB/s") is REPRODUCED, "another public source"
    assert spec("ascend-910b2", "dram_bytes_per_s", x_bytes_per_s="2048 GB/s") is PUBLIC
    assert spec("ascend-910b2", "n_cores", n=24) is REPRODUCED
    assert spec("ascend-910b2", "smell", n=24) is UNKNOWN
    assert spec("deepseek-v3", "n_layers", n=61) is REPRODUCED
    assert spec("xeon-platinum-8480c", "n_cores", n=64) is PUBLIC
    assert spec("no-such-thing", "n_cores", n=64) is UNKNOWN


def test_bandwidth_beyond_every_memory_breaks_physics(catalogue: Catalogue) -> None:
    """A 910B2: 1.6 (1.8 in one source) TB/s of HBM, 7 TB/s of L2."""
    check = {"kind": "bandwidth", "device": "ascend-910b2", "figure": "x_bytes_per_s"}
    rates = {"1.4 TB/s": REPRODUCED, "3.0 TB/s": PLAUSIBLE, "8.0 TB/s": PHYSICS}
    assert {r: only(catalogue, check, x_bytes_per_s=r).verdict for r in rates} == rates
    assert only(catalogue, {**check, "level": "dram"}, x_bytes_per_s="3.0 TB/s").verdict is PHYSICS


def test_the_limit_of_a_decode_step(catalogue: Catalogue) -> None:
    def of(resource: str, batch: int) -> Verdict:
        check = {"kind": "limit_cause", "setup": "card", "resource": resource, "from_batch": batch}
        return only(catalogue, check).verdict

    assert of("memory bandwidth", 1) is REPRODUCED
    assert of("host link", 16) is PHYSICS
    assert of("interconnect", 16) is PHYSICS, "one device has nobody to talk to"
    assert of("compute", 1) is PHYSICS


def test_instances_that_could_have_stood_alone(catalogue: Catalogue) -> None:
    check = {"kind": "placement", "n_instances": ["n1", "n4"], "rates": ["r1", "r4"], "n_devices": "devices"}
    even = {"n1": 1, "n4": 4, "devices": 8}
    assert only(catalogue, check, **even, r1=3.0, r4=3.0).verdict is REPRODUCED
    assert only(catalogue, check, **even, r1=3.0, r4=2.5).verdict is PLAUSIBLE


def test_the_kindest_reading_counts_and_the_others_are_told(catalogue: Catalogue) -> None:
    check = {"kind": "limit", "figure": "a", "at_most": "2"}
    other = {"text": "a slip", "figures": {"a": 1.0}}
    found = judged(catalogue, claim(check, figures={"a": 3.0}, reading="as it stands", readings=[other]))
    assert (found.verdict, found.reading) == (REPRODUCED, "a slip")
    assert found.other_readings == (("as it stands", ITSELF),)


def test_what_is_not_stated_makes_a_claim_untestable_and_is_named(catalogue: Catalogue) -> None:
    setups = {"bare": {"hardware": "a100-80gb-sxm"}, "card": CARD, "odd": {**CARD, "model": "no-such-model"}}
    for check, word in (
        ({"kind": "throughput", "setup": "bare", "figure": "x"}, "no model"),
        ({"kind": "throughput", "setup": "card", "figure": "y"}, "no y"),
        ({"kind": "throughput", "setup": "odd", "figure": "x"}, "no-such-model"),
        ({"kind": "inputs", "of": "x", "known": {"batch size": None}}, "batch size"),
        ({"kind": "requires", "software": "vllm-0.6.3", "beside": {"numpy": "1.0"}}, "numpy"),
        ({"kind": "runs_on", "software": "vllm-0.6.3", "hardware": "t4"}, "runs on"),
    ):
        found = judged(catalogue, claim(check, figures={"x": 1.0}), setups=setups)
        assert found.verdict is UNKNOWN, check
        assert word in found.deciding.reason
    assert judged(catalogue, claim(figures={"x": 1.0})).verdict is UNKNOWN


@pytest.mark.parametrize(
    ("check", "figures"),
    [
        ({"kind": "arithmetic", "figure": "x", "formula": "a / b", "inputs": {"a": "a", "b": "b"}}, {"b": 0}),
        ({"kind": "perplexity_rise", "scheme": "awq-int4-g128", "baseline": "b", "figure": "x"}, {"b": 0}),
        ({"kind": "issue_change", "before": "a", "after": "b", "figure": "x"}, {"b": 0}),
        ({"kind": "limit", "figure": "x", "at_most": "exp(a)", "inputs": {"a": "a"}}, {"a": "1e300"}),
        ({"kind": "placement", "n_instances": ["a", "a"], "rates": ["x", "x"], "n_devices": "b"}, {"b": 0.5}),
    ],
)
def test_figures_that_give_no_number_are_not_testable(
    catalogue: Catalogue, check: dict[str, object], figures: dict[str, object]
) -> None:
    assert only(catalogue, check, **{"x": 1.0, "a": 1.0, "b": 1.0, **figures}).verdict is UNKNOWN


def test_a_check_that_refers_to_nothing_is_a_fault_of_the_file(catalogue: Catalogue) -> None:
    for check in (
        {"kind": "limit", "figure": "nobody.x", "at_most": "2"},
        {"kind": "throughput", "setup": "nowhere", "figure": "x"},
    ):
        with pytest.raises(SpecError, match=r"nobody|nowhere"):
            audit(document(claim(check, figures={"x": 1.0})), catalogue)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"checks": [{"kind": "vibes"}]}, "vibes"),
        ({"checks": [{"kind": "limit", "figure": "x"}]}, "at_most"),
        ({"figures": {"ttft_s": "12 GB"}}, "GB"),
        ({"readings": [{"text": "t", "figures": {"ttft_s": "12 GB"}}]}, "GB"),
        ({"verdict": "reproduced"}, "verdict"),
        (
            {"checks": [{"kind": "placement", "n_instances": ["x", "x"], "rates": ["x", "x", "x"], "n_devices": "x"}]},
            "2 n_instances, 3 rates",
        ),
        ({"id": "no blanks please"}, "id"),
    ],
)
def test_faults_of_a_claims_file_are_named(changes: dict[str, object], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        document({**claim(figures={"x": 1.0}), **changes})


def test_ids_are_unique() -> None:
    with pytest.raises(SpecError, match="share an id: it"):
        document(claim(), claim())


def test_the_shipped_claims_hold_no_verdict() -> None:
    text = shipped_claims().read_text(encoding="utf-8")
    assert len(read_claims(shipped_claims()).claims) == 64
    for verdict in Verdict:
        if verdict is not PLAUSIBLE:
            assert f"verdict: {verdict.value}" not in text
    assert "verdict" not in text


def test_every_kind_of_check_is_documented_and_used() -> None:
    """The page lists all kinds, and the shipped files or the tests of rules use each."""
    union = get_args(get_args(AnyCheck)[0])
    kinds = {get_args(check.model_fields["kind"].annotation)[0] for check in union}
    page = (builtin_home() / "docs" / "audit.md").read_text(encoding="utf-8")
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()
    used = shipped_claims().read_text(encoding="utf-8") + template_text()
    assert {kind for kind in kinds if f"kind: {kind}" not in used} == set()


@pytest.mark.parametrize(
    ("points", "largest"),
    [
        ((0, 4), "largest error 50 % of a point"),  # 2 x gives 2 and 6: 6 / 4 - 1, the point at 0 has no share
        ((0, 0), "all points are 0"),
        ((2, 8), "largest error 25 % of a point"),  # 2 and 6: 1 - 6 / 8
        ((2e300, 8e300), "largest error 100 % of a point"),  # their squares are beyond all numbers
    ],
)
def test_a_fitted_point_may_be_zero_or_huge(catalogue: Catalogue, points: tuple[float, float], largest: str) -> None:
    check = {"kind": "formula_fit", "formula": "2 * x", "x_name": "x", "x": [1, 3], "y": ["a", "b"], "parameters": {}}
    found = only(catalogue, check, a=points[0], b=points[1])
    assert found.verdict is ITSELF
    assert largest in found.working
