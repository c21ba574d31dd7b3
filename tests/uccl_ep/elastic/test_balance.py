"""Load balancing in EPBuffer: weights in their slots, gradients summed in order, to the bit; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB, assert_refused, same
from uccl_ep import EPBuffer, InvalidArgument, ThreadGroup, run_ranks
from uccl_ep.elastic.base import BufferAllocator

Tensor = torch.Tensor
LOCAL, SLOTS = 3, 4
WORLDS = [(1, 0), (2, 0), (4, 2), (5, 2)]  # the last with a node of one rank
UNTOUCHED = 0xA5


def mapping_of(seed: int, ranks: int, empty: float) -> Tensor:
    """int32 [ranks, SLOTS]: any expert of another rank, also twice; or -1."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.arange(ranks).unsqueeze(1) * LOCAL
    table = torch.randint(0, max(1, (ranks - 1) * LOCAL), (ranks, SLOTS), generator=generator)
    table += (table >= own) * LOCAL
    return torch.where(torch.rand(ranks, SLOTS, generator=generator) < (empty if ranks > 1 else 2), -1, table).int()


def weights_of(rank: int, seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(LOCAL, *shape, generator=generator)


def on_ranks(ranks: int, shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], body: Callable[..., Any]) -> None:
    """`body(group, buffer, planned tensors by name)` on each rank."""

    def run(group: ThreadGroup) -> None:
        plan = BufferAllocator()
        planned = {name: plan.allocate(shape, dtype) for name, (shape, dtype) in shapes.items()}
        assert all(tensor.is_meta for tensor in planned.values())
        buffer = EPBuffer(group, 2 * MIB, lb_allocation_plan_or_num_bytes=plan, explicitly_destroy=True)
        try:
            assert buffer.num_lb_bytes == plan.num_bytes == len(shapes) * 2 * MIB
            body(group, buffer, planned)
            group.barrier()
        finally:
            buffer.destroy()

    run_ranks(ranks, run)


