"""Two micro-batches of a rank by turns, as vLLM's dual-batch overlap (`--enable-dbo`) runs them: a thread for each.

The contexts, and when a thread gives way to the other, are vLLM's own (v1/worker/ubatching.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_POLL_S = 0.05
_LAYERS = 2  # one micro-batch is in the next while the other is in this one


class Stream:
    """A stream of a CPU: whatever is queued is done."""

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def forward_of(tokens: list[int]) -> Any:
    """A ForwardContext in which each rank has so many; the largest of all ranks sizes a decode step of V2."""
    from vllm.forward_context import DPMetadata, ForwardContext

    return ForwardContext({}, {}, {}, dp_metadata=DPMetadata(torch.tensor(tokens)))


def override_tokens(tokens: tuple[int, ...]) -> Any:
    """The context manager in which all rows of all ranks are one batch."""
    from vllm.forward_context import override_forward_context

    return override_forward_context(forward_of(list(tokens)))


def by_turns(tokens: tuple[int, ...], rank: int, run: Callable[[slice], Tensor]) -> Tensor:
    """What `run` makes of the first half and of the second half of the rank's rows, in a row.

    Raises:
        BaseException: what a thread has raised.
    """
    from vllm.v1.worker.ubatching import make_ubatch_contexts

    parts = [slice(0, tokens[rank] // 2), slice(tokens[rank] // 2, tokens[rank])]
    forwards = [forward_of([n // 2 for n in tokens]), forward_of([n - n // 2 for n in tokens])]
    ready, compute = threading.Barrier(3), Stream()
    contexts = make_ubatch_contexts(2, compute, Stream(), forwards, ready)
    made: dict[int, Tensor] = {}
    failed: list[BaseException] = []

    def one(index: int) -> None:
        try:
            torch.cuda.set_stream(compute)  # type: ignore[arg-type]
            with contexts[index]:
                for _ in range(_LAYERS):
                    made[index] = run(parts[index])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(2)]
    for thread in threads:
        thread.start()
    ready.wait()
    contexts[0].cpu_wait_event.set()
    while any(thread.is_alive() for thread in threads) and not failed:
        threads[0].join(_POLL_S)
        threads[1].join(_POLL_S)
    if failed:  # the other one waits for it
        raise failed[0]
    return torch.cat([made[0], made[1]])
