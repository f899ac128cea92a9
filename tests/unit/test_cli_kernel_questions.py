"""Questions about kernels, layouts and streams that make no sense: refused before anything is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_parts import Run, answer

IPC = ("issue", "ascend-910b2", "--ipc", "3.8,1.9", "--model")
LLAMA = ("llama-2-7b", "ascend-910b2")
PROFILE = str(Path(__file__).parent / "measure" / "data" / "op_summary_new.csv")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*IPC, "deepseek-r1-distill-qwen-7b", "--isl", "0"), "--isl: got '0'"),
        ((*IPC, "no-such-model"), "unknown model"),
        (("issue", "ascend-910b2", ""), "there are no instructions"),
        (("issue", "ascend-910b2", "vadd c, a, b", "--dtype", "fp15"), "unknown dtype 'fp15'"),
        (("issue", "ascend-910b2", "vadd c, a, b", "--latency", "vad=2"), "did you mean vadd"),
        (("layout",), "nothing is asked for"),
        (("layout", "[K,D]", "--size", "K=4,D=2,E=3", "--line", "64"), "--size: got E, expected some of K, D"),
        (("streams", *LLAMA, "--seed", "-1"), "--seed: got '-1'"),
        (("streams", *LLAMA, "--seed", "0.5x"), "--seed: got '0.5x'"),
        (("dispatch", *LLAMA, "--page-size", "0"), "--page-size: got '0'"),
        (("layout", "[K,D]", "--size", "K=1.5,D=2", "--line", "64"), "--size: got '1.5', expected a whole number"),
        ((*IPC, "qwen3-8b", "--isl", "2.5"), "--isl: got '2.5', expected a whole number"),
        (("fragmentation", "llama-2-7b", "--seed", "0.5"), "--seed: got '0.5', expected a whole number"),
        (("hierarchy", "matmul", "ascend-910b2", "1", "1", "1", "--tile", "8.5x8"), "--tile: got '8.5'"),
        (("fusion", *LLAMA, "--match", "40ms", "--tokens", "5"), "got --tokens and --match"),
        (("instances", *LLAMA, "--instance-gib", "nan"), "--instance-gib: got nan"),
        (("hierarchy", "matmul", "ascend-910b2", "1", "1", "1", "--order", "zig"), "expected rows, columns, group-N"),
        (
            ("precision", "drift", *LLAMA, "--points", "5=0.1,33=0.2", "--threshold", "0.15"),
            "expected at most 32 layers",
        ),
        (("profile", PROFILE, "--html", "no-such-folder/page.html"), "cannot be written"),
        (("profile", PROFILE, "--plot", "no-such-folder/heat.png"), "cannot be written"),
    ],
)
def test_what_makes_no_sense_is_refused_whole(run_cli: Run, words: tuple[str, ...], message: str) -> None:
    ran = run_cli(*words)
    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""


def test_a_batch_that_memory_does_not_hold_cannot_decode(run_cli: Run) -> None:
    """512 KiB a token: 64 GiB hold at most 131,072 tokens, 102 sequences of 1,280, before any weight."""
    ran = run_cli("streams", *LLAMA, "--batch", "103", "--isl", "1024", "--osl", "256")
    assert ran.code == 1
    assert "of 103 sequences" in ran.err
    assert ran.out == ""
    assert answer(run_cli, "streams", *LLAMA, "--batch", "2", "--isl", "1024", "--osl", "256", "--duration", "0.1")


@pytest.mark.parametrize(
    ("words", "is_priced_as_if"),
    [
        (("dispatch", "deepseek-v3", "ascend-910b2", "--batches", "1"), True),
        (("dispatch", *LLAMA, "--batches", "1,8"), False),
        (("dispatch", *LLAMA, "--batches", "1,8000"), True),
        (("recompute", "deepseek-v3", "ascend-910b2"), True),
        (("recompute", *LLAMA), False),
        (("allreduce", "deepseek-v3", "dgx-a100", "-tp", "8"), True),
        (("allreduce", "llama-3.1-8b", "dgx-a100", "-tp", "8"), False),
    ],
)
def test_what_does_not_fit_is_said_where_it_is_priced(
    run_cli: Run, words: tuple[str, ...], is_priced_as_if: bool
) -> None:
    found = answer(run_cli, *words)
    assert any(text.startswith("priced as if it fitted") for text in found["assumed"]) == is_priced_as_if


@pytest.mark.parametrize(
    ("words", "does_fit"),
    [
        (("stream", "ascend-910b2", "64GiB"), True),
        (("stream", "ascend-910b2", "65GiB"), False),
        (("gather", "ascend-910b2", "--rows", "1e12", "--row-bytes", "256", "--accesses", "1e6"), False),
        (("gather", "ascend-910b2", "--rows", "1e6", "--row-bytes", "256", "--accesses", "1e12"), True),
        (("matmul", "ascend-910b2", "1e6", "1e6", "1e6"), False),
        (("matmul", "ascend-910b2", "1e4", "1e4", "1e4"), True),
    ],
)
def test_operands_beyond_main_memory_are_told(run_cli: Run, words: tuple[str, ...], does_fit: bool) -> None:
    notes = answer(run_cli, "hierarchy", *words)["notes"]
    assert any("do not fit into 64 GiB" in text for text in notes) != does_fit
