"""The table of memory: what the bill says, in GiB."""

from __future__ import annotations

import uccl_ep
from docs.generate.memory import memory_table


def test_docs_memory_table_is_the_bill_in_gib() -> None:
    heading, _, *rows = memory_table().splitlines()
    columns = [cell.strip() for cell in heading.strip("|").split("|")]
    assert columns[-1] == "upstream, any" and len(rows) == 6
    first = dict(zip(columns, [cell.strip() for cell in rows[0].strip("|").split("|")], strict=True))
    assert (first["model"], first["M"]) == ("DeepSeek-V3, R1", "128")
    assert first["16 ranks"] == f"{uccl_ep.memory_bill(128, 7168, 16, 256, ranks_per_node=8).total_bytes / 2**30:.2f}"
    assert float(first["upstream, any"]) > 10 * float(first["64 ranks"])
