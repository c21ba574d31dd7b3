"""Memory of ranks on a GPU that outlives its owner: given back by the last thread, parked while others have it open."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from uccl_ep import _native
from uccl_ep.gpu.shared import Parked, Shared, sweep
from uccl_ep.group.handshake import Endpoints


def test_shared_memory_is_given_back_by_the_last() -> None:
    given: list[int] = []
    shared = Shared(4096, lambda: given.append(1))
    again = shared.hold()
    assert again is shared and again.address == 4096
    shared.drop()
    assert given == []
    again.drop()
    assert given == [1]


def test_shared_parked_rows_wait_for_others_to_leave_or_end() -> None:
    layout = _native.ControlLayout()
    layout.num_ranks, layout.num_channels = 3, 1
    control = _native.Segment.create("control", layout.bytes())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    others = [Endpoints(rank, pid, -1, 0, -1, 0, 0, b"") for rank, pid in ((1, os.getpid()), (2, child.pid))]
    plan = SimpleNamespace(control=layout)
    parked = Parked(Shared(0, lambda: None), control, plan, others)  # type: ignore[arg-type]
    assert parked.in_use()
    control.numpy().view("uint64")[layout.departed(1) // 8] = 2
    assert parked.in_use()
    child.communicate(b"\n")
    assert not parked.in_use()
    assert sweep() == 0
