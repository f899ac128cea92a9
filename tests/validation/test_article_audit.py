"""Every claim of the founding article: its verdict, with the calculation that one can do by hand."""

from __future__ import annotations

import pytest

from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.validate.audit.run import Audit, audit, read_claims, shipped_claims
from perfmodel.validate.audit.verdict import Finding, Verdict

REPRODUCED, PLAUSIBLE, ITSELF = Verdict.REPRODUCED, Verdict.PLAUSIBLE, Verdict.CONTRADICTS_ITSELF
PHYSICS, PUBLIC, UNKNOWN = Verdict.CONTRADICTS_PHYSICS, Verdict.CONTRADICTS_SPECIFICATION, Verdict.NOT_TESTABLE


@pytest.fixture(scope="module")
def article(catalogue: Catalogue) -> Audit:
    return audit(read_claims(shipped_claims()), catalogue)


def found(article: Audit, claim: str, check: str, figure: str = "") -> Finding:
    """The finding of one kind of check on one figure of a claim."""
    return next(f for f in article.on(claim).findings if f.check == check and figure in ("", f.name))


VERDICTS = {
    # set-up
    "env-a100": PUBLIC,  # 64 cores and 128 threads, public 56 and 112; Triton 2.3.0 where vLLM 0.6.3 pins 3.0.0
    "env-workload": PUBLIC,  # the set-up starts, but lm-evaluation-harness measures accuracy and perplexity only
    # end to end
    "e2e-served-model": PHYSICS,  # 671e9 x 4.16 bits / 8 = 349 GB on a card of 85 GB
    "e2e-title": UNKNOWN,  # no figure, no model size, no load
    "e2e-7b-awq-a100": ITSELF,  # 12.3 GB where utilisation 0.9 reserves 0.9 x 85.09 = 76.6 GB
    "e2e-7b-fp16-a100": ITSELF,  # 18.9 GB likewise
    "e2e-1b3-awq-4090": ITSELF,  # 5.1 GB where 0.9 x 25.29 = 22.8 GB are reserved
    "e2e-awq-speedup": PLAUSIBLE,  # 184.2 / 116.8 - 1 = 0.577, 127 / 203 - 1 = -0.374; the model has +24 % and +42 %
    "e2e-awq-loss": UNKNOWN,  # no task and no accuracies
    "e2e-not-linear": ITSELF,  # 7 / 1.3 = 5.4, no halving
    "e2e-batch16-pcie": PHYSICS,  # 16 x 152064 x 2 bytes = 4.9 MB a step of 7.7 ms: 0.63 GB/s of 31.5
    # 910B hardware
    "hw-910b-vector-units": PUBLIC,  # 32 where there are 2 vector cores an AI core
    "hw-910b-bw-fp16": PUBLIC,  # 2048 GB/s where public sources print 1600 to 1800
    "hw-910b-int4-group": UNKNOWN,  # nothing public
    "hw-910b-bw-int4": ITSELF,  # 3650 GB/s through a network of 2000 GB/s
    "hw-cann": PLAUSIBLE,  # 6.3 and 7.0: two versions, two measurements
    # MLA layouts: the cache of a token and layer is 512 + 64 elements, without heads
    "mla-v2-query": PUBLIC,
    "mla-v3-query": PUBLIC,
    "mla-fa3": PUBLIC,  # FlashAttention-3 runs on Hopper
    # fusion
    "fusion-kernel": PUBLIC,  # CUDA on an Ascend card
    "fusion-kv-latency": PLAUSIBLE,  # 42.3 / 18.7 = 2.26 where bytes give 2.5 to 2.9
    "fusion-kv-memory": PLAUSIBLE,  # 1 - 9.8 / 14.2 = 31 % where the peak of live tensors does not fall
    "fusion-traffic": REPRODUCED,  # norm, rope, cache write: 3 kernels touch the vector, 1 fused
    # memory wall
    "wall-matmul": PLAUSIBLE,  # 89 % and a hit rate of 43 %: each byte 9.4 times, though 96 MiB fit into the L2
    "wall-gnn": PLAUSIBLE,  # a table of 586 MiB gives 31 % hits and 62 % of the bandwidth; its size is not stated
    "wall-probe": PUBLIC,  # an FPGA's counters
    # scheduling
    "sched-prefill": PLAUSIBLE,  # 87.3 us are 8.7 operators of 10 us; a step has hundreds
    "sched-decode": PLAUSIBLE,  # 12.6 us is one operator; 41 % lies between eager (36 %) and graph (80 %)
    "sched-workspace": PLAUSIBLE,  # a second stream at batch 1 beside 4 x 512 tokens adds 5 % at most
    "sched-tlb": PLAUSIBLE,  # 1.6e12 x 0.5 us / (2 MiB x 24) = 1.6 %; 14.2 % would be pages of 229 KiB
    # precision
    "rope-layer5": REPRODUCED,  # 2^-11 / 2 x 0.7213 = 0.0176 % <= 0.023 % and 0.087 % <= 3 sqrt(2) 2^-11 = 0.207 %
    "rope-layer12": REPRODUCED,
    "rope-fallback": PLAUSIBLE,  # 0.15 % < 0.207 %: one rotation alone can trip it
    "rope-index": PHYSICS,  # 2^16 = 65,536 < 163,840
    "quant-fp16": REPRODUCED,  # a reference against itself
    "quant-awq": PLAUSIBLE,  # 12.74 / 8.21 - 1 = 55 %, published 0.6 to 2.7 %
    "quant-awq-gptq": REPRODUCED,  # 8.59 / 8.21 - 1 = 4.6 %, published 1.7 to 10.5 %
    # IPC
    "ipc-static": PLAUSIBLE,  # 3.8 beside 3.27: two programs; three dispatchers of an assumed 1 a cycle give 3
    "ipc-dynamic": PLAUSIBLE,  # 3.8 / 1.9 - 1 = 100 % at most, stated 112 %: 1.06 times the instructions
    "ipc-raw-stall": PUBLIC,  # 2 cycles where a dependent vector call waits 22 to 29
    "ipc-drop-range": REPRODUCED,  # 1 - 1.9 / 3.8 = 50 %, inside of 37 to 62 %
    # KV fragmentation
    "frag-fixed": PLAUSIBLE,  # 1 - 26,000 / 32,000 = 18.75 %; 31.2 % where conversations grow from 66 % of their length
    "frag-dynamic": PLAUSIBLE,  # blocks of 128 waste 64 / 26,000 = 0.24 %; 9.8 % are blocks of 5,700 tokens
    "frag-memory-drop": REPRODUCED,  # 18.75 %, printed as 18.7
    "frag-lengths": REPRODUCED,  # 31,000 + 1,000 tokens x 57,344 bytes = 1.84 GB beside 15.2 GB of weights
    "frag-release-latency": PLAUSIBLE,  # 42 ms x 2039 GB/s / 2 = 43 GB copied: half of the card
    # IPC decay
    "decay-1": PLAUSIBLE,  # 3.27 = base, above the 3 of an assumed issue width
    "decay-4": ITSELF,  # 2.59 / 2.61 - 1 = -0.77 %, but the formula gives 0.946
    "decay-12": ITSELF,  # 1.55 / 1.53 - 1 = 1.31 %, but the formula gives 0.679
    "decay-16": PLAUSIBLE,  # 2.61 / 3.27 - 1 = -20 % at four instances on eight cards
    "decay-formula": ITSELF,  # R2 of -1.48, stated 0.983
    "decay-knee": ITSELF,  # contended beyond 6, yet down by a fifth at 4
    # all-reduce
    "ar-fine": PLAUSIBLE,  # 1.25 MiB / (8 x 64 x 2) = 1280 tokens; 34 to 48 % of the step in the model, stated 18 %
    "ar-coarse": PLAUSIBLE,  # 2 x 0.18 / 1.18 = 30.5 %: follows from the fine row, not from the model's order
    "ar-misaligned": PLAUSIBLE,  # 64 x 2 bytes fill units of 128; 80 x 2 = 160 of 256 would lose 37.5 %
    "ar-pressure": ITSELF,  # 31 / 18 - 1 = 72 %, 2.5 / 1.25 - 1 = 100 %, stated 42 %
    "ar-code": ITSELF,  # 32 / 4 = 8 heads, not 4; 16,384 x 4 bytes = 66 kB, not 1.25 MB
    "ar-shape": REPRODUCED,  # 32 x 64 = 2048, 32 / 8 = 4
    # profiler
    "prof-matmul": REPRODUCED,  # 127.4 / 0.38 = 335 ms and 42.1 / 0.13 = 324 ms meet within their digits
    "prof-softmax": REPRODUCED,  # 42.1 x 0.38 / 127.4 = 12.6 %
    "prof-advice": PUBLIC,  # no convolution in the model
    # operations
    "hpa": PHYSICS,  # 250 requests/s x 512 tokens x 2 x 6.5e9 flop = 1.7 Pflop/s on a card of 312 Tflop/s
    "ops-gateway": UNKNOWN,
    "ops-clouds": UNKNOWN,
}


