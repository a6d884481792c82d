"""Decoding with GQA: keys repeated for every query head, against keys read where they lie.

Run: OMP_NUM_THREADS=2 python benchmarks/decode_gqa.py [--rounds 15] [--markdown FILE]

Shapes: Llama-2-70B at tensor parallel 4, so 16 query and 2 KV heads a card, head_dim 128, bf16, at the batches and
lengths of optimum-habana PR #626. The published ratio there is of whole generations on Gaudi2, tokens a second without
repeat_kv by those with; here it is one attention call of one layer in the middle of decoding, on a CPU. They answer the
same question on other machines and need not agree.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from timing import Table, interleaved, machine, median, paired_ratio, write

from gaudi_validate.attention.naive import naive_attention, repeat_kv
from gaudi_validate.attention.sliced import sliced_attention

HEADS, HEAD_DIM = 16, 128
SOURCE = "optimum-habana PR #626"


@dataclass(frozen=True)
class Setting:
    """A row of the published table; ``ratio`` is ``None`` where only "no gain" is published."""

    batch: int
    input_tokens: int
    new_tokens: int
    kv_heads: int
    ratio: str


SETTINGS = (
    Setting(8, 128, 128, 2, "1.18"),
    Setting(16, 512, 512, 2, "2.04"),
    Setting(8, 1024, 1024, 2, "2.24"),
    Setting(8, 1024, 1024, 16, "no gain (no GQA)"),
)


def main() -> None:
    """Print the table, and write it as Markdown when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--markdown", help="write the table to this file as well")
    arguments = parser.parse_args()
    columns = ("batch", "input", "new", "KV", "keys", "repeated ms", "in place ms", "ratio", "naive / it", "published")
    table = Table(
        f"One decode step, {HEADS} query heads, head_dim {HEAD_DIM}, bf16; published: {SOURCE}, Gaudi2", columns
    )
    for setting in SETTINGS:
        table.add(*row(setting, arguments.rounds))
    write(table, machine(), arguments.markdown)


def row(setting: Setting, rounds: int) -> tuple[object, ...]:
    """Time one setting half way through its new tokens."""
    keys = setting.input_tokens + setting.new_tokens // 2
    generator = torch.Generator().manual_seed(0)
    q = torch.randn((setting.batch, HEADS, 1, HEAD_DIM), generator=generator).bfloat16()
    shape = (setting.batch, setting.kv_heads, keys, HEAD_DIM)
    k, v = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    module, groups = torch.nn.Module(), HEADS // setting.kv_heads

    def repeated() -> object:
        return sliced_attention(module, q, repeat_kv(k, groups), repeat_kv(v, groups), None)

    times = interleaved(
        {
            "repeated": repeated,
            "in place": lambda: sliced_attention(module, q, k, v, None),
            "naive": lambda: naive_attention(module, q, k, v, None),
        },
        rounds,
    )
    own = times["in place"]
    return (
        setting.batch, setting.input_tokens, setting.new_tokens, setting.kv_heads, keys,
        f"{median(times['repeated']):.2f}", f"{median(own):.2f}", f"{paired_ratio(times['repeated'], own):.2f}",
        f"{paired_ratio(times['naive'], own):.2f}", setting.ratio,
    )  # fmt: skip


if __name__ == "__main__":
    main()
