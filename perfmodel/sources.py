"""The bibliography: where the formulas of the program come from. Figures carry their own sources in their files."""

from __future__ import annotations

from typing import Final

__all__ = ["BIBLIOGRAPHY", "citation"]

BIBLIOGRAPHY: Final[dict[str, str]] = {
    "roofline": "S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009",
    "hockney": "R. Hockney: The communication challenge for MPP, Parallel Computing 20(3), 1994 (latency + bandwidth)",
    "hierarchical-roofline": "C. Yang, T. Kurth, S. Williams: Hierarchical roofline for GPUs, CCPE 32(20), 2020",
    "amdahl": "G. Amdahl: Validity of the single processor approach, AFIPS 1967",
    "mattson": "R. Mattson et al.: Evaluation techniques for storage hierarchies, IBM Systems Journal 9(2), 1970 (LRU)",
    "che": "H. Che, Y. Tung, Z. Wang: Hierarchical web caching systems, IEEE JSAC 20(7), 2002 (characteristic time)",
    "thakur": "R. Thakur, R. Rabenseifner, W. Gropp: Collective communication operations, IJHPCA 19(1), 2005",
    "megatron": "M. Shoeybi et al.: Megatron-LM, arXiv 1909.08053 (two all-reduces per layer)",
    "gpipe": "Y. Huang et al.: GPipe, arXiv 1811.06965 (pipeline bubbles)",
    "flash-attention": "T. Dao et al.: FlashAttention, arXiv 2205.14135 (scores never reach main memory)",
    "gqa": "J. Ainslie et al.: GQA, arXiv 2305.13245",
    "deepseek-v2": "DeepSeek-AI: DeepSeek-V2, arXiv 2405.04434 (multi-head latent attention)",
    "deepseek-v3": "DeepSeek-AI: DeepSeek-V3 Technical Report, arXiv 2412.19437",
    "leviathan": "Y. Leviathan et al.: Fast inference by speculative decoding, arXiv 2211.17192",
    "energy": "Linear interpolation between idle and board power: L. Barroso, U. Hoelzle, IEEE Computer 40(12), 2007",
    "mva": "M. Reiser, S. Lavenberg: Mean-value analysis of closed multichain queuing networks, JACM 27(2), 1980",
    "operational-analysis": "P. Denning, J. Buzen: Operational analysis of queueing network models, CSUR 10(3), 1978",
    "vllm": "W. Kwon et al.: PagedAttention, arXiv 2309.06180",
}


def citation(key: str) -> str:
    """Return the reference behind a key, or the key itself where it already is one.

    >>> citation("gqa")
    'J. Ainslie et al.: GQA, arXiv 2305.13245'
    """
    return BIBLIOGRAPHY.get(key, key)
