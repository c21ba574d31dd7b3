"""A node of several hosts, as in a rack, on fake GPUs that share an NVLink domain. Nothing of another host is reached
but the memory that its GPU has exported: where its control segment would be, kernels have the address 0."""

from __future__ import annotations

from typing import Any

import pytest

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_calls import inputs_of
from tests.uccl_ep.gpu.test_memory import NOTHING, on_device
from tests.uccl_ep.gpu.worlds import Hosts
from tests.uccl_ep.ranks import (
    assert_low_latency,
    case,
    expert_rows,
    layout_arguments,
    low_latency,
    reference_of,
    same,
    throughput,
)
from uccl_ep import Buffer, PeerLost, ThreadGroup, reference
from uccl_ep.gpu.memory import GpuRegions
from uccl_ep.layout import arrangement

TRAFFIC = ["mixed", "no_tokens", "duplicates", "hot_expert"]
RACKS = [
    pytest.param(["a", "a"], False, id="a domain of 2 hosts"),
    pytest.param(["a"] * 4, False, id="a domain of 4 hosts"),
    pytest.param(["a", "a", "b", "b"], False, id="2 domains of 2 hosts"),
    pytest.param(["a", "a", "b", "b"], True, id="2 domains of 2 hosts, with masks"),
    pytest.param(["a", "a", "b", ""], False, id="a domain of 2 hosts, and 2 hosts"),
    pytest.param(["a"] * 4 + ["b"] * 4, False, marks=pytest.mark.slow, id="2 domains of 4 hosts"),
]


def sizes_of(domains: list[str]) -> list[int]:
    """Ranks of each node."""
    return [2 * domains.count(d) for d in dict.fromkeys(domains) if d] + [2] * domains.count("")


