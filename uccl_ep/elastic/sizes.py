"""Sizes of an ElasticBuffer: memory, multiprocessors, queue pairs; from what the caller says, nothing is measured."""

from __future__ import annotations

from math import comb
from typing import Any, NamedTuple

from uccl_ep import _native, checks
from uccl_ep.config import DEFAULT_NUM_SMS
from uccl_ep.errors import refuse
from uccl_ep.layout.plan import MemoryPlan, assumed_topology
from uccl_ep.sizes import round_up

GRANULE = 2 << 20  # V2's sizes are multiples of 2 MiB
_CHANNELS = 10  # of the default 20 multiprocessors
_ROWS_IN_RING = 64  # of one channel: enough chunks to keep a stream full
_MOST_TOPK = 32
_LEAST_SMS, _MOST_SMS = 4, 2 * _native.MAX_CHANNELS
_DIRECT_QPS = 9


def check_hidden(name: str, hidden: Any, one_byte: bool) -> None:
    """Channels of rows that dispatch and combine take; 0 where they are not said.

    Raises:
        InvalidArgument: out of range, or such rows are no multiple of 16 bytes.
    """
    multiple = 16 if one_byte else 8
    if checks.check_int(name, hidden, 0, _native.MAX_HIDDEN // 2) % multiple:
        refuse(name, hidden, f"a multiple of {multiple}", "Rows are multiples of 16 bytes. Pad the hidden size.")


def buffer_size(num_ranks: int, max_tokens: int, hidden: int, topk: int) -> int:
    """Bytes of the rings of one rank for bf16 rows, a multiple of 2 MiB; FP8 rows with their scales fit as well."""
    topk = topk or _MOST_TOPK
    # Rows of both directions share a size: payload as bytes, scales for 32 channels each, ids, weights and words.
    row = round_up(4 * hidden + hidden // 32 * 4 + topk * (8 + 4 + 4) + 16, 16)
    rows = min(_ROWS_IN_RING, max(8, round_up(max_tokens, 8)))
    units = MemoryPlan(assumed_topology(num_ranks), 0, 0, False).throughput.num_units()
    return round_up(units * _CHANNELS * rows * row, GRANULE)


class Bandwidths(NamedTuple):
    """GB/s of a rank: between nodes, inside one, and what one multiprocessor reads and writes. 0: not known."""

    rdma: float
    nvlink: float
    sm_read: float
    sm_write: float


def expected_ranks(num_experts: int, topk: int, num_ranks: int) -> float:
    """How many ranks a token reaches on average when its experts are drawn evenly, without repetition."""
    topk = min(topk, num_experts)
    elsewhere = num_experts - num_experts // num_ranks
    return num_ranks * (1.0 - comb(elsewhere, topk) / comb(num_experts, topk))


def num_sms(num_experts: int, topk: int, num_ranks: int, num_nodes: int, gbs: Bandwidths) -> int:
    """Multiprocessors that keep the slower of the two networks busy: even, at least 4.

    Each token is read once and written once for each rank that it reaches; that work, spread over the
    multiprocessors, should take no longer than the wire. Where no bandwidth is given the default of Config is taken.
    """
    checks.check_int("num_experts", num_experts, 1, _native.MAX_EXPERTS)
    checks.check_int("num_topk", topk, 1, _native.MAX_TOPK)
    reached = expected_ranks(num_experts, topk, num_ranks)
    outside = reached * (num_nodes - 1) / num_nodes
    wires = [(outside, gbs.rdma), (reached - outside, gbs.nvlink)]
    wire = max((ranks / speed for ranks, speed in wires if speed > 0), default=0.0)
    if wire <= 0.0 or gbs.sm_read <= 0 or gbs.sm_write <= 0:
        return DEFAULT_NUM_SMS
    wanted = -(-(1.0 / gbs.sm_read + reached / gbs.sm_write) // wire)
    return min(_MOST_SMS, max(_LEAST_SMS, round_up(int(wanted), 2)))


def num_qps(sms: int, allocated: int) -> int:
    """Queue pairs that V2 would use for `sms`; capped by `allocated` unless that is 0. Our proxies choose their own."""
    wanted = min(max(sms, 1), _DIRECT_QPS)
    return min(wanted, allocated) if allocated else wanted
