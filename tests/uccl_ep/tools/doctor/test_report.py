"""The doctor's table and its JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import host
from uccl_ep.tools.doctor.catalogue import Examination, examine_host
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, READY, Finding, judge
from uccl_ep.tools.doctor.report import SCHEMA, as_json, print_report, unsatisfied

FINDINGS = (
    Finding("tcp", "address", READY, "10.0.0.5 [eth0]", "an address", "", True),
    Finding("tcp", "link", MISSING, "MTU 1400", "MTU 1500", "ip link set", False),
    Finding("efa", "library", MISSING, "libefa.so.1 [red]is gone[/red]", "libefa.so.1", "dnf install", True),
    Finding("verbs", "devices", NOT_NEEDED, "no InfiniBand", "", "", True),
)
EXAMINATION = Examination(tuple(judge(path, FINDINGS) for path in ("tcp", "verbs", "efa")), FINDINGS)


def printed(examination: Examination, everything: bool = False, width: int = 100) -> str:
    stream = io.StringIO()
    print_report(examination, Console(file=stream, width=width), everything)
    return stream.getvalue()


def test_report_tables_and_verdicts() -> None:
    text = printed(EXAMINATION)
    for line in (
        "tcp: ready",
        "needed: MTU 1500",
        "fix: ip link set",
        "10.0.0.5 [eth0]",
        "libefa.so.1 [red]is gone[/red]",  # not markup
        "+ tcp       ready: can be used, but look at: link",
        "- verbs     not needed here: no InfiniBand",
        "x efa       missing: cannot be used: library",
    ):
        assert line in text
    assert "an address" not in text and "verbs: not needed" not in text
    assert "verbs: not needed here" in printed(EXAMINATION, everything=True)


def test_report_fits_a_narrow_terminal(tmp_path: Path) -> None:
    text = printed(examine_host(host(tmp_path, machines.openshift_pod()), ("verbs",)), width=80)
    boxes = [line for line in text.splitlines() if line.startswith(("│", "╭", "╰", "├"))]
    assert boxes and max(map(len, boxes)) <= 80


def test_report_json() -> None:
    values = json.loads(json.dumps(as_json(EXAMINATION, ("tcp", "efa"))))
    assert values["schema"] == SCHEMA == 1
    assert values["paths"]["efa"] == {"state": "missing", "words": "cannot be used: library"}
    assert (values["required"], values["satisfied"]) == (["tcp", "efa"], False)
    assert values["findings"][1] == {
        "path": "tcp", "name": "link", "state": "missing", "found": "MTU 1400", "needed": "MTU 1500",
        "fix": "ip link set", "blocks": False,
    }  # fmt: skip
    assert set(values["host"]) == {"name", "kernel", "machine", "python"}


def test_report_what_is_required() -> None:
    assert unsatisfied(EXAMINATION, ()) == [] == unsatisfied(EXAMINATION, ("tcp",))
    assert unsatisfied(EXAMINATION, ("efa", "verbs", "cuda")) == ["efa", "verbs", "cuda"]
