"""Wiring of a machine from `nvidia-smi topo -m` or `npu-smi info -t topo`: link matrix and system description."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.errors import MeasurementError, SpecError, UnknownNameError
from perfmodel.measure.importers.base import Context, Imported, stem_of
from perfmodel.measure.text import Faults
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.figures import BandwidthFigure, TimeFigure
from perfmodel.specs.system import Fabric

__all__ = ["LinkMatrix", "link_matrix", "parse", "system_description"]

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE: Final = re.compile(r"^(GPU|NPU|Phy-ID)(\d{1,5})$")
_LINK: Final = re.compile(r"^(NV\d{1,3}|X|SYS|NODE|PHB|PXB|PIX|HCCS|HCCS_SW|SIO|NA|N/A|UB|XGMI)$")
_PCIE: Final = ("SYS", "NODE", "PHB", "PXB", "PIX")
_PCIE_KINDS: Final = ("pcie-p2p", "pcie-host-staged", "pcie")


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """Links between the devices of one machine as the tool prints them: NV12, HCCS, PIX, SYS; X for the device."""

    names: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]

    @property
    def n_devices(self) -> int:
        """How many devices the matrix shows."""
        return len(self.names)

    def between(self, one: int, other: int) -> str:
        """Return the link of a pair."""
        return self.links[one][other]

    def groups(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return the devices that links of these kinds join, largest group first; single devices are left out."""
        wanted = set(words)
        left, found = set(range(self.n_devices)), []
        while left:
            group, frontier = set(), {min(left)}
            while frontier:
                node = frontier.pop()
                group.add(node)
                frontier |= {j for j in left - group if _kind(self.links[node][j]) in wanted}
            left -= group
            found.append(tuple(sorted(group)))
        return tuple(sorted((g for g in found if len(g) > 1), key=len, reverse=True))


def _kind(link: str) -> str:
    """Return the kind of link behind a word of the matrix."""
    if re.fullmatch(r"NV\d{1,3}", link):
        return "nvlink"
    words = {"HCCS": "hccs", "HCCS_SW": "hccs", "SIO": "sio", "UB": "ub", "XGMI": "xgmi"}
    return words.get(link, "pcie" if link in _PCIE else "")


def link_matrix(text: str, name: str) -> LinkMatrix:
    """Return the matrix in the text of either tool; raises MeasurementError for one that is cut off or not square."""
    header: list[str] = []
    rows: list[tuple[str, ...]] = []
    names: list[str] = []
    faults = Faults()
    for number, line in enumerate(_ESCAPES.sub("", text).splitlines(), start=1):
        words = line.replace("N/A", "NA").split()
        if not words or not _DEVICE.match(words[0]):
            continue
        if not header:
            header = [word for word in words if _DEVICE.match(word)]
            if len(words) > 1 and (_LINK.match(words[1]) or words[1] == "X"):
                raise MeasurementError(
                    f"{name} lacks its first line", where=f"line {number}", expected="names of devices"
                )
            continue
        links = tuple(words[1 : 1 + len(header)])
        if len(links) < len(header) or not all(_LINK.match(link) for link in links):
            faults.add(f"line {number}", " ".join(words[:10]), f"{len(header)} links", "Copy the whole matrix.")
        names.append(words[0])
        rows.append(links)
    if not header:
        raise MeasurementError(f"{name} holds no matrix of links", expected="lines that start with GPU0, NPU0, ...")
    if len(rows) != len(header):
        faults.add("the matrix", f"{len(rows)} rows", f"{len(header)}, one a device", "Copy the whole matrix.")
    if faults:
        raise faults.raised(f"{name} holds no whole matrix of links")
    return LinkMatrix(tuple(names), tuple(rows))


def _topology(matrix: LinkMatrix, kind: str, group: Sequence[int], n_lanes: float | None) -> str:
    """Return how a group is wired: any pair at full rate (switch), a share each (full_mesh), pair, ring, tree."""
    links = {matrix.between(i, j) for i in group for j in group if i != j}
    if kind == "pcie":
        return "tree"
    if len(group) == 2 and kind == "sio":
        return "pair"
    if kind == "hccs":
        return "switch" if "HCCS_SW" in links else ("full_mesh" if links <= {"HCCS"} else "ring")
    if kind == "nvlink":
        counts = {int(link[2:]) for link in links if link.startswith("NV")}
        if len(group) == 2:
            return "pair"
        if len(counts) == 1 and len(links) == 1:
            lanes = counts.pop()
            return "switch" if n_lanes is None or lanes * (len(group) - 1) > n_lanes else "full_mesh"
        return "ring"
    return "switch"


def _lanes(matrix: LinkMatrix, group: Sequence[int]) -> int:
    """Return the most NVLinks that one device of a group has to one peer."""
    return max(int(link[2:]) for i in group for j in group if (link := matrix.between(i, j)).startswith("NV"))


