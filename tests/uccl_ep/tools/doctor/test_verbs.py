"""Path verbs as a whole: a machine that has everything, and the same machine in a container that lacks one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import put
from tests.uccl_ep.tools.doctor.hosts import absent, host, live
from uccl_ep.tools.doctor import verbs
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, examine, judge


def whole(tmp_path: Path, **changes: object) -> Host:
    recorded = machines.dgx_h100()
    for i, nic in enumerate(recorded.nics):
        put(tmp_path / f"sys/class/infiniband_verbs/uverbs{i}/ibdev", nic.name)
        put(tmp_path / f"dev/infiniband/uverbs{i}", "")
    values = {
        "limits": lambda: {(nic.name, 1): (131072, 4096) for nic in recorded.nics},
        "probe": lambda kind: {"devices": [{"name": "H100", "dmabuf": 1}]},
        **changes,
    }
    return live(tmp_path, recorded, **values)


def test_verbs_on_a_whole_machine(tmp_path: Path) -> None:
    made = whole(tmp_path)
    findings = [examine(check, made) for check in verbs.CHECKS]
    assert {f.state for f in findings} == {OK}, findings
    assert judge("verbs", findings).words == "can be used" and verbs.unneeded(made) == ""


@pytest.mark.parametrize(
    "changes, lacking",
    [({"load": absent}, "library"), ({"rlimit": lambda which: (65536, 65536)}, "locked memory")],
)
def test_verbs_in_a_container_that_lacks_one_thing(tmp_path: Path, changes: dict[str, object], lacking: str) -> None:
    made = whole(tmp_path, **changes)
    verdict = judge("verbs", [examine(check, made) for check in verbs.CHECKS])
    assert verdict.state == MISSING and lacking in verdict.words


def test_verbs_where_nobody_needs_them(tmp_path: Path) -> None:
    assert verbs.unneeded(host(tmp_path)) == "no InfiniBand or RoCE device"


def test_verbs_of_every_recorded_machine(tmp_path: Path) -> None:
    for i, recorded in enumerate(
        (machines.dgx_h100, machines.mi300x_thor2, machines.roce_many_gids, machines.soft_roce)
    ):
        made = host(tmp_path / str(i), recorded())
        findings = [examine(check, made) for check in verbs.CHECKS]
        assert not any("the check failed" in f.found for f in findings)
        assert judge("verbs", findings).state == OK
        assert {f.state for f in findings if f.name in ("device files", "queue pairs")} == {NOT_NEEDED}
