"""The command line: parses, calls, prints. `main` is the entry point."""

from perfmodel.cli.app import main

__all__ = ["main"]
