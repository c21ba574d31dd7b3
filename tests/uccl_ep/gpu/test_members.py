"""A change of members on the fake GPU, which is as strict as a real one about streams, memory and capture: the next
life is built beside kernels and replays of the present one, and nothing of that is held afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_graphs import LowLatencyInputs, full_case
from tests.uccl_ep.gpu.test_memory import NOTHING
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import assert_low_latency, reference_of
from uccl_ep import Buffer, InvalidArgument, ThreadGroup, UcclEpError

MOST = 400


@pytest.mark.timeout(120)
@pytest.mark.parametrize("per_node, transport", [(0, "auto"), (1, "loopback")])
def test_gpu_members_join_while_the_others_replay_graphs(
    variables: Any, monkeypatch: pytest.MonkeyPatch, per_node: int, transport: str
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport)
    driver = install(monkeypatch, FakeDriver(num_sms=6 * 3))
    old = ThreadGroup.create(2)
    cases = {ranks: full_case(700 + ranks, ranks, max_tokens=8) for ranks in (2, 3)}
    wanted = {ranks: reference_of(c) for ranks, c in cases.items()}

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        hint = max(Buffer.get_low_latency_rdma_size_hint(8, 128, ranks, 2 * ranks) for ranks in cases)
        buffer = Buffer(group if rank == 2 else old[rank], 0, hint, low_latency_mode=True, explicitly_destroy=True)

        def captured() -> tuple[Any, Any]:
            """A graph of a dispatch and a combine, and what the dispatch returns."""
            ranks = buffer.group_size
            inputs = LowLatencyInputs(cases[ranks].shape, 2)

            def calls() -> Any:
                got = buffer.low_latency_dispatch(inputs.x, inputs.ids, 8, 2 * ranks, use_fp8=False)
                buffer.low_latency_combine(inputs.rows, inputs.ids, inputs.weights, got[2])
                return got

            inputs.take(cases[ranks], rank, 1.0)
            calls()
            with driver.capture() as graph:
                got = calls()
            return graph, got

        def replay(graph: Any, got: Any) -> None:
            driver.replay(graph)
            driver.settle()
            assert_low_latency(got[:3], wanted[buffer.group_size][rank])

        if rank < 2:
            graph, got = captured()
            replay(graph, got)
            buffer.prepare_members(group)
            for _ in range(MOST):
                replay(graph, got)
                if buffer.switch_members():
                    break
            handle = got[2]
            with pytest.raises(InvalidArgument, match=r"before recover\(\) or switch_members\(\)"):
                buffer.get_next_low_latency_combine_buffer(handle)
        assert buffer.group_size == 3
        graph, got = captured()
        for _ in range(3):
            replay(graph, got)
        buffer.barrier()
        group.barrier()
        buffer.destroy()

    run_gpu_ranks(driver, 3, body)
    assert driver.held() == NOTHING


@pytest.mark.timeout(120)
def test_gpu_members_that_prepare_nothing_hear_of_it_between_replays(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays are calls that the host does not count: the device does."""
    driver = install(monkeypatch, FakeDriver(num_sms=6 * 2))
    old, new = ThreadGroup.create(2), ThreadGroup.create(2)
    case, texts = full_case(705, 2, max_tokens=8), ["", ""]
    wanted = reference_of(case)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        hint = Buffer.get_low_latency_rdma_size_hint(8, 128, 2, 4)
        buffer = Buffer(old[rank], 0, hint, low_latency_mode=True, explicitly_destroy=True)
        inputs = LowLatencyInputs(case.shape, 2)
        inputs.take(case, rank, 1.0)

        def calls() -> Any:
            got = buffer.low_latency_dispatch(inputs.x, inputs.ids, 8, 4, use_fp8=False)
            buffer.low_latency_combine(inputs.rows, inputs.ids, inputs.weights, got[2])
            return got

        calls()
        with driver.capture() as graph:
            got = calls()
        if rank == 0:
            buffer.prepare_members(new[0])
        for _ in range(MOST):
            driver.replay(graph)
            driver.settle()
            assert_low_latency(got[:3], wanted[rank])
            try:
                assert not buffer.switch_members()
            except UcclEpError as error:
                texts[rank] = str(error)
                break
        new[rank].leave()
        driver.replay(graph)
        driver.settle()
        buffer.barrier()
        buffer.destroy()

    run_gpu_ranks(driver, 2, body)
    assert texts[0] == texts[1]
    assert "rank 0 prepared a group of 2 after 1 low-latency dispatches" in texts[0]
    assert "rank 1 prepared nothing after " in texts[0]
    assert driver.held() == NOTHING
