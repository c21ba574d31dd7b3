"""Any arguments at all to Buffer's calls: the right result (the reference's), or a refusal that names the argument and
what is allowed; never another exception, a crash or a hang; and the Buffer is as good as before after every refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.end_to_end.play import same
from tests.end_to_end.world import World
from tests.uccl_ep.api_fuzz import HIDDEN, TOKENS, TOPK, Ranks, changes, check_refusal, near
from tests.uccl_ep.ranks import MIB, assert_low_latency, case, expert_rows, layout_arguments
from uccl_ep import Buffer, Config, UcclEpError, reference
from uccl_ep.group.thread_group import ThreadGroup
from uccl_ep.reference import Fp8Format, ThroughputInput

pytestmark = pytest.mark.timeout(200)  # 40 examples, each with rounds of 1 to 3 ranks, on a busy machine
FUZZ = settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=list(HealthCheck))

WORLDS = [World(1), World(2, 1, "loopback", shuffle_seed=3), World(3, 2, "loopback")]


@pytest.fixture(scope="module", params=WORLDS, ids=["alone", "apart", "uneven"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(request.param)
    made.must(made.good_round)
    yield made
    made.must(made.good_round)
    made.close()


def given_case(ranks: Ranks) -> Any:
    """The inputs that the good arguments are made of: as many tokens on every rank, so that all refuse, or none."""
    made = case(11, num_ranks=ranks.size, num_experts=2 * ranks.size, hidden=HIDDEN, num_topk=TOPK, max_tokens=TOKENS)
    generator = torch.Generator().manual_seed(12)
    everybody = range(ranks.size)
    return dataclasses.replace(
        made,
        x=[torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16() for _ in everybody],
        topk_idx=[torch.randint(-1, 2 * ranks.size, (TOKENS, TOPK), generator=generator) for _ in everybody],
        topk_weights=[torch.rand(TOKENS, TOPK, generator=generator) for _ in everybody],
    )


# ---- throughput ------------------------------------------------------------------------------------------------------

IDS = near(TOKENS, TOPK, dtypes=[torch.int64, torch.int32])
WEIGHTS = near(TOKENS, TOPK, dtypes=[torch.float32])
ROWS = near(TOKENS, HIDDEN, dtypes=[torch.bfloat16, torch.float32])
BYTES = near(TOKENS, HIDDEN, dtypes=[torch.float8_e4m3fn])
NUMBERS = st.integers(-3, 40)


@FUZZ
@given(changed=changes(topk_idx=IDS, num_experts=NUMBERS))
@example(changed={"num_experts": "8"})
@example(changed={"num_experts": 2.0})
@example(changed={"num_experts": None})
def test_api_fuzz_get_dispatch_layout(ranks: Ranks, changed: dict[str, Any]) -> None:
    c = given_case(ranks)

    def call(buffer: Buffer) -> Any:
        arguments = {"topk_idx": c.topk_idx[buffer.rank], "num_experts": 2 * ranks.size} | changed
        return arguments, buffer.get_dispatch_layout(**arguments)

    for arguments, (*seen, _) in ranks.attempt(changed, call) or ():
        ids = arguments["topk_idx"].long()
        due = reference.dispatch_layout(ids, arguments["num_experts"], ranks.size, ranks.world.node_sizes)
        for name, got, want in zip(due._fields[:4], seen, due[:4], strict=True):
            same(name, got, want)


_VECTOR = near(2, dtypes=[torch.int32])
_DISPATCH = changes(
    x=st.one_of(ROWS, st.tuples(BYTES, near(TOKENS, 1, dtypes=[torch.float32]))),
    handle=st.just("handle"),
    num_tokens_per_rank=_VECTOR,
    is_token_in_rank=near(TOKENS, 2, dtypes=[torch.bool]),
    num_tokens_per_expert=near(4, dtypes=[torch.int32]),
    topk_idx=IDS,
    topk_weights=WEIGHTS,
    expert_alignment=NUMBERS,
    num_worst_tokens=st.sampled_from([-1, 0, 30, 64]),
    config=st.builds(Config, st.sampled_from([0, 2, 8, 1000])),
    previous_event=st.none(),
)


@FUZZ
@given(changed=_DISPATCH)
@example(changed={"config": "fast"})
@example(changed={"expert_alignment": 1 << 40})
@example(changed={"num_worst_tokens": 1 << 40})
@example(changed={"num_tokens_per_expert": 7})
def test_api_fuzz_dispatch(ranks: Ranks, changed: dict[str, Any]) -> None:
    changed = {name: value for name, value in changed.items() if not _hopeless(name, value, ranks)}
    c = given_case(ranks)

    def call(buffer: Buffer) -> Any:
        own = c.topk_idx[buffer.rank]
        good = layout_arguments(buffer, own, 2 * ranks.size)
        good |= {"x": c.x[buffer.rank], "topk_idx": own, "topk_weights": c.topk_weights[buffer.rank]}
        return good | changed, buffer.dispatch(**(good | changed))

    results = ranks.attempt(changed, call) if changed else None
    if results is None or results[0][0].get("handle") is not None:
        return
    used = [arguments for arguments, _ in results]
    inputs = []
    for a in used:
        x, scales = a["x"] if isinstance(a["x"], tuple) else (a["x"], None)
        ids = None if a["topk_idx"] is None else a["topk_idx"].long()  # int32 is widened
        inputs.append(ThroughputInput(x.detach(), a["is_token_in_rank"], ids, a["topk_weights"], scales))
    worst = int(used[0].get("num_worst_tokens", 0))
    due = reference.throughput_dispatch(inputs, 2 * ranks.size, int(used[0].get("expert_alignment", 1)), worst)
    for (_, (recv_x, recv_ids, recv_weights, *_)), want in zip(results, due, strict=True):
        n = want.num_rows
        data, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
        same("recv_x", data[:n], want.recv_x[:n])
        same("scales", *(None if rows is None else rows[:n] for rows in (scales, want.recv_scales)))
        same("recv_topk_idx", recv_ids, want.recv_topk_idx)
        if recv_weights is not None and want.recv_topk_weights is not None:
            same("recv_topk_weights", recv_weights[:n], want.recv_topk_weights[:n])


def _hopeless(name: str, value: Any, ranks: Ranks) -> bool:
    """What is good by itself and wrong by the contract of a collective call: fewer worst-case rows than there are."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return name == "num_worst_tokens" and number and 0 < value < ranks.size * TOKENS


