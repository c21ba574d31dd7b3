"""Path tcp: the address that other hosts reach, a listener on it, and its link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.fabric.machines import put
from tests.uccl_ep.tools.doctor.hosts import host, told
from uccl_ep.fabric import facts
from uccl_ep.tools.doctor import tcp
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import MISSING, OK, SLOW, examine

NETWORKS = {"lo": ["127.0.0.1/8", "::1/128"], "eth0": ["10.0.0.5/24", "fe80::5/64"]}


def route(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(facts, "route_address", lambda: address)


def made(tmp_path: Path, **variables: Any) -> Host:
    return host(tmp_path, networks=lambda: NETWORKS, environment={f"UCCL_EP_{k}": v for k, v in variables.items()})


def test_tcp_here_nothing_blocks() -> None:
    findings = [examine(check, Host(environment={})) for check in tcp.CHECKS]
    assert not any(f.state == MISSING for f in findings), findings


@pytest.mark.parametrize(
    "address, variables, state, says",
    [
        ("10.0.0.5", {}, OK, "10.0.0.5 on eth0 (the default route leaves from it)"),
        ("127.0.0.1", {}, SLOW, "ranks of other hosts do not reach it"),
        ("10.0.0.9", {}, MISSING, "is no address of this host"),
        ("127.0.0.1", {"INTERFACE": "10.0.0.5"}, OK, "UCCL_EP_INTERFACE says so"),
        ("10.0.0.5", {"INTERFACE": "10.1.1.1"}, MISSING, "10.1.1.1 (UCCL_EP_INTERFACE says so) is no address"),
        ("10.0.0.5", {"INTERFACE": "fe80::5"}, OK, "fe80::5 on eth0"),
    ],
)
def test_tcp_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, variables: dict[str, str], state: str,
    says: str,
) -> None:  # fmt: skip
    route(monkeypatch, address)
    answer = tcp.address(made(tmp_path, **variables))
    assert told(answer) == state and says in answer.found
    assert state == OK or "UCCL_EP_INTERFACE" in answer.fix


def test_tcp_listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    route(monkeypatch, "127.0.0.1")
    assert told(tcp.listening(made(tmp_path / "a"))) == OK
    route(monkeypatch, "192.0.2.77")  # TEST-NET-1: no machine's own
    assert told(tcp.listening(made(tmp_path / "b"))) == MISSING


@pytest.mark.parametrize(
    "mtu, speed, state, says",
    [
        ("9000", "100000", OK, "eth0: MTU 9000, 100 Gb/s"),
        ("1500", "-1", OK, "MTU 1500, an unknown speed"),
        ("1400", "1000", SLOW, "MTU 1400, 1 Gb/s"),
        ("", "x", OK, "MTU unknown, an unknown speed"),
    ],
)
def test_tcp_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mtu: str, speed: str, state: str, says: str) -> None:
    route(monkeypatch, "10.0.0.5")
    here = made(tmp_path)
    put(tmp_path / "sys/class/net/eth0/mtu", mtu)
    put(tmp_path / "sys/class/net/eth0/speed", speed)
    answer = tcp.link(here)
    assert answer.state == state and says in answer.found
