"""Memory of results: used again when nobody has it any more, and never before."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable

import pytest
import torch

from uccl_ep import _native
from uccl_ep.device.output_pool import SMALLEST, OutputPool, _strides

_LARGE = (SMALLEST, 3)


def _address(pool: OutputPool) -> int:
    return pool.empty(_LARGE, torch.uint8).data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.float32, torch.int64])
def test_shape_dtype_and_alignment_are_those_asked_for(dtype: torch.dtype) -> None:
    pool = OutputPool()
    for shape in [(0, 7168), (3, 5), (2048, 1024), (4, 300, 1024)]:
        t = pool.empty(shape, dtype)
        assert t.shape == shape and t.dtype == dtype and t.is_contiguous()
        if t.nbytes >= SMALLEST:
            assert t.data_ptr() % 4096 == 0
            t.view(torch.uint8).fill_(7)
            assert int(t.view(torch.uint8).sum()) == 7 * t.nbytes


def test_dropped_memory_is_used_again_also_for_a_few_rows_less() -> None:
    pool = OutputPool()
    first = pool.empty((1000, 7168), torch.bfloat16)
    address = first.data_ptr()
    del first
    assert pool.kept_bytes >= 1000 * 7168 * 2
    again = pool.empty((990, 7168), torch.bfloat16)
    assert again.data_ptr() == address and pool.kept_bytes == 0


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("keep", ["slice", "other dtype", "detached", "storage", "autograd"])
def test_what_still_looks_at_a_result_keeps_its_memory(keep: str) -> None:
    pool = OutputPool()
    t = pool.empty((1024, 1024), torch.float32)
    t.fill_(3)
    address = t.data_ptr()
    weight = torch.ones(1, requires_grad=True)
    ways: dict[str, Callable[[torch.Tensor], object]] = {
        "slice": lambda x: x[5:6],
        "other dtype": lambda x: x.view(torch.int32),
        "detached": lambda x: x.detach(),
        "storage": lambda x: x.untyped_storage(),
        "autograd": lambda x: (x * weight).sum(),  # saves x for the backward
    }
    held = ways[keep](t)
    del t
    gc.collect()
    assert pool.kept_bytes == 0
    assert pool.empty((1024, 1024), torch.float32).data_ptr() != address
    if keep == "autograd":
        assert isinstance(held, torch.Tensor)
        held.backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None and float(weight.grad) == 3 * 1024 * 1024
    del held
    gc.collect()
    assert address in {pool.empty((1024, 1024), torch.float32).data_ptr() for _ in range(2)}


def test_live_results_never_overlap() -> None:
    pool, live, draw = OutputPool(), [], random.Random(1)
    for tag in range(120):
        rows = draw.randrange(1, 40)
        t = pool.empty((rows, SMALLEST // 8), torch.uint8)
        t.fill_(tag)
        live.append((tag, t))
        if len(live) > 6 or draw.random() < 0.3:
            live.pop(draw.randrange(len(live)))
        assert all(bool((kept == value).all()) for value, kept in live)


def test_no_more_is_kept_than_was_in_use_at_once() -> None:
    pool = OutputPool()
    for rows in range(1, 12):
        pool.empty((rows, SMALLEST * 2), torch.uint8)  # dropped at once
    assert pool.kept_bytes <= 11 * SMALLEST * 2 + SMALLEST * 4
    both = [pool.empty(_LARGE, torch.uint8) for _ in range(2)]
    del both
    assert pool.kept_bytes <= 11 * SMALLEST * 2 + SMALLEST * 4


def test_close_lets_go_and_what_is_still_held_stays_readable() -> None:
    pool = OutputPool()
    held = pool.empty(_LARGE, torch.uint8)
    held.fill_(9)
    _address(pool)
    pool.close()
    pool.close()
    assert pool.kept_bytes == 0
    assert bool((held == 9).all())
    del held
    assert pool.kept_bytes == 0


def test_threads_may_share_a_pool() -> None:
    pool, wrong = OutputPool(), []

    def work(tag: int) -> None:
        for _ in range(30):
            t = pool.empty(_LARGE, torch.uint8)
            t.fill_(tag)
            if not bool((t == tag).all()):
                wrong.append(tag)

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_result_that_is_dropped_inside_of_the_pool_comes_back_later() -> None:
    # As a garbage collection does in the middle of taking: the lock is held, by this thread or by another.
    pool = OutputPool()
    t = pool.empty(_LARGE, torch.uint8)
    address = t.data_ptr()
    with pool._lock:
        del t
        assert pool._free == []
    assert pool.kept_bytes >= SMALLEST * 3
    assert _address(pool) == address


def test_strides_are_those_of_contiguous_tensors() -> None:
    for shape in [(7,), (2, 3), (4, 1, 5), (2, 0, 3), (3, 2, 4, 5)]:
        t = torch.empty(shape)
        assert torch.empty_strided(shape, _strides(shape)).is_contiguous()
        assert 0 in shape or tuple(_strides(shape)) == t.stride()


def _arena(num_bytes: int = 64 << 20) -> _native.Segment:
    return _native.Segment.create("test-arena", num_bytes)


def test_results_lie_in_the_arena_where_others_see_them() -> None:
    arena = _arena()
    pool = OutputPool(arena)
    first, second = pool.empty(_LARGE, torch.uint8), pool.empty((1 << 20,), torch.bfloat16)
    first.fill_(3)
    second.fill_(1.5)
    seen = torch.from_numpy(_native.Segment.adopt(os.dup(arena.fd), arena.bytes).numpy())
    for t in (first, second):
        offset = pool.arena_offset(t)
        assert offset is not None and offset % 4096 == 0
        assert torch.equal(seen[offset : offset + t.nbytes].view(t.dtype).view(t.shape), t)
    row = second[4096:]
    assert pool.arena_offset(row) == (pool.arena_offset(second) or 0) + 8192  # of what a view begins with
    assert pool.arena_offset(torch.empty(1 << 20)) is None and pool.arena_offset(second[:0]) is None
    assert OutputPool().arena_offset(first) is None


def test_what_the_arena_cannot_hold_lies_elsewhere() -> None:
    pool = OutputPool(_arena(8 << 20))
    results = [pool.empty((4 << 20,), torch.uint8) for _ in range(4)]
    assert [pool.arena_offset(t) is not None for t in results] == [True, True, False, False]
    for tag, t in enumerate(results):
        t.fill_(tag)
    assert [int(t.max()) for t in results] == [0, 1, 2, 3]
    del results, t
    assert pool.arena_offset(pool.empty((8 << 20,), torch.uint8)) == 0  # dropped halves are one range again


def test_dropped_results_leave_no_pages_in_the_arena() -> None:
    arena = _arena()
    pool = OutputPool(arena)
    pool.empty((32 << 20,), torch.uint8).fill_(1)
    assert _pages_of(arena) >= 32 << 20
    pool.close()
    assert _pages_of(arena) == 0


def test_free_memory_is_given_back_when_asked_and_the_pool_goes_on() -> None:
    arena = _arena()
    pool = OutputPool(arena)
    held, dropped = (pool.empty(_LARGE, torch.uint8) for _ in range(2))
    held.fill_(3)
    dropped.fill_(4)
    before = _pages_of(arena)
    del dropped
    pool.give_back_free()
    assert _pages_of(arena) <= before - held.nbytes and pool.kept_bytes == 0
    again = pool.empty(_LARGE, torch.uint8)
    assert not again.any() and int(held.min()) == 3


def test_results_that_take_turns_do_not_drop_each_other() -> None:
    # Dispatch's result is gone before combine makes its own: together they are more than was ever in use at once.
    pool = OutputPool(_arena())
    addresses = []
    for _ in range(4):
        first = pool.empty((20 << 20,), torch.uint8)
        addresses.append(first.data_ptr())
        del first
        second = pool.empty((12 << 20,), torch.uint8)
        addresses.append(second.data_ptr())
        del second
    assert len(set(addresses)) == 2 and pool.kept_bytes == 32 << 20
    assert len(set(addresses[4:])) == 2  # from the third round on, both stay


def _pages_of(arena: _native.Segment) -> int:
    return os.fstat(arena.fd).st_blocks * 512
