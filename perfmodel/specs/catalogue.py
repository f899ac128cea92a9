"""Where descriptions live, and how a name finds one.

Homes, first match wins: folders given by the caller, the user's data folder, and what perfmodel ships. Each home has
`hardware/` (devices and systems), `hardware/allocators/`, `hardware/lengths/`, `hardware/cores/`, `hardware/runtimes/`,
`hardware/calibration/`, `hardware/rules/`, `hardware/scheduling/`, `models/` and `models/quantization/`. A file's own
name is its canonical name; other spellings stand in its `names`. What a plain estimate does not read is imported where
it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from pydantic import BaseModel

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue_model import model_from_catalogue
from perfmodel.specs.device import Device
from perfmodel.specs.files import data_from_text, read_data, read_spec, read_text
from perfmodel.specs.hf.files import config_from_path
from perfmodel.specs.hf_config import model_from_config
from perfmodel.specs.model import FixedWork, Model
from perfmodel.specs.model_names import local_path, name_from_path, without_suffix
from perfmodel.specs.quantization import Scheme, scheme_by_name
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.system import System
from perfmodel.specs.usual import UsualValues

if TYPE_CHECKING:
    from perfmodel.specs.allocator import CachingRules
    from perfmodel.specs.core import CoreClass
    from perfmodel.specs.lengths import LengthSet
    from perfmodel.specs.rules import FittingRules
    from perfmodel.specs.scheduling import SchedulingClass

__all__ = ["Catalogue", "Hardware", "Kind", "ModelChoice", "builtin_home", "user_home"]

Kind = Literal[
    "hardware", "core", "runtime", "calibration", "rules", "model", "scheme", "scheduling", "allocator", "lengths"
]

_FOLDERS: Final[dict[Kind, str]] = {
    "hardware": "hardware",
    "core": "hardware/cores",
    "runtime": "hardware/runtimes",
    "calibration": "hardware/calibration",
    "rules": "hardware/rules",
    "model": "models",
    "scheme": "models/quantization",
    "scheduling": "hardware/scheduling",
    "allocator": "hardware/allocators",
    "lengths": "hardware/lengths",
}
_WORDS: Final[dict[Kind, str]] = {
    "hardware": "device or system",
    "core": "class of cores",
    "runtime": "runtime",
    "calibration": "calibration",
    "rules": "rules file",
    "model": "model",
    "scheme": "quantisation",
    "scheduling": "scheduling",
    "allocator": "allocator",
    "lengths": "set of lengths",
}
_HEADER = re.compile(r"^(name|names|hf_id|kind|title|families):(.*(?:\n(?![A-Za-z_#]).*)*)", re.MULTILINE)
_COUNTED = re.compile(r"^\s*(\d+)\s*(?:x|\*|×)\s*(.+)$", re.IGNORECASE)
S = TypeVar("S", bound=BaseModel)


def builtin_home() -> Path:
    """Return the folder with what perfmodel ships: inside the package when installed, the checkout otherwise."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "data"
    return installed if installed.is_dir() else package.parent


