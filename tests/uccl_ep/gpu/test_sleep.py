"""Buffer.pause and resume on the fake GPU, which ends the process where memory is used that was given back: captured
graphs and handles go on, whether rows come back at their address or at another one; and what stays, and why."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_graphs import WORLDS, LowLatencyInputs, full_case, layouts_of
from tests.uccl_ep.gpu.test_memory import NOTHING, on_device
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import MIB, case, expert_rows, layout_arguments, low_latency, reference_of, same, throughput
from uccl_ep import Buffer, InvalidArgument, NotSupported, PeerLost, PeerTimeout, ThreadGroup, UcclEpError, reference
from uccl_ep.layout import arrangement

SLEEPS = 4
EACH_WAY = pytest.mark.parametrize("keeps", [False, True], ids=["rows move", "rows stay at their address"])


def made(driver: FakeDriver, keeps: bool) -> FakeDriver:
    driver.keeps_addresses = keeps
    return driver


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.timeout(120)
@EACH_WAY
@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_sleep_graphs_and_handles_go_on(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str, keeps: bool
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=3)
    driver = made(install(monkeypatch, FakeDriver(num_sms=6 * ranks)), keeps)
    cases = [full_case(500 + turn, ranks, max_tokens=8) for turn in range(SLEEPS)]
    wanted = [reference_of(c) for c in cases]
    sums = [
        reference.low_latency_combine(
            [expert_rows(r, c.shape, 1.0 + turn) for r in range(ranks)], c.topk_idx, c.topk_weights, wanted[turn]
        )
        for turn, c in enumerate(cases)
    ]
    dispatched = reference.throughput_dispatch(layouts_of(cases[0], per_node), 2 * ranks)
    combined = reference.throughput_combine([w.recv_x for w in dispatched], dispatched, None, None, per_node or None)[0]

    def body(group: ThreadGroup) -> None:
        rank, c = group.rank(), cases[0]
        inputs, hint = LowLatencyInputs(c.shape, 2), Buffer.get_low_latency_rdma_size_hint(8, 128, ranks, 2 * ranks)
        buffer = Buffer(group, 2 * MIB, hint, low_latency_mode=True)

        def calls() -> tuple[Any, torch.Tensor]:
            got = buffer.low_latency_dispatch(inputs.x, inputs.ids, 8, 2 * ranks, use_fp8=False)
            return got, buffer.low_latency_combine(inputs.rows, inputs.ids, inputs.weights, got[2])[0]

        calls()
        layout = layout_arguments(buffer, c.topk_idx[rank], 2 * ranks)
        chosen = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
        handle = buffer.dispatch(c.x[rank], **layout, **chosen)[4]
        with driver.capture() as graph:
            got, out = calls()
        with driver.capture() as second:
            rows, *_ = buffer.dispatch(c.x[rank], handle=handle)
            total, _, _ = buffer.combine(rows, handle)
        whole = buffer._session.plan.data_bytes
        for turn in range(SLEEPS):
            inputs.take(cases[turn], rank, 1.0 + turn)
            driver.replay(graph)
            driver.replay(second)
            driver.settle()
            for expert, count in enumerate(wanted[turn][rank].recv_count.tolist()):
                assert same(got[0][expert, :count], wanted[turn][rank].recv_x[expert, :count])
            assert same(out[: cases[turn].x[rank].shape[0]], sums[turn][rank])
            assert same(rows, dispatched[rank].recv_x) and same(total, combined[rank])
            sent = buffer.low_latency_dispatch(inputs.x, inputs.ids, 8, 2 * ranks, use_fp8=False)
            asleep = buffer.pause()
            group.barrier()
            assert asleep.kept == {} and driver.bytes_allocated() < MIB
            assert asleep.before["rows"] > asleep.after["rows"] and asleep.after["rows"] < whole // 2
            group.barrier()
            buffer.resume()
            again, _, _ = buffer.low_latency_combine(inputs.rows, inputs.ids, inputs.weights, sent[2])
            eager, _, _ = buffer.combine(dispatched[rank].recv_x, handle)
            driver.settle()
            assert same(again[: cases[turn].x[rank].shape[0]], sums[turn][rank]) and same(eager, combined[rank])
        buffer.barrier()
        group.barrier()
        buffer.pause()
        group.barrier()
        buffer.destroy()  # asleep

    run_gpu_ranks(driver, ranks, body)
    assert driver.held() == NOTHING


@EACH_WAY
def test_gpu_sleep_rows_that_somebody_looks_at_stay_unless_their_address_does(
    variables: Any, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    driver = made(install(monkeypatch, FakeDriver()), keeps)

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            view = buffer.get_local_buffer_tensor(torch.uint8)
            view.fill_(3)
            report = buffer.pause()
            assert report.kept == ({} if keeps else {"rows": "get_local_buffer_tensor has handed out a view of them"})
            buffer.resume()
            assert int(view.max()) == (0 if keeps else 3)
            assert view.data_ptr() == buffer.get_local_buffer_tensor(torch.uint8).data_ptr()
            buffer.barrier()

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == NOTHING


def test_gpu_sleep_rows_that_nics_know_and_rows_that_graphs_may_name_stay(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")
    driver = install(monkeypatch, FakeDriver(num_sms=8))
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset(range(2))))
    c = case(9, num_ranks=2, num_experts=4, num_topk=2, hidden=128, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            rank = group.rank()
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 4, use_fp8=False)
            rows = buffer.get_next_low_latency_combine_buffer(got[2])
            rows.copy_(got[0])
            driver.settle()
            report = buffer.pause()
            kept = {"rows": "NICs know them by their address", "zero-copy rows": "graphs may name them"}
            assert report.kept == kept and all(report.after[what] == report.before[what] > 0 for what in kept)
            buffer.resume()
            buffer.low_latency_combine(got[0], c.topk_idx[rank], c.topk_weights[rank], got[2], zero_copy=True)
            buffer.barrier()

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == NOTHING


def test_gpu_sleep_rows_that_a_masked_rank_may_use_stay(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver(num_sms=12))
    c = full_case(520, 3, max_tokens=8)
    done = threading.Barrier(3)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            rank = group.rank()
            if rank < 2:  # the first masks the third; the second as well, for its own calls
                buffer.low_latency_update_mask_buffer(2, True)
                report = buffer.pause()
                assert report.kept == {"rows": f"rank {rank} has masked a rank of this node, which may still use them"}
                buffer.resume()
                for _ in range(3):
                    buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 6, use_fp8=False)
                driver.settle()
            done.wait(30)

    run_gpu_ranks(driver, 3, body)
    assert driver.held() == NOTHING


def test_gpu_sleep_wakes_up_when_all_ranks_and_the_memory_are_there(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(TIMEOUT_S=1)
    driver = install(monkeypatch, FakeDriver())
    bring_back = driver.bring_back
    short, together = [True], threading.Barrier(2)

    def refusing(*given: Any, **named: Any) -> int:
        if short and short.pop():
            raise UcclEpError("there is not enough")
        return bring_back(*given, **named)

    monkeypatch.setattr(driver, "bring_back", refusing)

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            buffer.pause()
            together.wait(20)
            if group.rank() == 0:
                with pytest.raises(UcclEpError, match="there is not enough"):
                    buffer.resume()
                with pytest.raises(PeerTimeout, match=r"rank 1 .*timed out in resume\(\)"):
                    buffer.resume()
            together.wait(20)
            with pytest.raises(InvalidArgument, match="this Buffer sleeps"):
                buffer.barrier()
            buffer.resume()
            buffer.barrier()

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == NOTHING


def test_gpu_sleep_notices_who_has_gone_meanwhile(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    together = threading.Barrier(2)

    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, MIB)
        buffer.pause()
        together.wait(20)
        if group.rank() == 1:
            buffer.destroy()
        together.wait(20)
        if group.rank() == 0:
            with pytest.raises(PeerLost, match=r"rank 1 .*lost in resume\(\)"):
                buffer.resume()
            buffer.destroy()

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == NOTHING


def test_gpu_sleep_is_refused_in_a_capture_and_between_the_halves_of_a_replayed_call(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = full_case(530, 1, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 8, 2)
            with driver.capture() as first:
                *_, hook = buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 8, 2, return_recv_hook=True)
            with driver.capture() as second:
                assert hook is not None
                hook()
            with driver.capture(), pytest.raises(NotSupported, match="graph capture"):
                buffer.pause()
            driver.replay(first)
            with pytest.raises(InvalidArgument, match="the receive hook of low_latency_dispatch number 2 has run"):
                buffer.pause()
            driver.replay(second)
            buffer.pause()
            buffer.resume()
            driver.settle()

    run_gpu_ranks(driver, 1, body)
