"""What every example of this folder runs once its ranks have found each other: one checked exchange of rows.

Put your model here. A Buffer takes a torch ProcessGroup or an MPI communicator; which ranks share a node it learns from
what they tell each other through that group, never from a launcher's environment variables.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep import Buffer

TOKENS, HIDDEN, EXPERTS_PER_RANK, TOPK = 64, 128, 4, 2
BUFFER_BYTES = 64 << 20


@dataclass(frozen=True)
class Seen:
    """What a rank found out.

    Attributes:
        rank, ranks: its number and how many there are.
        node, nodes: the node that it shares memory with, and how many there are.
        transport: the network between nodes. host: this host's name.
        received: rows that came to this rank's experts.
    """

    rank: int
    ranks: int
    node: int
    nodes: int
    transport: str
    host: str
    received: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of {self.ranks} on {self.host}: node {self.node} of {self.nodes}, "
            f"transport {self.transport}; {self.received} rows came, all {TOKENS} tokens came back right"
        )


def make_buffer(group: Any = None, comm: Any = None) -> Buffer:
    """A Buffer for throughput mode on CPU tensors; collective.

    Args:
        group: a torch.distributed ProcessGroup. comm: an mpi4py communicator; one of the two.
    """
    return Buffer(group, BUFFER_BYTES, comm=comm, explicitly_destroy=True, device="cpu")


def exchange(buffer: Buffer, seed: int = 0) -> Seen:
    """Sends every token to its experts, which give rows back as they are, and checks the sums. Collective.

    Raises:
        RuntimeError: a token came back wrong.
        PeerLost, PeerTimeout: another rank has ended or hangs.
    """
    session = buffer.runtime
    assert session is not None  # make_buffer's caller has not destroyed it
    topology, rank, ranks = session.topology, buffer.rank, buffer.group_size
    experts = EXPERTS_PER_RANK * ranks
    draw = torch.Generator().manual_seed(seed * ranks + rank)
    rows = torch.randint(0, 8, (TOKENS, HIDDEN), generator=draw).bfloat16()  # small: sums of them are exact
    topk_idx = torch.rand(TOKENS, experts, generator=draw).topk(TOPK).indices

    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
    received, _, _, _, handle, _ = buffer.dispatch(
        rows,
        topk_idx=topk_idx,
        topk_weights=torch.ones(TOKENS, TOPK),
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
    )
    combined = buffer.combine(received, handle)[0]
    wanted = rows.float() * in_rank.sum(dim=1, keepdim=True)  # a rank gives each row back once
    if not torch.equal(combined.float(), wanted):
        raise RuntimeError(f"rank {rank}: {int((combined.float() != wanted).any(dim=1).sum())} tokens came back wrong")
    node = topology.node_of[rank]
    return Seen(rank, ranks, node, topology.num_nodes, session.family, socket.gethostname(), received.shape[0])


def say(words: object) -> None:
    """Prints a line in one write: ranks share one output, and print() writes a line and its end apart when Python does
    not buffer, so that two ranks' lines can run into each other."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def run(group: Any = None, comm: Any = None) -> Seen:
    """A Buffer, one exchange, and its orderly end. Collective."""
    buffer = make_buffer(group, comm)
    try:
        seen = exchange(buffer)
        buffer.barrier()  # nobody leaves while others may still read its rows
    finally:
        buffer.destroy()
    return seen
