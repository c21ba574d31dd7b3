"""Checks of low_latency_dispatch: rows by expert, FP8 and its scales, hooks, events, statistics, refusals.

The order of sources inside an expert, and of a source's tokens, is open in the contract: rows are found through the
handle (src_info, layout_range), as a library's users must.
"""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep import reference
from uccl_ep.reference import Fp8Format, LowLatencyReceived, RandomCase
from uccl_ep.tools.conformance.registry import check
from uccl_ep.tools.conformance.throughput_dispatch import one_token
from uccl_ep.tools.conformance.world import HIDDEN, LOCAL_EXPERTS, MAX_TOKENS, World, bits

Tensor = torch.Tensor
_COUNT = 0xFFFFFFFF  # layout_range: count in the low 32 bits, first row in the high ones


def expected(
    world: World, case: RandomCase, fp8: Fp8Format | None = None, masked: Any = None
) -> list[LowLatencyReceived]:
    """The reference's dispatch of a case, for all ranks."""
    return reference.low_latency_dispatch(case.x, case.topk_idx, MAX_TOKENS, world.num_experts, fp8, masked)


def dispatch(world: World, case: RandomCase, buffer: Any = None, **arguments: Any) -> tuple[Any, ...]:
    """A dispatch of this rank's tokens, received when it returns unless a hook was asked for. Collective."""
    buffer = world.buffer("low_latency") if buffer is None else buffer
    x, ids = world.put(case.x[world.rank]), world.put(case.topk_idx[world.rank])
    results = tuple(buffer.low_latency_dispatch(x, ids, MAX_TOKENS, world.num_experts, **arguments))
    world.equal("values that low_latency_dispatch returns", len(results), 5)
    return results


def _blocks(layout_range: Tensor) -> tuple[Tensor, Tensor]:
    """First row and number of rows of each (expert, source), on the host."""
    plain = layout_range.detach().cpu()
    return plain >> 32, plain & _COUNT


def compare(world: World, got: tuple[Any, ...], wanted: LowLatencyReceived) -> None:
    """Counts, the handle's tables, rows and scales, in any order that the contract allows."""
    recv_x, count, handle = got[:3]
    x, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
    shape = (LOCAL_EXPERTS, world.size * MAX_TOKENS)
    world.equal("shape of recv_x", tuple(x.shape), (*shape, HIDDEN))
    world.equal("recv_count", count, wanted.recv_count)
    src_info, layout_range = handle[0], handle[1]
    world.equal("shape and dtype of src_info", (tuple(src_info.shape), src_info.dtype), (shape, torch.int32))
    wide = (tuple(layout_range.shape), layout_range.dtype)
    world.equal("shape and dtype of layout_range", wide, ((LOCAL_EXPERTS, world.size), torch.int64))
    world.equal("the handle's M, H, E", tuple(handle[2:5]), (MAX_TOKENS, HIDDEN, world.num_experts))
    begin, number = _blocks(layout_range)
    wanted_begin, wanted_number = _blocks(wanted.layout_range)
    world.equal("layout_range, counts", number, wanted_number)
    if world.problems:
        return
    place, wanted_place = [], []
    tokens = src_info.detach().cpu()
    for expert in range(LOCAL_EXPERTS):
        taken = []
        for source in range(world.size):
            rows = int(begin[expert, source]) + torch.arange(int(number[expert, source]))
            taken.append(rows)
            rows = rows[tokens[expert, rows].argsort()]  # a source's tokens may come in any order
            first = int(wanted_begin[expert, source])
            place.append(torch.stack([torch.full_like(rows, expert), rows]))
            wanted_place.append(torch.stack([torch.full_like(rows, expert), first + torch.arange(rows.numel())]))
        filled = torch.cat(taken).sort().values
        right = torch.equal(filled, torch.arange(int(count[expert])))
        world.expect(right, f"expert {expert}: blocks of sources do not fill rows 0 to recv_count")
    at, wanted_at = torch.cat(place, 1), torch.cat(wanted_place, 1)
    world.equal("src_info", tokens[at[0], at[1]], wanted.src_info[wanted_at[0], wanted_at[1]])
    _compare_rows(world, "recv_x", x, at, wanted.recv_x, wanted_at)
    if wanted.scales is not None and world.expect(scales is not None, "no scales"):
        world.equal(
            "dtype and shape of scales", (scales.dtype, scales.shape), (wanted.scales.dtype, wanted.scales.shape)
        )
        packs, per_expert = scales.shape[-1], scales.shape[1]
        world.equal("strides of scales (column-major)", scales.stride(), (packs * per_expert, 1, per_expert))
        _compare_rows(world, "scales", scales, at, wanted.scales, wanted_at)


