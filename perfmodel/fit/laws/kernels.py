"""Laws of times and rates on a device: roofline, latency + bandwidth, waves of tiles, host time, experts touched."""

from __future__ import annotations

import numpy as np

from perfmodel.fit.laws.base import Array, Columns, FitLaw, Input, Parameter, Values, positive, real
from perfmodel.fit.laws.guesses import nonnegative, positive_or

__all__ = ["KERNEL_LAWS", "expected_experts"]

_T0 = real("t0_s", "s", "fixed time: launch, latency", 0.0)
_KNEE = positive("knee", "", "exponent q of the soft maximum (x^q + y^q)^(1/q); 1 is a sum", 1.0, 20.0)
_BANDWIDTH = positive("bandwidth_bytes_per_s", "bytes/s", "rate far out", 1.0, 1e18)
_BYTES = Input("bytes", "bytes", low=0.0)
_SIZE_HINTS = ("bytes", "message_bytes", "size_bytes", "n_bytes")
_ROOFLINE = "S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009; knee as a q-norm"
_HOCKNEY = "R. Hockney: The communication challenge for MPP, Parallel Computing 20(3), 1994"


def _soft_maximum(first: Array, second: Array, knee: Array) -> Array:
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    ratio = smaller / np.where(larger > 0.0, larger, 1.0)
    return larger * (1.0 + ratio**knee) ** (1.0 / knee)


def _roofline(columns: Columns, values: Values) -> Array:
    t0, rate, bandwidth, knee = values
    flop, size = columns
    return t0 + _soft_maximum(flop / rate, size / bandwidth, knee)


def _roofline_frac(columns: Columns, values: Values) -> Array:
    flop, size, peak, bandwidth = columns
    return _roofline((flop / peak, size / bandwidth), values)


def _alpha_beta(columns: Columns, values: Values) -> Array:
    return values[0] + columns[0] / values[1]


def _segmented(columns: Columns, values: Values) -> Array:
    t0, bandwidth, segment = values
    return t0 + columns[0] / bandwidth + np.sqrt(segment * columns[0]) / bandwidth


def _saturating_bandwidth(columns: Columns, values: Values) -> Array:
    return values[0] * columns[0] / (columns[0] + values[1])


def _waves(columns: Columns, values: Values) -> Array:
    t0, rate, quantised = values
    tiles, cores, flop = columns
    full = tiles / cores
    return t0 + (full + quantised * (np.ceil(full) - full)) * flop / rate


def _host(columns: Columns, values: Values) -> Array:
    return values[0] + values[1] * columns[0] + columns[1] / values[2]


def expected_experts(tokens: Array, experts: Array, top_k: Array, skew: Array) -> Array:
    """Return the expected number of distinct experts that `tokens` tokens touch, each of them `top_k` of `experts`.

    Popularity falls with rank u (0 to 1) as u**-skew; 0 is uniform, experts * (1 - (1 - top_k/experts)**tokens). The
    sum over experts is taken at 24 ranks.

    >>> float(expected_experts(np.array(1.0), np.array(64.0), np.array(6.0), np.array(0.0)))
    6.0
    """
    share = np.minimum(top_k / experts, 1.0)
    ranks = (np.arange(24) + 0.5) / 24
    weights = [rank**-skew for rank in ranks]
    mean = sum(weights[1:], start=weights[0]) / len(ranks)
    untouched = [(1.0 - np.minimum(share * w / mean, 1.0)) ** tokens for w in weights]
    return np.asarray(np.round(experts * (1.0 - sum(untouched[1:], start=untouched[0]) / len(ranks)), 12))


def _moe(columns: Columns, values: Values) -> Array:
    return _moe_skewed(columns, (values[0], values[1], np.zeros(())))


def _moe_skewed(columns: Columns, values: Values) -> Array:
    t0, bandwidth, skew = values
    tokens, experts, top_k, expert_bytes = columns
    return t0 + expected_experts(tokens, experts, top_k, skew) * expert_bytes / bandwidth


def _rate(weight: float, columns: Array, y: Array) -> float:
    return positive_or(1.0 / weight if weight > 0.0 else 0.0, float(np.median(columns / np.maximum(y, 1e-30))))


