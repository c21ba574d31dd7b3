"""What kernels count of low-latency calls, read and taken over."""

from __future__ import annotations

import torch

from uccl_ep import _native
from uccl_ep.buffer import Buffer
from uccl_ep.group.thread_group import ThreadGroup
from uccl_ep.low_latency import progress
from uccl_ep.low_latency.progress import Progress

SIZES = 4, 256, 2
X, IDS, WEIGHTS = torch.ones(2, 256).bfloat16(), torch.tensor([[0], [1]]), torch.ones(2, 1)


def test_progress_is_what_kernels_have_counted() -> None:
    buffer = Buffer(ThreadGroup.create(1)[0], 0, 1 << 20, low_latency_mode=True, explicitly_destroy=True)
    workspace = buffer._life.low_latency._low_latency.counters
    for sent in range(1, 4):
        rows, _, handle, _, hook = buffer.low_latency_dispatch(X, IDS, 4, 2, use_fp8=False, return_recv_hook=True)
        assert progress.read_progress(workspace, SIZES) == Progress(sent, sent - 1, 0, sent - 1, sent - 1, 0, *SIZES)
        hook()
        buffer.low_latency_combine(rows, IDS, WEIGHTS, handle)
        assert progress.read_progress(workspace, SIZES) == Progress(sent, sent, 0, sent, sent, 0, *SIZES)
    buffer.destroy()


def test_progress_of_another_rank_is_taken_over() -> None:
    before = torch.arange(100, 100 + _native.LowLatencyCalls.workspace_bytes(1) // 8)
    words = before.clone()
    progress.take_over(words, Progress(7, 5, 2, 6, 4, 3, *SIZES))
    assert progress.read_progress(words, SIZES)[:5] == (7, 5, 2, 7, 5)  # what was missed counts as received
    state = progress.state_of(words)
    assert state[2] == state[6] == 0 and (state[3], state[7]) == (7, 5)  # nothing ahead, all told
    assert int((words != before).sum()) == 9  # all but the announcements, which are a rank's own
