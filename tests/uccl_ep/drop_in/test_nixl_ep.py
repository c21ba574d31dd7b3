"""nixl_ep.Buffer on us, called as vLLM and SGLang call it: ranks are threads that meet in a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from tests.end_to_end.world import World
from tests.uccl_ep.ranks import assert_low_latency, assert_refused, case, expert_rows, reference_of
from tests.uccl_ep.survival.serving import run
from uccl_ep import PeerTimeout, install_as_deep_ep, reference, uninstall_as_deep_ep
from uccl_ep.drop_in.nixl_ep import Buffer

CAPACITY, EACH, TOPK, HIDDEN, TOKENS = 4, 2, 3, 256, 8
WORLDS = [pytest.param(World(4), id="one node"), pytest.param(World(4, 2, "tcp"), id="two nodes, tcp")]


class Server:
    """One rank that serves steps of all connected ranks.

    Args:
        capacity: calls name all experts that there is room for, as vLLM's; else those of ranks up to the highest one,
            as SGLang's.
    """

    def __init__(self, rank: int, store: Any, capacity: bool) -> None:
        self.rank, self.capacity = rank, capacity
        self.buffer = Buffer(rank=rank, explicitly_destroy=True, tcp_store_group=store)
        size = Buffer.get_rdma_size_hint(TOKENS, HIDDEN, CAPACITY, CAPACITY * EACH)
        self.buffer.update_memory_buffers(num_ranks=CAPACITY, num_experts_per_rank=EACH, num_rdma_bytes=size)

    def step(self, number: int, there: Sequence[int], hook: bool = False, **use: bool) -> None:
        """Dispatch and combine, each row as the reference has it; experts of ranks that are not there get nothing."""
        size = CAPACITY if self.capacity else max(there) + 1
        shape = {"num_ranks": size, "num_experts": size * EACH, "num_topk": TOPK, "hidden": HIDDEN}
        c = case(number, "uniform", max_tokens=TOKENS, **shape)
        masked = [set(range(size)) - set(there) if r in there else set(range(size)) for r in range(size)]
        fp8 = reference.Fp8Format(False, False) if use.get("use_fp8", True) else None
        due = reference_of(c, fp8=fp8, masked=masked)
        ids, weights = c.topk_idx[self.rank], c.topk_weights[self.rank]
        rows, count, handle, event, receive = self.buffer.dispatch(
            c.x[self.rank], ids, TOKENS, size * EACH, async_finish=not hook, return_recv_hook=hook, **use
        )
        _finish(event, receive)
        assert_low_latency((rows, count, handle), due[self.rank])
        outputs = [expert_rows(r, c.shape) for r in range(size)]
        sums = reference.low_latency_combine(outputs, c.topk_idx, c.topk_weights, due, masked)
        arguments = {"topk_idx": ids, "topk_weights": weights, "handle": handle, "return_recv_hook": hook}
        out, event, receive = self.buffer.combine(x=outputs[self.rank], async_finish=not hook, **arguments)
        _finish(event, receive)
        assert torch.equal(out, sums[self.rank])

    def end(self, there: Sequence[int]) -> None:
        """Two last steps of all that are there."""
        for number in (98, 99):
            self.step(number, there)
        self.buffer.barrier()
        self.buffer.destroy()

    def masks(self) -> list[int]:
        """Who is masked or not there."""
        mask = torch.zeros(CAPACITY, dtype=torch.int32)
        self.buffer.query_mask_buffer(mask)
        return mask.nonzero().flatten().tolist()


def _finish(event: Any, receive: Callable[[], None] | None) -> None:
    if receive is not None:
        receive()
    else:
        event.current_stream_wait()


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("capacity", [True, False], ids=["experts of the capacity", "experts of connected ranks"])
@pytest.mark.parametrize("world", WORLDS)
def test_nixl_ep_ranks_join_leave_and_are_replaced(world: World, capacity: bool) -> None:
    store, left = HashStore(), threading.Event()

    def first(rank: int) -> None:
        server = Server(rank, store, capacity)
        server.buffer.connect_ranks([0, 1])
        server.step(1, (0, 1))
        assert server.masks() == [2, 3]
        server.buffer.connect_ranks([2, 3], activate=False)
        for number in (2, 3):  # the new ones are there and take no part
            server.step(number, (0, 1), hook=True)
        for joined in (2, 3):
            server.buffer.update_mask_buffer(joined, mask=False)
        assert server.masks() == []
        server.step(4, range(4))
        goes_on(server)

    def joins(rank: int) -> None:
        server = Server(rank, store, capacity)
        server.buffer.connect_ranks(list(range(4)))
        server.step(4, range(4))
        if rank == 3:
            server.buffer.barrier()
            server.buffer.destroy()
            return left.set()
        return goes_on(server)

    def goes_on(server: Server) -> None:
        server.buffer.barrier()
        server.buffer.disconnect_ranks([3])
        assert server.masks() == [3]
        server.step(5, range(3), use_fp8=False)
        assert left.wait(60)
        server.buffer.connect_ranks([3])
        server.end(range(4))

    def replaces(rank: int) -> None:
        assert left.wait(60)
        server = Server(rank, store, capacity)
        server.buffer.connect_ranks(range(4))
        server.end(range(4))

    bodies = [first, first, joins, joins]
    run(world, *(lambda r=r, body=body: body(r) for r, body in enumerate(bodies)), lambda: replaces(3))


def test_nixl_ep_of_a_server_that_warms_up_alone() -> None:
    """vLLM's new rank runs its model with all others masked; when it has unmasked them, they let it in."""
    store, warm = HashStore(), threading.Event()

    def first(rank: int) -> None:
        server = Server(rank, store, True)
        server.buffer.connect_ranks([0, 1])
        server.step(1, (0, 1))
        server.buffer.connect_ranks([2], activate=False)
        server.step(2, (0, 1))
        assert warm.wait(60)
        server.buffer.update_mask_buffer(2, mask=False)
        server.end(range(3))

    def joins() -> None:
        server = Server(2, store, True)
        server.buffer.connect_ranks(range(3))
        for rank in (0, 1):
            server.buffer.update_mask_buffer(rank, mask=True)
        server.step(9, (2,))
        for rank in (0, 1):
            server.buffer.update_mask_buffer(rank, mask=False)
        warm.set()
        server.end(range(3))

    run(World(3), lambda: first(0), lambda: first(1), joins)