def _known_fabric(device: Device, kinds: Sequence[str], n_devices: int, catalogue: Catalogue) -> Fabric | None:
    """Return the wiring of that kind in the system that the device is usually part of."""
    usual = catalogue.usual_system(device, n_devices)
    fabrics = usual.fabrics if usual is not None else ()
    return next((fabric for fabric in fabrics if fabric.kind in kinds), None)


def _figure(figure: BandwidthFigure | TimeFigure, device: str, scale: float = 1.0) -> dict[str, Any]:
    return {"value": figure.value * scale, "source": "catalogue", "note": figure.note or f"as known for {device}"}


def _fabric(
    matrix: LinkMatrix, kind: str, group: Sequence[int], device: Device, catalogue: Catalogue
) -> dict[str, Any] | None:
    """Return one level of wiring with the figures that the catalogue has for it, None where it has none."""
    kinds = _PCIE_KINDS if kind == "pcie" else (kind,)
    known = _known_fabric(device, kinds, len(group), catalogue)
    link = next((item for item in device.links if item.kind in kinds), None)
    n_lanes = link.n_lanes.value if link is not None and link.n_lanes is not None else None
    topology = _topology(matrix, kind, group, n_lanes)
    bandwidth = link.bandwidth_per_direction if link is not None else known.bandwidth_per_direction if known else None
    latency = known.latency if known is not None else link.latency if link is not None else None
    if bandwidth is None or latency is None:
        return None
    per_peer = topology in ("switch", "pair") and kind == "nvlink"
    share = min(1.0, _lanes(matrix, group) / n_lanes) if per_peer and n_lanes else 1.0
    found_kind = link.kind if link is not None else known.kind if known else kind
    fabric: dict[str, Any] = {
        "name": kind,
        "kind": found_kind,
        "topology": topology,
        "n_devices": len(group),
        "bandwidth_per_direction": _figure(bandwidth, device.name, share),
        "latency": _figure(latency, device.name),
        "latency_class": "host-staged" if found_kind == "pcie-host-staged" else "p2p",
    }
    if known is not None and known.efficiency is not None and known.topology == topology:
        fabric["efficiency"] = {"value": known.efficiency.value, "source": "catalogue"}
    if known is not None and known.reduces_in_switch and topology == "switch":
        fabric["reduces_in_switch"] = True
    return fabric


def system_description(
    matrix: LinkMatrix, device: Device, catalogue: Catalogue, *, name: str, source: str
) -> dict[str, Any]:
    """Return a system as its YAML file would hold it, for a matrix of links between equal devices.

    Raises MeasurementError where the catalogue knows neither bandwidth nor latency of a link.
    """
    fabrics: list[dict[str, Any]] = []
    for kind in ("sio", "nvlink", "xgmi", "ub", "hccs", "pcie"):
        joined = (
            ("sio", "nvlink", "xgmi", "ub", "hccs", "pcie")
            if kind == "pcie"
            else (("sio", kind) if kind == "hccs" else (kind,))
        )
        groups = matrix.groups(joined)
        used = any(_kind(link) == kind for row in matrix.links for link in row)
        if not groups or not used or (fabrics and len(groups[0]) <= fabrics[-1]["n_devices"]):
            continue
        fabric = _fabric(matrix, kind, groups[0], device, catalogue)
        if fabric is None:
            raise MeasurementError(
                f"the catalogue does not know the {kind} link of {device.name}", expected="its bandwidth and latency",
                cure="Add the link to the device's file, or write the system by hand.",
            )  # fmt: skip
        fabrics.append(fabric)
    if not fabrics:
        raise MeasurementError("the matrix joins no two devices", expected="at least one link")
    return {
        "kind": "system",
        "name": name,
        "title": f"{matrix.n_devices} x {device.title}, as this machine prints it",
        "device": device.name,
        "n_devices": matrix.n_devices,
        "sources": {"topology": source, "catalogue": f"hardware catalogue, {device.name} and its usual system"},
        "fabrics": fabrics,
    }


def parse(text: str, *, context: Context) -> Imported:
    """Return the matrix of links, and with a stated device a system description that can be saved as YAML."""
    matrix = link_matrix(text, context.name)
    facts: Mapping[str, Any] = {"n_devices": matrix.n_devices, "names": matrix.names, "links": matrix.links}
    if not context.device:
        return Imported(
            format="topology", facts=facts, warnings=("state the device to get a system description: device=...",)
        )
    catalogue = Catalogue.standard()
    stem = re.sub(r"[^a-z0-9.+-]+", "-", stem_of(context, f"{matrix.n_devices}x-{context.device}").lower()).strip("-.+")
    tool = "npu-smi info -t topo" if matrix.names[0].startswith(("NPU", "Phy")) else "nvidia-smi topo -m"
    try:
        device = catalogue.hardware(context.device).device
        system = system_description(matrix, device, catalogue, name=stem or "machine", source=f"{tool} of this machine")
    except (UnknownNameError, SpecError, MeasurementError) as error:
        return Imported(format="topology", facts=facts, warnings=(f"no system description: {error}",))
    return Imported(format="topology", facts=facts, system=system)
