"""Checks of names, signatures, Config and events: nothing is sent, one rank would do."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from uccl_ep import config as recorded
from uccl_ep.tools.conformance.registry import Skipped, check
from uccl_ep.tools.conformance.world import World

# method of Buffer: the keywords that integrators pass (parts A.2, A.5, A.6 and D)
KEYWORDS = {
    "__init__": "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank explicitly_destroy allow_mnnvl "
    "allow_nvlink_for_low_latency_mode enable_shrink",
    "get_dispatch_layout": "topk_idx num_experts previous_event async_finish allocate_on_comm_stream",
    "dispatch": "x handle num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert topk_idx "
    "topk_weights expert_alignment num_worst_tokens config previous_event async_finish allocate_on_comm_stream",
    "combine": "x handle topk_weights bias config previous_event async_finish allocate_on_comm_stream",
    "low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts use_fp8 round_scale use_ue8m0 "
    "cumulative_local_expert_recv_stats dispatch_wait_recv_cost_stats async_finish return_recv_hook",
    "low_latency_combine": "x topk_idx topk_weights handle use_logfmt zero_copy async_finish return_recv_hook out "
    "combine_wait_recv_cost_stats",
    "get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank hidden num_ranks num_experts",
    "get_local_buffer_tensor": "dtype size offset use_rdma_buffer",
    "clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank hidden num_experts",
    "low_latency_update_mask_buffer": "rank_to_mask mask",
    "low_latency_query_mask_buffer": "mask_status",
}


@check("A.1", collective=False)
def names_at_the_top(world: World) -> None:
    """The module has Buffer, Config, EventHandle and EventOverlap, all classes, and topk_idx_t.

    Part A.1; vLLM evaluates `Config | None` as it is imported.
    """
    for name in ("Buffer", "Config", "EventHandle", "EventOverlap"):
        world.expect(isinstance(getattr(world.module, name, None), type), f"{name} is not a class of the module")
    kind = getattr(world.module, "topk_idx_t", None)
    world.expect(isinstance(kind, torch.dtype), f"topk_idx_t is {kind!r}, not a torch.dtype")


@check("A.1", collective=False)
def names_in_utils(world: World) -> None:
    """EventHandle and EventOverlap are in `.utils` too, the same objects.

    Parts A.1 and D.6: without them Megatron turns its DeepEP path off in silence.
    """
    if world.module.__name__ != "deep_ep":
        raise Skipped("only a module that is imported as deep_ep needs `deep_ep.utils`")
    utils = importlib.import_module("deep_ep.utils")
    for name in ("EventHandle", "EventOverlap"):
        same = getattr(utils, name, None) is getattr(world.module, name, world)
        world.expect(same, f"deep_ep.utils.{name} is not deep_ep.{name}")


@check("D", collective=False)
def keywords_of_integrators(world: World) -> None:
    """Every keyword that Megatron, vLLM and SGLang pass is accepted.

    Parts A.2, A.5, A.6 and D.6: a missing one is a TypeError at start-up.
    """
    for method, names in KEYWORDS.items():
        function = getattr(world.module.Buffer, method, None)
        if not world.expect(callable(function), f"Buffer.{method} is missing"):
            continue
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            continue
        missing = [name for name in names.split() if name not in parameters]
        world.expect(not missing, f"Buffer.{method} does not take {', '.join(missing)}")


@check("A.3", collective=False)
def num_sms_is_a_class_attribute(world: World) -> None:
    """Buffer.num_sms can be read before any Buffer exists, and set_num_sms changes it; odd numbers are refused.

    Part A.3; SGLang reads it first of all.
    """
    cls = world.module.Buffer
    before: Any = getattr(cls, "num_sms", None)
    if world.expect(isinstance(before, int), f"Buffer.num_sms is {before!r}"):
        cls.set_num_sms(before + 2)
        world.equal("num_sms after set_num_sms", cls.num_sms, before + 2)
        cls.set_num_sms(before)
    world.refused("set_num_sms(7)", lambda: cls.set_num_sms(7))


@check("A.3", collective=False)
def helpers_without_a_buffer(world: World) -> None:
    """is_sm90_compiled is a bool; the low-latency size is a multiple of 128 and grows with what it is for.

    Part A.3. The size itself is a library's own business: the caller hands it back.
    """
    cls = world.module.Buffer
    world.expect(isinstance(cls.is_sm90_compiled(), bool), "is_sm90_compiled() is not a bool")

    def size(tokens: int, hidden: int) -> int:
        return int(
            cls.get_low_latency_rdma_size_hint(
                num_max_dispatch_tokens_per_rank=tokens, hidden=hidden, num_ranks=world.size, num_experts=8 * world.size
            )
        )

    sizes = [size(16, 2048), size(128, 2048), size(128, 7168)]
    world.expect(all(s > 0 and s % 128 == 0 for s in sizes), f"sizes {sizes} are not multiples of 128")
    world.expect(sizes == sorted(set(sizes)), f"sizes {sizes} do not grow with tokens and channels")


@check("A.3", collective=False)
def bias_is_unpacked(world: World) -> None:
    """_unpack_bias takes None, a tensor or a pair, and gives a pair. Part A.3."""
    unpack, tensor = world.module.Buffer._unpack_bias, torch.ones(1)
    for given, wanted in ((None, (None, None)), (tensor, (tensor, None)), ((tensor, tensor), (tensor, tensor))):
        got = tuple(unpack(given))
        right = len(got) == 2 and all(a is b for a, b in zip(got, wanted, strict=True))
        world.expect(right, f"_unpack_bias of {type(given).__name__} is {got!r}")


@check("A.4", collective=False)
def config_arguments(world: World) -> None:
    """Config takes five numbers, by position (3 or 5) and by name, with defaults 20, 6, 256, 6, 256. Part A.4."""
    cls, names = world.module.Config, list(recorded.Config.__dataclass_fields__)
    made = [cls(), cls(20, 6, 256), cls(20, 6, 256, 6, 256), cls(**dict(zip(names, (20, 6, 256, 6, 256), strict=True)))]
    hints = {config.get_nvl_buffer_size_hint(14336, 8) for config in made}
    world.equal("hints of four equal Configs", hints, {335709824})


@check("A.4", collective=False)
def config_refuses(world: World) -> None:
    """Config refuses chunk sizes that cannot work: send >= receive, zero, a negative count. Part A.4."""
    for values in ((-2, 6, 256, 6, 128), (20, 0, 256, 6, 128), (20, 256, 256, 6, 128), (20, 6, 256, 0, 128),
                   (20, 6, 256, 128, 128)):  # fmt: skip
        world.refused(f"Config{values}", lambda values=values: world.module.Config(*values))  # type: ignore[misc]


@check("A.4", collective=False)
def config_size_hints(world: World) -> None:
    """Size hints are those of the contract's formulas, for 2 to 64 ranks. Part A.4."""
    config = world.module.Config(20, 6, 256, 6, 128)
    golden = {2: (83927552, 0), 4: (167854976, 0), 8: (335709824, 0)}
    for ranks, wanted in golden.items():
        got = config.get_nvl_buffer_size_hint(14336, ranks), config.get_rdma_buffer_size_hint(14336, ranks)
        world.equal(f"hints for {ranks} ranks", got, wanted)
    for ranks, wanted_rdma in ((16, 91887744), (32, 168023680), (64, 336047360)):
        table = world.module.Buffer.get_dispatch_config(ranks)
        world.equal(f"RDMA hint for {ranks} ranks", table.get_rdma_buffer_size_hint(14336, ranks), wanted_rdma)
    combine = world.module.Buffer.get_combine_config(16)
    world.equal("RDMA hint of combine", combine.get_rdma_buffer_size_hint(14336, 16), 86637184)


