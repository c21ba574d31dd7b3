"""A plan for people, as tables that fit a terminal, and for machines, as one JSON object with a schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import HEAVY, ROUNDED
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import uccl_ep
from uccl_ep.cost_model.expected_bytes import Traffic
from uccl_ep.plan.record import ERROR, LOUD, Caution, GroupPlan, RankPlan
from uccl_ep.sizes import format_bytes

SCHEMA = 1  # of the JSON object; grows when a field changes its meaning or goes, not when one is added
_STYLE = {ERROR: "bold red", LOUD: "bold red", "quiet": "bold yellow"}


def as_json(plan: GroupPlan, assumed: str = "") -> dict[str, Any]:
    """The plan's fields, and "schema", "uccl_ep", "total_bytes", "assumed" (a sentence; empty: nothing was)."""
    ours = {"schema": SCHEMA, "uccl_ep": uccl_ep.__version__, "assumed": assumed, "total_bytes": plan.total_bytes}
    return {**ours, **asdict(plan)}


def print_plan(
    plan: GroupPlan,
    console: Console,
    reasons_of: Sequence[int],
    everything: bool,
    quiet: bool = False,
    assumed: str = "",
) -> None:
    """Warnings first, since everything else can wait; then decisions, ranks, memory, bytes.

    Args:
        reasons_of: ranks whose every choice is explained.
        everything: also ranks of hosts that are like the first one. quiet: warnings only.
        assumed: what nobody has said and was taken for granted, a sentence.
    """
    for caution in plan.cautions:
        console.print(_panel(caution))
    if assumed:
        console.print(Text(assumed, "yellow"), soft_wrap=True)
    if quiet:
        console.print(_summary(plan), soft_wrap=True)
        return
    console.print(_decisions(plan))
    ranks, alike = _without_repeats(plan.ranks)
    console.print(_ranks(plan.ranks if everything else ranks))
    if alike and not everything:
        console.print(f"{alike} more host(s) are like the first; --all shows them", style="dim")
    for number in reasons_of:
        console.print(_reasons(plan.ranks[number]))
    if plan.bill:
        console.print(_bill(plan))
    if plan.traffic is not None:
        console.print(_bytes(plan.traffic))
    console.print(_summary(plan), soft_wrap=True)


def _panel(caution: Caution) -> Panel:
    text = Text.assemble(caution.text, ("\nfix: ", "bold"), (caution.fix, "bold"))
    style = _STYLE[caution.level]
    return Panel(text, title=Text(f"WARNING: {caution.kind}", style), title_align="left", border_style=style, box=HEAVY)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=ROUNDED)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _decisions(plan: GroupPlan) -> Table:
    table = _table(f"{plan.num_ranks} ranks on {plan.num_hosts} host(s)", "decision", "chosen", "why, and over what")
    for choice in plan.choices:
        table.add_row(choice.what, Text(choice.chosen, "bold"), _because(choice.why, choice.over))
    return table


def _because(why: str, over: Sequence[str]) -> Text:
    return Text.assemble(why, *((f"\nnot {other}", "dim") for other in over))


def _ranks(ranks: Sequence[RankPlan]) -> Table:
    """A line a rank; without columns of what no rank has."""
    names = ("rank", "host", "node", "computes on", "NICs", "address", "GPU rows", "CPUs")
    rows = [_cells(rank) for rank in ranks]
    shown = [i for i in range(len(names)) if any(len(row[i]) for row in rows)]
    table = _table("ranks", *(names[i] for i in shown))
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    return table


def _cells(r: RankPlan) -> list[Text]:
    names = Text("\n").join(Text(f"{n} {n.gbps:g}G" if n.gbps else str(n), _mark(n.shared_with)) for n in r.nics)
    addresses = "\n".join(dict.fromkeys(nic.address for nic in r.nics))
    rows = r.registration if r.device != "cpu" else ""
    cpus = f"{r.threads} on {','.join(map(str, r.cpus)) or 'any'}"
    words = (str(r.rank), r.host, str(r.node), r.where, None, addresses, rows, cpus)
    return [names if word is None else Text(word) for word in words]


def _mark(shared_with: Sequence[int]) -> str:
    return "bold red" if shared_with else ""


def _without_repeats(ranks: Sequence[RankPlan]) -> tuple[list[RankPlan], int]:
    """(ranks of hosts that differ from all before them, how many hosts do not)."""
    by_host: dict[str, list[RankPlan]] = {}
    for rank in ranks:
        by_host.setdefault(rank.host, []).append(rank)
    seen, kept, alike = set(), [], 0
    for some in by_host.values():
        shape = tuple((r.where, tuple(map(str, r.nics)), r.registration, r.cpus) for r in some)
        if shape in seen:
            alike += 1
            continue
        seen.add(shape)
        kept += some
    return kept, alike


def _reasons(rank: RankPlan) -> Table:
    table = _table(f"rank {rank.rank}, and why", "decision", "chosen", "why, and over what")
    for choice in rank.choices:
        table.add_row(choice.what, Text(choice.chosen, "bold"), _because(choice.why, choice.over))
    return table


def _bill(plan: GroupPlan) -> Table:
    table = _table("memory of a rank", "bytes", "for", "what it is")
    for line in plan.bill:
        table.add_row(format_bytes(line.num_bytes), line.name, Text(line.what_for, "dim" if line.reserved else ""))
    table.add_row(Text(format_bytes(plan.total_bytes), "bold"), Text("total", "bold"), "")
    table.add_row(format_bytes(plan.locked_bytes), "of it locked", "registered with a NIC, or pinned for a GPU")
    return table


def _bytes(traffic: Traffic) -> Table:
    table = _table("expected bytes of a step, sent by a rank to other nodes", "what", "bytes", "how")
    table.add_row("dispatch", format_bytes(round(traffic.dispatch_bytes)), traffic.formula)
    table.add_row("combine", format_bytes(round(traffic.combine_bytes)), "")
    table.add_row(
        "a row per expert would be", format_bytes(round(traffic.per_expert_bytes)), "dispatch as DeepEP sends it"
    )
    table.add_row("rows computed here", f"{traffic.received_rows:,.0f}", "(token, expert) pairs")
    if traffic.seconds:
        table.add_row("at the NICs' rate", f"{traffic.seconds * 1e6:,.0f} us", "no step is faster than that")
    return table


def _summary(plan: GroupPlan) -> Text:
    severe = [caution for caution in plan.cautions if caution.level in (ERROR, LOUD)]
    if not plan.cautions:
        return Text("no warnings", "bold green")
    kinds = ", ".join(dict.fromkeys(caution.kind for caution in plan.cautions))
    return Text(f"{len(plan.cautions)} warning(s) above: {kinds}", "bold red" if severe else "bold yellow")