@pytest.mark.parametrize("ranks, per_node", WORLDS)
def test_prefetch_fills_the_slots_that_have_an_expert_and_no_other(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    shapes = {"weights": ((SLOTS, 40, 130), torch.bfloat16), "scales": ((SLOTS, 7), torch.float32)}

    def body(group: ThreadGroup, buffer: EPBuffer, slots: dict[str, Tensor]) -> None:
        for turn, empty in enumerate((0.3, 0.0, 1.0, 0.6)):
            mapping = mapping_of(turn, ranks, empty)
            everybodys = [[weights_of(r, turn, 5200).bfloat16(), weights_of(r, turn, 7)] for r in range(ranks)]
            for tensor in slots.values():
                tensor.view(torch.uint8).fill_(UNTOUCHED)
            names = ["weights"] if turn == 1 else ["weights", "scales"]
            targets: Any = slots["weights"] if turn == 1 else [slots[name] for name in names]
            own: Any = everybodys[group.rank()]
            before = buffer.capture() if turn % 2 else None
            event = buffer.lb_prefetch_weights(targets, own[0] if turn == 1 else own, mapping, previous_event=before)
            assert event.event is not None and event.wait() is None
            for place, name in enumerate(("weights", "scales")):
                for slot, expert in enumerate(mapping[group.rank()].tolist()):
                    got = slots[name][slot].flatten()
                    if expert < 0 or name not in names:
                        assert bool((got.view(torch.uint8) == UNTOUCHED).all())
                    else:
                        assert same(got, everybodys[expert // LOCAL][place][expert % LOCAL])

    on_ranks(ranks, shapes, body)


def summed(rank: int, seed: int, mapping: Tensor, hidden: int) -> Tensor:
    """What a rank's gradients must be: its own, then those of slots by ascending rank, then slot."""
    grads = weights_of(rank, seed, hidden)
    for borrower, row in enumerate(mapping.tolist()):
        lent = torch.randn(SLOTS, hidden, generator=torch.Generator().manual_seed(77 * seed + borrower))
        for slot, expert in enumerate(row):
            if expert >= 0 and expert // LOCAL == rank:
                grads[expert % LOCAL] = grads[expert % LOCAL] + lent[slot]
    return grads


@pytest.mark.parametrize("ranks, per_node", WORLDS)
@pytest.mark.parametrize("hidden", [1, 5000])
def test_reduce_adds_in_a_fixed_order_and_only_reads_the_slots(
    variables: Any, ranks: int, per_node: int, hidden: int
) -> None:
    variables(RANKS_PER_NODE=per_node)

    def body(group: ThreadGroup, buffer: EPBuffer, slots: dict[str, Tensor]) -> None:
        rank = group.rank()
        for turn, empty in enumerate((0.0, 0.5, 1.0)):
            mapping = mapping_of(50 + turn, ranks, empty)
            lent = torch.randn(SLOTS, hidden, generator=torch.Generator().manual_seed(77 * turn + rank))
            slots["grads"].copy_(lent)
            grads = weights_of(rank, turn, hidden).requires_grad_(turn == 1)
            buffer.lb_reduce_grads(slots["grads"], grads, mapping).wait()
            assert same(grads.detach(), summed(rank, turn, mapping, hidden)) and same(slots["grads"], lent)

    on_ranks(ranks, {"grads": ((SLOTS, hidden), torch.float32)}, body)


def test_the_sum_is_not_what_another_order_would_give() -> None:
    """Else the tests above could not see the order."""
    mapping = mapping_of(50, 4, 0.0)
    there = weights_of(0, 0, 5000)
    for borrower, row in reversed(list(enumerate(mapping.tolist()))):
        lent = torch.randn(SLOTS, 5000, generator=torch.Generator().manual_seed(borrower))
        for slot, expert in enumerate(row):
            if expert >= 0 and expert // LOCAL == 0:
                there[expert % LOCAL] += lent[slot]
    assert not same(there, summed(0, 0, mapping, 5000))


def test_a_node_can_be_the_domain_as_upstream_has_it(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)

    def body(group: ThreadGroup, buffer: EPBuffer, slots: dict[str, Tensor]) -> None:
        rank, node = group.rank(), group.rank() // 2
        mapping = mapping_of(9 + node, 2, 0.2)  # each node its own, of its own experts
        everybodys = [weights_of(2 * node + local, 1, 24) for local in range(2)]
        slots["grads"].fill_(0.0)
        buffer.lb_prefetch_weights(slots["grads"], everybodys[rank % 2], mapping).wait()
        for slot, expert in enumerate(mapping[rank % 2].tolist()):
            want = everybodys[expert // LOCAL][expert % LOCAL] if expert >= 0 else torch.zeros(24)
            assert same(slots["grads"][slot], want)
        grads = torch.zeros(LOCAL, 24)
        buffer.lb_reduce_grads(slots["grads"], grads, mapping).wait()
        for expert in range(LOCAL):
            copies = int((mapping[1 - rank % 2] == (rank % 2) * LOCAL + expert).sum())
            assert torch.allclose(grads[expert], everybodys[rank % 2][expert] * copies)

    on_ranks(4, {"grads": ((SLOTS, 24), torch.float32)}, body)


def test_what_is_refused_names_the_argument(variables: Any) -> None:
    variables()

    def body(group: ThreadGroup, buffer: EPBuffer, slots: dict[str, Tensor]) -> None:
        own = weights_of(group.rank(), 0, 8)
        good = torch.full((2, SLOTS), -1, dtype=torch.int32)
        bad_own, bad_id = good.clone(), good.clone()
        bad_own[1, 2], bad_id[0, 1] = LOCAL, 2 * LOCAL
        for targets, sources, mapping, words in (
            (slots["w"], own, bad_own, "redundancy_mapping[1, 2]"),
            (slots["w"], own, bad_id, "redundancy_mapping[0, 1]"),
            (slots["w"], own, good.long(), "redundancy_mapping"),
            (slots["w"], own, good[:, 1:].contiguous(), "redundancy_mapping"),
            (slots["w"], own, good.repeat(2, 1)[:3], "redundancy_mapping"),
            (slots["w"].clone(), own, good, "load-balancing region"),
            (slots["w"], own[:, 1:].contiguous(), good, "bytes an expert"),
            (slots["w"], own.T, good, "expert_weights"),
            (slots["w"], own[:0], good, "expert_weights"),
            ([], [], good, "expert_weights"),
            ([slots["w"]], [own, own], good, "expert_weights"),
            ([slots["w"], slots["w"]], [own, own[:2]], good, "expert_weights"),
        ):
            assert_refused(lambda t=targets, s=sources, m=mapping: buffer.lb_prefetch_weights(t, s, m), [words])
        grads = torch.zeros(LOCAL, 8)
        assert_refused(lambda: buffer.lb_reduce_grads(slots["w"], grads.double(), good), ["expert_grads"])
        assert_refused(lambda: buffer.lb_reduce_grads(slots["w"][:, :4], grads, good), ["redundant_expert_grads"])
        assert_refused(lambda: buffer.lb_reduce_grads(slots["w"], grads, good, -1), ["num_sms"])
        group.barrier()  # both ranks are ready for what ranks see only when rows have come
        differing = good.clone()
        differing[0, 0] = LOCAL if group.rank() == 0 else -1
        if group.rank() == 0:
            with pytest.raises(InvalidArgument, match="redundancy_mapping.*rank 1 sends 0 rows"):
                buffer.lb_prefetch_weights(slots["w"], own, differing)
        else:
            buffer.lb_prefetch_weights(slots["w"], own, differing)

    on_ranks(2, {"w": ((SLOTS, 8), torch.float32)}, body)
