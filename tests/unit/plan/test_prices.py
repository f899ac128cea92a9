"""Prices: as stated, else of the device file, else not known."""

from __future__ import annotations

import pytest

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.plan.prices import price_of, prices_from, usd_per_hour
from perfmodel.specs.catalogue import Catalogue


@pytest.mark.parametrize("text", ["2.5", "2.5/h", "2.5 /h", "$2.5/h", "2.5 USD/h", "2.5USD/hour", "2.5 $/h"])
def test_spellings(text: str) -> None:
    assert usd_per_hour(text, where="x") == 2.5


@pytest.mark.parametrize("text", ["", "cheap", "-1/h", "0", "2.5 EUR/h", "nan"])
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(SpecError, match="price"):
        usd_per_hour(text, where="--price")


def test_names_are_those_of_the_catalogue(catalogue: Catalogue) -> None:
    assert prices_from(catalogue, ["a100=2/h", "dgx-h100=3"]) == {"a100-80gb-sxm": 2.0, "h100-sxm": 3.0}
    with pytest.raises(SpecError, match="twice"):
        prices_from(catalogue, ["a100=2", "a100-80gb-sxm=3"])
    with pytest.raises(UnknownNameError):
        prices_from(catalogue, ["a1000000=2"])
    with pytest.raises(SpecError, match="device=price"):
        prices_from(catalogue, ["2.5"])


def test_a_stated_price_wins_and_a_lacking_one_is_none(catalogue: Catalogue) -> None:
    a100, h20 = catalogue.device("a100-80gb-sxm"), catalogue.device("h20")
    assert price_of(a100, {}).value_usd_per_hour == 1.3
    assert "mercatus" in price_of(a100, {}).source
    assert price_of(a100, {"a100-80gb-sxm": 9.0}).value_usd_per_hour == 9.0
    assert price_of(h20, {}).value_usd_per_hour is None
