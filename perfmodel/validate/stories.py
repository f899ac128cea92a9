"""Why predictions of some groups are off, as far as somebody found out: data beside the measurement tables."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.figures import Spec
from perfmodel.specs.files import read_spec

__all__ = ["Stories", "Story", "read_stories"]

_FILE = "validation-stories.yaml"


class Story(Spec):
    """One story: the groups that it is about (an empty word means any) and what was found."""

    kind: str = ""
    device: str = ""
    runtime: str = ""
    cause: Literal["data", "model", "calibration", "unknown"]
    text: str

    def is_about(self, words: dict[str, str]) -> bool:
        """Tell whether a group of that kind, device and runtime is meant; a word may end in * for any ending."""
        for name in ("kind", "device", "runtime"):
            wanted, have = getattr(self, name), words.get(name, "")
            if wanted.endswith("*"):
                if not have.startswith(wanted[:-1]):
                    return False
            elif wanted and wanted != have:
                return False
        return True


class Stories(Spec):
    """All stories, the most particular first."""

    kind: Literal["validation_stories"]
    stories: tuple[Story, ...]

    def about(self, words: dict[str, str]) -> Story | None:
        """Return the first story about a group."""
        return next((story for story in self.stories if story.is_about(words)), None)


def read_stories(catalogue: Catalogue) -> Stories:
    """Return the stories of the first home that has some."""
    for home in catalogue.homes:
        path: Path = home / "hardware" / "measurements" / _FILE
        if path.is_file():
            return read_spec(Stories, path)
    return Stories(kind="validation_stories", stories=())
