"""A quantisation scheme: how weights are stored, which of them, and what the matrix engine then multiplies in.

Numbers of one scheme stand in models/quantization/<name>.yaml. Here are the shape of such a file, the block layouts of
GGUF (part of that format's definition, table in gguf-py/gguf/constants.py) and the grammar of derived names, so that
"awq-int4-g64" or "marlin-int4-g32!attention" need no file of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from perfmodel.errors import Fault, SpecError, UnknownNameError
from perfmodel.specs.figures import Spec
from perfmodel.specs.formats import GGML_FORMATS, Bits, Format

__all__ = [
    "Compute",
    "Kernel",
    "Load",
    "Part",
    "Rule",
    "Scheme",
    "WeightDtype",
    "scheme_by_name",
]

WeightDtype = Literal["fp32", "16bit", "fp8", "int8", "int4", "fp4", "nf4", "mixed"]
Compute = Literal["fp32", "16bit", "fp8", "int8", "fp4", "int4"]
Kernel = Literal[
    "fp32", "16bit", "fp8", "fp8/block", "fp8/mxfp4", "int8", "fp4", "int4", "weight_only_int8", "weight_only_int4"
]
Part = Literal[
    "embed", "lm_head", "attention", "norm", "dense_mlp", "router", "experts", "shared_experts", "other", "vision"
]
Load = Callable[[str], Mapping[str, Any] | None]
"""A function from a catalogue name or alias to the content of its file, None where there is none."""

LINEAR_PARTS: Final[tuple[Part, ...]] = ("attention", "dense_mlp", "experts", "shared_experts")


class Rule(Spec):
    """An exception to `weight`: the first rule that matches a tensor decides.

    Empty `parts` or `names` match all. `format` is a format, the name of a GGUF one, "weight" for the scheme's own, or
    "high" for the model's unquantised dtype.
    """

    parts: tuple[Part, ...] = ()
    names: tuple[str, ...] = ()
    layers: tuple[int, ...] | Literal["all", "more_bits"] = "all"
    """more_bits: first and last eighth of the layers, and every third between, as llama.cpp chooses."""
    format: Format | str = "high"
    high_bits: Bits | None = None
    """With format "high": bits where they differ from the model's dtype."""
    bias_bits: Bits | None = None

    @model_validator(mode="after")
    def _format_is_known(self) -> Rule:
        if isinstance(self.format, str) and self.format not in {"weight", "high", *GGML_FORMATS}:
            raise ValueError(f"format {self.format!r}: expected weight, high or one of {', '.join(GGML_FORMATS)}")
        return self

    def matches_tensor(self, name: str, part: str) -> bool:
        """Return whether the rule speaks of this tensor in any layer."""
        return (not self.parts or part in self.parts) and (not self.names or name in self.names)

    def layer_frac(self, layer: int | None, n_layers: int | None) -> float:
        """Return 1 or 0 for a known layer, else the fraction of layers that the rule holds for."""
        if self.layers == "all":
            return 1.0
        if isinstance(self.layers, tuple):
            if layer is not None:
                return float(layer in self.layers)
            return sum(i < n_layers for i in set(self.layers)) / n_layers if n_layers else 0.0
        if n_layers is None:
            return 0.5
        if layer is not None:
            return float(_more_bits(layer, n_layers))
        return sum(_more_bits(i, n_layers) for i in range(n_layers)) / n_layers


