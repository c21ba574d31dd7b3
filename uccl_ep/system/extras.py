"""What an extra of the package brings, as a command that installs it here and now: no index has uccl-ep itself."""

from __future__ import annotations

import re
from importlib import metadata


def install(extra: str) -> str:
    """ "pip install ..." with the packages that `extra` names in pyproject.toml; where uccl-ep is a folder on the path
    and not installed, the command for its checkout."""
    try:
        required = metadata.requires("uccl-ep") or []
    except metadata.PackageNotFoundError:
        return f"in its checkout: pip install '.[{extra}]'"
    found = []
    for line in required:
        package, _, condition = line.partition(";")
        if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", condition):
            found.append(package.strip())
    return " ".join(["pip install", *(f"'{name}'" if re.search(r"[<>=\[]", name) else name for name in found)])
