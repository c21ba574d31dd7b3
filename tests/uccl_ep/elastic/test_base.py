"""What V2.5's buffers share: plans of tensors, and regions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB
from uccl_ep import BufferAllocator, EPBuffer, InvalidArgument, ThreadGroup
from uccl_ep.elastic.base import BufferBase, Region


def test_base_is_no_buffer_by_itself() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BufferBase()  # type: ignore[abstract]


def test_base_region_knows_what_lies_in_it() -> None:
    region = Region("num_bytes", 2 * MIB)
    region.make(torch.device("cpu"))
    inner = region.at(64, 4096, torch.float32)
    assert region.offset_of(inner) == 64 and region.offset_of(inner[5:]) == 84 and region.offset_of(inner[7:7]) == 92
    assert region.offset_of(inner.view(32, 32).T) is None and region.offset_of(inner.clone()) is None
    assert region.offset_of(region.at(0, 2 * MIB, torch.uint8)) == 0
    assert region.offset_of(torch.empty(8 * MIB, dtype=torch.uint8)) is None


def test_plans_are_of_one_buffer_and_bytes_are_a_region_too(variables: Any, capsys: Any) -> None:
    variables()
    plan = BufferAllocator()
    tensors = [plan.allocate((3, 5), torch.float32), plan.allocate((7,), torch.bfloat16)]
    plan.allocate((0,), torch.int8)
    assert plan.num_bytes == 2 * plan.alignment == 4 * MIB
    assert [offset for _, offset in plan.allocations] == [0, 2 * MIB, 4 * MIB]
    with pytest.raises(InvalidArgument, match="storage"):
        plan.materialize(torch.zeros(5, dtype=torch.uint8))
    group = ThreadGroup.create(1)[0]
    buffer = EPBuffer(group, 2 * MIB, lb_allocation_plan_or_num_bytes=plan, explicitly_destroy=True)
    assert tensors[0].data_ptr() == buffer.lb_storage.data_ptr() and tensors[1].shape == (7,)
    tensors[1].fill_(2)
    assert bool((buffer.lb_storage[2 * MIB :][:14].view(torch.bfloat16) == 2).all())
    buffer.print_memory_usage()
    assert "region of the caller's tensors: 4 MiB" in capsys.readouterr().out
    for again in (lambda: plan.allocate((1,), torch.int8), lambda: plan.materialize(buffer.lb_storage)):
        with pytest.raises(InvalidArgument, match="already"):
            again()
    for bad in (plan, 5, -2 * MIB, True, "2"):
        with pytest.raises(InvalidArgument, match="lb_allocation_plan_or_num_bytes"):
            EPBuffer(group, 2 * MIB, lb_allocation_plan_or_num_bytes=bad)  # type: ignore[arg-type]
    buffer.destroy()
    assert tensors[1].sum() == 14  # the caller's as long as the caller has it
    plain = EPBuffer(group, 2 * MIB, lb_allocation_plan_or_num_bytes=2 * MIB, explicitly_destroy=True)
    assert plain.lb_storage.shape == (2 * MIB,) and plain.lb_get_theoretical_num_sms() > 0
    plain.destroy()