def _more_bits(layer: int, n_layers: int) -> bool:
    """Return whether llama.cpp gives this layer the finer format (use_more_bits in its quantiser)."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


class Scheme(Spec):
    """One way to quantise a model.

    By default linear weights of `parts` are stored as `weight`, all else in the model's own dtype.
    """

    name: Annotated[str, Field(min_length=1)]
    title: str = ""
    names: tuple[str, ...] = ()
    """Other names that mean this scheme."""
    weight_dtype: WeightDtype
    compute: Compute
    """What the matrix engine multiplies in; 16bit: weights are expanded first (weight only)."""
    kernel: Kernel
    """Which matmul kernel family a calibration knows it by."""
    weight: Format | str | None = None
    """Storage of quantised weights, or the name of a GGUF format; None: nothing is quantised."""
    parts: tuple[Part, ...] = LINEAR_PARTS
    rules: tuple[Rule, ...] = ()
    high_bits: Bits | None = None
    """Bits of what is not quantised; None: the model's own dtype."""
    vector_bits: Bits | None = None
    """Bits of norms, biases and other vectors; None: as what is not quantised."""
    dynamic_activations: bool = False
    """Activations are quantised while the model runs: an extra pass over them before each matmul."""
    sources: tuple[str, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _weight_is_known(self) -> Scheme:
        if isinstance(self.weight, str) and self.weight not in GGML_FORMATS:
            raise ValueError(f"weight {self.weight!r}: expected a format or one of {', '.join(GGML_FORMATS)}")
        return self

    @property
    def weight_format(self) -> Format | None:
        """The storage of quantised weights, None where nothing is quantised."""
        return GGML_FORMATS[self.weight] if isinstance(self.weight, str) else self.weight

    @property
    def weight_bits(self) -> float:
        """Bits of a quantised element without scales (16 where nothing is quantised and nothing else is said)."""
        return self.weight_format.element_bits if self.weight_format else self.high_bits or 16.0

    @property
    def bits_with_scales(self) -> float:
        """Bits of a quantised weight with its share of the scales."""
        return self.weight_format.bits_with_scales if self.weight_format else self.high_bits or 16.0

    @property
    def quantises(self) -> bool:
        """Whether any weight is stored other than in the model's dtype."""
        return self.weight is not None

    @property
    def depends_on_layer(self) -> bool:
        """Whether two layers of one kind may be stored differently."""
        return any(rule.layers != "all" for rule in self.rules)

    def layer_rules(self, layer: int, n_layers: int) -> tuple[float, ...]:
        """Return for each rule whether it holds in this layer: layers with equal answers are stored alike."""
        return tuple(rule.layer_frac(layer, n_layers) for rule in self.rules)

    def stored_formats(
        self, name: str, part: str, *, linear: bool, layer: int | None = None, n_layers: int | None = None
    ) -> Iterator[tuple[Format | None, float]]:
        """Yield the formats of a tensor with the fraction of layers each holds for; None is the unquantised dtype.

        With `layer` given there is one format; without, rules that pick layers share out.
        """
        left = 1.0
        for rule in self.rules:
            if left > 0 and rule.matches_tensor(name, part):
                frac = rule.layer_frac(layer, n_layers) * left
                if frac > 0:
                    yield self._rule_format(rule), frac
                    left -= frac
        if left > 0:
            yield (self.weight_format if linear and part in self.parts else None), left

    def _rule_format(self, rule: Rule) -> Format | None:
        if isinstance(rule.format, Format):
            return rule.format
        if rule.format == "weight":
            return self.weight_format
        if rule.format == "high":
            return None if rule.high_bits is None else Format(element_bits=rule.high_bits)
        return GGML_FORMATS[rule.format]

    def bias_bits(self, name: str, part: str) -> float | None:
        """Return bits of a bias of this tensor, None for those of the model's unquantised dtype."""
        own = (r.bias_bits for r in self.rules if r.bias_bits is not None and r.matches_tensor(name, part))
        return next(own, self.vector_bits if self.vector_bits is not None else self.high_bits)

    def is_quantised(self, name: str, part: str, *, linear: bool) -> bool:
        """Return whether the tensor is stored in fewer bits in most layers, hence runs on this scheme's kernel."""
        shares = [f for f in self.stored_formats(name, part, linear=linear) if f[0] and f[0].element_bits < 16]
        return sum(frac for _, frac in shares) >= 0.5

    def compute_of(self, name: str, part: str, *, linear: bool) -> Compute:
        """Return what a matmul with this tensor multiplies in."""
        plain: Compute = "fp32" if self.compute == "fp32" else "16bit"
        return self.compute if self.is_quantised(name, part, linear=linear) else plain

    def kernel_of(self, name: str, part: str, *, linear: bool) -> Kernel:
        """Return the kernel family of a matmul with this tensor."""
        plain: Kernel = "fp32" if self.compute == "fp32" else "16bit"
        return self.kernel if self.is_quantised(name, part, linear=linear) else plain

    def part_bits(self, part: Part) -> float:
        """Return bits of a stored matrix element of `part` without scales, taken over its linear weights."""
        formats = self.stored_formats("", part, linear=part in LINEAR_PARTS)
        return sum(frac * (f.element_bits if f else self.high_bits or 16.0) for f, frac in formats)

    def weight_only(self) -> Scheme:
        """Return the scheme as it runs on a device whose engine lacks `compute`: expanded to 16 bits before use."""
        if not self.quantises or self.compute == "16bit":
            return self
        kernel: Kernel = "weight_only_int8" if self.weight_bits > 4.5 else "weight_only_int4"
        return self.model_copy(update={"compute": "16bit", "kernel": kernel, "dynamic_activations": False})


_GROUPED = re.compile(r"(?P<stem>.+?)-(?:g(?P<group>\d+)|(?P<channel>channel))")
_BLOCKED = re.compile(r"(?P<stem>.+?)-block(?P<rows>\d+)(?:x(?P<columns>\d+))?")
_BPW = re.compile(r"(?P<stem>.+?)-(?P<bpw>\d+(?:\.\d+)?)bpw")
_TEMPLATES = {
    "awq-int4": "awq-int4-g128",
    "gptq-int4": "gptq-int4-g128",
    "gptq-int8": "gptq-int8-g128",
    "marlin-int4": "marlin-int4-g128",
    "marlin-int8": "marlin-int8-g128",
    "int4": "int4-g32",
    "fp8": "fp8-block128",
    "exl2": "exl2-4bpw",
}


def _scheme(name: str, content: Mapping[str, Any]) -> Scheme:
    try:
        return Scheme.model_validate(dict(content))
    except ValidationError as error:
        faults = [
            Fault(".".join(map(str, e["loc"])) or name, got=repr(e["input"])[:80], expected=e["msg"])
            for e in error.errors()
        ]
        raise SpecError(f"quantisation scheme {name!r} cannot be used", faults=faults) from error


def _derived(name: str, load: Load) -> Scheme | None:
    """Return the scheme of a name that differs from a catalogue file only in group, block or bits per weight."""
    for pattern in (_GROUPED, _BLOCKED, _BPW):
        match = pattern.fullmatch(name)
        template = _TEMPLATES.get(match["stem"]) if match else None
        content = load(template) if template else None
        if match is None or content is None:
            continue
        base = _scheme(name, content)
        if not isinstance(base.weight, Format):
            continue
        values = {key: value for key, value in match.groupdict().items() if value is not None}
        weight = _resized(base.weight, values)
        if weight is None or any(float(v) <= 0 for k, v in values.items() if k not in ("stem", "channel")):
            continue
        return _scheme(
            name, base.model_dump() | {"name": name, "title": "", "names": (), "weight": weight.model_dump()}
        )
    return None


def _resized(weight: Format, values: Mapping[str, str]) -> Format | None:
    if "bpw" in values:
        return weight.model_copy(update={"element_bits": float(values["bpw"])})
    if "rows" in values and weight.block:
        rows, columns = int(values["rows"]), int(values.get("columns", values["rows"]))
        return weight.model_copy(update={"block": weight.block.model_copy(update={"rows": rows, "columns": columns})})
    if "group" in values and weight.group_size:
        return weight.model_copy(update={"group_size": int(values["group"])})
    if "channel" in values and weight.group_size:
        extra = weight.scale_bits + weight.zero_bits
        per_channel = {"group_size": None, "scale_bits": 0, "zero_bits": 0, "row_bits": 0, "channel_bits": extra}
        return weight.model_copy(update=per_channel)
    return None


_CHANGE = re.compile(r"(?P<sign>[+!])(?P<part>[a-z_]+)(?:\.(?P<name>\w+))?(?::(?P<layers>[\d,-]+))?")


def _layers(text: str | None) -> tuple[int, ...] | Literal["all"]:
    if not text:
        return "all"
    layers: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        layers += range(int(first), int(last or first) + 1)
    return tuple(layers)


def _changed(scheme: Scheme, name: str, changes: str) -> Scheme:
    """Return the scheme with the exceptions that the tail of its name spells."""
    found = list(_CHANGE.finditer(changes))
    if "".join(m[0] for m in found) != changes or any(m["part"] not in get_args(Part) for m in found):
        raise SpecError(
            f"quantisation scheme {name!r} has a tail that cannot be read",
            got=changes,
            expected="+part to quantise more, !part, !part.tensor or !part.tensor:0-3 to quantise less",
            cure=f"Parts are {', '.join(get_args(Part))}.",
        )
    rules = []
    for m in found:
        names = (m["name"],) if m["name"] else ()
        form = "weight" if m["sign"] == "+" else "high"
        rules.append(Rule(parts=(m["part"],), names=names, layers=_layers(m["layers"]), format=form))
    return scheme.model_copy(update={"name": name, "title": "", "names": (), "rules": (*rules, *scheme.rules)})


def scheme_by_name(name: str, load: Load) -> Scheme:
    """Return the scheme of a catalogue name, an alias, or a name derived from one.

    Derived names: another group ("awq-int4-g64"), no groups ("gptq-int8-channel"), another block ("fp8-block64"),
    another mean width ("exl2-2.5bpw"), and exceptions at the end: "!attention" leaves a part unquantised,
    "!experts.down_proj:0-3" one tensor in some layers, "+lm_head" quantises the head too.

    Raises UnknownNameError for a name that fits none of these, SpecError for a broken file.
    """
    wanted = name.strip().lower()
    stem, changes = wanted, ""
    cut = min((i for i in (wanted.find("!"), wanted.find("+")) if i > 0), default=-1)
    if cut > 0:
        stem, changes = wanted[:cut], wanted[cut:]
    content = load(stem)
    scheme = _scheme(stem, content) if content is not None else _derived(stem, load)
    if scheme is None:
        known = ["none", *_TEMPLATES.values()]
        raise UnknownNameError.of("quantisation scheme", name, known, cure="Files stand in models/quantization.")
    return _changed(scheme, wanted, changes) if changes else scheme
