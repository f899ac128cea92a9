"""How the tests of the audit make small claims files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.files import checked
from perfmodel.validate.audit.claims import ClaimsDocument
from perfmodel.validate.audit.run import audit
from perfmodel.validate.audit.verdict import Finding, Judgement

CARD: Mapping[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": "a100-80gb-sxm",
    "runtime": "vllm-0.11",
    "batch": 16,
    "input_tokens": 1024,
    "output_tokens": 256,
}


def claim(*checks: Mapping[str, Any], name: str = "it", figures: Mapping[str, Any] | None = None, **more: Any) -> Any:
    return {
        "id": name,
        "section": "test",
        "kind": "measured",
        "text": "made up",
        "figures": dict(figures or {}),
        "checks": list(checks),
        **more,
    }


def document(*claims: Any, setups: Mapping[str, Any] | None = None) -> ClaimsDocument:
    data = {"kind": "claims", "title": "t", "source": "s", "setups": dict(setups or {}), "claims": list(claims)}
    return checked(ClaimsDocument, data, "claims")


def judged(catalogue: Catalogue, *claims: Any, setups: Mapping[str, Any] | None = None, of: str = "it") -> Judgement:
    return audit(document(*claims, setups=setups), catalogue).on(of)


def only(catalogue: Catalogue, check: Mapping[str, Any], **figures: Any) -> Finding:
    """The one finding of one check on one claim, with a set-up `card` at hand."""
    (finding,) = judged(catalogue, claim(check, figures=figures), setups={"card": CARD}).findings
    return finding