def start(hosts: Hosts, domains: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP stands for a NIC that reaches GPU memory, where there are several domains."""
    if len(sizes_of(domains)) > 1:
        monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset(range(hosts.size))))


def check_rack(buffer: Buffer, domains: list[str]) -> None:
    """The nodes are the domains, and this rank reaches nothing of other hosts but GPU memory."""
    session = buffer._session
    regions, topology = session.regions, session.topology
    assert isinstance(regions, GpuRegions) and topology.sizes == sizes_of(domains)
    abroad, own = topology.abroad(session.rank), session.rank // 2 * 2
    assert len(abroad) == topology.sizes[topology.node_of[session.rank]] - 2
    assert set(regions.controls) == {own, own + 1}
    assert all(regions._node["control"][rank] == 0 for rank in abroad)
    assert all(at != 0 for at in regions._node["data"].values())


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("domains, shrink", RACKS)
def test_rack_low_latency_rows_are_the_references(
    variables: Any, monkeypatch: pytest.MonkeyPatch, domains: list[str], shrink: bool
) -> None:
    variables(SHUFFLE_SEED=5, LOW_LATENCY_COMBINE="node")
    hosts = Hosts(monkeypatch, domains)
    start(hosts, domains, monkeypatch)
    ranks = hosts.size
    cases = [case(60 + turn, kind, num_ranks=ranks, num_experts=2 * ranks, num_topk=3, hidden=256, max_tokens=8)
             for turn, kind in enumerate(TRAFFIC)]  # fmt: skip
    wanted = [reference_of(c) for c in cases]
    rows = [expert_rows(rank, cases[0].shape) for rank in range(ranks)]
    sums = [reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, w)
            for c, w in zip(cases, wanted, strict=True)]  # fmt: skip

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        rank = group.rank()
        options: Any = {"device": device, "allow_mnnvl": True, "enable_shrink": shrink}
        with low_latency(group, cases[0].shape, **options) as buffer:
            check_rack(buffer, domains)
            for turn, c in enumerate(cases):
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 2 * ranks, use_fp8=False)
                out, _, _ = buffer.low_latency_combine(rows[rank], c.topk_idx[rank], c.topk_weights[rank], got[2])
                driver.settle()
                assert_low_latency(got[:3], wanted[turn][rank])
                assert same(out, sums[turn][rank])
            form = buffer.stats()["low_latency_combine"]
            assert form["form"] == "direct"  # no rank has all rows of its node before they cross
            assert shrink or len(sizes_of(domains)) == 1 or "a node of several hosts" in form["reason"]
            buffer.barrier()

    hosts.run(body)
    assert [driver.held() for driver in hosts.drivers] == [NOTHING] * len(domains)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("domains, shrink", RACKS)
def test_rack_throughput_rows_are_the_references(
    variables: Any, monkeypatch: pytest.MonkeyPatch, domains: list[str], shrink: bool
) -> None:
    variables(SHUFFLE_SEED=6)
    hosts = Hosts(monkeypatch, domains)
    start(hosts, domains, monkeypatch)
    ranks, sizes = hosts.size, sizes_of(domains)
    cases = [case(80 + turn, kind, num_ranks=ranks, num_experts=2 * ranks, num_topk=3, hidden=128, max_tokens=12)
             for turn, kind in enumerate(TRAFFIC)]  # fmt: skip
    wanted = [reference.throughput_dispatch(inputs_of(c, 0), 2 * ranks) for c in cases]
    sums = [reference.throughput_combine([w.recv_x for w in want], want, [w.recv_topk_weights for w in want], None,
                                         sizes, 1 if shrink else 2) for want in wanted]  # fmt: skip

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        rank = group.rank()
        with throughput(group, device=device, allow_mnnvl=True, enable_shrink=shrink) as buffer:
            check_rack(buffer, domains)
            for turn, c in enumerate(cases):
                layout = layout_arguments(buffer, c.topk_idx[rank], 2 * ranks)
                x, ids, weights, counts, handle, _ = buffer.dispatch(
                    c.x[rank], **layout, topk_idx=c.topk_idx[rank], topk_weights=c.topk_weights[rank]
                )
                out, out_weights, _ = buffer.combine(x, handle, weights)
                driver.settle()
                want = wanted[turn][rank]
                assert same(x, want.recv_x) and same(ids, want.recv_topk_idx)
                assert counts == want.num_recv_tokens_per_expert_list
                assert same(out, sums[turn][0][rank]) and same(out_weights, sums[turn][1][rank])
            buffer.barrier()

    hosts.run(body)
    assert [driver.held() for driver in hosts.drivers] == [NOTHING] * len(domains)


@pytest.mark.timeout(120)
def test_rack_a_rank_that_leaves_is_named_on_other_hosts(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot write its goodbye into their memory. A wait for a rank that says nothing would be a PeerTimeout."""
    variables(TIMEOUT_S=60)
    hosts = Hosts(monkeypatch, ["a", "a"])

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        with throughput(group, device=device, allow_mnnvl=True) as buffer:
            buffer.barrier()
            if group.rank() == 3:
                buffer.destroy()
            else:
                with pytest.raises(PeerLost) as caught:
                    buffer.barrier()
                assert caught.value.peer == 3
            group.barrier()

    hosts.run(body)
    assert [driver.held() for driver in hosts.drivers] == [NOTHING] * 2


@pytest.mark.timeout(120)
def test_rack_a_host_that_leaves_its_domain_is_a_node_of_its_own(
    variables: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the next life: from then on rows go there over the network, and lie where that reaches them."""
    variables(EXPLAIN=1)
    hosts = Hosts(monkeypatch, ["a", "a"])
    c = case(7, "mixed", num_ranks=4, num_experts=8, num_topk=2, hidden=128, max_tokens=8)
    wanted = reference_of(c)

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        rank = group.rank()

        def dispatch() -> None:
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 8, use_fp8=False)
            driver.settle()
            assert_low_latency(got[:3], wanted[rank])

        with low_latency(group, c.shape, device=device, allow_mnnvl=True) as buffer:
            check_rack(buffer, ["a", "a"])
            dispatch()
            group.barrier()
            if rank == 2:
                hosts.leave_domain(1)
            group.barrier()
            assert buffer.recover() == [0, 1, 2, 3]
            session = buffer._session
            assert session.topology.sizes == [2, 2] and session.placement.where == "host"
            dispatch()

    hosts.run(body)
    said = capfd.readouterr().err
    assert "uccl-ep: 1 node(s): allow_mnnvl=True: hosts that share an NVLink domain are one node\n" in said
    no_effect = "allow_mnnvl=True has no effect: rank 2 (host1): a test has taken it out"
    assert f"uccl-ep: 2 node(s): ranks of a host are a node; {no_effect}\n" in said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("keeps", [True, False], ids=["addresses stay", "addresses go"])
def test_rack_sleeps_and_wakes(variables: Any, monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    """Rows go when the other hosts have closed them too, and are opened anew where they come back."""
    hosts = Hosts(monkeypatch, ["a", "a"])
    for driver in hosts.drivers:
        driver.keeps_addresses = keeps
    c = case(7, "mixed", num_ranks=4, num_experts=8, num_topk=2, hidden=128, max_tokens=8)
    wanted = reference_of(c)

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        rank = group.rank()
        with low_latency(group, c.shape, device=device, allow_mnnvl=True) as buffer:
            for turn in range(4):
                if turn % 2:
                    asleep = buffer.pause()
                    assert asleep.kept == {} and asleep.freed_bytes > 0 and driver.held()["opened"] == 0
                    assert buffer.resume().after["rows"] == asleep.before["rows"]
                    assert driver.held()["opened"] == 4  # each of two ranks has those of two others
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 8, use_fp8=False)
                driver.settle()
                assert_low_latency(got[:3], wanted[rank])

    hosts.run(body)
    assert [driver.held() for driver in hosts.drivers] == [NOTHING] * 2


@pytest.mark.parametrize("options", [{}, {"allow_mnnvl": True, "use_fabric": False}])
def test_rack_hosts_are_nodes_unless_asked(
    variables: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    variables()
    hosts = Hosts(monkeypatch, ["a", "a"], 1)

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        with throughput(group, device=device, **options) as buffer:
            assert buffer._session.topology.sizes == [1, 1] and buffer._session.family == "tcp"
            buffer.barrier()

    hosts.run(body)


@pytest.mark.timeout(120)
def test_rack_grows_by_a_host_while_the_others_go_on(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, ["a"] * 3, 1)
    old = ThreadGroup.create(2)
    cases = {n: case(9, "mixed", num_ranks=n, num_experts=6, num_topk=2, hidden=128, max_tokens=8) for n in (2, 3)}
    wanted = {n: reference_of(c) for n, c in cases.items()}
    hint = max(Buffer.get_low_latency_rdma_size_hint(8, 128, ranks, 6) for ranks in cases)

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        rank = group.rank()
        buffer = Buffer(
            group if rank == 2 else old[rank], 0, hint, low_latency_mode=True, device=device, allow_mnnvl=True
        )

        def dispatch() -> None:
            ranks = buffer.group_size
            assert buffer._session.topology.sizes == [ranks]
            c = cases[ranks]
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 6, use_fp8=False)
            driver.settle()
            assert_low_latency(got[:3], wanted[ranks][rank])

        if rank < 2:
            buffer.prepare_members(group)
            for _ in range(1000):
                dispatch()
                if buffer.switch_members():
                    break
        assert buffer.group_size == 3
        dispatch()
        group.barrier()
        buffer.destroy()

    hosts.run(body)
    assert [driver.held() for driver in hosts.drivers] == [NOTHING] * 3


@pytest.mark.timeout(120)
def test_rack_a_masked_rank_of_another_host_comes_back(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes over, and what it has read, it writes into its own memory, where the other host's kernels look."""
    variables(TIMEOUT_S=60)
    hosts = Hosts(monkeypatch, ["a"] * 3, 1)
    c = case(11, "uniform", num_ranks=3, num_experts=6, num_topk=2, hidden=128, max_tokens=8)
    whole, without = reference_of(c), reference_of(c, masked=[{2}, {2}, set()])

    def body(group: ThreadGroup, driver: FakeDriver, device: str) -> None:
        rank = group.rank()
        options: Any = {"device": device, "allow_mnnvl": True, "enable_shrink": True}
        with low_latency(group, c.shape, **options) as buffer:

            def dispatch(wanted: Any) -> None:
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 6, use_fp8=False)
                driver.settle()
                assert_low_latency(got[:3], wanted[rank])

            dispatch(whole)
            group.barrier()
            if rank != 2:  # which misses these calls
                buffer.low_latency_update_mask_buffer(2, True)
                for _ in range(3):
                    dispatch(without)
                buffer.low_latency_update_mask_buffer(2, False)
            group.barrier()
            for _ in range(3):
                dispatch(whole)

    hosts.run(body)
    assert [driver.held() for driver in hosts.drivers] == [NOTHING] * 3
