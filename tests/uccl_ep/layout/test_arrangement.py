"""Nodes, network and placement, chosen together: a node spans hosts only where its GPUs reach each other's rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from uccl_ep import InvalidArgument
from uccl_ep.group.handshake import Hello
from uccl_ep.layout.arrangement import Arrangement, Whole, arrange
from uccl_ep.settings import Settings

RACK = ["r"] * 4


def told(domains: list[str], **changes: Any) -> list[Hello]:
    """Ranks of hosts of two, a process and a GPU each."""
    made = [
        Hello(r, f"h{r // 2}", f"h{r // 2}", f"p{r}", 1, "", {}, 0, b"", device="cuda", gpu=f"g{r}", exportable=1,
              domain=domain, domain_reason="" if domain else "a test says so")
        for r, domain in enumerate(domains)
    ]  # fmt: skip
    return [replace(i, **changes) for i in made]


def arranged(hellos: list[Hello], settings: Settings = Settings(), **options: Any) -> Arrangement:  # noqa: B008 - frozen
    options = {"rack_by": "allow_mnnvl=True", **options}
    whole = Whole([i.host_id for i in hellos], [i.domain for i in hellos], **options)
    return arrange(settings, [i for i in hellos if i.rank not in whole.absent], whole, 0)


def test_arrangement_a_domain_is_a_node() -> None:
    made = arranged(told(RACK))
    assert made.topology.node_of == (0,) * 4 and made.topology.host_of == (0, 0, 1, 1)
    assert made.placement.where == "device" and made.fabric.family == "shared_memory"
    assert made.fabric.reason == "all ranks are one node: no network is used"
    assert made.nodes_reason == "allow_mnnvl=True: hosts that share an NVLink domain are one node"
    cut = arranged(told(RACK * 2), Settings(ranks_per_node=4, transport="tcp"))
    assert cut.topology.node_of == (0, 0, 1, 1, 2, 2, 3, 3)  # over tcp rows would lie in the host's memory


def test_arrangement_hosts_stay_apart_unless_asked() -> None:
    made = arranged(told(RACK), rack_by="")
    assert made.topology.node_of == (0, 0, 1, 1) and made.topology.host_of == ()
    assert made.nodes_reason == "ranks of a host are a node"
    assert made.nodes_over == ("hosts that share an NVLink domain: allow_mnnvl=True makes them one node",)
    assert arranged(told([""] * 4), rack_by="").nodes_over == ()


@pytest.mark.parametrize(
    ("hellos", "why"),
    [
        (told(["", "", "r", "r"]), "rank 0 (h0): a test says so"),
        (told(["r", "r", "s", "s"]), "no two hosts share an NVLink domain"),
        (told(["r", "r"]), "all ranks are on one host"),
        (told([""] * 4, device="cpu", gpu="", domain_reason=""), "rank 0 (h0): its kernels run on the CPU"),
        (told(["r"] * 4 + ["s"] * 4), "rows would lie in the host's memory, since proxies read and write rows"),
        (told(RACK, process="p"), "rows would lie in the host's memory, since one process has ranks on several GPUs"),
    ],
)
def test_arrangement_says_why_hosts_stay_apart(hellos: list[Hello], why: str) -> None:
    made = arranged(hellos)
    assert made.topology.host_of == () and made.topology.num_nodes == len(hellos) // 2
    assert made.nodes_reason.startswith(f"ranks of a host are a node; allow_mnnvl=True has no effect: {why}")


def test_arrangement_a_host_is_in_a_domain_with_all_its_ranks() -> None:
    """A host is never cut in two by what NVML says of one of its GPUs."""
    made = arranged(told(["", "r", "r", "r"]))
    assert made.topology.node_of == (0, 0, 1, 1) and made.nodes_reason.endswith("rank 0 (h0): a test says so")
    hosts, domains = ["a", "a", "b", "b", "c"], ["r", "s", "r", "r", "r"]
    assert Whole(hosts, domains).shared_domains() == ["", "", "r", "r", "r"]
    assert Whole(hosts, domains, absent={1}).shared_domains() == ["r"] * 5
    assert Whole(hosts).shared_domains() == [""] * 5


def test_arrangement_a_setting_cuts_nodes_and_is_named() -> None:
    cut = arranged(told(["r", "r"]), Settings(ranks_per_node=1), rack_by="")
    assert cut.nodes_reason == "UCCL_EP_RANKS_PER_NODE=1"
    made = arranged(told(RACK), Settings(ranks_per_node=4))
    assert made.topology.node_of == (0,) * 4 and made.nodes_reason.startswith("UCCL_EP_RANKS_PER_NODE=4; allow_mnnvl")


def test_arrangement_of_those_that_are_left() -> None:
    made = arranged(told(RACK), absent=frozenset({1, 2}))
    assert made.topology.members(0) == [0, 3] and made.topology.abroad(0) == [3]
    apart = arranged(told(RACK), absent=frozenset({2, 3}))
    assert apart.topology.sizes == [2] and apart.topology.abroad(0) == []
    with pytest.raises(InvalidArgument, match="absent"):
        arranged(told(RACK), absent=frozenset(range(4)))


def test_arrangement_keeps_places_where_each_rank_is_apart() -> None:
    """An absent number that has said nothing has the place of the rank with the nearest number."""
    hosts, absent, settings = ["a", "a", "", "b", ""], {2, 4}, Settings()
    kept = Whole(hosts, absent=absent, apart=True, keeps_places=True)
    assert kept.split(settings).placed == kept.entire(settings).node_of == (0, 0, 0, 1, 1)
    assert kept.split(settings).members(1) == [3]
    for other in (replace(kept, apart=False), replace(kept, keeps_places=False)):
        assert other.split(settings).places == () and other.split(settings).num_nodes == 2
    one_a_node = kept.split(Settings(ranks_per_node=1))
    assert one_a_node.num_nodes == 5 and one_a_node.members(4) == []
