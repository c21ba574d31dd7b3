"""The pages of uccl_ep/fabric/docs say what the code does: variables, links, and every line that they show."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from tests.uccl_ep.fabric.test_choice import Cluster
from uccl_ep.fabric.choice import explain
from uccl_ep.layout import placement
from uccl_ep.settings import VARIABLES, Settings
from uccl_ep.tools.doctor.catalogue import CHECKS

DOCS = Path(__file__).parents[3] / "uccl_ep/fabric/docs"
PAGES = ("infiniband", "roce", "efa", "slingshot", "tcp", "one_host")
HEADINGS = ["Requirements", "How it is chosen", "How it is shown", "Tuning", "Known faults"]
NIC_VARIABLES = ("NICS GID_INDEX GPU_MEMORY PROVIDER QUEUE_PAIRS SERVICE_LEVEL TRAFFIC_CLASS HOP_LIMIT MTU "
                 "UDP_SOURCE_PORT RELAXED_ORDERING TRANSPORT INTERFACE").split()  # fmt: skip


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def test_docs_there_is_a_page_for_each_fabric_and_no_other() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} == {*PAGES, "README"}
    assert all(f"({page}.md)" in text_of("README") for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_docs_pages_have_the_same_parts(page: str) -> None:
    assert re.findall(r"^## (.*)$", text_of(page), re.MULTILINE) == HEADINGS
    assert all(len(line) <= 140 for line in text_of(page).splitlines() if not line.startswith(("|", "uccl-ep:")))


@pytest.mark.parametrize("page", [*PAGES, "README"])
def test_docs_links_and_variables_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        assert (DOCS / target).is_file(), target
    known = {v.name for v in VARIABLES}
    assert set(re.findall(r"UCCL_EP_[A-Z_]+", text_of(page))) <= known


def test_docs_every_variable_of_networks_is_explained_somewhere() -> None:
    everything = "".join(map(text_of, PAGES))
    assert [name for name in NIC_VARIABLES if f"UCCL_EP_{name}" not in everything] == []


def printed(name: str) -> str:
    """What a group of the page's machines prints."""

    def cluster(recorded: Callable[[], Recorded], hosts: str = "ab", **settings: str) -> Cluster:
        made = Cluster(Settings(**settings))  # type: ignore[arg-type]
        networks = {f"ens{i}np0": [f"10.2.{i}.7/16"] for i in range(8)}
        for host in hosts:
            made.host(host, recorded(), networks)
        return made

    recorded_b = machines.mi300x_thor2()
    recorded_b.mtus["ens1np0"] = 1500
    uneven = iter([machines.mi300x_thor2(), recorded_b])
    made = {
        "infiniband": lambda: cluster(machines.dgx_h100),
        "roce": lambda: cluster(lambda: next(uneven)),
        "efa": lambda: cluster(machines.p5en),
        "slingshot": lambda: cluster(machines.slingshot, transport="libfabric"),
        "tcp": lambda: cluster(Recorded),
        "one_host": lambda: cluster(machines.dgx_h100, "a"),
    }[name]()
    chosen, stream = made.choose(), io.StringIO()
    explain([(f"transport {chosen.family}", chosen.whole_reason), *chosen.notes], stream)
    one_node = placement.choose_placement(
        [i.__class__(**{**vars(i), "device": "cuda", "exportable": 1}) for i in made.hellos],
        made.topology,
        "tcp",
    )
    explain([(f"rows in {one_node.where} memory", one_node.reason)], stream)
    return stream.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_docs_lines_that_are_shown_are_printed(page: str) -> None:
    shown = re.findall(r"^uccl-ep: .*$", text_of(page), re.MULTILINE)
    output = printed(page)
    assert shown
    for line in shown:
        assert line.split(" ...)")[0] in output, f"{line}\n--- printed:\n{output}"


@pytest.mark.parametrize("page", PAGES)
def test_docs_what_doctor_checks_is_named(page: str) -> None:
    found = re.search(r"`uccl-ep doctor --path (\w+)`(?: checks ([^.]*)\.)?", text_of(page))
    assert found, page
    if found[2] is None:  # it is another page's path
        assert f"doctor --path {found[1]}`" in text_of("infiniband")
        return
    names = [name for part in found[2].replace("\n", " ").split(", ") for name in part.split(" and ")]
    assert names == [check.name for check in CHECKS[found[1]]]


@pytest.mark.parametrize("words", ["transport retry counter exceeded", "remote access error"])
def test_docs_faults_are_named_as_the_network_names_them(words: str) -> None:
    errors = DOCS.parents[2] / "proxy/transport/verbs/errors.cpp"
    assert words in text_of("infiniband") and f'"{words}"' in errors.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page, words, file",
    [
        ("infiniband", "is DOWN: check the cable, the switch port and the subnet manager", "test_facts.py"),
        ("roce", "has no RoCE v2 address: give its network interface an IP address", "test_facts.py"),
        ("slingshot", "libfabric.so.1 is not installed", "test_facts.py"),
        ("efa", "no EFA device", "test_facts.py"),
    ],
)
def test_docs_refusals_are_those_that_tests_see(page: str, words: str, file: str) -> None:
    assert words in text_of(page) and words in (Path(__file__).parent / file).read_text(encoding="utf-8")
