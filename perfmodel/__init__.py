"""perfmodel: how fast a language model runs on given hardware, what limits it, and whether it fits."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("perfmodel")
except PackageNotFoundError:  # a bare checkout on the path
    __version__ = "0+unknown"

__all__ = ["__version__"]
