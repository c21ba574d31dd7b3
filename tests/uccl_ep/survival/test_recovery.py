"""Buffer.recover: what it refuses, what it reports, what is left of the old life, and rejoining; ranks are threads."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World, as_threads
from tests.uccl_ep.ranks import assert_refused
from uccl_ep import Buffer, InvalidArgument, NoQuorum, PeerLost, PeerTimeout, ThreadGroup, UcclEpError
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.survival import recovery

RANKS, VICTIM = 4, 1


def step(mode: str, number: int, *lost: int) -> Step:
    if mode == "l":
        return LowLatencyStep(number, max_tokens=8, hidden=256, traffic="uniform", topk=3, masked=lost)
    return ThroughputStep(number, max_tokens=16, hidden=128, traffic="uniform", topk=3, masked=lost)


def play(buffer: Buffer, one: Step, per_node: int) -> None:
    assert set(playing(buffer, one, per_node or None)) == {"send", "receive"}


def lose(buffer: Buffer, mode: str, per_node: int) -> UcclEpError:
    """Rounds until the victim, which leaves at once, is missed."""
    with pytest.raises((PeerLost, PeerTimeout)) as caught:
        for number in range(50):
            play(buffer, step(mode, number), per_node)
    return caught.value


@pytest.mark.mostly_slow
@pytest.mark.parametrize(("mode", "per_node", "transport"), [("l", 2, "tcp"), ("t", 2, "loopback"), ("t", 0, "auto")])
def test_recover_reports_and_goes_on(mode: str, per_node: int, transport: str, caplog: Any) -> None:
    together = threading.Barrier(RANKS - 1)

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step(mode, 0)], per_node, slack=6)
        try:
            if group.rank() == VICTIM:
                return
            assert buffer.members() == [0, 1, 2, 3] and buffer.recoveries == []
            error = lose(buffer, mode, per_node)
            assert buffer.recover() == buffer.members() == [0, 2, 3]
            (report,) = buffer.recoveries
            assert (report.lost, report.joined, report.members) == ((1,), (), (0, 2, 3))
            assert str(report.cause) == str(error) and 0 < report.seconds < 10
            for number in range(100, 106):
                play(buffer, step(mode, number, VICTIM), per_node)
            buffer.barrier()
            peers = buffer.stats()["peers"]
            assert [p["via"] == "absent" for p in peers] == [False, True, False, False]
            assert (peers[VICTIM]["rows_sent"], peers[VICTIM]["rows_received"]) == (0, 0)
            together.wait(20)
            assert buffer.recover(timeout_s=10.0) == [0, 2, 3]  # without a loss: a new life all the same
            assert buffer.recoveries[1].lost == () and str(buffer.recoveries[1]).startswith("going on with")
            play(buffer, step(mode, 200, VICTIM), per_node)
        finally:
            buffer.destroy()

    with caplog.at_level(logging.WARNING, logger="uccl_ep"):
        as_threads(World(RANKS, per_node, transport), body)
    told = [record.getMessage() for record in caplog.records if "lost rank(s) 1" in record.getMessage()]
    assert len(told) == RANKS - 1 and all("going on with rank(s) 0, 2, 3 after " in text for text in told)


def test_recover_refuses_what_is_of_the_old_life() -> None:
    m, h, experts = 8, 256, 8

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step("l", 0), step("t", 0)], 2, slack=6)
        try:
            x, ids = torch.zeros(4, h, dtype=torch.bfloat16), torch.arange(16).view(4, 4) % experts
            weights = torch.ones(4, 4)
            _, _, handle, _, hook = buffer.low_latency_dispatch(
                x, ids, m, experts, use_fp8=False, return_recv_hook=True
            )
            layout = buffer.get_dispatch_layout(ids, experts)
            names = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank")
            given = dict(zip(names, layout[:4], strict=True))
            old = buffer.dispatch(x, topk_idx=ids, topk_weights=weights, **given)[4]
            group.barrier()
            assert buffer.recover() == [0, 1, 2, 3]
            with pytest.raises(InvalidArgument, match="receive hook is of a call before recover"):
                hook()  # type: ignore[misc]
            rows = torch.zeros(2, RANKS * m, h, dtype=torch.bfloat16)
            assert_refused(
                lambda: buffer.low_latency_combine(rows, ids, weights, handle),
                ["handle", "before recover()", "Dispatch"],
            )
            assert_refused(
                lambda: buffer.get_next_low_latency_combine_buffer(handle), ["handle", "before recover()", "Dispatch"]
            )
            n = old.routing.num_rows
            assert_refused(lambda: buffer.combine(torch.zeros(n, h).bfloat16(), old), ["handle", "before recover()"])
            assert_refused(lambda: buffer.dispatch(x, handle=old), ["handle", "before recover()"])
            play(buffer, step("l", 1), 2)
            play(buffer, step("t", 2), 2)
        finally:
            buffer.destroy()

    as_threads(World(RANKS, 2, "shared_memory"), body)


def test_recover_of_the_others_is_what_a_late_rank_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank is lost: the error that ends the late rank's call says so, and its own recover() suspects nobody."""
    agree, hinted = AgreementService.agree, []

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step("t", 0)], 2, slack=6)
        if group.rank() == 0:
            with pytest.raises(PeerLost) as caught:
                play(buffer, step("t", 0), 2)  # none of the others ever comes
            assert caught.value.peer in (1, 2, 3)
            assert "it has called recover(), without a lost rank to name" in str(caught.value)
        assert buffer.recover() == [0, 1, 2, 3]
        play(buffer, step("t", 1), 2)
        buffer.destroy()

    def noted(service: AgreementService, hints: set[int], *terms: Any) -> list[int]:
        hinted.append(hints)
        return agree(service, hints, *terms)

    monkeypatch.setattr(AgreementService, "agree", noted)
    as_threads(World(RANKS, 2, "shared_memory"), body)
    assert hinted == [set()] * RANKS


