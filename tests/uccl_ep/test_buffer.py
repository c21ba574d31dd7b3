"""Buffer: DeepEP's signatures, the constructor's refusals, the helpers, and its end."""

from __future__ import annotations

import gc
import inspect
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB, assert_refused, case, low_latency, throughput
from uccl_ep import Buffer, Config, EventHandle, EventOverlap, InvalidArgument, NotSupported, ThreadGroup, run_ranks
from uccl_ep.layout.plan import low_latency_size_hint

LAYOUT = "num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert"
STREAMS: dict[str, Any] = {"previous_event": None, "async_finish": False, "allocate_on_comm_stream": False}
REQUIRED = inspect.Parameter.empty
# DeepEP V1's names in their order with their defaults, then names of its branches that must be accepted too.
CONTRACT: dict[str, tuple[dict[str, Any], set[str]]] = {
    "__init__": (
        {
            "group": ..., "num_nvl_bytes": 0, "num_rdma_bytes": 0, "low_latency_mode": False, "num_qps_per_rank": 24,
            "allow_nvlink_for_low_latency_mode": True, "allow_mnnvl": False, "explicitly_destroy": False,
            "enable_shrink": False, "comm": None,
        },
        {"use_fabric", "allow_nvlink_for_normal_mode", "eager_support", "is_intranode"},
    ),
    "get_dispatch_layout": ({"topk_idx": REQUIRED, "num_experts": REQUIRED, **STREAMS}, set()),
    "dispatch": (
        {
            "x": REQUIRED, "handle": None, **dict.fromkeys(LAYOUT.split()), "topk_idx": None, "topk_weights": None,
            "expert_alignment": 1, "num_worst_tokens": 0, "config": None, **STREAMS,
        },
        set(),
    ),
    "combine": (
        {"x": REQUIRED, "handle": REQUIRED, "topk_weights": None, "bias": None, "config": None, **STREAMS}, {"out"},
    ),
    "low_latency_dispatch": (
        {
            **dict.fromkeys(("x", "topk_idx", "num_max_dispatch_tokens_per_rank", "num_experts"), REQUIRED),
            "cumulative_local_expert_recv_stats": None, "dispatch_wait_recv_cost_stats": None, "use_fp8": True,
            "round_scale": False, "use_ue8m0": False, "async_finish": False, "return_recv_hook": False,
        },
        {"x_global_scale", "use_nvfp4", "topk_weights", "use_ue8m0_for_sf", "use_eager", "align_fp8_quantization"},
    ),
    "low_latency_combine": (
        {
            **dict.fromkeys(("x", "topk_idx", "topk_weights", "handle"), REQUIRED), "use_logfmt": False,
            "zero_copy": False, "async_finish": False, "return_recv_hook": False, "out": None,
            "combine_wait_recv_cost_stats": None,
        },
        {
            "use_fp8", "use_eager", "overlap", "src_signals", "src_signal_expect_value", "packed_recv_count",
            "comp_signal", "block_m", "threshold", "num_sms",
        },
    ),
    "get_low_latency_rdma_size_hint": (
        dict.fromkeys(("num_max_dispatch_tokens_per_rank", "hidden", "num_ranks", "num_experts"), REQUIRED),
        {"eager_support"},
    ),
    "get_local_buffer_tensor": (
        {"dtype": REQUIRED, "size": None, "offset": 0, "use_rdma_buffer": False}, set(),
    ),
    "clean_low_latency_buffer": (
        dict.fromkeys(("num_max_dispatch_tokens_per_rank", "hidden", "num_experts"), REQUIRED), set(),
    ),
    "low_latency_update_mask_buffer": ({"rank_to_mask": REQUIRED, "mask": False}, set()),
    "low_latency_query_mask_buffer": ({"mask_status": REQUIRED}, set()),
    "low_latency_clean_mask_buffer": ({}, set()),
    "get_next_low_latency_combine_buffer": ({"handle": REQUIRED}, set()),
    "destroy": ({}, set()),
    "is_sm90_compiled": ({}, set()),
    "set_num_sms": ({"new_num_sms": REQUIRED}, set()),
    "capture": ({}, set()),
    "get_comm_stream": ({}, set()),
    "get_dispatch_config": ({"num_ranks": REQUIRED}, set()),
    "get_combine_config": ({"num_ranks": REQUIRED}, set()),
    "_unpack_bias": ({"bias": REQUIRED}, set()),
}  # fmt: skip
STATIC = {
    "is_sm90_compiled", "set_num_sms", "capture", "get_low_latency_rdma_size_hint", "get_dispatch_config",
    "get_combine_config", "_unpack_bias",
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACT)
def test_buffer_signature_is_deepeps(name: str) -> None:
    positional, extra = CONTRACT[name]
    parameters = [p for p in inspect.signature(getattr(Buffer, name)).parameters.values() if p.name != "self"]
    names = [p.name for p in parameters]
    assert names[: len(positional)] == list(positional)
    for parameter, default in zip(parameters, positional.values(), strict=False):
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert default is ... or parameter.default is default or parameter.default == default
    assert extra <= set(names)
    for parameter in parameters[len(positional) :]:  # after DeepEP's own: never by position, always optional
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is not REQUIRED
    assert isinstance(inspect.getattr_static(Buffer, name), staticmethod) == (name in STATIC)