@FUZZ
@given(
    changed=changes(
        x=near(TOKENS, HIDDEN, dtypes=[torch.bfloat16]),
        handle=st.none(),
        topk_weights=WEIGHTS,
        bias=st.one_of(ROWS, st.tuples(ROWS, ROWS)),
        config=st.builds(Config),
    ),
)
@example(changed={"handle": (1, 2, 3, 4, 5, 6)})
def test_api_fuzz_combine(ranks: Ranks, changed: dict[str, Any]) -> None:
    c = given_case(ranks)
    made: dict[int, Any] = {}

    def prepare(buffer: Buffer) -> None:
        own = c.topk_idx[buffer.rank]
        arguments = layout_arguments(buffer, own, 2 * ranks.size)
        made[buffer.rank] = buffer.dispatch(
            c.x[buffer.rank], topk_idx=own, topk_weights=c.topk_weights[buffer.rank], **arguments
        )

    ranks.must(prepare)

    def call(buffer: Buffer) -> Any:
        received, _, weights, _, handle, _ = made[buffer.rank]
        arguments = {"x": received, "handle": handle, "topk_weights": weights} | changed
        return arguments, buffer.combine(**arguments)

    results = ranks.attempt(changed, call)
    if results is None:
        return
    layouts = [reference.dispatch_layout(i, 2 * ranks.size, ranks.size) for i in c.topk_idx]
    inputs = [
        ThroughputInput(*values)
        for values in zip(c.x, [own.is_token_in_rank for own in layouts], c.topk_idx, c.topk_weights, strict=True)
    ]
    received = reference.throughput_dispatch(inputs, 2 * ranks.size)
    used = [arguments for arguments, _ in results]
    weights = None if used[0]["topk_weights"] is None else [a["topk_weights"].detach() for a in used]
    bias = [_pair(a.get("bias")) for a in used]
    rows = [a["x"].detach() for a in used]
    due, due_weights = reference.throughput_combine(rows, received, weights, bias, ranks.world.node_sizes)
    for rank, (_, (out, out_weights, _)) in enumerate(results):
        same("combined", out, due[rank])
        same("weights", out_weights, None if due_weights is None else due_weights[rank])


def _pair(bias: Any) -> Any:
    """None, one tensor or a pair, as the reference has them."""
    if isinstance(bias, (tuple, list)):
        given_ones = [b.detach() for b in bias if b is not None]
        return None if not given_ones else given_ones[0] if len(given_ones) == 1 else tuple(given_ones)
    return None if bias is None else bias.detach()


# ---- low latency -----------------------------------------------------------------------------------------------------


