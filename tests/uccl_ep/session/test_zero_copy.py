"""Zero-copy rows are registered with NICs when they are asked for, as many as are."""

from __future__ import annotations

from typing import Any

import pytest

from uccl_ep import Buffer
from uccl_ep.errors import TransportError
from uccl_ep.fabric.choice import FabricChoice
from uccl_ep.group.thread_group import ThreadGroup, run_ranks
from uccl_ep.session import session

MIB = 1 << 20


def test_zero_copy_rows_are_admitted_once_they_are_asked_for(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(TRANSPORT="tcp", RANKS_PER_NODE=1)
    monkeypatch.setattr(FabricChoice, "registers_late", property(lambda self: True))
    admitted: list[int] = []

    def admit(self: session.ThreadProxy, num_bytes: int, address: int, dmabufs: list[int]) -> None:
        assert (address, dmabufs) == (0, [])  # the host's
        if num_bytes == 3000 and admitted[-1] != 3000:
            admitted.append(num_bytes)
            raise TransportError("no room")
        admitted.append(num_bytes)

    monkeypatch.setattr(session.ThreadProxy, "admit", admit)

    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, 0, MIB, low_latency_mode=True)
        try:
            assert not admitted
            for num_bytes in (1000, 500, 1000, 2000):
                buffer._session.zero_copy(num_bytes)
            with pytest.raises(TransportError, match="no room"):
                buffer._session.zero_copy(3000)
            buffer._session.zero_copy(3000)
            room = buffer._session.plan.zero_copy_bytes
            buffer._session.zero_copy(room + 1)  # more than there is: its caller refuses it
        finally:
            buffer.destroy()

    run_ranks(1, body)
    assert admitted == [1000, 2000, 3000, 3000]
