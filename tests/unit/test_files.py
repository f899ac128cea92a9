"""Reading of description files: what a hostile or broken one may not do."""

from __future__ import annotations

import pytest

from perfmodel.errors import SpecError
from perfmodel.specs.files import data_from_text


def test_a_file_that_repeats_itself_without_end_is_refused() -> None:
    """Ten levels of nine references spell out 9^10 values in 300 bytes."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    with pytest.raises(SpecError, match="refers to itself too often"):
        data_from_text("\n".join(levels), "bomb.yaml")


def test_anchors_of_an_ordinary_file_are_followed() -> None:
    text = "a: &one {value: 1}\nb: *one\nc: [*one, *one]"
    assert data_from_text(text, "x.yaml") == {"a": {"value": 1}, "b": {"value": 1}, "c": [{"value": 1}] * 2}


def test_deep_nesting_is_read() -> None:
    assert "a" in data_from_text("a: " + "[" * 400 + "]" * 400, "deep.yaml")


@pytest.mark.parametrize("as_json", [False, True])
def test_bottomless_nesting_is_refused(as_json: bool) -> None:
    text = '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"
    with pytest.raises(SpecError):
        data_from_text(text, "deep", as_json=as_json)