def test_no_coefficient_comes_from_the_article() -> None:
    """Calibrations and runtimes are fitted to other people's measurements."""
    home = builtin_home() / "hardware"
    for path in (*(home / "calibration").glob("*.yaml"), *(home / "runtimes").glob("*.yaml"), *home.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        assert "founding article" not in text, path.name
        assert "000_ad1258a98627b527" not in text, path.name


def test_every_claim_is_judged(article: Audit) -> None:
    assert {judgement.id for judgement in article.judgements} == set(VERDICTS)
    assert len(VERDICTS) == 64
    assert sum(article.counts.values()) == 64
    for judgement in article.judgements:
        assert judgement.findings
        assert all(finding.reason for finding in judgement.findings), judgement.id


@pytest.mark.parametrize("claim", VERDICTS)
def test_verdict(article: Audit, claim: str) -> None:
    assert article.on(claim).verdict is VERDICTS[claim], article.on(claim).deciding


def test_the_host_named_has_other_cores_and_the_software_does_not_go_together(article: Audit) -> None:
    assert found(article, "env-a100", "spec", "n_cores").model == 56
    assert found(article, "env-a100", "spec", "n_threads").model == 112
    reasons = [f.reason for f in article.on("env-a100").findings if f.check == "requires"]
    assert any("triton 2.3.0 fails ==3.0.0" in r for r in reasons)
    assert any("transformers 4.44.0 fails >=4.45.0" in r for r in reasons)


def test_the_served_model_does_not_fit_one_card(article: Audit) -> None:
    """671.0e9 parameters against a row that says 7B; 71.33 GiB of budget against 329 GiB of weights and cache."""
    fit = found(article, "e2e-served-model", "feasible")
    assert "71.33 GiB" in fit.reason
    assert "329 GiB" in fit.reason
    assert found(article, "e2e-served-model", "spec").model == pytest.approx(671.03e9, rel=1e-3)


@pytest.mark.parametrize(
    ("claim", "stated", "budget_gb"),
    [
        ("e2e-7b-awq-a100", 12.3, 0.9 * 79.25 * 1.073741824),  # 76.58
        ("e2e-7b-fp16-a100", 18.9, 0.9 * 79.25 * 1.073741824),
        ("e2e-1b3-awq-4090", 5.1, 0.9 * 23.55 * 1.073741824),  # 22.76
    ],
)
def test_memory_cannot_be_the_peak_of_an_engine_that_reserves_a_share(
    article: Audit, claim: str, stated: float, budget_gb: float
) -> None:
    finding = found(article, claim, "memory_peak")
    assert finding.stated == pytest.approx(stated * 1e9)
    assert finding.low / 1e9 == pytest.approx(budget_gb - 0.1, abs=0.05)
    assert finding.verdict is ITSELF


def test_rates_are_those_of_one_request(article: Audit) -> None:
    """AWQ: 7.6e9 x 0.5 bytes and the tables, 5.57 GB, at 2039 GB/s take 2.7 ms: at most 366 tokens/s for one request.

    Stated are 184.2 for 32; FP16 moves 14.2 GB without the input table: at most 144 tokens/s, stated 116.8.
    """
    awq, fp16 = (found(article, f"e2e-7b-{q}-a100", "throughput") for q in ("awq", "fp16"))
    for finding in (awq, fp16):
        assert finding.verdict is PLAUSIBLE
        assert "about one request" in finding.reason
        assert finding.model > 10 * finding.stated


def test_the_gain_of_awq_follows_from_the_rows_and_not_from_the_model(article: Audit) -> None:
    gain = found(article, "e2e-awq-speedup", "arithmetic", "gain_frac")
    assert gain.model == pytest.approx(184.2 / 116.8 - 1)
    change = found(article, "e2e-awq-speedup", "arithmetic", "ttft_change_frac")
    assert change.model == pytest.approx(127 / 203 - 1)
    assert gain.verdict is change.verdict is REPRODUCED
    model = found(article, "e2e-awq-speedup", "speedup", "ttft_change_frac")
    assert model.model > 0, "weight-only kernels expand weights before they multiply: prefill is no quicker"


def test_pcie_cannot_be_what_saturates(article: Audit) -> None:
    """Even all logits at each step: 16 x 152,064 x 2 bytes = 4.87 MB, at 7.7 ms 0.63 GB/s of 31.5 GB/s: 2 %."""
    finding = found(article, "e2e-batch16-pcie", "limit_cause")
    assert finding.model == pytest.approx(0.02, abs=0.004)
    assert "host" in finding.reason
    assert "memory bandwidth" in finding.reason


def test_a_smaller_model_gains_less_than_its_bytes_and_memory_is_not_why(article: Audit) -> None:
    """7B and 1.5B in 4 bits on one 4090: 5.57 / 1.61 = 3.5 times fewer bytes. Bound by memory the rate would follow."""
    finding = found(article, "e2e-not-linear", "less_than_proportional")
    assert 1 < finding.model < 3.5 * 0.9
    assert "limited by host" in finding.reason
    assert finding.verdict is PLAUSIBLE


def test_bandwidths(article: Audit) -> None:
    fp16, int4 = "hw-910b-bw-fp16", "hw-910b-bw-int4"
    assert found(article, fp16, "arithmetic").model == pytest.approx(1872 / 2048)
    assert found(article, int4, "arithmetic").model == pytest.approx(3650 / 4096)
    assert found(article, fp16, "limit").verdict is REPRODUCED  # 1872 <= 2000
    assert found(article, int4, "limit").verdict is ITSELF  # 3650 > 2000
    assert found(article, int4, "same").verdict is ITSELF  # 4096 and 2048 for one memory
    for claim in (fp16, int4):
        assert found(article, claim, "bandwidth").verdict is PLAUSIBLE, "only out of L2: 1872 > 1800, 3650 < 7000"
        assert found(article, claim, "spec").model == 1.6e12


def test_the_other_cut_of_the_dispatch_row_contradicts_the_decode_row(article: Audit) -> None:
    """87.3 us >= 12.6 us; cut the other way a batch of 48 would take 7.3 us, less than one decoded token."""
    judgement = article.on("sched-prefill")
    assert "batch 4" in judgement.reading
    assert judgement.other_readings == (("cut as batch 48, 7.3 us, 92 %", ITSELF),)


def test_drift_reaches_the_threshold_soon(article: Audit) -> None:
    """Largest errors 0.087 (layer 5) and 0.132 % (12): linear 12 + 0.018 / 0.00643 = 14.8; power 0.476: 15.7."""
    finding = found(article, "rope-fallback", "drift_threshold")
    assert finding.model == pytest.approx(3 * 2**0.5 * 2**-11)
    assert "layer 14.8" in " ".join(finding.working)
    assert "layer 15.7" in " ".join(finding.working)


def test_cache_lines_of_the_layouts(article: Audit) -> None:
    """A head of 192 fp16 values is 384 bytes at a stride of 128 x 384: with lines of 512, half of each is of use.

    Lines a run touches: (128 x ceil(384 / 128) + 512 - 128) / 512 = 1.5; 384 / (1.5 x 512) = 50 %.
    """
    v2, v3 = (found(article, claim, "line_use") for claim in ("mla-v2-query", "mla-v3-query"))
    assert v2.model == pytest.approx(0.5)
    assert v2.verdict is REPRODUCED
    assert v3.model == pytest.approx(1.0)
    assert v3.verdict is PLAUSIBLE
    assert "1152 bytes aligned to 32 on lines of 128 give 92.3 %" in v3.reason


def test_fusion(article: Audit) -> None:
    gain = found(article, "fusion-kv-latency", "fusion_gain")
    assert gain.stated == pytest.approx(42.3 / 18.7)
    assert 1 < gain.low < gain.high < 3
    memory = found(article, "fusion-kv-memory", "fusion_memory")
    assert memory.stated == pytest.approx(1 - 9.8 / 14.2)
    assert memory.model <= 0, "what is written must be alive beside what is read"


def test_dispatch_and_page_walks(article: Audit) -> None:
    assert found(article, "sched-decode", "dispatch_time").model == pytest.approx(10e-6)
    walks = found(article, "sched-tlb", "page_walks")
    assert walks.model == pytest.approx(1.6e12 * 0.5e-6 / (2**21 * 24))


def test_a_fall_of_ipc_bounds_the_time(article: Audit) -> None:
    change = found(article, "ipc-dynamic", "issue_change")
    assert change.model == pytest.approx(1.0)
    assert change.high == pytest.approx(3.85 / 1.85 - 1)
    assert "1.06 times the instructions" in change.reason
    assert article.on("ipc-dynamic").other_readings == (("cut as 1.91, 12 %", PLAUSIBLE),)
    assert found(article, "ipc-raw-stall", "instruction_latency").high == pytest.approx(29.1)


def test_kv_waste(article: Audit) -> None:
    """Growing evenly from a share p: 1 - (1 + p) / 2 x E[n^2] / (E[n] 32,000), E[n^2] / E[n] = 26,462: p = 0.66."""
    fixed = found(article, "frag-fixed", "kv_waste")
    assert fixed.model == pytest.approx(1 - 26_000 / 32_000)
    assert "start at 66 %" in fixed.reason
    assert found(article, "frag-memory-drop", "kv_waste").verdict is REPRODUCED
    blocks = found(article, "frag-dynamic", "kv_waste")
    assert blocks.model == pytest.approx(64 / 26_064, rel=0.02)


def test_matmul_and_gather_through_the_memory(article: Audit) -> None:
    """3 x 4096^2 x 2 bytes = 96 MiB; tiles of 128 x 256 ask 2 x 4096^3 (1/128 + 1/256) bytes = 1.5 GiB of the L2."""
    use = found(article, "wall-matmul", "matmul_memory", "hbm_frac")
    assert use.model == pytest.approx(96 * 2**20 / 1.6e12 / 470e-6, rel=0.05)
    assert "9.4 times" in use.reason
    gather = found(article, "wall-gnn", "gather_memory")
    assert gather.model == pytest.approx(0.62, abs=0.02)


def test_a_further_instance_costs_less_at_the_end(article: Audit) -> None:
    """3.27 / 2.61 = 1.253, / 1.53 = 2.137, / 1.42 = 2.303: 0.253 / 3, 0.884 / 8 and 0.166 / 4 for each further one."""
    assert "8.4 % from 1 to 4, 11.1 % from 4 to 12, 4.1 % from 12 to 16" in found(article, "decay-knee", "knee").reason
    for claim, share in (("decay-4", 2.61 / 3.27), ("decay-12", 1.53 / 3.27), ("decay-16", 1.42 / 3.27)):
        finding = found(article, claim, "instance_speed")
        assert finding.stated == pytest.approx(share)
        assert finding.low < share < finding.high, "between all on one card and spread evenly"


def test_positions(article: Audit) -> None:
    short, long = (f for f in article.on("rope-index").findings if f.check == "index_range")
    assert (short.stated, short.model, short.verdict) == (65536, 32000, REPRODUCED)
    assert (long.stated, long.model, long.verdict) == (65536, 163840, PHYSICS)


def test_perplexities(article: Audit) -> None:
    assert found(article, "quant-awq", "perplexity_rise").stated == pytest.approx(12.74 / 8.21 - 1)
    assert found(article, "quant-awq", "perplexity_rise").high == pytest.approx(3.41 / 3.32 - 1)
    assert found(article, "quant-awq-gptq", "perplexity_rise").stated == pytest.approx(8.59 / 8.21 - 1)


def test_the_formula_as_printed_gives_neither_points_nor_fits(article: Audit) -> None:
    """3.27 (1 - 0.82 (1 - 1 / (1 + n^1.35))): n = 4: 4^1.35 = 6.498, 1 / 7.498 = 0.1334, 3.27 x 0.2894 = 0.946."""
    assert found(article, "decay-4", "arithmetic", "fit_ipc").model == pytest.approx(0.946, abs=1e-3)
    assert found(article, "decay-12", "arithmetic", "fit_ipc").model == pytest.approx(0.679, abs=1e-3)
    finding = found(article, "decay-formula", "formula_fit")
    assert finding.model == pytest.approx(-1.48, abs=0.01)
    assert any("what does fit" in line for line in finding.working)


def test_all_reduce_figures_disagree(article: Audit) -> None:
    assert found(article, "ar-pressure", "arithmetic").model == pytest.approx(31 / 18 - 1)
    assert found(article, "ar-code", "arithmetic", "n_heads_per_device").model == 8
    assert found(article, "ar-code", "limit").model == pytest.approx(1.25e6 / 4)


def test_messages(article: Audit) -> None:
    """1.25 MiB are 320 tokens of 2048 x 2 bytes, or 1280 of 8 heads x 64 x 2; doubled messages take 0.36 / 1.18."""
    assert (
        "320 tokens of the whole width, 1,280 of a slice of 8 heads" in found(article, "ar-fine", "message_size").reason
    )
    growth = found(article, "ar-coarse", "share_growth")
    assert growth.model == pytest.approx(0.36 / 1.18)
    assert growth.verdict is REPRODUCED
    fine, coarse = (found(article, claim, "communication_share") for claim in ("ar-fine", "ar-coarse"))
    assert fine.model > coarse.model, "more groups have more starts"
    assert found(article, "ar-misaligned", "row_padding").model == 0.0


def test_replicas_of_250_requests_a_second(article: Audit) -> None:
    """Prefill alone: 512 tokens x 2 x 6.53e9 = 6.7 Tflop at 312 Tflop/s: 47 requests/s at most, decode not counted."""
    finding = found(article, "hpa", "autoscaler")
    assert finding.model < 47
    assert "above the hard bound of 4" in finding.reason
    assert "hard bound" in finding.reason
    assert "the count stays at 2" in finding.working[-1]
