"""What the start of a Buffer prints: all of it when asked, the loud warnings once, and never an exception."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.plan.plans import agree, job, with_portrait
from uccl_ep import Buffer, ThreadGroup, run_ranks
from uccl_ep.layout.plan import BillItem, MemoryBill
from uccl_ep.plan import start
from uccl_ep.plan.fill import Agreed
from uccl_ep.settings import Settings
from uccl_ep.tools.plan.imagine import introduce

BILL = MemoryBill((BillItem("control", 4096, "words"),))


def shown(agreed: Agreed) -> str:
    stream = io.StringIO()
    start.show_start(agreed, lambda: BILL, "cuda, H100", stream)
    return stream.getvalue()


def agreed(recorded: machines.Recorded, settings: Settings, **rest: Any) -> Agreed:
    return agree(introduce(job(recorded, **rest), settings), settings)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_said", set())


def test_start_explained() -> None:
    text = shown(agreed(machines.dgx_h100(), Settings(explain=True)))
    assert all(line.startswith("uccl-ep: ") for line in text.splitlines())
    for line in (
        "uccl-ep: device cuda, H100: 16 ranks on 2 node(s)\n",
        "uccl-ep: transport verbs: every rank has an active InfiniBand port\n",
        "uccl-ep: rows in device memory: NICs reach GPU memory (verbs, by dmabuf); a NIC read before each batch of "
        "flags (presumed: the GPU's driver can be asked when the job starts)\n",
        "uccl-ep: rank 0 uses mlx5_0:1: on the same PCIe switch as GPU 0000:1b:00.0; no other rank uses it\n",
        "uccl-ep: memory of a rank 4 KiB: control 4 KiB\n",
    ):
        assert text.count(line) == 1, line
    assert text.count("uccl-ep: plan of rank ") == 16


def test_start_of_a_machine_as_it_should_be_says_nothing() -> None:
    assert shown(agreed(machines.p5en(), Settings())) == ""


def test_start_says_loud_warnings_once() -> None:
    crowded = agreed(machines.roce_many_gids(), Settings(pin_cpus=(1,)), ranks=4, per_host=2)
    text = shown(crowded)
    assert "uccl-ep: !!! WARNING, shared NIC: ranks share NICs" in text and "CPUs" not in text
    assert shown(crowded) == ""


def test_start_sees_what_ranks_say_of_themselves() -> None:
    told = introduce(job(machines.dgx_h100()), Settings())
    told[9] = with_portrait(settings=[["UCCL_EP_PROXY", "process"]])(told[9])
    assert "UCCL_EP_PROXY differs between ranks" in shown(agree(told, Settings()))


def test_start_never_fails() -> None:
    broken = agreed(machines.dgx_h100(), Settings(explain=True))
    bad = replace(broken, hellos=[replace(i, fabric={"odd": 1}) for i in broken.hellos])
    text = shown(bad)
    assert text.splitlines()[-1].startswith(
        "uccl-ep: the plan cannot be shown: UcclEpError: rank 0 describes its network"
    )
    quiet = replace(bad, settings=Settings())
    assert "the plan cannot be shown" in shown(quiet)


def test_start_describes_so_many_ranks() -> None:
    made = start.plan_of(agreed(machines.dgx_h100(), Settings()), BILL, most_ranks=5)
    assert (len(made.ranks), made.num_ranks, made.source) == (5, 16, "at the start")


def test_start_of_a_real_buffer(variables: Any, capfd: pytest.CaptureFixture[str]) -> None:
    variables(RANKS_PER_NODE=1, EXPLAIN=1)

    def body(group: ThreadGroup) -> None:
        Buffer(group, 1 << 20).destroy()

    run_ranks(2, body)
    said = capfd.readouterr().err
    assert said.count("uccl-ep: plan of rank 0 on ") == said.count("uccl-ep: plan of rank 1 on ") == 1
    assert "uccl-ep: memory of a rank " in said and "the plan cannot be shown" not in said
    assert "not taken for transport: verbs: " in said
