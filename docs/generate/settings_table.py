"""The table of every UCCL_EP_* variable, from the one place that reads them (uccl_ep/settings.py)."""

from __future__ import annotations

from docs.generate.markdown import table
from uccl_ep.settings import describe


def settings_table() -> str:
    """One row a variable, in the order of `uccl-ep env`."""
    rows = [
        [f"`{row.name}`", row.help, row.allowed, "" if row.default == "empty" else f"`{row.default}`"]
        for row in describe()
    ]
    return table(["variable", "what it is for", "allowed", "default"], rows)
