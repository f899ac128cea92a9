"""Variations: axes as text, fields of question and deployment, and what cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfmodelError, SpecError, UnknownNameError
from perfmodel.specs.deployment import Deployment
from perfmodel.step.question import Question
from perfmodel.step.variation import parsed_axes, variations, varied

ASKED = Question(hardware="h100-sxm", model="llama-3.1-8b", deployment=Deployment(tp=2))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("tp=1,2,4", "tp", ("1", "2", "4")),
        ("batch=1:16:x4", "batch", ("1", "4", "16")),
        ("isl=100:250:50", "input_tokens", ("100", "150", "200", "250")),
        ("osl=3:5", "output_tokens", ("3", "4", "5")),
        ("batch=1:3,10", "batch", ("1", "2", "3", "10")),
        ("--max-num-seqs=8", "max_num_seqs", ("8",)),
        ("concurrency=8", "batch", ("8",)),
        ("q=none,fp8", "quantization", ("none", "fp8")),
        ("util=0.5:0.9:0.2", "gpu_memory_utilization", ("0.5", "0.7", "0.9")),
        ("hardware=8xh100-sxm", "hardware", ("8xh100-sxm",)),
    ],
)
def test_axes_by_hand(text: str, name: str, values: tuple[str, ...]) -> None:
    assert parsed_axes([text]) == {name: values}


@pytest.mark.parametrize(
    "text",
    ["tp", "tp=", "=1", "batch=1:2:0", "batch=1:2:-1", "batch=2:1", "batch=1:9:x1", "batch=0:9:x2", "batch=a:b",
     "batch=1:1e13", "batch=1:nan", "batch=nan:2", "batch=1:inf", "batch=1:2:x", ""],
)  # fmt: skip
def test_axes_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(PerfmodelError):
        parsed_axes([text])


def test_axes_are_known_and_given_once() -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        parsed_axes(["quantisation=fp8"])
    with pytest.raises(SpecError, match="twice"):
        parsed_axes(["isl=1", "input_tokens=2"])


def test_fields_go_where_they_belong() -> None:
    found = varied(ASKED, {"batch": "8", "tp": "4", "quantization": "none", "enforce_eager": "on", "runtime": "none"})
    assert (found.batch, found.deployment.tp) == (8.0, 4)
    assert found.deployment.quantization == "none"  # no quantisation, not nothing stated
    assert found.deployment.enforce_eager is True
    assert found.runtime is None
    assert found.hardware == "h100-sxm"
    assert ASKED.batch is None


@pytest.mark.parametrize(
    "changes", [{"tp": "two"}, {"tp": "1.5"}, {"batch": "many"}, {"enforce_eager": "perhaps"}, {"tp": "0"}]
)
def test_values_of_the_wrong_kind_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        varied(ASKED, changes)


def test_speculation_is_compared_with_none() -> None:
    drafting = Question(hardware="l4", deployment=Deployment(speculative_tokens=1), acceptance_length=1.8)
    for word in ("0", "none"):
        plain = varied(drafting, {"speculative_tokens": word})
        assert (plain.deployment.speculative_tokens, plain.acceptance_length) == (None, None)
    assert varied(drafting, {"speculative_tokens": "2"}).acceptance_length == 1.8


def test_every_combination_once() -> None:
    found = list(variations(ASKED, {"tp": ("1", "2"), "batch": ("1", "4", "16")}))
    assert [tuple(changes.values()) for changes, _ in found] == [
        ("1", "1"), ("1", "4"), ("1", "16"), ("2", "1"), ("2", "4"), ("2", "16"),
    ]  # fmt: skip
    assert [(q.deployment.tp, q.batch) for _, q in found][-1] == (2, 16.0)
    assert list(variations(ASKED, {})) == [({}, ASKED)]


@given(st.lists(st.text(max_size=25), max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_or_refused(texts: list[str]) -> None:
    try:
        axes = parsed_axes(texts)
    except PerfmodelError:
        return
    assert all(values for values in axes.values())
