"""The variables' table has a row for each, with what it allows."""

from __future__ import annotations

from docs.generate.settings_table import settings_table
from uccl_ep.settings import describe


def test_docs_settings_table_has_every_variable_in_order() -> None:
    rows = settings_table().splitlines()[2:]
    described = describe()
    assert len(rows) == len(described)
    for row, variable in zip(rows, described, strict=True):
        assert row.startswith(f"| `{variable.name}` | ")
        assert variable.help in row.replace("\\|", "|") and variable.allowed in row.replace("\\|", "|")
        assert "empty |" not in row
        if variable.default != "empty":
            assert row.endswith(f"`{variable.default}` |")
