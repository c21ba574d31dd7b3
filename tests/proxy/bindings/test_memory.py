"""Segments from Python: arrays over them stay valid, are shared, and go with their last holder."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

from uccl_ep import _native


def mapped() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("bindings-test" in line for line in maps)


def make(num_bytes: int) -> _native.Segment:
    return _native.Segment.create("bindings-test", num_bytes)


@pytest.mark.parametrize("num_bytes", [1, 4096, 4097, 1 << 20])
def test_bindings_segment_is_zeroed_and_whole_pages(num_bytes: int) -> None:
    segment = make(num_bytes)
    array = segment.numpy()
    assert array.dtype == np.uint8 and array.shape == (segment.bytes,)
    assert segment.bytes >= num_bytes and segment.bytes % os.sysconf("SC_PAGESIZE") == 0
    assert not array.any()
    assert array.ctypes.data == segment.address


def test_bindings_segment_array_outlives_the_segment() -> None:
    before = mapped()
    segment = make(8192)
    array, other = segment.numpy(), segment.numpy()
    array[:] = 7
    tensor = torch.from_numpy(other)
    del segment, array, other
    gc.collect()
    assert mapped() > before
    assert int(tensor.sum()) == 7 * 8192
    del tensor
    gc.collect()
    assert mapped() == before


def test_bindings_segment_two_mappings_share_bytes() -> None:
    first = make(4096)
    second = _native.Segment.open(os.getpid(), first.fd, first.bytes)
    third = _native.Segment.adopt(os.dup(first.fd), first.bytes)
    first.numpy()[5] = 9
    assert second.numpy()[5] == third.numpy()[5] == 9
    assert len({first.address, second.address, third.address}) == 3
    assert second.fd == -1 and first.fd != third.fd


def test_bindings_segment_refusals_say_what_was_asked() -> None:
    segment = make(4096)
    with pytest.raises(RuntimeError, match="8192"):
        _native.Segment.open(os.getpid(), segment.fd, 8192)  # larger than it is
    with pytest.raises(RuntimeError, match=rf"{os.getpid()}.*9999|9999"):
        _native.Segment.open(os.getpid(), 9999, 4096)
    with pytest.raises(RuntimeError):
        _native.Segment.adopt(-1, 4096)
    with pytest.raises(TypeError):
        _native.Segment.create("bindings-test", -1)


def test_bindings_segment_descriptors_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    segments = [make(4096) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    segments.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_bindings_segment_gives_pages_back() -> None:
    segment = make(3 * 4096)
    segment.numpy()[:] = 5
    assert segment.give_back(4096, 4096) and not segment.give_back(4096, 4 * 4096)
    assert [int(segment.numpy()[page * 4096]) for page in range(3)] == [5, 0, 5]
