"""Tables on the terminal for what the model found, from the same dictionaries as the JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from uccl_ep.sizes import format_bytes
from uccl_ep.tools.bench.show import show_targets


def show_bytes(result: dict[str, Any], console: Console) -> None:
    """Bytes and messages of a token, ours beside upstream's; what the cost model chooses and why; the targets."""
    options = result["options"]
    crossing = [row for row in result["rows"] if row["nodes"] > 1]
    for mode in options["modes"]:
        rows = [row for row in crossing if row["mode"] == mode]
        if rows:
            console.print(_bytes_table(mode, rows, options))
    for ranks in dict.fromkeys(row["ranks"] for row in result["rows"] if row["nodes"] == 1):
        _note(console, f"{ranks} ranks are one node: nothing crosses a network, here or upstream")
    if "throughput" in options["modes"]:
        _note(
            console, "throughput: both send a token once per node and reduce in the node, so bytes are equal by design"
        )
    chosen = [row for row in crossing if "choice" in row]
    if chosen:
        console.print(_choice_table(chosen, options))
        _reasons(next((row for row in chosen if row["ranks"] == 32), chosen[0]), options, console)
    show_targets(result["targets"], console)


def _note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False)


def _table(title: str, *heads: str, left: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", no_wrap=head not in left)
    return table


def _bytes_table(mode: str, rows: list[dict[str, Any]], options: dict[str, Any]) -> Table:
    by_node = ("by node",) if mode == "low-latency" else ()
    title = f"{mode}, ours / upstream's: KB and messages of a token ({options['hidden']} channels,\n"
    title += f"top-{options['topk']}, {options['row_format']} out, bf16 back, {options['ranks_per_node']} ranks a node)"
    heads = ("ranks", "routing", "dispatch", "combine", "bytes", *by_node, "messages")
    table = _table(title, *heads, left=("routing",))
    for row in rows:
        cells = [_beside(*(row["per_token"][f"{side}{phase}"]["bytes"] / 1e3 for side in ("", "upstream_")))
                 for phase in ("dispatch", "combine")]  # fmt: skip
        shares = [row["bytes_ratio"], *([row["bytes_ratio_node"]] if by_node else [])]
        cells += [f"{share:.2f}" for share in shares]
        table.add_row(
            str(row["ranks"]), row["routing"], *cells, _beside(_messages(row, ""), _messages(row, "upstream_"))
        )
    return table


def _beside(ours: float, upstream: float) -> str:
    return f"{ours:.1f} / {upstream:.1f}"


def _messages(row: dict[str, Any], side: str) -> float:
    return float(sum(row["per_token"][f"{side}{phase}"]["messages"] for phase in ("dispatch", "combine")))


def _choice_table(rows: list[dict[str, Any]], options: dict[str, Any]) -> Table:
    heads = ("ranks", "routing", "dispatch", "us", "else", "combine", "us ", "else ")
    title = f"the cost model's choice on {options['network']}, and what the other form would take"
    table = _table(title, *heads, left=("routing", "dispatch", "combine"))
    for row in rows:
        cells: list[str] = []
        for choice in row["choice"].values():
            times = {e["form"]: e["total_us"] for e in choice["estimates"]}
            other = max(time for form, time in times.items() if form != choice["form"])
            cells += [choice["form"], f"{times[choice['form']]:.0f}", f"{other:.0f}"]
        table.add_row(str(row["ranks"]), row["routing"], *cells)
    return table


def _reasons(row: dict[str, Any], options: dict[str, Any], console: Console) -> None:
    console.print(f"why, at {row['ranks']} ranks, {row['routing']} routing, on {options['network']}:", highlight=False)
    for phase, choice in row["choice"].items():
        for line in choice["reasons"]:
            console.print(f"  {phase}: {line}", highlight=False, markup=False)


def show_memory(result: dict[str, Any], console: Console) -> None:
    """A rank's low-latency memory beside upstream's, and the targets."""
    options = result["options"]
    title = f"low latency, MiB of one rank: {options['tokens']} tokens x {options['hidden']}"
    table = _table(title, "ranks", "experts", "ours", "upstream", "ratio", "allowed", "a rank a node", "shrink")
    for row in result["rows"]:
        sizes = {key: f"{row[key] / 2**20:,.1f}" for key in row if key.startswith(("ours", "upstream"))}
        table.add_row(
            str(row["ranks"]),
            str(row["asked_experts"]),
            sizes["ours"],
            sizes["upstream"],
            f"{row['ratio']:.3f}",
            f"{row['limit']:.2f}",
            sizes["ours_one_rank_a_node"],
            sizes["ours_enable_shrink"],
        )
    console.print(table)
    _note(
        console,
        f"ours: nodes of {options['ranks_per_node']}; then with one rank a node, and with enable_shrink. Upstream's "
        "formula knows neither ranks nor nodes, and is taken without the padding of experts that many ranks need.",
    )
    show_targets(result["targets"], console)


def show_rebalance(result: dict[str, Any], console: Console) -> None:
    """What moves, what a step sends and computes before and after, and when it pays."""
    options, moved = result["options"], result["moves"]
    title = f"{options['ranks']} ranks, nodes of {options['ranks_per_node']}, {options['experts']} experts in "
    title += f"{result['slots']} slots, {options['routing']} routing: a step of one layer"
    table = _table(title, "", "before", "after", "", left=("",))
    for name, key in (("between nodes, all ranks", "wire_bytes"), ("between nodes, busiest rank", "busiest_bytes")):
        table.add_row(name, *_pair(result, key, lambda value: format_bytes(round(value))))
    for name, key in (("rows computed, busiest rank", "busiest_rows"), ("rows computed, mean", "mean_rows")):
        table.add_row(name, *_pair(result, key, lambda value: f"{value:,.0f}"))
    table.add_row("microseconds", *_pair(result, "us", lambda value: f"{value:,.1f}"))
    console.print(table)
    table = _table(f"moved once: {moved['copies']} copies of {format_bytes(result['expert_bytes'])}", "", "all ranks",
                   "busiest rank", left=("",))  # fmt: skip
    for name, link in (("inside nodes", "inside"), ("between nodes", "between")):
        table.add_row(name, *(format_bytes(moved[f"{link}_{which}"]) for which in ("bytes", "busiest_bytes")))
    console.print(table)
    steps, saved = result["pays_after"], result["saved_us"]
    end = f"it pays after {steps:,} steps" if steps is not None else "it never pays in these bytes and rows"
    text = f"moving takes {result['move_us']:,.1f} us on {options['network']} (assumed), a step {saved:,.1f} us less"
    console.print(f"{text}: {end}", highlight=False, soft_wrap=True)
    if not options["row_us"]:
        _note(console, "only bytes count: --row-us says what a row costs the rank that computes it")


def _pair(result: dict[str, Any], key: str, shown: Callable[[float], str]) -> list[str]:
    before, after = result["before"][key], result["after"][key]
    return [shown(before), shown(after), f"{after / before - 1:+.1%}" if before else ""]


def show_growth(result: dict[str, Any], console: Console) -> None:
    """For each axis what grows how, from the model and, where there are any, from measured runs; reasons below."""
    reasons: list[str] = []
    for source in ("counted", "measured"):
        for entry in result[source]:
            sizes = entry["sizes"]
            at = ", ".join(f"{name} {value}" for name, value in entry["base"].items() if name != entry["axis"])
            heads = ("", f"at {sizes[0]}", f"at {sizes[-1]}", "exponent", "growth")
            table = _table(
                f"{source}, of a rank and call, over {entry['axis']}\n(at {at})", *heads, left=("", "growth")
            )
            for name, fit in entry["fits"].items():
                ends = [_amount(name, entry["values"][name][i]) for i in (0, -1)]
                exponent = "-" if fit["exponent"] is None else f"{fit['exponent']:.2f}"
                table.add_row(name, *ends, exponent, fit["growth"] + _footnote(fit["reason"], reasons))
            console.print(table)
    machine = result.get("machine")
    if machine is not None:
        _note(console, f"measured on {machine['cores']} cores of {machine['cpu']}, load {machine['load_1min']}")
    for number, reason in enumerate(reasons, 1):
        _note(console, f"({number}) {reason}")


def _footnote(reason: str, reasons: list[str]) -> str:
    if not reason:
        return ""
    if reason not in reasons:
        reasons.append(reason)
    return f" ({reasons.index(reason) + 1})"


def _amount(name: str, value: float) -> str:
    if name.endswith("time"):
        return f"{value * 1e3:.2f} ms"
    return f"{value:.0f}" if name.endswith("messages") else format_bytes(round(value))
