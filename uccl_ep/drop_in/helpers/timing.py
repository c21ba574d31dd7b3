"""`deep_ep.utils.testing`: timing a call, and silencing a program's output."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

_FLUSHED_BYTES = 256_000_000  # above any GPU's level-2 cache


class empty_suppress:
    """A `with` block that changes nothing."""

    def __enter__(self) -> empty_suppress:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class suppress_stdout_stderr:
    """A `with` block in which standard output and error of this process, native code's too, go nowhere."""

    def __enter__(self) -> suppress_stdout_stderr:
        self._stack = contextlib.ExitStack()
        nowhere = self._stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            kept = os.dup(number)
            self._stack.callback(os.close, kept)
            self._stack.callback(os.dup2, kept, number)
            os.dup2(nowhere.fileno(), number)
        self._stack.enter_context(contextlib.redirect_stdout(nowhere))
        self._stack.enter_context(contextlib.redirect_stderr(nowhere))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def flush_l2_cache(enabled: bool = True) -> None:
    """Writes more than a GPU's level-2 cache holds; nothing where `enabled` is False or there is no GPU."""
    if enabled and torch.cuda.is_available():
        torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda").zero_()


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Callable[[], Any] | None = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """Mean, least and most seconds of `fn`, over num_tests calls but the first, after num_warmups that do not count.

    The host's clock is read when the device has finished, so a launch counts too; DeepEP's own reads CUDA events.

    Args:
        fn: what is timed. post_fn: called after each, outside the time. flush_l2: see flush_l2_cache.
    """
    for _ in range(num_warmups):
        fn()
    times = []
    for _ in range(num_tests):
        flush_l2_cache(flush_l2)
        _finish()
        begin = time.perf_counter()
        fn()
        _finish()
        times.append(time.perf_counter() - begin)
        if post_fn is not None:
            post_fn()
    counted = times[1:] or times
    return sum(counted) / len(counted), min(counted), max(counted)


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