def test_buffer_accepts_every_branchs_keywords_and_shows_its_attributes(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        buffer = Buffer(
            group, MIB, 0, False, 8.0, True, False, True, False, None,
            use_fabric=True, allow_nvlink_for_normal_mode=False, eager_support=True, is_intranode=True, device="cpu",
        )  # fmt: skip
        assert buffer.group is group
        assert (buffer.rank, buffer.group_size, buffer.num_nvl_bytes, buffer.num_rdma_bytes) == (0, 1, MIB, 0)
        assert (buffer.low_latency_mode, buffer.explicitly_destroy, buffer.enable_shrink) == (False, True, False)
        assert buffer.runtime is not None and buffer.nvshmem_qp_depth >= 2 * (1024 + 1)
        assert buffer.get_comm_stream() is buffer.get_comm_stream()
        buffer.destroy()
        assert buffer.runtime is None
        with pytest.raises(InvalidArgument, match="this Buffer has been destroyed"):
            buffer.get_comm_stream()

    run_ranks(1, body)
    assert Buffer.num_sms == 20


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"num_nvl_bytes": -128}, ["num_nvl_bytes=-128", "multiple of 128, 0 or more"]),
        ({"num_nvl_bytes": 129}, ["num_nvl_bytes=129", "multiple of 128"]),
        ({"num_nvl_bytes": 128.0}, ["num_nvl_bytes=128.0", "multiple of 128"]),
        ({"num_rdma_bytes": 64}, ["num_rdma_bytes=64", "multiple of 128"]),
        ({"num_rdma_bytes": True}, ["num_rdma_bytes=True", "multiple of 128"]),
        ({"num_qps_per_rank": 0}, ["num_qps_per_rank=0", "1 to 65536"]),
        ({"num_qps_per_rank": 8.5}, ["num_qps_per_rank=8.5", "1 to 65536"]),
        ({"low_latency_mode": True}, ["num_rdma_bytes=0", "low-latency size", "get_low_latency_rdma_size_hint"]),
    ],
)
def test_buffer_constructor_refuses(variables: Any, arguments: dict[str, Any], words: list[str]) -> None:
    assert_refused(lambda: Buffer(ThreadGroup.create(1)[0], **arguments), words)


def test_buffer_too_large_for_offsets(variables: Any) -> None:
    from uccl_ep import UcclEpError

    with pytest.raises(UcclEpError, match=r"num_nvl_bytes \+ num_rdma_bytes must be up to \d+ bytes in all; got \d+\."):
        Buffer(ThreadGroup.create(1)[0], 1 << 41)


