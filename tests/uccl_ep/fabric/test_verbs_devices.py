"""Discovery of RDMA devices from recorded answers of pyverbs and recorded sysfs trees, and its ways to fail.

The soft-RoCE records are from the guest of tests/rdma, which also compares both sources on real devices.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uccl_ep.fabric.verbs_devices import Discovery, GidEntry, VerbsDevice, discover

LINK_LOCAL = "fe80:0000:0000:0000:80a3:9aff:fe54:60b9"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a09:0001"
EMPTY = ":".join(["0000"] * 8)
LIMITS = {
    "max_qp": 1048560,
    "max_qp_wr": 1048576,
    "max_sge": 32,
    "max_cq": 1048576,
    "max_cqe": 32767,
    "max_mr": 524287,
    "max_mr_size": 2**64 - 1,
    "max_srq": 917503,
    "max_srq_wr": 1048576,
}
RXE_GUID = int.from_bytes(bytes.fromhex("80a39afffe5460b9"), "little")


class Recorded:
    """Modules of pyverbs that answer with what was recorded."""

    def __init__(self, devices: dict[str, SimpleNamespace], efa: SimpleNamespace | None = None) -> None:
        self.devices, self.efa, self.open = devices, efa, 0

    def __call__(self, name: str) -> Any:
        if name == "pyverbs.device":
            listed = [SimpleNamespace(name=n.encode(), node_type=d.node_type) for n, d in self.devices.items()]
            return SimpleNamespace(get_device_list=lambda: listed, Context=self._context)
        if name.endswith("efadv") and self.efa is not None:
            return SimpleNamespace(EfaContext=self._context)
        if name.endswith("efa_enums") and self.efa is not None:
            return SimpleNamespace(
                EFADV_DEVICE_ATTR_CAPS_RDMA_READ=1, EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV=16, OTHER=16
            )
        raise ImportError(f"no module {name}")

    def _context(self, name: str) -> Any:
        device = self.devices[name]
        if device.refuses:
            raise OSError(13, "Permission denied")
        self.open += 1
        attributes = SimpleNamespace(
            phys_port_cnt=len(device.ports),
            vendor_id=device.vendor_id,
            node_guid=RXE_GUID,
            fw_version=device.fw,
            **LIMITS,
        )

        def close() -> None:
            self.open -= 1

        return SimpleNamespace(
            close=close,
            query_device=lambda: attributes,
            query_port=lambda number: device.ports[number - 1],
            query_gid_table=lambda most: device.gids[:most],
            query_efa_device=lambda: self.efa,
        )


def port(**other: int) -> SimpleNamespace:
    rxe = {"state": 4, "phys_state": 5, "link_layer": 2, "lid": 0, "active_width": 1, "active_speed": 8}
    return SimpleNamespace(**{**rxe, "active_mtu": 5, "max_mtu": 5, **other})


def gid(index: int, text: str, kind: int, port_num: int = 1, interface: int = 0) -> SimpleNamespace:
    return SimpleNamespace(gid_index=index, gid_str=text, gid_type=kind, port_num=port_num, ndev_ifindex=interface)


def device(ports: list[Any], gids: list[Any], vendor: int = 0xFFFFFF, refuses: bool = False) -> SimpleNamespace:
    return SimpleNamespace(node_type=1, ports=ports, gids=gids, vendor_id=vendor, refuses=refuses, fw="0.0.0")


def write_port(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """rxe0 as the guest shows it, and mlx5_0 of an InfiniBand host."""
    for name, guid in (("rxe0", "80a3:9aff:fe54:60b9"), ("mlx5_0", "0c42:a103:0055:aa00")):
        write_port(tmp_path / name, {"node_type": "1: CA", "node_guid": guid})
    (tmp_path / "mlx5_0/fw_ver").write_text("28.39.1002\n")
    state = {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}
    write_port(
        tmp_path / "rxe0/ports/1",
        {
            **state,
            "link_layer": "Ethernet",
            "lid": "0x0",
            "rate": "10 Gb/sec (1X FDR10)",
            "gids/0": LINK_LOCAL,
            "gids/1": MAPPED,
            "gids/2": EMPTY,
            "gid_attrs/types/0": "IB/RoCE v1",
            "gid_attrs/types/1": "RoCE v2",
            "gid_attrs/ndevs/0": "v0",
            "gid_attrs/ndevs/1": "v0",
        },
    )
    ib = {"link_layer": "InfiniBand", "lid": "0x1c", "rate": "400 Gb/sec (4X NDR)", "gids/0": LINK_LOCAL}
    write_port(tmp_path / "mlx5_0/ports/1", {**state, **ib})
    return tmp_path


def without_pyverbs(name: str) -> Any:
    raise ImportError(f"No module named {name!r}")


def one(found: Discovery) -> VerbsDevice:
    assert len(found.devices) == 1
    return found.devices[0]


def test_verbs_devices_of_soft_roce() -> None:
    index, name = socket.if_nameindex()[0]
    gids = [gid(0, LINK_LOCAL, 2, interface=index), gid(1, MAPPED, 2, interface=index)]
    recorded = Recorded({"rxe0": device([port()], gids)})
    found = discover(load=recorded)
    assert found.source == "pyverbs" and not found.problems and recorded.open == 0
    rxe = one(found)
    assert (rxe.name, rxe.node_guid, rxe.node_type, rxe.efa) == ("rxe0", "80a3:9aff:fe54:60b9", "CA", None)
    assert rxe.limit("max_qp") == 1048560 and dict(rxe.limits) == LIMITS and rxe.limit("max_wishes") is None
    (only,) = rxe.ports
    assert (only.number, only.state, only.physical_state, only.link_layer) == (1, "ACTIVE", "LinkUp", "Ethernet")
    assert (only.active_mtu, only.max_mtu, only.gbps) == (4096, 4096, 10.0)
    assert only.gids == (GidEntry(0, LINK_LOCAL, "RoCE v2", name), GidEntry(1, MAPPED, "RoCE v2", name))


def test_verbs_devices_gids_say_what_they_are() -> None:
    link, mapped, other = (GidEntry(0, text, "RoCE v2") for text in (LINK_LOCAL, MAPPED, "2001:db8::1"))
    assert (link.ipv4, mapped.ipv4, other.ipv4) == ("", "10.9.0.1", "")
    assert (link.link_local, mapped.link_local, other.link_local) == (True, False, False)


def test_verbs_devices_keeps_ports_apart() -> None:
    gids = [gid(0, LINK_LOCAL, 0, 1), gid(0, MAPPED, 1, 2, interface=1 << 30)]
    ports = [port(link_layer=1, lid=7, active_width=2, active_speed=128), port(state=1, phys_state=3, active_mtu=9)]
    first, second = one(discover(load=Recorded({"mlx5_1": device(ports, gids)}))).ports
    assert (first.link_layer, first.lid, first.gbps) == ("InfiniBand", 7, 400.0)
    assert first.gids == (GidEntry(0, LINK_LOCAL, "InfiniBand"),)
    assert (second.state, second.physical_state, second.active_mtu) == ("DOWN", "Disabled", 0)
    assert second.gids == (GidEntry(0, MAPPED, "RoCE v1"),)  # its interface is not in this namespace


def test_verbs_devices_of_efa() -> None:
    efa = SimpleNamespace(
        max_sq_wr=4096,
        max_rq_wr=32768,
        max_sq_sge=2,
        max_rq_sge=3,
        inline_buf_size=32,
        max_rdma_size=1 << 30,
        device_caps=17,
    )
    card = device([port(link_layer=0)], [gid(0, LINK_LOCAL, 0)], vendor=0x1D0F)
    found = one(discover(load=Recorded({"rdmap0s6": card}, efa)))
    assert found.efa is not None and found.ports[0].link_layer == "Unspecified"
    assert found.efa.capabilities == ("rdma_read", "unsolicited_write_recv")
    assert (found.efa.max_sq_wr, found.efa.max_rdma_bytes, found.efa.inline_bytes) == (4096, 1 << 30, 32)

    found_all = discover(load=Recorded({"rdmap0s6": card}))  # pyverbs built without EFA's part
    assert one(found_all).efa is None and "EFA" in found_all.problems[0]


def test_verbs_devices_from_sysfs(sysfs: Path) -> None:
    found = discover(sysfs, without_pyverbs)
    assert found.source == "sysfs" and "pyverbs cannot be imported" in found.reason and not found.problems
    mlx, rxe = found.devices
    assert (mlx.name, mlx.node_guid, mlx.node_type, mlx.fw_version) == (
        "mlx5_0",
        "0c42:a103:0055:aa00",
        "CA",
        "28.39.1002",
    )
    assert (mlx.ports[0].link_layer, mlx.ports[0].lid, mlx.ports[0].gbps) == ("InfiniBand", 28, 400.0)
    assert mlx.ports[0].gids == (GidEntry(0, LINK_LOCAL, "InfiniBand"),)
    assert rxe.ports[0].gids == (GidEntry(0, LINK_LOCAL, "RoCE v1", "v0"), GidEntry(1, MAPPED, "RoCE v2", "v0"))
    assert rxe.ports[0].active_mtu == 0 and rxe.limit("max_qp") is None


def test_verbs_devices_no_rdma_at_all(tmp_path: Path) -> None:
    for load in (without_pyverbs, Recorded({})):
        found = discover(tmp_path / "absent", load)
        assert found.devices == () and found.source == "sysfs" and "pyverbs" in found.reason


def test_verbs_devices_pyverbs_that_fails_gives_way_to_sysfs(sysfs: Path) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found")

    def no_uverbs(name: str) -> Any:
        def get_device_list() -> list[Any]:
            raise RuntimeError("Failed to get devices list")

        return SimpleNamespace(get_device_list=get_device_list)

    cases: list[tuple[Callable[[str], Any], str]] = [(broken, "IBVERBS_PRIVATE_59"), (no_uverbs, "Failed to get")]
    for load, said in cases:
        found = discover(sysfs, load)
        assert found.source == "sysfs" and said in found.reason and len(found.devices) == 2


def test_verbs_devices_one_device_that_cannot_be_opened(sysfs: Path) -> None:
    recorded = Recorded({"rxe0": device([port()], [], refuses=True), "mlx5_0": device([port()], [])})
    found = discover(sysfs, recorded)
    assert [d.name for d in found.devices] == ["mlx5_0", "rxe0"] and found.source == "pyverbs"
    assert found.devices[0].limits and not found.devices[1].limits  # the second is what sysfs says
    assert "rxe0" in found.problems[0] and "Permission denied" in found.problems[0]


def test_verbs_devices_bad_sysfs_entries_are_reported(sysfs: Path) -> None:
    rxe = sysfs / "rxe0/ports/1"
    (rxe / "state").unlink()
    (rxe / "lid").write_text("none\n")
    (rxe / "gids/1").write_text("not a gid\n")
    found = discover(sysfs, without_pyverbs)
    only = found.devices[1].ports[0]
    assert only.state == "" and only.lid == 0 and [g.index for g in only.gids] == [0]
    assert len(found.problems) == 3 and any("state" in p for p in found.problems)


def test_verbs_devices_here() -> None:
    """Whatever this machine is, asking is safe and says who answered."""
    found = discover(load=importlib.import_module)
    assert found.source in ("pyverbs", "sysfs") and "pyverbs" in found.reason
