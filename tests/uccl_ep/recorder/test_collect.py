"""What a rank knows: words of its control segment, counters and versions, in plain data."""

from __future__ import annotations

from pathlib import Path

from tests.uccl_ep.recorder.records import worker
from uccl_ep import Buffer, ThreadGroup, run_ranks
from uccl_ep._native import Phase
from uccl_ep.recorder.collect import collect
from uccl_ep.recorder.record import Call, Record, pack, unpack


def test_recorder_collect_reads_what_the_rank_knows(variables: object, tmp_path: Path) -> None:
    assert callable(variables)
    variables(RANKS_PER_NODE=1, PROXY_THREADS=2)

    def body(group: ThreadGroup) -> Record:
        buffer = Buffer(group, 1 << 20, enable_shrink=True)
        buffer.barrier()
        session = buffer.runtime
        assert session is not None
        if group.rank() == 0:
            session.leave_out(2, True)
        record = collect(session, [Call("x", 1, 2)], [worker(), worker()], "a reason")
        session.leave_out(2, False)
        buffer.barrier()
        buffer.destroy()
        return record

    records = run_ranks(3, body)
    assert [r.masked for r in records] == [[2], [], []]
    for rank, record in enumerate(records):
        assert (record.rank, record.num_ranks, record.node_of, record.reason) == (rank, 3, [0, 1, 2], "a reason")
        assert len(record.counters) == 2 and sum(c["barriers"] for c in record.counters) == 1
        assert len(record.peers) == len(record.kernels) == len(record.hostnames) == 3
        assert [len(row) for row in record.progress] == [len(row) for row in record.flags] == [3] * len(Phase)
        assert record.settings["proxy_threads"] == 2 and {"python", "torch", "kernel", "uccl-ep"} == set(
            record.versions
        )
        assert not record.fault and record.last_kernel == "rank_barrier" and record.family == "shared_memory"
        assert unpack(pack(record), "x") == record  # nothing in it is anything but plain data
    assert len({r.session for r in records}) == 1
