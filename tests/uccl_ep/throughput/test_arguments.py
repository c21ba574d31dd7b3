"""A dispatch whose arguments disagree is refused by the rank that gave them, and by every other in the same call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import MIB, assert_refused, layout_arguments, low_latency, throughput
from uccl_ep import Buffer, InvalidArgument, SettingsMismatch, ThreadGroup, run_ranks
from uccl_ep.elastic import ElasticBuffer
from uccl_ep.elastic.ep_buffer import EPBuffer
from uccl_ep.elastic.hybrid import HybridEPBuffer
from uccl_ep.reference import CaseShape

E = 8
IDS = torch.tensor([[0, 5], [1, -1], [6, 7], [2, 0]])  # the same tokens on each of 4 ranks; the third skips rank 0
WEIGHTS = torch.ones(4, 2)
X = torch.ones(4, 128, dtype=torch.bfloat16)
WORLDS = [pytest.param(0, "auto", id="one node"), pytest.param(2, "tcp", id="2 nodes, tcp")]
Arguments = dict[str, Any]


def refused_by_all(change: Callable[[Arguments], object]) -> list[str]:
    """Rank 1 changes its arguments; what each of 4 ranks raises, none of them PeerTimeout after the deadline."""

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, MIB)
        try:
            given = {"topk_idx": IDS, "topk_weights": WEIGHTS, **layout_arguments(buffer, IDS, E)}
            if group.rank() == 1:
                change(given)
            kind = InvalidArgument if group.rank() == 1 else SettingsMismatch
            with pytest.raises(kind) as caught:
                buffer.dispatch(X, **given)
            given = {"topk_idx": IDS, "topk_weights": WEIGHTS, **layout_arguments(buffer, IDS, E)}
            rows, *_ = buffer.dispatch(X, **given)  # the Buffer is as good as before
            assert rows.shape[0] == 4 * int(given["num_tokens_per_rank"][group.rank()])
            return str(caught.value)
        finally:
            group.barrier()
            buffer.destroy()

    return run_ranks(4, body)


def set_at(name: str, *at: int, to: Any) -> Callable[[Arguments], object]:
    return lambda a: a[name].__setitem__(at, to)


LIES = [
    ("num_tokens_per_rank", set_at("num_tokens_per_rank", 2, to=1001), "[2] is 1001, and is_token_in_rank says 1"),
    ("num_tokens_per_expert", set_at("num_tokens_per_expert", 3, to=-35), "[3] is -35, and the tokens say 0"),
    ("num_tokens_per_expert", set_at("num_tokens_per_expert", 0, to=(1 << 31) - 1), "[0] is 2147483647"),
    ("num_tokens_per_expert", lambda a: a["num_tokens_per_expert"].zero_(), "is 0, and the tokens say"),
    ("is_token_in_rank", lambda a: a["is_token_in_rank"].logical_not_(), "does not go to rank"),
    ("is_token_in_rank", set_at("is_token_in_rank", 0, 1, to=True), "2 tokens go to rank 1, and topk_idx says 1"),
    (
        "is_token_in_rank",
        lambda a: a.update(topk_idx=torch.tensor([[4, 4], [1, -1], [6, 7], [2, 0]])),
        "3 tokens go to rank 0, and topk_idx says 2",
    ),
    ("num_tokens_per_expert", lambda a: a.update(topk_idx=torch.tensor([[1, 5], [1, -1], [6, 7], [2, 0]])), "say"),
]


@pytest.mark.mostly_slow(quick=6)
@pytest.mark.parametrize("per_node, transport", WORLDS)
@pytest.mark.parametrize("argument, change, words", LIES)
def test_throughput_arguments_that_disagree_with_the_ids(
    variables: Any, per_node: int, transport: str, argument: str, change: Any, words: str
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, TIMEOUT_S=10)
    said = refused_by_all(change)
    assert f"rank 1: {argument} is refused: " in said[1]
    for rank in (0, 2, 3):
        assert re.search(rf"rank {rank}: rank 1 \(host .*\) refused this dispatch, since its {argument} ", said[rank])
    assert words in said[1]


@pytest.mark.parametrize("per_node, transport", WORLDS)
def test_throughput_arguments_without_ids_agree_with_each_other(variables: Any, per_node: int, transport: str) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, TIMEOUT_S=10)

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, MIB)
        try:
            given = layout_arguments(buffer, IDS, E)
            rows, *_ = buffer.dispatch(X, **given)  # what get_dispatch_layout said is taken
            assert rows.shape[0] == 4 * int(given["num_tokens_per_rank"][group.rank()])
            if group.rank() == 1:
                given["num_tokens_per_expert"][6] = -1
            with pytest.raises((InvalidArgument, SettingsMismatch)) as caught:
                buffer.dispatch(X, **given)
            return str(caught.value)
        finally:
            group.barrier()
            buffer.destroy()

    said = run_ranks(4, body)
    assert "num_tokens_per_expert is refused: [6] is -1, and the tokens say" in said[1]
    assert all("rank 1" in text and "its num_tokens_per_expert disagrees" in text for text in said[:1] + said[2:])


def test_throughput_arguments_counts_of_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)
    said = refused_by_all(set_at("num_tokens_per_rdma_rank", 1, to=4))
    assert "num_tokens_per_rdma_rank is refused: [1] is 4, and is_token_in_rank says 2" in said[1]
    assert all("its num_tokens_per_rdma_rank disagrees" in said[rank] for rank in (0, 2, 3))


def test_throughput_arguments_with_masks(variables: Any) -> None:
    """A mask that comes between layout and dispatch changes nothing; a lie about another rank is found all the same."""
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, MIB, enable_shrink=True)
        try:
            if group.rank() == 3:
                return ""
            for before in (True, False):
                if before:
                    buffer.low_latency_update_mask_buffer(3, True)
                given = layout_arguments(buffer, IDS, E)
                buffer.low_latency_update_mask_buffer(3, True)
                given |= {"topk_idx": IDS, "topk_weights": WEIGHTS}
                _, _, _, counts, _, _ = buffer.dispatch(X, **given)
                mine = [int((IDS == expert).sum()) for expert in range(2 * group.rank(), 2 * group.rank() + 2)]
                assert counts == [3 * n for n in mine]
            if group.rank() == 1:
                given["num_tokens_per_expert"][0] += 1
            with pytest.raises((InvalidArgument, SettingsMismatch)) as caught:
                buffer.dispatch(X, **given)
            return str(caught.value)
        finally:
            group.barrier()
            buffer.destroy()

    said = run_ranks(4, body)
    assert "[0] is 3, and the tokens say 2" in said[1] and all("its num_tokens_per_expert" in said[r] for r in (0, 2))


def test_throughput_arguments_that_disagree_unseen_need_recover(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            given = {"topk_idx": IDS, "topk_weights": WEIGHTS, **layout_arguments(buffer, IDS, E)}
            wrong = given | {"num_tokens_per_rank": given["num_tokens_per_rank"] + (group.rank() == 1)}
            wrong["num_worst_tokens"] = 16  # nobody waits for the counts, and what comes after them is queued
            for _ in range(2):  # every later call says the same
                with pytest.raises((InvalidArgument, SettingsMismatch), match="num_tokens_per_rank"):
                    buffer.dispatch(X, **wrong)
            group.barrier()  # who comes to its call after another's recover() hears of that instead
            assert buffer.recover() == [0, 1, 2, 3]
            rows, *_ = buffer.dispatch(X, **given)
            assert rows.shape[0] == 4 * int(given["num_tokens_per_rank"][group.rank()])

    run_ranks(4, body)


BAD = [(E, "first 8 at [1, 1]"), (-2, "first -2 at [1, 1]"), (1 << 40, "first 1099511627776 at [1, 1]")]


def bad_ids(value: int) -> torch.Tensor:
    ids = IDS.clone()
    ids[1, 1] = value
    return ids


@pytest.mark.parametrize("value, words", BAD)
def test_throughput_arguments_ids_out_of_range_are_refused_in_every_mode(
    variables: Any, value: int, words: str
) -> None:
    variables()
    ids, allowed = bad_ids(value), "-1 (not routed) or 0 to 7"
    with throughput(ThreadGroup.create(1)[0]) as buffer:
        good = layout_arguments(buffer, IDS, E)
        for call in (
            lambda: buffer.get_dispatch_layout(ids, E),
            lambda: buffer.dispatch(X, topk_idx=ids, topk_weights=WEIGHTS, **good),
        ):
            assert_refused(call, ["topk_idx=", words, allowed])
        buffer.dispatch(X, topk_idx=IDS, topk_weights=WEIGHTS, **good)  # nothing was sent
    with low_latency(ThreadGroup.create(1)[0], CaseShape(1, E, 2, 128, 4)) as buffer:
        assert_refused(lambda: buffer.low_latency_dispatch(X, ids, 4, E), ["topk_idx=", words, allowed])
    for kind in (ElasticBuffer, EPBuffer):
        made: Any = kind(ThreadGroup.create(1)[0], num_max_tokens_per_rank=4, hidden=128)
        assert_refused(lambda m=made: m.dispatch(X, ids, WEIGHTS, num_experts=E), ["topk_idx=", words, allowed])
    hybrid = HybridEPBuffer(ThreadGroup.create(1)[0], 128, 4, E)
    given = {"hidden": X, "topk_idx": ids, "topk_weights": WEIGHTS}
    assert_refused(lambda: hybrid.dispatch_with_permute(**given), ["topk_idx=", words, allowed])


@pytest.mark.parametrize("per_node", [0, 1])
def test_throughput_arguments_ids_out_of_range_are_not_routed_on_a_gpu(
    variables: Any, monkeypatch: pytest.MonkeyPatch, per_node: int
) -> None:
    """The host does not look at them there. They travel in 16 bits, and must not come out as an expert."""
    variables(RANKS_PER_NODE=per_node)
    driver = install(monkeypatch, FakeDriver(num_sms=12))
    ids = torch.tensor([[0, 65536, 2], [3, 1, 65536 * 4 + 1], [-7, 1 << 40, 1]])
    own = [[[0, -1, -1], [-1, 1, -1], [-1, -1, 1]], [[-1, -1, 0], [1, -1, -1]]]

    def body(group: ThreadGroup) -> None:
        x = torch.ones(3, 128, dtype=torch.bfloat16)
        with throughput(group) as buffer:
            given = layout_arguments(buffer, ids, 4)
            _, got, *_ = buffer.dispatch(x, topk_idx=ids, topk_weights=torch.ones(3, 3), **given)
            driver.settle()
            assert got is not None and got.tolist() == own[group.rank()] * 2
        with low_latency(group, CaseShape(2, 4, 3, 128, 3)) as buffer:
            _, count, *_ = buffer.low_latency_dispatch(x, ids, 3, 4)
            driver.settle()
            assert count.tolist() == [[2, 4], [2, 2]][group.rank()]

    run_gpu_ranks(driver, 2, body)


def test_throughput_arguments_that_disagree_are_told_later_on_a_gpu(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With num_worst_tokens no call waits for counts: the fault is raised by whatever comes next."""
    variables(RANKS_PER_NODE=1, TIMEOUT_S=10)
    driver = install(monkeypatch, FakeDriver(num_sms=12))

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, MIB)
        try:
            given = layout_arguments(buffer, IDS, 8)
            driver.settle()
            if group.rank() == 1:
                given["num_tokens_per_expert"][7] -= 1
            rows, *_ = buffer.dispatch(X, topk_idx=IDS, topk_weights=WEIGHTS, num_worst_tokens=8, **given)
            assert rows.shape[0] == 8
            driver.settle()
            with pytest.raises((InvalidArgument, SettingsMismatch)) as caught:
                buffer.get_dispatch_layout(IDS, 8)
            return str(caught.value)
        finally:
            group.barrier()
            buffer.destroy()

    said = run_gpu_ranks(driver, 2, body)
    assert "rank 1: num_tokens_per_expert is refused: [7] is 0, and the tokens say 1" in said[1]
    assert "its num_tokens_per_expert disagrees" in said[0]