@check("A.3", collective=False)
def config_tables(world: World) -> None:
    """get_dispatch_config and get_combine_config give the recorded settings of each rank count. Part A.3."""
    cls = world.module.Buffer
    for ranks in (2, 4, 8, 16, 24, 32, 64, 128, 144, 160):
        for what, table in (("dispatch", recorded.dispatch_config), ("combine", recorded.combine_config)):
            got, wanted = getattr(cls, f"get_{what}_config")(ranks), table(ranks, cls.num_sms)
            hints = [
                (c.get_nvl_buffer_size_hint(4096, ranks), c.get_rdma_buffer_size_hint(4096, ranks))
                for c in (got, wanted)
            ]
            world.equal(f"hints of the {what} table for {ranks} ranks", hints[0], hints[1])


class _Event:
    waits = 0

    def current_stream_wait(self) -> None:
        self.waits += 1


@check("A.7", collective=False)
def events_without_an_event(world: World) -> None:
    """An EventOverlap without event: `.event` is None, waiting asserts, a `with` block passes. Part A.7."""
    overlap = world.module.EventOverlap()
    world.expect(overlap.event is None, ".event of an empty EventOverlap is not None")
    world.refused("current_stream_wait() of an empty EventOverlap", overlap.current_stream_wait, (AssertionError,))
    with overlap as entered:
        world.expect(entered is overlap, "`with` gives another object")


@check("A.7", collective=False)
def events_wait_and_release(world: World) -> None:
    """Waiting reaches the event, releasing drops it, calling returns the object, `with` waits at its end. Part A.7."""
    event, tensors = _Event(), (torch.ones(1),)
    overlap = world.module.EventOverlap(event, tensors)
    world.expect(overlap.event is event and overlap.extra_tensors is tensors, "event or extra_tensors are not kept")
    overlap.current_stream_wait()
    world.equal("waits", event.waits, 1)
    with overlap(release_handle=False) as entered:
        world.equal("waits before the block's end", event.waits, 1)
    world.expect(entered is overlap, "`with event(...)` gives another object")
    world.equal("waits after the block", event.waits, 2)
    overlap.current_stream_wait(release_handle=True)
    world.expect(overlap.event is None, "release_handle=True leaves the event")


@check("A.7", collective=False)
def events_hook_after_wait(world: World) -> None:
    """A hook registered for after the wait runs once; only one may be registered. Part A.7."""
    calls: list[int] = []
    overlap: Any = world.module.EventOverlap(_Event())
    overlap.register_hook_after_wait(lambda: calls.append(1))
    world.refused("a second hook", lambda: overlap.register_hook_after_wait(calls.clear))
    overlap.current_stream_wait()
    overlap.current_stream_wait()
    world.equal("calls of the hook", len(calls), 1)


@check("A.2", collective=False)
def constructor_wants_a_group(world: World) -> None:
    """Buffer(None) without comm= is a ValueError. Part A.2."""
    world.refused("Buffer(None)", lambda: world.module.Buffer(None, 128), (ValueError,))
