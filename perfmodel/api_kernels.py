"""The part of the public interface about kernels: fusion, recomputation, dispatch, streams, profiles of operators.

`perfmodel.api` offers these functions beside the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfmodel.specs.catalogue import Catalogue

if TYPE_CHECKING:
    from perfmodel.measure.profiling.answer import ProfileAnswer
    from perfmodel.serving.stream_case import StreamCase
    from perfmodel.step.dispatch import Dispatch
    from perfmodel.step.fusion import Fusion
    from perfmodel.step.question import Case
    from perfmodel.step.recompute import KvWay
    from perfmodel.work.tiling import Tile

__all__ = ["dispatch", "fusion", "profile", "recompute", "streams"]


def fusion(
    case: Case, *, chains: Sequence[str] = (), phase: Literal["prefill", "decode"] = "prefill"
) -> tuple[Fusion, ...]:
    """Return chains of operators apart and fused, in a step of the batch of a case; none named: all chains.

    >>> from perfmodel import api
    >>> (found,) = api.fusion(api.case("llama-2-7b", "ascend-910b2", batch=4, isl=512, osl=16), chains=["kv-write"])
    >>> found.before.n_launches, found.after.n_launches, 1.0 < found.time_ratio < found.time_ratio_limit
    (3, 1, True)
    """
    from perfmodel.errors import SpecError
    from perfmodel.step.fusion import chain_size, fusions

    if phase not in ("prefill", "decode"):
        raise SpecError("a step is of another phase", got=repr(phase), expected="prefill or decode")
    size = chain_size(phase=phase, n_seqs=case.workload.batch, input_tokens=case.workload.input_tokens)
    return fusions(case.engine, size, phase=phase, names=tuple(chains))


def recompute(case: Case) -> tuple[KvWay, ...]:
    """Return every way to have the keys and values of one sequence of `isl` tokens: kept, computed anew, brought back.

    >>> from perfmodel import api
    >>> ways = api.recompute(api.case("llama-2-7b", "ascend-910b2", batch=1, isl=512, osl=16))
    >>> ways[0].name, ways[0].held_bytes_per_token
    ('keep and read', 524288.0)
    """
    from perfmodel.step.recompute import kv_ways

    return kv_ways(case.engine, case.workload.input_tokens)


def dispatch(
    case: Case, *, batches: Sequence[float] = (1.0, 4.0, 16.0, 64.0), catalogue: Catalogue | None = None
) -> tuple[Dispatch, ...]:
    """Return launches, idle cores, workspace and page walks of a prefill and a decode step at each batch.

    >>> from perfmodel import api
    >>> case = api.case("llama-2-7b", "ascend-910b2", batch=1, isl=512, osl=16, runtime="pytorch-eager")
    >>> prefill, decode = api.dispatch(case, batches=[1.0])
    >>> bool(prefill.core_frac_of_step > decode.core_frac_of_step)
    True
    """
    from perfmodel.step.dispatch import dispatch_rows

    found = catalogue or Catalogue.standard()
    pages = found.scheduling_of(case.setup.devices[0]).translation
    return dispatch_rows(case, _tile(case, found), pages, [float(n) for n in batches])


def streams(
    case: Case,
    *,
    prefills_per_s: float | None = None,
    duration_s: float = 10.0,
    decode_core_share: float = 0.5,
    seed: int = 0,
    catalogue: Catalogue | None = None,
) -> StreamCase:
    """Return the batch of a case decoding without end beside prompts that come at random, under each policy.

    >>> from perfmodel import api
    >>> case = api.case("llama-3.2-1b", "a100-80gb-sxm", batch=4, isl=256, osl=16)
    >>> [run.policy for run in api.streams(case, duration_s=0.05).runs]
    ['one stream', 'equal', 'priority', 'partition']
    """
    from perfmodel.serving.stream_case import stream_case

    return stream_case(
        case,
        _tile(case, catalogue or Catalogue.standard()),
        prefills_per_s=prefills_per_s,
        duration_s=duration_s,
        decode_core_share=decode_core_share,
        seed=seed,
    )


def _tile(case: Case, catalogue: Catalogue) -> Tile:
    from perfmodel.work.tiling import Tile

    usual = catalogue.core_of(case.setup.devices[0]).tiling
    return Tile(usual.tile_m.value, usual.tile_n.value, usual.attention_rows.value)


def profile(
    files: Path | str | Sequence[Path | str],
    *,
    device: str | None = None,
    faster: Mapping[str, float] | None = None,
    handover_s: float | None = 20e-6,
    catalogue: Catalogue | None = None,
) -> ProfileAnswer:
    """Return what operator timings say: shares, critical path, what-ifs, gaps to the roofline, suggestions.

    `faster` maps types of operators to how many times as fast they would be; `handover_s` None: no wait between streams
    is inferred. Raises MeasurementError for a file that is no whole profile.
    """
    from perfmodel.measure.profiling.answer import gap_prices, profile_answer
    from perfmodel.measure.profiling.profile_file import read_profile

    paths = [files] if isinstance(files, Path | str) else list(files)
    prices = gap_prices(catalogue or Catalogue.standard(), device) if device is not None else None
    what_ifs = tuple((faster or {}).items())
    return profile_answer(read_profile(paths), prices=prices, what_ifs=what_ifs, handover_s=handover_s)