def user_home() -> Path:
    """Return the user's own catalogue folder (it need not exist)."""
    from platformdirs import user_data_path

    return user_data_path("perfmodel", appauthor=False)


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a hardware name stands for: a device, the system where one was named, the count where one was given."""

    device: Device
    system: System | None = None
    n_devices: int | None = None


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What a model name stands for: the model, the weight scheme that the name or config implies, and remarks."""

    model: Model
    scheme: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Catalogue:
    """All homes together. Lookups read files anew; keep the object where many are needed."""

    homes: tuple[Path, ...]
    _headers: dict[Path, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def standard(cls, folders: Sequence[Path] = ()) -> Catalogue:
        """Return the catalogue of the given folders, the user's own and the built-in one."""
        for folder in folders:
            if not folder.is_dir():
                raise SpecError(
                    f"catalogue folder {folder} {'is no folder' if folder.exists() else 'does not exist'}",
                    expected="a folder with hardware/ or models/",
                )
        return cls((*folders, user_home(), builtin_home()))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders that the caller gave, without the user's home and the built-in one: `standard(folders)` is equal."""
        return tuple(home for home in self.homes if home not in (user_home(), builtin_home()))

    def paths(self, kind: Kind) -> dict[str, Path]:
        """Return canonical name -> file for one kind, in alphabetical order; earlier homes hide later ones."""
        found: dict[str, Path] = {}
        for home in reversed(self.homes):
            folder = home / _FOLDERS[kind]
            if folder.is_dir():
                found |= {path.stem: path for path in folder.glob("*.yaml")}
        return dict(sorted(found.items()))

    def headers(self, kind: Kind) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (canonical name, {name, names, hf_id, kind, title}) without reading whole files as YAML."""
        for name, path in self.paths(kind).items():
            yield name, self._header(path)

    def _readable_headers(self, kind: Kind) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the headers of files that can be read: a broken one must not hide the others from a look-up."""
        for name, path in self.paths(kind).items():
            try:
                yield name, self._header(path)
            except SpecError:
                continue

    def _header(self, path: Path) -> Mapping[str, Any]:
        if path not in self._headers:
            lines = [match[0] for match in _HEADER.finditer(read_text(path))]
            self._headers[path] = data_from_text("\n".join(lines) or "name: ''", str(path))
        return self._headers[path]

    def spellings(self, kind: Kind) -> dict[str, str]:
        """Return every spelling, in lower case, with the canonical name that it stands for."""
        result: dict[str, str] = {}
        for name, header in self._readable_headers(kind):
            others = [str(n) for n in header.get("names") or ()]
            hf_id = header.get("hf_id")
            if hf_id:
                others += [str(hf_id), str(hf_id).rsplit("/", 1)[-1]]
            for spelling in others:
                result.setdefault(_plain(spelling), name)
        names = list(self.paths(kind))
        return result | {_plain(name): name for name in names} | {name: name for name in names}

    def path(self, kind: Kind, name: str) -> Path:
        """Return the file behind a name or alias; raises UnknownNameError that offers near ones."""
        wanted = _plain(name)
        for home in self.homes:
            for stem in dict.fromkeys((name.strip().lower(), wanted)):
                file = home / _FOLDERS[kind] / f"{stem}.yaml"
                if re.fullmatch(r"[a-z0-9][a-z0-9.+_-]{0,200}", stem) and file.is_file():
                    return file
        spellings = self.spellings(kind)
        canonical = spellings.get(wanted)
        if canonical is None:
            cure = {
                "model": "Or give a config.json; `perfmodel models list` shows all.",
                "hardware": "`perfmodel hardware list` shows all.",
            }
            listed = kind in ("core", "runtime", "calibration", "allocator", "lengths")
            known = f"There are {', '.join(self.paths(kind))}." if listed else ""
            raise UnknownNameError.of(_WORDS[kind], name, list(spellings), cure.get(kind, known))
        return self.paths(kind)[canonical]

    def hardware(self, name: str) -> Hardware:
        """Return what a hardware name stands for; "8xh100-sxm" counts devices, "2xdgx-a100" systems."""
        counted = _COUNTED.match(name)
        if counted and name.lower() not in self.spellings("hardware"):
            inner = self.hardware(counted[2])
            return Hardware(inner.device, inner.system, int(counted[1]) * (inner.n_devices or 1))
        path = self.path("hardware", name)
        if self._header(path).get("kind") == "system":
            system = read_spec(System, path)
            return Hardware(self.device(system.device), system, system.n_devices)
        return Hardware(read_spec(Device, path))

    def device(self, name: str) -> Device:
        """Return a device by name."""
        path = self.path("hardware", name)
        if self._header(path).get("kind") == "system":
            raise SpecError(
                f"{name} is a system", expected="the name of a device", cure=f"See `perfmodel hardware show {name}`."
            )
        return read_spec(Device, path)

    def system(self, name: str) -> System:
        """Return a system by name."""
        return read_spec(System, self.path("hardware", name))

    def usual_system(self, device: Device, n_devices: int) -> System | None:
        """Return the system in which `n_devices` of this device are usually wired; None for one device alone.

        The device's own usual system if it is large enough, else the smallest that is.
        """
        if device.usual_system is None:
            return None
        usual = self.system(device.usual_system)
        if usual.fabrics[-1].n_devices >= n_devices:
            return usual
        larger = [
            system
            for name, header in self.headers("hardware")
            if header.get("kind") == "system"
            for system in [self.system(name)]
            if system.device == device.name and system.fabrics[-1].n_devices >= n_devices
        ]
        return min(larger, key=lambda s: s.fabrics[-1].n_devices, default=usual)

    def core(self, name: str) -> CoreClass:
        """Return a class of cores by name."""
        from perfmodel.specs.core import CoreClass

        return read_spec(CoreClass, self.path("core", name))

    def core_of(self, device: Device) -> CoreClass:
        """Return the class of cores of a device's family, `generic` where no class names it."""
        for name, header in self.headers("core"):
            if device.family in header.get("families", ()):
                return self.core(name)
        return self.core("generic")

    def runtime(self, name: str) -> Runtime:
        """Return a runtime profile by name."""
        return read_spec(Runtime, self.path("runtime", name))

    def scheduling_of(self, device: Device) -> SchedulingClass:
        """Return how the device's family schedules work and translates addresses, the generic file where none says."""
        known = self.spellings("scheduling")
        from perfmodel.specs.scheduling import SchedulingClass

        return read_spec(SchedulingClass, self.path("scheduling", known.get(device.family, "generic")))

    def allocator(self, name: str) -> CachingRules:
        """Return the rules of a caching allocator by name."""
        from perfmodel.specs.allocator import CachingRules

        return read_spec(CachingRules, self.path("allocator", name))

    def lengths(self, name: str) -> LengthSet:
        """Return how long the requests of a known set are."""
        from perfmodel.specs.lengths import LengthSet

        return read_spec(LengthSet, self.path("lengths", name))

    def calibration(self, name: str) -> Calibration:
        """Return a calibration by name, or from a file path."""
        path = Path(name)
        return read_spec(Calibration, path if path.suffix == ".yaml" else self.path("calibration", name))

    def calibration_for(self, name: str, devices: Sequence[Device], engine: str, runtime: str = "") -> Calibration:
        """Return the calibration of that name; "auto" is the prior with every fit that exists for these devices.

        Fits are files <device>.yaml (kernels, whatever the runtime), <device>--<engine>.yaml and
        <device>--<runtime>.yaml (one version of an engine), each laid over the one before.
        """
        if name != "auto":
            return self.calibration(name)
        known = self.paths("calibration")
        tails = dict.fromkeys(("", f"--{engine}", f"--{runtime or engine}"))
        wanted = (f"{device}{tail}" for device in dict.fromkeys(d.name for d in devices) for tail in tails)
        return self.calibration("prior").with_fits(self.calibration(fit) for fit in wanted if fit in known)

    def fitting_rules(self) -> FittingRules:
        """Return what fits know before they see a row."""
        from perfmodel.specs.rules import FittingRules

        return read_spec(FittingRules, self.path("rules", "fitting"))

    def usual_values(self) -> UsualValues:
        """Return the rules of thumb for what device files and questions leave open."""
        return read_spec(UsualValues, self.path("rules", "usual"))

    def scheme(self, name: str) -> Scheme:
        """Return a quantisation scheme by name, alias or derived name such as awq-int4-g64."""
        try:
            return scheme_by_name(name, self._scheme_data)
        except UnknownNameError as error:
            known = ", ".join(self.paths("scheme"))
            raise UnknownNameError(error.problem, expected=f"one of {known}") from error

    def _scheme_data(self, name: str) -> Mapping[str, Any] | None:
        try:
            return read_data(self.path("scheme", name))
        except UnknownNameError:
            return None

    def model(self, reference: str) -> ModelChoice:
        """Return the model behind a name, a Hugging Face id, a checkpoint name with suffixes, or a config.json path."""
        path = local_path(reference)
        if path is None:
            return self._named(reference)
        if path.suffix == ".json" or path.is_dir() or (path.is_file() and path.suffix != ".yaml"):
            model = model_from_config(config_from_path(path), name=name_from_path(path))
            return ModelChoice(model, model.weight_scheme, model.warnings)
        if path.suffix == ".yaml":
            return self._catalogued(path, ())
        return self._named(reference)

    def fixed_work(self, name: str) -> FixedWork | None:
        """Return a network of fixed work per sample by name, None where the name is a language model or unknown."""
        path = self.paths("model").get(self.spellings("model").get(_plain(name), ""))
        if path is None or self._header(path).get("kind") != "fixed_work":
            return None
        found = model_from_catalogue(read_data(path), self._model_data)
        return found if isinstance(found, FixedWork) else None

    def _named(self, reference: str) -> ModelChoice:
        name, scheme, remarks = _plain(reference), None, []
        spellings = self.spellings("model") if f"{name}.yaml" not in self._file_names("model") else {name: name}
        while name not in spellings:
            shorter, found = without_suffix(name)
            if shorter == name and "/" in name:
                shorter = name.rsplit("/", 1)[-1]
            if shorter == name:
                self.path("model", reference)  # raises with near names
            scheme, name = scheme or found, shorter
        if name != _plain(reference) and spellings[name] != _plain(reference):
            remarks.append(f"{reference} is read as {spellings[name]}" + (f" with {scheme} weights" if scheme else ""))
        choice = self._catalogued(self.paths("model")[spellings[name]], tuple(remarks))
        return ModelChoice(choice.model, scheme or choice.scheme, choice.remarks)

    def _file_names(self, kind: Kind) -> set[str]:
        return {f"{name}.yaml" for name in self.paths(kind)}

    def _catalogued(self, path: Path, remarks: tuple[str, ...]) -> ModelChoice:
        found = model_from_catalogue(read_data(path), self._model_data)
        if isinstance(found, FixedWork):
            raise SpecError(
                f"{path.stem} does fixed work per sample and has no tokens",
                expected="a language model",
                cure="It serves contention studies only.",
            )
        return ModelChoice(found, found.weight_scheme, (*remarks, *found.warnings))

    def _model_data(self, name: str) -> Mapping[str, Any]:
        return read_data(self.path("model", name))
