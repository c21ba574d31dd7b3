"""Jobs as a watcher would tell of them, and a view as text: for tests of the views."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from tests.uccl_ep.observe.samples import page, quiet_second
from uccl_ep.observe.rates import rates
from uccl_ep.observe.waits import find_waits
from uccl_ep.observe.watch import Job

MS = 1_000_000


def job(num_ranks: int = 4, changed: Any = lambda pairs: None, **of_page: Any) -> Job:
    """A second of a job in which nothing happened but what `changed` does to the samples."""
    node_of = of_page.pop("node_of", [r // 2 for r in range(num_ranks)])
    pages = {r: page(r, num_ranks, node_of=node_of, **of_page) for r in range(num_ranks)}
    pairs = quiet_second(pages[0].topology)
    changed(pairs)
    return Job(
        pages=pages,
        pids={r: 1000 + r for r in pages},
        samples={r: pair[1] for r, pair in pairs.items()},
        rates={r: rates(*pair) for r, pair in pairs.items()},
        waits=find_waits(pairs, pages[0].topology),
    )


def late(pairs: Any) -> None:
    for r in pairs:
        if r != 2:
            pairs[r][1].peers["wait_ns"][2] = 321 * MS
    pairs[0][1].peers["bytes_sent"][2] = 3 << 20
    pairs[0][1].peers["write_bytes"][2] = 5 << 20


def ended(*ranks: int) -> Any:
    """What makes these ranks end within the second."""

    def end(pairs: Any) -> None:
        for rank in ranks:
            before, after = pairs[rank]
            pairs[rank] = (before, replace(after, alive=False))

    return end


def text_of(shown: Any, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]
