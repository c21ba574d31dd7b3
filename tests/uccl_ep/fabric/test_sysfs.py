"""Recorded machines are read as what they are; what cannot be read is recorded, and nothing raises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Nic, Recorded, put
from uccl_ep.fabric import sysfs
from uccl_ep.fabric.sysfs import normal_address, rdma_mtu, read_machine, read_pci


def test_sysfs_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    assert read_machine(str(tmp_path)) == sysfs.Machine()
    assert read_machine(str(tmp_path / "nowhere")) == sysfs.Machine()


def test_sysfs_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert list(machine.nics) == sorted(machine.nics, key=lambda n: (n.pci.address if n.pci else "~", n.name))


def test_sysfs_dgx_h100() -> None:
    machine = read_machine(machines.dgx_h100().tree())
    assert len(machine.gpus) == 8 and len(machine.nics) == 12 and not machine.unreadable
    first = machine.nic("mlx5_0")
    assert first is not None and first.pci is not None
    assert first.pci.chain == (
        "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0",
    )  # fmt: skip
    assert (first.pci.numa_node, first.driver, first.kind, first.firmware) == (0, "mlx5_core", "verbs", "28.39.1002")
    (port,) = first.ports
    assert (port.number, port.state, port.active, port.link_layer) == (1, "ACTIVE", True, "InfiniBand")
    assert (port.rate_gbps, port.lid, port.mtu) == (400.0, 17, 0)
    storage = machine.nic("mlx5_2")
    assert storage is not None and storage.ports[0].mtu == 4096  # of an interface at 9000
    assert [(g.index, g.kind, str(g.ip), g.netdev) for g in storage.ports[0].gids][2:] == [
        (2, "v1", "10.9.1.5", "eth1"), (3, "v2", "10.9.1.5", "eth1"),
    ]  # fmt: skip
    assert dict(machine.cpus_of_node)[1] == frozenset([*range(56, 112), *range(168, 224)])
    assert [machine.numa_of(frozenset(cpus)) for cpus in ([3], [60, 200], [3, 60], [])] == [0, 1, -1, -1]


def test_sysfs_amazon_devices_are_efa_and_not_verbs() -> None:
    machine = read_machine(machines.p6_b200().tree())
    kinds = {nic.name: nic.kind for nic in machine.nics}
    assert sum(kind == "efa" for kind in kinds.values()) == 8 and kinds["rdmap132s0"] == "efa"
    assert kinds["ibp171s0f0"] == "verbs"
    nic = machine.nic("rdmap132s0")
    assert nic is not None and nic.ports[0].active and nic.ports[0].link_layer == "Unknown"
    assert [gid.kind for gid in nic.ports[0].gids] == ["v1"]


def test_sysfs_amd_gpus_behind_their_own_bridges() -> None:
    machine = read_machine(machines.mi300x_thor2().tree())
    assert len(machine.gpus) == 8 and machine.gpus[0].address == "0000:05:00.0" and len(machine.gpus[0].chain) == 7


def test_sysfs_slingshot() -> None:
    machine = read_machine(machines.slingshot().tree())
    assert [(n.name, n.kind, n.driver, n.ports[0].active, n.ports[0].rate_gbps) for n in machine.nics] == [
        (f"cxi{i}", "cxi", "cxi_core", True, 200.0) for i in range(4)
    ]


def test_sysfs_soft_roce_has_no_pci_device() -> None:
    (nic,) = read_machine(machines.soft_roce().tree()).nics
    assert nic.pci is None and nic.software and nic.ports[0].mtu == 4096
    assert [(g.index, str(g.ip)) for g in nic.ports[0].gids] == [(0, "fe80::200:ff:fe00:0"), (1, "127.0.0.1")]


def test_sysfs_iwarp_and_several_ports() -> None:
    made = Recorded(nics=[Nic("siw0", node_type="4: RNIC", layer="Ethernet"), Nic("mlx4_0", num_ports=2)])
    machine = read_machine(made.tree())
    assert {n.name: (n.kind, [p.number for p in n.ports]) for n in machine.nics} == {
        "siw0": ("iwarp", [1]), "mlx4_0": ("verbs", [1, 2]),
    }  # fmt: skip


@pytest.mark.parametrize("state, expected", [("1: DOWN", "DOWN"), ("2: INIT", "INIT"), ("", "unknown")])
def test_sysfs_ports_that_are_not_up(state: str, expected: str) -> None:
    (nic,) = read_machine(Recorded(nics=[Nic("mlx5_0", state=state)]).tree()).nics
    assert nic.ports[0].state == expected and not nic.ports[0].active


def test_sysfs_a_pod_that_hides_files(tmp_path: Path) -> None:
    """A directory where a file should be reads as an error for every user, root included."""
    root = Path(machines.dgx_h100().write(tmp_path))
    for name in ("mlx5_0", "mlx5_3"):
        file = root / f"class/infiniband/{name}/ports/1/state"
        file.unlink()
        file.mkdir()
    device = root / "class/infiniband/mlx5_4/device"
    device.unlink()
    device.symlink_to("../../../nowhere")
    machine = read_machine(str(root))
    assert [u.split(":")[0] for u in machine.unreadable] == [
        f"class/infiniband/{name}/ports/1/state" for name in ("mlx5_0", "mlx5_3")
    ]
    assert "Is a directory" in machine.unreadable[0]
    hidden, lost = machine.nic("mlx5_0"), machine.nic("mlx5_4")
    assert hidden is not None and hidden.ports[0].state == "unknown"
    assert lost is not None and lost.pci is None and lost.ports[0].active


def test_sysfs_nonsense_in_files_is_not_known(tmp_path: Path) -> None:
    root = Path(machines.dgx_h100().write(tmp_path))
    for name, text in {"lid": "many", "rate": "fast", "gids/0": "no gid", "link_layer": "\xff"}.items():
        file = (root / f"class/infiniband/mlx5_0/ports/1/{name}").resolve()
        file.write_bytes(text.encode("latin-1"))
    put((root / "bus/pci/devices/0000:18:00.0/numa_node").resolve(), "somewhere")
    nic = read_machine(str(root)).nic("mlx5_0")
    assert nic is not None and nic.pci is not None and nic.pci.numa_node == -1
    assert (nic.ports[0].lid, nic.ports[0].rate_gbps, nic.ports[0].gids) == (0, 0.0, ())


def test_sysfs_gpu_by_the_address_that_a_driver_writes(tmp_path: Path) -> None:
    root = machines.dgx_h100().write(tmp_path)
    found = read_pci("00000000:1B:00.0", root)
    assert found is not None and found.address == "0000:1b:00.0" and found in read_machine(root).gpus
    for wrong in ("0000:ff:00.0", "", "gpu0", "1b", "../../../etc"):
        assert read_pci(wrong, root) is None


@pytest.mark.parametrize(
    "text, expected",
    [("0000:3B:00.0", "0000:3b:00.0"), ("3b:00.1", "0000:3b:00.1"), ("00010000:00:1f.7", "10000:00:1f.7"),
     ("0009:1:0.0", "0009:01:00.0"), ("3b:00", ""), ("3b:00.9", ""), ("fake gpu", "")],
)  # fmt: skip
def test_sysfs_addresses(text: str, expected: str) -> None:
    assert normal_address(text) == expected


@pytest.mark.parametrize(
    "ethernet, expected", [(0, 0), (351, 0), (352, 256), (1500, 1024), (4191, 2048), (4200, 4096), (9000, 4096)]
)
def test_sysfs_mtu_that_fits(ethernet: int, expected: int) -> None:
    assert rdma_mtu(ethernet) == expected


def test_sysfs_other_devices_of_the_vendors_are_no_gpus(tmp_path: Path) -> None:
    made = Recorded(gpus=[machines.Gpu("0000:00/00:01.0/01:00.0", 0, pci_class="0x068000")])  # an NVSwitch
    root = made.write(tmp_path)
    assert read_machine(root).gpus == () and os.path.exists(f"{root}/bus/pci/devices/0000:01:00.0")