@FUZZ
@given(
    changed=changes(
        x=near(TOKENS, HIDDEN, dtypes=[torch.bfloat16]),
        topk_idx=IDS,
        num_max_dispatch_tokens_per_rank=st.integers(-1, 9),
        num_experts=NUMBERS,
        cumulative_local_expert_recv_stats=_VECTOR,
        dispatch_wait_recv_cost_stats=near(2, dtypes=[torch.int64]),
        use_fp8=st.booleans(),
        round_scale=st.booleans(),
        use_nvfp4=st.booleans(),
        async_finish=st.just(False),
        return_recv_hook=st.just(False),
    ),
)
@example(changed={"num_max_dispatch_tokens_per_rank": None})
@example(changed={"num_experts": "4"})
@example(changed={"round_scale": torch.tensor([])})
def test_api_fuzz_low_latency_dispatch(ranks: Ranks, changed: dict[str, Any]) -> None:
    c = given_case(ranks)

    def call(buffer: Buffer) -> Any:
        good = {"x": c.x[buffer.rank], "topk_idx": c.topk_idx[buffer.rank], "num_experts": 2 * ranks.size}
        arguments = good | {"num_max_dispatch_tokens_per_rank": TOKENS} | changed
        result = buffer.low_latency_dispatch(**arguments)
        if result[4] is not None:
            result[4]()
        elif result[3].event is not None:
            result[3].current_stream_wait()
        return arguments, result

    results = ranks.attempt(changed, call)
    if results is None:
        return
    used = [arguments for arguments, _ in results]
    form = Fp8Format(bool(used[0].get("round_scale"))) if used[0].get("use_fp8", True) else None
    tokens, experts = used[0]["num_max_dispatch_tokens_per_rank"], used[0]["num_experts"]
    ids = [a["topk_idx"].long() for a in used]
    due = reference.low_latency_dispatch([a["x"].detach() for a in used], ids, tokens, experts, form)
    for (_, result), want in zip(results, due, strict=True):
        assert_low_latency(result[:3], want)
    ranks.must(ranks.good_round)  # the shape goes back to what it was


@FUZZ
@given(
    changed=changes(
        x=near(2, TOKENS, HIDDEN, dtypes=[torch.bfloat16]),
        topk_idx=IDS,
        topk_weights=WEIGHTS,
        handle=st.none(),
        use_logfmt=st.just(False),
        use_fp8=st.just(False),
        zero_copy=st.just(False),
        out=near(TOKENS, HIDDEN, dtypes=[torch.bfloat16]),
        combine_wait_recv_cost_stats=near(2, dtypes=[torch.int64]),
        overlap=st.booleans(),
    ),
)
@example(changed={"handle": (None, None, 5, 128, 4)})
@example(changed={"handle": (torch.zeros(2, 5, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int64), 5, 0, 2)})
def test_api_fuzz_low_latency_combine(ranks: Ranks, changed: dict[str, Any]) -> None:
    c = given_case(ranks)
    made: dict[int, Any] = {}

    def prepare(buffer: Buffer) -> None:
        dispatched = buffer.low_latency_dispatch(
            c.x[buffer.rank], c.topk_idx[buffer.rank], TOKENS, 2 * ranks.size, use_fp8=False
        )
        made[buffer.rank] = dispatched[2]

    ranks.must(prepare)

    def call(buffer: Buffer) -> Any:
        arguments = {
            "x": expert_rows(buffer.rank, c.shape),
            "topk_idx": c.topk_idx[buffer.rank],
            "topk_weights": c.topk_weights[buffer.rank],
            "handle": made[buffer.rank],
        } | changed
        return arguments, buffer.low_latency_combine(**arguments)

    results = ranks.attempt(changed, call)
    if results is None or "topk_idx" in changed or results[0][0].get("zero_copy"):
        return  # the sum over other ids than those dispatched, or over rows never written, is the caller's affair
    used = [arguments for arguments, _ in results]
    received = reference.low_latency_dispatch(c.x, c.topk_idx, TOKENS, 2 * ranks.size)
    weights = [a["topk_weights"].detach() for a in used]
    due = reference.low_latency_combine([a["x"].detach() for a in used], c.topk_idx, weights, received)
    for (_, (out, _, _)), want in zip(results, due, strict=True):
        same("combined", out, want)


# ---- the constructor -------------------------------------------------------------------------------------------------


@FUZZ
@given(
    changed=changes(
        group=st.none(),
        num_nvl_bytes=st.sampled_from([0, 128, 129, 1 << 20]),
        num_rdma_bytes=st.sampled_from([0, 128, 129, 1 << 20]),
        low_latency_mode=st.booleans(),
        num_qps_per_rank=NUMBERS,
        comm=st.none(),
        device=st.sampled_from(["cpu", "auto", "tpu", ""]),
    ),
)
@example(changed={"num_nvl_bytes": 1 << 40})
@example(changed={"num_qps_per_rank": None})
@example(changed={"group": 5})
def test_api_fuzz_constructor(changed: dict[str, Any]) -> None:
    (group,) = ThreadGroup.create(1)
    with World(1).environment():
        try:
            buffer = Buffer(**({"group": group, "num_nvl_bytes": MIB} | changed))
        except UcclEpError as error:
            if type(error) is UcclEpError and "InvalidArgument: num_" in str(error):
                return  # too much for this group: found when the ranks knew each other, and told by all of them
            check_refusal(error, changed)
        else:
            buffer.barrier()
            buffer.destroy()