def test_buffer_a_gpu_that_cannot_be_used(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SimpleNamespace(available=lambda: (False, "no device visible"))
    monkeypatch.setitem(sys.modules, "uccl_ep.gpu.cupy_driver", absent)  # type: ignore[arg-type]
    group = ThreadGroup.create(1)[0]
    with pytest.raises(NotSupported, match="device=cuda: no GPU can be used: no device visible"):
        Buffer(group, MIB, device="cuda")
    assert_refused(lambda: Buffer(group, MIB, device="rocm"), ["device='rocm'", "hip:N"])
    variables(DEVICE="hip:1")
    with pytest.raises(NotSupported, match="UCCL_EP_DEVICE=hip:1: no GPU"):
        Buffer(group, MIB)
    buffer = Buffer(group, MIB, device="cpu")  # the argument goes before the variable
    assert buffer.device_reason == "device=cpu"
    x = torch.empty(2, 128, dtype=torch.bfloat16, device="meta")
    assert_refused(lambda: buffer.dispatch(x, handle=(1,)), ["x=a tensor on meta", "a tensor on cpu"])
    buffer.destroy()


def test_buffer_a_bad_variable_is_refused(variables: Any) -> None:
    variables(RINGS="none")
    assert_refused(lambda: Buffer(ThreadGroup.create(1)[0], MIB), ["UCCL_EP_RINGS='none'", "1 to 64"])


def test_buffer_warns_when_an_explicit_destroy_was_forgotten(variables: Any) -> None:
    group = ThreadGroup.create(1)[0]
    buffer = Buffer(group, MIB, explicitly_destroy=True)
    with pytest.warns(UserWarning, match="explicitly_destroy=True but never destroyed"):
        del buffer
        gc.collect()
    for explicitly in (True, False):
        buffer = Buffer(group, MIB, explicitly_destroy=explicitly)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if explicitly:
                buffer.destroy()
            del buffer
            gc.collect()


def test_buffer_destroy_waits_for_what_is_queued(variables: Any) -> None:
    from tests.uccl_ep.gate import Gate

    buffer = Buffer(ThreadGroup.create(1)[0], MIB)
    gate = Gate(buffer._device)
    event = buffer._device.record()
    import threading

    threading.Timer(0.1, gate.open).start()
    assert not event.query()
    buffer.destroy()
    assert event.query()


def test_buffer_size_hint_and_configs() -> None:
    hint = Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=128, hidden=7168, num_ranks=8, num_experts=288
    )
    assert hint == low_latency_size_hint(128, 7168, 8, 288) and hint % 128 == 0
    assert Buffer.get_dispatch_config(8) == Config(20, 6, 256, 6, 128)
    assert Buffer.get_combine_config(8) == Config(20, 4, 256, 6, 128)
    assert Buffer.is_sm90_compiled() is True


def test_buffer_num_sms_shapes_later_configs() -> None:
    try:
        Buffer.set_num_sms(12)
        assert Buffer.num_sms == 12
        assert Buffer.get_dispatch_config(3).num_sms == Buffer.get_combine_config(64).num_sms == 12
    finally:
        Buffer.set_num_sms(20)
    assert_refused(lambda: Buffer.set_num_sms(7), ["new_num_sms=7", "even number"])
    assert_refused(lambda: Buffer.set_num_sms(-2), ["new_num_sms=-2", "0 or more"])
    assert Buffer.num_sms == 20


def test_buffer_capture_is_an_event_that_can_be_waited_for() -> None:
    event = Buffer.capture()
    assert isinstance(event, EventOverlap) and isinstance(event.event, EventHandle)
    event.current_stream_wait()
    assert event.event.query()


