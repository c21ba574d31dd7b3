"""Streams, events and hooks: what runs where, what waits for what, and that the host goes on meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.device.platforms import Platform
from tests.end_to_end.play import same
from tests.end_to_end.steps import LowLatencyStep
from tests.end_to_end.world import World, as_threads
from tests.gpu.calls import buffer_for, layout_of, low_latency_parts
from tests.gpu.fixed import Sizes, low_latency_values, throughput_values
from tests.gpu.places import Here, on_default_stream, open_place, run
from uccl_ep import Buffer, UcclEpError

WORLD = World(4, 2)
SLOW_CYCLES = 200_000_000  # about 0.1 s of an SM
pytestmark = pytest.mark.timeout(90)


def _delay(platform: Platform) -> None:
    """Keeps the current stream busy, where it runs behind the caller's back."""
    if platform.where.type == "cuda":
        torch.cuda._sleep(SLOW_CYCLES)  # type: ignore[no-untyped-call]


def _two_in_flight(group: Any, platform: Platform, steps: list[LowLatencyStep]) -> None:
    with buffer_for(group, platform, steps, 2) as buffer:
        first, second = (low_latency_parts(buffer, platform, step) for step in steps)
        assert next(first) == next(second) == "dispatched"
        assert next(second) == next(first) == "received"
        assert next(first) == next(second) == "combining"
        assert next(second, "done") == next(first, "done") == "done"


def test_gpu_two_micro_batches_with_hooks(platform: Platform) -> None:
    for seed in (1, 2, 3):
        run(platform, WORLD, _two_in_flight, [LowLatencyStep(seed * 10 + n, send="hook") for n in range(2)])


def _hook_on_another_stream(group: Any, platform: Platform, sizes: Sizes) -> None:
    values, here, rank = low_latency_values(sizes, 5), Here(platform), group.rank()
    step = LowLatencyStep(0, sizes.tokens, sizes.hidden, sizes.local_experts)
    with buffer_for(group, platform, [step], 2) as buffer:
        arguments = (here.put(values.x[rank]), here.put(values.ids[rank]), sizes.tokens, sizes.experts)
        buffer.low_latency_dispatch(*arguments, use_fp8=False, return_recv_hook=True)[
            4
        ]()  # first of a size: collective
        platform.synchronize()
        group.barrier()
        if rank % 2 == 1:
            group.barrier()  # comes once the others' streams are idle, although these ranks have not sent
        recv_x, count, _, event, hook = buffer.low_latency_dispatch(*arguments, use_fp8=False, return_recv_hook=True)
        assert event.event is None and hook is not None
        platform.synchronize()  # would last until the deadline if a kernel waited between the halves
        if rank % 2 == 0:
            group.barrier()
        with platform.rank():  # another stream of this thread
            hook()
            counted = here.get(count)
            due = values.received[rank]
            same("recv_count", counted, due.recv_count)  # type: ignore[union-attr]
            for expert, rows in enumerate(counted.tolist()):
                same("rows", here.get(recv_x)[expert, :rows], due.recv_x[expert, :rows])


def test_gpu_hook_on_another_stream(platform: Platform) -> None:
    run(platform, WORLD, _hook_on_another_stream, Sizes(4))


def _event_chain(group: Any, platform: Platform, sizes: Sizes) -> None:
    """Inputs that are ready late, a dispatch behind an event, its results used behind another."""
    values, here, rank = throughput_values(sizes, 6, 6), Here(platform), group.rank()
    room = [LowLatencyStep(0, sizes.tokens, sizes.hidden, sizes.local_experts)]
    with buffer_for(group, platform, [*room], 2) as low, _throughput_buffer(group, platform, sizes) as buffer:
        assert low.get_comm_stream() is not buffer.get_comm_stream()
        ids, weights = here.put(values.ids[rank]), here.put(values.weights[rank])
        arguments, _, _ = layout_of(buffer, ids, sizes.experts)
        x = torch.zeros_like(values.x[rank], device=platform.where)
        late = here.put(values.x[rank])
        _delay(platform)
        x.copy_(late)
        worst = sizes.ranks * sizes.tokens
        recv_x, *_, handle, event = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_worst_tokens=worst, previous_event=Buffer.capture(),
            async_finish=True, allocate_on_comm_stream=True, **arguments,
        )  # fmt: skip
        with event:  # the context waits when it ends
            outputs = here.put(values.outputs[rank])
        due = values.received[rank]
        n = due.num_rows  # type: ignore[union-attr]
        same("recv_x", here.get(recv_x)[:n], due.recv_x[:n])
        out, _, event = buffer.combine(outputs, handle, async_finish=True)
        event.current_stream_wait()
        same("combined", here.get(out), values.combined[rank])


def _throughput_buffer(group: Any, platform: Platform, sizes: Sizes) -> Any:
    from tests.end_to_end.steps import ThroughputStep

    step = ThroughputStep(0, sizes.tokens, sizes.hidden, sizes.local_experts, sizes.topk)
    return buffer_for(group, platform, [step], sizes.ranks_per_node or 0)


def test_gpu_events_order_what_streams_do(platform: Platform) -> None:
    run(platform, WORLD, _event_chain, Sizes(4, ranks_per_node=2))


def _goes_on(group: Any, platform: Platform, sizes: Sizes) -> None:
    values, here, rank = low_latency_values(sizes, 8), Here(platform), group.rank()
    with buffer_for(group, platform, [LowLatencyStep(0, sizes.tokens, sizes.hidden, sizes.local_experts)], 2) as buffer:
        x, ids = here.put(values.x[rank]), here.put(values.ids[rank])
        arguments = (x, ids, sizes.tokens, sizes.experts)
        buffer.low_latency_dispatch(*arguments, use_fp8=False, return_recv_hook=True)[4]()  # the first call of a size
        platform.synchronize()
        _delay(platform)
        busy = platform.driver.record(platform.driver.current_stream())
        _, count, _, _, _ = buffer.low_latency_dispatch(*arguments, use_fp8=False)
        assert not platform.driver.query(busy), "the call waited on the host for the stream"
        same("recv_count", here.get(count), values.received[rank].recv_count)  # type: ignore[union-attr]


@pytest.mark.gpu
def test_gpu_calls_do_not_wait_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    run(open_place("cuda", monkeypatch), World(2), _goes_on, Sizes(2))


def test_gpu_two_ranks_on_one_stream_are_refused(gpu: Platform) -> None:
    """On the default stream of both threads, kernels of one rank would wait behind the other's for ever."""

    def body(group: Any) -> str:
        buffer = None
        with on_default_stream(gpu):
            try:
                hint = Buffer.get_low_latency_rdma_size_hint(4, 128, 2, 2)
                buffer = Buffer(group, 0, hint, low_latency_mode=True, device=gpu.device, explicitly_destroy=True)
                x = torch.ones(4, 128, dtype=torch.bfloat16, device=gpu.where)
                ids = torch.zeros(4, 1, dtype=torch.int64, device=gpu.where)
                buffer.low_latency_dispatch(x, ids, 4, 2, use_fp8=False)
                gpu.driver.synchronize(gpu.driver.record(gpu.driver.current_stream()))
                buffer.barrier()
                return "accepted"
            except UcclEpError as error:
                return str(error)
            finally:
                try:
                    if buffer is not None:
                        buffer.destroy()
                except UcclEpError:
                    pass  # the rank that was not refused has waited in vain

    said = as_threads(World(2, timeout_s=1.5), body)
    assert any("a stream of its own" in text for text in said), said
