"""What the host costs: Python and driver time per step, layer, sequence and launched kernel."""

from __future__ import annotations

from perfmodel.estimate import Bound, Coefficient, Estimate, Law, Num, leaf, total
from perfmodel.specs.runtime import HostTime, Runtime

__all__ = ["first_token_time", "host_launch_time", "host_time", "offload_time"]

HOST = Law("count x host_s")
OFFLOAD = Law("offloaded_bytes / (bandwidth_frac x host_link_bytes_per_s)", "hockney")


def _counted(runtime: Runtime, name: str, time: HostTime, count: Num) -> Estimate:
    return leaf(
        name,
        count * time.value,
        bound=Bound.HOST,
        law=HOST,
        inputs=(("count", count), ("host_s", time.value)),
        coefficients=(
            Coefficient(f"{runtime.name}.{name}", time.value, time.rel_sd, runtime.sources.get(time.source, "")),
        ),
    )


def host_time(runtime: Runtime, *, n_layers: float, n_seqs: Num, n_messages: float = 0.0) -> Estimate:
    """Return the host time of one step that nothing hides: a + b x layers + c x sequences (+ d x messages)."""
    parts = [
        _counted(runtime, "per_step", runtime.host_per_step, 1.0),
        _counted(runtime, "per_layer", runtime.host_per_layer, n_layers),
        _counted(runtime, "per_sequence", runtime.host_per_sequence, n_seqs),
    ]
    if runtime.host_per_message is not None and n_messages:
        parts.append(_counted(runtime, "per_message", runtime.host_per_message, n_messages))
    return total("host", tuple(parts))


def host_launch_time(runtime: Runtime, n_kernels: Num) -> Estimate:
    """Return the time to launch every kernel from the host: it runs beside the device and may be the slower one."""
    return _counted(runtime, "host_launches", runtime.host_launch, n_kernels)


def first_token_time(runtime: Runtime, *, n_in_flight: Num) -> Estimate | None:
    """Return what a request spends outside of steps before its first token arrives; None where no figure is known."""
    parts = []
    if runtime.host_first_token is not None:
        parts.append(_counted(runtime, "first_token", runtime.host_first_token, n_in_flight * 0.0 + 1.0))
    if runtime.host_first_token_per_sequence is not None:
        each = runtime.host_first_token_per_sequence
        parts.append(_counted(runtime, "first_token_per_sequence", each, n_in_flight))
    return total("first_token", tuple(parts)) if parts else None


def offload_time(n_bytes: float, *, bytes_per_s: float, bandwidth_frac: Coefficient) -> Estimate:
    """Return the time to bring weights from host memory over the host link, once a step."""
    return leaf(
        "offloaded_weights",
        n_bytes / (bandwidth_frac.value * bytes_per_s),
        bound=Bound.LINK,
        law=OFFLOAD,
        inputs=(
            ("offloaded_bytes", n_bytes),
            ("bandwidth_frac", bandwidth_frac.value),
            ("host_link_bytes_per_s", bytes_per_s),
        ),
        coefficients=(bandwidth_frac,),
    )