def test_buffer_local_tensor(variables: Any) -> None:
    shape = case(1, num_ranks=1).shape

    def body(group: ThreadGroup) -> None:
        hint = low_latency_size_hint(shape.max_tokens, shape.hidden, 1, shape.num_experts)
        buffer = Buffer(group, MIB, hint, low_latency_mode=True)
        rows = buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True)
        assert rows.shape == (hint,)
        rings = buffer.get_local_buffer_tensor(torch.uint8)
        assert rings.dim() == 1 and 0.9 * MIB < rings.numel() <= MIB + 65536
        assert rings.data_ptr() + rings.numel() <= rows.data_ptr()  # the two do not overlap
        rows.zero_()
        part = buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size([4, 8]), offset=256, use_rdma_buffer=True)
        assert part.shape == (4, 8) and part.data_ptr() == rows.data_ptr() + 256  # the offset counts bytes
        part.fill_(1.0)
        assert int(rows.view(torch.uint8)[256 : 256 + 64].view(torch.bfloat16).float().sum()) == 32
        assert not rows[:256].any() and not rows[256 + 64 :].any()
        rest = buffer.get_local_buffer_tensor(torch.int64, offset=8, use_rdma_buffer=True)
        assert rest.numel() == (hint - 8) // 8
        for size, offset, dtype in (
            (torch.Size([hint + 1]), 0, torch.int8), (torch.Size([1]), hint, torch.int8), (None, -8, torch.int8),
            (None, 4, torch.int64), (None, hint + 8, torch.int64),
        ):  # fmt: skip
            assert_refused(
                lambda s=size, o=offset, d=dtype: buffer.get_local_buffer_tensor(d, s, o, use_rdma_buffer=True),
                ["size and offset=", str(offset), f"a span inside {hint} bytes"],
            )
        buffer.destroy()

    run_ranks(1, body)


def test_buffer_without_low_latency_has_no_rows_and_says_so(variables: Any) -> None:
    ids, x = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 256, dtype=torch.bfloat16)

    def body(group: ThreadGroup) -> None:
        with throughput(group, num_rdma_bytes=MIB) as buffer:
            assert buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).numel() == 0
            assert buffer.get_local_buffer_tensor(torch.int8).numel() > 2 * MIB  # all of it is for the rings
            for call in (
                lambda: buffer.low_latency_dispatch(x, ids, 16, 8),
                lambda: buffer.low_latency_combine(x, ids, ids.float(), (1, 2, 16, 256, 8)),
                lambda: buffer.clean_low_latency_buffer(16, 256, 8),
                lambda: buffer.get_next_low_latency_combine_buffer((1, 2, 16, 256, 8)),
            ):
                with pytest.raises(InvalidArgument, match="made with low_latency_mode=False; low_latency_.* need True"):
                    call()

    run_ranks(1, body)


def test_buffer_one_session_serves_both_modes_in_turn(variables: Any) -> None:
    from tests.uccl_ep.ranks import assert_low_latency, layout_arguments, reference_of

    c = case(21, num_ranks=2, hidden=128)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        hint = Buffer.get_low_latency_rdma_size_hint(c.shape.max_tokens, 128, 2, c.shape.num_experts)
        buffer = Buffer(group, MIB, hint, low_latency_mode=True)
        for _ in range(3):
            layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
            x, _, _, _, handle, _ = buffer.dispatch(c.x[rank], **layout)
            combined, _, _ = buffer.combine(x, handle)
            copies = layout["is_token_in_rank"].sum(1, keepdim=True)
            assert torch.equal(combined, (c.x[rank].float() * copies).bfloat16())
            buffer.clean_low_latency_buffer(c.shape.max_tokens, 128, c.shape.num_experts)
            received = buffer.low_latency_dispatch(
                c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, use_fp8=False
            )
            assert_low_latency(received[:3], wanted[rank])
        buffer.barrier()
        buffer.destroy()

    run_ranks(2, body)


def test_buffer_bill_is_shown(variables: Any) -> None:
    with low_latency(ThreadGroup.create(1)[0], case(1, num_ranks=1).shape) as buffer:
        bill = buffer.memory_bill()
        assert "low-latency rows" in str(bill) and bill.total_bytes > buffer.num_rdma_bytes
