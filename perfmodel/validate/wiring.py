"""Which system joins the devices of a measured row: chosen by device, device count and the stated link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.system import Fabric, System

__all__ = ["wired_system"]

_LINKS: Final[Mapping[str, Callable[[Fabric], bool]]] = {
    "nvswitch": lambda f: f.kind == "nvlink" and f.topology == "switch",
    "nvlink-pair": lambda f: f.kind == "nvlink" and f.topology in ("pair", "full_mesh", "switch"),
    "nvlink-bridge": lambda f: f.kind == "nvlink" and f.topology == "pair",
    "nvlink-mesh": lambda f: f.kind == "nvlink" and f.topology in ("full_mesh", "ring"),
    "nvlink": lambda f: f.kind == "nvlink",
    "pcie": lambda f: f.kind.startswith("pcie"),
    "hccs": lambda f: f.kind == "hccs",
    "ub": lambda f: f.kind == "ub",
    "xgmi": lambda f: f.kind == "xgmi",
    "network": lambda f: f.latency_class == "network",
    "rdma": lambda f: f.latency_class == "network",
}
"""What a link word of a table asks of a fabric."""


def _fits(system: System, link: str) -> bool:
    """Tell whether each word of the link names a fabric, and the innermost one is the first word's."""
    words = [word for word in link.split("+") if word in _LINKS]
    if not words:
        return True
    return _LINKS[words[0]](system.fabrics[0]) and all(any(_LINKS[w](f) for f in system.fabrics) for w in words)


def wired_system(catalogue: Catalogue, device: Device, n_devices: int, link: str = "") -> System | None:
    """Return the system for `n_devices` of a device on a link; None for one device, or where no system is known.

    The usual system unless the link names another kind of fabric; then the smallest catalogued one that has it.
    """
    if n_devices <= 1:
        return None
    usual = catalogue.usual_system(device, n_devices)
    if not link or (usual is not None and _fits(usual, link)):
        return usual
    others = [
        system
        for name, header in catalogue.headers("hardware")
        if header.get("kind") == "system"
        for system in [catalogue.system(name)]
        if system.device == device.name and system.fabrics[-1].n_devices >= n_devices and _fits(system, link)
    ]
    return min(others, key=lambda s: s.fabrics[-1].n_devices, default=usual)
