"""Path efa: p5, p5en and p6-b200 by their trees, and the one capability that older instances lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from tests.uccl_ep.tools.doctor.hosts import host, live, told
from uccl_ep.fabric.verbs_devices import Discovery, EfaAttributes, VerbsDevice
from uccl_ep.tools.doctor import efa
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, UNKNOWN, examine, judge

NAMES = ("rdmap82s0", "rdmap83s0")


def discovery(*capabilities: tuple[str, ...] | None) -> Discovery:
    made = []
    for name, some in zip(NAMES, capabilities, strict=True):
        attributes = None if some is None else EfaAttributes(1, 1, 1, 1, 32, 1 << 30, some)
        made.append(VerbsDevice(name, "", "", "", (), efa=attributes))
    return Discovery(tuple(made), "pyverbs", "")


@pytest.mark.parametrize(
    "capabilities, expected, says",
    [
        ((("rdma_read", "rdma_write"), ("rdma_write",)), OK, "rdmap82s0, rdmap83s0 can"),
        ((("rdma_read",), ("rdma_write",)), MISSING, "rdmap82s0 cannot"),
        ((None, ("rdma_write",)), UNKNOWN, "not known of rdmap82s0"),
    ],
)
def test_efa_remote_write(tmp_path: Path, capabilities: Any, expected: tuple[str, bool], says: str) -> None:
    recorded = Recorded(nics=machines.p5en().nics[:2])
    answer = efa.remote_write(live(tmp_path, recorded, discover=lambda: discovery(*capabilities)))
    assert told(answer) == expected and answer.found == says


@pytest.mark.parametrize("recorded", [machines.p5, machines.p5en, machines.p6_b200])
def test_efa_of_recorded_instances(tmp_path: Path, recorded: Any) -> None:
    made = host(tmp_path, recorded())
    findings = {check.name: examine(check, made) for check in efa.CHECKS}
    assert judge("efa", list(findings.values())).words == "can be used", findings
    assert "on the same PCIe switch" in findings["distance"].found
    assert findings["remote write"].state == NOT_NEEDED
    assert "GID 0 (EFA has one address" in findings["addresses"].found


def test_efa_gate(tmp_path: Path) -> None:
    assert efa.unneeded(host(tmp_path, machines.dgx_h100())) == "no EFA device"
