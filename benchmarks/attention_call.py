"""One causal attention call on the CPU: naive, hpu_sliced, hpu_fused and torch's own SDPA, interleaved.

Run: OMP_NUM_THREADS=2 python benchmarks/attention_call.py [--rounds 9] [--lengths 2048 4096] [--markdown FILE]

Ratios are of one run: each round times every implementation once, in an order that changes. A row says what the two
rules ask for: hpu_sliced at least 3x faster than naive, and within 1.25x of torch's SDPA with is_causal and enable_gqa.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch
from timing import Table, interleaved, machine, median, paired_ratio, write
from torch.nn import functional

from gaudi_validate.attention.fused import fused_attention
from gaudi_validate.attention.naive import naive_attention
from gaudi_validate.attention.sliced import sliced_attention

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, KV_HEADS, HEAD_DIM = 16, 4, 128
FASTER_THAN_NAIVE, OF_SDPA = 3.0, 1.25
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def calls(s: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Return the calls to time on the same inputs, each with its output as [1, S, H, D], contiguous."""
    generator = torch.Generator().manual_seed(0)
    # As a model has them: heads split off the last dimension, then moved before the rows.
    shapes = ((1, s, HEADS, HEAD_DIM), (1, s, KV_HEADS, HEAD_DIM), (1, s, KV_HEADS, HEAD_DIM))
    q, k, v = (torch.randn(shape, generator=generator).to(dtype).transpose(1, 2) for shape in shapes)
    module = torch.nn.Module()

    def sdpa() -> torch.Tensor:
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).contiguous()

    return {
        "naive": lambda: naive_attention(module, q, k, v, None),
        "sdpa": sdpa,
        "hpu_sliced": lambda: sliced_attention(module, q, k, v, None),
        "hpu_sliced, matmul": lambda: sliced_attention(module, q, k, v, None, block_kernel="matmul"),
        "hpu_fused": lambda: fused_attention(module, q, k, v, None),
    }


def main() -> None:
    """Print the table, and write it as Markdown when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--markdown", help="write the table to this file as well")
    arguments = parser.parse_args()
    columns = ("S", "dtype", "attention", "median ms", "naive / it", "it / SDPA", "rule")
    table = Table(f"One causal call, {HEADS} heads / {KV_HEADS} KV heads, head_dim {HEAD_DIM}, batch 1", columns)
    for s in arguments.lengths:
        for name, dtype in DTYPES.items():
            times = interleaved(calls(s, dtype), arguments.rounds)
            for implementation, own in times.items():
                faster, of_sdpa = paired_ratio(times["naive"], own), paired_ratio(own, times["sdpa"])
                rule = ""
                if implementation == "hpu_sliced":
                    rule = "met" if faster >= FASTER_THAN_NAIVE and of_sdpa <= OF_SDPA else "missed"
                row = (s, name, implementation, f"{median(own):.1f}", f"{faster:.2f}", f"{of_sdpa:.2f}", rule)
                table.add(*row)
    write(table, machine(), arguments.markdown)


if __name__ == "__main__":
    main()
