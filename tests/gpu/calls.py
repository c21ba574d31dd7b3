"""One rank's calls, each result compared to the bit with the reference; the steps are those of tests/end_to_end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bench.device.platforms import Platform
from tests.end_to_end import play
from tests.end_to_end.play import same
from tests.end_to_end.steps import (
    COMBINES,
    LOW_LATENCY_FORMATS,
    THROUGHPUT_FORMATS,
    LowLatencyStep,
    Step,
    ThroughputStep,
    low_latency_expected,
    rows_of,
    throughput_expected,
)
from tests.gpu.places import Here
from uccl_ep import Buffer, Config
from uccl_ep.reference import TRAFFIC, calc_diff


@contextmanager
def buffer_for(
    group: Any, platform: Platform, steps: Sequence[Step], ranks_per_node: int, slack: int = 4
) -> Iterator[Buffer]:
    """A Buffer on the platform with room for the steps; see play.budgets."""
    nvl, rdma = play.budgets(steps, group.size(), ranks_per_node, slack)
    buffer = Buffer(group, nvl, rdma, low_latency_mode=rdma > 0, explicitly_destroy=True, device=platform.device)
    try:
        yield buffer
        platform.synchronize()
        group.barrier()
    finally:
        buffer.destroy()


def some_low_latency(seed: int, sends: Sequence[str] = ("sync", "async", "hook")) -> LowLatencyStep:
    """A step that is the same on every rank."""
    r = random.Random(seed)
    combine = r.choice(("plain", *COMBINES))
    return LowLatencyStep(
        seed,
        max_tokens=r.choice((1, 7, 16)),
        hidden=512 if combine == "logfmt" else r.choice((128, 256, 384)),
        local_experts=r.choice((1, 2, 3)),
        topk=r.choice((1, 2, 4, 8, 11)),
        traffic=r.choice(sorted(TRAFFIC)),
        format=r.choice(sorted(LOW_LATENCY_FORMATS)),
        send=r.choice(list(sends)),
        combine=combine,
    )


def some_throughput(seed: int) -> ThroughputStep:
    """Likewise."""
    r = random.Random(seed)
    with_topk = r.random() < 0.8
    return ThroughputStep(
        seed,
        max_tokens=r.choice((1, 9, 40)),
        hidden=r.choice((64, 128, 272)),
        local_experts=r.choice((1, 2, 3)),
        topk=r.choice((1, 3, 8)),
        traffic=r.choice(sorted(TRAFFIC)),
        format=r.choice(THROUGHPUT_FORMATS),
        column_major=r.random() < 0.5,
        with_topk=with_topk,
        worst=with_topk and r.random() < 0.4,
        alignment=r.choice((1, 8)),
        num_bias=r.choice((0, 1, 2)),
        num_cached=r.choice((0, 1, 2)),
        use_async=r.random() < 0.5,
        num_sms=r.choice((4, 20)),
    )


def finish(send: str, event: Any, hook: Any) -> None:
    """Ends a low-latency call the way it was begun."""
    if send == "async":
        event.current_stream_wait()
    elif send == "hook":
        hook()
    else:
        assert event.event is None and hook is None


def low_latency(buffer: Buffer, platform: Platform, step: LowLatencyStep) -> None:
    """Dispatch, compare, combine, compare."""
    assert list(low_latency_parts(buffer, platform, step)) == ["dispatched", "received", "combining"]


def low_latency_parts(buffer: Buffer, platform: Platform, step: LowLatencyStep) -> Iterator[str]:
    """The same, stopping after each call, so that two steps can be in flight at once."""
    here, rank, ranks = Here(platform), buffer.rank, buffer.group_size
    due = low_latency_expected(step, ranks)
    ids = here.put(due.case.topk_idx[rank])
    how = {"async_finish": step.send == "async", "return_recv_hook": step.send == "hook"}
    recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
        here.put(due.case.x[rank]),
        ids,
        step.max_tokens,
        ranks * step.local_experts,
        use_fp8=step.format != "bf16",
        round_scale=step.format in ("fp8_round_scale", "fp8_ue8m0"),
        use_ue8m0=step.format == "fp8_ue8m0",
        **how,
    )
    yield "dispatched"
    finish(step.send, event, hook)
    on_host = tuple(here.get(t) for t in recv_x) if isinstance(recv_x, tuple) else here.get(recv_x)
    parts = tuple(here.get(t) if isinstance(t, torch.Tensor) else t for t in handle)
    play._compare_low_latency(step, [due.received[rank]], on_host, here.get(count), parts)
    yield "received"
    rows = here.put(due.outputs[rank])
    if step.combine == "zero_copy":
        target = buffer.get_next_low_latency_combine_buffer(handle)
        target.copy_(rows)
        rows = target
    out, event, hook = buffer.low_latency_combine(
        rows,
        ids,
        here.put(due.case.topk_weights[rank]),
        handle,
        zero_copy=step.combine == "zero_copy",
        **step.combines,
        **how,
    )
    yield "combining"
    finish(step.send, event, hook)
    combined = here.get(out)
    if step.combine == "logfmt":  # devices approximate its logarithms
        assert combined.shape == due.combined[rank].shape and calc_diff(combined, due.combined[rank]) < 1e-5
    else:
        same("combined", combined, due.combined[rank])


def layout_of(buffer: Buffer, ids: torch.Tensor, experts: int, **how: Any) -> tuple[dict[str, Any], Any, Any]:
    """(dispatch's arguments, the layout, event) of get_dispatch_layout."""
    *layout, event = buffer.get_dispatch_layout(ids, experts, **how)
    names = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank")
    return dict(zip(names, layout, strict=True)), layout, event


def throughput(buffer: Buffer, platform: Platform, step: ThroughputStep, ranks_per_node: int | None) -> None:
    """Layout, dispatch, cached dispatches, combine; each compared."""
    here, rank, ranks = Here(platform), buffer.rank, buffer.group_size
    due = throughput_expected(step, ranks, ranks_per_node)
    given, want, config = due.inputs[rank], due.received[rank], Config(step.num_sms)
    ids = here.put(due.case.topk_idx[rank])
    arguments, layout, event = layout_of(buffer, ids, ranks * step.local_experts, async_finish=step.use_async)
    scales = given.scales
    recv_x, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
        here.put(given.x) if scales is None else (here.put(given.x), here.put(scales)),
        topk_idx=ids if step.with_topk else None,
        topk_weights=here.put(given.topk_weights),
        expert_alignment=step.alignment,
        num_worst_tokens=due.num_worst_tokens,
        config=config,
        previous_event=event if step.use_async else None,
        async_finish=step.use_async,
        allocate_on_comm_stream=step.use_async,
        **arguments,
    )
    play._wait(step, event)
    on_host = tuple(here.get(t) for t in recv_x) if isinstance(recv_x, tuple) else here.get(recv_x)
    play._compare_rows("recv_x", on_host, want.recv_x, want.recv_scales, want.num_rows)
    same("recv_topk_idx", here.get(recv_ids), want.recv_topk_idx)
    assert counts == due.counts[rank], f"counts per expert: {counts} instead of {due.counts[rank]}"
    parts = tuple(here.get(t) if isinstance(t, torch.Tensor) else t for t in handle)
    play._compare_handle(parts, want, [here.get(t) for t in layout])
    for call in range(1, step.num_cached + 1):
        cached(buffer, platform, step, due, (handle, call))
    weights = recv_weights if due.combined_weights is not None else None
    bias = due.bias[rank]
    moved = tuple(here.put(b) for b in bias) if isinstance(bias, tuple) else here.put(bias)
    out, out_weights, event = buffer.combine(
        here.put(due.outputs[rank]), handle, weights, bias=moved, config=config, async_finish=step.use_async
    )
    play._wait(step, event)
    same("combined", here.get(out), due.combined[rank])
    same(
        "combined weights", here.get(out_weights), None if due.combined_weights is None else due.combined_weights[rank]
    )


