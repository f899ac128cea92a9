"""The flags of a simulation that say what requests come: drawn ones, or those of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from perfmodel.cli.groups import FlagGroup, flag, refuse_unused
from perfmodel.cli.values import choice, given, number, whole, whole_number
from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace, whole_ns
from perfmodel.serving.prefix_cache import Prefixes
from perfmodel.serving.shaping import in_groups, in_turns, sent_within, with_priorities
from perfmodel.serving.traffic import Arrivals, Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Workload
from perfmodel.units import NS_PER_S

if TYPE_CHECKING:
    from perfmodel.measure.request_trace import RequestTrace

__all__ = ["TRAFFIC", "TrafficFlags"]

_PANEL: Final = "Traffic"
_USUAL_PROMPTS: Final = 1000
_MOST_PROMPTS: Final = 10**7
_MOST_RATE: Final = 1e6
_MOST_S: Final = 1e8
_PROCESSES: Final[tuple[Arrivals, ...]] = get_args(Arrivals)
_ARRIVALS: Final = ("poisson", *_PROCESSES)
_LENGTHS: Final = ("fixed", "uniform", "lognormal")
_OF_DRAWN: Final = (
    "arrivals",
    "burstiness",
    "on_time",
    "off_time",
    "swing",
    "period",
    "lengths",
    "length_spread",
    "length_sigma",
)

_FLAGS: Final[Mapping[str, tuple[Any, Any]]] = {
    "request_rate": flag(_PANEL, "Requests per second; inf: all at once.", "--request-rate", default="inf"),
    "num_prompts": flag(_PANEL, "Requests in all: 1000, or all of a trace.", "--num-prompts", metavar="N"),
    "arrivals": flag(_PANEL, f"{', '.join(_ARRIVALS)}.", "--arrivals", metavar="TEXT"),
    "burstiness": flag(_PANEL, "1: Poisson; below 1 in bursts, above 1 evenly.", "--burstiness", default="1"),
    "on_time": flag(_PANEL, "Seconds with requests, of on-off arrivals.", "--on-time", metavar="S", default="10"),
    "off_time": flag(_PANEL, "Seconds without.", "--off-time", metavar="S", default="10"),
    "swing": flag(_PANEL, "Share by which the rate of diurnal arrivals swings, 0 to 1.", "--swing", default="0.5"),
    "period": flag(_PANEL, "Seconds of a day of diurnal arrivals.", "--period", metavar="S", default="86400"),
    "lengths": flag(
        _PANEL,
        "fixed, uniform, lognormal, a set of lengths such as sharegpt, or a trace file to draw pairs from.",
        "--lengths",
        metavar="TEXT",
    ),
    "length_spread": flag(
        _PANEL, "Uniform lengths: drawn evenly within this share of isl and osl.", "--length-spread", default="0"
    ),
    "length_sigma": flag(
        _PANEL, "Log-normal lengths: standard deviation of the logarithm.", "--length-sigma", default="1"
    ),
    "prefix_groups": flag(_PANEL, "Prompts share one of so many prefixes.", "--prefix-groups", metavar="N"),
    "prefix_len": flag(
        _PANEL,
        "Tokens of a shared prefix, before those of --isl. Also --random-prefix-len.",
        "--prefix-len",
        metavar="N",
    ),
    "turns": flag(_PANEL, "Turns of a conversation; a prompt holds what came before.", "--turns", metavar="N"),
    "think_time": flag(
        _PANEL, "Seconds between an answer and the next request of a user or a turn.", "--think-time", metavar="S"
    ),
    "priorities": flag(_PANEL, "Priorities and their shares, e.g. 0:0.2,1:0.8.", "--priorities", metavar="P:X,.."),
    "trace": flag(
        _PANEL,
        "Arrivals and lengths of a recorded trace (Azure, BurstGPT, Mooncake, ...) or of a bench result.",
        "--trace",
        metavar="FILE",
    ),
    "rate_scale": flag(_PANEL, "Requests of a trace come so many times as fast.", "--rate-scale"),
    "until": flag(_PANEL, "Only requests due up to then.", "--until", metavar="S"),
    "warmup": flag(_PANEL, "Requests sent up to then are served and not counted.", "--warmup", metavar="S"),
    "skip_bad": flag(
        _PANEL, "Leave out and count the lines of a trace that cannot be read.", "--skip-bad", default=False
    ),
    "seed": flag(_PANEL, "Seed of all that is drawn.", "--seed", metavar="N", default="0"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficFlags:
    """What the flags say, read; `file` is a trace, else requests are drawn."""

    rate: float | None
    n: int | None
    arrivals: Arrivals
    burstiness: float
    on_s: float
    off_s: float
    swing_frac: float
    period_s: float
    lengths: str | None
    spread: float
    sigma: float
    n_groups: int | None
    prefix_tokens: int | None
    n_turns: int | None
    think_s: float | None
    priorities: tuple[tuple[int, float], ...]
    file: Path | None
    rate_scale: float | None
    until_s: float | None
    warmup_s: float
    skips_bad: bool
    seed: int

    @property
    def has_lengths(self) -> bool:
        """Whether lengths come from a trace or a set, rather than from --isl and --osl."""
        return self.file is not None or not (self.lengths is None or self.lengths in _LENGTHS)

    def requests(
        self, work: Workload, catalogue: Catalogue, *, n_users: int | None
    ) -> tuple[Trace, str, tuple[str, ...]]:
        """Return the requests, what their lengths are, and what must be said of them."""
        rng = np.random.default_rng((self.seed, 1))
        if self.file is not None:
            trace, notes = self._replayed(self.file)
            lengths = f"lengths and arrivals of {self.file.name}"
        else:
            trace, lengths, notes = self._drawn(work, catalogue)
        if self.n_groups is not None or self.prefix_tokens is not None:
            if self.prefix_tokens is None:
                raise SpecError("prompts share nothing", where="--prefix-groups", cure="Give --prefix-len too.")
            trace = in_groups(trace, n_groups=self.n_groups or 1, prefix_tokens=self.prefix_tokens, rng=rng)
            lengths += f" after {self.prefix_tokens} shared in {self.n_groups or 1} groups"
        if self.n_turns is not None:
            if n_users is not None:
                got = "--turns beside --max-concurrency"
                raise SpecError("turns and users both wait for answers", got=got, expected="one of the two")
            trace = in_turns(trace, n_turns=self.n_turns, think_s=self.think_s or 0.0)
            lengths += f", conversations of {self.n_turns} turns"
        if self.priorities:
            trace = with_priorities(trace, self.priorities, rng=rng)
        if n_users is not None:
            think_ns = None if not self.think_s else np.full(len(trace), round(self.think_s * NS_PER_S), np.int64)
            trace = trace.closed(n_users, think_ns=think_ns)
        elif self.think_s is not None and self.n_turns is None:
            raise SpecError("nobody thinks", where="--think-time", expected="--max-concurrency or --turns beside it")
        if self.until_s is not None:
            trace = sent_within(trace, until_s=self.until_s)
        return trace, lengths, notes

    def _drawn(self, work: Workload, catalogue: Catalogue) -> tuple[Trace, str, tuple[str, ...]]:
        traffic = Traffic(
            n_requests=self.n or _USUAL_PROMPTS,
            input_tokens=work.input_tokens,
            output_tokens=work.output_tokens,
            requests_per_s=self.rate,
            burstiness=self.burstiness,
            length_spread_frac=self.spread,
            seed=self.seed,
            arrivals=self.arrivals,
            on_s=self.on_s,
            off_s=self.off_s,
            swing_frac=self.swing_frac,
            period_s=self.period_s,
            lengths="lognormal" if self.lengths == "lognormal" else "uniform",
            input_sigma=self.sigma,
            output_sigma=self.sigma,
        )
        if self.lengths is None or self.lengths in _LENGTHS:
            return traffic.trace(), f"{work.input_tokens:g} in, {work.output_tokens:g} out", ()
        path = Path(self.lengths)
        if path.suffix:
            recorded, notes = self._recorded(path)
            pairs = _trace(recorded)
            picked = np.random.default_rng((self.seed, 2)).integers(0, len(pairs), traffic.n_requests)
            trace = replace(
                traffic.trace(), input_tokens=pairs.input_tokens[picked], output_tokens=pairs.output_tokens[picked]
            )
            return trace, f"lengths drawn from {path.name}", notes
        known = catalogue.lengths(self.lengths)
        traffic = replace(
            traffic,
            lengths="lognormal",
            input_tokens=known.input_tokens.value,
            output_tokens=known.output_tokens.value,
            input_sigma=known.input_sigma.value,
            output_sigma=known.output_sigma.value,
            most_tokens=int(known.most_tokens.value),
        )
        return traffic.trace(), f"lengths of {known.name}", ()

    def _recorded(self, path: Path) -> tuple[RequestTrace, tuple[str, ...]]:
        """Return the requests of a trace file, and what must be said of it."""
        from perfmodel.measure.importers.trace_file import read_trace

        found = read_trace(path, rng=np.random.default_rng((self.seed, 3)))
        if found.n_bad and not self.skips_bad:
            raise SpecError(
                f"{found.n_bad} lines of {path.name} cannot be read",
                faults=found.faults,
                cure="--skip-bad leaves them out and counts them.",
            )
        return found.trace, found.warnings

    def _replayed(self, path: Path) -> tuple[Trace, tuple[str, ...]]:
        """Return the requests of a trace file at the rate that is asked for, and what must be said of it."""
        recorded, warnings = self._recorded(path)
        trace = _trace(recorded)
        if self.n is not None:
            trace = trace.cut(self.n)
        if self.rate is not None:
            if trace.requests_per_s is None:
                got = f"{self.rate:g}"
                raise SpecError("all requests of the trace come at once", where="--request-rate", got=got)
            trace = trace.scaled(self.rate / trace.requests_per_s)
        if self.rate_scale is not None:
            trace = trace.scaled(self.rate_scale)
        shared = recorded.shared_prefix_frac
        notes = (f"{100 * shared:.3g} % of prompt blocks repeat an earlier prefix",) if shared else ()
        return trace, (*warnings, *notes)


def _trace(recorded: RequestTrace) -> Trace:
    """Return the recorded requests in nanoseconds, with what their prompts have in common."""
    arrival_ns = whole_ns(recorded.arrival_s)
    inputs, outputs = (np.rint(column).astype(np.int64) for column in (recorded.input_tokens, recorded.output_tokens))
    prefixes = None
    if recorded.block_hashes and recorded.block_tokens:
        nobody = Prefixes.none(len(recorded))
        prefixes = replace(nobody, hashes=recorded.block_hashes, hash_tokens=recorded.block_tokens)
    elif recorded.sessions:
        known = {name: i for i, name in enumerate(dict.fromkeys(recorded.sessions)) if name}
        column = np.array([known.get(name, -1) for name in recorded.sessions], np.int64)
        prefixes = replace(Prefixes.none(len(recorded)), conversation=column)
    return Trace(arrival_ns, inputs, outputs, prefixes=prefixes)


def _check_used(flags: Mapping[str, Any]) -> None:
    """Raise SpecError for flags that would change nothing beside the others."""
    arrivals, lengths, trace = flags["arrivals"] or "gamma", flags["lengths"], flags["trace"]
    refuse_unused(TRAFFIC, flags, _OF_DRAWN, used=trace is None, beside="no --trace, which has its own")
    refuse_unused(TRAFFIC, flags, ("rate_scale",), used=trace is not None, beside="--trace")
    is_read = trace is not None or bool(lengths and Path(lengths).suffix)
    refuse_unused(TRAFFIC, flags, ("skip_bad",), used=is_read, beside="--trace, or a file of --lengths")
    has_rate = flags["request_rate"] != "inf"
    refuse_unused(TRAFFIC, flags, ("arrivals",), used=has_rate, beside="a finite --request-rate")
    is_gamma = has_rate and arrivals == "gamma"
    refuse_unused(TRAFFIC, flags, ("burstiness",), used=is_gamma, beside="gamma arrivals at a finite --request-rate")
    refuse_unused(TRAFFIC, flags, ("on_time", "off_time"), used=arrivals == "on-off", beside="--arrivals on-off")
    refuse_unused(TRAFFIC, flags, ("swing", "period"), used=arrivals == "diurnal", beside="--arrivals diurnal")
    is_even = lengths in (None, "uniform")
    refuse_unused(TRAFFIC, flags, ("length_spread",), used=is_even, beside="--lengths uniform")
    refuse_unused(TRAFFIC, flags, ("length_sigma",), used=lengths == "lognormal", beside="--lengths lognormal")


def _traffic(flags: Mapping[str, Any]) -> TrafficFlags:
    rate_text, name = flags["request_rate"], flags["arrivals"] or "gamma"
    choice("--arrivals", name, _ARRIVALS)
    _check_used(flags)
    process: Arrivals = next((known for known in _PROCESSES if known == name), "gamma")
    n = whole("--num-prompts", flags["num_prompts"])
    if n is not None and n > _MOST_PROMPTS:
        got, expected = flags["num_prompts"], f"at most {_MOST_PROMPTS}"
        raise SpecError("a flag cannot be used", where="--num-prompts", got=got, expected=expected)
    shape = number("--burstiness", flags["burstiness"], low=1e-3, high=1e6)

    return TrafficFlags(
        rate=None if rate_text == "inf" else number("--request-rate", rate_text, low=1e-6, high=_MOST_RATE),
        n=n,
        arrivals=process,
        burstiness=1.0 if name == "poisson" else shape,
        on_s=number("--on-time", flags["on_time"], low=1e-6, high=_MOST_S),
        off_s=number("--off-time", flags["off_time"], low=1e-6, high=_MOST_S),
        swing_frac=number("--swing", flags["swing"], low=0.0, high=1.0),
        period_s=number("--period", flags["period"], low=1e-3, high=_MOST_S),
        lengths=flags["lengths"],
        spread=number("--length-spread", flags["length_spread"], low=0.0, high=1.0),
        sigma=number("--length-sigma", flags["length_sigma"], low=1e-6, high=10.0),
        n_groups=whole("--prefix-groups", flags["prefix_groups"]),
        prefix_tokens=whole("--prefix-len", flags["prefix_len"]),
        n_turns=whole("--turns", flags["turns"]),
        think_s=given("--think-time", flags["think_time"], low=0.0, high=_MOST_S),
        priorities=_priorities(flags["priorities"]),
        file=None if flags["trace"] is None else Path(flags["trace"]),
        rate_scale=given("--rate-scale", flags["rate_scale"], low=1e-6, high=1e6),
        until_s=given("--until", flags["until"], low=1e-9, high=_MOST_S),
        warmup_s=given("--warmup", flags["warmup"], low=0.0, high=_MOST_S) or 0.0,
        skips_bad=flags["skip_bad"],
        seed=whole_number("--seed", flags["seed"], low=0, high=2**53),
    )


def _priorities(text: str | None) -> tuple[tuple[int, float], ...]:
    shares = []
    for part in text.split(",") if text else ():
        level, colon, share = part.partition(":")
        priority = number("--priorities", level, low=-(2**31), high=2**31)
        shares.append((int(priority), number("--priorities", share, low=0.0, high=1e9) if colon else 1.0))
    return tuple(shares)


TRAFFIC: Final = FlagGroup(_FLAGS, _traffic)