def test_nixl_ep_of_servers_that_all_warm_up_alone() -> None:
    """As vLLM's ranks do when they capture their graphs anew: each by itself, and not the same number of calls."""
    store = HashStore()

    def body(rank: int) -> None:
        server = Server(rank, store, True)
        server.buffer.connect_ranks(range(3))
        server.step(1, range(3))
        others = [r for r in range(3) if r != rank]
        for other in others:
            server.buffer.update_mask_buffer(other, mask=True)
        for number in range(10, 12 + rank):
            server.step(number, (rank,))
        for other in others:
            server.buffer.update_mask_buffer(other, mask=False)
        server.end(range(3))

    run(World(3), *(lambda r=r: body(r) for r in range(3)))


def test_nixl_ep_a_rank_that_does_not_come_is_named() -> None:
    buffer = Buffer(rank=0, tcp_store_group=HashStore(), timeout_ms=100)
    assert_refused(lambda: buffer.connect_ranks([1]), ["update_memory_buffers"])
    buffer.update_memory_buffers(2, EACH, Buffer.get_rdma_size_hint(TOKENS, HIDDEN, 2, 2 * EACH))
    assert_refused(lambda: buffer.update_mask_buffer(1), ["no rank is connected"])
    with pytest.raises(PeerTimeout, match=r"rank 1 timed out.*rank\(s\) 1 of members 0, 1"):
        buffer.connect_ranks([1])
    buffer.set_tcp_store_group(None)
    assert_refused(lambda: buffer.connect_ranks([1]), ["tcp_store_group", "torch.distributed.Store"])
    assert_refused(lambda: buffer.connect_ranks([2]), ["remote_ranks", "1"])


@pytest.fixture
def hook() -> Iterator[None]:
    install_as_deep_ep()
    yield
    uninstall_as_deep_ep()


def test_nixl_ep_is_answered(hook: None) -> None:
    import nixl_ep  # type: ignore[import-not-found]
    from nixl_ep.buffer import DEFAULT_TIMEOUT_MS  # type: ignore[import-not-found]

    assert nixl_ep.Buffer is Buffer and nixl_ep.topk_idx_t is torch.int64 and DEFAULT_TIMEOUT_MS > 0
