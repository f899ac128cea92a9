"""How a model is laid over devices: tensor, pipeline, expert, data and decode-context parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import Fault, SpecError
from perfmodel.specs.model import CompressedAttention, LatentAttention, LinearAttention, Model, MoeFfn

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes. Devices = tp x pp x dp; experts live on the tp x dp ranks of a stage, `ep` groups of them.

    For a dense model dp means whole replicas. For a mixture of experts dp replicates attention and spreads sequences
    (DP attention) while the tp x dp ranks share the experts: `ep` of them hold different experts, and within each
    group of tp x dp / ep ranks every expert is cut in width. dcp cuts the KV cache of a sequence along its tokens over
    dcp of the tp ranks (vLLM's decode context parallelism). `stage_layers` gives the layers of each pipeline stage
    where they are not even.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1
    stage_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        faults = [
            Fault(name, repr(size), "a whole number from 1 to 4096")
            for name, size in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep), ("dcp", self.dcp))
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 4096
        ]
        if not faults and (self.tp * self.dp) % self.ep:
            faults.append(Fault("ep", str(self.ep), f"a divisor of tp x dp = {self.tp * self.dp}"))
        if not faults and self.tp % self.dcp:
            faults.append(Fault("dcp", str(self.dcp), f"a divisor of tp = {self.tp}"))
        if self.stage_layers and (len(self.stage_layers) != self.pp or min(self.stage_layers) < 1):
            faults.append(
                Fault("stage layers", str(self.stage_layers), f"{self.pp} numbers of at least 1, one a stage")
            )
        if faults:
            raise SpecError("the parallel layout does not work", faults=faults)

    @property
    def n_devices(self) -> int:
        """Devices that the layout occupies."""
        return self.tp * self.pp * self.dp

    @property
    def n_expert_ranks(self) -> int:
        """Ranks of one stage that share the experts."""
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that one expert's width is cut over."""
        return self.n_expert_ranks // self.ep

    def stages(self, n_layers: int) -> tuple[tuple[int, int], ...]:
        """Return [start, stop) of each stage; a remainder goes to the stages before the last, as vLLM does.

        >>> Layout(pp=4).stages(61)
        ((0, 15), (15, 30), (30, 46), (46, 61))
        """
        if self.pp > n_layers:
            raise SpecError(
                f"{n_layers} layers cannot be split into {self.pp} pipeline stages",
                where="pp",
                got=str(self.pp),
                expected=f"at most {n_layers}",
            )
        sizes = list(self.stage_layers) or [n_layers // self.pp] * self.pp
        if not self.stage_layers:
            for i in range(n_layers % self.pp):
                sizes[-2 - i if self.pp > 1 else -1] += 1
        if sum(sizes) != n_layers or min(sizes) < 1:
            raise SpecError(
                f"{n_layers} layers cannot be split into {self.pp} pipeline stages like this",
                got=" + ".join(map(str, sizes)),
                expected=f"{self.pp} stages of at least one layer that add up to {n_layers}",
            )
        starts = [sum(sizes[:i]) for i in range(self.pp)]
        return tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))

    def checked_for(self, model: Model) -> Layout:
        """Return the layout itself if the model can be cut this way; raise SpecError that names every obstacle."""
        faults = [*self._attention_faults(model), *self._expert_faults(model)]
        if faults:
            raise SpecError(f"{model.title or model.name} cannot be cut with tp {self.tp}, ep {self.ep}", faults=faults)
        self.stages(model.n_layers)
        return self

    def _attention_faults(self, model: Model) -> list[Fault]:
        faults = []
        for layer in model.layers:
            a = layer.attention
            n_heads = a.n_value_heads if isinstance(a, LinearAttention) else a.n_heads
            if n_heads % self.tp:
                near = [n for n in range(1, n_heads + 1) if n_heads % n == 0]
                faults.append(
                    Fault("tp", str(self.tp), f"a divisor of the {n_heads} attention heads", f"Try one of {near}.")
                )
            n_kv = getattr(a, "n_kv_heads", 1 if isinstance(a, (CompressedAttention, LatentAttention)) else self.tp)
            if self.tp > n_kv > 1 and self.tp % n_kv:
                faults.append(Fault("tp", str(self.tp), f"a multiple or a divisor of the {n_kv} KV heads"))
            copies = max(1, self.tp // n_kv)
            if copies % self.dcp and not isinstance(a, LinearAttention):
                faults.append(
                    Fault(
                        "dcp",
                        str(self.dcp),
                        f"a divisor of the {copies} ranks that hold the same KV heads at tp {self.tp}",
                    )
                )
        return list(dict.fromkeys(faults))

    def _expert_faults(self, model: Model) -> list[Fault]:
        faults = []
        for layer in model.layers:
            if isinstance(layer.ffn, MoeFfn):
                if layer.ffn.d_expert % self.expert_tp:
                    faults.append(
                        Fault(
                            "tp", str(self.expert_tp), f"a divisor of the expert width {layer.ffn.d_expert}", "Use ep."
                        )
                    )
                if self.ep > layer.ffn.n_experts:
                    faults.append(Fault("ep", str(self.ep), f"at most the {layer.ffn.n_experts} experts"))
            elif layer.ffn.d_ff % self.tp:
                faults.append(Fault("tp", str(self.tp), f"a divisor of the MLP width {layer.ffn.d_ff}"))
        if self.ep > 1 and not any(isinstance(layer.ffn, MoeFfn) for layer in model.layers):
            faults.append(Fault("ep", str(self.ep), "1: this model has no experts"))
        return list(dict.fromkeys(faults))
