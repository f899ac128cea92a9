"""Readers of Hugging Face config.json files, by any spelling of any family."""