def _guess_roofline(columns: Columns, y: Array) -> tuple[float, ...]:
    flop, size = columns
    fixed, per_flop, per_byte = nonnegative((np.ones_like(y), flop, size), y)
    return min(fixed, float(y.min())), _rate(per_flop, flop, y), _rate(per_byte, size, y), 2.0


def _guess_roofline_frac(columns: Columns, y: Array) -> tuple[float, ...]:
    t0, compute, memory, knee = _guess_roofline((columns[0] / columns[2], columns[1] / columns[3]), y)
    return t0, min(max(compute, 0.05), 1.5), min(max(memory, 0.05), 1.5), knee


def _guess_alpha_beta(columns: Columns, y: Array) -> tuple[float, ...]:
    fixed, per_byte = nonnegative((np.ones_like(y), columns[0]), y)
    return fixed, _rate(per_byte, columns[0], y)


def _guess_segmented(columns: Columns, y: Array) -> tuple[float, ...]:
    fixed, per_byte, per_root = nonnegative((np.ones_like(y), columns[0], np.sqrt(columns[0])), y)
    bandwidth = _rate(per_byte, columns[0], y)
    return fixed, bandwidth, positive_or((per_root * bandwidth) ** 2, 1e3)


def _guess_saturating_bandwidth(columns: Columns, y: Array) -> tuple[float, ...]:
    use = (columns[0] > 0.0) & (y > 0.0)
    fixed, per_byte = nonnegative((np.ones(int(use.sum())), columns[0][use]), columns[0][use] / y[use])
    top = positive_or(1.0 / per_byte if per_byte > 0.0 else 0.0, float(y.max()))
    return top, positive_or(fixed * top, float(np.median(columns[0])))


def _guess_waves(columns: Columns, y: Array) -> tuple[float, ...]:
    work = np.ceil(columns[0] / columns[1]) * columns[2]
    fixed, per_flop = nonnegative((np.ones_like(y), work), y)
    return fixed, _rate(per_flop, work, y), 0.8


def _guess_host(columns: Columns, y: Array) -> tuple[float, ...]:
    fixed, per_layer, per_byte = nonnegative((np.ones_like(y), columns[0], columns[1]), y)
    return fixed, per_layer, _rate(per_byte, columns[1], y)


def _guess_moe(columns: Columns, y: Array) -> tuple[float, ...]:
    tokens, experts, top_k, expert_bytes = columns
    size = expected_experts(tokens, experts, top_k, np.zeros(())) * expert_bytes
    return _guess_alpha_beta((size,), y)


def _guess_moe_skewed(columns: Columns, y: Array) -> tuple[float, ...]:
    return (*_guess_moe(columns, y), 0.3)


def _kernel(
    name: str,
    title: str,
    formula: str,
    source: str,
    inputs: tuple[Input, ...],
    parameters: tuple[Parameter, ...],
    **parts: object,
) -> FitLaw:
    rest = {"output": "time_s", "output_unit": "s", "family": name} | parts
    return FitLaw(name, title, formula, source, inputs, parameters, **rest)  # type: ignore[arg-type]


_MOE_INPUTS = (
    Input("n_tokens", "tokens", low=0.0),
    Input("n_experts", "experts", low=1.0),
    Input("top_k", "experts", low=1.0),
    Input("expert_bytes", "bytes", low=0.0),
)

