"""What the paths over NICs share, against recorded trees of real machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import IDLE, Nic, Recorded, put
from tests.uccl_ep.tools.doctor.hosts import absent, host, live, told
from uccl_ep.tools.doctor import rdma
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, SLOW, UNKNOWN


def pci_only(vendor: str, pci_class: str, device: str = "0x1021") -> Recorded:
    """A NIC that no driver has taken: a PCI function and nothing more."""
    return Recorded(idle=(vendor, pci_class, device))


@pytest.mark.parametrize(
    "recorded, family, reason",
    [
        (machines.dgx_h100, "verbs", ""),
        (machines.dgx_h100, "efa", "no EFA device"),
        (machines.p5, "efa", ""),
        (machines.p6_b200, "verbs", ""),
        (machines.p5, "verbs", "no InfiniBand or RoCE device"),
        (machines.slingshot, "libfabric", ""),
        (Recorded, "libfabric", "no Slingshot NIC"),
        (lambda: pci_only(machines.MELLANOX, "0x020700"), "verbs", ""),
        (lambda: pci_only(machines.MELLANOX, "0x010802"), "verbs", "no InfiniBand or RoCE device"),
        (lambda: pci_only(machines.AMAZON, "0x020000", "0xefa1"), "efa", ""),
        (lambda: pci_only(machines.AMAZON, "0x020000", "0xec20"), "efa", "no EFA device"),
    ],
)
def test_rdma_who_needs_it(tmp_path: Path, recorded: Callable[[], Recorded], family: str, reason: str) -> None:
    assert rdma.unneeded(host(tmp_path, recorded()), family) == reason


def test_rdma_asked_for_by_name(tmp_path: Path) -> None:
    made = host(tmp_path, environment={"UCCL_EP_TRANSPORT": "efa"})
    assert rdma.unneeded(made, "efa") == "" and rdma.unneeded(made, "verbs") != ""
    answer = rdma.devices("efa", made)
    assert told(answer) == MISSING and answer.found == "none" and "modprobe efa" in answer.fix


def test_rdma_devices_without_a_driver_are_named(tmp_path: Path) -> None:
    answer = rdma.devices("verbs", host(tmp_path, pci_only(machines.MELLANOX, "0x020000")))
    assert told(answer) == MISSING and answer.found == "no driver has taken 0000:21:00.0"
    assert answer.fix.startswith("modprobe mlx5_ib")


def test_rdma_devices_that_a_container_hides(tmp_path: Path) -> None:
    made = live(tmp_path, Recorded())
    (tmp_path / "sys/class/infiniband").write_text("no folder")  # what listing it answers is an error, also for root
    assert rdma.unneeded(made, "verbs") == ""
    for check in (rdma.devices, rdma.device_files, rdma.ports):
        answer = check("verbs", made)
        assert told(answer) == MISSING and "class/infiniband: Not a directory" in answer.found


def test_rdma_devices_are_grouped(tmp_path: Path) -> None:
    answer = rdma.devices("efa", host(tmp_path, machines.p5()))
    assert told(answer) == OK and answer.found.endswith("and 24 more (efa, firmware 28.39.1002)")
    soft = rdma.devices("verbs", host(tmp_path / "b", machines.soft_roce()))
    assert soft.found == "rxe0 (software)"


def test_rdma_library(tmp_path: Path) -> None:
    answer = rdma.library("efa", host(tmp_path / "a", load=absent))
    assert told(answer) == MISSING and "libibverbs1" in answer.fix and "libibverbs.so.1" in answer.needed
    assert rdma.library("efa", host(tmp_path / "b")).found == "libibverbs.so.1, libefa.so.1"


def test_rdma_device_files(tmp_path: Path) -> None:
    assert rdma.device_files("verbs", host(tmp_path / "a", machines.dgx_h100())).state == NOT_NEEDED
    made = live(
        tmp_path / "b", Recorded(nics=[Nic("mlx5_0", IDLE, 0, lid=1), Nic("mlx5_1", IDLE[:-1] + "1", 0, lid=2)])
    )
    none = rdma.device_files("verbs", made)
    assert told(none) == MISSING and none.fix == "modprobe ib_uverbs on the host"
    for i in range(2):
        put(tmp_path / f"b/sys/class/infiniband_verbs/uverbs{i}/ibdev", f"mlx5_{i}")
    closed = rdma.device_files("verbs", made)
    assert told(closed) == MISSING and "--device=/dev/infiniband" in closed.fix and "uverbs1" in closed.found
    for i in range(2):
        put(tmp_path / f"b/dev/infiniband/uverbs{i}", "")
    assert told(rdma.device_files("verbs", made)) == OK


def test_rdma_ports(tmp_path: Path) -> None:
    whole = rdma.ports("verbs", host(tmp_path / "a", machines.mi300x_thor2()))
    assert told(whole) == OK
    assert "at 400 Gb/s; not used: bnxt_re8:1 runs at 25 Gb/s where others have 400" in whole.found
    recorded = machines.dgx_h100()
    recorded.nics[0] = replace(recorded.nics[0], state="1: DOWN")
    down = rdma.ports("verbs", host(tmp_path / "b", recorded))
    assert told(down) == SLOW and "mlx5_0:1 is DOWN" in down.found and "not mlx5_0:1" in down.needed
    none = rdma.ports("verbs", host(tmp_path / "c", Recorded(nics=[Nic("x", IDLE, state="1: DOWN")])))
    assert told(none) == MISSING
    named = rdma.ports("verbs", host(tmp_path / "d", recorded, environment={"UCCL_EP_NICS": "mlx9_0"}))
    assert told(named) == MISSING and "UCCL_EP_NICS" in named.fix


def test_rdma_ports_that_cannot_be_read(tmp_path: Path) -> None:
    answer = rdma.ports("verbs", host(tmp_path, machines.openshift_pod()))
    assert told(answer) == SLOW
    assert "let this process read the state of mlx5_0:1" in answer.fix and "mlx5_4:1 at an unknown rate" in answer.found


def test_rdma_addresses(tmp_path: Path) -> None:
    many = rdma.addresses("verbs", host(tmp_path / "a", machines.roce_many_gids()))
    assert told(many) == OK
    assert many.found == "mlx5_0:1: GID 5 (RoCE v2, IPv4 10.7.0.11, the first of 2 of its kind)"
    ib = rdma.addresses("verbs", host(tmp_path / "b", machines.dgx_h100()))
    assert "mlx5_11:1: LID (InfiniBand" in ib.found
    wrong = rdma.addresses(
        "verbs", host(tmp_path / "c", machines.roce_many_gids(), environment={"UCCL_EP_GID_INDEX": "9"})
    )
    assert told(wrong) == MISSING and "UCCL_EP_GID_INDEX" in wrong.found
    assert rdma.addresses("efa", host(tmp_path / "d")).state == NOT_NEEDED


def test_rdma_mtu(tmp_path: Path) -> None:
    assert rdma.mtu("verbs", host(tmp_path / "a", machines.mi300x_thor2())).state == OK
    small = machines.mi300x_thor2()
    small.mtus["ens3np0"] = 1500
    answer = rdma.mtu("verbs", host(tmp_path / "b", small))
    assert told(answer) == SLOW and answer.found == "bnxt_re3:1 1024" and "mtu 9000" in answer.fix
    assert rdma.mtu("verbs", host(tmp_path / "c", machines.slingshot())).state == NOT_NEEDED
    unknown = Recorded(nics=[Nic("mlx5_0", IDLE, 0, lid=1)])
    assert rdma.mtu("verbs", host(tmp_path / "d", unknown)).state == NOT_NEEDED  # a tree does not tell
    assert told(rdma.mtu("verbs", live(tmp_path / "e", unknown))) == UNKNOWN
    known = live(tmp_path / "f", unknown, limits=lambda: {("mlx5_0", 1): (1024, 4096)})
    assert rdma.mtu("verbs", known).found == "mlx5_0:1 4096"


@pytest.mark.parametrize(
    "recorded, family, words",
    [
        (
            machines.p5,
            "efa",
            "on the same PCIe switch: GPU 0000:53:00.0 - rdmap79s0:1+rdmap80s0:1+rdmap81s0:1+rdmap82s0:1",
        ),
        (machines.p5en, "efa", "on the same PCIe switch: GPU 0000:56:00.0 - rdmap82s0:1+rdmap83s0:1, GPU 0000:57:00.0"),
        (machines.p6_b200, "efa", "on the same PCIe switch: GPU 0000:53:00.0 - rdmap81s0:1, GPU"),
        (
            machines.dgx_h100,
            "verbs",
            "on the same PCIe switch: GPU 0000:1b:00.0 - mlx5_0:1, GPU 0000:43:00.0 - mlx5_3:1",
        ),
        (machines.mi300x_thor2, "verbs", "on the same PCIe switch: GPU 0000:05:00.0 - bnxt_re0:1"),
        (machines.slingshot, "libfabric", "on the same NUMA node: GPU 0009:01:00.0 - cxi0:1"),
        (machines.roce_many_gids, "verbs", "under the same PCIe host bridge: GPU 0000:12:00.0 - mlx5_0:1"),
    ],
)
def test_rdma_distance_of_real_machines(
    tmp_path: Path, recorded: Callable[[], Recorded], family: str, words: str
) -> None:
    answer = rdma.distance(family, host(tmp_path, recorded()))
    assert told(answer) == OK and answer.found.startswith(words), answer.found


def test_rdma_distance_that_is_far_or_unknown(tmp_path: Path) -> None:
    answer = rdma.distance("verbs", host(tmp_path / "a", machines.openshift_pod()))
    assert told(answer) == SLOW and answer.needed == "a NIC nearer to GPU 0000:1b:00.0"
    assert "at an unknown distance: GPU 0000:1b:00.0 - mlx5_3:1" in answer.found  # not one of the Ethernet ports
    cpu = rdma.distance("verbs", host(tmp_path / "b", machines.soft_roce()))
    assert told(cpu) == OK and "rxe0:1" in cpu.found


def test_rdma_queue_pairs(tmp_path: Path) -> None:
    recorded = Recorded(nics=[Nic("mlx5_0", IDLE, 0, lid=1)])
    assert rdma.limits_known("verbs", host(tmp_path / "a", recorded)).state == NOT_NEEDED
    assert told(rdma.limits_known("verbs", live(tmp_path / "b", recorded))) == UNKNOWN
    known = live(tmp_path / "c", recorded, limits=lambda: {("mlx5_0", 1): (131072, 4096), ("other", 1): (5, 5)})
    assert rdma.limits_known("verbs", known).found == "mlx5_0:1 131072 queue pairs"


def test_rdma_lists() -> None:
    assert rdma.listed([]) == "" and rdma.listed(["a", "b"]) == "a, b"
    assert rdma.listed(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"
    assert rdma.grouped([("x", "1"), ("y", "2"), ("x", "3")]) == {"x": ["1", "3"], "y": ["2"]}