def _compare_rows(world: World, what: str, got: Tensor, at: Tensor, wanted: Tensor, wanted_at: Tensor) -> None:
    def rows(tensor: Tensor, where: Tensor) -> Tensor:
        raw = bits(tensor).view(*tensor.shape[:2], -1)  # torch cannot index float8
        return raw[where[0], where[1]]

    if got.dtype != wanted.dtype:
        world.note(f"{what} is {got.dtype}, not {wanted.dtype}")
        return
    world.equal(what, rows(got, at), rows(wanted, wanted_at))


@check("A.6")
def low_latency_dispatch_bf16(world: World) -> None:
    """bf16 rows by local expert, one for each (token, expert); sources and blocks as the handle says. Part A.6."""
    case = world.case()
    got = dispatch(world, case, use_fp8=False)
    compare(world, got, expected(world, case)[world.rank])
    world.expect(got[3].event is None, "the event of a synchronous dispatch is not None")
    world.expect(got[4] is None, "the hook is not None although none was asked for")


@check("B")
def low_latency_dispatch_fp8(world: World) -> None:
    """The cast to e4m3 with one f32 scale for 128 channels, to the bit; scales column-major. Parts A.6, B.1, D.6."""
    case = world.case()
    compare(world, dispatch(world, case), expected(world, case, Fp8Format())[world.rank])


@check("B")
def low_latency_dispatch_round_scale(world: World) -> None:
    """round_scale: scales are powers of two, from the float's bits. Part B.1."""
    case = world.case()
    compare(world, dispatch(world, case, round_scale=True), expected(world, case, Fp8Format(True))[world.rank])


@check("B")
def low_latency_dispatch_ue8m0(world: World) -> None:
    """use_ue8m0: exponents, four to an int32, the first in the lowest byte. Parts A.6 and B.1."""
    case = world.case()
    got = dispatch(world, case, round_scale=True, use_ue8m0=True)
    compare(world, got, expected(world, case, Fp8Format(True, True))[world.rank])


@check("B")
def low_latency_dispatch_small_values(world: World) -> None:
    """A block of zeros, or of tiny values, has the scale of amax = 1e-4. Part B.1."""
    case = world.case()
    for rank, x in enumerate(case.x):
        case.x[rank] = x * torch.tensor([0.0, 1e-6, 1.0])[torch.arange(x.shape[0]) % 3].unsqueeze(1).bfloat16()
    compare(world, dispatch(world, case), expected(world, case, Fp8Format())[world.rank])


@check("A.6")
def low_latency_dispatch_traffic(world: World) -> None:
    """No tokens, nothing but -1, one hot expert, one token a rank. Part A.6."""
    cases = [world.case(turn, traffic) for turn, traffic in enumerate(("no_tokens", "all_unused", "hot_expert"))]
    for case in (*cases, one_token(world)):
        compare(world, dispatch(world, case, use_fp8=False), expected(world, case)[world.rank])


@check("B", required=False)
def low_latency_dispatch_duplicates(world: World) -> None:
    """A token that names an expert twice is sent to it once. Part B.1 leaves this open: upstream never tests it."""
    case = world.case(traffic="duplicates")
    compare(world, dispatch(world, case, use_fp8=False), expected(world, case)[world.rank])


