"""The report for people names what to mend; the one for machines has everything."""

from __future__ import annotations

import io
import json

from rich.console import Console

from tests.uccl_ep.tools.check.test_judge import measured
from uccl_ep.tools.check.report import SCHEMA, as_json, print_report


def shown(found: object) -> str:
    console = Console(file=io.StringIO(), width=150)
    print_report(found, console)  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_report_for_people() -> None:
    text = shown(measured())
    assert "verbs between a (mlx5_2:1) and b (mlx5_2:1): a test" in text and "0 (immediates)" in text
    assert "nothing to mend was found" in text
    text = shown(measured({"packet_seq_err": 3}))
    assert "2 line(s) with something to mend" in text and "fix: mlnx_qos -i eth4" in text


def test_report_for_machines() -> None:
    found = json.loads(json.dumps(as_json(measured({"packet_seq_err": 3}))))
    assert found["schema"] == SCHEMA == 1 and found["family"] == "verbs"
    assert found["sides"][0]["grown"] == {"mlx5_2:1": {"packet_seq_err": 3}}
    assert {"path", "name", "state", "found", "needed", "fix"} == set(found["findings"][0])
