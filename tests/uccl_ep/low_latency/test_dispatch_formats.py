"""NVFP4 rows as callers see them: shapes, strides and bytes against the reference cast; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, ThreadGroup, reference, run_ranks
from uccl_ep.low_latency.dispatch_formats import BF16, FP8, FP8_UE8M0, NVFP4, ReceivedRows, global_scale_of
from uccl_ep.reference import RandomCase, cast_nvfp4, dequantise_nvfp4, unswizzle_nvfp4

Tensor = torch.Tensor


class _Memory:
    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)


def global_scale(c: RandomCase) -> Tensor:
    """What all ranks use: 448 * 6 / (largest magnitude)."""
    most = max((float(x.float().abs().max()) for x in c.x if x.numel()), default=1.0)
    return torch.tensor(2688.0 / (most or 1.0))


def assert_nvfp4(received: tuple[Any, ...], wanted: Any, scale: Tensor, max_rows: int) -> None:
    """(recv_x, recv_count, handle) is the bf16 reference, cast row by row."""
    (x, scales), count, (src_info, layout_range, *_) = received[:3]
    local, hidden = wanted.recv_x.shape[0], wanted.recv_x.shape[-1]
    tiles = -(-max_rows // 128)
    assert x.dtype == torch.uint8 and x.shape == (max_rows, hidden // 2, local)
    assert x.stride() == (hidden // 2, 1, max_rows * hidden // 2)
    assert scales.dtype == torch.float8_e4m3fn and scales.shape == (32, 4, tiles, 4, hidden // 64, local)
    assert scales.stride() == (16, 4, hidden // 64 * 512, 1, 512, tiles * hidden // 64 * 512)
    assert torch.equal(count, wanted.recv_count) and torch.equal(layout_range, wanted.layout_range)
    data, linear = x.permute(2, 0, 1), unswizzle_nvfp4(scales, max_rows)
    for expert, n in enumerate(count.tolist()):
        q, s = cast_nvfp4(wanted.recv_x[expert, :n], scale)
        assert same(data[expert, :n], q) and same(linear[expert, :n], s)
        assert torch.equal(src_info[expert, :n], wanted.src_info[expert, :n])


def send(buffer: Buffer, c: RandomCase, scale: Tensor, **options: Any) -> tuple[Any, ...]:
    options = {"use_fp8": False, "use_nvfp4": True, "x_global_scale": scale, **options}
    rank = buffer.rank
    return buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, **options)


@pytest.mark.mostly_slow(quick=3)
@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("way", ["hook", "async", "now"])
def test_low_latency_formats_nvfp4_is_the_reference_cast(variables: Any, per_node: int, way: str) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback")
    c = case(31 + per_node, "mixed" if way == "now" else "some_unused", num_ranks=4, hidden=192, max_tokens=40)
    c.topk_idx[:] = [torch.where(ids >= c.shape.num_experts, -1, ids) for ids in c.topk_idx]
    wanted, scale = reference_of(c), global_scale(c)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            for _ in range(3):
                received = send(buffer, c, scale, async_finish=way == "async", return_recv_hook=way == "hook")
                *_, event, hook = received
                assert (hook is not None) == (way == "hook") and (event.event is not None) == (way == "async")
                if way == "hook":
                    hook()
                elif way == "async":
                    event.current_stream_wait()
                assert_nvfp4(received, wanted[buffer.rank], scale, 160)
                rows = expert_rows(buffer.rank, c.shape)  # the handle serves a combine like any other
                out, _, _ = buffer.low_latency_combine(
                    rows, c.topk_idx[buffer.rank], c.topk_weights[buffer.rank], received[2]
                )
                due = reference.low_latency_combine(
                    [expert_rows(r, c.shape) for r in range(4)], c.topk_idx, c.topk_weights, wanted
                )
                assert same(out, due[buffer.rank])

    run_ranks(4, body)


def test_low_latency_formats_nvfp4_values_and_statistics(variables: Any) -> None:
    c = case(36, "uniform", num_ranks=2, hidden=256, max_tokens=16)
    wanted, scale = reference_of(c), global_scale(c)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            stats = torch.zeros(4, dtype=torch.int32)
            received = send(buffer, c, scale, cumulative_local_expert_recv_stats=stats)
            (x, scales), count = received[0], received[1]
            assert torch.equal(stats, count)
            back = dequantise_nvfp4(x.permute(2, 0, 1), unswizzle_nvfp4(scales, 32), scale)
            for expert, n in enumerate(count.tolist()):
                rows = wanted[buffer.rank].recv_x[expert, :n]
                assert n == 0 or reference.calc_diff(back[expert, :n], rows) < 0.02
            # What vLLM and SGLang pass: one value an expert, and a scale beside other formats.
            assert_nvfp4(send(buffer, c, scale.expand(8).contiguous()), wanted[buffer.rank], scale, 32)
            plain = send(buffer, c, scale, use_nvfp4=False)
            assert same(plain[0][0, : int(count[0])], wanted[buffer.rank].recv_x[0, : int(count[0])])

    run_ranks(2, body)


def test_low_latency_formats_nvfp4_of_a_masked_rank(variables: Any) -> None:
    variables(TIMEOUT_S=20)
    c = case(37, "uniform", num_ranks=3, num_experts=6, hidden=128, max_tokens=8)
    masked = [{2}, {2}, {0, 1}]
    wanted, scale = reference_of(c, masked=masked), global_scale(c)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            if buffer.rank != 2:
                buffer.low_latency_update_mask_buffer(2, True)
                assert_nvfp4(send(buffer, c, scale), wanted[buffer.rank], scale, 24)

    run_ranks(3, body)


def test_low_latency_formats_refusals(variables: Any) -> None:
    c = case(38, "uniform", num_ranks=2, hidden=128, max_tokens=8)
    good = torch.tensor([3.0])

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:

            def call(**options: Any) -> Callable[[], object]:
                return lambda: send(buffer, c, good, **options)

            odd = torch.zeros(2, 96, dtype=torch.bfloat16)
            ids = torch.zeros(2, 2, dtype=torch.int64)
            names: dict[str, Any] = {"use_nvfp4": True, "x_global_scale": good}
            table: list[tuple[Callable[[], object], list[object]]] = [
                (call(use_fp8=True), ["use_nvfp4=True", "False with use_fp8=True", "Pass use_fp8=False"]),
                (call(x_global_scale=None), ["x_global_scale=None", "float32", "448 * 6"]),
                (call(x_global_scale=3.0), ["x_global_scale=3.0", "tensor"]),
                (call(x_global_scale=good.double()), ["x_global_scale=", "float64"]),
                (call(x_global_scale=torch.zeros(0)), ["x_global_scale=", "(0,)"]),
                (call(x_global_scale=torch.tensor(0.0)), ["x_global_scale=0.0", "above 0"]),
                (call(x_global_scale=torch.tensor(torch.nan)), ["x_global_scale"]),
                (call(x_global_scale=torch.tensor(torch.inf)), ["x_global_scale=inf", "finite"]),
                (call(x_global_scale=torch.tensor([1.0, 2.0])), ["values from 1.0 to 2.0", "one value"]),
                (call(use_nvfp4="yes"), ["use_nvfp4='yes'", "True or False"]),
                (call(use_ue8m0=True, round_scale=True), ["use_ue8m0=True", "use_fp8=True"]),
                (lambda: buffer.low_latency_dispatch(odd, ids, 8, 8, use_fp8=False, **names),
                 ["x=96", "of a multiple of 64 channels with use_nvfp4=True"]),
            ]  # fmt: skip
            for refused, words in table:
                assert_refused(refused, words)

    run_ranks(2, body)


def test_low_latency_formats_memory_of_each() -> None:
    payload = {BF16: torch.bfloat16, FP8: torch.float8_e4m3fn, FP8_UE8M0: torch.float8_e4m3fn, NVFP4: torch.uint8}
    for code, dtype in payload.items():
        rows = ReceivedRows.make(_Memory(), code, 3, 130, 640)
        assert rows.x.dtype == dtype and rows.x.shape == (3, 130, 320 if code == NVFP4 else 640)
        assert rows.x.is_contiguous() and (rows.scales is None or rows.scales.is_contiguous())
        view = rows.view()
        assert isinstance(view, tuple) == (code != BF16)
        parts = view if isinstance(view, tuple) else (view,)
        assert [part.data_ptr() for part in parts] == [t.data_ptr() for t in (rows.x, rows.scales) if t is not None]
    assert global_scale_of(torch.full((2, 2), 5.0), look=True).numel() == 4
    assert global_scale_of(torch.tensor([1.0, 2.0]), look=False).numel() == 2  # on a GPU nobody looks
