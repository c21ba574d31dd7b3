"""One life of a Buffer: what it is made with, what its calls hold, and how it ends."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB, assert_refused
from uccl_ep import Buffer, Config, InvalidArgument, ThreadGroup
from uccl_ep.settings import settings
from uccl_ep.survival.life import Life, Terms


def terms(**changes: Any) -> Terms:
    given: dict[str, Any] = {"device": None, "budgets": (MIB, 0), "modes": (0, 1, False)}
    return Terms.checked(**{**given, "alike": {}, "default_config": lambda ranks: Config(2), **changes})


def test_life_terms_are_checked_and_made_plain(variables: Any) -> None:
    variables()
    made = terms()
    assert (made.low_latency_mode, made.enable_shrink, made.choice.driver) == (False, True, None)
    for budgets, words in (((129, 0), ["num_nvl_bytes=129"]), ((0, True), ["num_rdma_bytes=True"])):
        assert_refused(lambda budgets=budgets: terms(budgets=budgets), words)
    assert_refused(lambda: terms(modes=(True, True, False)), ["num_rdma_bytes=0", "the low-latency size"])
    assert_refused(lambda: terms(modes=(False, "yes", False)), ["enable_shrink='yes'"])
    assert_refused(lambda: terms(modes=(False, False, "on")), ["allow_mnnvl='on'"])


@pytest.mark.parametrize(
    ("variable", "asked", "by"),
    [
        ({}, False, ""),
        ({}, True, "allow_mnnvl=True"),
        ({"UCCL_EP_MNNVL": "1"}, False, "UCCL_EP_MNNVL=1"),
        ({"UCCL_EP_MNNVL": "0"}, True, ""),
        ({"UCCL_EP_MNNVL": "auto", "USE_MNNVL": "1"}, False, ""),
        ({"USE_MNNVL": "1"}, False, "USE_MNNVL=1"),
        ({"USE_MNNVL": "0"}, True, "allow_mnnvl=True"),
        ({"NVLINK_DOMAIN_SIZE": "72"}, False, "NVLINK_DOMAIN_SIZE=72"),
        ({"NVLINK_DOMAIN_SIZE": "8"}, False, ""),
        ({"NVLINK_DOMAIN_SIZE": "72", "USE_MNNVL": "0"}, False, ""),
        ({"NCCL_MNNVL_ENABLE": "0", "USE_MNNVL": "1"}, True, ""),
        ({"NCCL_MNNVL_ENABLE": "2", "NVSHMEM_DISABLE_MNNVL": "1"}, True, ""),
    ],
)
def test_life_who_asks_for_nodes_of_several_hosts(
    variables: Any, monkeypatch: pytest.MonkeyPatch, variable: dict[str, str], asked: bool, by: str
) -> None:
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    assert terms(modes=(False, False, asked)).rack_by == by


def test_life_begins_and_ends_without_a_buffer(variables: Any) -> None:
    variables()
    life = Life(ThreadGroup.create(1)[0], terms())
    assert life.members() == [0] and life.session.shrink
    life.barrier()
    life.end()
    life.end()
    assert life.session.closed


def test_life_a_start_that_fails_late_closes_the_device(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables()
    closed: list[Life] = []
    prepare, close = Life._prepare, Life.close_device

    def fail(self: Life, session: Any) -> None:
        prepare(self, session)
        raise MemoryError("no room for one tensor more")

    def note(self: Life) -> None:
        closed.append(self)
        close(self)
        assert self._open is None

    monkeypatch.setattr(Life, "_prepare", fail)
    monkeypatch.setattr(Life, "close_device", note)
    with pytest.raises(Exception, match="no room for one tensor more"):
        Life(ThreadGroup.create(1)[0], terms())
    assert len(closed) == 1


def test_life_holds_no_buffer(variables: Any) -> None:
    """A Buffer that nobody holds any more ends at once, not when cycles are collected."""
    variables()
    gc.collect()
    gc.disable()
    try:
        buffer = Buffer(ThreadGroup.create(1)[0], MIB)
        session = buffer.runtime
        del buffer
        assert session is not None and session.closed
    finally:
        gc.enable()


def test_life_a_receive_hook_keeps_its_buffer(variables: Any) -> None:
    variables()
    ids, hint = torch.tensor([[0, 3]]), Buffer.get_low_latency_rdma_size_hint(4, 128, 1, 4)
    buffer = Buffer(ThreadGroup.create(1)[0], 0, hint, low_latency_mode=True)
    x, session = torch.ones(1, 128, dtype=torch.bfloat16), buffer.runtime
    rows, count, _, _, hook = buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False, return_recv_hook=True)
    del buffer
    assert hook is not None and session is not None and not session.closed
    hook()
    assert count.tolist() == [1, 0, 0, 1] and torch.equal(rows[3, :1], x)
    del hook
    assert session.closed


def test_life_the_config_of_a_dispatch_is_that_of_the_buffers_class(variables: Any) -> None:
    variables()
    asked: list[int] = []

    class Asked(Buffer):
        @staticmethod
        def get_dispatch_config(num_ranks: int) -> Config:
            asked.append(num_ranks)
            return Config(2)

    buffer = Asked(ThreadGroup.create(1)[0], MIB)
    ids = torch.zeros(2, 1, dtype=torch.int64)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, 1)
    layout = {"num_tokens_per_rank": per_rank, "num_tokens_per_expert": per_expert, "is_token_in_rank": in_rank}
    buffer.dispatch(torch.zeros(2, 64, dtype=torch.bfloat16), **layout)  # type: ignore[arg-type]
    assert asked == [1]
    buffer.dispatch(torch.zeros(2, 64, dtype=torch.bfloat16), config=Config(4), **layout)  # type: ignore[arg-type]
    assert asked == [1]
    Asked.get_dispatch_config = Buffer.get_dispatch_config  # type: ignore[method-assign]
    buffer.dispatch(torch.zeros(2, 64, dtype=torch.bfloat16), **layout)  # type: ignore[arg-type]
    assert asked == [1]  # the class is asked at the call, not when the Buffer is made
    buffer.destroy()
    with pytest.raises(InvalidArgument, match="this Buffer has been destroyed"):
        buffer.get_dispatch_layout(ids, 1)
