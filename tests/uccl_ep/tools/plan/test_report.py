"""A plan's tables and its JSON."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.plan.plans import plan
from uccl_ep.plan.record import GroupPlan
from uccl_ep.tools.plan.report import SCHEMA, as_json, print_plan


def printed(made: GroupPlan, reasons_of: tuple[int, ...] = (0,), everything: bool = False, width: int = 150) -> str:
    stream = io.StringIO()
    print_plan(made, Console(file=stream, width=width), reasons_of, everything)
    return stream.getvalue()


def test_report_of_a_plan_without_warnings() -> None:
    text = printed(plan(machines.dgx_h100()), (3,))
    for word in (
        "16 ranks on 2 host(s)", "every rank has an active InfiniBand port", "not efa: all ranks: no EFA device",
        "mlx5_5:1 400G", "1 more host(s) are like the first", "rank 3, and why",
        "on the same PCIe switch as GPU 0000:61:00.0",
        "memory of a rank", "expected bytes of a step", "no warnings",
    ):  # fmt: skip
        assert word in text, word
    assert text.count("host1") == 0 and "WARNING" not in text


def test_report_says_each_fact_once() -> None:
    """The reason of tcp has what each NIC family lacks; the list of what it was chosen over had it once more."""
    text = printed(plan(machines.Recorded()), width=250)
    assert "not efa: on all ranks no EFA device" in text and text.count("no EFA device") == 1
    assert "10 to 20 times faster than libfabric's tcp" in text
    table = text[text.index("ranks\n") if "ranks\n" in text else 0 : text.index("memory of a rank")]
    assert "NICs" not in table and "address" not in table and "GPU rows" not in table, "no rank has any"


def test_report_quiet_is_warnings_only() -> None:
    stream = io.StringIO()
    made = plan(machines.roce_many_gids(), ranks=4, per_host=2)
    print_plan(made, Console(file=stream, width=150), (0,), False, quiet=True)
    text = stream.getvalue()
    assert "WARNING: shared NIC" in text and text.splitlines()[-1].startswith("2 warning(s)")
    assert "memory of a rank" not in text and "rank 0, and why" not in text


def test_report_shows_all_when_asked() -> None:
    text = printed(plan(machines.dgx_h100()), (), everything=True)
    assert (
        text.count("host1") == 8 and "like the first" not in text and "and why" not in text.replace("why, and over", "")
    )


def test_report_warnings_come_first_and_last() -> None:
    text = printed(plan(machines.roce_many_gids(), ranks=4, per_host=2))
    assert "WARNING: shared NIC" in text.splitlines()[0]
    assert text.splitlines()[-1].startswith("2 warning(s) above: shared NIC, shared GPU")


def test_report_hosts_that_differ_are_all_shown() -> None:
    made = plan(machines.dgx_h100(), machines.openshift_pod(), machines.dgx_h100(), ranks=24)
    text = printed(made, ())
    ranks = text[text.index("computes on") : text.index("1 more host(s) are like the first")]
    assert (ranks.count("host0"), ranks.count("host1"), ranks.count("host2")) == (8, 8, 0)


def test_report_fits_a_narrow_terminal() -> None:
    lines = printed(plan(machines.p5()), width=80).splitlines()
    assert max(len(line) for line in lines if line.startswith(("│", "╭", "┃", "┏"))) <= 80


def test_report_json() -> None:
    made = plan(machines.roce_many_gids(), ranks=4, per_host=2)
    values: dict[str, Any] = json.loads(json.dumps(as_json(made)))
    assert values["schema"] == SCHEMA == 1 and values["total_bytes"] == made.total_bytes
    assert values["ranks"][1]["nics"][0] == {
        "name": "mlx5_0", "port": 1, "gbps": 200.0, "mtu": 4096, "distance": "under the same PCIe host bridge",
        "gid": 5, "address": "RoCE v2, IPv4 10.7.0.11", "shared_with": [0],
    }  # fmt: skip
    assert values["cautions"][0]["kind"] == "shared NIC" and values["cautions"][0]["ranks"] == [0, 1, 2, 3]
    assert values["traffic"]["dispatch_bytes"] > 0 and values["choices"][1]["over"]
