"""What a rank does whose node spans hosts, on a fake GPU in a domain with the others': rounds, until a host is gone."""

from __future__ import annotations

import os
import time

import pytest
import torch

from tests.faults.fleet import Member
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install
from tests.uccl_ep.ranks import assert_low_latency, case, expert_rows, reference_of, same
from uccl_ep import Buffer, PeerLost, reference
from uccl_ep.session import session

TOKENS, LIMIT_S = 8, 30.0


def play(member: Member, buffer: Buffer, driver: FakeDriver, lost: set[int]) -> None:
    """Rounds, row-exact without those that are lost."""
    rank, ranks = member.rank(), member.size()
    for number in range(3):
        c = case(number, "uniform", num_ranks=ranks, num_experts=2 * ranks, num_topk=2, hidden=128, max_tokens=TOKENS)
        masked = [lost] * ranks
        wanted = reference_of(c, masked=masked)
        rows = [expert_rows(r, c.shape) for r in range(ranks)]
        sums = reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, wanted, masked)
        ids = c.topk_idx[rank]
        got = buffer.low_latency_dispatch(c.x[rank], ids, TOKENS, 2 * ranks, use_fp8=False)
        out, _, _ = buffer.low_latency_combine(rows[rank], ids, c.topk_weights[rank], got[2])
        driver.settle()
        assert_low_latency(got[:3], wanted[rank])
        assert same(out, sums[rank])


def serve(member: Member, shrink: bool) -> None:
    """Rounds; then waits in barriers until ranks are gone, and goes on without: `recover`, or with `shrink` masks."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TMPDIR"]  # torch makes it for the fake GPU's tensors
    driver = install(pytest.MonkeyPatch(), FakeDriver(num_sms=12, host=session.host_identity(), domain="rack"))
    with driver.rank():
        hint = Buffer.get_low_latency_rdma_size_hint(TOKENS, 128, member.size(), 2 * member.size())
        buffer = Buffer(member, 0, hint, low_latency_mode=True, allow_mnnvl=True, enable_shrink=shrink)
        assert buffer._session.topology.sizes == [member.size()]
        play(member, buffer, driver, set())
        member.tell("started")
        member.ask()
        if shrink:
            lost = masked_by(buffer, driver)
        else:
            with pytest.raises(PeerLost) as caught:
                while True:
                    buffer.barrier()
            lost = set(range(member.size())) - set(buffer.recover())
            assert caught.value.peer in lost
        member.tell("goes on", sorted(lost))
        play(member, buffer, driver, lost)
        member.tell("went on")
        member.ask()
        buffer.destroy()


def masked_by(buffer: Buffer, driver: FakeDriver) -> set[int]:
    """Those that barriers have masked, once two are."""
    status, until = torch.zeros(buffer.group_size, dtype=torch.int32), time.monotonic() + LIMIT_S
    while int(status.sum()) < 2 and time.monotonic() < until:
        buffer.barrier()
        buffer.low_latency_query_mask_buffer(status)
        driver.settle()
    return set(status.nonzero().flatten().tolist())
