"""The backend's contract with a stand-in for FlashInfer's registry; with FlashInfer itself: tests/integrations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.uccl_ep.ranks import same
from uccl_ep import InvalidArgument, NotSupported, ThreadGroup, run_ranks
from uccl_ep.drop_in import flashinfer_backend
from uccl_ep.drop_in.flashinfer_backend import with_scales

HIDDEN, EXPERTS, MOST = 64, 4, 3


@dataclass(frozen=True)
class Params:
    """FlashInfer's MoEEpCommParams, as far as the backend reads it."""

    token_dtype: torch.dtype = torch.bfloat16
    num_experts: int = EXPERTS
    max_tokens_per_rank: int = MOST
    hidden_size: int = HIDDEN
    dispatch_bytes_per_token: int = 2 * HIDDEN
    invalid_expert_id: int = -7


class Communication:
    """FlashInfer's MoEEpCommunication, as far as the backend needs it."""

    def __init__(self, bootstrap: Any, params: Params) -> None:
        self.params, self.ep_rank, self.ep_size = params, bootstrap.rank, bootstrap.world_size
        self.num_local_experts = params.num_experts // self.ep_size


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, variables: Any) -> Iterator[type]:
    """The class that register() puts into the registry."""
    registry: dict[str, type] = {}
    module = SimpleNamespace(
        MoEEpCommunication=Communication,
        MoEEpDispatchResult=SimpleNamespace,
        register_communication=lambda name: lambda cls: registry.setdefault(name, cls),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flashinfer.moe_ep", module)
    flashinfer_backend.register.cache_clear()
    flashinfer_backend.register()
    yield registry[flashinfer_backend.NAME]
    flashinfer_backend.register.cache_clear()


def backend_of(made: type, group: ThreadGroup, **params: Any) -> Any:
    return made(SimpleNamespace(rank=group.rank(), world_size=group.size(), process_group=group), Params(**params))


def test_flashinfer_backend_is_rank_major(made: type) -> None:
    """Rank 0 has two tokens, rank 1 has one; experts 0 and 1 are rank 0's."""
    drawn = [torch.tensor([[0, 3], [1, -7]], dtype=torch.int32), torch.tensor([[2, 3]], dtype=torch.int32)]
    wanted = [[[0, -7], [1, -7], *[[-7, -7]] * 4], [[-7, 3], [2, 3], *[[-7, -7]] * 4]]

    def body(group: ThreadGroup) -> None:
        backend, ids = backend_of(made, group), drawn[group.rank()]
        rows = torch.full((len(ids), HIDDEN), group.rank() + 1.0, dtype=torch.bfloat16)
        for weights in (torch.full(ids.shape, 0.5), None):
            result = backend.dispatch(rows, ids, weights)
            assert result.topk_ids.tolist() == wanted[group.rank()] and result.topk_ids.dtype == torch.int32
            assert result.hidden_states.shape == (2 * MOST, HIDDEN) and result.tokens_per_rank == MOST
            assert (result.topk_weights is None) == (weights is None) and result.hidden_states_scale is None
            out = torch.empty_like(rows)
            assert backend.combine(result.hidden_states.view(2, MOST, HIDDEN), output=out) is out
            visits = torch.tensor([[2.0], [1.0]]) if group.rank() == 0 else torch.tensor([[1.0]])
            assert same(out, (rows.float() * visits).bfloat16())
        group.barrier()
        backend.destroy()
        backend.destroy()

    run_ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int32])
def test_flashinfer_backend_carries_scales(made: type, dtype: torch.dtype) -> None:
    def body(group: ThreadGroup) -> None:
        backend = backend_of(made, group)
        data = torch.arange(2 * HIDDEN, dtype=torch.uint8).view(2, HIDDEN)
        scales = torch.arange(16).view(2, 8).to(dtype)
        result = backend.dispatch(data, torch.tensor([[0], [1]]), None, hidden_states_scale=scales)
        assert same(result.hidden_states[:2], data) and same(result.hidden_states_scale[:2], scales)
        backend.destroy()

    run_ranks(1, body)


def test_flashinfer_backend_refuses(made: type) -> None:
    def body(group: ThreadGroup) -> None:
        with pytest.raises(InvalidArgument, match=r"dtype must be torch\.bfloat16"):
            backend_of(made, group, token_dtype=torch.float16)
        backend = backend_of(made, group)
        rows, ids = torch.zeros(MOST + 1, HIDDEN, dtype=torch.bfloat16), torch.zeros(MOST + 1, 1, dtype=torch.int64)
        with pytest.raises(InvalidArgument, match="of at most 3 rows, as max_tokens_per_rank says"):
            backend.dispatch(rows, ids)
        with pytest.raises(NotSupported, match="gather eplb_local_stats apart"):
            backend.dispatch(rows[:1], ids[:1], eplb_local_stats=torch.zeros(EXPERTS))
        with pytest.raises(InvalidArgument, match="called once after each dispatch"):
            backend.combine(rows)
        backend.destroy()

    run_ranks(1, body)


def test_flashinfer_backend_says_which_scales_it_carries() -> None:
    rows = torch.zeros(2, HIDDEN, dtype=torch.uint8)
    with pytest.raises(InvalidArgument, match="rows of a multiple of 4 bytes"):
        with_scales(rows, torch.zeros(2, 3, dtype=torch.uint8))
    given: Tensor = with_scales(rows, torch.zeros(2, 8, dtype=torch.uint8))[1]
    assert given.dtype == torch.int32 and given.shape == (2, 2)