def test_recover_refuses_bad_arguments() -> None:
    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step("t", 0)], 0, slack=6)
        for bad in (0, -1.0, float("nan"), 1e9):
            assert_refused(lambda bad=bad: buffer.recover(timeout_s=bad), ["timeout_s", "seconds above 0"])
        assert_refused(lambda: buffer.recover(ThreadGroup.create(3)[0]), ["group", f"rank {buffer.rank} of 2"])
        other = ThreadGroup.create(2)[1 - buffer.rank]
        assert_refused(lambda: buffer.recover(other), ["group", f"rank {1 - buffer.rank} of 2"])
        play(buffer, step("t", 1), 0)  # and nothing has happened to it
        group.barrier()
        buffer.destroy()
        with pytest.raises(InvalidArgument, match="destroyed"):
            buffer.recover()

    as_threads(World(2), body)


def test_recover_with_a_new_group_makes_all_members_again() -> None:
    groups, lock = ThreadGroup.create(RANKS), threading.Barrier(RANKS)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        buffer = make_buffer(group, [step("l", 0), step("t", 0)], 2, slack=6)
        if rank == VICTIM:
            buffer.destroy()
            lock.wait(30)
            buffer = make_buffer(groups[rank], [step("l", 0), step("t", 0)], 2, slack=6)  # a new process, as it were
        else:
            lose(buffer, "l", 2)
            assert buffer.recover() == [0, 2, 3]
            play(buffer, step("t", 50, VICTIM), 2)
            lock.wait(30)
            assert buffer.recover(groups[rank]) == [0, 1, 2, 3]
            assert buffer.recoveries[1].joined == (VICTIM,) and "rank(s) 1 joined" in str(buffer.recoveries[1])
            assert buffer.group is groups[rank]
        for number in range(100, 104):
            play(buffer, step("lt"[number % 2], number), 2)
        groups[rank].barrier()
        buffer.destroy()

    as_threads(World(RANKS, 2, "tcp"), body)


def test_recover_without_the_excluded_rank_which_may_only_leave() -> None:
    """A rank that does not come in time is gone for the others, however alive it is. (One that hears of the other's
    call before its own first asks whom it is about, for half a second at this timeout.)"""

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step("t", 0)], 0, slack=6)
        try:
            if group.rank() == VICTIM:
                time.sleep(3.0)
                with pytest.raises(PeerLost, match="rank 1 was excluded: rank "):
                    play(buffer, step("t", 1), 0)
                with pytest.raises(PeerLost, match="rank 1 was excluded: rank "):
                    buffer.recover(timeout_s=5.0)
                with pytest.raises(UcclEpError):
                    play(buffer, step("t", 2), 0)
                return
            assert buffer.recover(timeout_s=1.2) == [0, 2]
            for number in range(40, 50):
                play(buffer, step("t", number, VICTIM), 0)
            time.sleep(3.0)  # it wakes up meanwhile
            play(buffer, step("t", 60, VICTIM), 0)
        finally:
            buffer.destroy()

    as_threads(World(3, timeout_s=10.0), body)


@pytest.mark.slow
def test_recover_of_too_few_is_refused_unless_they_allow_it() -> None:
    """Half of the ranks do not come, and may have gone on by themselves."""
    few, done = (1, 2), threading.Barrier(4)
    together = threading.Barrier(len(few))  # they have a short time to find each other

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step("t", 0)], 0, slack=6)
        try:
            if group.rank() not in few:
                done.wait(30)
                with pytest.raises(PeerLost, match=f"rank {group.rank()} was excluded: rank "):
                    buffer.recover(timeout_s=5.0)
                return
            for _ in range(2):
                together.wait(30)
                with pytest.raises(NoQuorum, match="rank.s. 0, 3 cannot be reached, and may go on") as caught:
                    buffer.recover(timeout_s=1.5)
                assert (caught.value.missing, caught.value.needed) == ((0, 3), 3)
                assert buffer.recoveries == []
                with pytest.raises(PeerLost):
                    play(buffer, step("t", 1), 0)
            together.wait(30)
            assert buffer.recover(timeout_s=1.5, allow_minority=True) == [1, 2]
            for number in range(40, 43):
                play(buffer, replace(step("t", number), masked=(0, 3)), 0)
            buffer.barrier()
            done.wait(30)
        finally:
            buffer.destroy()

    as_threads(World(4, timeout_s=20.0), body)


def test_recover_that_failed_leaves_a_buffer_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, [step("t", 0)], 0, slack=6)

        def fail(group: Any, terms: Any) -> Any:
            raise UcclEpError("no memory, say")

        with monkeypatch.context() as broken, pytest.raises(UcclEpError, match="no memory, say"):
            broken.setattr(recovery, "Life", fail)
            buffer.recover()
        with pytest.raises(InvalidArgument, match="last recover.. failed"):
            buffer.stats()
        assert buffer.recover() == [0]
        play(buffer, step("t", 3), 0)
        buffer.destroy()

    as_threads(World(1), body)
