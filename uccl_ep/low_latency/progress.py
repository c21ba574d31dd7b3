"""How far a rank is with its low-latency calls, as its kernels count them in their workspace (LowLatencyState)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from uccl_ep import _native

_BEGIN = _native.LowLatencyCalls.state_at() // 8
_DISPATCHES, _COMBINES = _native.LowLatencyCalls.DISPATCHES_AT - _BEGIN, _native.LowLatencyCalls.COMBINES_AT - _BEGIN
_PHASE = _COMBINES - _DISPATCHES  # words: sent, consumed, ahead, told
_ANNOUNCEMENTS, _REDUCED = _COMBINES + _PHASE, _COMBINES + _PHASE + 1
_WORDS = _REDUCED + 1


class Progress(NamedTuple):
    """Numbers of calls; the sizes are those of the last one."""

    dispatches: int  # sent
    combines: int
    reduced: int  # of the combines
    received_dispatches: int
    received_combines: int
    announcements: int
    max_tokens: int
    hidden: int
    num_experts: int


def state_of(workspace: torch.Tensor) -> torch.Tensor:
    """The LowLatencyState in an int64 workspace."""
    return workspace[_BEGIN : _BEGIN + _WORDS]


def read_progress(workspace: torch.Tensor, shape: tuple[int, int, int]) -> Progress:
    """Of all calls whose kernels have run; `shape`: max_tokens, hidden, num_experts."""
    w = state_of(workspace).tolist()
    received = w[_DISPATCHES + 1], w[_COMBINES + 1]
    return Progress(w[_DISPATCHES], w[_COMBINES], w[_REDUCED], *received, w[_ANNOUNCEMENTS], *shape)


def take_over(workspace: torch.Tensor, other: Progress) -> None:
    """Goes on where another rank is: what this one missed counts as received, and as told."""
    state = state_of(workspace)
    for at, sent in ((_DISPATCHES, other.dispatches), (_COMBINES, other.combines)):
        state[at : at + _PHASE] = torch.tensor([sent, sent, 0, sent], dtype=torch.int64)
    state[_REDUCED] = other.reduced
