"""What a reference to a model says: a path, or a name with suffixes that mean a weight scheme or a tuning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["local_path", "name_from_path", "without_suffix"]

_QUANTISED_SUFFIX: Final = (
    (re.compile(r"-(gptq)[-_]?int8$"), "gptq-int8"),
    (re.compile(r"-(gptq)([-_]?(int4|4bit))?(-128g)?$"), "gptq-int4-g128"),
    (re.compile(r"-(awq)([-_]?(int4|4bit))?(-marlin)?$"), "awq-int4-g128"),
    (re.compile(r"-(quantized\.)?w8a8(-int8)?$"), "w8a8"),
    (re.compile(r"-(quantized\.)?w4a16$"), "marlin-int4-g128"),
    (re.compile(r"-(fp8)(-dynamic)?(-kv)?$"), "fp8"),
    (re.compile(r"-(nvfp4|fp4)(-v\d+)?$"), "nvfp4"),
    (re.compile(r"-(mxfp4)$"), "mxfp4"),
    (re.compile(r"-(bnb-4bit|unsloth-bnb-4bit|nf4)$"), "bnb-nf4"),
    (re.compile(r"-(q4_k_m|q8_0|q4_0|q6_k|q5_k_m)(-gguf)?$"), r"\1"),
)
_TUNING_SUFFIX: Final = re.compile(
    r"-(instruct|chat|base|it|hf|bf16|fp16|thinking|0528|0324|v0\.[123]|2507|2024\d{4})$"
)


def local_path(reference: str) -> Path | None:
    """Return the reference as a path where the file system can be asked about it, else None."""
    try:
        path = Path(reference).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def without_suffix(name: str) -> tuple[str, str | None]:
    """Return the name without its last checkpoint suffix, and the weight scheme that the suffix means."""
    for pattern, scheme in _QUANTISED_SUFFIX:
        match = pattern.search(name)
        if match:
            return name[: match.start()], match.expand(scheme)
    return _TUNING_SUFFIX.sub("", name), None


def name_from_path(path: Path) -> str:
    """Return the name of a model that stands in a file or folder: the folder of a config.json, else the file's own."""
    stem = (
        path.resolve().name if path.is_dir() else (path.resolve().parent.name if path.stem == "config" else path.stem)
    )
    return re.sub(r"[^a-z0-9._+-]", "-", stem.lower()).strip("-._+") or "model"
