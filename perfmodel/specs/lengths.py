"""How long the requests of a known set of prompts are: log-normal lengths, each figure with its source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import CountFigure, Spec, source_keys

__all__ = ["LengthSet"]


class LengthSet(Spec):
    """Mean tokens of prompts and answers, and the standard deviations of their logarithms."""

    kind: Literal["lengths"] = "lengths"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    names: tuple[str, ...] = ()
    sources: dict[str, str] = Field(min_length=1)
    input_tokens: CountFigure
    input_sigma: CountFigure
    output_tokens: CountFigure
    output_sigma: CountFigure
    most_tokens: CountFigure
    """Longer prompts and answers are cut to this."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_complete(self) -> LengthSet:
        missing = sorted(set(source_keys(self.model_dump())) - set(self.sources))
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        if min(self.input_tokens.value, self.output_tokens.value, self.most_tokens.value) < 1:
            raise ValueError("prompts and answers have at least one token")
        if min(self.input_sigma.value, self.output_sigma.value) <= 0:
            raise ValueError("the standard deviation of a logarithm is above 0")
        return self
