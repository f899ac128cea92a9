"""Hugging Face config.json -> Model: the public face of the package `perfmodel.specs.hf`."""

from __future__ import annotations

from perfmodel.specs.hf.build import model_from_config
from perfmodel.specs.hf.files import config_from_path, config_from_text
from perfmodel.specs.hf.nesting import language_config

__all__ = ["config_from_path", "config_from_text", "language_config", "model_from_config"]
