"""How fast bare sockets carry the rows that must cross nodes, with nothing else going on: no routing, no order, no sum.

Every rank sends what its tokens owe other nodes, each row once a node, to the rank a node's width further on, while it
receives what the rank as far behind owes; all at once, in large pieces, between memories that no cache holds. An
exchange over tcp sockets needs as long for its rows alone, and memcpy for those that it copies besides.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from uccl_ep.tools.bench.inputs import Inputs, num_visits
from uccl_ep.tools.bench.options import BenchOptions

PIECE_BYTES = 256 << 10
"""Of one system call: larger ones are not faster."""
MEMORY_BYTES = 32 << 20
"""Of each side's memory, gone round in: more than any core's cache."""
TIMEOUT_S = 120.0
_HERE = "127.0.0.1"


def crossing_rows(options: BenchOptions, inputs: Inputs, rank: int) -> int:
    """Rows of this rank's tokens that must reach other nodes: one a (token, node)."""
    visits, width = num_visits(options, inputs), options.ranks_per_node
    own = rank // width * width
    others = (visits[:, first : first + width] for first in range(0, options.ranks, width) if first != own)
    return sum(int(node.any(dim=1).sum()) for node in others)


class SocketProbe:
    """One rank's two connections, one to send by and one to receive by."""

    def __init__(self, options: BenchOptions, rank: int, inputs: Inputs, gather: Callable[[Any], list[Any]]) -> None:
        """
        Args:
            options: the ranks and the shapes.
            rank: this one.
            inputs: whose routing says how much crosses.
            gather: called by every rank once; returns what each has given to it.

        Raises:
            OSError: another rank did not come.
        """
        step = options.ranks_per_node
        self.num_bytes = crossing_rows(options, inputs, rank) * options.row_bytes
        with socket.create_server((_HERE, 0)) as server:
            server.settimeout(TIMEOUT_S)
            ranks = gather((server.getsockname()[1], self.num_bytes))
            self._to = socket.create_connection((_HERE, ranks[(rank + step) % options.ranks][0]), TIMEOUT_S)
            self._from = server.accept()[0]
        self._incoming = ranks[(rank - step) % options.ranks][1]
        self._sent, self._received = (memoryview(bytearray(b"u" * MEMORY_BYTES)) for _ in range(2))
        for end in (self._to, self._from):
            end.settimeout(TIMEOUT_S)

    def seconds(self) -> float:
        """Until this rank has sent what it owes and received what is owed to it. All ranks call it at one moment.

        Raises:
            OSError: a rank has gone.
        """
        begin = time.perf_counter()
        sender = threading.Thread(target=self._send)
        sender.start()
        self._receive()
        sender.join()
        return time.perf_counter() - begin

    def close(self) -> None:
        """Ends the connections."""
        self._to.close()
        self._from.close()

    def _send(self) -> None:
        for at, size in _pieces(self.num_bytes):
            self._to.sendall(self._sent[at : at + size])

    def _receive(self) -> None:
        for at, size in _pieces(self._incoming):
            while size != 0:
                got = self._from.recv_into(self._received[at : at + size])
                if got == 0:
                    raise ConnectionResetError("another rank of the measurement has ended")
                at, size = at + got, size - got


def _pieces(num_bytes: int) -> list[tuple[int, int]]:
    """(place in the memory, size) of each piece."""
    firsts = range(0, num_bytes, PIECE_BYTES)
    return [(first % MEMORY_BYTES, min(PIECE_BYTES, num_bytes - first)) for first in firsts]
