"""Playing steps on one rank: calls of the public API, each result compared to the bit with the reference.

A step is a generator that stops between its calls, so that two steps can be interleaved on one Buffer: two batches in
flight. Every rank must make its sending calls in the same order; receiving halves may come in any.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.end_to_end.steps import (
    LowLatencyStep,
    Step,
    ThroughputStep,
    low_latency_expected,
    rows_of,
    throughput_expected,
    without_torn,
)
from uccl_ep import Buffer, Config
from uccl_ep.group.topology import split_into_nodes
from uccl_ep.layout.plan import MemoryPlan, low_latency_layout
from uccl_ep.reference import calc_diff

Playing = Iterator[str]  # yields the name of what it did


def bits_of(values: Tensor) -> Tensor:
    """The bytes of a tensor of any strides."""
    return values.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same(what: str, seen: Tensor | None, due: Tensor | None) -> None:
    """Equal shape, dtype and bits."""
    assert (seen is None) == (due is None), f"{what}: {seen} instead of {due}"
    if seen is None or due is None:
        return
    assert seen.dtype == due.dtype and seen.shape == due.shape, f"{what}: {seen.dtype} {tuple(seen.shape)}"
    bits = [bits_of(t) if t.dtype.is_floating_point else t for t in (seen, due)]
    if not torch.equal(bits[0], bits[1]):
        wrong = (bits[0] != bits[1]).nonzero()
        raise AssertionError(f"{what}: {wrong.shape[0]} of {bits[0].numel()} differ, first at {wrong[0].tolist()}")


# ---- low latency ---------------------------------------------------------------------------------------------------


def low_latency(buffer: Buffer, step: LowLatencyStep) -> Playing:
    """Dispatch, compare, combine, compare."""
    rank, ranks = buffer.rank, buffer.group_size
    due = low_latency_expected(step, ranks)
    x, ids, weights = due.case.x[rank], due.case.topk_idx[rank], due.case.topk_weights[rank]
    experts = ranks * step.local_experts
    stats = torch.full((step.local_experts,), 7, dtype=torch.int32)
    waits = torch.zeros(ranks, dtype=torch.int64)
    how = {"async_finish": step.send == "async", "return_recv_hook": step.send == "hook"}
    recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
        x,
        ids,
        step.max_tokens,
        experts,
        cumulative_local_expert_recv_stats=stats,
        dispatch_wait_recv_cost_stats=waits,
        use_fp8=step.format != "bf16",
        round_scale=step.format in ("fp8_round_scale", "fp8_ue8m0"),
        use_ue8m0=step.format == "fp8_ue8m0",
        **how,
    )
    yield "send"
    _finish(step.send, event, hook)
    possible = [due.received[rank]]
    if step.torn >= 0:
        possible.append(low_latency_expected(without_torn(step), ranks).received[rank])
    _compare_low_latency(step, possible, recv_x, count, handle)
    same("cumulative stats", stats, count + 7)
    assert bool((waits >= 0).all())
    yield "receive"
    rows = due.outputs[rank]
    if step.combine == "zero_copy":
        target = buffer.get_next_low_latency_combine_buffer(handle)
        target.copy_(rows)
        rows = target
    out, event, hook = buffer.low_latency_combine(
        rows,
        ids,
        weights,
        handle,
        zero_copy=step.combine == "zero_copy",
        combine_wait_recv_cost_stats=waits,
        **step.combines,
        **how,
    )
    yield "send"
    _finish(step.send, event, hook)
    if step.combine == "logfmt":  # devices approximate its logarithms
        assert out.shape == due.combined[rank].shape and calc_diff(out, due.combined[rank]) < 1e-5
    else:
        same("combined", out, due.combined[rank])
    yield "receive"


def _finish(send: str, event: Any, hook: Any) -> None:
    if send == "async":
        event.current_stream_wait()
    elif send == "hook":
        hook()
    else:
        assert event.event is None and hook is None


def _compare_low_latency(step: LowLatencyStep, possible: list[Any], recv_x: Any, count: Tensor, handle: Any) -> None:
    """Each expert's rows are one of those that are possible: all of the sources', or without a torn one's."""
    data, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
    local, capacity, hidden = data.shape
    assert (local, hidden) == (step.local_experts, step.hidden)
    for expert, rows in enumerate(count.tolist()):
        due = next((one for one in possible if one.recv_count[expert] == rows), possible[0])
        same(f"recv_count of expert {expert}", count[expert], due.recv_count[expert])
        same(f"layout_range of expert {expert}", handle[1][expert], due.layout_range[expert])
        same(f"src_info of expert {expert}", handle[0][expert, :rows], due.src_info[expert, :rows])
        same(f"rows of expert {expert}", data[expert, :rows], due.recv_x[expert, :rows, :hidden])
        if scales is None:
            continue
        assert scales.stride(1) == 1 and scales.shape == due.scales.shape, "scales are column-major"
        if rows == 0:
            continue
        got, want = scales[expert, :rows], due.scales[expert, :rows]
        if step.format == "fp8_ue8m0":  # exponents beyond the last group of channels mean nothing
            got, want = (bits_of(s)[:, : hidden // 128] for s in (got, want))
        same(f"scales of expert {expert}", got, want)


# ---- throughput ----------------------------------------------------------------------------------------------------


def throughput(buffer: Buffer, step: ThroughputStep, ranks_per_node: int | None) -> Playing:
    """Layout, dispatch, cached dispatches, combine; each compared."""
    rank, ranks = buffer.rank, buffer.group_size
    due = throughput_expected(step, ranks, ranks_per_node)
    given, want, config = due.inputs[rank], due.received[rank], Config(step.num_sms)
    ids, experts = due.case.topk_idx[rank], ranks * step.local_experts
    layout = buffer.get_dispatch_layout(ids, experts, async_finish=step.use_async)
    previous = layout[4] if step.use_async else None
    recv_x, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
        given.x if given.scales is None else (given.x, given.scales),
        num_tokens_per_rank=layout[0],
        num_tokens_per_rdma_rank=layout[1],
        is_token_in_rank=layout[3],
        num_tokens_per_expert=layout[2],
        topk_idx=given.topk_idx,
        topk_weights=given.topk_weights,
        expert_alignment=step.alignment,
        num_worst_tokens=due.num_worst_tokens,
        config=config,
        previous_event=previous,
        async_finish=step.use_async,
        allocate_on_comm_stream=step.use_async,
    )
    yield "send"
    _wait(step, event)
    fewer = len(buffer.members()) < buffer.group_size  # a node that has lost all its ranks is no more
    for name, seen, right in zip(due.layouts[rank]._fields[:4], layout[:4], due.layouts[rank][:4], strict=True):
        if name == "num_tokens_per_rdma_rank" and fewer and right is not None:
            size = ranks_per_node or buffer.group_size
            left = sorted({member // size for member in buffer.members()})
            right = right[left] if len(left) > 1 else None
        if not step.surprise and step.torn < 0:
            same(name, seen, right)
    if step.torn >= 0:
        due, want = _torn(step, due, (recv_x, recv_ids), ranks_per_node, buffer)
    n = want.num_rows
    _compare_rows("recv_x", recv_x, want.recv_x, want.recv_scales, n)
    same("recv_topk_idx", recv_ids, want.recv_topk_idx)
    if want.recv_topk_weights is not None:
        same("recv_topk_weights", recv_weights[:n], want.recv_topk_weights[:n])
    assert counts == due.counts[rank], f"counts per expert: {counts} instead of {due.counts[rank]}"
    if step.torn < 0:
        _compare_handle(handle, want, layout)
    yield "receive"
    for call in range(1, step.num_cached + 1):
        yield from _cached(buffer, step, due, handle, call)
    weights = recv_weights if due.combined_weights is not None else None
    out, out_weights, event = buffer.combine(
        due.outputs[rank], handle, weights, bias=due.bias[rank], config=config, async_finish=step.use_async
    )
    yield "send"
    _wait(step, event)
    same("combined", out, due.combined[rank])
    same("combined weights", out_weights, None if due.combined_weights is None else due.combined_weights[rank])
    yield "receive"


def _torn(
    step: ThroughputStep, due: Any, received: tuple[Any, Tensor], ranks_per_node: int | None, buffer: Buffer
) -> tuple[Any, Any]:
    """What is due of a round in which a rank dies after it has called dispatch: all; or nothing of it, where its loss
    came before its counts were read; or in between, where what it still owed is rows of zeros that name no expert."""
    data, ids = received
    assert isinstance(data, Tensor) and due.received[buffer.rank].recv_x.dtype == data.dtype
    if data.shape[0] != due.received[buffer.rank].num_rows:
        due = throughput_expected(without_torn(step), buffer.group_size, ranks_per_node)
        return due, due.received[buffer.rank]
    want = due.received[buffer.rank]
    owed = (want.src_rank == step.torn) & (data == 0).all(1) & (ids == -1).all(1)
    rows, topk, weights = want.recv_x.clone(), want.recv_topk_idx.clone(), want.recv_topk_weights.clone()
    rows[owed], topk[owed], weights[owed] = 0, -1, 0
    return due, replace(want, recv_x=rows, recv_topk_idx=topk, recv_topk_weights=weights)


def _wait(step: ThroughputStep, event: Any) -> None:
    if step.use_async:
        event.current_stream_wait()
    else:
        assert event.event is None


def _compare_rows(what: str, seen: Any, rows: Tensor, scales: Tensor | None, n: int) -> None:
    data, got = seen if isinstance(seen, tuple) else (seen, None)
    assert data.shape == rows.shape, f"{what}: {tuple(data.shape)} instead of {tuple(rows.shape)}"
    same(what, data[:n], rows[:n])
    same(f"{what}'s scales", None if got is None else got[:n], None if scales is None else scales[:n])
    assert got is None or got.is_contiguous()


def _compare_handle(handle: Any, want: Any, layout: Any) -> None:
    """The parts of DeepEP's handle tuple that integrators read."""
    n = want.num_rows
    if len(handle) == 6:
        same("handle's source indices", handle[3][:n], want.src_token[:n])
        same("handle's is_token_in_rank", handle[4], layout[3])
    else:
        meta = handle[7][:n].contiguous().view(torch.int32).view(-1, 2)
        same("handle's source ranks", meta[:, 0].contiguous(), want.src_rank[:n])
        same("handle's source tokens", meta[:, 1].contiguous(), want.src_token[:n])
        same("handle's is_token_in_rank", handle[0], layout[3])


def _cached(buffer: Buffer, step: ThroughputStep, due: Any, handle: Any, call: int) -> Playing:
    """Other rows on the same routing."""
    want = due.received[buffer.rank]
    everybody = [rows_of(step, due.case, rank, call) for rank in range(buffer.group_size)]
    own = everybody[buffer.rank]
    seen, *nothing, event = buffer.dispatch(
        own[0] if own[1] is None else own, handle=handle, config=Config(step.num_sms), async_finish=step.use_async
    )
    assert nothing == [None] * 4
    yield "send"
    _wait(step, event)
    n = want.num_rows
    starts = torch.tensor([0] + [x.shape[0] for x, _ in everybody]).cumsum(0)
    rows = starts[want.src_rank[:n].long()] + want.src_token[:n].long()
    data, scales = seen if isinstance(seen, tuple) else (seen, None)
    same(f"cached rows {call}", bits_of(data[:n]), torch.cat([bits_of(x) for x, _ in everybody])[rows])
    if scales is not None:
        same(f"cached scales {call}", scales[:n], torch.cat([s for _, s in everybody if s is not None])[rows])
    yield "receive"


# ---- plays ---------------------------------------------------------------------------------------------------------


def budgets(steps: Sequence[Step], ranks: int, ranks_per_node: int, slack: int = 1) -> tuple[int, int]:
    """(num_nvl_bytes, num_rdma_bytes) that the steps need; rings hold `slack` times the least rows they work with."""
    topology = split_into_nodes(["host"] * ranks, ranks_per_node, 64)
    nvl = rdma = 0
    for step in steps:
        if isinstance(step, LowLatencyStep):
            layout = low_latency_layout(step.max_tokens, step.hidden, ranks * step.local_experts, topology, 0)
            rdma = max(rdma, -(-layout.bytes() // 128) * 128)
        else:
            units = MemoryPlan(topology, 0, 0, False).throughput.num_units()
            row = 16 + 4 * step.hidden + 4 * step.num_scales + 6 * step.topk + 16
            nvl = max(nvl, units * (-(-2 * row * slack // 128) * 128 + 128))
    return nvl, rdma


def playing(buffer: Buffer, step: Step, ranks_per_node: int | None) -> Playing:
    """The generator that plays a step."""
    if isinstance(step, LowLatencyStep):
        return low_latency(buffer, step)
    return throughput(buffer, step, ranks_per_node)


def play(group: Any, steps: Sequence[Step], ranks_per_node: int, slack: int = 1) -> dict[str, Any]:
    """Plays the steps one after the other, with nothing in between; returns the Buffer's statistics."""
    buffer = make_buffer(group, steps, ranks_per_node, slack)
    try:
        for step in steps:
            mask(buffer, step)
            assert set(playing(buffer, step, ranks_per_node or None)) == {"send", "receive"}
        return buffer.stats()
    finally:
        buffer.destroy()  # at once: others may still be at work, and need nothing more from this rank


def make_buffer(group: Any, steps: Sequence[Step], ranks_per_node: int, slack: int = 1) -> Buffer:
    """A Buffer with just enough memory for the steps."""
    size = group.size()
    nvl, rdma = budgets(steps, size, ranks_per_node, slack)
    shrink = any(isinstance(s, LowLatencyStep) and s.masked for s in steps)
    return Buffer(group, nvl, rdma, low_latency_mode=rdma > 0, enable_shrink=shrink, explicitly_destroy=True)


def mask(buffer: Buffer, step: Step) -> None:
    """Sets the step's masks."""
    if not buffer.enable_shrink or not isinstance(step, LowLatencyStep):
        return
    due = [int((rank in step.masked) != (buffer.rank in step.masked)) for rank in range(buffer.group_size)]
    status = torch.zeros(buffer.group_size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    for rank in range(buffer.group_size):
        if status[rank] != due[rank]:
            buffer.low_latency_update_mask_buffer(rank, bool(due[rank]))
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == due


def play_interleaved(group: Any, pairs: Sequence[tuple[Step, Step]], ranks_per_node: int, seed: int) -> None:
    """Plays both steps of each pair at once: sending halves in one order everywhere, receiving halves in any."""
    buffer = make_buffer(group, [step for pair in pairs for step in pair], ranks_per_node, slack=4)
    together, alone = random.Random(seed), random.Random(seed * 100 + buffer.rank)
    try:
        for pair in pairs:
            lanes = [playing(buffer, step, ranks_per_node or None) for step in pair]
            while lanes:
                together.shuffle(lanes)
                lanes = [lane for lane in lanes if next(lane, None) == "send"]
                for lane in alone.sample(lanes, len(lanes)):  # not in place: the next sending order is everybody's
                    assert next(lane) == "receive"
    finally:
        buffer.destroy()
