"""The variables' tables: each variable once, with what it allows."""

from __future__ import annotations

from docs.generate.settings_table import GROUPS, settings_table
from uccl_ep.settings import describe


def test_docs_settings_table_has_every_variable_once() -> None:
    rows = {row.split("`")[1]: row for row in settings_table().splitlines() if row.startswith("| `")}
    described = {variable.name: variable for variable in describe()}
    grouped = [f"UCCL_EP_{name}" for names in GROUPS.values() for name in names.split()]
    assert sorted(grouped) == sorted(described) and set(rows) == set(described)
    for name, variable in described.items():
        row = rows[name].replace("\\|", "|")
        assert variable.help in row and variable.allowed in row
        assert "empty |" not in row
        if variable.default != "empty":
            assert row.endswith(f"`{variable.default}` |")