@check("A.6")
def low_latency_dispatch_hook(world: World) -> None:
    """With return_recv_hook a callable comes back; when it has been called the rows are there. Parts A.6 and D.6."""
    case = world.case()
    got = dispatch(world, case, return_recv_hook=True)
    world.expect(got[3].event is None, "the event of a call with a hook is not None")
    if world.expect(callable(got[4]), f"the hook is {got[4]!r}"):
        got[4]()
        compare(world, got, expected(world, case, Fp8Format())[world.rank])


@check("A.6")
def low_latency_dispatch_asynchronous(world: World) -> None:
    """With async_finish an event comes back, after which the rows are there; the hook is None. Parts A.6 and A.7."""
    case = world.case()
    got = dispatch(world, case, async_finish=True)
    world.expect(got[4] is None, "the hook is not None although none was asked for")
    if world.expect(got[3].event is not None, "the event of an asynchronous dispatch is None"):
        got[3].current_stream_wait()
        compare(world, got, expected(world, case, Fp8Format())[world.rank])


@check("A.6")
def low_latency_dispatch_two_at_once(world: World) -> None:
    """Two results may be held: the second dispatch leaves the first one's rows alone. Part A.6."""
    first, second = world.case(), world.case(1)
    hooked = dispatch(world, first, use_fp8=False, return_recv_hook=True)
    other = dispatch(world, second, use_fp8=False, return_recv_hook=True)
    for got in (hooked, other):
        got[4]()
    compare(world, hooked, expected(world, first)[world.rank])
    compare(world, other, expected(world, second)[world.rank])


@check("A.6")
def low_latency_dispatch_statistics(world: World) -> None:
    """Rows per expert are added to cumulative_local_expert_recv_stats; waits (int64 [N]) never shrink. Part A.6."""
    case = world.case()
    stats = torch.full((LOCAL_EXPERTS,), 5, dtype=torch.int32, device=world.device)
    waits = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    for _ in range(2):
        dispatch(world, case, cumulative_local_expert_recv_stats=stats, dispatch_wait_recv_cost_stats=waits)
    counts = expected(world, case)[world.rank].recv_count
    world.equal("cumulative_local_expert_recv_stats after two calls", stats, 5 + 2 * counts)
    world.expect(bool((waits >= 0).all()), f"dispatch_wait_recv_cost_stats is {waits.tolist()}")


@check("A.6")
def low_latency_refusals(world: World) -> None:
    """What the contract rules out is refused before anything is sent; the next call works. Part A.6."""
    case = world.case()
    float_rows = RandomCase(case.shape, case.traffic, [x.float() for x in case.x], case.topk_idx, case.topk_weights)
    long = world.case(1)
    for rank in range(world.size):
        long.x[rank] = world.rows(rank, MAX_TOKENS + 1, HIDDEN)
        long.topk_idx[rank] = torch.zeros(MAX_TOKENS + 1, 1, dtype=torch.int64)
    world.refused(
        "async_finish with return_recv_hook",
        lambda: dispatch(world, case, async_finish=True, return_recv_hook=True),
    )
    world.refused("float32 rows", lambda: dispatch(world, float_rows))
    world.refused("more tokens than M", lambda: dispatch(world, long))
    throughput = world.buffer("throughput")
    world.refused("a Buffer without low_latency_mode", lambda: dispatch(world, case, throughput))
    compare(world, dispatch(world, case, use_fp8=False), expected(world, case)[world.rank])


@check("A.3")
def low_latency_raw_memory(world: World) -> None:
    """get_local_buffer_tensor gives a flat view of a dtype, or one of a size. Parts A.3 and D.2."""
    buffer = world.buffer("low_latency")
    flat = buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True)
    world.expect(flat.dim() == 1 and flat.dtype == torch.int8, f"the view is {flat.dim()}-D {flat.dtype}")
    world.expect(0 < flat.numel() <= buffer.num_rdma_bytes, f"{flat.numel()} bytes of {buffer.num_rdma_bytes}")
    shaped = buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size((4, 8)), use_rdma_buffer=True)
    world.equal(
        "shape and dtype of a view of a size", (shaped.shape, shaped.dtype), (torch.Size((4, 8)), torch.bfloat16)
    )
    world.equal("where the view of a size begins", shaped.data_ptr(), flat.data_ptr())
