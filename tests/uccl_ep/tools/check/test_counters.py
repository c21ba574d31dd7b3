"""Ports and interfaces as a recorded sysfs tree has them, and the driver's statistics by ethtool's call."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.fabric.machines import put
from uccl_ep.tools.check.counters import PortState, ethtool_statistics, read_interface, read_port


def tree(root: Path) -> str:
    port = "class/infiniband/mlx5_2/ports/1"
    files = {
        f"{port}/state": "4: ACTIVE\n",
        f"{port}/rate": "400 Gb/sec (4X NDR)\n",
        f"{port}/link_layer": "Ethernet\n",
        f"{port}/gid_attrs/ndevs/0": "eth4\n",
        f"{port}/counters/symbol_error": "3\n",
        f"{port}/hw_counters/packet_seq_err": "17\n",
        f"{port}/hw_counters/lifespan": "12\n",
        "class/net/eth4/mtu": "9000\n",
        "class/net/eth4/speed": "400000\n",
        "class/net/eth4/operstate": "up\n",
        "class/net/eth4/statistics/rx_dropped": "5\n",
        "class/net/eth4/ecn/roce_np/enable/3": "1\n",
        "class/net/eth4/ecn/roce_rp/enable/3": "0\n",
    }
    for name, text in files.items():
        put(root / name, text)
    (root / "class/infiniband/mlx5_2/device").mkdir(parents=True)
    (root / "class/infiniband/mlx5_2/device/driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    return str(root)


def test_counters_of_a_port_and_its_interface(tmp_path: Path) -> None:
    found = read_port("mlx5_2", 1, tree(tmp_path), lambda interface: {f"{interface}_rx_prio3_pause": 9})
    assert (found.name, found.interface, found.driver, found.link) == ("mlx5_2:1", "eth4", "mlx5_core", "Ethernet")
    assert (found.state, found.gbps, found.mtu) == ("ACTIVE", 400.0, 9000)
    assert found.ecn == {"roce_np/3": True, "roce_rp/3": False}
    assert found.counters == {"symbol_error": 3, "packet_seq_err": 17, "rx_dropped": 5, "eth4_rx_prio3_pause": 9}
    assert PortState(**found.plain()) == found


def test_counters_of_an_interface_alone(tmp_path: Path) -> None:
    found = read_interface("eth4", tree(tmp_path), lambda interface: {})
    assert (found.name, found.state, found.gbps, found.mtu, found.driver) == ("eth4", "up", 400.0, 9000, "")
    assert read_interface("eth9", str(tmp_path), lambda interface: {}) == PortState("eth9", "eth9", link="Ethernet")
    assert read_port("mlx5_9", 1, str(tmp_path), lambda interface: {}) == PortState("mlx5_9:1")


def test_counters_that_have_grown() -> None:
    before, after = PortState("p", counters={"a": 1, "b": 2}), PortState("p", counters={"a": 1, "b": 5, "c": 4})
    assert after.since(before) == {"b": 3, "c": 4}


def test_counters_of_ethtool_are_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"rx_prio3_pause": 7, "tx_prio3_pause": 1 << 40}

    def ioctl(_: Any, number: int, request: bytes) -> None:
        assert number == 0x8946
        name, address = struct.unpack("16sP", request)
        if name.rstrip(b"\0") != b"eth4":
            raise OSError("no such device")
        (command,) = struct.unpack("=I", ctypes.string_at(address, 4))
        names = b"".join(key.encode().ljust(32, b"\0") for key in counted)
        answers = {
            0x37: (16, struct.pack("=I", len(counted))),
            0x1B: (12, names),
            0x1D: (8, struct.pack("=2Q", *counted.values())),
        }
        at, answer = answers[command]
        ctypes.memmove(address + at, answer, len(answer))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert ethtool_statistics("eth4") == counted
    assert ethtool_statistics("eth5") == ethtool_statistics("") == ethtool_statistics("x" * 16) == {}


def test_counters_of_ethtool_here_do_not_fail() -> None:
    assert isinstance(ethtool_statistics("lo"), dict)
