"""The doctor's table and its JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import host
from uccl_ep.tools.doctor.catalogue import Examination, examine_host
from uccl_ep.tools.doctor.record import MISSING, NO_DEVICE, OK, SLOW, Finding, judge
from uccl_ep.tools.doctor.report import SCHEMA, as_json, print_report, unsatisfied

FINDINGS = (
    Finding("tcp", "address", OK, "10.0.0.5 [eth0]", "an address", ""),
    Finding("tcp", "link", SLOW, "MTU 1400", "MTU 1500", "ip link set"),
    Finding("efa", "library", MISSING, "libefa.so.1 [red]is gone[/red]", "libefa.so.1", "dnf install"),
    Finding("verbs", "devices", NO_DEVICE, "no InfiniBand", "", ""),
)
EXAMINATION = Examination(tuple(judge(path, FINDINGS) for path in ("tcp", "verbs", "efa")), FINDINGS)


def printed(examination: Examination, everything: bool = False, width: int = 100) -> str:
    stream = io.StringIO()
    print_report(examination, Console(file=stream, width=width), everything)
    return stream.getvalue()


def test_report_tables_and_verdicts() -> None:
    text = printed(EXAMINATION)
    for line in (
        "tcp: slow",
        "needed: MTU 1500",
        "fix: ip link set",
        "10.0.0.5 [eth0]",
        "libefa.so.1 [red]is gone[/red]",  # not markup
        "~ tcp       slow: can be used, but look at: link",
        "- verbs     no device: no InfiniBand",
        "x efa       missing: cannot be used: library",
    ):
        assert line in text
    assert "an address" not in text and "verbs: no device" not in text
    assert "verbs: no device" in printed(EXAMINATION, everything=True)


def test_report_verdicts_come_first_and_alone_when_quiet() -> None:
    first = ["~ tcp       slow", "- verbs     no device", "x efa       missing"]
    assert [line.partition(":")[0] for line in printed(EXAMINATION).splitlines()[:3]] == first
    stream = io.StringIO()
    print_report(EXAMINATION, Console(file=stream, width=100), everything=True, quiet=True)
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == first


def test_report_fits_a_narrow_terminal(tmp_path: Path) -> None:
    text = printed(examine_host(host(tmp_path, machines.openshift_pod()), ("verbs",)), width=80)
    boxes = [line for line in text.splitlines() if line.startswith(("│", "╭", "╰", "├"))]
    assert boxes and max(map(len, boxes)) <= 80


def test_report_json() -> None:
    values = json.loads(json.dumps(as_json(EXAMINATION, ("tcp", "efa"))))
    assert values["schema"] == SCHEMA == 2
    assert values["paths"]["efa"] == {"state": "missing", "words": "cannot be used: library"}
    assert (values["required"], values["satisfied"]) == (["tcp", "efa"], False)
    assert values["findings"][1] == {
        "path": "tcp", "name": "link", "state": "slow", "found": "MTU 1400", "needed": "MTU 1500",
        "fix": "ip link set",
    }  # fmt: skip
    assert set(values["host"]) == {"name", "kernel", "machine", "python"}


def test_report_what_is_required() -> None:
    assert unsatisfied(EXAMINATION, ()) == [] == unsatisfied(EXAMINATION, ("tcp",)), "slow is enough"
    assert unsatisfied(EXAMINATION, ("efa", "verbs", "cuda")) == ["efa", "verbs", "cuda"]
