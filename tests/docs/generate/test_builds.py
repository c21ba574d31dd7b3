"""The tables of builds: a column for each, and nothing in them that is neither there nor refused."""

from __future__ import annotations

from docs.generate.builds import answers, builds_table, moved_table, refused_table
from tests.builds.record import BUILDS
from uccl_ep.drop_in import is_installed


def test_docs_builds_tables_hold_every_build_and_every_refusal() -> None:
    heading, _, *rows = builds_table().splitlines()
    assert not is_installed()
    assert all(f"| {build.name} " in heading for build in BUILDS)
    cells = {row.split("|")[1].strip(): row for row in rows}
    assert "absent" not in "".join(rows) and " refused" in cells["**all**"] and "`Buffer`" in cells
    assert cells["`utils.semantic`"].count("–") == sum("utils.semantic" not in _names(build.name) for build in BUILDS)
    refused = refused_table()
    reasons = {found.words for of in answers().values() for found in of.values() if found.kind == "refused"}
    assert len(refused.splitlines()) == 2 + len(reasons) and all(" ".join(why.split()) in refused for why in reasons)
    assert "| `bench_kineto` |" in refused
    moved = moved_table()
    assert "| `Buffer.low_latency_dispatch` | `x_global_scale` | sgl-deep-ep |" in moved and "use_tma" in moved


def _names(build: str) -> set[str]:
    return {name for name, of in answers().items() if build in of}