def unfit(shape: tuple[int, int]) -> list[tuple[Any, list[str]]]:
    """Outputs that combine must refuse, with the words of it."""
    rows, hidden = shape
    flat = torch.zeros(rows * hidden + 8, dtype=torch.bfloat16)
    return [
        (7, ["out=7", "a contiguous 2-D tensor of torch.bfloat16"]),
        (torch.zeros(shape), ["out=", "torch.float32"]),
        (torch.zeros(rows + 1, hidden, dtype=torch.bfloat16), ["out=", f"of shape {shape}"]),
        (torch.zeros(rows, 2 * hidden, dtype=torch.bfloat16)[:, :hidden], ["out=", "contiguous"]),
        (flat[1 : 1 + rows * hidden].view(shape), ["out=", "on a 16-byte border", "got a tensor at 0x"]),
    ]


@pytest.mark.parametrize("per_node, transport", WORLDS)
def test_throughput_arguments_combine_writes_where_the_caller_says(
    variables: Any, per_node: int, transport: str
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport)

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            given = {"topk_idx": IDS, "topk_weights": WEIGHTS, **layout_arguments(buffer, IDS, E)}
            x, _, weights, _, handle, _ = buffer.dispatch(X, **given)
            bias = torch.full_like(X, 0.5)
            wanted, wanted_weights, _ = buffer.combine(x, handle, weights, (bias, bias))
            out, event = torch.full_like(X, 7.0), None
            for asynchronous in (False, True):
                got, got_weights, event = buffer.combine(
                    x, handle, weights, (bias, bias), async_finish=asynchronous, out=out.fill_(7.0)
                )
                if asynchronous:
                    event.current_stream_wait()
                assert got is out and torch.equal(out, wanted) and torch.equal(got_weights, wanted_weights)
            both = torch.zeros(x.shape[0] + 2 * 4, 128, dtype=torch.bfloat16)
            both[: x.shape[0]] = x
            for bad, words in [
                *unfit((4, 128)),
                (both[x.shape[0] - 1 :][:4], ["out=a tensor that overlaps x", "memory of its own"]),
                (bias, ["out=a tensor that overlaps bias"]),
            ]:
                rows = both[: x.shape[0]]
                assert_refused(lambda o=bad, r=rows: buffer.combine(r, handle, None, bias, out=o), words)
            second = torch.zeros_like(bias)
            assert_refused(
                lambda: buffer.combine(x, handle, None, (bias, second), out=second),
                ["out=a tensor that overlaps bias[1]"],
            )
            beside = buffer.combine(both[: x.shape[0]], handle, out=both[x.shape[0] :][:4])[0]  # of one storage, apart
            assert torch.equal(beside, buffer.combine(x, handle)[0])

    run_ranks(4, body)