KERNEL_LAWS: tuple[FitLaw, ...] = (
    _kernel(
        "roofline",
        "roofline with a soft knee (rates)",
        "t0_s + ((flop/flop_per_s)^q + (bytes/bandwidth_bytes_per_s)^q)^(1/q)",
        _ROOFLINE,
        (Input("flop", "flop", low=0.0), _BYTES),
        (_T0, positive("flop_per_s", "flop/s", "rate far out", 1.0, 1e21), _BANDWIDTH, _KNEE),
        function=_roofline,
        guess=_guess_roofline,
    ),
    _kernel(
        "roofline_efficiency",
        "roofline with a soft knee (efficiencies)",
        "t0_s + ((flop/(compute_frac*peak))^q + (bytes/(memory_frac*bandwidth))^q)^(1/q)",
        _ROOFLINE,
        (
            Input("flop", "flop", low=0.0),
            _BYTES,
            Input("peak_flop_per_s", "flop/s", low=1.0),
            Input("peak_bytes_per_s", "bytes/s", low=1.0),
        ),
        (
            _T0,
            positive("compute_frac", "", "share of the datasheet's arithmetic peak", 1e-4, 2.0),
            positive("memory_frac", "", "share of the datasheet's bandwidth", 1e-4, 2.0),
            _KNEE,
        ),
        function=_roofline_frac,
        guess=_guess_roofline_frac,
    ),
    _kernel(
        "alpha_beta",
        "latency + bandwidth",
        "t0_s + bytes/bandwidth_bytes_per_s",
        _HOCKNEY,
        (_BYTES,),
        (_T0, _BANDWIDTH),
        function=_alpha_beta,
        guess=_guess_alpha_beta,
        family="transfer",
        hints=_SIZE_HINTS,
    ),
    _kernel(
        "segmented_transfer",
        "latency + bandwidth with pipelined segments",
        "t0_s + (bytes + sqrt(segment_bytes*bytes))/bandwidth_bytes_per_s",
        "R. Thakur, R. Rabenseifner, W. Gropp: IJHPCA 19(1), 2005 (best segment size of a pipelined collective)",
        (_BYTES,),
        (
            _T0,
            _BANDWIDTH,
            positive("segment_bytes", "bytes", "bytes that cost as much as a segment's start", 1e-3, 1e12),
        ),
        function=_segmented,
        guess=_guess_segmented,
        family="transfer",
        hints=_SIZE_HINTS,
    ),
    _kernel(
        "saturating_bandwidth",
        "bandwidth that saturates with size",
        "bandwidth_bytes_per_s * bytes/(bytes + half_bytes)",
        _HOCKNEY,
        (_BYTES,),
        (_BANDWIDTH, positive("half_bytes", "bytes", "size at half of the bandwidth", 1e-3, 1e15)),
        function=_saturating_bandwidth,
        guess=_guess_saturating_bandwidth,
        family="bandwidth",
        hints=_SIZE_HINTS,
        output="bandwidth_bytes_per_s",
        output_unit="bytes/s",
    ),
    _kernel(
        "tile_waves",
        "waves of tiles over cores",
        "t0_s + (w + quantised_frac*(ceil(w) - w)) * flop_per_tile/core_flop_per_s, w = n_tiles/n_cores",
        "a kernel ends with its last wave; quantised_frac < 1 where other work fills the last one",
        (
            Input("n_tiles", "tiles", low=0.0),
            Input("n_cores", "cores", low=1.0),
            Input("flop_per_tile", "flop", low=0.0),
        ),
        (
            _T0,
            positive("core_flop_per_s", "flop/s", "rate of one core", 1.0, 1e18),
            real("quantised_frac", "", "share of the last wave's idle cores that is paid for", 0.0, 1.0),
        ),
        function=_waves,
        guess=_guess_waves,
    ),
    _kernel(
        "host_time",
        "host time and weight read of a step",
        "t0_s + per_layer_s*n_layers + bytes/bandwidth_bytes_per_s",
        "each layer launches the same kernels",
        (Input("n_layers", "layers", low=0.0), _BYTES),
        (_T0, real("per_layer_s", "s/layer", "host and launch time of a layer", 0.0), _BANDWIDTH),
        function=_host,
        guess=_guess_host,
    ),
    _kernel(
        "moe_touched",
        "weight read of the experts touched",
        "t0_s + n_experts*(1 - (1 - top_k/n_experts)**n_tokens) * expert_bytes/bandwidth_bytes_per_s",
        "expected number of distinct experts under uniform routing",
        _MOE_INPUTS,
        (_T0, _BANDWIDTH),
        function=_moe,
        guess=_guess_moe,
        family="moe",
    ),
    _kernel(
        "moe_touched_skewed",
        "weight read of the experts touched, some more popular",
        "as moe_touched, with popularity of an expert of rank u (0 to 1) as u**-skew",
        "Zipf-like popularity of experts",
        _MOE_INPUTS,
        (_T0, _BANDWIDTH, real("skew", "", "0 is uniform routing", 0.0, 2.0)),
        function=_moe_skewed,
        guess=_guess_moe_skewed,
        family="moe",
    ),
)