def cached(buffer: Buffer, platform: Platform, step: ThroughputStep, due: Any, which: tuple[Any, int]) -> None:
    """Other rows on the same routing."""
    here, (handle, call) = Here(platform), which
    own = rows_of(step, due.case, buffer.rank, call)
    rows = here.put(own[0]) if own[1] is None else (here.put(own[0]), here.put(own[1]))
    seen, *nothing, event = buffer.dispatch(
        rows, handle=handle, config=Config(step.num_sms), async_finish=step.use_async
    )
    assert nothing == [None] * 4
    play._wait(step, event)
    data, scales = seen if isinstance(seen, tuple) else (seen, None)
    compare_cached(step, due, buffer.rank, call, (here.get(data), here.get(scales)))


def compare_cached(step: ThroughputStep, due: Any, rank: int, call: int, seen: tuple[Any, Any]) -> None:
    """Rows of a cached dispatch, on the host, by where they came from."""
    want = due.received[rank]
    everybody = [rows_of(step, due.case, r, call) for r in range(len(due.inputs))]
    n = want.num_rows
    starts = torch.tensor([0] + [x.shape[0] for x, _ in everybody]).cumsum(0)
    rows = starts[want.src_rank[:n].long()] + want.src_token[:n].long()
    same(f"cached rows {call}", play.bits_of(seen[0][:n]), torch.cat([play.bits_of(x) for x, _ in everybody])[rows])
    if seen[1] is not None:
        same(f"cached scales {call}", seen[1][:n], torch.cat([s for _, s in everybody if s is not None])[rows])
