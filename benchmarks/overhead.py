"""What counting live bytes and recording attention calls cost on top of a bare forward pass.

Run: python benchmarks/overhead.py [--model tiny-llama] [--length 128] [--forwards 20]
Times are processor time of one thread, the median of the forwards: what a loaded machine adds is left out.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gaudi_validate.checks.capture import attention_calls
from gaudi_validate.core.paths import cache_dir
from gaudi_validate.measure.live_bytes import LiveByteCounter
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.pool import ModelPool
from gaudi_validate.ports.resolve_port import resolve_port

if TYPE_CHECKING:
    from collections.abc import Callable


class Nothing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The cheapest dispatch mode that there is: the floor of every count."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--forwards", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    port = resolve_port(None, None)
    pool = ModelPool(cache_dir(os.environ))
    model = pool.get(resolve(asked.model), port, torch.float32, torch.device("cpu"))
    ids = torch.arange(asked.length)[None] % model.config.get_text_config().vocab_size
    name = port.attention or ""
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": nullcontext,
        "a dispatch mode that does nothing": Nothing,
        "live bytes": LiveByteCounter,
        "live bytes with timeline": lambda: LiveByteCounter(timeline=True),
        "attention calls, counted": lambda: attention_calls(name, model, keep=False),
        "attention calls, kept": lambda: attention_calls(name, model),
    }
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(port.active(model))
        with LiveByteCounter() as counter:
            model(ids)
        ops = counter.report().ops
        print(
            f"{asked.model}, {asked.length} tokens, {port.name}: {ops} operations a forward, torch {torch.__version__}"
        )
        print(f"{'':36}{'ms a forward':>14}{'over bare':>12}{'us an operation':>18}")
        took = forwards_ms(model, ids, ways, asked.forwards)
        for way, ms in took.items():
            over = ms - took["bare"]
            print(f"{way:36}{ms:14.2f}{ms / took['bare']:11.2f}x{over / ops * 1000:18.1f}")


def forwards_ms(
    model: Any, ids: torch.Tensor, ways: dict[str, Callable[[], AbstractContextManager[Any]]], forwards: int
) -> dict[str, float]:
    """Return the median processor time of a forward in each way, in ms: taken in turns, the first three thrown away."""
    samples: dict[str, list[int]] = {way: [] for way in ways}
    for _ in range(forwards + 3):
        for way, context in ways.items():
            with context():
                start = time.process_time_ns()
                model(ids)
                samples[way].append(time.process_time_ns() - start)
    return {way: median(taken[3:]) / 1e6 for way, taken in samples.items()}


if __name__ == "__main__":
    main()
