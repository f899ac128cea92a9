"""Importers: one file a foreign format, all with `parse(text, *, context) -> Imported`, listed in `registry`."""
