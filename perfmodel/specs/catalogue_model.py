"""A catalogue file of a model -> Model or FixedWork, and the entry that a new config.json becomes.

Keys of a file: kind, name, title, hf_id, names, config, structure, published, sources, notes. `like` names another
entry: its config and structure are the base, and the file's own keys are laid over them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from perfmodel.errors import Fault, SpecError
from perfmodel.specs.figures import Spec
from perfmodel.specs.hf.build import model_from_config, validation_faults
from perfmodel.specs.hf.fields import shown
from perfmodel.specs.model import FixedWork, Model, Published

__all__ = ["FixedWorkEntry", "ModelEntry", "catalogue_entry", "catalogue_name", "model_from_catalogue"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]*$")]
Texts = tuple[str, ...]


class ModelEntry(Spec):
    """One file of a language model, as written."""

    kind: Literal["model"]
    name: Name
    title: str = ""
    hf_id: str = ""
    names: Texts = ()
    like: str = ""
    config: dict[str, object] = Field(default_factory=dict)
    structure: dict[str, object] = Field(default_factory=dict)
    published: Published = Published()
    sources: Texts = Field(min_length=1)
    notes: Texts = ()


class FixedWorkEntry(Spec):
    """One file of a network with the same work for every sample, as written."""

    kind: Literal["fixed_work"]
    name: Name
    title: str = ""
    hf_id: str = ""
    names: Texts = ()
    work: FixedWork
    sources: Texts = Field(min_length=1)
    notes: Texts = ()


Resolver = Callable[[str], Mapping[str, object]]


def model_from_catalogue(data: Mapping[str, object], like: Resolver | None = None) -> Model | FixedWork:
    """Return what a catalogue file describes.

    `like` returns the content of another file by its name; it is needed for files that build on one.

    Raises SpecError with every fault of the file.
    """
    if not isinstance(data, Mapping):
        raise SpecError("the model file is empty or no mapping", got=shown(data), expected="keys such as kind and name")
    name = data.get("name")
    try:
        if data.get("kind") == "fixed_work":
            return FixedWorkEntry.model_validate(dict(data)).work
        entry = ModelEntry.model_validate(dict(data))
    except (ValidationError, TypeError) as error:
        faults = validation_faults(error) if isinstance(error, ValidationError) else ()
        raise SpecError(f"the model file of {shown(name)} cannot be used", faults=faults) from error
    config, structure = _laid_over(entry, like, ())
    return model_from_config(
        config,
        name=entry.name,
        structure=structure,
        title=entry.title,
        published=entry.published,
        sources=entry.sources,
        notes=entry.notes,
    )


def _laid_over(
    entry: ModelEntry, like: Resolver | None, above: tuple[str, ...]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return config and structure of an entry on top of those it builds on; a null in it removes a key."""
    if not entry.like:
        return entry.config, entry.structure
    if like is None or entry.like in (*above, entry.name):
        problem = "builds on itself" if like is not None else "builds on another file, and none can be read here"
        raise SpecError(f"{entry.name} {problem}", where="like", got=entry.like)
    try:
        base = ModelEntry.model_validate(dict(like(entry.like)))
    except ValidationError as error:
        raise SpecError(
            f"{entry.like}, on which {entry.name} builds, cannot be used", faults=validation_faults(error)
        ) from error
    config, structure = _laid_over(base, like, (*above, entry.name))
    return {**config, **entry.config}, {**structure, **entry.structure}


def catalogue_name(text: str) -> str:
    """Return a legal catalogue name made from any text.

    >>> catalogue_name("meta-llama/Llama-3.1-8B Instruct")
    'llama-3.1-8b-instruct'
    """
    last = text.strip().rstrip("/").rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9._+-]+", "-", last).strip("-._+")


def catalogue_entry(config: Mapping[str, object], name: str, source: str) -> dict[str, object]:
    """Return the content of a catalogue file for a config.json, checked to be readable.

    Raises SpecError where the config cannot be used, or the name holds no letter or digit.
    """
    canonical = catalogue_name(name)
    if not canonical:
        raise SpecError("the model needs a name", where="name", got=shown(name), expected="letters, digits, . _ + -")
    if not source.strip():
        raise SpecError(
            f"{canonical} needs a source", faults=[Fault("source", "nothing", "where the config comes from")]
        )
    model = model_from_config(config, name=canonical, sources=(source,))
    kept = {key: value for key, value in config.items() if value is not None}
    entry: dict[str, object] = {"kind": "model", "name": canonical, "title": name, "config": kept, "sources": [source]}
    return {**entry, "notes": list(model.warnings)} if model.warnings else entry
