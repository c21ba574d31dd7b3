"""What the product itself counts: a real job of thread ranks over loopback, call by call, for tests of the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.uccl_ep.ranks import MIB, expert_rows, layout_arguments, low_latency, throughput
from uccl_ep import Buffer, Config, ThreadGroup, run_ranks
from uccl_ep.cost_model.cluster import Cluster, Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.reference import RandomCase

LIMIT_S = 20


@dataclass(frozen=True)
class Counted:
    """Of one call: int64 [N, N] writes and write_bytes from rank to rank; by rank the immediates that arrived, by kind,
    and the commands that its proxy took."""

    writes: Ints
    num_bytes: Ints
    expects: Ints
    sequences: Ints
    credits: Ints
    commands: Ints


@dataclass(frozen=True)
class Seen:
    """A rank's counters at one moment."""

    peers: list[tuple[int, int]]
    proxy: dict[str, int]


def settled(buffer: Buffer) -> Seen:
    """A rank's counters once nothing of any rank is on its way, without a barrier that would itself be counted.

    Kernels push before a call returns, and a proxy publishes its writes before it says that they are done: when rings
    are idle and every write has arrived, counters stand still.
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        idle = buffer._session.rings_idle()
        stats = buffer.stats()
        seen = [(p["writes"], p["arrivals"]) for p in stats["peers"]]
        told = buffer.group.all_gather_object((idle, seen, stats["proxy"]["completions"]))
        ranks = range(len(told))
        done = all(told[a][1][b][0] == told[b][1][a][1] for a in ranks for b in ranks)
        done = done and all(sum(w for w, _ in row) == completions for _, row, completions in told)
        if done and all(idle for idle, _, _ in told):
            return Seen([(p["writes"], p["write_bytes"]) for p in stats["peers"]], stats["proxy"])
        assert time.monotonic() < deadline, told
        time.sleep(0.001)


def differences(per_rank: Sequence[list[Seen]]) -> list[Counted]:
    """What each call added, from the counters before and after each call, by rank."""
    found = []
    for i in range(len(per_rank[0]) - 1):
        peers = np.array([[b.peers for b in (seen[i], seen[i + 1])] for seen in per_rank], dtype=np.int64)
        added = peers[:, 1] - peers[:, 0]
        names = ("expects", "sequences", "credits", "commands")
        kinds = [np.array([seen[i + 1].proxy[n] - seen[i].proxy[n] for seen in per_rank]) for n in names]
        found.append(Counted(added[:, :, 0], added[:, :, 1], *kinds))
    return found


def run_low_latency(case: RandomCase, phases: str, use_fp8: bool = False) -> list[Counted]:
    """One Counted for each letter of `phases`: d a dispatch, c a combine of the last dispatch's rows."""

    def body(group: ThreadGroup) -> list[Seen]:
        rank, shape = group.rank(), case.shape
        rows, handle = expert_rows(rank, shape), None
        with low_latency(group, shape) as buffer:
            seen = [settled(buffer)]
            for phase in phases:
                if phase == "d":
                    handle = buffer.low_latency_dispatch(
                        case.x[rank], case.topk_idx[rank], shape.max_tokens, shape.num_experts, use_fp8=use_fp8
                    )[2]
                else:
                    buffer.low_latency_combine(rows, case.topk_idx[rank], case.topk_weights[rank], handle)
                seen.append(settled(buffer))
            return seen

    return differences(run_ranks(case.shape.num_ranks, body))


@dataclass(frozen=True)
class ThroughputRun:
    """unit_bytes that the ranks had, and a Counted for a dispatch, a combine with weights, a cached dispatch, and a
    combine without weights."""

    unit_bytes: int
    counted: list[Counted]


def run_throughput(case: RandomCase, num_nvl_bytes: int = 2 * MIB, **arguments: Any) -> ThroughputRun:
    """Four calls; see ThroughputRun."""

    def body(group: ThreadGroup) -> tuple[int, list[Seen]]:
        rank, shape = group.rank(), case.shape
        ids, weights = case.topk_idx[rank], case.topk_weights[rank]
        with throughput(group, num_nvl_bytes, **arguments) as buffer:
            unit_bytes = buffer._session.plan.throughput.unit_bytes
            layout = layout_arguments(buffer, ids, shape.num_experts)
            seen = [settled(buffer)]
            config = Config(4, 6, 256, 6, 128)

            def then(call: Callable[[], Any]) -> Any:
                result = call()
                seen.append(settled(buffer))
                return result

            x, _, recv_weights, _, handle, _ = then(
                lambda: buffer.dispatch(case.x[rank], topk_idx=ids, topk_weights=weights, config=config, **layout)
            )
            then(lambda: buffer.combine(x, handle, topk_weights=recv_weights))
            then(lambda: buffer.dispatch(case.x[rank], handle=handle))
            then(lambda: buffer.combine(x, handle))
            return unit_bytes, seen

    per_rank = run_ranks(case.shape.num_ranks, body)
    return ThroughputRun(per_rank[0][0], differences([seen for _, seen in per_rank]))


def demand_of(case: RandomCase, ranks_per_node: int = 2, apart: bool = False) -> Demand:
    """The case's routing, its ranks `ranks_per_node` to a node."""
    cluster = Cluster.even(case.shape.num_ranks, ranks_per_node, apart)
    return Demand([ids.numpy() for ids in case.topk_idx], cluster, case.shape.num_experts)
