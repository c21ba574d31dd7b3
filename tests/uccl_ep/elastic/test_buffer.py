"""ElasticBuffer itself: arguments, attributes that integrators read, hints, life."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.worlds import HIDDEN, MAX_TOKENS, on_ranks
from uccl_ep import EventHandle, InvalidArgument, SettingsMismatch, ThreadGroup, run_ranks
from uccl_ep.elastic import ElasticBuffer
from uccl_ep.elastic.ep_buffer import EPBuffer


def test_elastic_buffer_attributes_and_domains(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        assert (buffer.rank_idx, buffer.num_ranks, buffer.group) == (group.rank(), 3, group)
        assert buffer.get_physical_domain_size() == (buffer.num_rdma_ranks, buffer.num_nvlink_ranks) == (2, 2)
        assert buffer.get_logical_domain_size() == (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks) == (1, 3)
        assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (0, group.rank())
        assert buffer.num_max_tokens_per_rank == MAX_TOKENS and buffer.num_bytes % (2 << 20) == 0
        assert buffer.allow_hybrid_mode and buffer.allow_multiple_reduction and not buffer.deterministic
        assert type(buffer.capture()) is EventHandle and buffer.get_comm_stream() is not None
        assert buffer.get_theoretical_num_sms(num_experts=9, num_topk=2) % 2 == 0
        assert buffer.get_theoretical_num_qps(24) == 9
        with pytest.raises(InvalidArgument, match="num_scaleout_topk"):
            buffer.get_theoretical_num_sms(9, 2, num_scaleout_topk=1)
        buffer.barrier(use_comm_stream=False, with_cpu_sync=True)

    on_ranks(3, body)


def test_elastic_buffer_sleeps(variables: Any) -> None:
    variables(RANKS_PER_NODE=1)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        x, ids = torch.full((4, HIDDEN), 1.0 + group.rank()).bfloat16(), torch.arange(4).view(4, 1) % 2
        rows, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=2)
        report = buffer.pause()
        assert report.freed_bytes > 0 and report.kept == {}
        with pytest.raises(InvalidArgument, match="this Buffer sleeps"):
            buffer.combine(rows, handle)
        buffer.resume()
        assert torch.equal(buffer.combine(rows, handle)[0], x)

    on_ranks(2, body)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"num_bytes": 1 << 20}, "num_bytes must be .*; got 1048576."),
        ({"num_bytes": 0}, "num_bytes must be .*; got 0."),
        ({"num_cpu_bytes": 4096}, "num_cpu_bytes must be .*; got 4096."),
        ({}, "num_max_tokens_per_rank must be .*; got 0."),
        ({"num_max_tokens_per_rank": 8}, "hidden must be .*; got 0."),
        ({"num_max_tokens_per_rank": 8, "hidden": 255}, "hidden must be a multiple of 8; got 255."),
        ({"num_bytes": 2 << 20, "hidden": 255}, "hidden must be .*; got 255."),
        (
            {"num_bytes": 2 << 20, "hidden": 264, "use_fp8_dispatch": True},
            "hidden must be a multiple of 16; got 264.",
        ),
        ({"num_max_tokens_per_rank": 1 << 20, "hidden": 256}, "num_max_tokens_per_rank must be .*; got 1048576."),
        ({"num_max_tokens_per_rank": 8, "hidden": 256, "num_topk": 99}, "num_topk must be .*; got 99."),
        ({"num_bytes": 2 << 20, "deterministic": "yes"}, "deterministic must be .*; got 'yes'."),
    ],
)
def test_elastic_buffer_refusals(variables: Any, arguments: dict[str, Any], words: str) -> None:
    variables()
    with pytest.raises(InvalidArgument, match=words):
        ElasticBuffer(ThreadGroup.create(2)[0], **arguments)


def test_elastic_buffer_size_is_enough_and_taken_as_it_is(variables: Any) -> None:
    variables()
    group = ThreadGroup.create(2)[0]
    hint = ElasticBuffer.get_buffer_size_hint(group, MAX_TOKENS, HIDDEN, num_topk=2, use_fp8_dispatch=True)

    def body(group: ThreadGroup) -> int:
        buffer = ElasticBuffer(group, num_bytes=hint, num_max_tokens_per_rank=MAX_TOKENS, hidden=HIDDEN, sl_idx=0)
        group.barrier()
        number = buffer.num_bytes
        buffer._end()
        return number

    assert run_ranks(2, body) == [hint, hint]


def test_elastic_buffer_ends(variables: Any) -> None:
    variables()

    def body(group: ThreadGroup) -> None:
        kept = ElasticBuffer(group, 2 << 20)
        with pytest.raises(
            InvalidArgument, match=r"destroy\(\) needs an ElasticBuffer made with explicitly_destroy=True"
        ):
            kept.destroy()
        forgotten = ElasticBuffer(group, 2 << 20, explicitly_destroy=True)
        group.barrier()
        inner = kept._buffer
        kept.__del__()
        assert kept.runtime is None and inner.runtime is None
        if group.rank() == 0:
            with pytest.warns(UserWarning, match="never destroyed"):
                forgotten.__del__()
        group.barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forgotten.__del__()
        forgotten.destroy()
        forgotten.destroy()
        assert forgotten.runtime is None

    run_ranks(2, body)


@pytest.mark.parametrize("kind", [ElasticBuffer, EPBuffer])
def test_elastic_buffer_ranks_with_another_hidden_are_told_so(variables: Any, kind: Any) -> None:
    variables()

    def body(group: ThreadGroup) -> str:
        with pytest.raises(SettingsMismatch) as caught:
            kind(group, num_max_tokens_per_rank=MAX_TOKENS, hidden=HIDDEN * (1 + 16 * group.rank()))
        return str(caught.value)

    for text in run_ranks(2, body):
        assert "hidden differs: rank 0 (" in text and f": {HIDDEN}, rank 1" in text and f": {HIDDEN * 17}" in text
        assert "num_nvl_bytes" not in text
